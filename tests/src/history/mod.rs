//! Histories of concurrent clients, and whether they could have happened: one command after the other, each at some moment between its
//! being sent and its being answered.
//!
//! # Words
//!
//! - [`Operation`]: what takes effect at one moment: a command, a transaction, a script.
//! - [`Event`]: an operation of a client, when it was sent, what was answered and when.
//! - history: the events of a *window*, which begins with keys that nobody has used.
//! - [`model::State`]: what one thread would know, and what it would answer.
//! - [`check`](check::check): looks for an order of the events in which the model answers what the server did.
//!
//! Why this checker and no other: docs/decisions/0008-linearizability.md.

pub mod check;
pub mod model;
pub mod operation;
pub mod plan;
pub mod record;

pub use check::{Scope, Verdict, check};
pub use operation::{Command, Key, Operation, Script};

use crate::Reply;

/// See the head of this module.
#[derive(Clone, Debug)]
pub struct Event {
    /// Who sent it.
    pub client: usize,
    /// What it was.
    pub operation: Operation,
    /// What was answered.
    pub reply: Reply,
    /// When it was sent, ns since the window began: not after its first byte.
    pub called_ns: u64,
    /// When it was answered: not before its last byte.
    pub returned_ns: u64,
}

impl Event {
    /// Whether it has changed nothing, whatever the keys held.
    #[must_use]
    pub fn changes_nothing(&self) -> bool {
        self.operation.changes_nothing(&self.reply)
    }
}
