//! A long list: a row of nodes.

use std::collections::VecDeque;

use super::node::{Node, NodeLimit};
use crate::OutOfMemory;
use crate::pack::{Element, Encoded, PackRef};

/// Which end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The front (`LEFT`).
    Left,
    /// The back (`RIGHT`).
    Right,
}

/// A list in nodes. No node is empty.
#[derive(Clone, Debug, Default)]
pub struct Quicklist {
    nodes: VecDeque<Node>,
    len: usize,
    /// What the nodes take on the heap, bytes: kept up to date, so that nobody needs to sum it up.
    node_bytes: usize,
}

impl Quicklist {
    /// The list of a pack's entries.
    pub(super) fn from_pack(pack: PackRef<'_>) -> Self {
        let node = Node::from_pack(pack);
        let (len, node_bytes) = (node.len(), node.allocated_bytes());
        let nodes = if len == 0 { VecDeque::new() } else { VecDeque::from([node]) };
        Quicklist { nodes, len, node_bytes: if len == 0 { 0 } else { node_bytes } }
    }

    /// Adds all entries of a pack at the back, as a node.
    pub(super) fn append_node(&mut self, pack: PackRef<'_>) {
        self.settle(End::Right);
        let mut node = Node::from_pack(pack);
        node.settle();
        self.insert_node(self.nodes.len(), node);
    }

    pub(super) fn nodes(&self) -> &VecDeque<Node> {
        &self.nodes
    }

    /// Elements.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        size_of::<Self>() + self.nodes.capacity() * size_of::<Node>() + self.node_bytes
    }

    pub(super) fn copy(&self) -> Result<Self, OutOfMemory> {
        let nodes = self.nodes.iter().map(Node::copy).collect::<Result<VecDeque<_>, _>>()?;
        let node_bytes = nodes.iter().map(Node::allocated_bytes).sum();
        Ok(Quicklist { nodes, len: self.len, node_bytes })
    }

    /// The node an element is in, and its index there. The index must be below the length.
    pub(super) fn locate(&self, index: usize) -> Option<(usize, usize)> {
        if index <= self.len / 2 {
            let mut before = 0;
            for (number, node) in self.nodes.iter().enumerate() {
                if index < before + node.len() {
                    return Some((number, index - before));
                }
                before += node.len();
            }
        } else {
            let mut behind = self.len;
            for (number, node) in self.nodes.iter().enumerate().rev() {
                behind -= node.len();
                if index >= behind {
                    return Some((number, index - behind));
                }
            }
        }
        None
    }

    #[inline]
    pub(super) fn push(&mut self, end: End, value: &[u8], limit: NodeLimit) {
        let entry = Encoded::of(Element::of(value));
        let last = match end {
            End::Left => self.nodes.front_mut(),
            End::Right => self.nodes.back_mut(),
        };
        match last {
            Some(node) if node.has_room(entry.len(), limit) => {
                let before = node.allocated_bytes();
                match end {
                    End::Left => node.push_front(&entry, limit),
                    End::Right => node.push_back(&entry, limit),
                }
                self.node_bytes = self.node_bytes - before + node.allocated_bytes();
            }
            _ => self.push_node(end, &entry, limit),
        }
        self.len += 1;
    }

    /// What was the last node at an end gets no more.
    fn settle(&mut self, end: End) {
        let last = match end {
            End::Left => self.nodes.front_mut(),
            End::Right => self.nodes.back_mut(),
        };
        if let Some(node) = last {
            self.node_bytes -= node.allocated_bytes();
            node.settle();
            self.node_bytes += node.allocated_bytes();
        }
    }

    #[cold]
    fn push_node(&mut self, end: End, entry: &Encoded<'_>, limit: NodeLimit) {
        self.settle(end);
        let mut node = Node::default();
        match end {
            End::Left => node.push_front(entry, limit),
            End::Right => node.push_back(entry, limit),
        }
        self.node_bytes += node.allocated_bytes();
        match end {
            End::Left => self.nodes.push_front(node),
            End::Right => self.nodes.push_back(node),
        }
    }

    #[inline]
    pub(super) fn pop<R>(&mut self, end: End, take: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let node = match end {
            End::Left => self.nodes.front_mut()?,
            End::Right => self.nodes.back_mut()?,
        };
        let at = match end {
            End::Left => node.first(),
            End::Right => node.pack().previous(node.end()),
        };
        let result = take(node.pack().get(at));
        let before = node.allocated_bytes();
        if node.len() == 1 {
            self.node_bytes -= before;
            match end {
                End::Left => self.nodes.pop_front(),
                End::Right => self.nodes.pop_back(),
            };
        } else {
            match end {
                End::Left => node.pop_front(),
                End::Right => node.pop_back(),
            }
            self.node_bytes = self.node_bytes - before + node.allocated_bytes();
        }
        self.len -= 1;
        Some(result)
    }

    /// Changes a node and keeps the tallies.
    fn change<R>(&mut self, number: usize, work: impl FnOnce(&mut Node) -> R) -> R {
        let node = &mut self.nodes[number];
        let (bytes, len) = (node.allocated_bytes(), node.len());
        let result = work(node);
        self.node_bytes = self.node_bytes - bytes + node.allocated_bytes();
        self.len = self.len - len + node.len();
        result
    }

    fn insert_node(&mut self, number: usize, node: Node) {
        self.len += node.len();
        self.node_bytes += node.allocated_bytes();
        self.nodes.insert(number, node);
    }

    fn remove_node(&mut self, number: usize) {
        if let Some(node) = self.nodes.remove(number) {
            self.len -= node.len();
            self.node_bytes -= node.allocated_bytes();
        }
    }

    /// Puts a value in place of the element of an index, which must be below the length.
    pub(super) fn set(&mut self, index: usize, value: &[u8], limit: NodeLimit) {
        let Some((number, within)) = self.locate(index) else { return };
        let element = Element::of(value);
        let (at, old) = {
            let node = &self.nodes[number];
            let at = node.nth(within);
            (at, node.pack().next(at) - at)
        };
        let node = &self.nodes[number];
        let new = Encoded::of(element).len();
        if new <= old || node.entry_bytes() - old + new <= limit.bytes || node.len() == 1 {
            return self.change(number, |node| node.replace(at, element));
        }
        self.remove_at(number, at, 1);
        self.insert_at(index, value, limit);
    }

    /// Adds a value, which then has that index (at most the length).
    pub(super) fn insert_at(&mut self, index: usize, value: &[u8], limit: NodeLimit) {
        if index == 0 {
            return self.push(End::Left, value, limit);
        }
        if index >= self.len {
            return self.push(End::Right, value, limit);
        }
        let Some((number, within)) = self.locate(index) else { return };
        let element = Element::of(value);
        let entry = Encoded::of(element);
        let node = &self.nodes[number];
        let at = node.nth(within);
        if node.has_room(entry.len(), limit) {
            return self.change(number, |node| node.insert(at, element));
        }
        // Between two nodes already, or cut in two there.
        let number = if within == 0 {
            number
        } else {
            let rest = node.len() - within;
            let tail = self.change(number, |node| node.split_off(at, rest));
            self.insert_node(number + 1, tail);
            number + 1
        };
        if self.nodes[number - 1].has_room(entry.len(), limit) {
            self.change(number - 1, |node| node.push_back(&entry, limit));
        } else if self.nodes[number].has_room(entry.len(), limit) {
            self.change(number, |node| node.push_front(&entry, limit));
        } else {
            let mut node = Node::default();
            node.push_back(&entry, limit);
            node.settle();
            self.insert_node(number, node);
        }
    }

    /// Takes `count` elements of a node out, from a position on. `true`: the node went with them.
    fn remove_at(&mut self, number: usize, at: usize, count: usize) -> bool {
        if self.nodes[number].len() == count {
            self.remove_node(number);
            return true;
        }
        self.change(number, |node| {
            let end = (0..count).fold(at, |at, _| node.pack().next(at));
            node.remove(at, end, count);
        });
        false
    }

    /// Takes elements off an end.
    pub(super) fn cut(&mut self, end: End, mut count: usize) {
        while count > 0 {
            let number = match end {
                End::Left => 0,
                End::Right => self.nodes.len().saturating_sub(1),
            };
            let Some(node) = self.nodes.get(number) else { return };
            let len = node.len();
            if len <= count {
                self.remove_node(number);
                count -= len;
                continue;
            }
            let (from, to) = match end {
                End::Left => (node.first(), node.nth(count)),
                End::Right => (node.nth(len - count), node.end()),
            };
            self.change(number, |node| node.remove(from, to, count));
            return;
        }
    }

    /// Takes out up to `most` elements that equal a value, from the front or the back. Returns how many.
    pub(super) fn remove_equal(&mut self, wanted: Element<'_>, most: usize, backward: bool, limit: NodeLimit) -> usize {
        let mut removed = 0;
        let mut number = if backward { self.nodes.len() } else { 0 };
        while removed < most {
            if backward {
                if number == 0 {
                    break;
                }
                number -= 1;
            } else if number >= self.nodes.len() {
                break;
            }
            let gone = self.change(number, |node| remove_equal_in(node, wanted, most - removed, backward));
            removed += gone;
            let is_gone = if self.nodes[number].len() == 0 {
                self.remove_node(number);
                true
            } else {
                gone > 0 && self.merge(number, limit)
            };
            if !backward && !is_gone {
                number += 1;
            }
        }
        removed
    }

    /// Joins a node with the one before it when both are small, so that removals don't leave a crowd of small nodes. Says
    /// whether it did.
    fn merge(&mut self, number: usize, limit: NodeLimit) -> bool {
        if number == 0 {
            return false;
        }
        let (left, right) = (&self.nodes[number - 1], &self.nodes[number]);
        let fits =
            left.entry_bytes() + right.entry_bytes() <= limit.bytes / 2 && left.len() + right.len() <= limit.entries;
        if fits && let Some(right) = self.nodes.remove(number) {
            self.node_bytes -= right.allocated_bytes();
            self.len -= right.len();
            self.change(number - 1, |node| node.append(&right));
        }
        fits
    }
}

/// Takes out up to `most` entries of a node that equal a value. It may be empty afterwards.
fn remove_equal_in(node: &mut Node, wanted: Element<'_>, most: usize, backward: bool) -> usize {
    let mut removed = 0;
    let mut at = if backward { node.end() } else { node.first() };
    // Room may be given back by a removal, which moves all: distances from the end (or the front) stay.
    while removed < most {
        if backward {
            if at <= node.first() {
                break;
            }
            at = node.pack().previous(at);
        } else if at >= node.end() {
            break;
        }
        let next = node.pack().next(at);
        if node.pack().get(at) == wanted {
            let from_first = at - node.first();
            node.remove(at, next, 1);
            removed += 1;
            at = node.first() + from_first;
        } else if !backward {
            at = next;
        }
    }
    removed
}
