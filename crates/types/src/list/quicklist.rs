//! A long list: a row of nodes.
//!
//! With a *plain depth* (`list-compress-depth` when the list was made) all nodes but so many at either end are compressed, as far as that
//! saves anything. Pushes and pops see plain nodes only; whatever works in the middle decompresses the node it changes first, and whatever
//! may have moved or changed nodes calls [`Quicklist::keep_depth`] when it is done.

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
    /// Nodes at either end that stay plain; 0: all.
    plain_depth: u32,
}

impl Quicklist {
    /// An empty one.
    pub(super) fn new(limit: NodeLimit) -> Self {
        Quicklist { plain_depth: limit.plain_depth, ..Quicklist::default() }
    }

    /// The list of a pack's entries.
    pub(super) fn from_pack(pack: PackRef<'_>, limit: NodeLimit) -> Self {
        let mut list = Quicklist::new(limit);
        if !pack.is_empty() {
            list.insert_node(0, Node::from_pack(pack));
        }
        list
    }

    /// Adds all entries of a pack at the back, as a node.
    pub(super) fn append_node(&mut self, pack: PackRef<'_>) {
        self.settle(End::Right);
        let mut node = Node::from_pack(pack);
        node.settle();
        self.insert_node(self.nodes.len(), node);
        self.keep_depth(0);
    }

    /// Whether nodes in its middle are compressed.
    pub(super) fn compresses(&self) -> bool {
        self.plain_depth > 0
    }

    /// Decompresses a node.
    #[inline]
    fn open(&mut self, number: usize) {
        if self.nodes[number].is_compressed() {
            self.node_bytes -= self.nodes[number].allocated_bytes();
            self.nodes[number].decompress();
            self.node_bytes += self.nodes[number].allocated_bytes();
        }
    }

    /// Compresses a node, if it is in the middle.
    fn close(&mut self, number: usize) {
        let depth = self.plain_depth as usize;
        if number >= depth && number + depth < self.nodes.len() {
            self.node_bytes -= self.nodes[number].allocated_bytes();
            self.nodes[number].compress();
            self.node_bytes += self.nodes[number].allocated_bytes();
        }
    }

    /// After nodes came or went, or the one of a number or its neighbours changed: those at the ends are plain, the others
    /// compressed.
    #[inline]
    fn keep_depth(&mut self, changed: usize) {
        if self.plain_depth > 0 {
            self.keep_depth_now(changed);
        }
    }

    #[cold]
    fn keep_depth_now(&mut self, changed: usize) {
        let (depth, len) = (self.plain_depth as usize, self.nodes.len());
        for from_end in 0..depth.min(len) {
            self.open(from_end);
            self.open(len - 1 - from_end);
        }
        if len > 2 * depth {
            self.close(depth);
            self.close(len - 1 - depth);
            (changed.saturating_sub(1)..=changed + 1).for_each(|number| self.close(number));
        }
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
        Ok(Quicklist { nodes, len: self.len, node_bytes, plain_depth: self.plain_depth })
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
        self.keep_depth(0);
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
            self.keep_depth(0);
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

    /// Changes a node, which is decompressed for it, and keeps the tallies.
    fn change<R>(&mut self, number: usize, work: impl FnOnce(&mut Node) -> R) -> R {
        self.open(number);
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
        self.open(number);
        let element = Element::of(value);
        let (at, old) = {
            let node = &self.nodes[number];
            let at = node.nth(within);
            (at, node.pack().next(at) - at)
        };
        let node = &self.nodes[number];
        let new = Encoded::of(element).len();
        let fits = node.entry_bytes() - old + new <= limit.bytes && new < limit.alone_bytes;
        if new <= old || fits || node.len() == 1 {
            self.change(number, |node| node.replace(at, element));
            return self.keep_depth(number);
        }
        self.remove_at(number, at, 1);
        self.insert_at(index, value, limit);
        self.keep_depth(number);
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
        self.open(number);
        let element = Element::of(value);
        let entry = Encoded::of(element);
        let node = &self.nodes[number];
        let at = node.nth(within);
        if node.has_room(entry.len(), limit) {
            self.change(number, |node| node.insert(at, element));
            return self.keep_depth(number);
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
        self.keep_depth(number);
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
            let Some(node) = self.nodes.get(number) else { break };
            let len = node.len();
            if len <= count {
                self.remove_node(number);
                count -= len;
                continue;
            }
            self.open(number);
            let node = &self.nodes[number];
            let (from, to) = match end {
                End::Left => (node.first(), node.nth(count)),
                End::Right => (node.nth(len - count), node.end()),
            };
            self.change(number, |node| node.remove(from, to, count));
            break;
        }
        self.keep_depth(0);
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
            let node = &self.nodes[number];
            // Most often there is nothing to be found: then a compressed node stays as it is.
            let gone = if node.is_compressed() && !holds(node, wanted) {
                0
            } else {
                self.change(number, |node| remove_equal_in(node, wanted, most - removed, backward))
            };
            removed += gone;
            let is_gone = if self.nodes[number].len() == 0 {
                self.remove_node(number);
                true
            } else {
                gone > 0 && self.merge(number, limit)
            };
            if gone > 0 {
                self.keep_depth(number);
            }
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
        if fits && let Some(mut right) = self.nodes.remove(number) {
            self.node_bytes -= right.allocated_bytes();
            self.len -= right.len();
            right.decompress();
            self.change(number - 1, |node| node.append(&right));
        }
        fits
    }
}

/// Whether an entry of a node equals a value.
fn holds(node: &Node, wanted: Element<'_>) -> bool {
    node.with_entries(|pack, first, end| {
        let mut at = first;
        while at < end {
            if pack.get(at) == wanted {
                return true;
            }
            at = pack.next(at);
        }
        false
    })
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
