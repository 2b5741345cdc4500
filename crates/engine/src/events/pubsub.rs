//! Publish and subscribe: the subscribers of each channel, and the delivery of messages.
//!
//! # Ownership
//!
//! | data | place |
//! | --- | --- |
//! | the subscribers of a worker, by name of the channel or pattern | the worker's *room*, behind a lock that other threads rarely take |
//! | the number of subscribers, by name and worker | the *board*: the channels, divided into *stripes* with a lock each, and all patterns in order |
//! | a connection's subscriptions | its session ([`Subscriptions`]) |
//!
//! A publisher reads the board and adds up the counts of each worker. It sends one message to each
//! worker that has subscribers, not one per subscriber
//! ([`Workers::publish`](crate::events::Workers::publish)). The worker encodes the message once for
//! each protocol version and copies it to its connections' outputs. Long messages are shared
//! instead (`docs/decisions/0010-shared-messages.md`). Consecutive messages on one channel are
//! encoded and delivered together.
//!
//! A connection's commands run one after the other, and mailboxes keep order. So all receivers get
//! the messages of one connection in the order of publication. A receiver gets a message only after
//! the publishing connection's earlier writes have taken effect. If a message has subscribers on
//! several workers, the publisher holds a lock of the channel's stripe while it sends the message
//! to these workers. So all subscribers receive the messages on a channel in the same order.
//!
//! The messages in flight to a worker count towards the output limits of its subscribers
//! (`backlog`). Short messages to a worker that does not keep up are packed ([`Packed`]).

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crossbeam::utils::CachePadded;
use pantala_base::glob;

use crate::events::Events;

pub use crate::clients::listener::{KINDS, Kind, Listener};

mod backlog;
mod packed;
mod patterns;
use backlog::{Backlog, Way};
pub use packed::{Packed, Payloads, Run};
use patterns::Patterns;

/// Number of stripes of the board, a power of two. There are many, so that publishers on different
/// channels rarely contend.
const STRIPES: usize = 64;

/// The name of a channel, or a pattern.
pub type Name = Arc<[u8]>;

/// The subscriptions of a connection.
#[derive(Debug, Default)]
pub struct Subscriptions {
    names: [BTreeSet<Name>; KINDS.len()],
}

impl Subscriptions {
    /// Returns the names of a kind, sorted.
    pub fn names(&self, kind: Kind) -> &BTreeSet<Name> {
        &self.names[kind as usize]
    }

    /// Returns the number of subscriptions in the replies to `SUBSCRIBE` and its variants. Shard
    /// channels are counted separately.
    pub fn counted_subscriptions(&self, kind: Kind) -> usize {
        match kind {
            Kind::Channel | Kind::Pattern => self.names(Kind::Channel).len() + self.names(Kind::Pattern).len(),
            Kind::Shard => self.names(Kind::Shard).len(),
        }
    }

    /// Returns whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.names.iter().all(BTreeSet::is_empty)
    }

    /// Returns the memory usage in bytes: for each name, an entry in this set and one in the
    /// worker's room. Excludes the names themselves.
    pub fn bytes(&self) -> usize {
        self.names.iter().map(BTreeSet::len).sum::<usize>() * (size_of::<Name>() + size_of::<u64>())
    }
}

/// A message in flight to a worker's subscribers.
#[derive(Debug)]
pub struct Published {
    /// `Channel` or `Shard`.
    pub kind: Kind,
    /// The channel.
    pub channel: Box<[u8]>,
    /// The message.
    pub payload: Box<[u8]>,
    /// Subscribed patterns that match the channel.
    pub patterns: Vec<Name>,
}

/// The receivers of a message: the subscribers to its channel, and to the patterns that match it.
#[derive(Clone, Copy, Debug)]
pub struct Address<'m> {
    /// `Channel` or `Shard`.
    pub kind: Kind,
    /// The channel.
    pub channel: &'m [u8],
    /// Subscribed patterns that match the channel.
    pub patterns: &'m [Name],
}

impl Address<'_> {
    /// Returns whether a message to this address and the following message, to `next`, can be
    /// delivered together. Both messages must be on the same channel, and no pattern may match it.
    /// Otherwise a receiver that has subscribed by name and by pattern would get the second message
    /// before the second copy of the first.
    pub fn can_combine_with(self, next: Address<'_>) -> bool {
        let is_alone = |one: Address<'_>| one.patterns.is_empty();
        is_alone(self) && is_alone(next) && self.kind == next.kind && self.channel == next.channel
    }
}

impl Published {
    /// Returns the receivers.
    pub fn address(&self) -> Address<'_> {
        Address { kind: self.kind, channel: &self.channel, patterns: &self.patterns }
    }

    /// Returns whether this message and `next` can be delivered together
    /// ([`Address::can_combine_with`]).
    pub fn can_combine_with(&self, next: &Published) -> bool {
        self.address().can_combine_with(next.address())
    }

    /// Returns whether the message may be packed ([`Packed`]).
    fn is_short(&self) -> bool {
        self.channel.len() + self.payload.len() <= packed::PACKED_MESSAGE_BYTES_MAX
    }
}

/// Number of subscribers to one name, by worker.
type Counts = Box<[u32]>;

/// For each name, the connections of a worker that have subscribed to the name, in the order in
/// which they subscribed.
type Room = HashMap<Name, Vec<u64>>;

/// The subscriptions of all connections. See the head of this module.
pub struct PubSub {
    workers: usize,
    hasher: RandomState,
    /// Channels by kind (channels, then shard channels) and stripe.
    board: [Vec<RwLock<HashMap<Name, Counts>>>; 2],
    /// Locks by kind and stripe. A publisher holds the lock while it sends a message to several
    /// workers.
    order: [Vec<Mutex<()>>; 2],
    patterns: RwLock<Patterns>,
    /// Rooms by worker and kind.
    rooms: Box<[[Mutex<Room>; KINDS.len()]]>,
    /// Messages in flight, by worker.
    backlogs: Box<[CachePadded<Backlog>]>,
}

/// Locks a mutex. A panic of another holder is ignored, because the data is consistent after each
/// of its steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PubSub {
    /// Returns a state without subscribers.
    pub(crate) fn new(workers: usize) -> Self {
        let stripes = || (0..STRIPES).map(|_| RwLock::default()).collect();
        let order = || (0..STRIPES).map(|_| Mutex::default()).collect();
        PubSub {
            workers,
            hasher: RandomState::new(),
            board: [stripes(), stripes()],
            order: [order(), order()],
            patterns: RwLock::default(),
            rooms: (0..workers).map(|_| Default::default()).collect(),
            backlogs: (0..workers).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Adds a subscription. Returns `false` if the subscription already exists.
    pub fn subscribe(&self, subscriptions: &mut Subscriptions, listener: Listener, kind: Kind, name: &[u8]) -> bool {
        if subscriptions.names(kind).contains(name) {
            return false;
        }
        let worker = listener.worker as usize;
        let name: Name = name.into();
        // Once the board counts the subscriber, messages must reach the subscriber. So the room is
        // updated first.
        lock(&self.rooms[worker][kind as usize]).entry(Arc::clone(&name)).or_default().push(listener.connection);
        match kind {
            Kind::Pattern => {
                let mut patterns = self.patterns.write().unwrap_or_else(PoisonError::into_inner);
                patterns.add(&name, worker, self.workers);
            }
            Kind::Channel | Kind::Shard => {
                let mut stripe = self.stripe(kind, &name).write().unwrap_or_else(PoisonError::into_inner);
                let counts =
                    stripe.entry(Arc::clone(&name)).or_insert_with(|| vec![0; self.workers].into_boxed_slice());
                counts[worker] += 1;
            }
        }
        subscriptions.names[kind as usize].insert(name)
    }

    /// Removes a subscription. Returns `false` if there is none.
    pub fn unsubscribe(&self, subscriptions: &mut Subscriptions, listener: Listener, kind: Kind, name: &[u8]) -> bool {
        if !subscriptions.names[kind as usize].remove(name) {
            return false;
        }
        let worker = listener.worker as usize;
        match kind {
            Kind::Pattern => {
                let mut patterns = self.patterns.write().unwrap_or_else(PoisonError::into_inner);
                patterns.remove(name, worker);
            }
            Kind::Channel | Kind::Shard => {
                let mut stripe = self.stripe(kind, name).write().unwrap_or_else(PoisonError::into_inner);
                if let Some(counts) = stripe.get_mut(name) {
                    counts[worker] -= 1;
                    if counts.iter().all(|count| *count == 0) {
                        stripe.remove(name);
                    }
                }
            }
        }
        let mut room = lock(&self.rooms[worker][kind as usize]);
        if let Some(connections) = room.get_mut(name) {
            // Keeps the order of the other connections, because a message is delivered to them in
            // the order in which they subscribed.
            connections.retain(|connection| *connection != listener.connection);
            if connections.is_empty() {
                room.remove(name);
            }
        }
        drop(room);
        self.backlogs[worker].forget(listener.connection);
        true
    }

    /// Removes all subscriptions of a connection that was closed or has sent `RESET`.
    pub fn leave(&self, subscriptions: &mut Subscriptions, listener: Listener) {
        for kind in KINDS {
            while let Some(name) = subscriptions.names(kind).first().cloned() {
                self.unsubscribe(subscriptions, listener, kind, &name);
            }
        }
    }

    /// Publishes a message on a channel (`kind` is `Channel` or `Shard`). Returns the number of
    /// receivers. A connection that has subscribed to the channel and to two matching patterns
    /// counts three times.
    pub fn publish(&self, events: &Events, kind: Kind, channel: &[u8], payload: &[u8]) -> u64 {
        let mut counts = vec![0u32; self.workers];
        let mut add = |more: &Counts| counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        if let Some(found) = self.stripe(kind, channel).read().unwrap_or_else(PoisonError::into_inner).get(channel) {
            add(found);
        }
        let mut matching = Vec::new();
        if kind == Kind::Channel {
            for (pattern, found) in self.patterns.read().unwrap_or_else(PoisonError::into_inner).iter() {
                if glob::matches(pattern, channel, false) {
                    add(found);
                    matching.push(Arc::clone(pattern));
                }
            }
        }
        let receivers = counts.iter().map(|count| u64::from(*count)).sum();
        if receivers == 0 {
            return 0;
        }
        let published =
            Arc::new(Published { kind, channel: channel.into(), payload: payload.into(), patterns: matching });
        // Sending never waits, so the lock is held only briefly.
        let are_several = counts.iter().filter(|count| **count > 0).count() > 1;
        let _in_order = are_several.then(|| lock(&self.order[usize::from(kind == Kind::Shard)][self.number(channel)]));
        for (worker, _) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            match self.count_sent(events, worker, &published) {
                Way::Alone => events.workers.publish(worker as u32, Arc::clone(&published)),
                Way::Packed => events.workers.publish_packed(worker as u32, &published),
                Way::Dropped => {}
            }
        }
        receivers
    }

    /// Delivers messages to a worker's subscribers. Calls `to` for each matching subscription,
    /// with the connection and the subscribed pattern (`None`: the subscription is by name).
    pub fn deliver(&self, worker: u32, address: Address<'_>, mut to: impl FnMut(u64, Option<&[u8]>)) {
        let rooms = &self.rooms[worker as usize];
        // Copies the list, because `to` may close a connection whose output is too long, and
        // closing needs the lock.
        let by_name = lock(&rooms[address.kind as usize]).get(address.channel).cloned().unwrap_or_default();
        by_name.into_iter().for_each(|connection| to(connection, None));
        for pattern in address.patterns {
            let by_pattern = lock(&rooms[Kind::Pattern as usize]).get(pattern).cloned().unwrap_or_default();
            by_pattern.into_iter().for_each(|connection| to(connection, Some(pattern)));
        }
    }

    /// Returns the channels (`kind` is `Channel` or `Shard`) with subscribers, unordered.
    pub fn channels(&self, kind: Kind) -> Vec<Name> {
        let stripes = &self.board[usize::from(kind == Kind::Shard)];
        let names = |stripe: &RwLock<HashMap<Name, Counts>>| {
            stripe.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect::<Vec<_>>()
        };
        stripes.iter().flat_map(names).collect()
    }

    /// Returns the number of connections that have subscribed to a channel by its name (`kind` is
    /// `Channel` or `Shard`).
    pub fn listeners(&self, kind: Kind, channel: &[u8]) -> u64 {
        let stripe = self.stripe(kind, channel).read().unwrap_or_else(PoisonError::into_inner);
        stripe.get(channel).map_or(0, |counts| counts.iter().map(|count| u64::from(*count)).sum())
    }

    /// Returns the subscribers to all names that satisfy `is_wanted`, possibly with duplicates.
    pub fn listeners_where(&self, is_wanted: impl Fn(Kind, &[u8]) -> bool) -> Vec<Listener> {
        let mut found = Vec::new();
        for (worker, rooms) in self.rooms.iter().enumerate() {
            for kind in KINDS {
                for (_, connections) in lock(&rooms[kind as usize]).iter().filter(|(name, _)| is_wanted(kind, name)) {
                    let listener = |connection: &u64| Listener { worker: worker as u32, connection: *connection };
                    found.extend(connections.iter().map(listener));
                }
            }
        }
        found
    }

    /// Returns the number of subscribed patterns.
    pub fn pattern_count(&self) -> usize {
        self.patterns.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn stripe(&self, kind: Kind, name: &[u8]) -> &RwLock<HashMap<Name, Counts>> {
        &self.board[usize::from(kind == Kind::Shard)][self.number(name)]
    }

    /// Returns the index of a name's stripe.
    fn number(&self, name: &[u8]) -> usize {
        self.hasher.hash_one(name) as usize % STRIPES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(kind: Kind, channel: &str, patterns: &[&str]) -> Published {
        let patterns = patterns.iter().map(|pattern| Name::from(pattern.as_bytes())).collect();
        Published { kind, channel: channel.as_bytes().into(), payload: Box::default(), patterns }
    }

    #[test]
    fn messages_with_the_same_receivers_are_delivered_together() {
        let first = published(Kind::Channel, "a", &[]);
        assert!(first.can_combine_with(&published(Kind::Channel, "a", &[])));
        assert!(!first.can_combine_with(&published(Kind::Channel, "b", &[])));
        assert!(!first.can_combine_with(&published(Kind::Shard, "a", &[])));
        // A connection that has subscribed by name and by pattern receives each message twice
        // before the next one.
        let by_pattern = published(Kind::Channel, "a", &["a*"]);
        assert!(
            !first.can_combine_with(&by_pattern)
                && !by_pattern.can_combine_with(&first)
                && !by_pattern.can_combine_with(&by_pattern)
        );
    }
}
