//! Histories of concurrent clients, and whether they are linearizable: one command after the other,
//! each at some moment between its request and its reply.
//!
//! # Words
//!
//! - [`Operation`]: what takes effect at one moment: a command, a transaction, a script.
//! - [`Event`]: an operation of a client with its reply and the times of both.
//! - history: the events of a *window*, which starts with fresh keys.
//! - [`model::State`]: the state of a single-threaded server, and its replies.
//! - [`stream::Order`]: checks the stream of effects against the planned operations.
//! - [`check`](check::check): searches an order of the events in which the model gives the server's
//!   replies.
//!
//! Why this checker and no other: docs/decisions/0008-linearizability.md.

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
    /// When it was sent, ns since the start of the window: not after its first byte.
    pub called_ns: u64,
    /// When the reply arrived: not before its last byte.
    pub returned_ns: u64,
}

impl Event {
    /// Returns whether it has changed nothing, whatever the keys held.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.operation.changes_nothing(&self.reply)
    }
}
