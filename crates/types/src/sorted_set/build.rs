//! Builds sorted sets in bulk, for the results of `ZUNIONSTORE` and similar commands.

use super::{LargeSet, PackLimits, SortedSet, packed};
use crate::collection::Collection;
use crate::pack::Pack;

/// A sorted set under construction. Members are added in any order and sorted once.
#[derive(Debug)]
pub struct Builder {
    set: LargeSet,
    ids: Vec<u32>,
    len_bytes_max: usize,
}

impl Builder {
    /// Returns a builder with space for about this many members.
    pub fn with_capacity(members: usize) -> Self {
        Builder { set: LargeSet::new(members), ids: Vec::with_capacity(members), len_bytes_max: 0 }
    }

    /// Returns the number of members so far.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Adds a member with `score`. If the member exists, passes its score to `merge` and replaces
    /// it by the result.
    pub fn merge(&mut self, member: &[u8], score: f64, merge: impl FnOnce(f64) -> f64) {
        if let Some(id) = self.set.merge(member, score, merge) {
            self.ids.push(id);
            self.len_bytes_max = self.len_bytes_max.max(member.len());
        }
    }

    /// Returns the set, packed if the limits allow it.
    pub fn finish(mut self, limits: PackLimits) -> SortedSet {
        if self.is_empty() {
            return SortedSet::empty();
        }
        self.set.build_tree(&self.ids);
        if self.ids.len() as u64 > limits.entries || self.len_bytes_max as u64 > limits.value_bytes {
            return SortedSet::Large(Box::new(self.set));
        }
        let mut pack = Pack::new();
        for (member, score) in SortedSet::Large(Box::new(self.set)).view().iter() {
            member.with_bytes(|member| packed::push(&mut pack, member, score));
        }
        SortedSet::Packed(pack)
    }
}
