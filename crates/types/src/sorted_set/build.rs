//! Builds sorted sets in bulk, for the results of `ZUNIONSTORE` and similar commands.

use super::{LargeSet, PackLimits, SortedSet, packed};
use crate::collection::Collection;
use crate::pack::Pack;

/// A sorted set under construction. Members are added in any order and sorted once.
#[derive(Debug)]
pub struct Builder {
    set: LargeSet,
    ids: Vec<u32>,
}

impl Builder {
    /// Returns a builder with space for about this many members.
    pub fn with_capacity(members: usize) -> Self {
        Builder { set: LargeSet::new(members), ids: Vec::with_capacity(members) }
    }

    /// Returns the number of members so far.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns whether another member can be added ([`SortedSetView::has_room`]).
    ///
    /// [`SortedSetView::has_room`]: super::SortedSetView::has_room
    pub fn has_room(&self) -> bool {
        self.set.has_room(1)
    }

    /// Adds a member with `score`. If the member exists, replaces its score by the result of
    /// `merge`, which receives the existing score.
    ///
    /// # Panics
    /// If there is no room ([`Self::has_room`]).
    pub fn merge(&mut self, member: &[u8], score: f64, merge: impl FnOnce(f64) -> f64) {
        if let Some(id) = self.set.merge(member, score, merge) {
            self.ids.push(id);
        }
    }

    /// Returns the set, packed if the limits allow it.
    pub fn finish(mut self, limits: PackLimits) -> SortedSet {
        self.set.build_tree(&self.ids);
        SortedSet::Large(Box::new(self.set)).packed_within(limits)
    }
}

impl SortedSet {
    /// Returns the set, packed if the limits allow it.
    pub fn packed_within(self, limits: PackLimits) -> Self {
        let SortedSet::Large(set) = &self else { return self };
        if set.is_empty() {
            return SortedSet::empty();
        }
        let is_short = |len: usize| len as u64 <= limits.value_bytes;
        if set.len() as u64 > limits.entries || !self.view().iter().all(|(member, _)| is_short(member.len())) {
            return self;
        }
        let mut pack = Pack::new();
        for (member, score) in self.view().iter() {
            member.with_bytes(|member| packed::push(&mut pack, member, score));
        }
        SortedSet::Packed(pack)
    }
}
