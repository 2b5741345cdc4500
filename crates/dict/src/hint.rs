//! Prefetching from any thread.
//!
//! A worker that has parsed a window of commands wants the buckets and entries of all their keys on their way to its
//! cache before it takes the first shard, while other threads may be changing those shards. Why that is sound:
//!
//! 1. *The root lives for ever.* A [`Hint`] holds a `&'static Root`; roots are recycled through a pool, never freed,
//!    and what is stored to one is a directory's word whichever table stores it.
//! 2. *The root's word names a directory.* It is zero or a block's address with its depth, stored by one atomic store
//!    and loaded by one atomic load, so they belong together. Directory blocks keep their size and stay mapped for ever:
//!    the index, of `depth` bits, is within the block even if its owner has given it back.
//! 3. *A directory's word names a segment.* A block holds words made from segments, or zeros, and never anything else;
//!    its words are loaded atomically. Segments stay mapped for ever, as atomic words.
//! 4. *A bucket is loaded atomically*, in eight loads. The number of buckets comes from the same word as the segment and
//!    is at most 511, so the bucket is within the segment, in use or not, or behind a small one within its chunk.
//! 5. *An entry is never read*: its address is only handed to the prefetch instruction, which doesn't fault.
//!
//! What a hint reads may be out of date or another dictionary's; then it warms the wrong line, and no more. Loads of
//! root and directory words are `Acquire`, paired with the owner's `Release`, so that memory is seen mapped and zeroed
//! before it is seen to be a segment; slots are loaded `Relaxed`, since nothing is read through them.

use core::sync::atomic::Ordering::Acquire;

use crate::arena::{self, Root};
use crate::bucket::{Bucket, LONG_BIT, address_of};
use crate::dict::Dict;
use crate::memory::prefetch;
use crate::segment::Segment;
use crate::table::{directory_index, directory_of};

const LINE_BYTES: usize = size_of::<Bucket>();
/// Lines of a long entry that are fetched ahead. What lies beyond comes by the processor's own looking ahead, which has seen by then
/// that line follows line.
const LONG_LINES: usize = 6;

/// A handle to prefetch from a dictionary by any thread at any time, even when the dictionary is changing or gone.
#[derive(Clone, Copy)]
pub struct Hint {
    root: &'static Root,
}

/// A bucket on its way to the cache: the first stage's result, the second's start.
#[derive(Clone, Copy)]
pub struct BucketHint {
    bucket: Option<&'static Bucket>,
    tag: u64,
}

impl Hint {
    pub(crate) fn new(root: &'static Root) -> Self {
        Self { root }
    }

    /// First stage: fetches the bucket where a key of this hash would be. Waits only for the directory, which is small
    /// and mostly in the cache.
    #[inline]
    pub fn prefetch_bucket(self, h: u64) -> BucketHint {
        let nowhere = BucketHint { bucket: None, tag: 0 };
        // SAFETY: tables alone store to roots.
        let Some((directory, depth)) = (unsafe { directory_of(self.root.0.load(Acquire)) }) else { return nowhere };
        let Some(word) = directory.get(directory_index(h, depth)) else { return nowhere };
        // SAFETY: a block's words are zero or made from segments.
        let Some(segment) = (unsafe { Segment::from_word(word.load(Acquire)) }) else { return nowhere };
        let tag = segment.tag(h);
        let bucket = segment.bucket(segment.home(tag));
        prefetch(bucket);
        BucketHint { bucket: Some(bucket), tag }
    }

    /// Second stage, without the first stage's result.
    #[inline]
    pub fn prefetch_entry(self, h: u64) {
        self.prefetch_bucket(h).prefetch_entry();
    }
}

/// The roots of many dictionaries, most of which may never be made. A place whose dictionary has had no entries takes no
/// resident memory, but where it lies beside one that has.
pub struct Roots(&'static [Root]);

impl Roots {
    /// Roots for `count` dictionaries.
    pub fn new(count: usize) -> Self {
        Self(arena::take_roots(count))
    }

    /// A handle to prefetch from the dictionary at a place, made or not.
    #[inline]
    pub fn hint(&self, place: usize) -> Hint {
        Hint::new(&self.0[place])
    }

    /// An empty dictionary at a place, for keys hashed with `seed`. The caller makes one for each place: of two, hints would
    /// follow the one that has grown last.
    pub fn dict<V>(&self, place: usize, seed: u64) -> Dict<V> {
        Dict::with_root(seed, &self.0[place])
    }
}

impl Drop for Roots {
    fn drop(&mut self) {
        arena::free_roots(self.0);
    }
}

impl BucketHint {
    /// Second stage, some time after the first: fetches the entries in the bucket that may be the key's, or the bucket
    /// after it where this one is full of others. Waits for the bucket if it hasn't come yet.
    #[inline]
    pub fn prefetch_entry(self) {
        let Some(bucket) = self.bucket else { return };
        let matches = bucket.matches_portable(self.tag);
        if matches.is_empty() && bucket.is_full() {
            // Of the last bucket this is beyond the segment: an address to prefetch, nothing more.
            prefetch(core::ptr::from_ref(bucket).wrapping_add(1));
        }
        for i in matches {
            let slot = bucket.load(i);
            let address = core::ptr::without_provenance::<u8>(address_of(slot));
            prefetch(address);
            prefetch(address.wrapping_add(LINE_BYTES));
            if slot & LONG_BIT != 0 {
                for line in 2..LONG_LINES {
                    prefetch(address.wrapping_add(line * LINE_BYTES));
                }
            }
        }
    }
}
