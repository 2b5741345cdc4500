//! Ranges of a stream, and the delivery of its entries to consumers.

use super::counters::Counters;
use super::group::{ConsumerNumber, Group, Nack, Pending};
use super::id::StreamId;
use super::node::{Entry, Fields, Node, Reader};
use super::ordered::{Ordered, Place};
use super::{GroupNumber, Stream};

/// The outcome of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Number of entries delivered.
    pub entries: usize,
    /// Whether the delivery created the consumer.
    pub created_consumer: bool,
}

/// The options of `XCLAIM` and `XAUTOCLAIM`.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Name of the consumer that receives the entries.
    pub consumer: &'a [u8],
    /// Minimum time since the last delivery, in milliseconds. 0 means any time.
    pub min_idle_ms: i64,
    /// The new time of the last delivery, in Unix milliseconds.
    pub delivered_ms: i64,
    /// The new number of deliveries. `None` increments the current number.
    pub deliveries: Option<u64>,
    /// Whether to claim entries that aren't pending.
    pub force: bool,
    /// Whether only ids are requested. Such a claim doesn't count as a delivery.
    pub just_id: bool,
    /// The current Unix time in milliseconds.
    pub now_ms: i64,
}

/// The outcome of `XAUTOCLAIM`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AutoClaimed {
    /// The id at which to continue: the id of the first pending entry that wasn't examined, or 0-0
    /// if there is no such entry.
    pub next: StreamId,
    /// Number of entries claimed.
    pub claimed: usize,
    /// Pending entries that no longer exist in the stream, and were therefore removed from the
    /// group.
    pub deleted: Vec<StreamId>,
    /// Whether the claim created the consumer.
    pub created_consumer: bool,
}

impl Stream {
    /// Visits at most `count` entries from `start` to `end`, both inclusive. Returns the number of
    /// visited entries.
    pub fn range(
        &self,
        start: StreamId,
        end: StreamId,
        count: usize,
        mut visit: impl FnMut(StreamId, Fields<'_>),
    ) -> usize {
        let mut shown = 0;
        let mut at = self.nodes.floor(start).or_else(|| self.nodes.first_place());
        while let Some(place) = at.filter(|_| shown < count) {
            let node = self.nodes.get(place);
            if node.last >= start {
                for entry in node.entries().filter(|entry| !entry.deleted && entry.id >= start) {
                    if entry.id > end || shown == count {
                        return shown;
                    }
                    visit(entry.id, entry.fields);
                    shown += 1;
                }
            }
            at = self.nodes.next(place);
        }
        shown
    }

    /// Visits entries as [`Stream::range`] does, but from `end` down to `start`.
    pub fn range_reversed(
        &self,
        start: StreamId,
        end: StreamId,
        count: usize,
        mut visit: impl FnMut(StreamId, Fields<'_>),
    ) -> usize {
        let mut shown = 0;
        let mut at = self.nodes.floor(end).or_else(|| self.nodes.first_place());
        // Nodes are only readable forwards, so the entries of a node are collected first.
        let mut entries: Vec<Entry<'_>> = Vec::new();
        while let Some(place) = at.filter(|_| shown < count) {
            let node = self.nodes.get(place);
            if node.last < start {
                break;
            }
            let live = node.entries().filter(|entry| !entry.deleted && entry.id >= start);
            entries.clear();
            entries.extend(live.take_while(|entry| entry.id <= end));
            for entry in entries.iter().rev().take(count - shown) {
                visit(entry.id, entry.fields);
                shown += 1;
            }
            at = self.nodes.previous(place);
        }
        shown
    }

    /// Returns the id of the first entry.
    pub fn first_entry_id(&self) -> Option<StreamId> {
        let mut first = None;
        self.range(StreamId::MIN, StreamId::MAX, 1, |id, _| first = Some(id));
        first
    }

    /// Returns the id of the last entry.
    pub fn last_entry_id(&self) -> Option<StreamId> {
        let mut last = None;
        self.range_reversed(StreamId::MIN, StreamId::MAX, 1, |id, _| last = Some(id));
        last
    }

    /// Returns whether there is an entry with an id higher than `id`.
    pub fn has_entries_after(&self, id: StreamId) -> bool {
        // Fast path: most readers wait at the last id.
        id < self.counters().last_id
            && id.next().is_some_and(|start| self.range(start, StreamId::MAX, 1, |_, _| ()) > 0)
    }

    /// Returns whether there is an entry with this id.
    pub fn contains(&self, id: StreamId) -> bool {
        find(&self.nodes, id).is_some()
    }

    /// Delivers to a consumer at most `count` entries that the group hasn't read. Creates the
    /// consumer if there are such entries. Without `noack`, the entries become pending.
    pub fn deliver(
        &mut self,
        group: GroupNumber,
        consumer: &[u8],
        count: usize,
        now_ms: i64,
        noack: bool,
        mut visit: impl FnMut(StreamId, Fields<'_>),
    ) -> Delivered {
        self.change_group(group, |nodes, counters, group| {
            let mut delivered = Delivered::default();
            let mut number = None;
            let last_id = group.last_id;
            let mut at = resume(nodes, group);
            while let Some((place, mut entries)) = at {
                let node = nodes.get(place);
                while delivered.entries < count
                    && let Some(entry) = entries.find(|entry| !entry.deleted && entry.id > last_id)
                {
                    let number = *number.get_or_insert_with(|| {
                        let (number, created) = group.touch_consumer(consumer, now_ms);
                        delivered.created_consumer = created;
                        number
                    });
                    advance(counters, group, entry.id);
                    group.cursor = Some((node.first, entries.position()));
                    visit(entry.id, entry.fields);
                    if !noack {
                        group.deliver(entry.id, number, now_ms);
                    }
                    delivered.entries += 1;
                }
                if delivered.entries >= count {
                    break;
                }
                at = nodes.next(place).map(|next| (next, nodes.get(next).entries()));
            }
            delivered
        })
    }

    /// Redelivers at most `count` of a consumer's own pending entries, starting at `start`. Entries
    /// that no longer exist in the stream are visited without fields. Creates the consumer if
    /// necessary.
    pub fn redeliver(
        &mut self,
        group: GroupNumber,
        consumer: &[u8],
        start: StreamId,
        count: usize,
        now_ms: i64,
        mut visit: impl FnMut(StreamId, Option<Fields<'_>>),
    ) -> Delivered {
        self.change_group(group, |nodes, _, group| {
            let (number, created_consumer) = group.touch_consumer(consumer, now_ms);
            let mut delivered = Delivered { entries: 0, created_consumer };
            let mut from = Some(start);
            while delivered.entries < count
                && let Some(id) = from.and_then(|from| group.next_of(number, from))
            {
                let entry = find(nodes, id);
                visit(id, entry.map(|entry| entry.fields));
                if entry.is_some()
                    && let Some(place) = group.pending.find(id)
                {
                    let nack = group.pending.get_mut(place);
                    nack.delivered_ms = now_ms;
                    nack.deliveries = nack.deliveries.wrapping_add(1);
                }
                delivered.entries += 1;
                from = id.next();
            }
            delivered
        })
    }

    /// Claims entries for a consumer (`XCLAIM`). Visits each claimed entry with its new state. A
    /// pending entry that no longer exists in the stream is visited without fields and with its
    /// former state, and removed from the group. Returns whether the claim created the consumer.
    pub fn claim(
        &mut self,
        group: GroupNumber,
        ids: &[StreamId],
        options: &Claim<'_>,
        mut visit: impl FnMut(Pending<'_>, Option<Fields<'_>>),
    ) -> bool {
        self.change_group(group, |nodes, _, group| {
            let mut claimant = Claimant::default();
            for &id in ids {
                claim_one(nodes, group, id, options, &mut claimant, &mut visit);
            }
            claimant.created
        })
    }

    /// Claims a group's pending entries for a consumer, starting at `start` (`XAUTOCLAIM`).
    /// Examines at most `attempts` entries, and claims at most `count` of them. A pending entry
    /// that no longer exists in the stream is not claimed, but counts towards `count` too. Visits
    /// entries as [`Stream::claim`] does.
    pub fn claim_pending(
        &mut self,
        group: GroupNumber,
        start: StreamId,
        count: usize,
        attempts: usize,
        options: &Claim<'_>,
        mut visit: impl FnMut(Pending<'_>, Option<Fields<'_>>),
    ) -> AutoClaimed {
        self.change_group(group, |nodes, _, group| {
            let mut claimant = Claimant::default();
            let mut done = AutoClaimed::default();
            let mut from = Some(start);
            let next = |group: &Group, from: Option<StreamId>| {
                from.and_then(|from| group.pending.ceil(from)).map(|place| group.pending.get(place).id)
            };
            for _ in 0..attempts {
                if done.claimed + done.deleted.len() >= count {
                    break;
                }
                let Some(id) = next(group, from) else { break };
                match claim_one(nodes, group, id, options, &mut claimant, &mut visit) {
                    Claimed::Yes => done.claimed += 1,
                    Claimed::Deleted => done.deleted.push(id),
                    Claimed::No => {}
                }
                from = id.next();
            }
            done.next = next(group, from).unwrap_or(StreamId::MIN);
            done.created_consumer = claimant.created;
            done
        })
    }
}

/// Returns the position from which to search for a group's next entry.
#[inline]
fn resume<'n>(nodes: &'n Ordered<Node>, group: &Group) -> Option<(Place, Reader<'n>)> {
    if let Some((first, position)) = group.cursor
        && let Some(place) = nodes.floor(first)
        && nodes.get(place).first == first
    {
        return Some((place, nodes.get(place).entries_from(position, group.last_id)));
    }
    let place = nodes.floor(group.last_id).or_else(|| nodes.first_place())?;
    Some((place, nodes.get(place).entries()))
}

/// Records that a group has read an entry.
#[inline]
fn advance(counters: &Counters, group: &mut Group, id: StreamId) {
    group.entries_read = counters.entries_read_after(group, id);
    group.last_id = id;
}

/// Returns the entry with an id, unless it is deleted.
fn find(nodes: &Ordered<Node>, id: StreamId) -> Option<Entry<'_>> {
    place_of(nodes, id).map(|(_, entry)| entry)
}

/// Returns the entry with an id, unless it is deleted, and the place of its node.
pub(super) fn place_of(nodes: &Ordered<Node>, id: StreamId) -> Option<(Place, Entry<'_>)> {
    let mut at = nodes.floor(id).or_else(|| nodes.first_place());
    // Usually the first node suffices. Later nodes are searched because ids of deleted entries may
    // be out of order (see `node`).
    while let Some(place) = at {
        let node = nodes.get(place);
        if node.last >= id
            && let Some(entry) = node.entries().find(|entry| !entry.deleted && entry.id >= id)
        {
            return (entry.id == id).then_some((place, entry));
        }
        at = nodes.next(place);
    }
    None
}

/// The claiming consumer. The consumer is looked up or created when it receives its first entry.
#[derive(Default)]
struct Claimant {
    number: Option<ConsumerNumber>,
    created: bool,
}

enum Claimed {
    Yes,
    /// The entry was pending, but no longer exists in the stream.
    Deleted,
    No,
}

fn claim_one(
    nodes: &Ordered<Node>,
    group: &mut Group,
    id: StreamId,
    options: &Claim<'_>,
    claimant: &mut Claimant,
    visit: &mut impl FnMut(Pending<'_>, Option<Fields<'_>>),
) -> Claimed {
    let pending = group.nack(id);
    let Some(entry) = find(nodes, id) else {
        let Some(nack) = pending else { return Claimed::No };
        visit(group.describe(&nack), None);
        group.acknowledge(id);
        return Claimed::Deleted;
    };
    let idle_enough =
        |nack: Nack| options.min_idle_ms == 0 || options.now_ms.wrapping_sub(nack.delivered_ms) >= options.min_idle_ms;
    let deliveries = match pending {
        Some(nack) if idle_enough(nack) => nack.deliveries,
        // As in Redis, an entry that wasn't pending counts as delivered once before the claim, and
        // the claim adds one.
        None if options.force => 1,
        _ => return Claimed::No,
    };
    let deliveries =
        options.deliveries.unwrap_or(if options.just_id { deliveries } else { deliveries.wrapping_add(1) });
    let number = *claimant.number.get_or_insert_with(|| {
        let (number, created) = group.touch_consumer(options.consumer, options.now_ms);
        claimant.created = created;
        number
    });
    let delivered_ms = options.delivered_ms;
    group.put(Nack { id, delivered_ms, deliveries, consumer: number });
    visit(Pending { id, consumer: options.consumer, delivered_ms, deliveries }, Some(entry.fields));
    Claimed::Yes
}
