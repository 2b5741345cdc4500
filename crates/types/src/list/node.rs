//! A node of a quicklist: the entries of a pack, with free space at both ends.
//!
//! ```text
//! 0        start                       bytes.len()      capacity
//! │  free  │  entries, as in a pack    │      free      │
//! ```
//!
//! In Redis, a node is a listpack, so a change at the front moves all entries. Here, a push or pop
//! at either end usually moves no entry. This takes two more numbers per node, and pays because
//! most lists are used as queues.
//!
//! A node far from both ends of the list may be *compressed* (`list-compress-depth`). Its bytes are
//! then the uncompressed length of the entries (4 bytes), followed by the entries in LZF form. A
//! change must decompress the node first. A reader decompresses the entries into a temporary
//! buffer.

use crate::lzf;
use crate::pack::{Element, Encoded, PackRef, TwoWay, splice_entry};

/// Minimum capacity of a node that grows by a push, in bytes, unless the node's limit is less.
const FIRST_CAPACITY_BYTES: usize = 512;

/// Minimum capacity of a node that a removal shrinks, in bytes.
const SHRINK_BYTES_MIN: usize = 1024;

/// Minimum size of a node worth compressing, in bytes (Redis's `MIN_COMPRESS_BYTES`).
const COMPRESSED_BYTES_MIN: usize = 48;
/// Minimum saving by compression, in bytes (Redis's `MIN_COMPRESS_IMPROVE`).
const SAVED_BYTES_MIN: usize = 8;

/// The value of [`Node::start`] in a compressed node.
const COMPRESSED: u32 = u32::MAX;

/// Bytes of the length at the start of a compressed node.
const LENGTH_BYTES: usize = 4;

/// The limits of a node (`list-max-listpack-size`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimit {
    /// Maximum size of all entries of a node, in bytes. A larger entry is alone in its node.
    pub bytes: usize,
    /// Maximum number of entries, at least 1.
    pub entries: usize,
    /// An element of at least this many bytes is alone in its node, regardless of `bytes` and
    /// `entries` (`DEBUG QUICKLIST-PACKED-THRESHOLD`).
    pub alone_bytes: usize,
    /// Number of nodes at each end of a new list that stay uncompressed (`list-compress-depth`). 0
    /// disables compression.
    pub plain_depth: u32,
}

/// Default of [`NodeLimit::alone_bytes`]: Redis's default, which is larger than any node.
pub const ALONE_BYTES_DEFAULT: usize = 1 << 30;

impl NodeLimit {
    /// Returns the limits for a value of `list-max-listpack-size`. -1 to -5 mean 4 to 64 KiB. A
    /// positive value is the maximum number of entries, in nodes of at most 8 KiB.
    pub fn from_setting(setting: i32) -> Self {
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

/// The node described at the head of this module.
#[derive(Clone, Debug, Default)]
pub(super) struct Node {
    bytes: Vec<u8>,
    start: u32,
    count: u32,
}

impl Node {
    /// Returns a node with the entries of a pack.
    pub(super) fn from_pack(pack: PackRef<'_>) -> Self {
        let entries = pack.entries();
        let mut bytes = Vec::with_capacity(entries.len() * 2);
        bytes.extend_from_slice(entries);
        Node { bytes, start: 0, count: pack.len() as u32 }
    }

    /// Returns the number of entries.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns the uncompressed size of all entries, in bytes.
    #[inline]
    pub(super) fn entry_bytes(&self) -> usize {
        if self.is_compressed() { self.uncompressed_len() } else { self.bytes.len() - self.start as usize }
    }

    /// Returns whether the entries are compressed. Only [`Self::with_entries`] can read compressed
    /// entries.
    #[inline]
    pub(super) fn is_compressed(&self) -> bool {
        self.start == COMPRESSED
    }

    /// Returns the uncompressed size of a compressed node, in bytes.
    fn uncompressed_len(&self) -> usize {
        self.bytes.first_chunk::<LENGTH_BYTES>().map_or(0, |bytes| u32::from_le_bytes(*bytes) as usize)
    }

    /// Compresses the entries if this saves at least [`SAVED_BYTES_MIN`] bytes.
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

    /// Decompresses the entries in place.
    #[cold]
    pub(super) fn decompress(&mut self) {
        if self.is_compressed() {
            self.bytes = self.decompressed();
            self.start = 0;
        }
    }

    /// Returns the entries of a compressed node.
    fn decompressed(&self) -> Vec<u8> {
        lzf::decompress(self.bytes.get(LENGTH_BYTES..).unwrap_or_default(), self.uncompressed_len())
            .expect("`compress` wrote these bytes and their length")
    }

    /// Passes the entries to `work` in three arguments: a pack (whose first two bytes don't contain
    /// the number of entries), the position of the first entry, and the position of the end.
    #[inline]
    pub(super) fn with_entries<R>(&self, work: impl FnOnce(PackRef<'_>, usize, usize) -> R) -> R {
        if self.is_compressed() {
            let entries = self.decompressed();
            return work(PackRef::new(&entries), 0, entries.len());
        }
        work(self.pack(), self.first(), self.end())
    }

    /// Returns the size of the node's heap memory in bytes.
    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        pantala_base::block_bytes(self.bytes.capacity())
    }

    /// Returns the entries as a pack, whose first two bytes don't contain the number of entries.
    /// The entries are at the positions from [`Self::first`] to [`Self::end`].
    #[inline]
    pub(super) fn pack(&self) -> PackRef<'_> {
        debug_assert!(!self.is_compressed(), "the node is compressed");
        PackRef::new(&self.bytes)
    }

    /// Returns the position of the first entry.
    #[inline]
    pub(super) fn first(&self) -> usize {
        self.start as usize
    }

    /// Returns the position after the last entry.
    #[inline]
    pub(super) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether an entry of this size may be added.
    #[inline]
    pub(super) fn has_room(&self, entry_bytes: usize, limit: NodeLimit) -> bool {
        self.count == 0
            || self.entry_bytes() + entry_bytes <= limit.bytes
                && self.len() < limit.entries
                && entry_bytes < limit.alone_bytes
                && !(self.count == 1 && self.entry_bytes() >= limit.alone_bytes)
    }

    /// Appends an entry.
    #[inline]
    pub(super) fn push_back(&mut self, entry: &Encoded<'_>, limit: NodeLimit) {
        let (len, size) = (self.bytes.len(), entry.len());
        if len + size > self.bytes.capacity() {
            self.grow_back(size, limit);
        }
        let len = self.bytes.len();
        self.bytes.resize(len + size, 0);
        entry.write(&mut self.bytes[len..]);
        self.count += 1;
    }

    /// Prepends an entry.
    #[inline]
    pub(super) fn push_front(&mut self, entry: &Encoded<'_>, limit: NodeLimit) {
        let size = entry.len();
        if size > self.first() {
            self.grow_front(size, limit);
        }
        let start = self.first() - size;
        entry.write(&mut self.bytes[start..start + size]);
        self.start = start as u32;
        self.count += 1;
    }

    /// Removes the first entry.
    #[inline]
    pub(super) fn pop_front(&mut self) {
        self.start = self.pack().next(self.first()) as u32;
        self.count -= 1;
        self.shrink();
    }

    /// Removes the last entry.
    #[inline]
    pub(super) fn pop_back(&mut self) {
        let at = self.pack().previous(self.end());
        self.bytes.truncate(at);
        self.count -= 1;
        self.shrink();
    }

    /// Returns the position of the entry with this index.
    pub(super) fn nth(&self, index: usize) -> usize {
        nth(self.pack(), self.first(), self.end(), self.len(), index)
    }

    /// Inserts an entry before a position.
    pub(super) fn insert(&mut self, at: usize, element: Element<'_>) {
        splice_entry::<TwoWay>(&mut self.bytes, at, at, Some(element));
        self.count += 1;
    }

    /// Replaces the entry at a position.
    pub(super) fn replace(&mut self, at: usize, element: Element<'_>) {
        let end = self.pack().next(at);
        splice_entry::<TwoWay>(&mut self.bytes, at, end, Some(element));
        self.shrink();
    }

    /// Removes the `count` entries between two positions.
    pub(super) fn remove(&mut self, from: usize, to: usize, count: usize) {
        if from == self.first() {
            self.start = to as u32;
        } else {
            self.bytes.drain(from..to);
        }
        self.count -= count as u32;
        self.shrink();
    }

    /// Splits the node at a position. Returns the last `count` entries as a node.
    pub(super) fn split_off(&mut self, at: usize, count: usize) -> Node {
        let tail = Node { bytes: self.bytes[at..].to_vec(), start: 0, count: count as u32 };
        self.bytes.truncate(at);
        self.count -= count as u32;
        self.seal();
        tail
    }

    /// Appends all entries of another node.
    pub(super) fn append(&mut self, other: &Node) {
        self.bytes.extend_from_slice(&other.bytes[other.first()..]);
        self.count += other.count;
    }

    /// Releases free space. Called when nothing will be pushed to this node any more.
    pub(super) fn seal(&mut self) {
        /// Maximum unused memory, as a fraction of the entries' size (one eighth). Releasing less
        /// isn't worth the copy.
        const UNUSED_SHARE: usize = 8;
        let live = self.entry_bytes();
        if self.bytes.capacity() - live > live / UNUSED_SHARE {
            self.bytes = self.bytes[self.first()..].to_vec();
            self.start = 0;
        }
    }

    /// Returns a copy without free space.
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

    /// Shrinks the buffer after a removal if most of it is unused. The amortized cost of a removal
    /// is constant, because at least one byte was removed for each byte that is copied now.
    #[inline]
    fn shrink(&mut self) {
        let capacity = self.bytes.capacity();
        if capacity >= SHRINK_BYTES_MIN && self.entry_bytes() < capacity / 4 {
            self.reallocate(capacity / 2);
        }
    }

    /// Moves the entries into a buffer of another size, with equal free space at both ends.
    #[cold]
    fn reallocate(&mut self, capacity: usize) {
        let mut bytes = Vec::with_capacity(capacity);
        let live = &self.bytes[self.first()..];
        // The next push may be at either end. If that end lacks free space, the push moves the
        // entries once more.
        let start = (capacity - live.len().min(capacity)) / 2;
        bytes.resize(start, 0);
        bytes.extend_from_slice(live);
        self.bytes = bytes;
        self.start = start as u32;
    }

    #[cold]
    fn grow_back(&mut self, size: usize, limit: NodeLimit) {
        let live = self.entry_bytes();
        if self.first() >= live.max(size) {
            // Here at least as many bytes were removed at the front as remain: the list serves as a
            // queue. So the entries are moved to the start of the buffer, and the buffer need not
            // grow.
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
    fn grow_front(&mut self, size: usize, limit: NodeLimit) {
        let live = self.entry_bytes();
        let capacity = self.bytes.capacity();
        // Keeps the capacity if the free space left after the push is at least as large as the
        // entries. Otherwise grows.
        let capacity = if capacity >= 2 * live + size { capacity } else { grown(live, size, limit) };
        let start = capacity - live;
        let mut bytes = vec![0; capacity];
        bytes[start..].copy_from_slice(&self.bytes[self.first()..]);
        self.bytes = bytes;
        self.start = start as u32;
    }
}

/// Returns the new capacity of a node that has `live` bytes of entries and must hold `size` more
/// bytes. The capacity is twice the needed size, but not more than the size of a full node.
fn grown(live: usize, size: usize, limit: NodeLimit) -> usize {
    let doubled = (2 * (live + size)).max(FIRST_CAPACITY_BYTES);
    doubled.min(limit.bytes).max(live + size)
}

/// Returns the position of entry `index` of the `len` entries from `first` to `end`, walking from
/// the nearer end. `index` is less than `len`.
pub(super) fn nth(pack: PackRef<'_>, first: usize, end: usize, len: usize, index: usize) -> usize {
    if index <= len / 2 {
        (0..index).fold(first, |at, _| pack.next(at))
    } else {
        (index..len).fold(end, |at, _| pack.previous(at))
    }
}
