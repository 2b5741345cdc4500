//! A hash some of whose fields expire.
//!
//! ```text
//! fields    the hash as it would be without times: packed, or a table
//! times     table of field → unix time in ms (8 bytes), for those that have one
//! due       heap of (time, hash of the field): the earliest on top
//! ```
//!
//! An entry of the heap whose time the table doesn't confirm is stale: its field went, or has another time now. It stays until
//! it comes to the top, or until the stale ones are more than half, when the heap is made anew. So each change of a
//! time costs O(log n), and finding what is due costs O(log n) for each.
//!
//! # What it costs
//!
//! Per field with a time, beside its hash: 20 to 27 bytes of table, 10 bytes and its own length for the field (rounded up by
//! the allocator), and at most 32 of heap, more while it grows. Hashes without times pay nothing.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Hash, HashView, find};
use crate::collection::Collection;
use crate::pair::Pair;
use crate::table::Table;

/// Stale entries that a heap may have beside as many as there are times.
const STALE_MIN: usize = 16;

/// See the head of this module.
#[derive(Debug)]
pub struct Timed {
    /// Never one of this kind itself.
    pub(super) fields: Hash,
    times: Table<Pair>,
    due: BinaryHeap<Reverse<(i64, u32)>>,
}

fn time_of(pair: &Pair) -> i64 {
    // All values of the table are as long; another length can't come.
    pair.value().try_into().map_or(i64::MAX, i64::from_le_bytes)
}

impl Timed {
    pub(super) fn new(fields: Hash) -> Self {
        Timed { fields, times: Table::with_capacity(0), due: BinaryHeap::new() }
    }

    /// The fields and values, as a hash without times.
    pub fn fields(&self) -> HashView<'_> {
        self.fields.view()
    }

    /// When a field expires, unix time in ms; `None`: never.
    pub fn time(&self, field: &[u8]) -> Option<i64> {
        find(&self.times, field).map(|index| time_of(self.times.get(index)))
    }

    /// Fields that expire.
    pub fn times_len(&self) -> usize {
        self.times.len()
    }

    /// Whether there may be a field to expire.
    #[inline]
    pub(super) fn is_due(&self, now_ms: i64) -> bool {
        self.due.peek().is_some_and(|Reverse((at, _))| *at <= now_ms)
    }

    /// Fields whose time has come.
    pub(super) fn over_len(&self, now_ms: i64) -> usize {
        self.times.iter().filter(|pair| time_of(pair) <= now_ms).count()
    }

    pub(super) fn set_time(&mut self, field: &[u8], at_ms: i64) {
        let hash = self.times.hash(field);
        match find(&self.times, field) {
            Some(index) => self.times.change(index, |pair| pair.set_value(&at_ms.to_le_bytes())),
            None => self.times.insert(hash, Pair::new(field, &at_ms.to_le_bytes())),
        }
        self.due.push(Reverse((at_ms, hash)));
        self.sweep();
    }

    /// `false`: it had none.
    pub(super) fn clear_time(&mut self, field: &[u8]) -> bool {
        let Some(index) = find(&self.times, field) else { return false };
        self.times.remove(index);
        self.sweep();
        true
    }

    /// Removes expired fields, at most so many, calls `removed` with each, and returns how many.
    pub(super) fn expire(&mut self, now_ms: i64, most: usize, mut removed: impl FnMut(&[u8])) -> usize {
        let mut expired = 0;
        while expired < most {
            let Some(&Reverse((at, hash))) = self.due.peek().filter(|Reverse((at, _))| *at <= now_ms) else { break };
            self.due.pop();
            let Some(index) = self.times.find(hash, |pair| time_of(pair) == at) else { continue };
            if let Some(pair) = self.times.remove(index) {
                self.fields.remove(pair.field());
                removed(pair.field());
                expired += 1;
            }
        }
        self.sweep();
        expired
    }

    /// Takes one field out if its time has come. `false`: it hasn't, or there is none.
    pub(super) fn expire_field(&mut self, field: &[u8], now_ms: i64) -> bool {
        let Some(index) = find(&self.times, field) else { return false };
        if time_of(self.times.get(index)) > now_ms {
            return false;
        }
        self.times.remove(index);
        self.sweep();
        self.fields.remove(field)
    }

    /// Makes the heap anew when most of it is stale.
    fn sweep(&mut self) {
        if self.due.len() > self.times.len() * 2 + STALE_MIN {
            self.due = self.times.iter_hashed().map(|(hash, pair)| Reverse((time_of(pair), hash))).collect();
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let heap = self.due.capacity() * size_of::<Reverse<(i64, u32)>>();
        self.fields.allocated_bytes() + self.times.allocated_bytes() + heap
    }

    pub(super) fn try_clone(&self) -> Result<Self, crate::OutOfMemory> {
        Ok(Timed { fields: self.fields.try_clone()?, times: self.times.clone(), due: self.due.clone() })
    }
}

/// Whether they hold the same, whatever is stale.
impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields && self.times == other.times
    }
}

impl Eq for Timed {}
