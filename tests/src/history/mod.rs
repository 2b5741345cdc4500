//! Histories of concurrent clients, and a check whether they are linearizable: whether the commands
//! could have run in sequence, each at a moment between its request and its reply.
//!
//! # Words
//!
//! - [`Operation`]: an operation that takes effect at one moment: a command, a transaction, a
//!   script.
//! - [`Event`]: an operation of a client with its reply and the times of both.
//! - history: the events of a *window*, which starts with new keys.
//! - [`model::State`]: the state of a single-threaded server, and its replies.
//! - [`stream::Order`]: checks the stream of effects against the planned operations.
//! - [`check`](check::check): searches for an order of the events in which the model returns the
//!   server's replies.
//!
//! docs/decisions/0008-linearizability.md explains the choice of this checker.

pub mod check;
pub mod model;
pub mod operation;
pub mod plan;
pub mod record;
pub mod stream;

pub use check::{Scope, Verdict, check};
pub use operation::{Command, Key, Operation, Script};

use crate::Reply;

/// See the head of this module.
#[derive(Clone, Debug)]
pub struct Event {
    /// The client that sent it.
    pub client: usize,
    /// The operation.
    pub operation: Operation,
    /// The reply.
    pub reply: Reply,
    /// When it was sent, at the latest when its first byte was: ns since the start of the window.
    pub called_ns: u64,
    /// When the reply arrived, at the earliest when its last byte did: ns since the start of the
    /// window.
    pub returned_ns: u64,
}

impl Event {
    /// Returns whether it has changed nothing, for any content of the keys.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.operation.changes_nothing(&self.reply)
    }
}
