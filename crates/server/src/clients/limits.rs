//! Closes clients when their total memory usage reaches `maxmemory-clients` ([`ClientMemory`]).
//!
//! Client memory accounting updates the usage of a connection at three points:
//!
//! - at the end of each turn (iteration of the worker's event loop) in which it took part;
//! - when one of its sends has completed;
//! - when much of its output is pending.
//!
//! Each update adds the change in usage to a sum over all workers. So all workers decide from the
//! same sum whether clients must be closed. If the sum has reached the limit at the end of a turn,
//! the next turn starts at once. That turn first sends pending output, as in Redis. Then it closes
//! the clients with the highest usage, on any worker.
//!
//! During a turn, the sum lacks most changes of this turn: for each connection, at most the input
//! received in the turn and [`UNACCOUNTED_OUTPUT_BYTES_MAX`] of output. While a script is busy,
//! each turn within the script accounts for all connections except the script's own.
//!
//! Without a limit, accounting costs one branch for each connection of a turn and for each send.
//!
//! [`ClientMemory`]: pantala_engine::client::ClientMemory

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::Host;
use pantala_runtime::EventLoop;
use pantala_session::output::PIECE_BYTES_MIN;

use super::published::WAITING_OUTPUT_BYTES_MAX;
use super::{Abandon, Clients, Connection};
use crate::config::{OutputLimit, Settings};
use crate::host::Server;

/// Maximum pending output of a connection that may remain unaccounted until the end of the turn,
/// bytes. Used only while client memory is limited. Redis accounts before each command instead.
const UNACCOUNTED_OUTPUT_BYTES_MAX: u64 = 16 * 1024;

/// Maximum change in memory usage that this worker may delay adding to the sum, bytes. It is much
/// smaller than the lowest limit that can be configured.
const UNFLUSHED_BYTES_MAX: u64 = 1024;

/// Minimum interval between warnings that memory exceeds the limit and no more clients can be
/// closed, ms.
const WARN_EVERY_MS: i64 = 1000;

/// A worker's client memory accounting.
pub(super) struct MemoryAccounting {
    /// Whether client memory is limited.
    pub(super) is_on: bool,
    /// Change in the memory usage of the worker's connections that isn't yet added to the sum,
    /// bytes.
    unflushed_bytes: i64,
    /// Whether a connection was accounted for in this turn.
    has_accounted: bool,
    /// Whether, at the end of the last turn, the sum was too large and this worker had accounted
    /// for a connection in that turn. A worker that accounted for none has not increased the sum,
    /// so it leaves the closing to other workers.
    is_due: bool,
    last_warning_ms: i64,
}

impl MemoryAccounting {
    pub fn new(is_on: bool) -> Self {
        MemoryAccounting { is_on, unflushed_bytes: 0, has_accounted: false, is_due: false, last_warning_ms: 0 }
    }

    /// Returns whether the next turn must start without waiting.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.is_due
    }
}

/// Amounts of pending output, bytes, one for each class of clients. When a connection exceeds the
/// amount of its class, its limits are checked after each command.
pub struct OutputAlarm {
    pub(super) normal_bytes: usize,
    pub(super) pubsub_bytes: usize,
    /// Pending output above which a subscriber's messages are sent at once, bytes.
    pub(super) waiting_bytes_max: usize,
}

impl OutputAlarm {
    /// Returns whether a connection has so much pending output that its limits must be checked.
    /// Also returns `true` if the output may become a piece ([`PIECE_BYTES_MIN`]), a buffer that is
    /// sent on its own.
    #[inline]
    pub fn is_reached<H>(&self, connection: &Connection<H>) -> bool {
        let is_listener = connection.session.subscriptions.is_some();
        connection.pending_bytes() > if is_listener { self.pubsub_bytes } else { self.normal_bytes }
    }

    /// Returns the maximum length of a connection's output buffer for which
    /// [`OutputAlarm::is_reached`] is false, bytes. The result is valid until the connection's
    /// other pending output changes. The connection must not be a subscriber.
    #[inline]
    pub fn output_max<H>(&self, connection: &Connection<H>) -> usize {
        let other_bytes = connection.pending_bytes() - connection.output.len();
        self.normal_bytes.saturating_sub(other_bytes)
    }

    /// Creates the alarm from the settings. `accounts` says whether the memory of all clients is
    /// limited.
    pub fn new(settings: &Settings, accounts: bool) -> Self {
        let alarm = |limit: &OutputLimit| {
            let hard_bytes = if limit.hard_bytes == 0 { u64::MAX } else { limit.hard_bytes };
            let bytes = if accounts { hard_bytes.min(UNACCOUNTED_OUTPUT_BYTES_MAX) } else { hard_bytes };
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        let normal_bytes = alarm(&settings.output_limit_normal);
        let pubsub_bytes = alarm(&settings.output_limit_pubsub);
        OutputAlarm {
            // Even without a limit, longer output is checked, because the check splits it into
            // pieces.
            normal_bytes: normal_bytes.min(PIECE_BYTES_MIN),
            pubsub_bytes: pubsub_bytes.min(PIECE_BYTES_MIN),
            // Messages are held back so that one send carries several of them. A subscriber that
            // reads fast enough must not come near its limit only because messages are held back.
            waiting_bytes_max: (pubsub_bytes / 4).min(WAITING_OUTPUT_BYTES_MAX),
        }
    }
}

/// The limits on the output of each client and on the memory of all clients.
pub struct Limits {
    pub(super) accounting: MemoryAccounting,
    pub alarm: OutputAlarm,
}

impl Limits {
    /// Creates the limits from the settings. `accounts` says whether the memory of all clients is
    /// limited.
    pub fn new(settings: &Settings, accounts: bool) -> Self {
        Limits { accounting: MemoryAccounting::new(accounts), alarm: OutputAlarm::new(settings, accounts) }
    }

    /// Ends a turn. The caller must have accounted for all connections of the turn.
    pub fn end_turn(&mut self, server: &Server) {
        let memory = server.keyspace().clients().memory();
        if self.accounting.unflushed_bytes.unsigned_abs() >= UNFLUSHED_BYTES_MAX {
            memory.add(std::mem::take(&mut self.accounting.unflushed_bytes));
        }
        self.accounting.is_due =
            std::mem::take(&mut self.accounting.has_accounted) && memory.is_too_much(self.accounting.unflushed_bytes);
    }

    /// Closes clients if the sum was too large at the end of the last turn, and is still too large
    /// now that pending output has been sent.
    #[inline]
    pub fn evict_if_due(&mut self, server: &Server, now_ms: i64) {
        if self.accounting.is_due {
            self.accounting.is_due = false;
            self.evict(server, now_ms);
        }
    }

    /// Chooses clients to close until the remaining clients use less than the limit. The worker of
    /// each chosen client receives a message and closes the client.
    #[cold]
    fn evict(&mut self, server: &Server, now_ms: i64) {
        let memory = server.keyspace().clients().memory();
        memory.add(std::mem::take(&mut self.accounting.unflushed_bytes));
        for client in memory.evict() {
            tracing::info!(
                "Evicting client: id={} addr={} name={} tot-mem={}",
                client.id,
                client.address,
                String::from_utf8_lossy(&client.names().name),
                client.memory_bytes()
            );
            server.kill(&client);
        }
        if memory.is_too_much(0) && now_ms - self.accounting.last_warning_ms >= WARN_EVERY_MS {
            self.accounting.last_warning_ms = now_ms;
            tracing::warn!("Over client maxmemory after evicting all evictable clients");
        }
    }
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Applies the settings for clients' memory and output.
    pub fn reload_memory_accounting(&mut self) {
        let was_on = self.limits.accounting.is_on;
        self.limits.accounting.is_on = self.executor.keyspace().clients().memory().limit_bytes() > 0;
        if self.limits.accounting.is_on && !was_on {
            // The sum was computed when the limit was set, from sizes that may have been a few
            // hundred milliseconds old. So all connections are accounted for again.
            (0..self.reactor.connections.len() as u32).for_each(|index| self.account(index));
        }
        self.limits.alarm = OutputAlarm::new(&self.reactor.settings, self.limits.accounting.is_on);
        if self.limits.accounting.is_on {
            self.limits.evict(self.reactor.server, self.reactor.clock.now_ms);
        }
    }

    /// Updates the accounted memory of a connection.
    pub fn account(&mut self, index: u32) {
        let Some(connection) = &self.reactor.connections[index as usize] else { return };
        connection.publish_buffers(&self.reactor.io);
        let memory = self.executor.keyspace().clients().memory();
        self.limits.accounting.unflushed_bytes += memory.update_weight(&connection.session.client);
        self.limits.accounting.has_accounted = true;
    }

    /// Accounts for a connection with much output, within a turn. Closes clients if the sum then
    /// reaches the limit. Returns whether this connection must be closed.
    pub fn evicts_for(&mut self, index: u32) -> bool {
        self.account(index);
        if self.executor.keyspace().clients().memory().is_too_much(self.limits.accounting.unflushed_bytes) {
            self.limits.evict(self.reactor.server, self.reactor.clock.now_ms);
        }
        // The connection must be closed if this call of `evict`, or an earlier one on any worker,
        // has chosen it.
        self.reactor.connections[index as usize]
            .as_ref()
            .is_none_or(|connection| connection.session.client.killed.load(Relaxed))
    }
}
