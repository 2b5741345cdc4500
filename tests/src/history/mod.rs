//! Histories of concurrent clients, and a check that the histories are linearizable. In a
//! linearizable history, the operations could have run one after the other, each at a moment
//! between its request and its reply.
//!
//! # Words
//!
//! - [`Operation`]: a client's request that must take effect at one moment: a command, a
//!   transaction, a script.
//! - [`Event`]: an operation with its reply, and the times of request and reply.
//! - *plan*: the operations that one client sends in a window, in order.
//! - *window*: one round of the test. All clients execute their plans at the same time, on keys
//!   that no other window uses.
//! - *history*: the events of a window.
//! - [`model::State`]: the state of a single-threaded server, and its replies.
//! - [`stream::Order`]: checks the order of the stream of effects (see [`crate::effects`]) against
//!   the plans.
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

/// An operation with its reply and its times (see the module documentation).
#[derive(Clone, Debug)]
pub struct Event {
    /// The client that sent the operation.
    pub client: usize,
    /// The operation.
    pub operation: Operation,
    /// The reply.
    pub reply: Reply,
    /// A time before the request's first byte was sent, in ns since the start of the window.
    pub called_ns: u64,
    /// A time after the reply's last byte arrived, in ns since the start of the window.
    pub returned_ns: u64,
}

impl Event {
    /// Returns whether the reply alone shows that the operation has changed nothing.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.operation.changes_nothing(&self.reply)
    }
}
