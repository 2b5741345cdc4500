//! Closing clients where all of them together take more memory than `maxmemory-clients` allows ([`ClientMemory`]).
//!
//! Connections are weighed at the end of each turn that they took part in, when a send of theirs has ended, and as soon as much output waits for them. What that changes is
//! added to the sum of all workers together, so that they don't fight for it. Where it is too much at the end of a turn, the next one doesn't sleep: first what
//! can be sent is, as in Redis, and then whoever takes most is closed, on whatever worker that is.
//!
//! So within a turn the sum is that of the end of the last one, but for the connections with much output. What it doesn't know of is bounded: by what a turn receives of each connection, and the
//! [`UNWEIGHED_OUTPUT_BYTES_MAX`] of output of each that run in it. While a script is busy each turn within it weighs, all connections but the script's own.
//!
//! While there is no limit it is a branch for each connection of a turn and each send.
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

/// How much output a connection may have before it is looked at in the midst of a turn, while there is a limit on all clients' memory, bytes. Redis looks before each
/// command; what is less than this is counted when the turn ends.
const UNWEIGHED_OUTPUT_BYTES_MAX: u64 = 16 * 1024;

/// How much a worker's connections may have changed before it tells the others, bytes: small beside the least limit.
const UNADDED_BYTES_MAX: u64 = 1024;

/// How often the log says at most that there is nobody left to be closed, ms.
const WARN_EVERY_MS: i64 = 1000;

/// What a worker knows of the limit.
pub(super) struct Weighing {
    /// There is one.
    pub(super) is_on: bool,
    /// What its connections have changed and the sum doesn't have yet.
    unadded_bytes: i64,
    /// A connection was weighed in this turn.
    has_weighed: bool,
    /// It was too much when the last turn ended that has weighed any: without any nothing would come of looking again.
    is_due: bool,
    last_warning_ms: i64,
}

impl Weighing {
    pub fn new(is_on: bool) -> Self {
        Weighing { is_on, unadded_bytes: 0, has_weighed: false, is_due: false, last_warning_ms: 0 }
    }

    /// Whether the next turn is to come at once.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.is_due
    }
}

/// From how much waiting output on a connection is looked at after each command, bytes: by class.
pub struct OutputAlarm {
    pub(super) normal_bytes: usize,
    pub(super) pubsub_bytes: usize,
    /// From how much on the messages of a listener aren't waited with.
    pub(super) waiting_bytes_max: usize,
}

impl OutputAlarm {
    /// Returns whether so much output of a connection is pending that its limits, and where its pieces end, are to be looked at.
    #[inline]
    pub fn is_reached<H>(&self, connection: &Connection<H>) -> bool {
        let is_listener = connection.session.subscriptions.is_some();
        connection.pending_bytes() > if is_listener { self.pubsub_bytes } else { self.normal_bytes }
    }

    /// Returns how long the output buffer of a connection that doesn't listen may become, bytes, while nothing else that is
    /// pending changes: [`OutputAlarm::is_reached`] beyond that.
    #[inline]
    pub fn output_max<H>(&self, connection: &Connection<H>) -> usize {
        let other_bytes = connection.pending_bytes() - connection.output.len();
        self.normal_bytes.saturating_sub(other_bytes)
    }

    pub fn new(settings: &Settings, weighs: bool) -> Self {
        let alarm = |limit: &OutputLimit| {
            let hard_bytes = if limit.hard_bytes == 0 { u64::MAX } else { limit.hard_bytes };
            let bytes = if weighs { hard_bytes.min(UNWEIGHED_OUTPUT_BYTES_MAX) } else { hard_bytes };
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        let normal_bytes = alarm(&settings.output_limit_normal);
        let pubsub_bytes = alarm(&settings.output_limit_pubsub);
        OutputAlarm {
            // Longer output is to be sent in pieces.
            normal_bytes: normal_bytes.min(PIECE_BYTES_MIN),
            pubsub_bytes: pubsub_bytes.min(PIECE_BYTES_MIN),
            // Nobody who reads what comes gets near its limit for having been waited with.
            waiting_bytes_max: (pubsub_bytes / 4).min(WAITING_OUTPUT_BYTES_MAX),
        }
    }
}

/// How much memory clients may use, each and together.
pub struct Limits {
    pub(super) weighing: Weighing,
    pub alarm: OutputAlarm,
}

impl Limits {
    /// The limits that settings say. `weighs`: there is one on all clients together.
    pub fn new(settings: &Settings, weighs: bool) -> Self {
        Limits { weighing: Weighing::new(weighs), alarm: OutputAlarm::new(settings, weighs) }
    }

    /// All connections of a turn are weighed.
    pub fn end_turn(&mut self, server: &Server) {
        let memory = server.keyspace().clients().memory();
        if self.weighing.unadded_bytes.unsigned_abs() >= UNADDED_BYTES_MAX {
            memory.add(std::mem::take(&mut self.weighing.unadded_bytes));
        }
        self.weighing.is_due =
            std::mem::take(&mut self.weighing.has_weighed) && memory.is_too_much(self.weighing.unadded_bytes);
    }

    /// Closes clients if that has become due and still is: what could be sent is.
    #[inline]
    pub fn evict_if_due(&mut self, server: &Server, now_ms: i64) {
        if self.weighing.is_due {
            self.weighing.is_due = false;
            self.evict(server, now_ms);
        }
    }

    /// Closes clients until what is left takes less than is allowed. They are closed by their workers, with the messages that these get next.
    #[cold]
    fn evict(&mut self, server: &Server, now_ms: i64) {
        let memory = server.keyspace().clients().memory();
        memory.add(std::mem::take(&mut self.weighing.unadded_bytes));
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
        if memory.is_too_much(0) && now_ms - self.weighing.last_warning_ms >= WARN_EVERY_MS {
            self.weighing.last_warning_ms = now_ms;
            tracing::warn!("Over client maxmemory after evicting all evictable clients");
        }
    }
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Takes up what the settings say of clients' memory and output.
    pub fn reload_weighing(&mut self) {
        let was_on = self.limits.weighing.is_on;
        self.limits.weighing.is_on = self.executor.keyspace().clients().memory().limit_bytes() > 0;
        if self.limits.weighing.is_on && !was_on {
            // Who has set the limit knew what they took when that was last told, some hundred milliseconds ago at most.
            (0..self.reactor.connections.len() as u32).for_each(|index| self.weigh(index));
        }
        self.limits.alarm = OutputAlarm::new(&self.reactor.settings, self.limits.weighing.is_on);
        if self.limits.weighing.is_on {
            self.limits.evict(self.reactor.server, self.reactor.clock.now_ms);
        }
    }

    /// Counts what a connection takes now.
    pub fn weigh(&mut self, index: u32) {
        let Some(connection) = &self.reactor.connections[index as usize] else { return };
        connection.tell_buffers(&self.reactor.io);
        let memory = self.executor.keyspace().clients().memory();
        self.limits.weighing.unadded_bytes += memory.weigh(&connection.session.client);
        self.limits.weighing.has_weighed = true;
    }

    /// In the midst of a turn: closes clients where a connection that has much output makes it too much. Says whether that one has to go.
    pub fn evicts_for(&mut self, index: u32) -> bool {
        self.weigh(index);
        if self.executor.keyspace().clients().memory().is_too_much(self.limits.weighing.unadded_bytes) {
            self.limits.evict(self.reactor.server, self.reactor.clock.now_ms);
        }
        // It, or any other client that was looked at before it, on any worker, has seen to that.
        self.reactor.connections[index as usize]
            .as_ref()
            .is_none_or(|connection| connection.session.client.killed.load(Relaxed))
    }
}
