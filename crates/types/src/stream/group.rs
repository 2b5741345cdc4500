//! Consumer groups, and the pending entries of their consumers.
//!
//! A group stores all its pending entries with their details. Each consumer stores the ids of its
//! own pending entries. So a search for the entries of a consumer visits no entries of other
//! consumers, and a search for the oldest entry of a group visits no consumer.

use super::id::StreamId;
use super::named::{HasName, Named, Place};
use super::ordered::{Keyed, Ordered};

/// The `entries-read` of a group if this number is unknown (Redis's `SCG_INVALID_ENTRIES_READ`).
pub const ENTRIES_READ_UNKNOWN: i64 = -1;

/// The number of a consumer in its group, stable while the consumer exists.
pub(super) type ConsumerNumber = u32;

/// A pending entry as its group stores it (Redis's `streamNACK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nack {
    pub(super) id: StreamId,
    /// Time of the last delivery, in Unix milliseconds.
    pub(super) delivered_ms: i64,
    /// Number of deliveries.
    pub(super) deliveries: u64,
    pub(super) consumer: ConsumerNumber,
}

impl Keyed for Nack {
    #[inline]
    fn key(&self) -> StreamId {
        self.id
    }
}

/// A pending entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending<'g> {
    /// Id of the entry, which may have been deleted.
    pub id: StreamId,
    /// Name of the consumer to which the entry was delivered.
    pub consumer: &'g [u8],
    /// Time of the last delivery, in Unix milliseconds.
    pub delivered_ms: i64,
    /// Number of deliveries.
    pub deliveries: u64,
}

/// A consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    pub(super) name: Box<[u8]>,
    pub(super) seen_ms: i64,
    pub(super) pending: Ordered<StreamId>,
}

impl HasName for Consumer {
    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Consumer {
    /// Returns the name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the time of the consumer's last attempted operation, in Unix milliseconds.
    pub fn seen_ms(&self) -> i64 {
        self.seen_ms
    }

    /// Returns the number of the consumer's pending entries.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Iterates over the ids of the consumer's pending entries, in order.
    pub fn pending(&self) -> impl Iterator<Item = StreamId> {
        self.pending.iter().copied()
    }
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    name: Box<[u8]>,
    pub(super) last_id: StreamId,
    pub(super) entries_read: i64,
    /// A hint for finding the entry after `last_id`: the first id of the node that has the entry
    /// `last_id`, and the position after this entry in the node. The next entry need not exist yet.
    /// A read sets the hint. Any other change of `last_id` clears the hint.
    pub(super) cursor: Option<(StreamId, usize)>,
    pub(super) pending: Ordered<Nack>,
    consumers: Named<Consumer>,
    /// Heap memory of the consumers' names and pending entries in bytes.
    consumer_bytes: usize,
}

impl HasName for Group {
    fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Group {
    pub(super) fn new(name: &[u8], last_id: StreamId, entries_read: i64) -> Self {
        Group {
            name: name.into(),
            last_id,
            entries_read,
            cursor: None,
            pending: Ordered::default(),
            consumers: Named::default(),
            consumer_bytes: 0,
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the id of the last delivered entry.
    pub fn last_id(&self) -> StreamId {
        self.last_id
    }

    /// Returns the number of entries that the group has read, counted from the first entry ever
    /// added, or [`ENTRIES_READ_UNKNOWN`].
    pub fn entries_read(&self) -> i64 {
        self.entries_read
    }

    /// Returns the number of pending entries.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Iterates over the pending entries of all consumers, starting at an id.
    pub fn pending_from(&self, start: StreamId) -> impl Iterator<Item = Pending<'_>> {
        self.pending.iter_from(self.pending.ceil(start)).map(|nack| self.describe(nack))
    }

    /// Returns the last pending entry.
    pub fn last_pending(&self) -> Option<Pending<'_>> {
        self.pending.last().map(|nack| self.describe(nack))
    }

    /// Iterates over the pending entries of a consumer of this group, starting at an id.
    pub fn pending_of<'g>(&'g self, consumer: &'g Consumer, start: StreamId) -> impl Iterator<Item = Pending<'g>> {
        let ids = consumer.pending.iter_from(consumer.pending.ceil(start));
        // The group has a pending entry for each id, so no id is skipped.
        ids.filter_map(|&id| Some(self.describe(self.pending.get(self.pending.find(id)?))))
    }

    pub(super) fn describe(&self, nack: &Nack) -> Pending<'_> {
        let Nack { id, delivered_ms, deliveries, consumer } = *nack;
        Pending { id, consumer: self.consumers.get(consumer).map_or(&[], Consumer::name), delivered_ms, deliveries }
    }

    /// Returns the number of consumers.
    pub fn consumers_len(&self) -> usize {
        self.consumers.len()
    }

    /// Iterates over the consumers, ordered by name.
    pub fn consumers(&self) -> impl Iterator<Item = &Consumer> {
        self.consumers.iter()
    }

    /// Returns the consumer with a name.
    pub fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        self.consumers.get(self.number_of(name)?)
    }

    /// Returns the size of the group's heap memory in bytes, including names.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.name.len() + self.pending.allocated_bytes() + self.consumer_bytes + self.consumers.allocated_bytes()
    }

    pub(super) fn number_of(&self, name: &[u8]) -> Option<ConsumerNumber> {
        self.consumers.number_of(name)
    }

    /// Returns the number of the consumer with a name. Creates the consumer if necessary, and
    /// returns whether this call created it. Sets the time of the consumer's last activity to
    /// `now_ms`.
    pub(super) fn touch_consumer(&mut self, name: &[u8], now_ms: i64) -> (ConsumerNumber, bool) {
        match self.consumers.search(name) {
            Ok(place) => {
                let number = self.consumers.number_at(place);
                self.consumers[number].seen_ms = now_ms;
                (number, false)
            }
            Err(place) => (self.add_consumer(place, name, now_ms), true),
        }
    }

    /// Creates a consumer. Returns `false` if the name exists.
    pub(super) fn create_consumer(&mut self, name: &[u8], now_ms: i64) -> bool {
        match self.consumers.search(name) {
            Ok(_) => false,
            Err(place) => {
                self.add_consumer(place, name, now_ms);
                true
            }
        }
    }

    fn add_consumer(&mut self, place: Place, name: &[u8], now_ms: i64) -> ConsumerNumber {
        self.consumer_bytes += name.len();
        self.consumers.insert(place, Consumer { name: name.into(), seen_ms: now_ms, pending: Ordered::default() })
    }

    /// Removes a consumer with its pending entries. Returns the number of these entries, or `None`
    /// if there is no such consumer.
    pub(super) fn remove_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let place = self.consumers.search(name).ok()?;
        let consumer = self.consumers.remove(place)?;
        self.consumer_bytes -= consumer.name.len() + consumer.pending.allocated_bytes();
        for id in consumer.pending() {
            if let Some(place) = self.pending.find(id) {
                self.pending.remove(place);
            }
        }
        Some(consumer.pending.len())
    }

    /// Changes the pending entries of a consumer and updates the running sum of the consumers'
    /// memory.
    fn with_pending(&mut self, number: ConsumerNumber, change: impl FnOnce(&mut Ordered<StreamId>)) {
        let Some(consumer) = self.consumers.get_mut(number) else { return };
        let before = consumer.pending.allocated_bytes();
        change(&mut consumer.pending);
        self.consumer_bytes = self.consumer_bytes + consumer.pending.allocated_bytes() - before;
    }

    fn add_to(&mut self, number: ConsumerNumber, id: StreamId) {
        self.with_pending(number, |pending| {
            // `insert` fails if the id is there already, which isn't an error.
            let _ = pending.insert(id);
        });
    }

    fn remove_from(&mut self, number: ConsumerNumber, id: StreamId) {
        self.with_pending(number, |pending| {
            if let Some(place) = pending.find(id) {
                pending.remove(place);
            }
        });
    }

    /// Records that an entry was delivered. The entry may be pending already, if `XGROUP SETID`
    /// lowered the group's last id.
    #[inline]
    pub(super) fn deliver(&mut self, id: StreamId, consumer: ConsumerNumber, now_ms: i64) {
        let nack = Nack { id, delivered_ms: now_ms, deliveries: 1, consumer };
        if let Err(place) = self.pending.insert(nack) {
            let former = std::mem::replace(self.pending.get_mut(place), nack).consumer;
            self.remove_from(former, id);
        }
        self.add_to(consumer, id);
    }

    /// Returns the pending entry with an id.
    #[inline]
    pub(super) fn nack(&self, id: StreamId) -> Option<Nack> {
        Some(*self.pending.get(self.pending.find(id)?))
    }

    /// Stores a pending entry. Replaces a pending entry with the same id, of any consumer.
    pub(super) fn put(&mut self, nack: Nack) {
        let former = match self.pending.insert(nack) {
            Ok(()) => None,
            Err(place) => Some(std::mem::replace(self.pending.get_mut(place), nack).consumer),
        };
        if former != Some(nack.consumer) {
            if let Some(former) = former {
                self.remove_from(former, nack.id);
            }
            self.add_to(nack.consumer, nack.id);
        }
    }

    /// Removes a pending entry. Returns whether the entry was pending.
    #[inline]
    pub(super) fn acknowledge(&mut self, id: StreamId) -> bool {
        let Some(place) = self.pending.find(id) else { return false };
        let nack = self.pending.remove(place);
        self.remove_from(nack.consumer, id);
        true
    }

    /// Returns the lowest id that is at least `from` among a consumer's pending entries.
    pub(super) fn next_of(&self, consumer: ConsumerNumber, from: StreamId) -> Option<StreamId> {
        let pending = &self.consumers.get(consumer)?.pending;
        pending.ceil(from).map(|place| *pending.get(place))
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.last_id, self.entries_read) == (&other.name, other.last_id, other.entries_read)
            && self.consumers == other.consumers
            && self.pending_from(StreamId::MIN).eq(other.pending_from(StreamId::MIN))
    }
}

impl Eq for Group {}
