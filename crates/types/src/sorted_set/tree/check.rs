//! Checks a whole tree, for tests.

use super::Tree;
use crate::sorted_set::records::{NONE, Records};

impl Tree {
    /// Checks every node: order, counts, first records, links.
    pub(in crate::sorted_set) fn check(&self, records: &Records) {
        let mut ids = Vec::new();
        let mut last_leaf = NONE;
        let count = self.check_node(self.root, self.levels, records, &mut ids, &mut last_leaf);
        assert_eq!(count, self.len);
        assert_eq!(ids.len(), self.len);
        let key = |id: u32| (records.score(id), records.member(id));
        assert!(ids.windows(2).all(|pair| key(pair[0]) < key(pair[1])), "ids are out of order");
        if last_leaf != NONE {
            assert_eq!(self.leaves.get(last_leaf).next, NONE);
        }
    }

    fn check_node(&self, node: u32, level: usize, records: &Records, ids: &mut Vec<u32>, last: &mut u32) -> usize {
        if level == 0 {
            let leaf = self.leaves.get(node);
            assert_eq!(leaf.previous, *last);
            if *last != NONE {
                assert_eq!(self.leaves.get(*last).next, node);
            }
            assert!(leaf.len > 0 || self.levels == 0);
            *last = node;
            ids.extend_from_slice(leaf.ids());
            return leaf.len as usize;
        }
        let inner = self.inners.get(node);
        assert!(inner.len() > usize::from(level == self.levels), "an inner node has too few children");
        let mut total = 0;
        for index in 0..inner.len() {
            let from = ids.len();
            let count = self.check_node(inner.children[index], level - 1, records, ids, last);
            assert_eq!(count, inner.counts[index] as usize);
            assert_eq!(ids[from], inner.firsts[index]);
            assert_eq!(records.score(ids[from]), inner.scores[index]);
            total += count;
        }
        total
    }
}
