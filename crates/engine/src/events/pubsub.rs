//! Publish and subscribe: who listens to which channel, and the way of a message.
//!
//! # Who owns what
//!
//! | what | held by |
//! | --- | --- |
//! | which connections of a worker listen to a channel or pattern | that worker's *room*, behind a lock that only it takes often |
//! | how many of each worker's connections listen | the *board*, by channel, in stripes; and all patterns, in order |
//! | what a connection listens to | its session ([`Subscriptions`]) |
//!
//! A publisher looks at the board, counts, and sends each worker that has listeners one message, whatever their number
//! ([`Workers::publish`](crate::events::Workers::publish)). The worker encodes it once for each protocol version and copies that to its connections' outputs, or has them share it where it is
//! long (docs/decisions/0010-shared-messages.md); messages of one channel that wait one behind the other are encoded and handed out together.
//!
//! Mailboxes are in order, so what one connection publishes arrives everywhere in the order it was published, and after what it wrote
//! before: its commands run one after the other. Where listeners of several workers are to get a message, a lock of the channel's
//! stripe is held while it is sent to all of them, so that they hear the messages of a channel in one order, whoever publishes.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use pantala_base::glob;

use crate::events::Events;

pub use crate::clients::listener::{KINDS, Kind, Listener};

mod patterns;
use patterns::Patterns;

/// Parts of the board, so that publishers on different channels don't meet: a power of two.
const STRIPES: usize = 64;

/// The name of a channel, or a pattern.
pub type Name = Arc<[u8]>;

/// What a connection listens to.
#[derive(Debug, Default)]
pub struct Subscriptions {
    names: [BTreeSet<Name>; KINDS.len()],
}

impl Subscriptions {
    /// Names of a kind, in order.
    pub fn names(&self, kind: Kind) -> &BTreeSet<Name> {
        &self.names[kind as usize]
    }

    /// What `SUBSCRIBE` and its kin answer as the number of subscriptions: shard channels count for themselves.
    pub fn count_beside(&self, kind: Kind) -> usize {
        match kind {
            Kind::Channel | Kind::Pattern => self.names(Kind::Channel).len() + self.names(Kind::Pattern).len(),
            Kind::Shard => self.names(Kind::Shard).len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.iter().all(BTreeSet::is_empty)
    }

    /// Bytes that they take, but for the names, which all listeners share: each its place here and in its room.
    pub fn bytes(&self) -> usize {
        self.names.iter().map(BTreeSet::len).sum::<usize>() * (size_of::<Name>() + size_of::<u64>())
    }
}

/// A message on its way to a worker's listeners.
#[derive(Debug)]
pub struct Published {
    /// `Channel` or `Shard`.
    pub kind: Kind,
    /// The channel.
    pub channel: Box<[u8]>,
    /// What was published.
    pub payload: Box<[u8]>,
    /// Patterns that somebody listens to and that match the channel.
    pub patterns: Vec<Name>,
}

impl Published {
    /// Whether whoever gets this message gets `next` too, once, and nothing between the two: what was published on the same channel next, which nobody
    /// hears by a pattern.
    pub fn goes_with(&self, next: &Published) -> bool {
        let is_alone = |one: &Published| one.patterns.is_empty();
        is_alone(self) && is_alone(next) && self.kind == next.kind && self.channel == next.channel
    }
}

/// Listeners of each worker to one name: how many.
type Counts = Box<[u32]>;

/// The connections of a worker that listen, by name.
type Room = HashMap<Name, Vec<u64>>;

/// See the head of this module.
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

/// Locks of maps that are whole at every moment: a panic elsewhere can't have left one half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PubSub {
    /// Nobody listens.
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

    /// Adds a listener. `false`: it listened already.
    pub fn subscribe(&self, subscriptions: &mut Subscriptions, listener: Listener, kind: Kind, name: &[u8]) -> bool {
        if subscriptions.names(kind).contains(name) {
            return false;
        }
        let worker = listener.worker as usize;
        let name: Name = name.into();
        // The room first: from the moment the board says that somebody is there, a message finds him.
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

    /// Takes a listener out. `false`: it didn't listen.
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
            // In order: messages go out in the order in which their receivers came.
            connections.retain(|connection| *connection != listener.connection);
            if connections.is_empty() {
                room.remove(name);
            }
        }
        true
    }

    /// Takes a listener out of everything: its connection has ended, or `RESET`.
    pub fn leave(&self, subscriptions: &mut Subscriptions, listener: Listener) {
        for kind in KINDS {
            while let Some(name) = subscriptions.names(kind).first().cloned() {
                self.unsubscribe(subscriptions, listener, kind, &name);
            }
        }
    }

    /// Publishes a message on a channel (`kind` is `Channel` or `Shard`) and tells how many will get it; a connection that
    /// listens to the channel and to two patterns counts three times.
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
        // Sending never waits, so neither does anybody for long who waits for the lock.
        let are_several = counts.iter().filter(|count| **count > 0).count() > 1;
        let _in_order = are_several.then(|| lock(&self.order[usize::from(kind == Kind::Shard)][self.number(channel)]));
        for (worker, _) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            events.workers.publish(worker as u32, Arc::clone(&published));
        }
        receivers
    }

    /// Hands a message to a worker's listeners: `to` is called for each with the pattern it listens by, if it is one.
    pub fn deliver(&self, worker: u32, published: &Published, mut to: impl FnMut(u64, Option<&[u8]>)) {
        let rooms = &self.rooms[worker as usize];
        // Collected, so that the lock is free when a connection is closed for what it has to get.
        let by_name = lock(&rooms[published.kind as usize]).get(&*published.channel).cloned().unwrap_or_default();
        by_name.into_iter().for_each(|connection| to(connection, None));
        for pattern in &published.patterns {
            let by_pattern = lock(&rooms[Kind::Pattern as usize]).get(pattern).cloned().unwrap_or_default();
            by_pattern.into_iter().for_each(|connection| to(connection, Some(pattern)));
        }
    }

    /// Names of channels (`kind` is `Channel` or `Shard`) that somebody listens to, in no order.
    pub fn channels(&self, kind: Kind) -> Vec<Name> {
        let stripes = &self.board[usize::from(kind == Kind::Shard)];
        let names = |stripe: &RwLock<HashMap<Name, Counts>>| {
            stripe.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect::<Vec<_>>()
        };
        stripes.iter().flat_map(names).collect()
    }

    /// How many listen to a channel (`kind` is `Channel` or `Shard`) by its name.
    pub fn listeners(&self, kind: Kind, channel: &[u8]) -> u64 {
        let stripe = self.stripe(kind, channel).read().unwrap_or_else(PoisonError::into_inner);
        stripe.get(channel).map_or(0, |counts| counts.iter().map(|count| u64::from(*count)).sum())
    }

    /// Returns the listeners to names of which `is_wanted` says so, with repeats.
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

    /// How many patterns are listened to.
    pub fn pattern_count(&self) -> usize {
        self.patterns.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn stripe(&self, kind: Kind, name: &[u8]) -> &RwLock<HashMap<Name, Counts>> {
        &self.board[usize::from(kind == Kind::Shard)][self.number(name)]
    }

    /// The number of a name's stripe.
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
        // Who hears a channel by its name and by a pattern gets each message twice before the next.
        let by_pattern = published(Kind::Channel, "a", &["a*"]);
        assert!(!first.goes_with(&by_pattern) && !by_pattern.goes_with(&first) && !by_pattern.goes_with(&by_pattern));
    }
}
