//! The cut of a stream ([`crate::cut`]): the nodes that the stream had at one instant, read in
//! order while the stream changes.
//!
//! A node that is not read yet is copied before it changes. The cut also has the groups and
//! counters in encoded form, which follow the nodes in a payload.

use std::collections::{BTreeMap, BTreeSet};

use super::id::StreamId;
use super::listpack::listpack_of;
use super::node::Node;
use super::ordered::{Keyed, Ordered, Place};
use crate::cut::{Budget, CutState, PieceMax};

/// The unread nodes of a cut. A node is identified by its first id.
#[derive(Debug)]
pub(super) struct Frozen {
    /// First id of the last node that was read.
    read: Option<StreamId>,
    /// First id of the last node of the cut.
    last: Option<StreamId>,
    /// Number of nodes that are not read.
    left: usize,
    /// Copies of nodes that changed before they were read.
    kept: BTreeMap<StreamId, Node>,
    /// New nodes with ids up to `last`, which don't belong to the cut. Such nodes are possible
    /// after `XSETID` lowered the last id.
    new: BTreeSet<StreamId>,
    tail: Vec<u8>,
}

/// A part of a cut.
pub(crate) enum CutPart<'a> {
    /// The first id and the listpack of a node.
    Node(StreamId, Vec<u8>),
    /// The encoded counters and groups, which follow the nodes.
    Tail(&'a [u8]),
}

impl CutPart<'_> {
    fn of(node: &Node) -> Self {
        CutPart::Node(node.first, listpack_of(node))
    }

    fn len(&self) -> usize {
        match self {
            CutPart::Node(_, listpack) => listpack.len(),
            CutPart::Tail(bytes) => bytes.len(),
        }
    }
}

impl Frozen {
    /// Returns the cut of the current nodes. `tail` follows the nodes in the payload.
    pub(super) fn new(nodes: &Ordered<Node>, tail: Vec<u8>) -> Self {
        let last = nodes.last().map(Keyed::key);
        Frozen { read: None, last, left: nodes.len(), kept: BTreeMap::new(), new: BTreeSet::new(), tail }
    }

    /// Copies a node before the node changes or is removed. Does nothing if the node doesn't belong
    /// to the cut, was read, or was copied already.
    pub(super) fn before_change(&mut self, node: &Node) {
        let id = node.key();
        let is_unread = Some(id) > self.read && Some(id) <= self.last;
        if is_unread && !self.new.contains(&id) && !self.kept.contains_key(&id) {
            self.kept.insert(id, node.clone());
        }
    }

    /// Records the first id of a new node, so that the reader skips the node.
    pub(super) fn added(&mut self, id: StreamId) {
        if Some(id) <= self.last {
            self.new.insert(id);
        }
    }

    /// Passes the nodes of one piece to `read`. Passes the tail after the last node.
    pub(super) fn read(&mut self, nodes: &Ordered<Node>, max: PieceMax, mut read: impl FnMut(CutPart<'_>)) -> CutState {
        let mut budget = Budget::new(max);
        let mut place = self.next_place(nodes);
        while !budget.is_spent() {
            let live = place.map(|place| nodes.get(place)).filter(|node| Some(node.key()) <= self.last);
            let kept = self.kept.first_key_value().map(|(id, _)| *id);
            let id = match (live.map(Keyed::key), kept) {
                (None, None) => {
                    read(CutPart::Tail(&self.tail));
                    return if self.left == 0 { CutState::Ended } else { CutState::Lost };
                }
                (Some(live), Some(kept)) => live.min(kept),
                (Some(id), None) | (None, Some(id)) => id,
            };
            let part = match (self.kept.remove(&id), live) {
                (Some(node), _) => Some(CutPart::of(&node)),
                (None, Some(node)) if !self.new.contains(&id) => Some(CutPart::of(node)),
                _ => None,
            };
            budget.spend(part.as_ref().map_or(0, CutPart::len));
            if let Some(part) = part {
                read(part);
                self.left = self.left.saturating_sub(1);
            }
            self.read = Some(id);
            if live.is_some_and(|node| node.key() == id) {
                place = place.and_then(|place| nodes.next(place));
            }
        }
        CutState::More
    }

    /// Returns the place of the first node after the last read node.
    fn next_place(&self, nodes: &Ordered<Node>) -> Option<Place> {
        let before = self.read.and_then(|id| nodes.floor(id));
        before.map_or_else(|| nodes.first_place(), |place| nodes.next(place))
    }
}
