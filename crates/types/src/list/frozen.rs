//! The cut of a long list ([`crate::cut`]): the nodes that the list had at one instant, read in
//! order while the list changes.
//!
//! ```text
//! front (copies)  │  rest: numbers of the list's nodes  │  back (copies, the last node first)
//! ```
//!
//! Before a node in `rest` changes, this node and all nodes between it and the nearer edge of
//! `rest` are copied to `front` or `back`. So a change at an end of the list copies at most one
//! node, and a change in the middle may copy many.

use std::collections::VecDeque;
use std::ops::Range;

use super::node::Node;

/// The unread nodes of a cut, in the three parts described at the head of this module.
#[derive(Debug)]
pub(super) struct Frozen {
    front: VecDeque<Node>,
    rest: Range<usize>,
    back: Vec<Node>,
}

impl Frozen {
    /// Returns the cut of a list of this many nodes.
    pub(super) fn new(nodes: usize) -> Self {
        Frozen { front: VecDeque::new(), rest: 0..nodes, back: Vec::new() }
    }

    /// Passes the next node to `read`. Returns `None` at the end.
    pub(super) fn read<R>(&mut self, nodes: &VecDeque<Node>, read: impl FnOnce(&Node) -> R) -> Option<R> {
        if let Some(node) = self.front.pop_front() {
            return Some(read(&node));
        }
        if let Some(number) = self.rest.next() {
            return nodes.get(number).map(read);
        }
        self.back.pop().map(|node| read(&node))
    }

    /// Returns whether all nodes have been read.
    pub(super) fn is_read(&self) -> bool {
        self.front.is_empty() && self.rest.is_empty() && self.back.is_empty()
    }

    /// Keeps the node with this number before the node changes.
    pub(super) fn before_change(&mut self, nodes: &VecDeque<Node>, number: usize) {
        if self.rest.contains(&number) {
            if self.is_near_front(number) {
                self.keep_front(nodes, number + 1);
            } else {
                self.keep_back(nodes, number);
            }
        }
    }

    /// Adjusts `rest` before a node is inserted. If the new node would be within `rest`, first
    /// keeps the nodes between its place and the nearer edge.
    pub(super) fn before_insertion(&mut self, nodes: &VecDeque<Node>, number: usize) {
        if self.rest.start < number && number < self.rest.end {
            if self.is_near_front(number) {
                self.keep_front(nodes, number);
            } else {
                self.keep_back(nodes, number);
            }
        }
        if number <= self.rest.start {
            self.rest = self.rest.start + 1..self.rest.end + 1;
        }
    }

    /// Keeps a node and adjusts `rest` before the node is removed.
    pub(super) fn before_removal(&mut self, nodes: &VecDeque<Node>, number: usize) {
        self.before_change(nodes, number);
        if number < self.rest.start {
            self.rest = self.rest.start - 1..self.rest.end - 1;
        }
    }

    /// Adjusts `rest` before the nodes in a range that have no entries are removed. Each of these
    /// nodes was kept before it was emptied, so none of them is within `rest`.
    pub(super) fn before_removals(&mut self, nodes: &VecDeque<Node>, range: Range<usize>) {
        if range.start < self.rest.start {
            let before = nodes.range(range.start..range.end.min(self.rest.start));
            let removed = before.filter(|node| node.len() == 0).count();
            self.rest = self.rest.start - removed..self.rest.end - removed;
        }
    }

    fn is_near_front(&self, number: usize) -> bool {
        number - self.rest.start < self.rest.end - number
    }

    /// Copies the nodes before `to` to the front.
    fn keep_front(&mut self, nodes: &VecDeque<Node>, to: usize) {
        self.front.extend(nodes.range(self.rest.start..to).cloned());
        self.rest.start = to;
    }

    /// Copies the nodes starting at `from` to the back.
    fn keep_back(&mut self, nodes: &VecDeque<Node>, from: usize) {
        self.back.extend(nodes.range(from..self.rest.end).rev().cloned());
        self.rest.end = from;
    }
}
