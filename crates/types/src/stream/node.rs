//! A node of a stream: up to `stream-node-max-entries` entries in one byte string.
//!
//! Redis stores a node as a listpack: a master entry with the field names of the first entry, and
//! entries whose ids are differences from the master entry's id. The form used here is denser. An
//! id is stored as the difference from the id of the previous entry, which in most streams fits in
//! the entry's first byte. A node can't be read backwards, so a reverse range first walks each node
//! forwards.
//!
//! ```text
//! names       count (varint), then that many elements
//! entry       head: code of the id (6 bits), same fields (1 bit), deleted (1 bit)
//!             operands of the code (varints)
//!             same fields:  values, as many as names
//!             other fields: count (varint), then field, value, field, value …
//! ```
//!
//! In the table, `-` in an id separates its two parts, as in Redis.
//!
//! | code | id, if the previous entry has the id `ms-seq` | operands |
//! | --- | --- | --- |
//! | 0 to 29 | `ms-(seq + 1 + code)` | none |
//! | 30 to 59 | `(ms + code - 29)-0` | none |
//! | 60 | `ms-(seq + 1 + n)` | n |
//! | 61 | `(ms + n)-0` | n |
//! | 62 | `(ms + n)-m` | n and m |
//!
//! The names of a node are the field names of its first entry. An entry with *same fields* has
//! exactly these fields. A field name or a value is encoded like an element of a pack that is only
//! read forwards ([`crate::pack`]).
//!
//! In most streams an entry takes 1 byte in addition to its data, and 1 more byte for each value.
//! In Redis it takes 9 bytes, and 2 more for each value.
//!
//! Ids ascend from entry to entry, with one exception: if `XSETID` has lowered the last id of a
//! stream, a deleted entry may have a higher id than the entry after it. A search for an id
//! therefore skips deleted entries. The id of a live entry never exceeds the last id of its node.
//!
//! Nodes start and end at the same entries as in Redis, because clients can observe this (`XTRIM
//! ~`, `XINFO STREAM`). A node therefore tracks the size that its listpack would have in Redis.

use super::id::StreamId;
use super::ordered::Keyed;
use crate::OutOfMemory;
use crate::pack::{Element, PackRef, end_length_bytes, integer_entry_bytes, write_body};

/// Size of a listpack's header (6) and end mark (1), in bytes.
const LISTPACK_FRAME_BYTES: usize = 7;
/// Size of the listpack entry that holds an entry's flags, in bytes.
const FLAGS_ENTRY_BYTES: usize = 2;

const DELETED: u8 = 1;
const SAME_FIELDS: u8 = 2;
const CODE_SHIFT: u32 = 2;

const SEQ_CODES: u64 = 30;
const MS_CODES: u64 = 30;
const CODE_SEQ: u8 = 60;
const CODE_MS: u8 = 61;
const CODE_BOTH: u8 = 62;
/// Maximum size of a head and two varints, in bytes.
const ENTRY_HEAD_BYTES_MAX: usize = 1 + 2 * 10;

/// A node, as described at the head of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Redis's master id: the id of the first entry that the node ever had.
    pub(super) first: StreamId,
    /// Id of the last entry, including deleted ones.
    pub(super) last: StreamId,
    bytes: Vec<u8>,
    /// Number of live entries.
    pub(super) live: u32,
    /// Number of entries marked as deleted.
    pub(super) dead: u32,
    /// Size in bytes that the node's listpack would have in Redis, without its header and without
    /// its first two elements, which count the live and the deleted entries.
    listpack_bytes: u32,
}

impl Keyed for Node {
    #[inline]
    fn key(&self) -> StreamId {
        self.first
    }
}

/// An entry of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'n> {
    pub(super) id: StreamId,
    pub(super) deleted: bool,
    /// Position of the entry's head.
    at: usize,
    pub(super) fields: Fields<'n>,
}

/// An iterator over the fields of an entry and their values, in order.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'n> {
    node: PackRef<'n>,
    /// Position of the next name, if the entry has the node's names.
    name_at: usize,
    at: usize,
    left: usize,
    pub(super) same: bool,
}

impl Fields<'_> {
    /// Returns the number of remaining fields.
    pub fn len(&self) -> usize {
        self.left
    }

    /// Returns whether no fields remain.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'n> Iterator for Fields<'n> {
    type Item = (Element<'n>, Element<'n>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let names_at = if self.same { &mut self.name_at } else { &mut self.at };
        let name = self.node.get(*names_at);
        *names_at += self.node.body_len(*names_at);
        let value = self.node.get(self.at);
        self.at += self.node.body_len(self.at);
        Some((name, value))
    }
}

/// An iterator over the entries of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'n> {
    node: PackRef<'n>,
    names: usize,
    names_at: usize,
    at: usize,
    previous: StreamId,
}

impl<'n> Reader<'n> {
    /// Returns a reader that starts at the position of an entry, given the id of the previous
    /// entry. Without `at`, the reader starts at the first entry.
    fn new(node: &'n Node, at: Option<(usize, StreamId)>) -> Self {
        let (names, names_at) = read_varint(&node.bytes, 0);
        let pack = <PackRef<'_>>::new(&node.bytes);
        let names = names as usize;
        let (at, previous) = at.unwrap_or_else(|| {
            let at = (0..names).fold(names_at, |at, _| at + pack.body_len(at));
            (at, before_first(node.first))
        });
        Reader { node: pack, names, names_at, at, previous }
    }

    /// Returns the position of the next entry.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Skips the contents of an entry. Returns the position of the contents and the number of
    /// fields.
    #[inline]
    fn skip_contents(&mut self, same: bool) -> (usize, usize) {
        let count = if same {
            self.names
        } else {
            let (count, at) = read_varint(self.node.as_bytes(), self.at);
            self.at = at;
            count as usize
        };
        let start = self.at;
        for _ in 0..if same { count } else { 2 * count } {
            self.at += self.node.body_len(self.at);
        }
        (start, count)
    }
}

impl<'n> Iterator for Reader<'n> {
    type Item = Entry<'n>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'n>> {
        let bytes = self.node.as_bytes();
        let at = self.at;
        let head = *bytes.get(at)?;
        self.at += 1;
        let StreamId { ms, seq } = self.previous;
        let code = head >> CODE_SHIFT;
        let mut varint = || {
            let (value, next) = read_varint(bytes, self.at);
            self.at = next;
            value
        };
        let id = match code {
            CODE_SEQ => StreamId { ms, seq: seq.wrapping_add(1).wrapping_add(varint()) },
            CODE_MS => StreamId { ms: ms.wrapping_add(varint()), seq: 0 },
            CODE_BOTH => StreamId { ms: ms.wrapping_add(varint()), seq: varint() },
            _ if u64::from(code) < SEQ_CODES => StreamId { ms, seq: seq.wrapping_add(1 + u64::from(code)) },
            _ => StreamId { ms: ms.wrapping_add(u64::from(code) - SEQ_CODES + 1), seq: 0 },
        };
        self.previous = id;
        let same = head & SAME_FIELDS != 0;
        let (start, left) = self.skip_contents(same);
        let fields = Fields { node: self.node, name_at: self.names_at, at: start, left, same };
        Some(Entry { id, deleted: head & DELETED != 0, at, fields })
    }
}

/// Returns the initial [`Node::last`] of a new node whose first entry has the id `first`: the id
/// before it, so that `first` gets the code 0.
fn before_first(first: StreamId) -> StreamId {
    StreamId { ms: first.ms, seq: first.seq.wrapping_sub(1) }
}

impl Node {
    /// Returns a node without entries, with these field names.
    ///
    /// # Errors
    /// If `room_bytes` can't be allocated.
    pub(super) fn new<'f>(
        first: StreamId,
        names: impl ExactSizeIterator<Item = &'f [u8]>,
        room_bytes: usize,
    ) -> Result<Node, OutOfMemory> {
        let mut bytes = Vec::new();
        bytes.try_reserve(room_bytes).map_err(|_| OutOfMemory)?;
        let mut listpack_bytes = integer_entry_bytes(names.len() as i64) + integer_entry_bytes(0);
        write_varint(names.len() as u64, &mut bytes);
        for name in names {
            listpack_bytes += write_element(name, &mut bytes);
        }
        let listpack_bytes = listpack_bytes as u32;
        Ok(Node { first, last: before_first(first), bytes, live: 0, dead: 0, listpack_bytes })
    }

    /// Appends an entry. The id must be greater than the ids of all live entries, unless the caller
    /// deletes the new entry afterwards.
    ///
    /// # Errors
    /// If `room_bytes` can't be allocated. The node is then unchanged.
    pub(super) fn append<'f>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'f [u8], &'f [u8])> + Clone,
        room_bytes: usize,
    ) -> Result<(), OutOfMemory> {
        self.bytes.try_reserve(room_bytes).map_err(|_| OutOfMemory)?;
        let count = fields.len();
        let same = self.has_names(fields.clone().map(|(name, _)| name));
        self.write_head(id, same);
        let mut listpack_bytes = FLAGS_ENTRY_BYTES
            + integer_entry_bytes(id.ms.wrapping_sub(self.first.ms) as i64)
            + integer_entry_bytes(id.seq.wrapping_sub(self.first.seq) as i64);
        if same {
            for (_, value) in fields {
                listpack_bytes += write_element(value, &mut self.bytes);
            }
        } else {
            listpack_bytes += integer_entry_bytes(count as i64);
            write_varint(count as u64, &mut self.bytes);
            for (name, value) in fields {
                listpack_bytes += write_element(name, &mut self.bytes);
                listpack_bytes += write_element(value, &mut self.bytes);
            }
        }
        listpack_bytes += integer_entry_bytes(listpack_entries(count, same));
        self.listpack_bytes += listpack_bytes as u32;
        self.last = id;
        self.live += 1;
        Ok(())
    }

    /// Returns whether the field names of an entry equal those of the node.
    fn has_names<'f>(&self, mut names: impl ExactSizeIterator<Item = &'f [u8]>) -> bool {
        let (count, mut at) = read_varint(&self.bytes, 0);
        let pack = <PackRef<'_>>::new(&self.bytes);
        count == names.len() as u64
            && names.all(|name| {
                let known = pack.get(at);
                at += pack.body_len(at);
                known == Element::of(name)
            })
    }

    fn write_head(&mut self, id: StreamId, same: bool) {
        let previous = self.last;
        let ms = id.ms.wrapping_sub(previous.ms);
        let seq = id.seq.wrapping_sub(previous.seq).wrapping_sub(1);
        let (code, first, second) = match (ms, id.seq) {
            (0, _) if seq < SEQ_CODES => (seq as u8, None, None),
            (0, _) => (CODE_SEQ, Some(seq), None),
            (1..=MS_CODES, 0) => ((SEQ_CODES + ms - 1) as u8, None, None),
            (_, 0) => (CODE_MS, Some(ms), None),
            _ => (CODE_BOTH, Some(ms), Some(id.seq)),
        };
        let same = if same { SAME_FIELDS } else { 0 };
        self.bytes.push(code << CODE_SHIFT | same);
        for value in [first, second].into_iter().flatten() {
            write_varint(value, &mut self.bytes);
        }
    }

    /// Releases spare capacity. Called when a new node follows, because no more entries will be
    /// appended to this node.
    pub(super) fn seal(&mut self) {
        // Copies the bytes instead of shrinking the vector, because an allocator that shrinks a
        // block may keep up to twice the needed size.
        let mut exact = Vec::new();
        if exact.try_reserve_exact(self.bytes.len()).is_ok() {
            exact.extend_from_slice(&self.bytes);
            self.bytes = exact;
        }
    }

    /// Returns the size of the node's heap memory in bytes.
    pub(super) fn allocated_bytes(&self) -> usize {
        pantala_base::block_bytes(self.bytes.capacity())
    }

    /// Returns the size that the node's listpack would have in Redis, in bytes.
    pub(super) fn listpack_len_bytes(&self) -> usize {
        let counts = integer_entry_bytes(i64::from(self.live)) + integer_entry_bytes(i64::from(self.dead));
        LISTPACK_FRAME_BYTES + counts + self.listpack_bytes as usize
    }

    /// Returns the field names of the node's first entry.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = Element<'_>> {
        let (count, mut at) = read_varint(&self.bytes, 0);
        let pack = <PackRef<'_>>::new(&self.bytes);
        (0..count as usize).map(move |_| {
            let name = pack.get(at);
            at += pack.body_len(at);
            name
        })
    }

    /// Iterates over all entries, including deleted ones.
    pub(super) fn entries(&self) -> Reader<'_> {
        Reader::new(self, None)
    }

    /// Iterates over the entries, starting at a position from [`Reader::position`]. `previous` is
    /// the id of the entry before this position.
    pub(super) fn entries_from(&self, position: usize, previous: StreamId) -> Reader<'_> {
        Reader::new(self, Some((position, previous)))
    }

    /// Returns the place that the next appended entry will have.
    pub(super) fn end_place(&self) -> EntryPlace {
        EntryPlace(self.bytes.len())
    }

    /// Marks a live entry of this node as deleted.
    pub(super) fn delete(&mut self, place: EntryPlace) {
        self.bytes[place.0] |= DELETED;
        self.live -= 1;
        self.dead += 1;
    }
}

/// The position of an entry in its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryPlace(usize);

impl Entry<'_> {
    pub(super) fn place(&self) -> EntryPlace {
        EntryPlace(self.at)
    }
}

/// Returns how many listpack entries a stream entry takes, excluding the listpack entry that holds
/// this number.
pub(super) fn listpack_entries(fields: usize, same: bool) -> i64 {
    // Flags and the two parts of the id.
    3 + if same { fields as i64 } else { 2 * fields as i64 + 1 }
}

/// Appends an element. Returns the number of bytes that the element takes in a listpack.
#[inline]
fn write_element(text: &[u8], out: &mut Vec<u8>) -> usize {
    let start = out.len();
    write_body(Element::of(text), out);
    let body = out.len() - start;
    body + end_length_bytes(body)
}

/// Returns the maximum size of an entry with this number of field names and values, which have
/// `argument_bytes` bytes in total. The result also bounds the size of the names of a new node.
/// Callers reserve this size before they append the entry or the names.
pub(super) fn room_for(arguments: usize, argument_bytes: usize) -> usize {
    /// Maximum size of an element's head, or of a varint.
    const ELEMENT_HEAD_BYTES_MAX: usize = 10;
    ENTRY_HEAD_BYTES_MAX + (arguments + 1) * ELEMENT_HEAD_BYTES_MAX + argument_bytes
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a varint. Returns the number and the position after the varint.
#[inline]
fn read_varint(bytes: &[u8], mut at: usize) -> (u64, usize) {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[at];
        at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return (value, at);
        }
        shift += 7;
    }
}
