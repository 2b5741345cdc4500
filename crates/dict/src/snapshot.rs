//! Snapshots: all entries as they were at one instant, while the dictionary continues to change.
//!
//! The head of each record (an entry in memory) has an *epoch* bit, and so has the table.
//! [`Dict::begin_snapshot`] flips the table's bit. From then on, a record whose bit differs from
//! the table's belongs to the snapshot and has not been kept. Such an entry is passed to the
//! [`Keeper`] in three cases: the walk over all entries reaches it, or it is about to be changed or
//! removed. Once the keeper has kept the whole entry, the entry's bit is flipped. New entries get
//! the table's bit. When the walk has ended, all bits are equal again.
//!
//! Every change of an entry, except of its access word, calls [`Table::before_change`]. The keeper
//! therefore sees the access word as it is when the entry is passed, not as it was at the start of
//! the snapshot.
//!
//! While no snapshot runs, `before_change` costs one test of a byte. The byte is in the same cache
//! line as the directory's address, which every lookup reads anyway.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::dict::Dict;
use crate::entry::EntryRef;
use crate::memory::prefetch;
use crate::record::Record;
use crate::scan::CURSOR_BITS;
use crate::table::Table;

/// Number of slots that a walk gathers before it visits their records. The cache misses of these
/// records overlap.
const GATHERED: usize = 32;

/// Bit of [`Table::epoch`]: the epoch bit of new records.
pub(crate) const EPOCH_BIT: u8 = 1;
/// Bit of [`Table::epoch`]: a snapshot runs.
const KEEPS: u8 = 2;

/// Receives the entries of a snapshot, and writes them down or copies them.
pub trait Keeper<V>: Send {
    /// Keeps an entry that existed when the snapshot started. Returns whether the whole entry has
    /// been kept. If not, the entry is passed again at its next change and by the walk. With
    /// [`Reason::Removal`] the result is ignored, because a removed entry can't be passed again.
    fn keep(&mut self, entry: EntryRef<'_, V>, reason: Reason) -> bool;

    /// Returns whether the walk should return to its caller, which can then do other work. The walk
    /// calls this method after each entry that it passes, whether it has kept the entry now or
    /// found it already kept. After this method has returned true, it must return false until
    /// another entry has been passed to [`Self::keep`]. Otherwise the next call of the walk, which
    /// may start at entries that were already kept, would pause again without progress.
    fn needs_pause(&mut self) -> bool {
        false
    }
}

/// The reason for which an entry is passed to a [`Keeper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The walk has reached the entry.
    Walk,
    /// The entry is about to change. Its heap value, if it has one, stays the same object and may
    /// change only in place.
    Change,
    /// The entry is about to be removed, or its payload to be replaced.
    Removal,
}

/// A [`Keeper`] in the form that a table uses, because a table doesn't know the type of its values.
pub(crate) trait KeepRecord: Send {
    /// # Safety
    ///
    /// The record is in use in the dictionary that the keeper was given to, and nothing writes it
    /// during the call.
    unsafe fn keep(&mut self, record: Record, reason: Reason) -> bool;

    fn needs_pause(&mut self) -> bool;
}

struct Typed<V, K>(K, PhantomData<fn(V)>);

impl<V, K: Keeper<V>> KeepRecord for Typed<V, K> {
    unsafe fn keep(&mut self, record: Record, reason: Reason) -> bool {
        // SAFETY: by the caller's promise; the dictionary is one of `V`, since only
        // `Dict::begin_snapshot` makes such a keeper.
        self.0.keep(unsafe { EntryRef::new(record) }, reason)
    }

    fn needs_pause(&mut self) -> bool {
        self.0.needs_pause()
    }
}

impl Table {
    /// Passes the record of a slot to the keeper of the running snapshot, if any. Must be called
    /// before the record is changed or removed.
    #[inline(always)]
    pub(crate) fn before_change(&mut self, slot: NonNull<AtomicU64>, reason: Reason) {
        if self.epoch & KEEPS != 0 {
            self.keep(Self::record(slot), reason);
        }
    }

    /// Passes a record to the keeper, unless the record has been kept or is newer than the
    /// snapshot. Returns whether the keeper has kept the whole record or never needs it.
    #[cold]
    #[inline(never)]
    fn keep(&mut self, record: Record, reason: Reason) -> bool {
        let epoch_bit = self.epoch & EPOCH_BIT;
        // SAFETY: the callers pass records in use of this table, which they hold exclusively.
        unsafe {
            if record.epoch_bit() == epoch_bit {
                return true;
            }
            let is_kept = self.keeper.as_mut().is_none_or(|keeper| keeper.keep(record, reason));
            if is_kept || reason == Reason::Removal {
                record.set_epoch_bit(epoch_bit);
            }
            is_kept
        }
    }

    /// Passes a record to the keeper during the walk. Returns whether the walk continues with the
    /// next record.
    fn keep_walked(&mut self, record: Record) -> bool {
        self.keep(record, Reason::Walk) && !self.keeper.as_mut().is_some_and(|keeper| keeper.needs_pause())
    }
}

impl<V: 'static> Dict<V> {
    /// Starts a snapshot of all present entries. [`Self::walk_snapshot`] must be called until it
    /// returns `None`, then [`Self::end_snapshot`].
    ///
    /// # Panics
    ///
    /// If a snapshot runs already.
    pub fn begin_snapshot(&mut self, keeper: impl Keeper<V> + 'static) {
        assert!(!self.is_in_snapshot(), "one snapshot at a time");
        self.table.epoch = self.table.epoch ^ EPOCH_BIT | KEEPS;
        self.table.keeper = Some(Box::new(Typed(keeper, PhantomData)));
    }
}

impl<V> Dict<V> {
    /// Returns whether a snapshot runs.
    pub fn is_in_snapshot(&self) -> bool {
        self.table.epoch & KEEPS != 0
    }

    /// Passes the entries of at most `max_buckets` buckets (at least one) to the keeper, starting
    /// at a cursor. Cursor 0 starts the walk. Skips entries that have been kept. Returns the next
    /// cursor, or `None` at the end. Returns early if the keeper has kept only a part of the
    /// current entry or asks for a pause. The returned cursor is then at or before this entry.
    pub fn walk_snapshot(&mut self, cursor: u64, max_buckets: usize) -> Option<u64> {
        let table = &mut self.table;
        let (mut cursor, mut words) = (cursor & ((1 << CURSOR_BITS) - 1), Vec::with_capacity(2 * GATHERED));
        if cursor == 0 {
            // Entries never move into or out of the stash, so it can be visited at any point.
            for index in 0..table.stash.len() {
                let word = table.stash[index].load(Relaxed);
                // SAFETY: the stash holds slots in use.
                if !table.keep_walked(unsafe { Record::from_slot(word) }) {
                    return Some(0);
                }
            }
        }
        let mut gathered_from = cursor;
        for left in (0..max_buckets.max(1)).rev() {
            let part = table.part(cursor)?;
            part.for_each(|slot| {
                let word = slot.load(Relaxed);
                // SAFETY: a slot in use leads to a record in use.
                prefetch(unsafe { Record::from_slot(word) }.address());
                words.push(word);
            });
            cursor = part.next;
            if words.len() >= GATHERED || left == 0 || cursor == 0 {
                for word in words.drain(..) {
                    // SAFETY: the slot was in use above, and only epoch bits of records have
                    // changed since.
                    if !table.keep_walked(unsafe { Record::from_slot(word) }) {
                        return Some(gathered_from);
                    }
                }
                gathered_from = cursor;
            }
            if cursor == 0 {
                return None;
            }
        }
        Some(cursor)
    }

    /// Ends a snapshot after its walk, and drops the keeper.
    ///
    /// # Panics
    ///
    /// If no snapshot runs.
    pub fn end_snapshot(&mut self) {
        assert!(self.is_in_snapshot(), "no snapshot runs");
        self.table.epoch &= EPOCH_BIT;
        self.table.keeper = None;
    }
}
