//! The hash table of large hashes and sets.
//!
//! ```text
//! buckets   [u32; n]   index of the first entry, or none
//! entries   [entry; n] hash (32 bits), index of the next entry of the bucket, item; dense, in no order
//! ```
//!
//! # Growing
//!
//! Linear hashing: there are as many buckets as entries, one more with each insertion, and each new bucket takes its entries
//! from one old one. No operation moves more than one bucket's entries, nothing is ever copied whole (both arrays are
//! chunked), and there is no moment at which a second table stands beside the first. Removals take buckets back, two at a time,
//! once there are two per entry.
//!
//! # Scanning
//!
//! [`Table::scan`]'s cursor is a bucket's number with its bits counted backwards, as Redis's: an entry that is there from the
//! first call to the last is seen at least once, however the table grows and shrinks meanwhile. The buckets of a table half
//! way between two sizes are seen as Redis sees its two tables during a rehash: by those of the smaller size, each together with
//! the one split from it.
//!
//! # What it costs
//!
//! | what | bytes |
//! | --- | --- |
//! | entry of a word | 16 |
//! | bucket | 4 |
//! | room ahead | at most a quarter up to 16 Ki entries, one chunk beyond |
//!
//! So 20 to 25 bytes and the item's own memory, against a dictEntry of 24 (32 of jemalloc), 8 to 16 of bucket and an sds in Redis.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pantala_dict::prefetch;

use crate::chunked::Chunked;

/// No entry.
const NONE: u32 = u32::MAX;
/// Buckets of the smallest table.
const BUCKETS_MIN: usize = 2;
/// A removal takes buckets back when there are more of them than this many per entry.
const BUCKETS_PER_ENTRY_MAX: usize = 2;
/// Most buckets taken back by one removal: as many as an entry may have, so that the bound holds all the way down.
const BUCKETS_PER_REMOVAL: usize = 2;

/// Tables of fewer entries aren't prefetched from: they are in the second-level cache, or soon will be.
const PREFETCH_LEN_MIN: usize = 4096;
/// Entries of a bucket that a prefetch goes along. Of those looked for, one in twenty is further behind.
const PREFETCH_CHAIN_MAX: usize = 3;

/// How many keys [`Table::prefetch`] takes at most: what they bring, four lines or so each, should still be in the first-level cache when
/// it is looked at.
pub const PREFETCH_KEYS_MAX: usize = 16;

/// Most entries of a table.
pub const ENTRIES_MAX: usize = NONE as usize;

/// Whether so many entries more fit a table of `len`: to be asked before a command changes anything.
#[inline]
pub fn has_room(len: usize, more: usize) -> bool {
    len.checked_add(more).is_some_and(|len| len <= ENTRIES_MAX)
}

/// The seed of tables made from now on.
static SEED: AtomicU64 = AtomicU64::new(0x5eed_0f7a_b1e5_0000);

/// Sets the seed of the hash function for tables made from now on: random and secret, so that nobody can aim for collisions. Each table keeps the
/// one it was made with.
pub fn set_seed(seed: u64) {
    // Relaxed: nothing else is published with it.
    SEED.store(seed, Relaxed);
}

/// The seed of tables made from now on.
#[inline]
pub fn seed() -> u64 {
    SEED.load(Relaxed)
}

/// The hash of a key, in tables of that seed.
#[inline]
pub fn hash(seed: u64, key: &[u8]) -> u32 {
    pantala_dict::hash_key(seed, key) as u32
}

/// What a table holds.
pub trait Item {
    /// Bytes of heap that it takes.
    fn allocated_bytes(&self) -> usize;

    /// Asks the processor for what it has on the heap.
    fn prefetch(&self) {}
}

#[derive(Clone, Debug)]
struct Entry<T> {
    hash: u32,
    next: u32,
    item: T,
}

/// See the head of this module.
///
/// An *index* is an entry's number, below [`Table::len`]: it stays valid until the next insertion or removal. A wrong one is a
/// bug of the caller's: it panics or finds another entry.
#[derive(Clone, Debug)]
pub struct Table<T> {
    buckets: Chunked<u32>,
    entries: Chunked<Entry<T>>,
    /// All bits that a bucket's number may have: the number of buckets, rounded up to a power of two, less one.
    mask: usize,
    /// Heap bytes of all items.
    item_bytes: usize,
    seed: u64,
}

impl<T: Item> Table<T> {
    /// An empty table with room for `len` entries, hashed by [`seed`].
    pub fn with_capacity(len: usize) -> Self {
        Self::with_seed(seed(), len)
    }

    /// An empty table with room for `len` entries.
    pub fn with_seed(seed: u64, len: usize) -> Self {
        let (mut buckets, mut entries) = (Chunked::new(), Chunked::new());
        let bucket_count = len.clamp(BUCKETS_MIN, ENTRIES_MAX);
        buckets.reserve(bucket_count);
        for _ in 0..bucket_count {
            buckets.push(NONE);
        }
        entries.reserve(len);
        Table { buckets, entries, mask: bucket_count.next_power_of_two() - 1, item_bytes: 0, seed }
    }

    /// Entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The seed of its hashes.
    #[inline]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The hash of a key in this table.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u32 {
        hash(self.seed, key)
    }

    /// Bytes of heap, the items' included.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.buckets.allocated_bytes() + self.entries.allocated_bytes() + self.item_bytes
    }

    /// The bucket of a hash.
    #[inline]
    fn bucket_of(&self, hash: u32) -> usize {
        let bucket = hash as usize & self.mask;
        // One that isn't there yet is still a part of the one it will be split from.
        if bucket < self.buckets.len() { bucket } else { bucket & (self.mask >> 1) }
    }

    /// The index of the entry with this hash of which `is` holds.
    #[inline]
    pub fn find(&self, hash: u32, mut is: impl FnMut(&T) -> bool) -> Option<usize> {
        let mut at = *self.buckets.get(self.bucket_of(hash));
        while at != NONE {
            let entry = self.entries.get(at as usize);
            if entry.hash == hash && is(&entry.item) {
                return Some(at as usize);
            }
            at = entry.next;
        }
        None
    }

    /// Asks the processor for all that finding these will read, so that their misses overlap: buckets first, then entries, then what the
    /// entries point to. To be called with the hashes (the first [`PREFETCH_KEYS_MAX`] count) of what is going to be found next.
    pub fn prefetch(&self, hashes: impl Iterator<Item = u32>) {
        if self.len() < PREFETCH_LEN_MIN {
            return;
        }
        let mut wanted = [(0, NONE); PREFETCH_KEYS_MAX];
        let mut len = 0;
        for (wanted, hash) in wanted.iter_mut().zip(hashes) {
            wanted.0 = hash;
            prefetch(self.buckets.get(self.bucket_of(hash)));
            len += 1;
        }
        let wanted = &mut wanted[..len];
        for (hash, at) in &mut *wanted {
            *at = *self.buckets.get(self.bucket_of(*hash));
            self.prefetch_entry(*at);
        }
        for _ in 0..PREFETCH_CHAIN_MAX {
            for (hash, at) in &mut *wanted {
                if *at == NONE {
                    continue;
                }
                let entry = self.entries.get(*at as usize);
                if entry.hash == *hash {
                    entry.item.prefetch();
                    *at = NONE;
                } else {
                    *at = entry.next;
                    self.prefetch_entry(*at);
                }
            }
        }
    }

    #[inline]
    fn prefetch_entry(&self, at: u32) {
        if at != NONE {
            prefetch(self.entries.get(at as usize));
        }
    }

    /// The item at an index.
    #[inline]
    pub fn get(&self, index: usize) -> &T {
        &self.entries.get(index).item
    }

    /// The hash at an index.
    #[inline]
    pub fn hash_at(&self, index: usize) -> u32 {
        self.entries.get(index).hash
    }

    /// Changes the item at an index, but not what it is found by.
    #[inline]
    pub fn change<R>(&mut self, index: usize, change: impl FnOnce(&mut T) -> R) -> R {
        let item = &mut self.entries.get_mut(index).item;
        self.item_bytes -= item.allocated_bytes();
        let result = change(item);
        self.item_bytes += item.allocated_bytes();
        result
    }

    /// Adds an item. None that equals it may be there, which isn't checked.
    ///
    /// # Panics
    /// When there are [`ENTRIES_MAX`] entries, 80 GiB of them: [`has_room`] tells before.
    pub fn insert(&mut self, hash: u32, item: T) {
        let index = self.entries.len();
        assert!(index < ENTRIES_MAX, "a table holds at most {ENTRIES_MAX} entries");
        if index >= self.buckets.len() {
            self.split();
        }
        self.item_bytes += item.allocated_bytes();
        let bucket = self.bucket_of(hash);
        let next = std::mem::replace(self.buckets.get_mut(bucket), index as u32);
        self.entries.push(Entry { hash, next, item });
    }

    /// Takes the entry at an index out. The last one comes to its place, and has its index then.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        if index >= self.len() {
            return None;
        }
        let (hash, next) = (self.entries.get(index).hash, self.entries.get(index).next);
        self.relink(hash, index as u32, next);
        let last = self.len() - 1;
        if last != index {
            self.relink(self.entries.get(last).hash, last as u32, index as u32);
        }
        let removed = self.entries.swap_remove(index)?.item;
        self.item_bytes -= removed.allocated_bytes();
        for _ in 0..BUCKETS_PER_REMOVAL {
            if self.buckets.len() > (self.len() * BUCKETS_PER_ENTRY_MAX).max(BUCKETS_MIN) {
                self.merge();
            }
        }
        Some(removed)
    }

    /// Lets whatever leads to the entry `from`, which has that hash, lead to `to`.
    fn relink(&mut self, hash: u32, from: u32, to: u32) {
        let bucket = self.bucket_of(hash);
        let first = self.buckets.get_mut(bucket);
        if *first == from {
            *first = to;
            return;
        }
        let mut at = *first;
        while at != NONE {
            let entry = self.entries.get_mut(at as usize);
            if entry.next == from {
                entry.next = to;
                return;
            }
            at = entry.next;
        }
        debug_assert!(false, "every entry is in the chain of its bucket");
    }

    /// Adds a bucket, with the entries that belong there.
    fn split(&mut self) {
        let new = self.buckets.len();
        if new > self.mask {
            self.mask = self.mask << 1 | 1;
        }
        let old = new & (self.mask >> 1);
        let mut at = *self.buckets.get(old);
        let (mut stay, mut go) = (NONE, NONE);
        while at != NONE {
            let entry = self.entries.get_mut(at as usize);
            let next = entry.next;
            let chain = if entry.hash as usize & self.mask == new { &mut go } else { &mut stay };
            entry.next = std::mem::replace(chain, at);
            at = next;
        }
        *self.buckets.get_mut(old) = stay;
        self.buckets.push(go);
    }

    /// Takes the last bucket away; its entries go back to the one it was split from.
    fn merge(&mut self) {
        let Some(first) = self.buckets.pop() else { return };
        let old = self.buckets.len() & (self.mask >> 1);
        if self.buckets.len() == (self.mask >> 1) + 1 {
            // A power of two: every bucket's number fits one bit less.
            self.mask >>= 1;
        }
        if first == NONE {
            return;
        }
        let rest = std::mem::replace(self.buckets.get_mut(old), first);
        let mut at = first;
        loop {
            let entry = self.entries.get_mut(at as usize);
            if entry.next == NONE {
                entry.next = rest;
                return;
            }
            at = entry.next;
        }
    }

    /// Goes on with a scan: shows the items of one bucket (or of two that were one), returns the next cursor. 0 begins and ends.
    pub fn scan(&self, cursor: u64, visit: &mut dyn FnMut(&T)) -> u64 {
        let len = self.buckets.len();
        let mask = if len > self.mask { self.mask } else { self.mask >> 1 };
        let bucket = cursor as usize & mask;
        self.visit_bucket(bucket, visit);
        if bucket + mask + 1 < len {
            self.visit_bucket(bucket + mask + 1, visit);
        }
        // Adds one to the number's bits read backwards; those above the mask are set, so that the carry passes them.
        (cursor | !(mask as u64)).reverse_bits().wrapping_add(1).reverse_bits()
    }

    fn visit_bucket(&self, bucket: usize, visit: &mut dyn FnMut(&T)) {
        let mut at = *self.buckets.get(bucket);
        while at != NONE {
            let entry = self.entries.get(at as usize);
            visit(&entry.item);
            at = entry.next;
        }
    }

    /// All items, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.item)
    }

    /// All items with their hashes, in no order.
    pub fn iter_hashed(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|entry| (entry.hash, &entry.item))
    }
}

/// Whether they hold the same, for tables of the same seed; those of different seeds are different.
impl<T: Item + PartialEq> PartialEq for Table<T> {
    fn eq(&self, other: &Self) -> bool {
        self.seed == other.seed
            && self.len() == other.len()
            && self.iter_hashed().all(|(hash, item)| other.find(hash, |found| found == item).is_some())
    }
}

impl<T: Item + Eq> Eq for Table<T> {}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
