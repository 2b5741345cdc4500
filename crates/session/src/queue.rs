//! `MULTI`: queues a connection's commands until `EXEC`.

use std::ops::Range;

use pantala_base::{Lender, Lent};
use pantala_engine::access::KeyPlace;
use pantala_engine::command::{Command, Flags};
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{ArgRange, Args, Reply};

use crate::connection::Connection;

/// The reply to a command that has been queued.
pub const QUEUED: &str = "QUEUED";

/// The error for a command that a transaction can't contain.
const NOT_IN_TRANSACTIONS: &str = "ERR Command not allowed inside a transaction";

/// A command to be queued.
pub struct ToQueue<'q> {
    /// The command's record in the command table.
    pub command: &'static Command,
    /// The command's position in the input.
    pub at: Range<usize>,
    /// The ranges of the command's arguments, relative to its first byte.
    pub ranges: &'q [ArgRange],
    /// The hash and the shard of the command's key, if it has exactly one key.
    pub place: Option<KeyPlace>,
}

impl<C: Lent, S> Connection<C, S> {
    /// Queues a command of a connection that has sent `MULTI`, and replies to it. `flags` returns
    /// the flags of the call. Returns whether the transaction may contain the command.
    pub fn queue<M: Lender<Chunk = C>>(
        &mut self,
        memory: &M,
        keyspace: &Keyspace,
        queued: ToQueue<'_>,
        flags: impl FnOnce(&Command, &Args<'_>) -> Flags,
    ) -> bool {
        let ToQueue { command, at, ranges, place } = queued;
        let end = at.end;
        let args = Args::new(&self.input.bytes(memory)[at], ranges);
        let session = &mut self.session;
        let Some(transaction) = &mut session.transaction else { return true };
        let mut reply = Reply::new(&mut self.output, session.version);
        let is_allowed = !command.flags.contains(Flags::NO_MULTI);
        if is_allowed {
            // A transaction that was aborted, or whose watched key was changed, will not run. So
            // its further commands are checked but not queued: a client that ignores the error
            // replies could otherwise fill the memory.
            let is_spoiled =
                transaction.aborted || session.watching.as_ref().is_some_and(|watching| watching.is_changed());
            if !is_spoiled {
                transaction.push(keyspace, command, &args, flags(command, &args), place);
            }
            reply.simple(QUEUED);
            session.publish_transaction();
        } else {
            transaction.aborted = true;
            reply.error(NOT_IN_TRANSACTIONS);
        }
        self.input.done(end);
        is_allowed
    }
}
