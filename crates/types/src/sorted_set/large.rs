//! A large sorted set: records, their order, and the way from a member to its record.

use super::records::Records;
use super::table::Table;
use super::tree::{Place, Tree};

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct LargeSet {
    records: Records,
    table: Table,
    tree: Tree,
    seed: u64,
}

impl LargeSet {
    /// An empty set, with room in its table for some members.
    pub(super) fn new(members: usize) -> Self {
        LargeSet { records: Records::new(), table: Table::new(members), tree: Tree::new(), seed: crate::table::seed() }
    }

    /// Bytes of heap beyond itself. Constant time.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.records.allocated_bytes() + self.table.allocated_bytes() + self.tree.allocated_bytes()
    }

    /// A copy without the room for growth.
    pub(super) fn copy(&self) -> Self {
        LargeSet { records: self.records.copy(), table: self.table.clone(), tree: self.tree.copy(), seed: self.seed }
    }

    /// Members.
    #[inline]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn hash(&self, member: &[u8]) -> u64 {
        pantala_dict::hash_key(self.seed, member)
    }

    #[inline]
    pub(super) fn find(&self, member: &[u8]) -> Option<u32> {
        self.table.find(self.hash(member), |id| self.records.member(id) == member)
    }

    #[inline]
    pub(super) fn score_of(&self, id: u32) -> f64 {
        self.records.score(id)
    }

    /// How many are before a record.
    pub(super) fn rank_of(&self, id: u32) -> usize {
        let (score, member) = (self.records.score(id), self.records.member(id));
        let before = |other: f64, other_id: u32| {
            other < score || (other == score && other_id != id && self.records.member(other_id) < member)
        };
        self.tree.partition(before, &self.records).rank
    }

    /// How many have a score for which `before` holds, which holds for the lowest ones.
    pub(super) fn count_scores(&self, before: impl Fn(f64) -> bool) -> usize {
        self.tree.partition(|score, _| before(score), &self.records).rank
    }

    /// How many are members for which `before` holds, where all have the same score.
    pub(super) fn count_members(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        self.tree.partition(|_, id| before(self.records.member(id)), &self.records).rank
    }

    /// The place of a rank, below the length.
    pub(super) fn nth(&self, rank: usize) -> Place {
        self.tree.nth(rank)
    }

    pub(super) fn at(&self, place: Place) -> (&[u8], f64) {
        let id = self.tree.id(place);
        (self.records.member(id), self.records.score(id))
    }

    pub(super) fn next(&self, place: Place) -> Place {
        self.tree.next(place)
    }

    pub(super) fn previous(&self, place: Place) -> Place {
        self.tree.previous(place)
    }

    /// Adds a member that isn't there.
    pub(super) fn insert(&mut self, member: &[u8], score: f64) {
        let id = self.add_record(member, score);
        self.tree.insert(id, &self.records);
    }

    /// Adds a record that the tree doesn't know of yet.
    fn add_record(&mut self, member: &[u8], score: f64) -> u32 {
        let hash = self.hash(member);
        let LargeSet { records, table, seed, .. } = self;
        let id = records.add(member, score);
        table.insert(hash, id, |id| pantala_dict::hash_key(*seed, records.member(id)));
        id
    }

    /// Gives a record another score.
    pub(super) fn set_score(&mut self, id: u32, score: f64) {
        self.tree.remove(id, &self.records);
        self.records.set_score(id, score);
        self.tree.insert(id, &self.records);
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, id: u32) {
        self.tree.remove(id, &self.records);
        self.forget(id);
    }

    /// Takes the one of a rank out.
    pub(super) fn remove_nth(&mut self, rank: usize) {
        let id = self.tree.remove_nth(rank, &self.records);
        self.forget(id);
    }

    /// Takes a record out that the tree doesn't know any more.
    fn forget(&mut self, id: u32) {
        let LargeSet { records, table, seed, .. } = self;
        let hash_of = |id: u32| pantala_dict::hash_key(*seed, records.member(id));
        table.remove(hash_of(id), id, hash_of);
        records.remove(id);
    }

    /// Goes on with a scan: as the members' table does.
    pub(super) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&[u8], f64)) -> u64 {
        let hash_of = |id: u32| self.hash(self.records.member(id));
        self.table.scan(cursor, count, hash_of, |id| visit(self.records.member(id), self.records.score(id)))
    }

    /// Adds a member, or gives the one that is there the score that `merge` makes of its own. Without order: only for a set
    /// that is being built, until [`LargeSet::put_in_order`].
    pub(super) fn merge(&mut self, member: &[u8], score: f64, merge: impl FnOnce(f64) -> f64) -> Option<u32> {
        match self.find(member) {
            Some(id) => {
                let merged = merge(self.records.score(id));
                self.records.set_score(id, merged);
                None
            }
            None => Some(self.add_record(member, score)),
        }
    }

    /// Orders a set whose records these are.
    pub(super) fn put_in_order(&mut self, ids: &[u32]) {
        // With the scores beside them, so that most comparisons don't look at the records.
        let mut order: Vec<(f64, u32)> = ids.iter().map(|&id| (self.records.score(id), id)).collect();
        order.sort_unstable_by(|one, two| {
            // No score is NaN, and 0 and -0 are equal.
            let by_score = one.0.partial_cmp(&two.0).unwrap_or(std::cmp::Ordering::Equal);
            by_score.then_with(|| self.records.member(one.1).cmp(self.records.member(two.1)))
        });
        let ids: Vec<u32> = order.into_iter().map(|(_, id)| id).collect();
        self.tree = Tree::build(&ids, &self.records);
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        self.tree.check(&self.records);
    }
}
