//! `maxmemory` as a worker keeps to it: what it looks at before each command, and what it does between.
//!
//! Before a command runs, keys are evicted where memory is above its limit ([`pantala_engine::eviction`]); where nothing more can be, commands that may take
//! memory are refused, as in Redis. What has waited for its shards is looked at again when it has them, by whoever runs it. Some times a second, and as long as
//! there is something left to evict with each turn, the worker goes on by itself.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::allocator;
use pantala_engine::eviction::Room;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::{Abandon, Clients};

/// A Lua state that shrank by so much, bytes, has its worker purge at once.
const STATE_BYTES_FREED_MIN: usize = 8 * 1024 * 1024;

/// What a worker remembers.
#[derive(Default)]
pub struct Memory {
    /// There was no memory, and nothing to evict, when the last command came: what a script goes by that it has sent.
    is_out: bool,
    /// There is more to evict, in the next turn.
    is_behind: bool,
    /// Purge again in the next periodic work.
    purges_again: bool,
    /// What the sum of all memory has of this worker's connections, bytes.
    told_bytes: u64,
    /// Since when, unix time in ms.
    told_ms: i64,
}

impl Memory {
    /// Whether the next turn is to come at once.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.is_behind
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
    pub fn purge_after_script(&mut self, bytes_before: usize, bytes: usize) {
        if bytes_before.saturating_sub(bytes) >= STATE_BYTES_FREED_MIN {
            self.purge();
        }
    }

    /// Whether there was no memory left, and nothing to evict, when the command came that runs now.
    pub fn is_out(&self) -> bool {
        self.is_out
    }

    /// As [`Memory::is_out`], while there is a limit.
    pub fn is_out_now(&self, keyspace: &Keyspace) -> bool {
        keyspace.tuning.is_limited() && self.is_out
    }

    /// Takes up again what [`Memory::is_out`] said, when others have sent commands meanwhile.
    pub fn set_out(&mut self, is_out: bool) {
        self.is_out = is_out;
    }

    /// Evicts what has to go before a command may run.
    pub fn make_room<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>, held: &mut [Ownership]) {
        let was_over = clients.executor.keyspace().memory().is_over();
        let mut room = clients.executor.make_room(held, clients.reactor.clock.now_ms);
        // What clients took when they last told may be free by now (a transaction that has run, say).
        if room == Room::None && self.told_ms != clients.reactor.clock.now_ms {
            self.tell_clients(clients);
            room = clients.executor.make_room(held, clients.reactor.clock.now_ms);
        }
        if was_over {
            // To evict may take long.
            clients.reactor.read_clock();
        }
        self.is_out = room == Room::None;
        self.is_behind |= clients.executor.goes_on_evicting();
    }

    /// Has the sum of all memory know what this worker's connections take.
    pub fn tell_clients<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        let mut clients_bytes = 0;
        for connection in clients.reactor.connections.iter().flatten() {
            clients_bytes += connection.session.client.unshared_bytes();
        }
        if clients.reactor.number == 0 {
            clients_bytes += clients.reactor.server.kept_messages().load(Relaxed);
        }
        let told_bytes = std::mem::replace(&mut self.told_bytes, clients_bytes);
        self.told_ms = clients.reactor.clock.now_ms;
        clients.executor.keyspace().memory().add_other(clients_bytes.wrapping_sub(told_bytes) as i64);
    }

    /// At the end of a turn: where memory is above its limit nobody is to be refused for what clients don't take any more.
    #[inline]
    pub fn tell_clients_if_over<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        let keyspace = clients.executor.keyspace();
        if keyspace.tuning.is_limited() && keyspace.memory().is_over() {
            self.tell_clients(clients);
        }
    }

    /// Some times a second: makes the sum of all memory true, and evicts what is too much.
    pub fn look_after<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        self.tell_clients(clients);
        if clients.executor.keyspace().tuning.is_limited() {
            clients.executor.measure();
            self.go_on_evicting(clients);
        }
    }

    /// Evicts what is left, as far as one turn goes.
    pub fn go_on_evicting<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        self.is_behind = false;
        if clients.executor.keyspace().tuning.is_limited() {
            let is_out = self.is_out;
            self.make_room(clients, &mut []);
            self.is_out = is_out;
            clients.tell_own();
        }
    }

    /// Goes on with what the last turn has left to evict and to free.
    #[cold]
    pub fn go_on<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        clients.garbage.free();
        self.go_on_evicting(clients);
    }
}
