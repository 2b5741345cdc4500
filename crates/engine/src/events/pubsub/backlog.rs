//! The messages in flight to a worker's subscribers. A worker that runs a long command or script
//! takes no messages meanwhile. If many bytes are in flight to it, the *backlog* is long, and the
//! publishers count the bytes for each connection. They count like pending output, which they
//! become when the worker takes the messages: a connection with more bytes in flight than its limit
//! will be closed. A message for no other connection is dropped. So the messages in flight to a
//! worker take about [`LONG_BYTES_MIN`] and the limit of each subscriber at most.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::{PubSub, Published, lock};
use crate::clients::listener::Listener;
use crate::events::Events;

/// Minimum length of a long backlog, bytes. Workers that keep up have shorter ones, and publishing
/// then costs one addition.
const LONG_BYTES_MIN: u64 = 32 * 1024 * 1024;

/// Part of the length of an encoded message that is not its channel or its payload, at least.
const HEADER_BYTES_MIN: usize = 32;

/// The backlog of a worker.
#[derive(Default)]
pub(super) struct Backlog {
    /// Bytes in flight.
    bytes: AtomicU64,
    /// Whether the backlog is long, or was and has not become short since.
    is_long: AtomicBool,
    /// The messages in flight to each connection that were sent while the backlog was long.
    by_connection: Mutex<HashMap<u64, InFlight>>,
}

/// The messages in flight to a connection.
#[derive(Default)]
struct InFlight {
    bytes: u64,
    /// Whether the connection will be closed.
    is_closing: bool,
}

/// Returns the minimum length of an encoded message, bytes.
fn bytes_of(published: &Published) -> u64 {
    (published.channel.len() + published.payload.len() + HEADER_BYTES_MIN) as u64
}

impl PubSub {
    /// Counts a message to be sent to a worker. Returns `false` if the message must be dropped,
    /// because all its receivers will be closed.
    #[inline]
    pub(super) fn count_sent(&self, events: &Events, worker: usize, published: &Published) -> bool {
        let bytes = bytes_of(published);
        let is_long = self.backlogs[worker].bytes.fetch_add(bytes, Relaxed) + bytes >= LONG_BYTES_MIN;
        !is_long || self.has_room(events, worker, published)
    }

    /// Counts a message for each of its receivers. Closes those whose limit it exceeds.
    #[cold]
    fn has_room(&self, events: &Events, worker: usize, published: &Published) -> bool {
        let (backlog, bytes) = (&self.backlogs[worker], bytes_of(published));
        let bytes_max = events.tuning.pubsub_bytes_max.load(Relaxed);
        let mut by_connection = lock(&backlog.by_connection);
        backlog.is_long.store(true, Relaxed);
        let mut has_room = false;
        self.deliver(worker as u32, published, |connection, _| {
            let in_flight = by_connection.entry(connection).or_default();
            if in_flight.is_closing {
                return;
            }
            has_room = true;
            in_flight.bytes += bytes;
            if in_flight.bytes > bytes_max {
                in_flight.is_closing = true;
                events.workers.close_over_limit(Listener { worker: worker as u32, connection });
            }
        });
        if !has_room {
            backlog.bytes.fetch_sub(bytes, Relaxed);
        }
        has_room
    }

    /// Subtracts messages that a worker has delivered. All must have the same receivers.
    #[inline]
    pub fn count_delivered<'m>(&self, worker: u32, published: impl Iterator<Item = &'m Published> + Clone) {
        let backlog = &self.backlogs[worker as usize];
        let bytes: u64 = published.clone().map(bytes_of).sum();
        let left = backlog.bytes.fetch_sub(bytes, Relaxed) - bytes;
        if backlog.is_long.load(Relaxed) {
            self.subtract(worker, published, bytes, left);
        }
    }

    #[cold]
    fn subtract<'m>(&self, worker: u32, mut published: impl Iterator<Item = &'m Published>, bytes: u64, left: u64) {
        let backlog = &self.backlogs[worker as usize];
        let mut by_connection = lock(&backlog.by_connection);
        if left < LONG_BYTES_MIN / 2 {
            *by_connection = HashMap::new();
            backlog.is_long.store(false, Relaxed);
        } else if let Some(first) = published.next() {
            self.deliver(worker, first, |connection, _| {
                if let Some(in_flight) = by_connection.get_mut(&connection) {
                    // Messages sent before the backlog became long are not counted.
                    in_flight.bytes = in_flight.bytes.saturating_sub(bytes);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::events::Workers;
    use crate::events::pubsub::{Kind, Subscriptions};

    const MIB: usize = 1024 * 1024;

    /// Records what is sent.
    #[derive(Default)]
    struct Sent {
        messages: Mutex<Vec<Arc<Published>>>,
        closed: Mutex<Vec<Listener>>,
    }

    impl Workers for Sent {
        fn publish(&self, _: u32, published: Arc<Published>) {
            lock(&self.messages).push(published);
        }

        fn close_over_limit(&self, listener: Listener) {
            lock(&self.closed).push(listener);
        }

        fn show(&self, _: Listener, _: Arc<[u8]>) {}
    }

    #[test]
    fn a_long_backlog_closes_the_receivers_over_their_limit() {
        let sent = Arc::new(Sent::default());
        let events = Events::new(Arc::<Sent>::clone(&sent), 2);
        let pubsub = events.pubsub();
        let listener = |connection| Listener { worker: 1, connection };
        let mut subscriptions: Vec<Subscriptions> = (0..2).map(|_| Subscriptions::default()).collect();
        pubsub.subscribe(&mut subscriptions[0], listener(5), Kind::Channel, b"a");
        pubsub.subscribe(&mut subscriptions[1], listener(6), Kind::Pattern, b"?");
        let publish = |channel: &[u8], count: usize| {
            for _ in 0..count {
                pubsub.publish(&events, Kind::Channel, channel, &[b'x'; MIB]);
            }
            (lock(&sent.messages).len(), lock(&sent.closed).len())
        };
        // Without a limit, nothing is dropped.
        assert_eq!(publish(b"b", 40), (40, 0));
        events.tuning.pubsub_bytes_max.store(10 * MIB as u64, Relaxed);
        let deliver = || {
            for message in std::mem::take(&mut *lock(&sent.messages)) {
                pubsub.count_delivered(1, std::iter::once(&*message));
            }
        };
        deliver();
        // Nothing is counted before the backlog is long.
        assert_eq!(publish(b"b", 31), (31, 0));
        assert_eq!(publish(b"b", 10), (41, 1));
        assert_eq!(*lock(&sent.closed), [listener(6)]);
        // No other connection receives messages on this channel.
        assert_eq!(publish(b"b", 100), (41, 1));
        assert_eq!(publish(b"a", 9), (50, 1));
        assert_eq!(publish(b"a", 100), (51, 2));
        deliver();
        assert_eq!(pubsub.backlogs[1].bytes.load(Relaxed), 0);
        assert!(lock(&pubsub.backlogs[1].by_connection).is_empty());
        assert_eq!(publish(b"a", 31), (31, 2));
        // A lower limit closes the connections that already exceed it, and drops nothing before. In
        // this test the closed connections stay subscribed, so they are closed again.
        events.tuning.pubsub_bytes_max.store(u64::MAX, Relaxed);
        assert_eq!(publish(b"a", 10), (41, 2));
        events.tuning.pubsub_bytes_max.store(MIB as u64, Relaxed);
        assert_eq!(publish(b"a", 1), (42, 4));
        assert_eq!(publish(b"a", 1), (42, 4));
    }
}
