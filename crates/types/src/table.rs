//! The hash table of large hashes and sets.
//!
//! ```text
//! buckets   [u32; n]   index of the bucket's first entry, or none
//! entries   [entry; n] hash (32 bits), index of its bucket's next entry, item; dense, unordered
//! ```
//!
//! # Growth
//!
//! The table uses linear hashing. If there are as many entries as buckets, an insertion first adds
//! a bucket and moves into it some of the entries of one old bucket. No insertion moves more than
//! one bucket's entries. There is never a second table, and neither array is ever copied as a
//! whole, because both consist of chunks. While there are more than two buckets per entry, each
//! removal frees up to two buckets.
//!
//! # Scans
//!
//! The cursor of [`Table::scan`] is a bucket number. As in Redis, successive cursors count up with
//! the bits in reverse order: the highest bit changes first. An entry that exists from the first
//! call to the last is visited at least once, regardless of how the table grows and shrinks
//! meanwhile. While the number of buckets isn't a power of two, the cursor counts only to the next
//! lower power of two. Each call visits one of these buckets together with the bucket that was
//! split from it, if there is one. Redis scans its two tables in the same way during a rehash.
//!
//! # Cost
//!
//! | part | bytes |
//! | --- | --- |
//! | entry whose item is one word | 16 |
//! | bucket | 4 |
//! | spare capacity | at most a quarter up to 16 Ki entries, otherwise at most 4 Ki entries |
//!
//! The total per entry is 20 to 25 bytes, plus the item's heap memory. Redis takes a dictEntry of
//! 24 bytes (32 in jemalloc), 8 to 16 bytes of buckets, and an sds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pantala_dict::prefetch;

use crate::chunked::Chunked;
use crate::cut::{Budget, Cut, CutCell, CutId, CutState, PieceMax};

/// The index that stands for no entry.
const NONE: u32 = u32::MAX;
/// Number of buckets of the smallest table.
const BUCKETS_MIN: usize = 2;
/// A removal frees buckets if there are more than this number of buckets per entry.
const BUCKETS_PER_ENTRY_MAX: usize = 2;
/// Maximum number of buckets that one removal frees. Each removal lowers the maximum number of
/// buckets by [`BUCKETS_PER_ENTRY_MAX`], so it must be able to free that many.
const BUCKETS_PER_REMOVAL: usize = 2;

/// Minimum length of tables that are prefetched. A smaller table fits into the L2 cache, so a
/// prefetch gains little.
const PREFETCH_LEN_MIN: usize = 4096;
/// Maximum number of entries that a prefetch visits per bucket. About 5% of the wanted entries are
/// further down their bucket's chain, and are not prefetched.
const PREFETCH_CHAIN_MAX: usize = 3;

/// Maximum number of keys per [`Table::prefetch`]. Each key takes about four cache lines, which
/// must still be in the L1 cache when they are used.
pub const PREFETCH_KEYS_MAX: usize = 16;

/// Maximum number of entries of a table.
pub const ENTRIES_MAX: usize = NONE as usize;

/// Returns whether `more` entries fit in a table of `len` entries. A command checks this before it
/// changes anything.
#[inline]
pub fn has_room(len: usize, more: usize) -> bool {
    len.checked_add(more).is_some_and(|len| len <= ENTRIES_MAX)
}

/// The seed of new tables.
static SEED: AtomicU64 = AtomicU64::new(0x5eed_0f7a_b1e5_0000);

/// Sets the seed of the hash function for new tables. The seed must be random and secret, so that
/// clients can't choose keys that collide. Existing tables keep their seed.
pub fn set_seed(seed: u64) {
    // Relaxed suffices: a table keeps the seed with which it was created, so a thread may create
    // tables with the old seed for a while.
    SEED.store(seed, Relaxed);
}

/// Returns the seed of new tables.
#[inline]
pub fn seed() -> u64 {
    SEED.load(Relaxed)
}

/// Returns the hash of a key, in tables with this seed.
#[inline]
pub fn hash(seed: u64, key: &[u8]) -> u32 {
    pantala_dict::hash_key(seed, key) as u32
}

/// An item of a table.
pub trait Item: Clone {
    /// Returns the size of the item's heap memory in bytes.
    fn allocated_bytes(&self) -> usize;

    /// Prefetches the item's heap memory. Does nothing by default.
    fn prefetch(&self) {}
}

#[derive(Clone, Debug)]
struct Entry<T> {
    hash: u32,
    next: u32,
    item: T,
}

/// The table described at the head of this module.
///
/// An *index* is an entry's number, less than [`Table::len`]. An index is valid until the next
/// insertion or removal. A wrong index is a bug of the caller. A method then panics or uses another
/// entry.
#[derive(Clone, Debug)]
pub struct Table<T> {
    buckets: Chunked<u32>,
    entries: Chunked<Entry<T>>,
    /// A mask for bucket numbers: the number of buckets, rounded up to a power of two, minus one.
    mask: usize,
    /// Heap bytes of all items.
    item_bytes: usize,
    seed: u64,
    /// The running cut ([`crate::cut`]), if any: the items at one instant, for a reader. The *slot*
    /// of an item (its number in the cut) is its index. Items at indexes before the cut's position
    /// count as taken.
    cut: CutCell<Cut<T, usize>>,
}

impl<T: Item> Table<T> {
    /// Returns an empty table with space for `len` entries, with the current [`seed`].
    pub fn with_capacity(len: usize) -> Self {
        Self::with_seed(seed(), len)
    }

    /// Returns an empty table with space for `len` entries.
    pub fn with_seed(seed: u64, len: usize) -> Self {
        let (mut buckets, mut entries) = (Chunked::new(), Chunked::new());
        let bucket_count = len.clamp(BUCKETS_MIN, ENTRIES_MAX);
        buckets.reserve(bucket_count);
        for _ in 0..bucket_count {
            buckets.push(NONE);
        }
        entries.reserve(len);
        Table {
            buckets,
            entries,
            mask: bucket_count.next_power_of_two() - 1,
            item_bytes: 0,
            seed,
            cut: CutCell::default(),
        }
    }

    /// Returns the number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the seed of the table's hashes.
    #[inline]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the hash of a key in this table.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u32 {
        hash(self.seed, key)
    }

    /// Returns the size of the table's heap memory in bytes, including that of the items.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.buckets.allocated_bytes() + self.entries.allocated_bytes() + self.item_bytes
    }

    /// Returns the bucket of a hash.
    #[inline]
    fn bucket_of(&self, hash: u32) -> usize {
        let bucket = hash as usize & self.mask;
        // If the bucket doesn't exist yet, its entries are in the bucket from which it will be
        // split.
        if bucket < self.buckets.len() { bucket } else { bucket & (self.mask >> 1) }
    }

    /// Returns the index of the entry with this hash for which `is` holds.
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

    /// Prefetches the memory that [`Table::find`] will read for these hashes: first all buckets,
    /// then the entries, then the items' heap memory. The cache misses of different hashes thus
    /// overlap. Ignores hashes after the first [`PREFETCH_KEYS_MAX`].
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

    /// Returns the item at an index.
    #[inline]
    pub fn get(&self, index: usize) -> &T {
        &self.entries.get(index).item
    }

    /// Returns the hash at an index.
    #[inline]
    pub fn hash_at(&self, index: usize) -> u32 {
        self.entries.get(index).hash
    }

    /// Changes the item at an index. `change` must not change the item's key.
    #[inline]
    pub fn change<R>(&mut self, index: usize, change: impl FnOnce(&mut T) -> R) -> R {
        let item = &mut self.entries.get_mut(index).item;
        if let Some(cut) = self.cut.get_mut() {
            cut.keep_from(index, || item.clone());
        }
        self.item_bytes -= item.allocated_bytes();
        let result = change(item);
        self.item_bytes += item.allocated_bytes();
        result
    }

    /// Adds an item. The caller must ensure that no equal item exists.
    ///
    /// # Panics
    /// If there are already [`ENTRIES_MAX`] entries, which take 80 GiB: see [`has_room`].
    pub fn insert(&mut self, hash: u32, item: T) {
        let index = self.entries.len();
        assert!(index < ENTRIES_MAX, "a table of more than {ENTRIES_MAX} entries");
        if let Some(cut) = self.cut.get_mut() {
            cut.take(index);
        }
        if index >= self.buckets.len() {
            self.split();
        }
        self.item_bytes += item.allocated_bytes();
        let bucket = self.bucket_of(hash);
        let next = std::mem::replace(self.buckets.get_mut(bucket), index as u32);
        self.entries.push(Entry { hash, next, item });
    }

    /// Removes the entry at an index. The last entry moves to this index.
    pub fn remove(&mut self, index: usize) -> Option<T> {
        if index >= self.len() {
            return None;
        }
        if self.cut.get_mut().is_some() {
            self.keep_before_removal(index);
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

    /// Starts a cut of the current items.
    pub fn begin_cut(&self) {
        self.cut.begin(Cut::new(self.len(), self.len(), 0));
    }

    /// Passes the items of one piece of the cut to `read`, as they were when the cut started.
    /// `read` returns the length of an item in bytes.
    pub fn read_cut(&self, max: PieceMax, mut read: impl FnMut(&T) -> usize) -> CutState {
        self.cut.read(|cut| {
            let mut budget = Budget::new(max);
            cut.drain(&mut budget, |item| read(&item));
            while cut.position < self.len() && !budget.is_spent() {
                if cut.is_taken(cut.position) {
                    budget.spend(0);
                } else {
                    budget.spend(read(self.get(cut.position)));
                    cut.received(1);
                }
                cut.position += 1;
            }
            cut.state(cut.position >= self.len())
        })
    }

    /// Returns whether a cut runs.
    pub fn has_cut(&self) -> bool {
        self.cut.is_running()
    }

    /// Returns the id of the cut, if one runs.
    pub fn cut_id(&self) -> Option<CutId> {
        self.cut.id()
    }

    /// Ends the cut, if one runs.
    pub fn end_cut(&self) {
        self.cut.end();
    }

    /// Keeps the item at an index for the cut before the item is removed. The removal moves the
    /// last item to this index. If the reader has passed the index already, it would miss the last
    /// item there, so the last item is kept as well.
    #[cold]
    fn keep_before_removal(&mut self, index: usize) {
        let last = self.entries.len() - 1;
        let Some(cut) = self.cut.get_mut() else { return };
        cut.keep_from(index, || self.entries.get(index).item.clone());
        if index < cut.position {
            cut.keep_from(last, || self.entries.get(last).item.clone());
        } else if !cut.is_taken(last) {
            cut.untake(index);
        }
    }

    /// Makes the link that refers to entry `from` refer to entry `to`. `hash` is the hash of
    /// `from`.
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
        debug_assert!(false, "an entry isn't in the chain of its bucket");
    }

    /// Adds a bucket and moves the entries that now belong to it.
    fn split(&mut self) {
        let new = self.buckets.len();
        if new > self.mask {
            self.mask = self.mask << 1 | 1;
        }
        let old = new & (self.mask >> 1);
        let mut at = *self.buckets.get(old);
        let (mut kept, mut moved) = (NONE, NONE);
        while at != NONE {
            let entry = self.entries.get_mut(at as usize);
            let next = entry.next;
            let chain = if entry.hash as usize & self.mask == new { &mut moved } else { &mut kept };
            entry.next = std::mem::replace(chain, at);
            at = next;
        }
        *self.buckets.get_mut(old) = kept;
        self.buckets.push(moved);
    }

    /// Removes the last bucket. The bucket's entries return to the bucket from which it was split.
    fn merge(&mut self) {
        let Some(first) = self.buckets.pop() else { return };
        let old = self.buckets.len() & (self.mask >> 1);
        if self.buckets.len() == (self.mask >> 1) + 1 {
            // The number of buckets is a power of two now, so bucket numbers need one bit less.
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

    /// Continues a scan: visits the items of one bucket, and of the bucket split from it if there
    /// is one. Returns the next cursor. A cursor of 0 starts a scan. A result of 0 ends the scan.
    pub fn scan(&self, cursor: u64, visit: &mut dyn FnMut(&T)) -> u64 {
        let len = self.buckets.len();
        let mask = if len > self.mask { self.mask } else { self.mask >> 1 };
        let bucket = cursor as usize & mask;
        self.visit_bucket(bucket, visit);
        if bucket + mask + 1 < len {
            self.visit_bucket(bucket + mask + 1, visit);
        }
        // Adds one to the cursor with its bits in reverse order. The bits above the mask are the
        // lowest ones in that order. They are set first, so that the carry passes through them into
        // the bucket number.
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

    /// Iterates over all items, unordered.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.item)
    }

    /// Iterates over all items with their hashes, unordered.
    pub fn iter_hashed(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|entry| (entry.hash, &entry.item))
    }
}

impl<T> Cut<T, usize> {
    /// Keeps the item at an index before it changes, unless the reader has passed it.
    fn keep_from(&mut self, index: usize, copy: impl FnOnce() -> T) {
        if index >= self.position {
            self.keep(index, copy);
        }
    }
}

/// Compares the items of two tables. Tables with different seeds always count as different, because
/// their hashes can't be compared.
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
