//! The dictionary's public interface: adds the values' type to [`Table`], which owns directory,
//! segments and entries.

use core::marker::PhantomData;

use pantala_base::numa::Node;

use crate::arena::{self, Root};
use crate::bucket::{Bucket, EXPIRES_BIT, UNTAGGED_MASK};
use crate::entry::{Entry, EntryMut, EntryRef, Removed, VacantEntry, unbox};
use crate::hint::Hint;
use crate::occupancy::Occupancy;
use crate::record::{Record, fits_cell, value_len_max};
use crate::table::{Probe, Table};

/// A map from byte strings to [payloads](crate::Payload), each with an access word, user flags and
/// an optional expiry. The crate documentation describes its structure and cost.
///
/// Methods that take a hash expect [`hash_key`](crate::hash_key) of the key with the dictionary's
/// seed. With another hash a key isn't found, or is inserted twice; nothing worse happens.
#[repr(C)]
pub struct Dict<V> {
    pub(crate) table: Table,
    values: PhantomData<V>,
}

// SAFETY: the dictionary owns its segments, its directory, its slab and its values, none of which
// is tied to a thread. Hints on other threads only load atomic words.
unsafe impl<V: Send> Send for Dict<V> {}

impl<V> Dict<V> {
    /// Returns an empty dictionary for keys hashed with `seed`. The dictionary uses no memory
    /// except a root of one word.
    pub fn new(seed: u64) -> Self {
        Self { table: Table::new(seed), values: PhantomData }
    }

    /// Returns an empty dictionary like [`Self::new`], but with a root that belongs to
    /// [`crate::Roots`].
    pub(crate) fn with_root(seed: u64, root: &'static Root, node: Node) -> Self {
        Self { table: Table::with_root(seed, root, true, node), values: PhantomData }
    }

    /// Returns the seed of its keys' hashes.
    pub fn seed(&self) -> u64 {
        self.table.seed
    }

    /// Returns the number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.table.len
    }

    /// Returns whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.len == 0
    }

    /// Returns the number of entries with an expiry.
    #[inline]
    pub fn expiring(&self) -> usize {
        self.table.expiring
    }

    /// Returns the number of bytes that segments, directory and entries use. Excludes heap values
    /// and their boxes. Also excludes the slab's free cells, which [`Self::held_bytes`] includes.
    pub fn allocated_bytes(&self) -> usize {
        self.table.segment_bytes
            + size_of_val(self.table.directory)
            + self.table.large_bytes
            + self.table.slab.live_bytes()
    }

    /// Returns the number of resident bytes: that of [`Self::allocated_bytes`], with all pages that
    /// ever held a cell in place of the cells in use.
    pub fn held_bytes(&self) -> usize {
        self.allocated_bytes() - self.table.slab.live_bytes() + self.table.slab.touched_bytes()
    }

    /// Returns how the entries are distributed over the buckets. Visits every bucket.
    pub fn occupancy(&self) -> Occupancy {
        let mut occupancy = Occupancy {
            entries: self.len(),
            expiring: self.expiring(),
            directory_words: self.table.directory.len(),
            stashed: self.table.stash.len(),
            ..Occupancy::default()
        };
        for (_, segment) in self.table.segments() {
            occupancy.segments += 1;
            for bucket in 0..segment.buckets as usize {
                occupancy.buckets[segment.bucket(bucket).used()] += 1;
            }
        }
        occupancy
    }

    /// Returns a handle for prefetching from any thread.
    pub fn hint(&self) -> Hint {
        Hint::new(self.table.root)
    }

    /// Returns the maximum length of a bytes payload for an entry with an empty key. For other keys
    /// use [`Self::fits_inline`].
    pub const fn inline_max() -> usize {
        value_len_max()
    }

    /// Returns whether a value of this length fits inside the entry of a key of this length. Longer
    /// values should be heap values.
    #[inline]
    pub fn fits_inline(key_len: usize, value_len: usize) -> bool {
        fits_cell(key_len, value_len)
    }

    /// Looks up a key. Fastest if the key was not prefetched.
    // Always inlined. As a separate function it takes 1.5 times as long for keys outside the
    // caches: while one search waits for memory, the processor reaches less of the next search.
    #[inline(always)]
    pub fn find(&self, h: u64, key: &[u8]) -> Option<EntryRef<'_, V>> {
        match self.table.probe::<true>(h, key) {
            // SAFETY: the slot is in use, and the dictionary is borrowed.
            Probe::Found(slot) => Some(unsafe { EntryRef::new(Table::record(slot)) }),
            Probe::Absent(_) => None,
        }
    }

    /// Looks up a key to change its entry. Fastest after a [`Hint`] prefetched the key.
    #[inline]
    pub fn find_mut(&mut self, h: u64, key: &[u8]) -> Option<EntryMut<'_, V>> {
        match self.table.probe::<false>(h, key) {
            // SAFETY: the slot is in use, and `h` is its key's hash.
            Probe::Found(slot) => Some(unsafe { EntryMut::new(&mut self.table, slot, h) }),
            Probe::Absent(_) => None,
        }
    }

    /// Looks up an entry by its key's hash alone, for callers that remember hashes instead of
    /// copies of keys. If two keys share the hash, returns the entry of either.
    pub fn find_by_hash(&mut self, h: u64) -> Option<EntryMut<'_, V>> {
        // SAFETY: the slot is in use, and `h` is its key's hash.
        self.table.find_by_hash(h).map(|slot| unsafe { EntryMut::new(&mut self.table, slot, h) })
    }

    /// Finds the place of a key with one search, either to change its entry or to insert a new
    /// entry. Fastest after a [`Hint`] prefetched the key.
    #[inline]
    pub fn entry<'d>(&'d mut self, h: u64, key: &'d [u8]) -> Entry<'d, V> {
        match self.table.probe::<false>(h, key) {
            // SAFETY: the slot is in use, and `h` is its key's hash.
            Probe::Found(slot) => Entry::Occupied(unsafe { EntryMut::new(&mut self.table, slot, h) }),
            Probe::Absent(bucket) => {
                Entry::Vacant(VacantEntry { table: &mut self.table, h, key, bucket, values: PhantomData })
            }
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, h: u64, key: &[u8]) -> Option<Removed<V>> {
        self.find_mut(h, key).map(EntryMut::remove)
    }

    /// Moves all entries to a new dictionary and returns it. Hints keep referring to `self`, which
    /// is then empty.
    pub fn take(&mut self) -> Self {
        let table = Table::with_root(self.table.seed, arena::take_root(), false, self.table.slab.node());
        let mut taken = Self { table, values: PhantomData };
        core::mem::swap(&mut self.table, &mut taken.table);
        core::mem::swap(&mut self.table.root, &mut taken.table.root);
        core::mem::swap(&mut self.table.is_root_borrowed, &mut taken.table.is_root_borrowed);
        self.table.publish_directory();
        taken.table.publish_directory();
        taken
    }

    /// Frees the memory that an emptied dictionary keeps for later entries: a small segment and a
    /// directory. Returns whether it freed any. Does nothing if there are entries.
    pub fn release_if_empty(&mut self) -> bool {
        let releases = self.table.len == 0 && self.table.segment_bytes > 0;
        if releases {
            self.table.release();
        }
        releases
    }

    /// Visits all entries in unspecified order.
    pub fn for_each(&self, mut visit: impl FnMut(EntryRef<'_, V>)) {
        self.table.for_each_slot(&mut |slot| {
            // SAFETY: a slot in use, and the dictionary is borrowed.
            visit(unsafe { EntryRef::new(Record::from_slot(slot)) });
        });
    }

    /// Returns the number of slots that the last insert moved: 0, or the slots of the segment that
    /// the insert grew or split. If all keys fell on one side of a split, the insert split that
    /// side again, and the slots of each split count.
    pub fn entries_moved_by_last_insert(&self) -> usize {
        self.table.moved
    }

    /// Checks all counts and the position of every entry. Slow; for tests.
    ///
    /// # Panics
    ///
    /// If an invariant is violated.
    #[doc(hidden)]
    pub fn check(&self) {
        let (mut len, mut expiring, mut bytes, mut deepest) = (0, 0, 0, 0);
        for (h, segment) in self.table.segments() {
            let (mut segment_len, mut segment_expiring) = (0, 0);
            bytes += segment.size_bytes();
            deepest += usize::from(segment.depth == self.table.depth);
            let lines = if cfg!(miri) { 16 } else { crate::arena::SEGMENT_LINES };
            for i in 1..if segment.is_small() { segment.size_bytes() / size_of::<Bucket>() } else { lines } {
                let line = segment.lines.line(i);
                for (j, slot) in line.slots.iter().map(|s| s.load(core::sync::atomic::Ordering::Relaxed)).enumerate() {
                    if slot == 0 {
                        continue;
                    }
                    assert!(i as u64 <= segment.buckets && j < line.used(), "a slot out of place");
                    // SAFETY: a slot in use, and the dictionary is borrowed.
                    let (record, entry) = unsafe {
                        let record = Record::from_slot(slot);
                        (record, EntryRef::<V>::new(record))
                    };
                    assert_eq!(slot & UNTAGGED_MASK, record.slot(), "address or flags differ from the entry's");
                    let entry_hash = crate::hash_key(self.table.seed, entry.key());
                    assert_eq!(segment.tag(entry_hash), slot >> 48, "a wrong tag");
                    assert!(segment.depth == 0 || (entry_hash ^ h) >> (64 - segment.depth) == 0, "a wrong segment");
                    assert!(self.find(entry_hash, entry.key()).is_some(), "not found by its key");
                    assert_eq!(slot & EXPIRES_BIT == 1, entry.expire_at_ms().is_some());
                    // SAFETY: as above.
                    let epoch_bit = unsafe { record.epoch_bit() };
                    assert!(self.is_in_snapshot() || epoch_bit == self.table.epoch, "an entry of another epoch");
                    segment_len += 1;
                    segment_expiring += slot & EXPIRES_BIT;
                }
            }
            assert_eq!((segment.len(), segment.expiring()), (segment_len, segment_expiring));
            len += segment_len as usize;
            expiring += segment_expiring as usize;
        }
        for slot in &self.table.stash {
            len += 1;
            expiring += (slot.load(core::sync::atomic::Ordering::Relaxed) & EXPIRES_BIT) as usize;
        }
        assert_eq!((self.len(), self.expiring()), (len, expiring));
        assert_eq!((self.table.segment_bytes, self.table.deepest), (bytes, deepest));
    }
}

impl<V> Drop for Dict<V> {
    fn drop(&mut self) {
        // Entries are visited only if some of them own memory outside the slab. The slab itself
        // frees whole runs.
        if self.table.owning > 0 {
            let (table, slab) = (&self.table, &mut crate::slab::Slab::new(Node::ANY));
            table.for_each_slot(&mut |slot| {
                // SAFETY: every slot in use is visited once and never again, as the table is being
                // dropped. The record's heap pointer is a boxed `V`. `free` doesn't use the slab
                // for a large record, so any slab will do.
                unsafe {
                    let record = Record::from_slot(slot);
                    if let Some(value) = record.heap() {
                        drop(unbox::<V>(value));
                    }
                    if record.is_large() {
                        record.free(slab);
                    }
                }
            });
        }
    }
}
