//! Snapshots: all entries as they were at one instant, while the dictionary changes.
//!
//! The head of each record has an *epoch* bit, and so has the table. [`Dict::begin_snapshot`] flips
//! the table's bit: every record whose bit differs from it belongs to the snapshot and has not been
//! kept. An entry is passed to the [`Keeper`] once, and its bit flipped: by the walk over all
//! entries, or before its first change or its removal, whichever comes first. New entries get the
//! table's bit. When the walk has ended, all bits are equal again.
//!
//! Every way to change an entry passes [`Table::before_change`], which is one test of a byte beside
//! the directory's address while no snapshot runs. The access word is not part of a snapshot: the
//! keeper sees its value at the time of the call.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::dict::Dict;
use crate::entry::EntryRef;
use crate::memory::prefetch;
use crate::record::Record;
use crate::scan::CURSOR_BITS;
use crate::table::Table;

/// Slots that a walk gathers, so that their records' cache misses overlap.
const GATHERED: usize = 32;

/// Bit of [`Table::epoch`]: the epoch bit of new records.
pub(crate) const PARITY: u8 = 1;
/// Bit of [`Table::epoch`]: a snapshot runs.
const KEEPS: u8 = 2;

/// Keeps the entries of a snapshot.
pub trait Keeper<V>: Send {
    /// Keeps an entry that existed when the snapshot began. Returns whether the entry has been
    /// kept.
    ///
    /// If `is_forced`, the entry is about to change: the whole entry must be kept now, and the
    /// result is ignored. Otherwise the walk has reached the entry; if only a part of it has been
    /// kept, the next step of the walk passes it again.
    fn keep(&mut self, entry: EntryRef<'_, V>, is_forced: bool) -> bool;
}

/// A [`Keeper`] of a table, which doesn't know its values' type.
pub(crate) trait KeepRecord: Send {
    /// # Safety
    ///
    /// The record is in use in the dictionary that the keeper was given to, and nothing writes it
    /// during the call.
    unsafe fn keep(&mut self, record: Record, is_forced: bool) -> bool;
}

struct Typed<V, K>(K, PhantomData<fn(V)>);

impl<V, K: Keeper<V>> KeepRecord for Typed<V, K> {
    unsafe fn keep(&mut self, record: Record, is_forced: bool) -> bool {
        // SAFETY: by the caller's promise; the dictionary is one of `V`, since only
        // `Dict::begin_snapshot` makes such a keeper.
        self.0.keep(unsafe { EntryRef::new(record) }, is_forced)
    }
}

impl Table {
    /// Keeps the record of a slot for the running snapshot, if there is one. Callers must call this
    /// before they change or remove the record.
    #[inline(always)]
    pub(crate) fn before_change(&mut self, slot: NonNull<AtomicU64>) {
        if self.epoch & KEEPS != 0 {
            self.keep(Self::record(slot), true);
        }
    }

    /// Passes a record to the keeper unless it has been kept or is newer than the snapshot. Returns
    /// whether it has been kept.
    #[cold]
    #[inline(never)]
    fn keep(&mut self, record: Record, is_forced: bool) -> bool {
        let parity = self.epoch & PARITY;
        // SAFETY: the callers pass records in use of this table, which they hold exclusively.
        unsafe {
            if record.parity() == parity {
                return true;
            }
            let is_kept = self.keeper.as_mut().is_none_or(|keeper| keeper.keep(record, is_forced));
            if is_kept || is_forced {
                record.set_parity(parity);
            }
            is_kept || is_forced
        }
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
        self.table.epoch = self.table.epoch ^ PARITY | KEEPS;
        self.table.keeper = Some(Box::new(Typed(keeper, PhantomData)));
    }
}

impl<V> Dict<V> {
    /// Returns whether a snapshot runs.
    pub fn is_in_snapshot(&self) -> bool {
        self.table.epoch & KEEPS != 0
    }

    /// Passes the entries of at most `max_buckets` buckets (at least one), starting at a cursor, to
    /// the keeper, except those that have been kept. Returns the next cursor, or `None` at the end.
    /// 0 starts the walk.
    pub fn walk_snapshot(&mut self, cursor: u64, max_buckets: usize) -> Option<u64> {
        let table = &mut self.table;
        let (mut cursor, mut words) = (cursor & ((1 << CURSOR_BITS) - 1), Vec::with_capacity(2 * GATHERED));
        if cursor == 0 {
            // Entries never move into or out of the stash, so it can be visited at any point.
            for index in 0..table.stash.len() {
                let word = table.stash[index].load(Relaxed);
                // SAFETY: the stash holds slots in use.
                if !table.keep(unsafe { Record::from_slot(word) }, false) {
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
                    // SAFETY: the slot was in use above, and only bits of records have changed
                    // since.
                    if !table.keep(unsafe { Record::from_slot(word) }, false) {
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

    /// Ends a snapshot whose walk has ended, and drops its keeper.
    ///
    /// # Panics
    ///
    /// If no snapshot runs.
    pub fn end_snapshot(&mut self) {
        assert!(self.is_in_snapshot(), "a snapshot runs");
        self.table.epoch &= PARITY;
        self.table.keeper = None;
    }
}
