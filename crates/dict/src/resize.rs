//! Grows and shrinks the table, one segment at a time. Inserts and removals call this code. A
//! *segment* holds slots for the entries whose hashes share a prefix. A *slot* is the address of an
//! entry with 16 bits of its hash (the *tag*). Only slots move; the entries stay at their
//! addresses.

use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use crate::arena::{self, DIRECTORY_DEPTH_MAX};
use crate::bucket::{UNTAGGED_MASK, tag_of, with_tag};
use crate::hash::hash_key;
use crate::memory::prefetch;
use crate::record::Record;
use crate::segment::{BUCKETS_MAX, SEGMENT_SLOTS, Segment, TAG_BITS, buckets_for, should_merge, step_down, step_up};
use crate::table::{NO_DIRECTORY, Table};

/// A split reads the keys of all records in a segment. It prefetches each record this number of
/// records ahead.
const SPLIT_AHEAD: usize = 16;

impl Table {
    /// Returns the segment of a hash with space for one more entry, after creating, growing or
    /// splitting it if necessary. Returns `None` if the segment is full and has the maximum depth.
    #[cold]
    pub(crate) fn make_room(&mut self, h: u64) -> Option<Segment> {
        loop {
            let Some(segment) = self.segment(h) else {
                let segment = Segment::new(1, 0, self.slab.node());
                self.segment_bytes += segment.size_bytes();
                self.directory = arena::take_block(0);
                self.deepest = 1;
                self.directory[0].store(segment.word(), Release);
                self.publish_directory();
                return Some(segment);
            };
            if segment.has_room() {
                return Some(segment);
            }
            if segment.buckets < BUCKETS_MAX as u64 {
                return Some(self.set_buckets(h, segment, step_up(segment.buckets)));
            }
            if segment.depth == DIRECTORY_DEPTH_MAX {
                return None;
            }
            // The loop splits again if all entries fell on the side of `h`, which practically never
            // happens.
            self.split(h, segment);
        }
    }

    /// Redistributes a segment's entries over another number of buckets.
    fn set_buckets(&mut self, h: u64, segment: Segment, buckets: u64) -> Segment {
        let mut slots = [0; SEGMENT_SLOTS];
        let count = segment.gather(&mut slots);
        self.moved += count;
        let node = self.slab.node();
        let changed = segment.rebuild(buckets, segment.depth, &slots[..count], node, |changed| {
            self.publish_segment(h, changed);
        });
        self.segment_bytes = self.segment_bytes + changed.size_bytes() - segment.size_bytes();
        changed
    }

    /// Splits a segment in two by the next bit of the hash.
    fn split(&mut self, h: u64, segment: Segment) {
        if segment.depth == self.depth {
            self.double_directory();
        }
        let mut slots = [0; SEGMENT_SLOTS];
        let count = segment.gather(&mut slots);
        self.moved += count;
        // The tag is the 16 hash bits after the segment's prefix, and the split makes the prefix
        // one bit longer. So the first bit of the old tag separates the halves and becomes part of
        // the prefix. The last bit of the new tag isn't in the slot, so the new tag is taken from
        // the hash of the key.
        let depth = segment.depth + 1;
        let mut low_count = 0;
        let mut high = [0; SEGMENT_SLOTS];
        let mut high_count = 0;
        for i in 0..count {
            // SAFETY: slots in use lead to records in use, which nothing writes meanwhile.
            let key: &[u8] = unsafe {
                if let Some(&ahead) = slots[..count].get(i + SPLIT_AHEAD) {
                    prefetch(Record::from_slot(ahead).address());
                }
                Record::from_slot(slots[i]).key()
            };
            let entry_hash = hash_key(self.seed, key);
            let slot = with_tag(slots[i], entry_hash << depth >> (64 - TAG_BITS));
            if entry_hash << segment.depth >> 63 == 0 {
                slots[low_count] = slot;
                low_count += 1;
            } else {
                high[high_count] = slot;
                high_count += 1;
            }
        }
        let node = self.slab.node();
        let fresh = Segment::new(buckets_for(high_count as u64), depth, node);
        fresh.refill(&high[..high_count], fresh.buckets);
        let side = 1 << (63 - segment.depth);
        let low = segment.rebuild(buckets_for(low_count as u64), depth, &slots[..low_count], node, |low| {
            self.publish_segment(h & !side, low);
            self.publish_segment(h | side, fresh);
        });
        self.segment_bytes = self.segment_bytes + low.size_bytes() + fresh.size_bytes() - segment.size_bytes();
        if depth == self.depth {
            self.deepest += 2;
        }
    }

    fn double_directory(&mut self) {
        let block = arena::take_block(self.depth + 1);
        for (i, word) in self.directory.iter().enumerate() {
            let word = word.load(Relaxed);
            block[2 * i].store(word, Relaxed);
            block[2 * i + 1].store(word, Relaxed);
        }
        self.swap_directory(block, self.depth + 1);
        self.deepest = 0;
    }

    /// Replaces the directory by another block, and frees the old block at once. A hint that still
    /// reads the old block finds zeros or directory words of some dictionary, which is sound.
    fn swap_directory(&mut self, block: &'static [AtomicU64], depth: u32) {
        let old = core::mem::replace(&mut self.directory, block);
        self.depth = depth;
        self.publish_directory();
        arena::free_block(old);
    }

    /// Shrinks a segment by one step. If the entries of the segment and its *buddy* (the segment
    /// whose hash prefix differs only in the last bit) fill at most half of a segment
    /// ([`should_merge`]), merges the two, and tries to merge the result with its buddy in the same
    /// way.
    #[cold]
    pub(crate) fn shrink(&mut self, h: u64, mut segment: Segment) {
        if segment.buckets > 1 {
            segment = self.set_buckets(h, segment, step_down(segment.buckets));
        }
        while segment.depth > 0 {
            let side = 1 << (64 - segment.depth);
            let Some(buddy) = self.segment(h ^ side) else { return };
            if buddy.depth != segment.depth || !should_merge(segment.len() + buddy.len()) {
                return;
            }
            segment = if h & side == 0 { self.merge(h, segment, buddy) } else { self.merge(h, buddy, segment) };
        }
    }

    /// Merges two buddies. `low` is the one with the smaller hashes.
    fn merge(&mut self, h: u64, low: Segment, high: Segment) -> Segment {
        let mut slots = [0; SEGMENT_SLOTS];
        let mut highs = [0; SEGMENT_SLOTS];
        let low_count = low.gather(&mut slots);
        let high_count = high.gather(&mut highs);
        let count = low_count + high_count;
        slots[low_count..count].copy_from_slice(&highs[..high_count]);
        // A merge reverses a split: the bit that separated the two segments becomes the first bit
        // of the tags again, and the last bit of each tag is dropped.
        for (i, slot) in slots[..count].iter_mut().enumerate() {
            let front = if i < low_count { 0 } else { 1 << (TAG_BITS - 1) };
            *slot = with_tag(*slot & UNTAGGED_MASK, front | tag_of(*slot) >> 1);
        }
        if low.depth == self.depth {
            self.deepest -= 2;
        }
        let node = self.slab.node();
        let merged = low.rebuild(buckets_for(count as u64), low.depth - 1, &slots[..count], node, |merged| {
            self.publish_segment(h, merged);
        });
        self.segment_bytes = self.segment_bytes + merged.size_bytes() - low.size_bytes() - high.size_bytes();
        high.free(node);
        while self.deepest == 0 && self.depth > 0 {
            self.halve_directory();
        }
        merged
    }

    fn halve_directory(&mut self) {
        debug_assert!(!core::ptr::eq(self.directory, &NO_DIRECTORY[..]));
        let block = arena::take_block(self.depth - 1);
        for (i, word) in block.iter().enumerate() {
            word.store(self.directory[2 * i].load(Relaxed), Relaxed);
        }
        self.swap_directory(block, self.depth - 1);
        self.deepest = self.segments().filter(|(_, segment)| segment.depth == self.depth).count();
    }
}
