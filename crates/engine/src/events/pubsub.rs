//! Publish and subscribe: the subscribers of each channel, and how messages reach them.
//!
//! # Who owns what
//!
//! | what | held by |
//! | --- | --- |
//! | a worker's subscribers to a name | its *room*, behind a lock that others rarely take |
//! | their number, by worker | the *board*, by channel, in stripes; all patterns, in order |
//! | a connection's subscriptions | its session ([`Subscriptions`]) |
//!
//! A publisher reads the board, counts, and sends each worker that has subscribers one message,
//! whatever their number ([`Workers::publish`](crate::events::Workers::publish)). The worker
//! encodes it once for each protocol version and copies that to its connections' outputs; a long
//! one is shared instead (docs/decisions/0010-shared-messages.md). Consecutive messages of one
//! channel are encoded and delivered together.
//!
//! Mailboxes are in order, so one connection's messages arrive everywhere in the order in which it
//! published them, and after its earlier writes: its commands run one after the other. For
//! subscribers of several workers, a lock of the channel's stripe is held while the message is sent
//! to all of them, so that they get a channel's messages in one order, whoever the publisher is.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use pantala_base::glob;

use crate::events::Events;

pub use crate::clients::listener::{KINDS, Kind, Listener};

mod patterns;
use patterns::Patterns;

/// Parts of the board, so that publishers on different channels don't contend: a power of two.
const STRIPES: usize = 64;

/// The name of a channel, or a pattern.
pub type Name = Arc<[u8]>;

/// The subscriptions of a connection.
#[derive(Debug, Default)]
pub struct Subscriptions {
    names: [BTreeSet<Name>; KINDS.len()],
}

impl Subscriptions {
    /// Returns the names of a kind, in order.
    pub fn names(&self, kind: Kind) -> &BTreeSet<Name> {
        &self.names[kind as usize]
    }

    /// Returns the number of subscriptions that `SUBSCRIBE` and its variants reply: shard channels
    /// are counted separately.
    pub fn count_beside(&self, kind: Kind) -> usize {
        match kind {
            Kind::Channel | Kind::Pattern => self.names(Kind::Channel).len() + self.names(Kind::Pattern).len(),
            Kind::Shard => self.names(Kind::Shard).len(),
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.iter().all(BTreeSet::is_empty)
    }

    /// Returns the memory usage, bytes: each name's place here and in its room. The names
    /// themselves are shared by all subscribers.
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

impl Published {
    /// Returns whether every receiver of this message gets `next` too, once, with nothing between
    /// the two: both are of one channel, and no pattern matches either.
    pub fn goes_with(&self, next: &Published) -> bool {
        let is_alone = |one: &Published| one.patterns.is_empty();
        is_alone(self) && is_alone(next) && self.kind == next.kind && self.channel == next.channel
    }
}

/// The number of each worker's subscribers to one name.
type Counts = Box<[u32]>;

/// The subscribed connections of a worker, by name.
type Room = HashMap<Name, Vec<u64>>;

/// The subscriptions of all connections. See the head of this module.
pub struct PubSub {
    workers: usize,
    hasher: RandomState,
    /// By kind (channels, then shard channels) and stripe.
    board: [Vec<RwLock<HashMap<Name, Counts>>>; 2],
    /// By kind and stripe, as the board: held while a message goes to more than one worker.
    order: [Vec<Mutex<()>>; 2],
    patterns: RwLock<Patterns>,
    /// By worker and kind.
    rooms: Box<[[Mutex<Room>; KINDS.len()]]>,
}

/// Locks a map that is consistent at every moment: a panic elsewhere can't have left one
/// half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PubSub {
    /// Returns one without subscribers.
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
        }
    }

    /// Adds a subscription. Returns `false` if it exists already.
    pub fn subscribe(&self, subscriptions: &mut Subscriptions, listener: Listener, kind: Kind, name: &[u8]) -> bool {
        if subscriptions.names(kind).contains(name) {
            return false;
        }
        let worker = listener.worker as usize;
        let name: Name = name.into();
        // The room first: once the board shows a subscriber, messages reach it.
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
            // Keeps the order: messages go out in the order in which their receivers subscribed.
            connections.retain(|connection| *connection != listener.connection);
            if connections.is_empty() {
                room.remove(name);
            }
        }
        true
    }

    /// Removes all subscriptions of a connection that has ended, or sent `RESET`.
    pub fn leave(&self, subscriptions: &mut Subscriptions, listener: Listener) {
        for kind in KINDS {
            while let Some(name) = subscriptions.names(kind).first().cloned() {
                self.unsubscribe(subscriptions, listener, kind, &name);
            }
        }
    }

    /// Publishes a message on a channel (`kind` is `Channel` or `Shard`). Returns how many receive
    /// it; a connection that subscribes to the channel and to two patterns counts three times.
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
            events.workers.publish(worker as u32, Arc::clone(&published));
        }
        receivers
    }

    /// Delivers a message to a worker's subscribers: calls `to` for each with the pattern it
    /// subscribed by, if any.
    pub fn deliver(&self, worker: u32, published: &Published, mut to: impl FnMut(u64, Option<&[u8]>)) {
        let rooms = &self.rooms[worker as usize];
        // Collected, so that the lock is free when a connection is closed for its output's length.
        let by_name = lock(&rooms[published.kind as usize]).get(&*published.channel).cloned().unwrap_or_default();
        by_name.into_iter().for_each(|connection| to(connection, None));
        for pattern in &published.patterns {
            let by_pattern = lock(&rooms[Kind::Pattern as usize]).get(pattern).cloned().unwrap_or_default();
            by_pattern.into_iter().for_each(|connection| to(connection, Some(pattern)));
        }
    }

    /// Returns the channels (`kind` is `Channel` or `Shard`) that have subscribers, in no order.
    pub fn channels(&self, kind: Kind) -> Vec<Name> {
        let stripes = &self.board[usize::from(kind == Kind::Shard)];
        let names = |stripe: &RwLock<HashMap<Name, Counts>>| {
            stripe.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect::<Vec<_>>()
        };
        stripes.iter().flat_map(names).collect()
    }

    /// Returns how many subscribe to a channel (`kind` is `Channel` or `Shard`) by its name.
    pub fn listeners(&self, kind: Kind, channel: &[u8]) -> u64 {
        let stripe = self.stripe(kind, channel).read().unwrap_or_else(PoisonError::into_inner);
        stripe.get(channel).map_or(0, |counts| counts.iter().map(|count| u64::from(*count)).sum())
    }

    /// Returns the subscribers to names that satisfy `is_wanted`, with repeats.
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

    /// Returns the number of a name's stripe.
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
    fn messages_go_together_that_the_same_hear_once() {
        let first = published(Kind::Channel, "a", &[]);
        assert!(first.goes_with(&published(Kind::Channel, "a", &[])));
        assert!(!first.goes_with(&published(Kind::Channel, "b", &[])));
        assert!(!first.goes_with(&published(Kind::Shard, "a", &[])));
        // A subscriber by name and by pattern gets each message twice before the next.
        let by_pattern = published(Kind::Channel, "a", &["a*"]);
        assert!(!first.goes_with(&by_pattern) && !by_pattern.goes_with(&first) && !by_pattern.goes_with(&by_pattern));
    }
}
