//! `maxmemory` as a worker keeps to it: what it looks at before each command, and what it does between.
//!
//! Before a command runs, keys are evicted where memory is above its limit ([`pantala_engine::eviction`]); where nothing more can be, commands that may take
//! memory are refused, as in Redis. What has waited for its shards is looked at again when it has them, by whoever runs it. Some times a second, and as long as
//! there is something left to evict with each turn, the worker goes on by itself.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::allocator;
use pantala_engine::command::{Command, Flags, Handler, TransactionPart};
use pantala_engine::eviction::{OUT_OF_MEMORY, Room};
use pantala_engine::ownership::Ownership;
use pantala_resp::{ArgRange, Args, Reply};
use pantala_runtime::{EventLoop, Outgoing};
use pantala_session::access::{forbidden, is_restricted};
use pantala_session::output::Ahead;

use super::transactions::Held;
use super::window::{Entry, What};
use super::{Dispatcher, State, scripts, transactions};
use crate::stats::Outcome;

/// How much output of closed connections a turn frees, bytes: some tenths of a millisecond's work.
const FREED_BYTES_PER_TURN: usize = 4 * 1024 * 1024;

/// A Lua state that shrank by so much, bytes, has its worker purge at once.
const STATE_BYTES_FREED_MIN: usize = 8 * 1024 * 1024;

/// What a worker remembers.
#[derive(Default)]
pub struct MemoryState {
    /// There was no memory, and nothing to evict, when the last command came: what a script goes by that it has sent.
    is_out: bool,
    /// There is more to evict or to free, in the next turn.
    is_behind: bool,
    /// Purge again in the next periodic work.
    purges_again: bool,
    /// Output of closed connections.
    garbage: VecDeque<Outgoing>,
    /// What the sum of all memory has of this worker's connections, bytes.
    told_bytes: u64,
    /// Since when, unix time in ms.
    told_ms: i64,
}

impl MemoryState {
    /// Whether the next turn is to come at once.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Frees the pending output of a connection that is closed: gigabytes of it turn by turn, since the kernel takes its time for such.
    #[cold]
    pub(super) fn free_output(&mut self, ahead: &mut Ahead) {
        let (pieces, own_bytes) = ahead.take();
        if own_bytes > FREED_BYTES_PER_TURN {
            self.garbage.extend(pieces);
            self.is_behind = true;
        }
    }

    fn free_garbage(&mut self) {
        let mut freed_bytes = 0;
        while freed_bytes < FREED_BYTES_PER_TURN
            && let Some(piece) = self.garbage.pop_front()
        {
            freed_bytes += piece.bytes().len();
        }
        self.is_behind = !self.garbage.is_empty();
    }

    /// Returns what this worker's heap doesn't use to the kernel, now and once more in the next periodic work: while several heaps
    /// are purged, one may skip memory that another has just freed.
    #[cold]
    pub fn purge(&mut self) {
        allocator::purge();
        self.purges_again = true;
    }

    /// Repeats a purge, if one was done since this was last called.
    pub fn purge_again(&mut self) {
        if std::mem::take(&mut self.purges_again) {
            allocator::purge();
        }
    }

    /// A script has ended, and its state holds fewer bytes than when it ran.
    pub(super) fn purge_after_script(&mut self, bytes_before: usize, bytes: usize) {
        if bytes_before.saturating_sub(bytes) >= STATE_BYTES_FREED_MIN {
            self.purge();
        }
    }
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Whether there was no memory left, and nothing to evict, when the command came that runs now.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.executor.keyspace().tuning.is_limited() && self.memory.is_out
    }

    /// Takes up again what [`Dispatcher::is_out_of_memory`] said, when others have sent commands meanwhile.
    pub(super) fn set_out_of_memory(&mut self, is_out: bool) {
        self.memory.is_out = is_out;
    }

    fn make_room(&mut self, held: &mut [Ownership]) {
        let was_over = self.executor.keyspace().memory().is_over();
        let mut room = self.executor.make_room(held, self.reactor.clock.now_ms);
        // What clients took when they last told may be free by now (a transaction that has run, say).
        if room == Room::None && self.memory.told_ms != self.reactor.clock.now_ms {
            self.tell_clients();
            room = self.executor.make_room(held, self.reactor.clock.now_ms);
        }
        if was_over {
            // To evict may take long.
            self.reactor.read_clock();
        }
        self.memory.is_out = room == Room::None;
        self.memory.is_behind |= self.executor.goes_on_evicting();
    }

    /// Evicts what has to go before a command may run, and refuses that if it isn't enough: then it says no, and the command is answered. Of what won't run anyway
    /// it says yes.
    #[inline(never)]
    pub(super) fn has_room(&mut self, entry: &Entry, ranges: &[ArgRange]) -> bool {
        let (What::Single(command, _) | What::Keyed(command) | What::Local(command)) = entry.what else { return true };
        if !self.may_run(entry, command) {
            return true;
        }
        self.make_room(&mut []);
        // Who has copies of keys that are gone hears of it before the reply.
        self.tell_own();
        if !self.memory.is_out {
            return true;
        }
        let Some(connection) = &mut self.reactor.connections[entry.connection as usize] else { return true };
        let args = Args::new(&connection.input.bytes(&self.reactor.io)[entry.begin..entry.end], ranges);
        let session = &mut connection.session;
        let needs_memory = match &mut session.transaction {
            Some(transaction) if matches!(command.handler, Handler::Transaction(TransactionPart::Exec)) => {
                transaction.flags().contains(Flags::DENYOOM)
            }
            // What is queued takes memory, whatever it does later.
            Some(transaction) => {
                let needs_memory = !command.flags.contains(Flags::DISCARDS);
                transaction.aborted |= needs_memory;
                needs_memory
            }
            None => scripts::flags_of(self.reactor.server, command, &args).contains(Flags::DENYOOM),
        };
        if !needs_memory {
            return true;
        }
        let before = connection.output.len();
        let why = transactions::refusal(command, session, OUT_OF_MEMORY.as_bytes());
        Reply::new(&mut connection.output, session.version).error_bytes(&why);
        self.tally.count_reply(&connection.output[before..]);
        self.tally.count(command, Outcome::Rejected);
        connection.end_reply(before);
        connection.input.done(entry.end);
        false
    }

    /// Whether nothing else is in a command's way.
    fn may_run(&self, entry: &Entry, command: &Command) -> bool {
        let Some(connection) = &self.reactor.connections[entry.connection as usize] else { return false };
        let is_watched_over = is_restricted(&connection.session) || command.flags.contains(Flags::PROTECTED);
        connection.state == State::Open
            && !(is_watched_over && forbidden(command, &connection.session, self.reactor.server).is_some())
            && !(connection.session.transaction.is_some() && command.flags.contains(Flags::NO_MULTI))
            // Nothing is evicted while writes are paused, so there is nothing to see to.
            && self.reactor.server.paused_until_ms() <= self.reactor.clock.now_ms
    }

    /// As [`Dispatcher::has_room`], for what a connection wanted shards for that it has had to wait for.
    pub(super) fn has_room_for_held(&mut self, index: u32, held: &mut [Ownership]) -> bool {
        if !self.executor.keyspace().tuning.is_limited() {
            return true;
        }
        self.make_room(held);
        // A script may keep what it holds for long, and needs none of these.
        self.executor.free_evicted();
        let Some(connection) = &self.reactor.connections[index as usize] else { return true };
        let flags = match &connection.socket.held {
            Some(Held::Script(call)) => call.flags(),
            Some(Held::Exec(..)) => {
                connection.session.transaction.as_ref().map_or(Flags::empty(), |transaction| transaction.flags())
            }
            _ => Flags::empty(),
        };
        !self.memory.is_out || !flags.contains(Flags::DENYOOM)
    }

    /// Has the sum of all memory know what this worker's connections take.
    fn tell_clients(&mut self) {
        let mut clients_bytes = 0;
        for connection in self.reactor.connections.iter().flatten() {
            clients_bytes += connection.session.client.unshared_bytes();
        }
        if self.reactor.number == 0 {
            clients_bytes += self.reactor.server.kept_messages().load(Relaxed);
        }
        let told_bytes = std::mem::replace(&mut self.memory.told_bytes, clients_bytes);
        self.memory.told_ms = self.reactor.clock.now_ms;
        self.executor.keyspace().memory().add_other(clients_bytes.wrapping_sub(told_bytes) as i64);
    }

    /// At the end of a turn: where memory is above its limit nobody is to be refused for what clients don't take any more.
    #[inline]
    pub fn tell_clients_if_over(&mut self) {
        let keyspace = self.executor.keyspace();
        if keyspace.tuning.is_limited() && keyspace.memory().is_over() {
            self.tell_clients();
        }
    }

    /// Some times a second: makes the sum of all memory true, and evicts what is too much.
    pub fn look_after_memory(&mut self) {
        self.tell_clients();
        if self.executor.keyspace().tuning.is_limited() {
            self.executor.measure();
            self.go_on_evicting();
        }
    }

    /// Evicts what is left, as far as one turn goes.
    fn go_on_evicting(&mut self) {
        self.memory.is_behind = !self.memory.garbage.is_empty();
        if self.executor.keyspace().tuning.is_limited() {
            let is_out = self.memory.is_out;
            self.make_room(&mut []);
            self.memory.is_out = is_out;
            self.tell_own();
        }
    }

    /// Goes on with what the last turn has left to evict and to free.
    #[cold]
    pub fn go_on_freeing(&mut self) {
        self.memory.free_garbage();
        self.go_on_evicting();
    }
}
