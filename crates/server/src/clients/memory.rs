//! A worker's part in enforcing `maxmemory`, before each command and between commands.
//!
//! Before a command runs, keys are evicted if memory usage exceeds the limit
//! ([`pantala_engine::eviction`]). If there is nothing left to evict, commands that may increase
//! memory usage are rejected, as in Redis. If the command had to wait for its shards, the worker
//! that then runs it checks the limit again. A worker also evicts without a command: periodically,
//! and in each turn (iteration of its event loop) while more keys must be evicted.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::allocator;
use pantala_engine::eviction::Room;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::{Abandon, Clients};

/// Number of bytes that a script must have freed in its Lua state to make the worker purge at once.
/// To *purge* is to return unused memory to the kernel.
const STATE_BYTES_FREED_MIN: usize = 8 * 1024 * 1024;

/// A worker's state for `maxmemory`.
#[derive(Default)]
pub struct EvictionState {
    /// Whether memory exceeded its limit and there was nothing to evict when the last command
    /// arrived. If that command runs a script, the script's commands use this value.
    is_out: bool,
    /// Whether the next turn must continue to evict.
    has_pending_work: bool,
    /// Whether the next round of periodic work must purge again ([`EvictionState::purge`]).
    purges_again: bool,
    /// This worker's part of the global memory counter, bytes: the memory of its connections. The
    /// part of worker 0 also includes published messages that several subscribers share.
    flushed_bytes: u64,
    /// When `flushed_bytes` was last updated, Unix time in ms.
    refreshed_ms: i64,
}

impl EvictionState {
    /// Returns whether the next turn must start without waiting.
    #[inline]
    pub fn has_pending_work(&self) -> bool {
        self.has_pending_work
    }

    /// Returns unused memory of this worker's heap to the kernel, now and again in the next round
    /// of periodic work. The second purge returns memory that the first one has missed because
    /// another heap freed it at the same time.
    #[cold]
    pub fn purge(&mut self) {
        allocator::purge();
        self.purges_again = true;
    }

    /// Purges again if [`EvictionState::purge`] has run since the last call of this function.
    /// Returns whether it has purged again.
    pub fn purge_again(&mut self) -> bool {
        let purges = std::mem::take(&mut self.purges_again);
        if purges {
            allocator::purge();
        }
        purges
    }

    /// Purges if a script has freed much memory of its Lua state.
    pub fn purge_after_script(&mut self, bytes_before: usize, bytes: usize) {
        if bytes_before.saturating_sub(bytes) >= STATE_BYTES_FREED_MIN {
            self.purge();
        }
    }

    /// Returns whether memory exceeded its limit and there was nothing to evict when the current
    /// command arrived.
    pub fn is_out(&self) -> bool {
        self.is_out
    }

    /// Returns [`EvictionState::is_out`] if there is a limit, and `false` otherwise.
    pub fn is_out_now(&self, keyspace: &Keyspace) -> bool {
        keyspace.tuning.is_limited() && self.is_out
    }

    /// Restores an earlier value of [`EvictionState::is_out`] after other clients' commands have
    /// run.
    pub fn set_out(&mut self, is_out: bool) {
        self.is_out = is_out;
    }

    /// Evicts keys before a command runs, if memory exceeds its limit.
    pub fn make_room<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>, held: &mut [Ownership]) {
        let was_over = clients.executor.keyspace().memory().is_over();
        let mut room = clients.executor.evictor().make_room(held, clients.reactor.clock.now_ms);
        // The global memory counter may still include memory that clients have freed, for example
        // at the end of a transaction.
        if room == Room::None && self.refreshed_ms != clients.reactor.clock.now_ms {
            self.publish_client_memory(clients);
            room = clients.executor.evictor().make_room(held, clients.reactor.clock.now_ms);
        }
        if was_over {
            // Eviction may have taken long, so the clock is read again.
            clients.reactor.read_clock();
        }
        self.is_out = room == Room::None;
        self.has_pending_work |= clients.executor.evictor().must_continue_evicting();
    }

    /// Updates this worker's part of the global memory counter.
    pub fn publish_client_memory<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        let mut clients_bytes = 0;
        for connection in clients.reactor.connections.iter().flatten() {
            clients_bytes += connection.session.client.unshared_bytes();
        }
        if clients.reactor.number == 0 {
            clients_bytes += clients.reactor.server.kept_messages().load(Relaxed);
        }
        let flushed_bytes = std::mem::replace(&mut self.flushed_bytes, clients_bytes);
        self.refreshed_ms = clients.reactor.clock.now_ms;
        clients.executor.keyspace().memory().add_other(clients_bytes.wrapping_sub(flushed_bytes) as i64);
    }

    /// Updates this worker's part of the global memory counter at the end of a turn, if memory
    /// exceeds its limit. Without this update, commands could be rejected because of memory that
    /// clients have already freed.
    #[inline]
    pub fn publish_client_memory_if_over<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        let keyspace = clients.executor.keyspace();
        if keyspace.tuning.is_limited() && keyspace.memory().is_over() {
            self.publish_client_memory(clients);
        }
    }

    /// Updates the global memory counter and evicts keys if it exceeds the limit. Called
    /// periodically.
    pub fn look_after<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        self.publish_client_memory(clients);
        if clients.executor.keyspace().tuning.is_limited() {
            clients.executor.evictor().measure();
            self.continue_eviction(clients);
        }
    }

    /// Evicts keys for at most the time that one turn may spend on eviction.
    pub fn continue_eviction<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        self.has_pending_work = false;
        if clients.executor.keyspace().tuning.is_limited() {
            let is_out = self.is_out;
            self.make_room(clients, &mut []);
            self.is_out = is_out;
            clients.send_own_invalidations();
        }
    }

    /// Continues the eviction of keys and the freeing of closed connections' output.
    #[cold]
    pub fn serve_deferred<L: EventLoop, H: Abandon>(&mut self, clients: &mut Clients<'_, L, H>) {
        clients.garbage.free();
        self.continue_eviction(clients);
    }
}
