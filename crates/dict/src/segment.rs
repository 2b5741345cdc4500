//! A segment: an open-addressing table over one range of hashes.
//!
//! A segment of local depth `d` holds the entries whose hashes start with the segment's prefix of
//! `d` bits. The next 16 bits of an entry's hash are the entry's tag. The tag, scaled from
//! `0..65536` to the number of buckets in use, gives the home bucket of the entry. Segments,
//! buckets and tags are thus all in the order of the hashes. A cursor is a position in the hash
//! range, so it stays valid when the segment grows, shrinks, splits or merges.
//!
//! An entry lies in its home bucket. If that bucket was full at the insert, the entry lies in the
//! next bucket that wasn't full, wrapping around. Line 0 is the header: word 0 counts the entries,
//! word 1 those with an expiry, and the others are unused.
//!
//! Only the dictionary's owner stores into a segment. All stores are atomic, and so are all loads
//! by hints (prefetches from other threads).

use core::sync::atomic::Ordering::Relaxed;

use pantala_base::numa::Node;

use crate::arena::{self, SEGMENT_LINES, SegmentLines};
use crate::bucket::{Bucket, EXPIRES_BIT, SLOTS, tag_of};
use crate::memory::{PAGE_BYTES, page_ceil};

/// Maximum number of buckets: all lines but the header. Miri uses few buckets, so that segments
/// split early.
pub(crate) const BUCKETS_MAX: usize = if cfg!(miri) { 7 } else { SEGMENT_LINES - 1 };
/// Maximum number of entries.
pub(crate) const SEGMENT_SLOTS: usize = BUCKETS_MAX * SLOTS;
/// A segment grows when an insert would raise its load above `LOAD_MAX / LOAD_PARTS`.
const LOAD_MAX: usize = 90;
const LOAD_PARTS: usize = 100;
/// A segment shrinks by a step when its load after the step would be less than `LOAD_SHRUNK /
/// LOAD_PARTS`.
const LOAD_SHRUNK: usize = 67;
/// Two *buddies* (segments whose hash prefixes differ only in the last bit) merge when their
/// entries would fit in a segment of [`BUCKETS_MAX`] buckets with a load of at most `LOAD_MERGED /
/// LOAD_PARTS`.
const LOAD_MERGED: usize = 50;
/// Maximum number of buckets of a small segment.
const SMALL_BUCKETS_MAX: usize = if cfg!(miri) { 2 } else { arena::SMALL_SEGMENT_BYTES / size_of::<Bucket>() - 1 };
const PAGE_LINES: usize = PAGE_BYTES / size_of::<Bucket>();

const BUCKETS_BITS: u32 = 9;
const BUCKETS_MASK: u64 = (1 << BUCKETS_BITS) - 1;
const DEPTH_BITS: u32 = 6;
const ADDRESS_BITS: u32 = 48;
const ADDRESS_MASK: u64 = ((1 << ADDRESS_BITS) - 1) & !BUCKETS_MASK;
/// Bits of a tag.
pub(crate) const TAG_BITS: u32 = 16;
/// Number of tags.
pub(crate) const TAGS: u64 = 1 << TAG_BITS;

const _: () = assert!(SEGMENT_LINES - 1 <= BUCKETS_MASK as usize);
const _: () = assert!(arena::SMALL_SEGMENT_BYTES == 1 << BUCKETS_BITS);
const _: () = assert!(arena::SEGMENT_BYTES.is_multiple_of(arena::SMALL_SEGMENT_BYTES));
const _: () = assert!(ADDRESS_BITS + DEPTH_BITS <= u64::BITS);
const _: () = assert!(arena::DIRECTORY_DEPTH_MAX < 1 << DEPTH_BITS);
const _: () = assert!(arena::DIRECTORY_DEPTH_MAX + TAG_BITS <= 48);

/// A decoded directory word: a segment with the values needed to search it.
#[derive(Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) lines: SegmentLines,
    /// Buckets in use, `1..=BUCKETS_MAX`.
    pub(crate) buckets: u64,
    /// Number of hash bits that all entries share.
    pub(crate) depth: u32,
}

/// Returns the next larger number of buckets: doubled within the first page, then by pages.
pub(crate) const fn step_up(buckets: u64) -> u64 {
    let buckets = buckets as usize;
    let next = if buckets < SMALL_BUCKETS_MAX && buckets * 2 > SMALL_BUCKETS_MAX {
        SMALL_BUCKETS_MAX
    } else if buckets == SMALL_BUCKETS_MAX {
        2 * (buckets + 1)
    } else if buckets * 2 < PAGE_LINES {
        buckets * 2
    } else if buckets < PAGE_LINES - 1 {
        PAGE_LINES - 1
    } else {
        buckets + PAGE_LINES
    };
    (if next < BUCKETS_MAX { next } else { BUCKETS_MAX }) as u64
}

/// Returns the next smaller number of buckets; 1 for 1.
pub(crate) const fn step_down(buckets: u64) -> u64 {
    let mut step = 1;
    while step_up(step) < buckets {
        step = step_up(step);
    }
    step
}

/// Returns the maximum number of entries of a segment with this many buckets. A further insert
/// makes the segment grow.
#[inline]
pub(crate) const fn capacity(buckets: u64) -> u64 {
    buckets * SLOTS as u64 * LOAD_MAX as u64 / LOAD_PARTS as u64
}

/// Returns the number of entries below which a segment of this many buckets shrinks.
const fn shrinks_below(buckets: u64) -> u64 {
    if buckets == 1 { 1 } else { step_down(buckets) * SLOTS as u64 * LOAD_SHRUNK as u64 / LOAD_PARTS as u64 }
}

/// Returns whether two buddies that have this many entries together should merge.
pub(crate) const fn should_merge(entries: u64) -> bool {
    entries <= (SEGMENT_SLOTS * LOAD_MERGED / LOAD_PARTS) as u64
}

/// Returns the smallest number of buckets that may hold this many entries and a sixteenth more, or
/// [`BUCKETS_MAX`] if no number suffices.
pub(crate) const fn buckets_for(entries: u64) -> u64 {
    let mut buckets = 1;
    while buckets < BUCKETS_MAX as u64 && entries + entries / 16 > capacity(buckets) {
        buckets = step_up(buckets);
    }
    buckets
}

/// Returns whether a segment of this many buckets has the memory of a small one.
#[inline]
const fn is_small(buckets: u64) -> bool {
    buckets <= SMALL_BUCKETS_MAX as u64
}

impl Segment {
    /// Returns a new empty segment. The memory of a large segment is on `node`.
    pub(crate) fn new(buckets: u64, depth: u32, node: Node) -> Self {
        let lines = if is_small(buckets) { arena::take_small_segment() } else { arena::take_segment(node) };
        Self { lines, buckets, depth }
    }

    /// Returns whether the segment has the memory of a small one.
    #[inline]
    pub(crate) fn is_small(self) -> bool {
        is_small(self.buckets)
    }

    /// Frees the segment's memory. `node` is the node passed to [`Self::new`].
    pub(crate) fn free(self, node: Node) {
        if self.is_small() {
            arena::free_small_segment(self.lines);
        } else {
            arena::free_segment(self.lines, self.size_bytes(), node);
        }
    }

    /// Rebuilds the segment with the given number of buckets, depth and `slots` (tagged for this
    /// depth), and passes the result to `publish`. Works in place unless the segment changes
    /// between small and large. In that case the new memory is published before the old is freed.
    pub(crate) fn rebuild(
        self,
        buckets: u64,
        depth: u32,
        slots: &[u64],
        node: Node,
        publish: impl FnOnce(Self),
    ) -> Self {
        if self.is_small() == is_small(buckets) {
            let changed = Self { lines: self.lines, buckets, depth };
            changed.refill(slots, self.buckets);
            publish(changed);
            return changed;
        }
        let moved = Self::new(buckets, depth, node);
        moved.refill(slots, buckets);
        publish(moved);
        self.free(node);
        moved
    }

    /// Encodes the segment as a directory word.
    pub(crate) fn word(self) -> u64 {
        let address = self.lines.address() as u64;
        debug_assert!(address & !ADDRESS_MASK == 0);
        address | u64::from(self.depth) << ADDRESS_BITS | self.buckets
    }

    /// Decodes a directory word; `None` for zero.
    ///
    /// # Safety
    ///
    /// `word` was made by [`Self::word`] at some time in this process, or is zero.
    #[inline(always)]
    pub(crate) unsafe fn from_word(word: u64) -> Option<Self> {
        // SAFETY: the address of a segment or zero, by the caller's promise.
        let lines = unsafe { SegmentLines::from_address((word & ADDRESS_MASK) as usize) }?;
        let depth = (word >> ADDRESS_BITS) as u32;
        Some(Self { lines, buckets: word & BUCKETS_MASK, depth })
    }

    /// Returns the tag of a hash in this segment.
    #[inline(always)]
    pub(crate) fn tag(self, h: u64) -> u64 {
        (h << self.depth) >> (64 - TAG_BITS)
    }

    /// Returns the home bucket of a tag.
    #[inline(always)]
    pub(crate) fn home(self, tag: u64) -> usize {
        ((tag * self.buckets) >> TAG_BITS) as usize
    }

    /// Returns the first tag whose home is `bucket` or later.
    pub(crate) fn first_tag(self, bucket: usize) -> u64 {
        ((bucket as u64) << TAG_BITS).div_ceil(self.buckets)
    }

    /// Returns bucket `i`, which must be less than `buckets`.
    #[inline(always)]
    pub(crate) fn bucket(self, i: usize) -> &'static Bucket {
        self.lines.line(i + 1)
    }

    /// Returns the bucket after `i`, wrapping around.
    #[inline(always)]
    pub(crate) fn next(self, i: usize) -> usize {
        if i + 1 == self.buckets as usize { 0 } else { i + 1 }
    }

    /// Returns the number of entries.
    #[inline]
    pub(crate) fn len(self) -> u64 {
        self.lines.line(0).load(0)
    }

    /// Returns the number of entries with an expiry.
    #[inline]
    pub(crate) fn expiring(self) -> u64 {
        self.lines.line(0).load(1)
    }

    #[inline]
    fn set_len(self, entries: u64) {
        self.lines.line(0).store(0, entries);
    }

    #[inline]
    pub(crate) fn set_expiring(self, entries: u64) {
        self.lines.line(0).store(1, entries);
    }

    /// Returns the segment's memory in bytes: whole pages, unless it is small.
    pub(crate) fn size_bytes(self) -> usize {
        if self.is_small() {
            return arena::SMALL_SEGMENT_BYTES;
        }
        page_ceil((self.buckets as usize + 1) * size_of::<Bucket>())
    }

    /// Returns whether one more entry fits below the maximum load.
    #[inline]
    pub(crate) fn has_room(self) -> bool {
        self.len() < capacity(self.buckets)
    }

    /// Returns whether the segment is empty enough to shrink or merge.
    #[inline]
    pub(crate) fn should_shrink(self) -> bool {
        self.len() < shrinks_below(self.buckets)
    }

    /// Returns the first bucket with a free slot, starting at `home`. The load must be below the
    /// maximum, so that such a bucket exists.
    pub(crate) fn room(self, home: usize) -> usize {
        let mut bucket = home;
        while self.bucket(bucket).is_full() {
            bucket = self.next(bucket);
        }
        bucket
    }

    /// Stores a tagged slot in a bucket with a free slot, and counts it.
    pub(crate) fn insert(self, bucket: usize, slot: u64) -> &'static core::sync::atomic::AtomicU64 {
        let line = self.bucket(bucket);
        let used = line.used();
        line.store(used, slot);
        self.set_len(self.len() + 1);
        self.set_expiring(self.expiring() + (slot & EXPIRES_BIT));
        &line.slots[used]
    }

    /// Empties a slot, and moves other slots so that all other entries are still found.
    pub(crate) fn remove(self, bucket: usize, slot: usize) {
        let line = self.bucket(bucket);
        self.set_len(self.len() - 1);
        self.set_expiring(self.expiring() - (line.load(slot) & EXPIRES_BIT));
        let was_full = line.is_full();
        line.take(slot);
        if was_full {
            self.shift_back(bucket);
        }
    }

    /// Keeps entries findable after the full bucket `hole` has lost a slot. Searches now end at
    /// `hole`, and would miss entries in later buckets whose home is `hole` or an earlier bucket.
    /// So one of these entries moves back to `hole`. The bucket that this entry left is the next
    /// hole, to which the same applies. Ends at a bucket that wasn't full, because no search
    /// continues beyond it.
    fn shift_back(self, mut hole: usize) {
        let distance = |from: usize, to: usize| {
            let buckets = self.buckets as usize;
            if to >= from { to - from } else { to + buckets - from }
        };
        let mut current = self.next(hole);
        for _ in 1..self.buckets {
            let line = self.bucket(current);
            let full = line.is_full();
            let mover = (0..line.used()).find(|&i| {
                let home = self.home(tag_of(line.load(i)));
                distance(home, current) >= distance(hole, current)
            });
            if let Some(i) = mover {
                self.bucket(hole).store(SLOTS - 1, line.load(i));
                line.take(i);
                hole = current;
            }
            if !full {
                return;
            }
            current = self.next(current);
        }
    }

    /// Copies all slots to `out`, in unspecified order. Returns their number.
    pub(crate) fn gather(self, out: &mut [u64; SEGMENT_SLOTS]) -> usize {
        let mut count = 0;
        for bucket in 0..self.buckets as usize {
            for slot in &self.bucket(bucket).slots {
                let word = slot.load(Relaxed);
                if word == 0 {
                    break;
                }
                out[count] = word;
                count += 1;
            }
        }
        count
    }

    /// Replaces all contents with `slots` (tagged for this segment's depth). The memory had
    /// `old_buckets` buckets before. Returns pages that are no longer needed to the kernel.
    pub(crate) fn refill(self, slots: &[u64], old_buckets: u64) {
        for bucket in 0..old_buckets.min(self.buckets) as usize {
            self.clear(bucket);
        }
        if self.is_small() {
            (self.buckets..old_buckets).for_each(|bucket| self.clear(bucket as usize));
        } else if old_buckets > self.buckets {
            let end = page_ceil((old_buckets as usize + 1) * size_of::<Bucket>());
            arena::discard_lines(self.lines, self.size_bytes(), end);
            let page_end = self.size_bytes() / size_of::<Bucket>() - 1;
            for bucket in self.buckets as usize..page_end.min(old_buckets as usize) {
                self.clear(bucket);
            }
        }
        let mut used = [0_u8; BUCKETS_MAX];
        let mut expiring = 0;
        for &slot in slots {
            let mut bucket = self.home(tag_of(slot));
            while used[bucket] == SLOTS as u8 {
                bucket = self.next(bucket);
            }
            self.bucket(bucket).store(usize::from(used[bucket]), slot);
            used[bucket] += 1;
            expiring += slot & EXPIRES_BIT;
        }
        self.set_len(slots.len() as u64);
        self.set_expiring(expiring);
    }

    fn clear(self, bucket: usize) {
        for slot in 0..SLOTS {
            self.bucket(bucket).store(slot, 0);
        }
    }
}
