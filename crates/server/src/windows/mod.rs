//! Windows: parses commands from connections, prefetches what they need, and runs them in order.
//!
//! Drives the [dispatcher](crate::dispatch), which runs commands that need more than their turn in
//! a window: transactions, scripts, and requests to other workers.

mod ahead;
mod caching;
mod hand_over;
mod homes;
mod plain;
mod queue;
mod refusal;
mod room;
mod run;
mod slow;
mod suspended;
mod waits;

use crate::dispatch::window::Window;
use hand_over::Handed;

/// A worker's windows. A turn within a script has its own.
#[derive(Default)]
pub struct Windows {
    window: Window,
    runner: Runner,
}

/// Runs the commands of a window.
#[derive(Default)]
struct Runner {
    /// The command that has just run, if its value was handed over.
    handed: Option<Handed>,
}
