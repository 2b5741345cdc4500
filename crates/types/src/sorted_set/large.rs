//! A large sorted set: records (members with their scores), a tree that orders the records, and a
//! table that maps members to records. The tree and the table contain every record, except during a
//! bulk build: then the tree stays empty until all records have been added.

use super::records::Records;
use super::table::Table;
use super::tree::{Place, Tree};
use crate::cut::{Budget, Cut, CutCell, CutId, CutState, PieceMax};

/// A cut ([`crate::cut`]): the members and scores at one instant, for a reader. The *slot* of a
/// member (its number in the cut) is the id of its record. The reader proceeds in descending order,
/// and the position of the cut is the last score and member that it has reached.
type SetCut = Cut<(Box<[u8]>, f64), Option<(f64, Box<[u8]>)>>;

/// A large sorted set, as described at the head of this module.
#[derive(Clone, Debug)]
pub struct LargeSet {
    records: Records,
    table: Table,
    tree: Tree,
    seed: u64,
    cut: CutCell<SetCut>,
}

impl LargeSet {
    /// Returns an empty set with a table for this many members.
    pub(super) fn new(members: usize) -> Self {
        LargeSet {
            records: Records::new(),
            table: Table::new(members),
            tree: Tree::new(),
            seed: crate::table::seed(),
            cut: CutCell::default(),
        }
    }

    /// Returns the size of the set's heap memory in bytes, excluding `size_of::<LargeSet>()`. Takes
    /// constant time.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.records.allocated_bytes() + self.table.allocated_bytes() + self.tree.allocated_bytes()
    }

    /// Returns a copy without spare capacity.
    pub(super) fn copy(&self) -> Self {
        LargeSet {
            records: self.records.copy(),
            table: self.table.clone(),
            tree: self.tree.copy(),
            seed: self.seed,
            cut: CutCell::default(),
        }
    }

    /// Returns the number of members.
    #[inline]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Returns whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether this many members of any length can be added.
    #[inline]
    pub(super) fn has_room(&self, members: usize) -> bool {
        self.records.has_room(members)
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

    /// Returns the rank of a record.
    pub(super) fn rank_of(&self, id: u32) -> usize {
        let (score, member) = (self.records.score(id), self.records.member(id));
        let before = |other: f64, other_id: u32| {
            other < score || (other == score && other_id != id && self.records.member(other_id) < member)
        };
        self.tree.partition(before, &self.records).rank
    }

    /// Returns the number of members whose scores satisfy `before`. If a score satisfies `before`,
    /// all lower scores must satisfy it too.
    pub(super) fn count_scores(&self, before: impl Fn(f64) -> bool) -> usize {
        self.tree.partition(|score, _| before(score), &self.records).rank
    }

    /// Returns the number of members that satisfy `before`. All members must have the same score.
    /// If a member satisfies `before`, all lesser members must satisfy it too.
    pub(super) fn count_members(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        self.tree.partition(|_, id| before(self.records.member(id)), &self.records).rank
    }

    /// Returns the place of a rank, which must be less than the length.
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

    /// Adds a new member.
    pub(super) fn insert(&mut self, member: &[u8], score: f64) {
        let id = self.add_record(member, score);
        self.tree.insert(id, &self.records);
    }

    /// Adds a record that isn't in the tree yet.
    fn add_record(&mut self, member: &[u8], score: f64) -> u32 {
        let hash = self.hash(member);
        let LargeSet { records, table, seed, .. } = self;
        let id = records.add(member, score);
        table.insert(hash, id, |id| pantala_dict::hash_key(*seed, records.member(id)));
        if let Some(cut) = self.cut.get_mut() {
            cut.take(id as usize);
        }
        id
    }

    /// Changes the score of a record.
    pub(super) fn set_score(&mut self, id: u32, score: f64) {
        self.keep(id);
        self.tree.remove(id, &self.records);
        self.records.set_score(id, score);
        self.tree.insert(id, &self.records);
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, id: u32) {
        self.tree.remove(id, &self.records);
        self.free_record(id);
    }

    /// Removes the member of a rank.
    pub(super) fn remove_nth(&mut self, rank: usize) {
        let id = self.tree.remove_nth(rank, &self.records);
        self.free_record(id);
    }

    /// Frees a record that is no longer in the tree.
    fn free_record(&mut self, id: u32) {
        self.keep(id);
        let LargeSet { records, table, seed, .. } = self;
        let hash_of = |id: u32| pantala_dict::hash_key(*seed, records.member(id));
        table.remove(hash_of(id), id, hash_of);
        records.remove(id);
    }

    /// Keeps a record for the cut, if one runs, before the record changes.
    #[inline]
    fn keep(&mut self, id: u32) {
        if let Some(cut) = self.cut.get_mut() {
            cut.keep(id as usize, || (self.records.member(id).into(), self.records.score(id)));
        }
    }

    /// Starts a cut of the current members and scores.
    pub fn begin_cut(&self) {
        self.cut.begin(Cut::new(self.records.ids(), self.len(), None));
    }

    /// Returns whether a cut runs.
    pub(super) fn has_cut(&self) -> bool {
        self.cut.is_running()
    }

    /// Passes the members of one piece of the cut to `read`, with the scores they had when the cut
    /// started. `read` returns the length of a member in bytes. The order is descending if the set
    /// doesn't change meanwhile.
    pub fn read_cut(&self, max: PieceMax, mut read: impl FnMut(&[u8], f64) -> usize) -> CutState {
        self.cut.read(|cut| {
            let mut budget = Budget::new(max);
            cut.drain(&mut budget, |(member, score)| read(&member, score));
            if budget.is_spent() {
                return CutState::More;
            }
            let mut rank = match &cut.position {
                Some((score, member)) => {
                    let before = |other: f64, other_id: u32| {
                        other < *score || (other == *score && self.records.member(other_id) < &**member)
                    };
                    self.tree.partition(before, &self.records).rank
                }
                None => self.len(),
            };
            let mut last = None;
            while rank > 0 && !budget.is_spent() {
                rank -= 1;
                let place = last.map_or_else(|| self.tree.nth(rank), |place| self.tree.previous(place));
                last = Some(place);
                let id = self.tree.id(place);
                if cut.take(id as usize) {
                    budget.spend(0);
                } else {
                    budget.spend(read(self.records.member(id), self.records.score(id)));
                    cut.received(1);
                }
            }
            if let Some(place) = last {
                let (member, score) = self.at(place);
                cut.position = Some((score, member.into()));
            }
            cut.state(rank == 0)
        })
    }

    /// Returns the id of the cut, if one runs.
    pub fn cut_id(&self) -> Option<CutId> {
        self.cut.id()
    }

    /// Ends the cut, if one runs.
    pub fn end_cut(&self) {
        self.cut.end();
    }

    /// Continues a scan of the table.
    pub(super) fn scan(&self, cursor: u64, count: usize, mut visit: impl FnMut(&[u8], f64)) -> u64 {
        let hash_of = |id: u32| self.hash(self.records.member(id));
        self.table.scan(cursor, count, hash_of, |id| visit(self.records.member(id), self.records.score(id)))
    }

    /// Adds a member with `score`. If the member exists, replaces its score by the result of
    /// `merge`, which receives the existing score. Returns the id of the new record, or `None` if
    /// the member exists. Doesn't update the tree, so callers must call [`LargeSet::build_tree`]
    /// after the last [`LargeSet::merge`].
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

    /// Builds the tree of a set whose records have these ids.
    pub(super) fn build_tree(&mut self, ids: &[u32]) {
        // The scores are sorted together with the ids, so that most comparisons don't read the
        // records.
        let mut order: Vec<(f64, u32)> = ids.iter().map(|&id| (self.records.score(id), id)).collect();
        order.sort_unstable_by(|one, two| {
            // `partial_cmp` never returns `None`, because scores are never NaN. 0 equals -0.
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
