//! A node of a quicklist: entries of a pack with room at both ends.
//!
//! ```text
//! 0        start                       bytes.len()      capacity
//! │  room  │  entries, as in a pack    │      room      │
//! ```
//!
//! Redis's node is a listpack, whose entries all move when one comes or goes at its front. Here a push or a pop at either
//! end moves nothing, at the price of two numbers per node: LPUSH with RPOP, and RPUSH with LPOP, are what lists are for.
//!
//! A node far from both ends may be *compressed* (`list-compress-depth`): its bytes are then the length of its entries (4 bytes) and
//! their LZF form. It has to be decompressed before it is changed; who reads it decompresses into memory of its own.

use crate::lzf;
use crate::pack::{Element, Encoded, PackRef, TwoWay, splice_entry};

/// The first room of a node that is pushed to, bytes.
const FIRST_ROOM_BYTES: usize = 512;

/// Below this a node's room isn't worth giving back.
const SHRINK_BYTES_MIN: usize = 1024;

/// Below this a node isn't worth compressing, and so many bytes it has to save (Redis's `MIN_COMPRESS_BYTES` and
/// `MIN_COMPRESS_IMPROVE`).
const COMPRESSED_BYTES_MIN: usize = 48;
const SAVED_BYTES_MIN: usize = 8;

/// [`Node::start`] of a compressed node.
const COMPRESSED: u32 = u32::MAX;

/// Bytes of the length in front of a compressed node's.
const LENGTH_BYTES: usize = 4;

/// How much a node may hold (`list-max-listpack-size`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimit {
    /// Bytes of its entries. One entry that is larger has a node of its own.
    pub bytes: usize,
    /// Entries, at least 1.
    pub entries: usize,
    /// An element of that many bytes has a node of its own, whatever the others allow
    /// (`DEBUG QUICKLIST-PACKED-THRESHOLD`).
    pub alone_bytes: usize,
    /// How many nodes at either end of a list that is made now stay uncompressed (`list-compress-depth`); 0: all.
    pub plain_depth: u32,
}

/// [`NodeLimit::alone_bytes`] unless it is set: Redis's, which its nodes' size can't go beyond.
pub const ALONE_BYTES_DEFAULT: usize = 1 << 30;

impl NodeLimit {
    /// The limit that a value of `list-max-listpack-size` means: -1 to -5 are 4 to 64 KiB; positive: that many entries, and at
    /// most 8 KiB.
    pub fn of_setting(setting: i32) -> Self {
        let any = NodeLimit { bytes: 8192, entries: usize::MAX, alone_bytes: ALONE_BYTES_DEFAULT, plain_depth: 0 };
        match setting {
            ..0 => {
                let step = setting.max(-5).unsigned_abs() - 1;
                NodeLimit { bytes: 4096 << step, ..any }
            }
            _ => NodeLimit { entries: setting.clamp(1, 1 << 15) as usize, ..any },
        }
    }
}

/// See the head of this module.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    bytes: Vec<u8>,
    start: u32,
    count: u32,
}

impl Node {
    /// A node of the entries of a pack.
    pub(super) fn from_pack(pack: PackRef<'_>) -> Self {
        let entries = pack.entries();
        let mut bytes = Vec::with_capacity(entries.len() * 2);
        bytes.extend_from_slice(entries);
        Node { bytes, start: 0, count: pack.len() as u32 }
    }

    /// Entries.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// Bytes of its entries, which it may hold compressed.
    #[inline]
    pub(super) fn entry_bytes(&self) -> usize {
        if self.is_compressed() { self.length() } else { self.bytes.len() - self.start as usize }
    }

    /// Whether its entries are compressed: then nothing else but [`Self::with_entries`] shows them.
    #[inline]
    pub(super) fn is_compressed(&self) -> bool {
        self.start == COMPRESSED
    }

    /// Bytes of the entries of a compressed node.
    fn length(&self) -> usize {
        self.bytes.first_chunk::<LENGTH_BYTES>().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
    }

    /// Compresses the entries, where that saves something.
    #[cold]
    pub(super) fn compress(&mut self) {
        let len = if self.is_compressed() { 0 } else { self.entry_bytes() };
        let Ok(len_written) = u32::try_from(len) else { return };
        if len < COMPRESSED_BYTES_MIN {
            return;
        }
        let mut packed = Vec::with_capacity(len - SAVED_BYTES_MIN);
        packed.extend_from_slice(&len_written.to_le_bytes());
        let bytes_max = len - SAVED_BYTES_MIN - LENGTH_BYTES;
        if lzf::compress(&self.bytes[self.first()..], &mut packed, bytes_max) {
            self.bytes = packed.as_slice().to_vec();
            self.start = COMPRESSED;
        }
    }

    /// Undoes [`Self::compress`].
    #[cold]
    pub(super) fn decompress(&mut self) {
        if self.is_compressed() {
            self.bytes = self.decompressed();
            self.start = 0;
        }
    }

    /// The entries of a compressed node.
    fn decompressed(&self) -> Vec<u8> {
        lzf::decompress(self.bytes.get(LENGTH_BYTES..).unwrap_or_default(), self.length())
            .expect("`compress` wrote these bytes, with their length")
    }

    /// Shows the entries as a pack without its count, with the positions of the first and of the end.
    #[inline]
    pub(super) fn with_entries<R>(&self, work: impl FnOnce(PackRef<'_>, usize, usize) -> R) -> R {
        if self.is_compressed() {
            let entries = self.decompressed();
            return work(PackRef::new(&entries), 0, entries.len());
        }
        work(self.pack(), self.first(), self.end())
    }

    /// Bytes of heap it takes.
    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// To be read, by positions from [`Self::first`] to [`Self::end`]. The pack's own count is not there.
    #[inline]
    pub(super) fn pack(&self) -> PackRef<'_> {
        debug_assert!(!self.is_compressed(), "a node is decompressed before it is looked into");
        PackRef::new(&self.bytes)
    }

    /// Position of the first entry.
    #[inline]
    pub(super) fn first(&self) -> usize {
        self.start as usize
    }

    /// The end.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Whether one more entry of that many bytes may come in.
    #[inline]
    pub(super) fn has_room(&self, entry_bytes: usize, limit: NodeLimit) -> bool {
        self.count == 0
            || self.entry_bytes() + entry_bytes <= limit.bytes
                && self.len() < limit.entries
                && entry_bytes < limit.alone_bytes
                && !(self.count == 1 && self.entry_bytes() >= limit.alone_bytes)
    }

    /// Adds an entry at the end.
    #[inline]
    pub(super) fn push_back(&mut self, entry: &Encoded<'_>, limit: NodeLimit) {
        let (len, size) = (self.bytes.len(), entry.len());
        if len + size > self.bytes.capacity() {
            self.make_room_behind(size, limit);
        }
        let len = self.bytes.len();
        self.bytes.resize(len + size, 0);
        entry.write(&mut self.bytes[len..]);
        self.count += 1;
    }

    /// Adds an entry at the front.
    #[inline]
    pub(super) fn push_front(&mut self, entry: &Encoded<'_>, limit: NodeLimit) {
        let size = entry.len();
        if size > self.first() {
            self.make_room_before(size, limit);
        }
        let start = self.first() - size;
        entry.write(&mut self.bytes[start..start + size]);
        self.start = start as u32;
        self.count += 1;
    }

    /// Takes the first entry out.
    #[inline]
    pub(super) fn pop_front(&mut self) {
        self.start = self.pack().next(self.first()) as u32;
        self.count -= 1;
        self.give_back();
    }

    /// Takes the last entry out.
    #[inline]
    pub(super) fn pop_back(&mut self) {
        let at = self.pack().previous(self.end());
        self.bytes.truncate(at);
        self.count -= 1;
        self.give_back();
    }

    /// The position of an entry.
    pub(super) fn nth(&self, index: usize) -> usize {
        nth(self.pack(), self.first(), self.end(), self.len(), index)
    }

    /// Adds an entry before a position.
    pub(super) fn insert(&mut self, at: usize, element: Element<'_>) {
        splice_entry::<TwoWay>(&mut self.bytes, at, at, Some(element));
        self.count += 1;
    }

    /// Puts another entry in place of the one at a position.
    pub(super) fn replace(&mut self, at: usize, element: Element<'_>) {
        let end = self.pack().next(at);
        splice_entry::<TwoWay>(&mut self.bytes, at, end, Some(element));
        self.give_back();
    }

    /// Takes `count` entries out, those from one position to another.
    pub(super) fn remove(&mut self, from: usize, to: usize, count: usize) {
        if from == self.first() {
            self.start = to as u32;
        } else {
            self.bytes.drain(from..to);
        }
        self.count -= count as u32;
        self.give_back();
    }

    /// Cuts the node at a position; gives the `count` entries from there on as a node of their own.
    pub(super) fn split_off(&mut self, at: usize, count: usize) -> Node {
        let tail = Node { bytes: self.bytes[at..].to_vec(), start: 0, count: count as u32 };
        self.bytes.truncate(at);
        self.count -= count as u32;
        self.settle();
        tail
    }

    /// Adds all entries of another node at the end.
    pub(super) fn append(&mut self, other: &Node) {
        self.bytes.extend_from_slice(&other.bytes[other.first()..]);
        self.count += other.count;
    }

    /// Gives back room that it won't need: nothing is pushed to it any more.
    pub(super) fn settle(&mut self) {
        /// One in so many bytes may stay unused: a copy costs more than they are worth.
        const UNUSED_SHARE: usize = 8;
        let live = self.entry_bytes();
        if self.bytes.capacity() - live > live / UNUSED_SHARE {
            self.bytes = self.bytes[self.first()..].to_vec();
            self.start = 0;
        }
    }

    /// A copy without room.
    pub(super) fn copy(&self) -> Result<Node, crate::OutOfMemory> {
        let mut bytes = Vec::new();
        if self.is_compressed() {
            bytes.try_reserve_exact(self.bytes.len())?;
            bytes.extend_from_slice(&self.bytes);
            return Ok(Node { bytes, ..*self });
        }
        bytes.try_reserve_exact(self.entry_bytes())?;
        bytes.extend_from_slice(&self.bytes[self.first()..]);
        Ok(Node { bytes, start: 0, count: self.count })
    }

    /// After entries went: gives room back when most of it is unused. Each byte that is copied stands for several that went.
    #[inline]
    fn give_back(&mut self) {
        let capacity = self.bytes.capacity();
        if capacity >= SHRINK_BYTES_MIN && self.entry_bytes() < capacity / 4 {
            self.reallocate(capacity / 2);
        }
    }

    /// Moves the entries into memory of another size, with the room shared between the ends.
    #[cold]
    fn reallocate(&mut self, capacity: usize) {
        let mut bytes = Vec::with_capacity(capacity);
        let live = &self.bytes[self.first()..];
        // Which end the next entry comes to isn't known; the other's room isn't lost, it only costs one more move.
        let start = (capacity - live.len().min(capacity)) / 2;
        bytes.resize(start, 0);
        bytes.extend_from_slice(live);
        self.bytes = bytes;
        self.start = start as u32;
    }

    #[cold]
    fn make_room_behind(&mut self, size: usize, limit: NodeLimit) {
        let live = self.entry_bytes();
        if self.first() >= live.max(size) {
            // A queue that goes round in one node: as many bytes went in front as are left.
            self.bytes.drain(..self.start as usize);
            self.start = 0;
            return;
        }
        let capacity = grown(live, size, limit);
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(&self.bytes[self.first()..]);
        self.bytes = bytes;
        self.start = 0;
    }

    #[cold]
    fn make_room_before(&mut self, size: usize, limit: NodeLimit) {
        let live = self.entry_bytes();
        let capacity = self.bytes.capacity();
        // The room behind, where it is as large as what is there; else more.
        let capacity = if capacity >= 2 * live + size { capacity } else { grown(live, size, limit) };
        let start = capacity - live;
        let mut bytes = vec![0; capacity];
        bytes[start..].copy_from_slice(&self.bytes[self.first()..]);
        self.bytes = bytes;
        self.start = start as u32;
    }
}

/// The capacity of a node that has `live` bytes and gets `size` more: twice as much, but not more than a full node has.
fn grown(live: usize, size: usize, limit: NodeLimit) -> usize {
    let doubled = (2 * (live + size)).max(FIRST_ROOM_BYTES);
    doubled.min(limit.bytes).max(live + size)
}

/// The position of entry `index` (below `len`) of those from `first` to `end`, from the nearer end.
pub(super) fn nth(pack: PackRef<'_>, first: usize, end: usize, len: usize, index: usize) -> usize {
    if index <= len / 2 {
        (0..index).fold(first, |at, _| pack.next(at))
    } else {
        (index..len).fold(end, |at, _| pack.previous(at))
    }
}
