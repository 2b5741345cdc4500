//! The form of a stream in `DUMP` payloads and snapshots: its nodes as Redis's listpacks, then its
//! groups with their consumers.
//!
//! Untrusted input is checked completely: a corrupt payload is an error, never an inconsistent
//! stream.

use super::Stream;
use super::counters::Counters;
use super::group::{Consumer, Group, Nack};
use super::id::StreamId;
use super::node::{Node, listpack_entries, room_for};
use super::ordered::Keyed;
use crate::pack::{Element, PackRef, end_length_bytes, ends_with_length, write_entry};

/// Size of a listpack's header in bytes: the total size (4) and the number of entries (2).
const HEADER_BYTES: usize = 6;
/// The stored number of entries of a listpack whose entries must be counted.
const COUNT_UNKNOWN: u64 = u16::MAX as u64;
const END: u8 = 0xff;

const FLAG_DELETED: i64 = 1;
const FLAG_SAME_FIELDS: i64 = 2;

/// The payload isn't a valid stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A group while it is read from a payload. The pending entries of a group are read before its
/// consumers.
#[derive(Debug)]
pub struct RestoredGroup {
    group: Group,
    /// Pending entries whose consumers haven't been added yet. The values are the time of the last
    /// delivery, in Unix milliseconds, and the number of deliveries.
    orphans: std::collections::BTreeMap<StreamId, (i64, u64)>,
}

impl Stream {
    /// Iterates over the nodes in order. Yields the id under which Redis stores a node, and the
    /// node's listpack.
    pub fn listpacks(&self) -> impl Iterator<Item = (StreamId, Vec<u8>)> {
        self.nodes.iter().map(|node| (node.first, listpack_of(node)))
    }

    /// Appends a node of a payload, given its id and its listpack. The counters are set later, by
    /// [`Stream::restore_counters`].
    ///
    /// # Errors
    /// [`Corrupt`] if the listpack contains anything but stream entries with ascending ids. After
    /// an error, the caller must drop the stream.
    pub fn restore_node(&mut self, first: StreamId, listpack: &[u8]) -> Result<(), Corrupt> {
        if self.nodes.last().is_some_and(|last| last.key() >= first) {
            return Err(Corrupt);
        }
        let mut node = node_of(first, listpack)?;
        let first_live = node.entries().find(|entry| !entry.deleted).map(|entry| entry.id);
        // Nodes must be in the order of their entries.
        if first_live.is_some_and(|live| live < first || self.last_entry_id().is_some_and(|last| last >= live)) {
            return Err(Corrupt);
        }
        node.seal();
        self.node_bytes += node.allocated_bytes();
        self.counters.length += u64::from(node.live);
        self.push_node(node);
        Ok(())
    }

    /// Sets the counters of a payload. Must be called after all nodes were added.
    ///
    /// # Errors
    /// [`Corrupt`] if the counters don't match the nodes.
    pub fn restore_counters(&mut self, counters: Counters) -> Result<(), Corrupt> {
        let last = self.last_entry_id();
        if counters.length != self.counters.length || last.is_some_and(|last| last > counters.last_id) {
            return Err(Corrupt);
        }
        self.counters = counters;
        Ok(())
    }

    /// Adds a group of a payload.
    ///
    /// # Errors
    /// [`Corrupt`] if a group with this name exists, or if a pending entry has no consumer.
    pub fn restore_group(&mut self, restored: RestoredGroup) -> Result<(), Corrupt> {
        let RestoredGroup { group, orphans } = restored;
        if !orphans.is_empty() {
            return Err(Corrupt);
        }
        if self.add_group(group) { Ok(()) } else { Err(Corrupt) }
    }
}

impl RestoredGroup {
    /// Returns a group without pending entries and consumers.
    pub fn new(name: &[u8], last_id: StreamId, entries_read: i64) -> Self {
        RestoredGroup { group: Group::new(name, last_id, entries_read), orphans: std::collections::BTreeMap::new() }
    }

    /// Adds a pending entry. Its consumer is added later.
    ///
    /// # Errors
    /// [`Corrupt`] if the id is already pending.
    pub fn add_pending(&mut self, id: StreamId, delivered_ms: i64, deliveries: u64) -> Result<(), Corrupt> {
        if self.orphans.insert(id, (delivered_ms, deliveries)).is_some() { Err(Corrupt) } else { Ok(()) }
    }

    /// Adds a consumer with its pending entries.
    ///
    /// # Errors
    /// [`Corrupt`] if a consumer with this name exists, or if an entry isn't pending or already has
    /// a consumer.
    pub fn add_consumer(
        &mut self,
        name: &[u8],
        seen_ms: i64,
        pending: impl IntoIterator<Item = StreamId>,
    ) -> Result<(), Corrupt> {
        if !self.group.create_consumer(name, seen_ms) {
            return Err(Corrupt);
        }
        let consumer = self.group.number_of(name).ok_or(Corrupt)?;
        for id in pending {
            let (delivered_ms, deliveries) = self.orphans.remove(&id).ok_or(Corrupt)?;
            self.group.put(Nack { id, delivered_ms, deliveries, consumer });
        }
        Ok(())
    }
}

impl Consumer {
    /// Returns the number of the consumer's pending entries, and the ids of these entries. A
    /// payload contains the number before the ids.
    pub fn pending_ids(&self) -> (usize, impl Iterator<Item = StreamId>) {
        (self.pending_len(), self.pending())
    }
}

/// Returns the listpack that Redis would have for a node.
pub(super) fn listpack_of(node: &Node) -> Vec<u8> {
    let mut out = Vec::with_capacity(node.listpack_len_bytes());
    let mut count = 0u64;
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let mut write = |element: Element<'_>, out: &mut Vec<u8>| {
        write_entry(element, out);
        count += 1;
    };
    for value in [i64::from(node.live), i64::from(node.dead), node.names().len() as i64] {
        write(Element::Int(value), &mut out);
    }
    for name in node.names() {
        write(name, &mut out);
    }
    write(Element::Int(0), &mut out);
    for entry in node.entries() {
        let same = entry.fields.same;
        let fields = entry.fields.len();
        let flags = if same { FLAG_SAME_FIELDS } else { 0 } | if entry.deleted { FLAG_DELETED } else { 0 };
        write(Element::Int(flags), &mut out);
        write(Element::Int(entry.id.ms.wrapping_sub(node.first.ms) as i64), &mut out);
        write(Element::Int(entry.id.seq.wrapping_sub(node.first.seq) as i64), &mut out);
        if !same {
            write(Element::Int(fields as i64), &mut out);
        }
        for (name, value) in entry.fields {
            if !same {
                write(name, &mut out);
            }
            write(value, &mut out);
        }
        write(Element::Int(listpack_entries(fields, same)), &mut out);
    }
    out.push(END);
    let total = out.len() as u32;
    out[..4].copy_from_slice(&total.to_le_bytes());
    out[4..HEADER_BYTES].copy_from_slice(&(count.min(COUNT_UNKNOWN) as u16).to_le_bytes());
    out
}

/// A reader of an untrusted listpack.
struct Source<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Source<'b> {
    fn new(listpack: &'b [u8]) -> Result<Self, Corrupt> {
        let (header, _) = listpack.split_at_checked(HEADER_BYTES).ok_or(Corrupt)?;
        let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        if total as usize != listpack.len() || listpack.last() != Some(&END) || listpack.len() <= HEADER_BYTES {
            return Err(Corrupt);
        }
        Ok(Source { bytes: &listpack[..listpack.len() - 1], at: HEADER_BYTES })
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Returns the next entry. Checks that the entry's encoding is valid, that the entry lies
    /// within the listpack, and that the length at the entry's end is correct.
    fn next(&mut self) -> Result<Element<'b>, Corrupt> {
        let rest = &self.bytes[self.at..];
        let head = match rest.first().ok_or(Corrupt)? {
            0..=0xbf => 1,
            0xc0..=0xef => 2,
            0xf0 => 5,
            0xf1..=0xf4 => 1,
            _ => return Err(Corrupt),
        };
        if rest.len() < head {
            return Err(Corrupt);
        }
        let pack = <PackRef<'_>>::new(rest);
        let body = pack.body_len(0);
        let end = body.checked_add(end_length_bytes(body)).filter(|&end| end <= rest.len()).ok_or(Corrupt)?;
        let element = pack.get(0);
        if !ends_with_length(&rest[..end], body) {
            return Err(Corrupt);
        }
        self.at += end;
        Ok(element)
    }

    fn int(&mut self) -> Result<i64, Corrupt> {
        match self.next()? {
            Element::Int(value) => Ok(value),
            Element::Bytes(_) => Err(Corrupt),
        }
    }

    /// Reads a count of items. An item takes at least two bytes, so the count can't exceed the
    /// number of bytes.
    fn count(&mut self) -> Result<usize, Corrupt> {
        usize::try_from(self.int()?).ok().filter(|&count| count <= self.bytes.len()).ok_or(Corrupt)
    }
}

/// Returns the bytes of an element. For an integer, these are its text.
fn text_of<'b>(element: Element<'b>) -> std::borrow::Cow<'b, [u8]> {
    match element {
        Element::Bytes(bytes) => bytes.into(),
        Element::Int(_) => element.to_vec().into(),
    }
}

/// Returns the node of a listpack.
fn node_of(first: StreamId, listpack: &[u8]) -> Result<Node, Corrupt> {
    let mut source = Source::new(listpack)?;
    let live = u32::try_from(source.int()?).map_err(|_| Corrupt)?;
    let dead = u32::try_from(source.int()?).map_err(|_| Corrupt)?;
    let names = source.count()?;
    // Space is reserved name by name, because the count in a corrupt payload may be much larger
    // than the number of names that follow.
    let mut known = Vec::new();
    for _ in 0..names {
        known.try_reserve(1).map_err(|_| Corrupt)?;
        known.push(text_of(source.next()?));
    }
    if source.int()? != 0 {
        return Err(Corrupt);
    }
    let room_bytes = room_for(names, listpack.len());
    let mut node = Node::new(first, known.iter().map(|name| &**name), room_bytes).map_err(|_| Corrupt)?;
    let (mut deleted, mut last_live) = (Vec::new(), None);
    while !source.is_at_end() {
        let flags = source.int()?;
        let ms = source.int()? as u64;
        let seq = source.int()? as u64;
        let id = StreamId { ms: first.ms.wrapping_add(ms), seq: first.seq.wrapping_add(seq) };
        let is_deleted = flags & FLAG_DELETED != 0;
        let rises = is_deleted || last_live.is_none_or(|last| last < id);
        if flags & !(FLAG_DELETED | FLAG_SAME_FIELDS) != 0 || !rises {
            return Err(Corrupt);
        }
        let same = flags & FLAG_SAME_FIELDS != 0;
        let fields = if same { names } else { source.count()? };
        let mut pairs = Vec::new();
        let mut names = known.iter().filter(|_| same);
        for _ in 0..fields {
            let name = names.next().cloned().map_or_else(|| source.next().map(text_of), Ok)?;
            pairs.try_reserve(1).map_err(|_| Corrupt)?;
            pairs.push((name, text_of(source.next()?)));
        }
        if source.int()? != listpack_entries(fields, same) {
            return Err(Corrupt);
        }
        let texts = pairs.iter().map(|(name, value)| (&**name, &**value));
        if is_deleted {
            deleted.push(node.end_place());
        } else {
            last_live = Some(id);
        }
        node.append(id, texts, 0).map_err(|_| Corrupt)?;
    }
    let is_empty = node.live == 0;
    for place in deleted {
        node.delete(place);
    }
    // The id of a live entry must not exceed the last id of the node, because ranges rely on it.
    let is_beyond = last_live.is_some_and(|last| last > node.last);
    if is_empty || is_beyond || (node.live, node.dead) != (live, dead) {
        return Err(Corrupt);
    }
    Ok(node)
}
