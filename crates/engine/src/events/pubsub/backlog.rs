//! The backlogs of published messages, and their limit.
//!
//! A message is *in flight* from the moment when it is sent to a subscriber's worker until the
//! worker delivers it. A worker that runs a long command or script delivers no messages meanwhile.
//! The messages in flight to a worker are its *backlog*.
//!
//! If the backlog is long, publishers count the bytes in flight to each connection, because these
//! bytes become pending output when they are delivered. If the count of a connection exceeds the
//! output limit of subscribers, the publisher sends the worker a request to close the connection. A
//! message is dropped if such a request has been sent for each of its receivers. So the length of a
//! backlog is at most about the sum of [`LONG_BYTES_MIN`] and the limits of all subscribers.
//!
//! The memory usage of a backlog is not much larger than its length, because short messages are
//! packed if the backlog has at least [`PACKED_BACKLOG_BYTES_MIN`]. The exception is a worker with
//! a `MONITOR` client. If a line for this client is sent between two messages, these two messages
//! are not packed together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use super::{Address, PubSub, Published, lock};
use crate::clients::listener::Listener;
use crate::events::Events;

/// Minimum length of a long backlog, bytes. Workers that keep up have shorter backlogs, for which
/// publishing costs only one addition.
const LONG_BYTES_MIN: u64 = 32 * 1024 * 1024;

/// If a backlog has at least this length in bytes, short messages are packed. Unpacked short
/// messages of this total length take some 3 MB. Workers that keep up have shorter backlogs, and
/// each message is delivered from its own memory.
const PACKED_BACKLOG_BYTES_MIN: u64 = 256 * 1024;

/// Minimum length of an encoded message without its channel and payload, bytes. This part consists
/// of `*3`, `$7`, `message` and two lengths of one digit, with all line ends.
const HEADER_BYTES_MIN: usize = 29;

/// The backlog of a worker.
#[derive(Default)]
pub(super) struct Backlog {
    /// Bytes in flight.
    bytes: AtomicU64,
    /// Set when the backlog becomes long, and cleared when it falls below half of
    /// [`LONG_BYTES_MIN`].
    is_long: AtomicBool,
    /// The messages in flight to each connection. Counts only messages sent while the backlog was
    /// long.
    by_connection: Mutex<HashMap<u64, InFlight>>,
}

/// The messages in flight to a connection.
#[derive(Default)]
struct InFlight {
    bytes: u64,
    /// Whether the connection will be closed.
    is_closing: bool,
}

impl Backlog {
    /// Forgets the messages in flight to a connection that has ended a subscription. When these
    /// messages are delivered, the connection may no longer be a receiver, so their bytes would
    /// never be subtracted from the count. Messages in flight for the connection's other
    /// subscriptions are forgotten too. They are few, because the worker delivered all messages
    /// that arrived before it ran the unsubscribing command.
    pub(super) fn forget(&self, connection: u64) {
        // Relaxed: the connection has just been removed from the worker's room (the list of its
        // subscribers) under the room's lock. A publisher sets the flag before it reads the room
        // under this lock. So if a publisher still found the connection in the room, this load sees
        // that the flag was set.
        if self.is_long.load(Relaxed)
            && let Entry::Occupied(entry) = lock(&self.by_connection).entry(connection)
            && !entry.get().is_closing
        {
            entry.remove();
        }
    }
}

/// How a message is sent to a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// As a message of its own.
    Alone,
    /// Packed with other messages.
    Packed,
    /// Not at all, because all its receivers are about to be closed.
    Dropped,
}

/// Returns the minimum length of the encoded message plus the size of its list of patterns, in
/// bytes.
fn bytes_of(address: Address<'_>, payload: &[u8]) -> u64 {
    (address.channel.len() + payload.len() + HEADER_BYTES_MIN + size_of_val(address.patterns)) as u64
}

impl PubSub {
    /// Counts a message to be sent to a worker. Returns how it must be sent.
    #[inline]
    pub(super) fn count_sent(&self, events: &Events, worker: usize, published: &Published) -> Way {
        let bytes = bytes_of(published.address(), &published.payload);
        let in_flight = self.backlogs[worker].bytes.fetch_add(bytes, Relaxed) + bytes;
        if in_flight < PACKED_BACKLOG_BYTES_MIN { Way::Alone } else { self.way(events, worker, published, in_flight) }
    }

    #[cold]
    fn way(&self, events: &Events, worker: usize, published: &Published, in_flight: u64) -> Way {
        if in_flight >= LONG_BYTES_MIN && !self.has_room(events, worker, published) {
            Way::Dropped
        } else if published.is_short() {
            Way::Packed
        } else {
            Way::Alone
        }
    }

    /// Counts a message for each of its receivers, and closes the receivers that exceed their
    /// limit. Returns `false` if every receiver was already about to be closed.
    fn has_room(&self, events: &Events, worker: usize, published: &Published) -> bool {
        let (backlog, bytes) = (&self.backlogs[worker], bytes_of(published.address(), &published.payload));
        let bytes_max = events.tuning.pubsub_bytes_max.load(Relaxed);
        let mut by_connection = lock(&backlog.by_connection);
        backlog.is_long.store(true, Relaxed);
        let mut has_room = false;
        self.deliver(worker as u32, published.address(), |connection, _| {
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

    /// Subtracts messages that a worker has delivered from the worker's backlog.
    #[inline]
    pub fn count_delivered<'m>(&self, worker: u32, address: Address<'_>, payloads: impl Iterator<Item = &'m [u8]>) {
        let backlog = &self.backlogs[worker as usize];
        let bytes: u64 = payloads.map(|payload| bytes_of(address, payload)).sum();
        let left = backlog.bytes.fetch_sub(bytes, Relaxed) - bytes;
        if backlog.is_long.load(Relaxed) {
            self.subtract(worker, address, bytes, left);
        }
    }

    #[cold]
    fn subtract(&self, worker: u32, address: Address<'_>, bytes: u64, left: u64) {
        let backlog = &self.backlogs[worker as usize];
        let mut by_connection = lock(&backlog.by_connection);
        if left < LONG_BYTES_MIN / 2 {
            *by_connection = HashMap::new();
            backlog.is_long.store(false, Relaxed);
        } else {
            self.deliver(worker, address, |connection, _| {
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
    use crate::events::pubsub::packed::PACKED_MESSAGE_BYTES_MAX;
    use crate::events::pubsub::{Kind, Subscriptions};

    const MIB: usize = 1024 * 1024;

    /// Records what is sent.
    #[derive(Default)]
    struct Sent {
        messages: Mutex<Vec<Arc<Published>>>,
        closed: Mutex<Vec<Listener>>,
        /// Number of packed messages.
        packed: Mutex<usize>,
    }

    impl Workers for Sent {
        fn publish(&self, _: u32, published: Arc<Published>) {
            lock(&self.messages).push(published);
        }

        fn publish_packed(&self, _: u32, published: &Published) {
            *lock(&self.packed) += 1;
            let Published { kind, channel, payload, patterns } = published;
            let (channel, payload, patterns) = (channel.clone(), payload.clone(), patterns.clone());
            lock(&self.messages).push(Arc::new(Published { kind: *kind, channel, payload, patterns }));
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
                pubsub.count_delivered(1, message.address(), std::iter::once(&*message.payload));
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
        // A lower limit closes the connections that already exceed it. No message is dropped before
        // they are closed. In this test the closed connections stay subscribed, so they are closed
        // again.
        events.tuning.pubsub_bytes_max.store(u64::MAX, Relaxed);
        assert_eq!(publish(b"a", 10), (41, 2));
        events.tuning.pubsub_bytes_max.store(MIB as u64, Relaxed);
        assert_eq!(publish(b"a", 1), (42, 4));
        assert_eq!(publish(b"a", 1), (42, 4));
    }

    #[test]
    fn short_messages_to_a_backlog_are_packed() {
        let sent = Arc::new(Sent::default());
        let events = Events::new(Arc::<Sent>::clone(&sent), 1);
        let pubsub = events.pubsub();
        let mut subscriptions = Subscriptions::default();
        pubsub.subscribe(&mut subscriptions, Listener { worker: 0, connection: 5 }, Kind::Channel, b"a");
        let publish = |payload: &[u8], count: usize| {
            (0..count).for_each(|_| assert_eq!(pubsub.publish(&events, Kind::Channel, b"a", payload), 1));
            (lock(&sent.messages).len(), *lock(&sent.packed))
        };
        // A message of two bytes (channel and payload) counts 31 bytes.
        let alone = PACKED_BACKLOG_BYTES_MIN as usize / 31;
        assert_eq!(publish(b"x", alone), (alone, 0));
        assert_eq!(publish(b"x", 10), (alone + 10, 10));
        assert_eq!(publish(&[b'x'; PACKED_MESSAGE_BYTES_MAX - 1], 1), (alone + 11, 11));
        assert_eq!(publish(&[b'x'; PACKED_MESSAGE_BYTES_MAX], 1), (alone + 12, 11));
    }

    #[test]
    fn messages_in_flight_are_not_counted_after_an_unsubscribe() {
        let sent = Arc::new(Sent::default());
        let events = Events::new(Arc::<Sent>::clone(&sent), 1);
        let pubsub = events.pubsub();
        let mut subscriptions: Vec<Subscriptions> = (0..2).map(|_| Subscriptions::default()).collect();
        let listener = |connection| Listener { worker: 0, connection };
        let publish = |count: usize| {
            for _ in 0..count {
                pubsub.publish(&events, Kind::Channel, b"a", &[b'x'; MIB]);
            }
            lock(&sent.closed).len()
        };
        events.tuning.pubsub_bytes_max.store(10 * MIB as u64 + MIB as u64 / 2, Relaxed);
        pubsub.subscribe(&mut subscriptions[0], listener(5), Kind::Channel, b"a");
        assert_eq!(publish(31 + 10), 0);
        pubsub.subscribe(&mut subscriptions[1], listener(6), Kind::Channel, b"a");
        pubsub.unsubscribe(&mut subscriptions[0], listener(5), Kind::Channel, b"a");
        pubsub.subscribe(&mut subscriptions[0], listener(5), Kind::Channel, b"a");
        assert_eq!(publish(10), 0);
        assert_eq!(publish(1), 2);
        // A connection that will be closed isn't counted again.
        pubsub.leave(&mut subscriptions[0], listener(5));
        pubsub.subscribe(&mut subscriptions[0], listener(5), Kind::Channel, b"a");
        assert_eq!(publish(20), 2);
    }
}
