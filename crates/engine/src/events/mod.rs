//! Events that a command sends to other clients (pub/sub, `MONITOR`, keyspace notifications,
//! client-side caching), and records for operators (`SLOWLOG`, `LATENCY`).
//!
//! Code that runs commands calls this layer while it holds the shards of the command, if any.
//! [`Workers`] delivers the messages to *listeners*. A listener is a connection, addressed by its
//! worker and by a token with which the worker finds the connection.

use std::sync::Arc;

use crate::clients::client::Clients;
use crate::clients::listener::Listener;
use crate::tuning::Tuning;

pub mod latency;
pub mod monitor;
pub mod notify;
pub mod pubsub;
pub mod slowlog;
pub mod tracking;

use latency::LatencyMonitor;
use monitor::Monitors;
use pubsub::{PubSub, Published};
use slowlog::SlowLog;
use tracking::Tracking;

/// Sends messages to the workers of listeners. Messages from one thread to one worker arrive in the
/// order of sending. Sending never waits.
pub trait Workers: Send + Sync {
    /// Sends a published message to a worker, for its subscribers.
    fn publish(&self, worker: u32, published: Arc<Published>);
    /// Sends a short message as [`Workers::publish`] does, but packs it together with other
    /// messages that the worker has not taken yet.
    fn publish_packed(&self, worker: u32, published: &Published);
    /// Closes a subscriber for exceeding its output limit.
    fn close_over_limit(&self, subscriber: Listener);
    /// Sends a command to a connection that runs `MONITOR`.
    fn show(&self, monitor: Listener, line: Arc<[u8]>);
}

/// Subscribers, monitors, clients that track keys, and the live settings. All shards share them.
pub struct Events {
    /// Live settings.
    pub tuning: Tuning,
    workers: Arc<dyn Workers>,
    pubsub: PubSub,
    clients: Clients,
    monitors: Monitors,
    slowlog: SlowLog,
    latency: LatencyMonitor,
    tracking: Tracking,
}

impl Events {
    /// Returns the state for `count` workers, without subscribers, monitors or tracking clients.
    pub(crate) fn new(workers: Arc<dyn Workers>, count: usize) -> Self {
        Events {
            tuning: Tuning::new(),
            workers,
            pubsub: PubSub::new(count),
            clients: Clients::new(),
            monitors: Monitors::new(),
            slowlog: SlowLog::new(count),
            latency: LatencyMonitor::new(count),
            tracking: Tracking::default(),
        }
    }

    /// Returns the subscriptions.
    pub fn pubsub(&self) -> &PubSub {
        &self.pubsub
    }

    /// Returns all clients.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Returns the monitors.
    #[inline]
    pub fn monitors(&self) -> &Monitors {
        &self.monitors
    }

    /// Returns the state of client-side caching: readers and tracked keys.
    pub fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// Returns the slow log.
    pub fn slowlog(&self) -> &SlowLog {
        &self.slowlog
    }

    /// Returns the events that took at least `latency-monitor-threshold`.
    pub fn latency(&self) -> &LatencyMonitor {
        &self.latency
    }
}
