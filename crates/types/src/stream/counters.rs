//! The counters of a stream, and the progress of its groups, which is derived from the counters.

use super::group::{ENTRIES_READ_UNKNOWN, Group};
use super::id::StreamId;

/// The counters of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of entries.
    pub length: u64,
    /// Id of the first entry, or 0-0 if there is none.
    pub first_id: StreamId,
    /// The last id. Every new entry must have a greater id. The last id is usually the largest id
    /// that an entry ever had, but `XSETID` may set another id.
    pub last_id: StreamId,
    /// The largest id that `XDEL` removed, or the id set by `XSETID`.
    pub max_deleted_id: StreamId,
    /// Number of entries ever added.
    pub entries_added: u64,
}

impl Counters {
    /// Returns whether `XDEL` may have removed an entry with this id or a later one (Redis's
    /// `streamRangeHasTombstones`).
    fn has_tombstones_from(&self, start: StreamId) -> bool {
        // Deletions of entries before the first entry don't count.
        let none = self.length == 0 || self.max_deleted_id == StreamId::MIN || self.first_id > self.max_deleted_id;
        !none && start <= self.max_deleted_id
    }

    /// Returns how many entries up to an id were ever added, or `None` if this isn't known without
    /// counting (Redis's `streamEstimateDistanceFromFirstEverEntry`).
    pub(crate) fn entries_up_to(&self, id: StreamId) -> Option<u64> {
        if self.entries_added == 0 {
            return Some(0);
        }
        if self.length == 0 && id <= self.last_id {
            return Some(self.entries_added);
        }
        if id >= self.last_id {
            return (id == self.last_id).then_some(self.entries_added);
        }
        if self.max_deleted_id != StreamId::MIN && self.max_deleted_id >= self.first_id {
            return None;
        }
        let before_first = self.entries_added.wrapping_sub(self.length);
        match id.cmp(&self.first_id) {
            std::cmp::Ordering::Less => Some(before_first),
            std::cmp::Ordering::Equal => Some(before_first.wrapping_add(1)),
            std::cmp::Ordering::Greater => None,
        }
    }

    /// Returns the `entries-read` of a group after the group reads an entry whose id is higher than
    /// the group's last id.
    #[inline]
    pub(super) fn entries_read_after(&self, group: &Group, id: StreamId) -> i64 {
        if group.entries_read != ENTRIES_READ_UNKNOWN && !self.has_tombstones_from(id) {
            group.entries_read.wrapping_add(1)
        } else if self.entries_added > 0 {
            self.entries_up_to(id).map_or(ENTRIES_READ_UNKNOWN, |count| count as i64)
        } else {
            group.entries_read
        }
    }

    /// Returns how many entries a group has yet to read, or `None` if this number is unknown.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        let added = self.entries_added as i64;
        if added == 0 {
            return Some(0);
        }
        if group.entries_read != ENTRIES_READ_UNKNOWN && !self.has_tombstones_from(group.last_id) {
            return Some(added.wrapping_sub(group.entries_read));
        }
        self.entries_up_to(group.last_id).map(|count| added.wrapping_sub(count as i64))
    }
}
