//! A hash with fields that expire.
//!
//! ```text
//! fields    the hash without expiry times: packed, or a table
//! times     table of field → Unix time in ms (8 bytes), for fields that expire
//! due       heap of (time, hash of the field), the earliest first
//! ```
//!
//! When a field is removed or its expiry time changes, the field's old entry stays in the heap. The
//! old entry is then *stale*: its time is not the expiry time of any field with its field hash. A
//! stale entry is removed when it reaches the top of the heap, and the heap is rebuilt when most of
//! its entries are stale. So the entry at the top is never stale, and its time shows whether any
//! field has expired. Changing an expiry time takes O(log n), and so does removing one expired
//! field.
//!
//! # Cost
//!
//! A field with an expiry time takes, in addition to the hash itself:
//!
//! - 20 to 25 bytes of table,
//! - 10 bytes plus the length of the field, rounded up by the allocator,
//! - at most 32 bytes of heap, plus the heap's spare capacity.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{Hash, HashView, find};
use crate::collection::Collection;
use crate::pair::Pair;
use crate::table::Table;

/// The heap is rebuilt when its number of stale entries exceeds the number of fields with an expiry
/// time by more than this. Without this constant, small heaps would be rebuilt often.
const STALE_MIN: usize = 16;

/// A hash with fields that expire. See the head of this module.
#[derive(Debug)]
pub struct ExpiringHash {
    /// Packed or a table, never [`Hash::Expiring`].
    pub(super) fields: Hash,
    times: Table<Pair>,
    due: BinaryHeap<Reverse<(i64, u32)>>,
}

fn time_of(pair: &Pair) -> i64 {
    // All values of this table have eight bytes.
    pair.value().try_into().map_or(i64::MAX, i64::from_le_bytes)
}

impl ExpiringHash {
    pub(super) fn new(fields: Hash) -> Self {
        ExpiringHash { fields, times: Table::with_capacity(0), due: BinaryHeap::new() }
    }

    /// Returns the fields and values as a hash without expiry times.
    pub fn fields(&self) -> HashView<'_> {
        self.fields.view()
    }

    /// Returns the expiry time of a field in Unix milliseconds, or `None` if the field has none.
    pub fn expiry(&self, field: &[u8]) -> Option<i64> {
        find(&self.times, field).map(|index| time_of(self.times.get(index)))
    }

    /// Returns the number of fields with an expiry time.
    pub fn expiring_len(&self) -> usize {
        self.times.len()
    }

    /// Returns whether there is an expired field.
    #[inline]
    pub(super) fn has_expired(&self, now_ms: i64) -> bool {
        self.due.peek().is_some_and(|Reverse((at, _))| *at <= now_ms)
    }

    /// Returns the number of expired fields.
    pub(super) fn expired_len(&self, now_ms: i64) -> usize {
        self.times.iter().filter(|pair| time_of(pair) <= now_ms).count()
    }

    pub(super) fn set_expiry(&mut self, field: &[u8], at_ms: i64) {
        let hash = self.times.hash(field);
        match find(&self.times, field) {
            Some(index) => self.times.change(index, |pair| pair.set_value(&at_ms.to_le_bytes())),
            None => self.times.insert(hash, Pair::new(field, &at_ms.to_le_bytes())),
        }
        self.due.push(Reverse((at_ms, hash)));
        self.sweep();
    }

    /// Removes the expiry time of a field. Returns whether the field had one.
    pub(super) fn clear_expiry(&mut self, field: &[u8]) -> bool {
        let Some(index) = find(&self.times, field) else { return false };
        self.times.remove(index);
        self.sweep();
        true
    }

    /// Removes at most `most` expired fields and calls `removed` with each. Returns the number of
    /// removed fields.
    pub(super) fn expire(&mut self, now_ms: i64, most: usize, mut removed: impl FnMut(&[u8])) -> usize {
        let mut expired = 0;
        while expired < most {
            let Some(&Reverse((at, hash))) = self.due.peek().filter(|Reverse((at, _))| *at <= now_ms) else { break };
            self.due.pop();
            let found = self.times.find(hash, |pair| time_of(pair) == at);
            if let Some(pair) = found.and_then(|index| self.times.remove(index)) {
                self.fields.remove(pair.field());
                removed(pair.field());
                expired += 1;
            }
        }
        self.sweep();
        expired
    }

    /// Removes a field if it is expired. Returns whether the field was removed.
    pub(super) fn expire_field(&mut self, field: &[u8], now_ms: i64) -> bool {
        let Some(index) = find(&self.times, field) else { return false };
        if time_of(self.times.get(index)) > now_ms {
            return false;
        }
        self.times.remove(index);
        self.sweep();
        self.fields.remove(field)
    }

    /// Removes stale entries from the top of the heap, and rebuilds the heap if most entries are
    /// stale.
    fn sweep(&mut self) {
        if self.due.len() > self.times.len() * 2 + STALE_MIN {
            self.due = self.times.iter_hashed().map(|(hash, pair)| Reverse((time_of(pair), hash))).collect();
        }
        while let Some(&Reverse((at, hash))) = self.due.peek()
            && self.times.find(hash, |pair| time_of(pair) == at).is_none()
        {
            self.due.pop();
        }
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        let heap = self.due.capacity() * size_of::<Reverse<(i64, u32)>>();
        self.fields.allocated_bytes() + self.times.allocated_bytes() + heap
    }

    pub(super) fn try_clone(&self) -> Result<Self, crate::OutOfMemory> {
        Ok(ExpiringHash { fields: self.fields.try_clone()?, times: self.times.clone(), due: self.due.clone() })
    }
}

/// Compares contents and ignores stale heap entries.
impl PartialEq for ExpiringHash {
    fn eq(&self, other: &Self) -> bool {
        self.fields == other.fields && self.times == other.times
    }
}

impl Eq for ExpiringHash {}
