//! The order of a large sorted set: a B+ tree of record ids, sorted by score and then by the bytes
//! of the member. A record is a member with its score: see [`Records`].
//!
//! For each child, an inner node holds the number of records below the child, and the score and id
//! of the first of these records. A search by rank compares these numbers, and a search by score
//! compares these scores. So a search reads no record before it reaches a leaf, except to compare
//! the members of equal scores. A leaf holds ids only. Leaves are linked in both directions.

use super::records::{NONE, Records};
use super::slab::Slab;

/// Maximum number of ids per leaf.
const LEAF: usize = 64;
/// Maximum number of children per inner node.
const FAN: usize = 32;
/// Number of ids per leaf in a tree that is built in bulk. The free space prevents a split at the
/// next insertion into the leaf.
const LEAF_BUILT: usize = 60;
/// Number of children per inner node in a tree that is built in bulk.
const FAN_BUILT: usize = 30;
/// A leaf with fewer ids than this merges with a neighbor if both together fill at most three
/// quarters of a leaf.
const LEAF_LOW: usize = LEAF / 4;
/// Like [`LEAF_LOW`], for inner nodes.
const FAN_LOW: usize = FAN / 4;
/// Maximum number of levels of inner nodes. Even with [`FAN_LOW`] children per node, a tree of this
/// many levels holds more leaves than there are ids.
const LEVELS_MAX: usize = 12;

#[derive(Clone, Debug)]
struct Leaf {
    len: u32,
    previous: u32,
    next: u32,
    ids: [u32; LEAF],
}

impl Leaf {
    fn ids(&self) -> &[u32] {
        &self.ids[..self.len as usize]
    }
}

#[derive(Clone, Debug)]
struct Inner {
    len: u32,
    children: [u32; FAN],
    /// Number of records below each child.
    counts: [u32; FAN],
    /// Score of each child's first record.
    scores: [f64; FAN],
    /// Id of each child's first record.
    firsts: [u32; FAN],
}

impl Inner {
    fn empty() -> Self {
        Inner { len: 0, children: [NONE; FAN], counts: [0; FAN], scores: [0.0; FAN], firsts: [NONE; FAN] }
    }

    fn len(&self) -> usize {
        self.len as usize
    }

    fn total(&self) -> u32 {
        self.counts[..self.len()].iter().sum()
    }

    fn insert(&mut self, at: usize, child: Child) {
        let len = self.len();
        self.children.copy_within(at..len, at + 1);
        self.counts.copy_within(at..len, at + 1);
        self.scores.copy_within(at..len, at + 1);
        self.firsts.copy_within(at..len, at + 1);
        self.len += 1;
        self.set(at, child);
    }

    fn set(&mut self, at: usize, child: Child) {
        self.children[at] = child.node;
        self.counts[at] = child.count;
        self.scores[at] = child.score;
        self.firsts[at] = child.first;
    }

    fn child(&self, at: usize) -> Child {
        Child { node: self.children[at], count: self.counts[at], score: self.scores[at], first: self.firsts[at] }
    }

    fn remove(&mut self, at: usize) {
        let len = self.len();
        self.children.copy_within(at + 1..len, at);
        self.counts.copy_within(at + 1..len, at);
        self.scores.copy_within(at + 1..len, at);
        self.firsts.copy_within(at + 1..len, at);
        self.len -= 1;
    }

    /// Moves the children at index `at` and greater indexes to the end of another node.
    fn move_to(&mut self, at: usize, other: &mut Inner) {
        for index in at..self.len() {
            other.insert(other.len(), self.child(index));
        }
        self.len = at as u32;
    }
}

/// The data that an inner node holds about a child.
#[derive(Clone, Copy, Debug)]
struct Child {
    node: u32,
    count: u32,
    score: f64,
    first: u32,
}

/// The path to a leaf: the inner nodes on the way, and for each node the index of the child on the
/// way.
#[derive(Clone, Copy)]
struct Path {
    steps: [(u32, u32); LEVELS_MAX],
    len: usize,
}

impl Path {
    fn push(&mut self, node: u32, index: usize) {
        self.steps[self.len] = (node, index as u32);
        self.len += 1;
    }
}

/// A position in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    leaf: u32,
    at: u32,
    /// Number of records before this position.
    pub(super) rank: usize,
}

/// The tree described at the head of this module.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    leaves: Slab<Leaf, 6>,
    inners: Slab<Inner, 4>,
    root: u32,
    /// Number of levels of inner nodes above the leaves.
    levels: usize,
    len: usize,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut leaves = Slab::new();
        let root = leaves.add(Leaf { len: 0, previous: NONE, next: NONE, ids: [NONE; LEAF] });
        Tree { leaves, inners: Slab::new(), root, levels: 0, len: 0 }
    }

    /// Builds a tree from ids that are in order.
    pub(super) fn build(ids: &[u32], records: &Records) -> Self {
        if ids.is_empty() {
            return Self::new();
        }
        let (mut leaves, mut inners) = (Slab::<Leaf, 6>::new(), Slab::<Inner, 4>::new());
        let mut level: Vec<Child> = Vec::with_capacity(ids.len().div_ceil(LEAF_BUILT));
        for chunk in ids.chunks(LEAF_BUILT) {
            let mut leaf = Leaf { len: chunk.len() as u32, previous: NONE, next: NONE, ids: [NONE; LEAF] };
            leaf.ids[..chunk.len()].copy_from_slice(chunk);
            if let Some(last) = level.last() {
                leaf.previous = last.node;
            }
            let node = leaves.add(leaf);
            if let Some(last) = level.last() {
                leaves.get_mut(last.node).next = node;
            }
            level.push(Child { node, count: chunk.len() as u32, score: records.score(chunk[0]), first: chunk[0] });
        }
        let mut levels = 0;
        while level.len() > 1 {
            let above = level.chunks(FAN_BUILT).map(|children| {
                let mut inner = Inner::empty();
                for child in children {
                    inner.insert(inner.len(), *child);
                }
                let count = inner.total();
                Child { node: inners.add(inner), count, ..children[0] }
            });
            level = above.collect();
            levels += 1;
        }
        Tree { leaves, inners, root: level[0].node, levels, len: ids.len() }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the size of the tree's heap memory in bytes. Takes constant time.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.leaves.allocated_bytes() + self.inners.allocated_bytes()
    }

    /// Returns a copy without spare capacity.
    pub(super) fn copy(&self) -> Self {
        Tree { leaves: self.leaves.copy(), inners: self.inners.copy(), ..*self }
    }

    /// Returns the place of the first record that doesn't satisfy `before`, which receives a score
    /// and an id. If a record satisfies `before`, all records before it must satisfy it too.
    #[inline]
    pub(super) fn partition(&self, before: impl Fn(f64, u32) -> bool, records: &Records) -> Place {
        let (_, mut place) = self.descend(before, records);
        let leaf = self.leaves.get(place.leaf);
        if place.at == leaf.len && leaf.next != NONE {
            place.leaf = leaf.next;
            place.at = 0;
        }
        place
    }

    #[inline]
    fn descend(&self, before: impl Fn(f64, u32) -> bool, records: &Records) -> (Path, Place) {
        let mut path = Path { steps: [(NONE, 0); LEVELS_MAX], len: 0 };
        let (mut node, mut rank) = (self.root, 0);
        for _ in 0..self.levels {
            let inner = self.inners.get(node);
            // Finds the last child whose first record satisfies `before`, or the first child if
            // there is no such child.
            let (mut low, mut high) = (0, inner.len() - 1);
            while low < high {
                let middle = (low + high).div_ceil(2);
                if before(inner.scores[middle], inner.firsts[middle]) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            rank += inner.counts[..low].iter().sum::<u32>() as usize;
            path.push(node, low);
            node = inner.children[low];
        }
        let at = self.leaves.get(node).ids().partition_point(|&id| before(records.score(id), id));
        (path, Place { leaf: node, at: at as u32, rank: rank + at })
    }

    /// Returns the place of a rank, which must be less than [`Tree::len`].
    pub(super) fn nth(&self, rank: usize) -> Place {
        self.descend_to(rank).1
    }

    fn descend_to(&self, rank: usize) -> (Path, Place) {
        let mut path = Path { steps: [(NONE, 0); LEVELS_MAX], len: 0 };
        let (mut node, mut left) = (self.root, rank);
        for _ in 0..self.levels {
            let inner = self.inners.get(node);
            let mut index = 0;
            while index + 1 < inner.len() && left >= inner.counts[index] as usize {
                left -= inner.counts[index] as usize;
                index += 1;
            }
            path.push(node, index);
            node = inner.children[index];
        }
        (path, Place { leaf: node, at: left as u32, rank })
    }

    /// Returns the id at a place, which must not be the end.
    #[inline]
    pub(super) fn id(&self, place: Place) -> u32 {
        self.leaves.get(place.leaf).ids[place.at as usize]
    }

    /// Returns the place after `place`, which must not be the end.
    #[inline]
    pub(super) fn next(&self, mut place: Place) -> Place {
        let leaf = self.leaves.get(place.leaf);
        place.at += 1;
        place.rank += 1;
        if place.at == leaf.len && leaf.next != NONE {
            place.leaf = leaf.next;
            place.at = 0;
        }
        place
    }

    /// Returns the place before `place`, which must not be the first.
    #[inline]
    pub(super) fn previous(&self, mut place: Place) -> Place {
        place.rank -= 1;
        if place.at == 0 {
            place.leaf = self.leaves.get(place.leaf).previous;
            place.at = self.leaves.get(place.leaf).len;
        }
        place.at -= 1;
        place
    }

    /// Inserts a record's id by its score and member.
    pub(super) fn insert(&mut self, id: u32, records: &Records) {
        let (score, member) = (records.score(id), records.member(id));
        let before = |other: f64, other_id: u32| other < score || (other == score && records.member(other_id) < member);
        let (path, place) = self.descend(before, records);
        self.len += 1;
        let at = place.at as usize;
        let leaf = self.leaves.get_mut(place.leaf);
        if (leaf.len as usize) < LEAF {
            leaf.ids.copy_within(at..leaf.len as usize, at + 1);
            leaf.ids[at] = id;
            leaf.len += 1;
            self.count_insertion(&path, (at == 0).then_some((score, id)));
            return;
        }
        self.split_leaf(&path, place, id, records);
    }

    /// Counts one more record along a path. `first` is the new first record of the leaf, or `None`
    /// if the first record is still the same.
    fn count_insertion(&mut self, path: &Path, mut first: Option<(f64, u32)>) {
        for &(node, index) in path.steps[..path.len].iter().rev() {
            let inner = self.inners.get_mut(node);
            inner.counts[index as usize] += 1;
            if let Some((score, id)) = first {
                inner.scores[index as usize] = score;
                inner.firsts[index as usize] = id;
            }
            first = first.filter(|_| index == 0);
        }
    }

    /// Inserts an id into a full leaf by splitting the leaf. If the id belongs at the very start or
    /// end of the tree, one of the two leaves gets all former ids and the other only this one. So
    /// ids that are inserted in order fill their leaves.
    fn split_leaf(&mut self, path: &Path, place: Place, id: u32, records: &Records) {
        let at = place.at as usize;
        let old = self.leaves.get(place.leaf).clone();
        let cut = match at {
            LEAF if old.next == NONE => LEAF,
            0 if old.previous == NONE => 0,
            _ => LEAF / 2,
        };
        let mut right = Leaf { len: 0, previous: place.leaf, next: old.next, ids: [NONE; LEAF] };
        right.len = (LEAF - cut) as u32;
        right.ids[..LEAF - cut].copy_from_slice(&old.ids[cut..]);
        let is_right = at > cut || cut == LEAF;
        if is_right {
            let at = at - cut;
            right.ids.copy_within(at..LEAF - cut, at + 1);
            right.ids[at] = id;
            right.len += 1;
        }
        let new = self.leaves.add(right);
        if old.next != NONE {
            self.leaves.get_mut(old.next).previous = new;
        }
        let left = self.leaves.get_mut(place.leaf);
        left.next = new;
        left.len = cut as u32;
        if !is_right {
            left.ids.copy_within(at..cut, at + 1);
            left.ids[at] = id;
            left.len += 1;
        }
        let one = self.leaf_child(place.leaf, records);
        let two = self.leaf_child(new, records);
        self.replace_by_two(path, path.len, one, two);
    }

    fn leaf_child(&self, node: u32, records: &Records) -> Child {
        let leaf = self.leaves.get(node);
        Child { node, count: leaf.len, score: records.score(leaf.ids[0]), first: leaf.ids[0] }
    }

    fn inner_child(&self, node: u32) -> Child {
        let inner = self.inners.get(node);
        Child { node, count: inner.total(), ..inner.child(0) }
    }

    /// Replaces the child that a path takes at level `depth - 1` with two children, and updates the
    /// levels above. If `depth` is 0, creates a new root with these children.
    fn replace_by_two(&mut self, path: &Path, depth: usize, one: Child, two: Child) {
        let Some(level) = depth.checked_sub(1) else {
            let mut root = Inner::empty();
            root.insert(0, one);
            root.insert(1, two);
            self.root = self.inners.add(root);
            self.levels += 1;
            return;
        };
        let (node, index) = path.steps[level];
        let index = index as usize;
        let inner = self.inners.get_mut(node);
        inner.set(index, one);
        if inner.len() < FAN {
            inner.insert(index + 1, two);
            self.refresh(path, level);
            return;
        }
        let mut old = std::mem::replace(inner, Inner::empty());
        let mut right = Inner::empty();
        let cut = if index + 1 == FAN { FAN - 1 } else { FAN / 2 };
        old.move_to(cut, &mut right);
        if index + 1 > cut || cut == FAN - 1 {
            right.insert(index + 1 - cut, two);
        } else {
            old.insert(index + 1, two);
        }
        *self.inners.get_mut(node) = old;
        let new = self.inners.add(right);
        let (one, two) = (self.inner_child(node), self.inner_child(new));
        self.replace_by_two(path, level, one, two);
    }

    /// Updates the levels above `level` after the node at `level` changed.
    fn refresh(&mut self, path: &Path, level: usize) {
        for above in (0..level).rev() {
            let child = self.inner_child(path.steps[above + 1].0);
            let (node, index) = path.steps[above];
            self.inners.get_mut(node).set(index as usize, child);
        }
    }

    /// Removes the id of a record, which must be in the tree with its current score.
    pub(super) fn remove(&mut self, id: u32, records: &Records) {
        let (score, member) = (records.score(id), records.member(id));
        let before = |other: f64, other_id: u32| other < score || (other == score && records.member(other_id) < member);
        let (path, place) = self.descend(before, records);
        // The record to remove is the first one that doesn't satisfy the condition of this search.
        // If it is the first of its leaf, the search may return the end of the previous leaf, which
        // has the same rank.
        let (path, place) =
            if place.at < self.leaves.get(place.leaf).len { (path, place) } else { self.descend_to(place.rank) };
        debug_assert_eq!(self.id(place), id, "a record isn't where its score and member say");
        self.remove_at(&path, place, records);
    }

    /// Removes the id at a rank and returns it.
    pub(super) fn remove_nth(&mut self, rank: usize, records: &Records) -> u32 {
        let (path, place) = self.descend_to(rank);
        let id = self.id(place);
        self.remove_at(&path, place, records);
        id
    }

    fn remove_at(&mut self, path: &Path, place: Place, records: &Records) {
        self.len -= 1;
        let at = place.at as usize;
        let leaf = self.leaves.get_mut(place.leaf);
        leaf.ids.copy_within(at + 1..leaf.len as usize, at);
        leaf.len -= 1;
        let len = leaf.len as usize;
        let mut first = (at == 0 && len > 0).then(|| (records.score(leaf.ids[0]), leaf.ids[0]));
        for &(node, index) in path.steps[..path.len].iter().rev() {
            let inner = self.inners.get_mut(node);
            inner.counts[index as usize] -= 1;
            if let Some((score, id)) = first {
                inner.scores[index as usize] = score;
                inner.firsts[index as usize] = id;
            }
            first = first.filter(|_| index == 0);
        }
        if len < LEAF_LOW && path.len > 0 {
            self.merge_leaf(path, place.leaf, records);
        }
    }

    /// Merges a small leaf with a neighbor under the same parent, or removes the leaf if it is
    /// empty.
    #[cold]
    fn merge_leaf(&mut self, path: &Path, node: u32, records: &Records) {
        let level = path.len - 1;
        let (parent, index) = path.steps[level];
        let (inner, index) = (self.inners.get(parent), index as usize);
        if self.leaves.get(node).len == 0 {
            self.unlink_leaf(node);
            return self.drop_child(path, level, index);
        }
        let len = inner.len();
        let fits = |index: usize| (inner.counts[index] + inner.counts[index + 1]) as usize <= LEAF / 4 * 3;
        let left = match index {
            index if index + 1 < len && fits(index) => index,
            index if index > 0 && fits(index - 1) => index - 1,
            _ => return,
        };
        let (one, two) = (inner.children[left], inner.children[left + 1]);
        let removed = self.leaves.get(two).clone();
        let leaf = self.leaves.get_mut(one);
        let at = leaf.len as usize;
        leaf.ids[at..at + removed.len as usize].copy_from_slice(removed.ids());
        leaf.len += removed.len;
        self.unlink_leaf(two);
        let child = self.leaf_child(one, records);
        self.inners.get_mut(parent).set(left, child);
        self.drop_child(path, level, left + 1);
    }

    fn unlink_leaf(&mut self, node: u32) {
        let (previous, next) = (self.leaves.get(node).previous, self.leaves.get(node).next);
        if previous != NONE {
            self.leaves.get_mut(previous).next = next;
        }
        if next != NONE {
            self.leaves.get_mut(next).previous = previous;
        }
        self.leaves.remove(node);
    }

    /// Removes a child of the path's node at `level`. Then merges this node with a neighbor if few
    /// children are left, or removes the node if no children are left.
    fn drop_child(&mut self, path: &Path, level: usize, index: usize) {
        let (node, _) = path.steps[level];
        let inner = self.inners.get_mut(node);
        inner.remove(index);
        let len = inner.len();
        if level == 0 {
            // Replaces a root that has a single child by this child.
            let mut root = node;
            while self.levels > 0 && self.inners.get(root).len() == 1 {
                let child = self.inners.get(root).children[0];
                self.inners.remove(root);
                self.levels -= 1;
                root = child;
            }
            self.root = root;
            return;
        }
        let (parent, at) = path.steps[level - 1];
        let at = at as usize;
        if len == 0 {
            self.inners.remove(node);
            return self.drop_child(path, level - 1, at);
        }
        let child = self.inner_child(node);
        self.inners.get_mut(parent).set(at, child);
        if len < FAN_LOW && self.merge_inner(parent, at) {
            let removed = self.free_emptied(parent, at);
            return self.drop_child(path, level - 1, removed);
        }
        self.refresh(path, level - 1);
    }

    /// Merges the child of `parent` at index `at` with a neighbor if the two have few children:
    /// moves the children of the right node to the left node. Returns whether the nodes were
    /// merged.
    fn merge_inner(&mut self, parent: u32, at: usize) -> bool {
        let above = self.inners.get(parent);
        let lens = |index: usize| self.inners.get(above.children[index]).len();
        let fits = |index: usize| lens(index) + lens(index + 1) <= FAN / 4 * 3;
        let left = match at {
            at if at + 1 < above.len() && fits(at) => at,
            at if at > 0 && fits(at - 1) => at - 1,
            _ => return false,
        };
        let (one, two) = (above.children[left], above.children[left + 1]);
        let mut removed = self.inners.get(two).clone();
        removed.move_to(0, self.inners.get_mut(one));
        self.inners.get_mut(two).len = 0;
        let child = self.inner_child(one);
        self.inners.get_mut(parent).set(left, child);
        true
    }

    /// Frees the child of `parent` that [`Tree::merge_inner`] emptied, at index `at` or `at + 1`.
    /// Returns the index.
    fn free_emptied(&mut self, parent: u32, at: usize) -> usize {
        let above = self.inners.get(parent);
        let is_empty = |index: &usize| self.inners.get(above.children[*index]).len() == 0;
        let removed = [at, at + 1].into_iter().filter(|index| *index < above.len()).find(is_empty).unwrap_or(at);
        let node = above.children[removed];
        self.inners.remove(node);
        removed
    }
}

#[cfg(test)]
mod check;
