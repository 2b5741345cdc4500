//! Prefetching from any thread.
//!
//! A dictionary is reached through its *root*, which holds the address of its *directory*. A word
//! of the directory leads to a *segment*. A segment consists of *buckets* of eight slots, and a
//! *slot* holds the address of an entry.
//!
//! A worker parses several commands and runs them together (its *window*). Before the worker
//! acquires the first shard, it prefetches the buckets and entries of all keys of these commands.
//! Other threads may therefore be changing the dictionaries at the same time. Prefetching is sound
//! nevertheless, because:
//!
//! 1. *Roots are never freed.* A [`Hint`] holds a `&'static Root`. Roots are recycled through a
//!    pool, and every table that uses a root stores only zeros and addresses of directories to it.
//! 2. *The root's word names a directory.* It is zero, or the address and depth of a block. One
//!    atomic store writes it and one atomic load reads it, so address and depth belong together.
//!    Directory blocks keep their size and are never unmapped, so an index of `depth` bits is
//!    within the block even if the block's owner has freed it.
//! 3. *A directory's word names a segment.* A block holds only words made from segments, or zeros,
//!    and its words are loaded atomically. Segments are never unmapped and always consist of atomic
//!    words.
//! 4. *A bucket is loaded atomically*, in eight loads. The number of buckets comes from the same
//!    word as the segment and is at most 511, so the bucket lies within the 32 KB after the
//!    segment's address. These 32 KB are always mapped, whether or not the segment is in use, and
//!    also after the address of a small segment.
//! 5. *An entry is never read*: only the prefetch instruction uses its address, and that
//!    instruction doesn't fault.
//!
//! A hint may read data that is stale, or that now belongs to another dictionary. The hint then
//! prefetches a cache line that isn't needed, which is harmless. Loads of root and directory words
//! are `Acquire` and pair with the owner's `Release`, so a thread that loads a segment's address
//! sees the segment's memory as mapped and initialized. Slots are loaded `Relaxed`, because the
//! entries that they lead to are not read.

use core::sync::atomic::Ordering::Acquire;

use pantala_base::numa::Node;

use crate::arena::{self, Root};
use crate::bucket::{Bucket, LONG_BIT, address_of};
use crate::dict::Dict;
use crate::memory::prefetch;
use crate::segment::Segment;
use crate::table::{directory_index, directory_of};

const LINE_BYTES: usize = size_of::<Bucket>();
/// Number of cache lines of a long entry that are prefetched. After these lines, the hardware
/// prefetcher has recognized the sequence and fetches the rest.
const LONG_LINES: usize = 6;

/// A handle for prefetching from a dictionary, on any thread at any time, even while the dictionary
/// changes or after it is dropped.
#[derive(Clone, Copy)]
pub struct Hint {
    root: &'static Root,
}

/// A prefetched bucket: the result of the first stage and the input of the second.
#[derive(Clone, Copy)]
pub struct BucketHint {
    bucket: Option<&'static Bucket>,
    tag: u64,
}

impl Hint {
    pub(crate) fn new(root: &'static Root) -> Self {
        Self { root }
    }

    /// Prefetches the home bucket of a hash: the first stage. This stage waits only for the
    /// directory, which is small and mostly in the cache.
    #[inline]
    pub fn prefetch_bucket(self, h: u64) -> BucketHint {
        let nowhere = BucketHint { bucket: None, tag: 0 };
        // SAFETY: only tables store to roots.
        let Some((directory, depth)) = (unsafe { directory_of(self.root.0.load(Acquire)) }) else { return nowhere };
        let Some(word) = directory.get(directory_index(h, depth)) else { return nowhere };
        // SAFETY: the words of a block are zero or made from segments.
        let Some(segment) = (unsafe { Segment::from_word(word.load(Acquire)) }) else { return nowhere };
        let tag = segment.tag(h);
        let bucket = segment.bucket(segment.home(tag));
        prefetch(bucket);
        BucketHint { bucket: Some(bucket), tag }
    }

    /// Runs both stages at once.
    #[inline]
    pub fn prefetch_entry(self, h: u64) {
        self.prefetch_bucket(h).prefetch_entry();
    }
}

/// The roots of many dictionaries, most of which may never be created. An unused root takes no
/// resident memory unless it shares a page with a used one.
pub struct Roots(&'static [Root]);

impl Roots {
    /// Returns roots for `count` dictionaries.
    pub fn new(count: usize) -> Self {
        Self(arena::take_roots(count))
    }

    /// Returns a handle for prefetching from the dictionary at `place`, which need not exist yet.
    #[inline]
    pub fn hint(&self, place: usize) -> Hint {
        Hint::new(&self.0[place])
    }

    /// Returns an empty dictionary at `place`, for keys hashed with `seed`. The caller must create
    /// at most one dictionary per place. Of several, hints would reach only the one whose directory
    /// was replaced last. The memory of entries and large segments is on `node`.
    pub fn dict<V>(&self, place: usize, seed: u64, node: Node) -> Dict<V> {
        Dict::with_root(seed, &self.0[place], node)
    }
}

impl Drop for Roots {
    fn drop(&mut self) {
        arena::free_roots(self.0);
    }
}

impl BucketHint {
    /// Prefetches the entries in the bucket that may belong to the key: the second stage. If the
    /// bucket is full without a match, prefetches the next bucket instead. Some time should pass
    /// after the first stage, because the second one waits until the bucket has arrived in the
    /// cache.
    #[inline]
    pub fn prefetch_entry(self) {
        let Some(bucket) = self.bucket else { return };
        let matches = bucket.matches_portable(self.tag);
        if matches.is_empty() && bucket.is_full() {
            // If the bucket is the last one of its segment, this address lies beyond the segment.
            // That is harmless, because the address is only prefetched and never read.
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
