//! The table of a dictionary: directory, segments, slab and counts. The directory leads from a hash
//! to a segment, a segment's buckets hold the slots of the entries, and the slab is the memory of
//! the entries. The table doesn't know the type of the values. [`crate::resize`] grows and shrinks
//! it.

use core::ptr::NonNull;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use pantala_base::numa::Node;

use crate::arena::{self, Root};
use crate::bucket::{Bucket, EXPIRES_BIT, SLOTS, address_of, tag_of, with_tag};
use crate::hash::hash_key;
use crate::memory::prefetch;
use crate::record::{Content, Kind, Record};
use crate::segment::Segment;
use crate::slab::Slab;
use crate::snapshot::{KeepRecord, Reason};

/// The directory of a dictionary without segments.
pub(crate) static NO_DIRECTORY: [AtomicU64; 1] = [AtomicU64::new(0)];
const ROOT_DEPTH_MASK: u64 = 63;

/// The result of a search: the key's slot, or a free place for it.
pub(crate) enum Probe {
    /// The slot of the key's record.
    Found(NonNull<AtomicU64>),
    /// The key is absent. Contains the bucket in which to insert the key, or `None` if there is no
    /// segment.
    Absent(Option<usize>),
}

/// The table described at the head of this module. The fields that a search reads come first.
#[repr(C)]
pub(crate) struct Table {
    pub(crate) directory: &'static [AtomicU64],
    /// The binary logarithm of the directory's number of words.
    pub(crate) depth: u32,
    /// Whether the root belongs to a group ([`crate::Roots`]), which frees it.
    pub(crate) is_root_borrowed: bool,
    /// Epoch of new records, and whether a snapshot runs: see [`crate::snapshot`].
    pub(crate) epoch: u8,
    pub(crate) root: &'static Root,
    /// Number of segments whose depth equals the directory's. If there are none, the directory can
    /// be halved.
    pub(crate) deepest: usize,
    pub(crate) len: usize,
    pub(crate) expiring: usize,
    /// Number of records that own memory outside the slab: heap payloads and large records.
    pub(crate) owning: usize,
    pub(crate) segment_bytes: usize,
    pub(crate) large_bytes: usize,
    pub(crate) slab: Slab,
    pub(crate) seed: u64,
    /// Slots of entries whose segment was full at the maximum directory depth. A segment can be
    /// full at this depth only if thousands of keys have the same top 24 bits of hash, which
    /// happens only with deliberately chosen keys.
    pub(crate) stash: Vec<AtomicU64>,
    /// Number of slots that the last insert moved.
    pub(crate) moved: usize,
    /// The keeper of the running snapshot, if any.
    pub(crate) keeper: Option<Box<dyn KeepRecord>>,
}

/// Returns the index of a hash's word in a directory of the given depth.
#[inline(always)]
pub(crate) fn directory_index(h: u64, depth: u32) -> usize {
    // Two shifts, because a single shift by 64 (for depth 0) isn't defined.
    (h >> 1 >> (63 - depth)) as usize
}

/// Decodes a root's word.
///
/// # Safety
///
/// `word` was published by a table at some time in this process.
#[inline(always)]
pub(crate) unsafe fn directory_of(word: u64) -> Option<(&'static [AtomicU64], u32)> {
    let depth = (word & ROOT_DEPTH_MASK) as u32;
    let start = NonNull::new(core::ptr::with_exposed_provenance_mut::<AtomicU64>((word & !ROOT_DEPTH_MASK) as usize))?;
    // SAFETY: address and depth were published together, for a block of this length. Blocks are
    // type-stable, so it still has this length. Atomic words may be shared at any time.
    Some((unsafe { core::slice::from_raw_parts(start.as_ptr(), 1 << depth) }, depth))
}

impl Table {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with_root(seed, arena::take_root(), false, Node::ANY)
    }

    pub(crate) fn with_root(seed: u64, root: &'static Root, is_root_borrowed: bool, node: Node) -> Self {
        Self {
            root,
            is_root_borrowed,
            epoch: 0,
            directory: &NO_DIRECTORY,
            depth: 0,
            deepest: 0,
            len: 0,
            expiring: 0,
            owning: 0,
            segment_bytes: 0,
            large_bytes: 0,
            slab: Slab::new(node),
            seed,
            stash: Vec::new(),
            moved: 0,
            keeper: None,
        }
    }

    /// Stores the directory's address and depth in the root, where hints find them. The store is a
    /// `Release`, so that a hint that loads the address also sees the words of the directory.
    pub(crate) fn publish_directory(&self) {
        let word = if core::ptr::eq(self.directory, &NO_DIRECTORY[..]) {
            0
        } else {
            let address = self.directory.as_ptr().expose_provenance() as u64;
            debug_assert!(address & ROOT_DEPTH_MASK == 0);
            address | u64::from(self.depth)
        };
        self.root.0.store(word, Release);
    }

    /// Returns the segment that holds the entries of a hash.
    #[inline(always)]
    pub(crate) fn segment(&self, h: u64) -> Option<Segment> {
        let index = directory_index(h, self.depth);
        debug_assert!(index < self.directory.len());
        // SAFETY: the directory has `2^depth` words, and the index has `depth` bits; a directory's
        // words are zero or made from segments.
        unsafe { Segment::from_word(self.directory.get_unchecked(index).load(Relaxed)) }
    }

    /// Stores a segment's word in all directory words that lead to it. `h` is any hash of the
    /// segment.
    pub(crate) fn publish_segment(&self, h: u64, segment: Segment) {
        let copies = 1_usize << (self.depth - segment.depth);
        let first = directory_index(h, self.depth) & !(copies - 1);
        for word in &self.directory[first..first + copies] {
            word.store(segment.word(), Release);
        }
    }

    /// Returns the record that a slot refers to.
    #[inline(always)]
    pub(crate) fn record(slot: NonNull<AtomicU64>) -> Record {
        // SAFETY: the callers pass slots in use of a table they hold, which are not zero.
        unsafe { Record::from_slot(slot.as_ref().load(Relaxed)) }
    }

    /// Looks up a key. With `COLD`, also prefetches the bucket after the home bucket. About one key
    /// in ten lies outside its home bucket, usually in the next one. Without the prefetch, a lookup
    /// of such a key would wait for memory twice: first for the home bucket, and then for the next
    /// bucket. Use `COLD = false` if the home bucket was prefetched before the lookup. Most lookups
    /// need only that bucket, and the prefetch of the next one would be wasted.
    #[inline(always)]
    pub(crate) fn probe<const COLD: bool>(&self, h: u64, key: &[u8]) -> Probe {
        let Some(segment) = self.segment(h) else { return Probe::Absent(None) };
        let tag = segment.tag(h);
        let mut bucket = segment.home(tag);
        if COLD {
            prefetch(segment.bucket(segment.next(bucket)));
        }
        loop {
            let line = segment.bucket(bucket);
            if let Some(slot) = Self::find_in(line, tag, key) {
                return Probe::Found(slot);
            }
            // Terminates: the load stays below one, so some bucket isn't full.
            if !line.is_full() {
                return match self.stash_find(key) {
                    Some(slot) => Probe::Found(slot),
                    None => Probe::Absent(Some(bucket)),
                };
            }
            bucket = segment.next(bucket);
        }
    }

    /// Looks up a key in one bucket.
    #[inline(always)]
    pub(crate) fn find_in(line: &Bucket, tag: u64, key: &[u8]) -> Option<NonNull<AtomicU64>> {
        // SAFETY: only the table's owner stores into its buckets, and the owner is in this call.
        for i in unsafe { line.matches(tag) } {
            let slot = line.load(i);
            // SAFETY: a slot that isn't zero leads to a record in use, which isn't written during
            // this call.
            if slot != 0 && unsafe { Record::from_slot(slot).has_key(key) } {
                return Some(NonNull::from(&line.slots[i]));
            }
        }
        None
    }

    #[inline(always)]
    fn stash_find(&self, key: &[u8]) -> Option<NonNull<AtomicU64>> {
        if self.stash.is_empty() { None } else { self.stash_search(key) }
    }

    #[cold]
    fn stash_search(&self, key: &[u8]) -> Option<NonNull<AtomicU64>> {
        // SAFETY: the stash holds slots in use.
        self.stash.iter().map(NonNull::from).find(|&slot| unsafe { Self::record(slot).has_key(key) })
    }

    /// Returns the slot of a key whose hash is `h`.
    pub(crate) fn find_by_hash(&self, h: u64) -> Option<NonNull<AtomicU64>> {
        let matches_hash = |slot: &&AtomicU64| {
            let word = slot.load(Relaxed);
            // SAFETY: a slot that isn't zero leads to a record in use, which isn't written during
            // this call.
            word != 0 && hash_key(self.seed, unsafe { Record::from_slot(word).key() }) == h
        };
        let segment = self.segment(h)?;
        let tag = segment.tag(h);
        let mut bucket = segment.home(tag);
        loop {
            let line = segment.bucket(bucket);
            // SAFETY: as in `find_in`.
            if let Some(slot) = unsafe { line.matches(tag) }.map(|i| &line.slots[i]).find(matches_hash) {
                return Some(NonNull::from(slot));
            }
            // Terminates as in `probe`.
            if !line.is_full() {
                return self.stash.iter().find(matches_hash).map(NonNull::from);
            }
            bucket = segment.next(bucket);
        }
    }

    /// Returns the current place of a slot. `slot` is the word that the caller loaded from it
    /// earlier. Finds the slot by the address of its record, because removals may have moved the
    /// slot since. Doesn't search the stash. As with [`Self::unhook`], only those bits of `h`
    /// matter that choose the segment and the tag.
    pub(crate) fn slot_of(&self, h: u64, slot: u64) -> Option<NonNull<AtomicU64>> {
        let segment = self.segment(h)?;
        let mut bucket = segment.home(segment.tag(h));
        for _ in 0..segment.buckets {
            let line = segment.bucket(bucket);
            if let Some(i) = (0..SLOTS).find(|&i| address_of(line.load(i)) == address_of(slot)) {
                return Some(NonNull::from(&line.slots[i]));
            }
            bucket = segment.next(bucket);
        }
        None
    }

    /// Returns the index of a slot in the stash, or `None` for a slot of a segment.
    fn stash_index(&self, slot: NonNull<AtomicU64>) -> Option<usize> {
        if self.stash.is_empty() {
            return None;
        }
        self.stash.iter().position(|s| core::ptr::eq(s, slot.as_ptr()))
    }

    /// Inserts a record for an absent key. `bucket` is the result of [`Self::probe`].
    pub(crate) fn insert(
        &mut self,
        h: u64,
        key: &[u8],
        bucket: Option<usize>,
        content: Content<'_>,
    ) -> NonNull<AtomicU64> {
        let record = Record::create(&mut self.slab, key, content);
        let slot = record.slot();
        self.moved = 0;
        self.len += 1;
        self.expiring += (slot & EXPIRES_BIT) as usize;
        self.count_owned(record, true);
        if let (Some(bucket), Some(segment)) = (bucket, self.segment(h))
            && segment.has_room()
        {
            return NonNull::from(segment.insert(bucket, with_tag(slot, segment.tag(h))));
        }
        match self.make_room(h) {
            Some(segment) => {
                let tag = segment.tag(h);
                NonNull::from(segment.insert(segment.room(segment.home(tag)), with_tag(slot, tag)))
            }
            None => {
                self.stash.push(AtomicU64::new(slot));
                NonNull::from(&self.stash[self.stash.len() - 1])
            }
        }
    }

    /// Empties a slot and returns its record. The record is still valid; the caller must pass it to
    /// [`Self::free`]. Uses only the bits of `h` that choose the segment and the tag.
    pub(crate) fn unhook(&mut self, h: u64, slot: NonNull<AtomicU64>) -> Record {
        self.before_change(slot, Reason::Removal);
        let record = Self::record(slot);
        self.len -= 1;
        self.expiring -= (record.slot() & EXPIRES_BIT) as usize;
        if let Some(index) = self.stash_index(slot) {
            self.stash.swap_remove(index);
        } else if let Some(segment) = self.segment(h) {
            let offset = slot.addr().get() - segment.lines.address();
            let bucket = offset / size_of::<Bucket>() - 1;
            segment.remove(bucket, offset / size_of::<u64>() % SLOTS);
            if segment.should_shrink() {
                self.shrink(h, segment);
            }
        }
        record
    }

    /// Frees a record's memory after [`Self::unhook`].
    pub(crate) fn free(&mut self, record: Record) {
        self.count_owned(record, false);
        // SAFETY: the record was in use until now, made in this slab, and nothing refers to it any
        // more.
        unsafe { record.free(&mut self.slab) };
    }

    /// Adds or subtracts the memory that a record owns outside the slab.
    fn count_owned(&mut self, record: Record, is_added: bool) {
        // SAFETY: the record is in use.
        let (shape, large) = unsafe { (record.shape(), record.is_large()) };
        if shape.kind != Kind::Heap && !large {
            return;
        }
        let large_bytes = if large { shape.allocated_bytes() } else { 0 };
        if is_added {
            self.owning += 1;
            self.large_bytes += large_bytes;
        } else {
            self.owning -= 1;
            self.large_bytes -= large_bytes;
        }
    }

    /// Changes a record with a function that may move it. Updates the slot and the counts.
    #[inline]
    pub(crate) fn change(
        &mut self,
        h: u64,
        slot: NonNull<AtomicU64>,
        reason: Reason,
        change: impl FnOnce(Record, &mut Slab) -> Record,
    ) {
        self.before_change(slot, reason);
        // SAFETY: a slot in use of this table; slots are only ever accessed as atomics.
        let slot_word = unsafe { slot.as_ref() };
        let old = slot_word.load(Relaxed);
        let record = Self::record(slot);
        self.count_owned(record, false);
        let record = change(record, &mut self.slab);
        self.count_owned(record, true);
        let new = with_tag(record.slot(), tag_of(old));
        if new == old {
            return;
        }
        slot_word.store(new, Relaxed);
        if (new ^ old) & EXPIRES_BIT != 0 {
            self.count_expiring(h, slot, new & EXPIRES_BIT != 0);
        }
    }

    /// Counts an entry that gained or lost its expiry.
    #[inline(never)]
    fn count_expiring(&mut self, h: u64, slot: NonNull<AtomicU64>, expires: bool) {
        let by = if expires { 1_i64 } else { -1 };
        self.expiring = self.expiring.wrapping_add_signed(by as isize);
        if self.stash_index(slot).is_none()
            && let Some(segment) = self.segment(h)
        {
            segment.set_expiring(segment.expiring().wrapping_add_signed(by));
        }
    }

    /// Iterates over all segments, each once, with the smallest hash that leads to it.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u64, Segment)> + '_ {
        let mut index = 0;
        core::iter::from_fn(move || {
            let word = self.directory.get(index)?.load(Relaxed);
            // SAFETY: a word of the directory.
            let segment = unsafe { Segment::from_word(word) }?;
            let h = if self.depth == 0 { 0 } else { (index as u64) << (64 - self.depth) };
            index += 1 << (self.depth - segment.depth);
            Some((h, segment))
        })
    }

    /// Frees the segments and the directory of an empty table. The table is then like a new one.
    pub(crate) fn release(&mut self) {
        debug_assert!(self.len == 0);
        self.free_segments();
        self.directory = &NO_DIRECTORY;
        (self.depth, self.deepest, self.segment_bytes) = (0, 0, 0);
        self.stash = Vec::new();
    }

    /// Frees the segments and the directory. The caller must not use them afterwards.
    fn free_segments(&mut self) {
        let segments: Vec<Segment> = self.segments().map(|(_, segment)| segment).collect();
        // The root is cleared first, so that hints don't prefetch freed memory. (Such a prefetch
        // would be useless, but sound.)
        self.root.0.store(0, Release);
        for segment in segments {
            segment.free(self.slab.node());
        }
        if !core::ptr::eq(self.directory, &NO_DIRECTORY[..]) {
            arena::free_block(self.directory);
        }
    }

    /// Visits every slot in use.
    pub(crate) fn for_each_slot(&self, visit: &mut dyn FnMut(u64)) {
        for (_, segment) in self.segments() {
            for bucket in 0..segment.buckets as usize {
                for slot in &segment.bucket(bucket).slots {
                    let word = slot.load(Relaxed);
                    if word == 0 {
                        break;
                    }
                    visit(word);
                }
            }
        }
        for slot in &self.stash {
            visit(slot.load(Relaxed));
        }
    }
}

impl Drop for Table {
    /// Frees the segments, the directory and the root. Doesn't free a root of a group, because the
    /// group frees it. [`crate::Dict`] has already dropped the heap values and freed the large
    /// records. The slab, which is dropped next, frees the records in its cells.
    fn drop(&mut self) {
        self.free_segments();
        if !self.is_root_borrowed {
            arena::free_root(self.root);
        }
    }
}
