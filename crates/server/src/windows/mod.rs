//! Windows: parses commands from connections, prefetches the data that the commands need, and runs
//! the commands in order. A [window](Window) is a list of parsed commands, possibly of many
//! connections.
//!
//! This layer calls the [dispatcher](crate::dispatch) for transactions, scripts and requests to
//! other workers, because a window cannot finish these in one step.

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

/// A worker's window and its runner. Turns within a script use another window and runner.
#[derive(Default)]
pub struct Windows {
    window: Window,
    runner: Runner,
}

/// Runs the commands of a window.
#[derive(Default)]
struct Runner {
    /// The arguments of the command that has just run, if its value was handed over to the
    /// keyspace.
    handed: Option<Handed>,
}
