//! A long list: a sequence of nodes.
//!
//! The *plain depth* (`list-compress-depth` when the list was created) is the number of nodes at
//! each end that stay uncompressed. 0 disables compression. The other nodes are compressed if this
//! saves memory. Pushes and pops touch uncompressed nodes only. A change in the middle first
//! decompresses the node to change, and then calls [`Quicklist::restore_depth`].

use std::collections::VecDeque;
use std::ops::Range;

use super::frozen::Frozen;
use super::node::{Node, NodeLimit};
use crate::OutOfMemory;
use crate::cut::{Budget, CutCell, CutId, CutState, PieceMax};
use crate::pack::{Element, Encoded, PackRef};

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The front (`LEFT`).
    Left,
    /// The back (`RIGHT`).
    Right,
}

/// A list of nodes, none of them empty.
#[derive(Clone, Debug, Default)]
pub struct Quicklist {
    nodes: VecDeque<Node>,
    len: usize,
    /// Heap memory of all nodes in bytes: a running sum, so that [`Self::allocated_bytes`] takes
    /// constant time.
    node_bytes: usize,
    /// Number of nodes at each end that stay uncompressed. 0 disables compression.
    plain_depth: u32,
    cut: CutCell<Frozen>,
}

impl Quicklist {
    /// Returns an empty list.
    pub(super) fn new(limit: NodeLimit) -> Self {
        Quicklist { plain_depth: limit.plain_depth, ..Quicklist::default() }
    }

    /// Returns a list with the entries of a pack.
    pub(super) fn from_pack(pack: PackRef<'_>, limit: NodeLimit) -> Self {
        let mut list = Quicklist::new(limit);
        if !pack.is_empty() {
            list.insert_node(0, Node::from_pack(pack));
        }
        list
    }

    /// Appends all entries of a pack as a node.
    pub(super) fn append_node(&mut self, pack: PackRef<'_>) {
        self.seal(End::Right);
        let mut node = Node::from_pack(pack);
        node.seal();
        self.insert_node(self.nodes.len(), node);
        self.restore_depth(0);
    }

    /// Returns whether the list compresses the nodes in its middle.
    pub(super) fn compresses(&self) -> bool {
        self.plain_depth > 0
    }

    /// Decompresses a node.
    #[inline]
    fn decompress(&mut self, number: usize) {
        if self.nodes[number].is_compressed() {
            self.node_bytes -= self.nodes[number].allocated_bytes();
            self.nodes[number].decompress();
            self.node_bytes += self.nodes[number].allocated_bytes();
        }
    }

    /// Compresses a node unless the plain depth includes it.
    fn compress_in_middle(&mut self, number: usize) {
        let depth = self.plain_depth as usize;
        if number >= depth && number + depth < self.nodes.len() {
            self.node_bytes -= self.nodes[number].allocated_bytes();
            self.nodes[number].compress();
            self.node_bytes += self.nodes[number].allocated_bytes();
        }
    }

    /// Restores the plain depth. Decompresses the nodes that are now within the plain depth of an
    /// end. Of all other nodes, compresses those that may have left the plain depth (the ones next
    /// to it), node `changed`, and its neighbors. Must be called after nodes were added, removed or
    /// changed.
    #[inline]
    fn restore_depth(&mut self, changed: usize) {
        if self.plain_depth > 0 {
            self.restore_depth_now(changed);
        }
    }

    #[cold]
    fn restore_depth_now(&mut self, changed: usize) {
        let (depth, len) = (self.plain_depth as usize, self.nodes.len());
        for from_end in 0..depth.min(len) {
            self.decompress(from_end);
            self.decompress(len - 1 - from_end);
        }
        if len > 2 * depth {
            self.compress_in_middle(depth);
            self.compress_in_middle(len - 1 - depth);
            (changed.saturating_sub(1)..=changed + 1).for_each(|number| self.compress_in_middle(number));
        }
    }

    pub(super) fn nodes(&self) -> &VecDeque<Node> {
        &self.nodes
    }

    /// Returns the number of elements.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        size_of::<Self>() + self.nodes.capacity() * size_of::<Node>() + self.node_bytes
    }

    pub(super) fn copy(&self) -> Result<Self, OutOfMemory> {
        let nodes = self.nodes.iter().map(Node::copy).collect::<Result<VecDeque<_>, _>>()?;
        let node_bytes = nodes.iter().map(Node::allocated_bytes).sum();
        Ok(Quicklist { nodes, len: self.len, node_bytes, plain_depth: self.plain_depth, cut: CutCell::default() })
    }

    /// Returns the number of the node that has the element at `index`, and the element's index in
    /// this node. Returns `None` if `index` is out of range.
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
        self.keep_end(end);
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

    /// Starts a cut ([`crate::cut`]): a reader can then read the current nodes in pieces while the
    /// list changes.
    pub(super) fn begin_cut(&self) {
        self.cut.begin(Frozen::new(self.nodes.len()));
    }

    /// Passes the nodes of one piece of the cut to `read`, in order. `read` returns the length of a
    /// node in bytes.
    pub(super) fn read_cut(&self, max: PieceMax, mut read: impl FnMut(&Node) -> usize) -> CutState {
        self.cut.read(|cut| {
            let mut budget = Budget::new(max);
            while !budget.is_spent()
                && let Some(bytes) = cut.read(&self.nodes, &mut read)
            {
                budget.spend(bytes);
            }
            if cut.is_read() { CutState::Ended } else { CutState::More }
        })
    }

    /// Returns the id of the cut, if one runs.
    pub(crate) fn cut_id(&self) -> Option<CutId> {
        self.cut.id()
    }

    /// Ends the cut, if one runs.
    pub(super) fn end_cut(&self) {
        self.cut.end();
    }

    /// Keeps the node at an end for the cut, if one runs, before the node changes.
    #[inline]
    fn keep_end(&mut self, end: End) {
        if let Some(cut) = self.cut.get_mut() {
            cut.before_change(&self.nodes, if end == End::Left { 0 } else { self.nodes.len().saturating_sub(1) });
        }
    }

    /// Releases the free space of the node at an end. Called before another node is added at this
    /// end.
    fn seal(&mut self, end: End) {
        let last = match end {
            End::Left => self.nodes.front_mut(),
            End::Right => self.nodes.back_mut(),
        };
        if let Some(node) = last {
            self.node_bytes -= node.allocated_bytes();
            node.seal();
            self.node_bytes += node.allocated_bytes();
        }
    }

    #[cold]
    fn push_node(&mut self, end: End, entry: &Encoded<'_>, limit: NodeLimit) {
        self.seal(end);
        let mut node = Node::default();
        match end {
            End::Left => node.push_front(entry, limit),
            End::Right => node.push_back(entry, limit),
        }
        self.node_bytes += node.allocated_bytes();
        if let Some(cut) = self.cut.get_mut() {
            cut.before_insertion(&self.nodes, if end == End::Left { 0 } else { self.nodes.len() });
        }
        match end {
            End::Left => self.nodes.push_front(node),
            End::Right => self.nodes.push_back(node),
        }
        self.restore_depth(0);
    }

    #[inline]
    pub(super) fn pop<R>(&mut self, end: End, take: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        self.keep_end(end);
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
            if let Some(cut) = self.cut.get_mut() {
                cut.before_removal(&self.nodes, if end == End::Left { 0 } else { self.nodes.len() - 1 });
            }
            match end {
                End::Left => self.nodes.pop_front(),
                End::Right => self.nodes.pop_back(),
            };
            self.restore_depth(0);
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

    /// Changes a node after decompressing it, and updates the running sums.
    fn change<R>(&mut self, number: usize, work: impl FnOnce(&mut Node) -> R) -> R {
        self.decompress(number);
        if let Some(cut) = self.cut.get_mut() {
            cut.before_change(&self.nodes, number);
        }
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
        if let Some(cut) = self.cut.get_mut() {
            cut.before_insertion(&self.nodes, number);
        }
        self.nodes.insert(number, node);
    }

    fn remove_node(&mut self, number: usize) {
        if let Some(cut) = self.cut.get_mut() {
            cut.before_removal(&self.nodes, number);
        }
        if let Some(node) = self.nodes.remove(number) {
            self.len -= node.len();
            self.node_bytes -= node.allocated_bytes();
        }
    }

    /// Replaces the element at an index, which must be less than the length.
    pub(super) fn set(&mut self, index: usize, value: &[u8], limit: NodeLimit) {
        let Some((number, within)) = self.locate(index) else { return };
        self.decompress(number);
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
            return self.restore_depth(number);
        }
        self.remove_at(number, at, 1);
        self.insert_at(index, value, limit);
        self.restore_depth(number);
    }

    /// Inserts a value at an index (at most the length).
    pub(super) fn insert_at(&mut self, index: usize, value: &[u8], limit: NodeLimit) {
        if index == 0 {
            return self.push(End::Left, value, limit);
        }
        if index >= self.len {
            return self.push(End::Right, value, limit);
        }
        let Some((number, within)) = self.locate(index) else { return };
        self.decompress(number);
        let element = Element::of(value);
        let entry = Encoded::of(element);
        let node = &self.nodes[number];
        let at = node.nth(within);
        if node.has_room(entry.len(), limit) {
            self.change(number, |node| node.insert(at, element));
            return self.restore_depth(number);
        }
        // The new element must be inserted between two nodes. So the node is split at the element's
        // place, unless that place is before all entries of the node.
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
            node.seal();
            self.insert_node(number, node);
        }
        self.restore_depth(number);
    }

    /// Removes `count` elements of a node, starting at a position. Returns whether this removed the
    /// node.
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

    /// Removes elements at an end.
    pub(super) fn trim(&mut self, end: End, mut count: usize) {
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
            self.decompress(number);
            let node = &self.nodes[number];
            let (from, to) = match end {
                End::Left => (node.first(), node.nth(count)),
                End::Right => (node.nth(len - count), node.end()),
            };
            self.change(number, |node| node.remove(from, to, count));
            break;
        }
        self.restore_depth(0);
    }

    /// Removes at most `most` elements equal to a value, from the front or the back. Returns the
    /// number of removed elements.
    pub(super) fn remove_equal(&mut self, wanted: Element<'_>, most: usize, backward: bool, limit: NodeLimit) -> usize {
        let (mut removed, mut visited, nodes) = (0, 0, self.nodes.len());
        let has_cut = self.cut.get_mut().is_some();
        // Nodes that lose all entries stay in the list until the end of this function, so that one
        // pass removes them all.
        let mut emptied: Option<Range<usize>> = None;
        // The last visited node with entries.
        let mut last = None;
        while removed < most && visited < nodes {
            let number = if backward { nodes - 1 - visited } else { visited };
            visited += 1;
            let node = &self.nodes[number];
            // In most nodes nothing matches. Such a node stays compressed, and a cut needs no copy
            // of it.
            let count = if (node.is_compressed() || has_cut) && !holds(node, wanted) {
                0
            } else {
                self.change(number, |node| remove_equal_in(node, wanted, most - removed, backward))
            };
            if count == 0 {
                last = Some(number);
                continue;
            }
            removed += count;
            let left = if backward { number.checked_sub(1) } else { last };
            let merged = left.filter(|&left| self.nodes[number].len() > 0 && self.merge(left, number, limit));
            if self.plain_depth > 0 {
                // If removals move this node to an end, `restore_depth` decompresses it.
                self.compress_in_middle(merged.unwrap_or(number));
            }
            if self.nodes[number].len() > 0 {
                last = Some(number);
            } else {
                let range = emptied.get_or_insert(number..number + 1);
                *range = range.start.min(number)..range.end.max(number + 1);
            }
        }
        if let Some(range) = emptied {
            self.remove_empty_nodes(range);
        }
        if removed > 0 {
            self.restore_depth(0);
        }
        removed
    }

    /// Appends the entries of node `right` to node `left` if both nodes are small, so that removals
    /// don't leave many small nodes. All nodes between `left` and `right` must be empty. Returns
    /// whether the entries were moved.
    fn merge(&mut self, left: usize, right: usize, limit: NodeLimit) -> bool {
        let (before, after) = (&self.nodes[left], &self.nodes[right]);
        let fits = before.entry_bytes() + after.entry_bytes() <= limit.bytes / 2
            && before.len() + after.len() <= limit.entries;
        if fits {
            let moved = self.change(right, std::mem::take);
            self.change(left, |node| node.append(&moved));
        }
        fits
    }

    /// Removes the nodes in a range that have no entries. [`Quicklist::change`] must have emptied
    /// these nodes, so that a cut has copies of them.
    fn remove_empty_nodes(&mut self, range: Range<usize>) {
        if let Some(cut) = self.cut.get_mut() {
            cut.before_removals(&self.nodes, range.clone());
        }
        let mut kept = range.start;
        for number in range.clone() {
            if self.nodes[number].len() > 0 {
                self.nodes.swap(kept, number);
                kept += 1;
            } else {
                self.node_bytes -= self.nodes[number].allocated_bytes();
            }
        }
        self.nodes.drain(kept..range.end);
    }
}

/// Returns whether an entry of a node equals a value.
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

/// Removes at most `most` entries of a node that equal a value. The node may be empty afterwards.
fn remove_equal_in(node: &mut Node, wanted: Element<'_>, most: usize, backward: bool) -> usize {
    let mut removed = 0;
    let mut at = if backward { node.end() } else { node.first() };
    // A removal may move all entries to shrink the node. So positions are kept as distances from
    // the first entry, which stay valid.
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
