//! `maxmemory`: makes room before a command runs, or rejects the command.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::command::{Command, Flags, Handler, TransactionPart};
use pantala_engine::eviction::OUT_OF_MEMORY;
use pantala_resp::{ArgRange, Args, Reply};
use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_session::access::{forbidden, is_restricted};

use super::Runner;
use crate::dispatch::window::{Entry, What};
use crate::dispatch::{Dispatcher, flags_of, refusal};
use crate::stats::Outcome;

/// Minimum size, in bytes, of an input buffer that [`Runner::has_room`] adds to the memory counter.
/// The counter includes smaller buffers only after its next periodic update.
const COUNTED_INPUT_BYTES_MIN: usize = 64 * 1024;

impl Runner {
    /// Evicts keys before a command runs. If memory still exceeds the limit and the command needs
    /// memory, rejects the command with an error and returns `false`. Otherwise returns `true`,
    /// even if the command will be rejected for another reason.
    #[inline(never)]
    pub(super) fn has_room<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        ranges: &[ArgRange],
    ) -> bool {
        let (What::Single(command, _) | What::Keyed(command) | What::Local(command)) = entry.what else { return true };
        if !self.may_run(d, entry, command, ranges) {
            return true;
        }
        // Redis counts a command's arguments before the command runs. Here the memory counter
        // includes the arguments only after its next periodic update, so this check adds them
        // temporarily.
        let uncounted_bytes = uncounted_input_bytes(d, entry.connection, ranges);
        let count = |d: &Dispatcher<'_, L>, bytes: i64| d.clients.executor.keyspace().memory().add_other(bytes);
        if uncounted_bytes > 0 {
            count(d, uncounted_bytes);
        }
        d.memory.make_room(&mut d.clients, &mut []);
        if uncounted_bytes > 0 {
            count(d, -uncounted_bytes);
        }
        // The invalidations of evicted keys must precede the reply.
        d.clients.send_own_invalidations();
        if !d.memory.is_out() {
            return true;
        }
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return true };
        let args = Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges);
        let session = &mut connection.session;
        if session.primary.is_some() {
            return true;
        }
        let needs_memory = match &mut session.transaction {
            Some(transaction) if matches!(command.handler, Handler::Transaction(TransactionPart::Exec)) => {
                transaction.flags().contains(Flags::DENYOOM)
            }
            // Queuing takes memory, regardless of the command.
            Some(transaction) => {
                let needs_memory = !command.flags.contains(Flags::DISCARDS);
                transaction.aborted |= needs_memory;
                needs_memory
            }
            None => flags_of(d.clients.reactor.server, command, &args).contains(Flags::DENYOOM),
        };
        if !needs_memory {
            return true;
        }
        let before = connection.output.len();
        let why = refusal(command, session, OUT_OF_MEMORY.as_bytes());
        Reply::new(&mut connection.output, session.version).error_bytes(&why);
        d.clients.tally.count_reply(&connection.output[before..]);
        d.clients.tally.count(command, Outcome::Rejected);
        connection.end_reply(before);
        connection.input.done(entry.end);
        false
    }

    /// Returns whether the command would run if there were enough memory. If not, the memory need
    /// not be checked.
    fn may_run<L: EventLoop>(
        &self,
        d: &Dispatcher<'_, L>,
        entry: &Entry,
        command: &Command,
        ranges: &[ArgRange],
    ) -> bool {
        let Some(connection) = &d.clients.reactor.connections[entry.connection as usize] else { return false };
        let users = d.clients.executor.keyspace().users();
        let is_watched_over = is_restricted(&connection.session, users) || command.flags.contains(Flags::PROTECTED);
        let is_forbidden = || {
            let args = Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges);
            forbidden(command, &args, &connection.session, users, d.clients.reactor.server).is_some()
        };
        connection.state == State::Open
            && !(is_watched_over && is_forbidden())
            && !(connection.session.transaction.is_some() && command.flags.contains(Flags::NO_MULTI))
            // While writes are paused, nothing is evicted.
            && d.clients.reactor.server.paused_until_ms() <= d.clients.reactor.clock.now_ms
    }
}

/// Returns how many bytes of a command's list of arguments and of its connection's input buffer are
/// missing from the memory counter. Returns 0 if the buffer is smaller than
/// [`COUNTED_INPUT_BYTES_MIN`].
fn uncounted_input_bytes<L: EventLoop>(d: &Dispatcher<'_, L>, index: u32, ranges: &[ArgRange]) -> i64 {
    let Some(connection) = &d.clients.reactor.connections[index as usize] else { return 0 };
    let capacity_bytes = connection.input.capacity_bytes();
    if capacity_bytes < COUNTED_INPUT_BYTES_MIN {
        return 0;
    }
    let counted_bytes = connection.session.client.query_capacity_bytes.load(Relaxed);
    (capacity_bytes as u64).saturating_sub(counted_bytes) as i64 + size_of_val(ranges) as i64
}
