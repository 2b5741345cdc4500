//! A shared view of a list. A view shows either form of a list as a sequence of *runs*: entries
//! that are contiguous in memory.
//!
//! Elements are passed to a closure and don't outlive the call, because the elements of a
//! compressed node lie in a temporary buffer.

use std::ops::ControlFlow;

use super::node::{Node, nth};
use super::quicklist::Quicklist;
use crate::Encoding;
use crate::cut::{CutState, PieceMax};
use crate::pack::{Element, PackRef};

/// A shared view of a [`List`](super::List).
#[derive(Clone, Copy, Debug)]
pub enum ListView<'a> {
    /// The packed form: one byte string.
    Packed(PackRef<'a>),
    /// A sequence of nodes.
    Nodes(&'a Quicklist),
}

/// A run: entries that are contiguous in memory. A packed list is one run. In a long list, each
/// node is a run.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) pack: PackRef<'a>,
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) len: usize,
}

impl<'a> ListView<'a> {
    /// Returns the encoding that `OBJECT ENCODING` shows.
    pub fn encoding(self) -> Encoding {
        Encoding::Quicklist
    }

    /// Returns the number of elements.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            ListView::Packed(pack) => pack.len(),
            ListView::Nodes(list) => list.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Passes the element at an index to `visit`. Negative indexes count from the end: -1 is the
    /// last element. Returns `None` if the index is out of range.
    pub fn get<R>(self, index: i64, visit: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let (number, index) = self.locate(resolve(index, self.len())?)?;
        self.with_run(number, |run| visit(run.pack.get(nth(run.pack, run.first, run.end, run.len, index))))
    }

    /// Passes the elements to `visit`, starting at an index, until `visit` breaks. Proceeds towards
    /// the end or, if `backward`, towards the front. The index counts from the front in both
    /// directions.
    pub fn visit_from(self, index: usize, backward: bool, mut visit: impl FnMut(Element<'_>) -> ControlFlow<()>) {
        let Some((mut number, index)) = self.locate(index) else { return };
        let mut start = Some(index);
        loop {
            let flow = self.with_run(number, |run| {
                let at = start.take().map(|index| nth(run.pack, run.first, run.end, run.len, index));
                if backward { run.visit_backward(at, &mut visit) } else { run.visit_forward(at, &mut visit) }
            });
            let next = if backward { number.checked_sub(1) } else { Some(number + 1) };
            match (flow, next) {
                (Some(ControlFlow::Continue(())), Some(next)) => number = next,
                _ => return,
            }
        }
    }

    /// Passes at most `count` elements to `visit`, starting at an index, like
    /// [`ListView::visit_from`].
    #[inline]
    pub fn visit_count(self, index: usize, backward: bool, count: usize, mut visit: impl FnMut(Element<'_>)) {
        let mut left = count;
        if left == 0 {
            return;
        }
        self.visit_from(index, backward, |element| {
            visit(element);
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }

    /// Passes all elements to `visit`, in order.
    pub fn for_each(self, visit: impl FnMut(Element<'_>)) {
        self.visit_count(0, false, usize::MAX, visit);
    }

    /// Returns whether all elements satisfy `is`. Stops at the first element that doesn't.
    pub fn all(self, mut is: impl FnMut(Element<'_>) -> bool) -> bool {
        let mut all = true;
        self.visit_from(0, false, |element| {
            all = is(element);
            if all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        all
    }

    /// Returns the index of the first element equal to a value.
    pub fn position(self, wanted: Element<'_>) -> Option<usize> {
        let mut index = 0;
        let is_missing = self.all(|element| {
            let other = element != wanted;
            index += usize::from(other);
            other
        });
        (!is_missing).then_some(index)
    }

    /// Returns statistics of the list's memory (`DEBUG OBJECT`).
    pub fn stats(self) -> ListStats {
        match self {
            ListView::Packed(pack) => {
                ListStats { nodes: 1, entry_bytes: pack.entries().len(), compresses: false, compressed: 0 }
            }
            ListView::Nodes(list) => ListStats {
                nodes: list.nodes().len(),
                entry_bytes: list.nodes().iter().map(Node::entry_bytes).sum(),
                compresses: list.compresses(),
                compressed: list.nodes().iter().filter(|node| node.is_compressed()).count(),
            },
        }
    }

    /// Returns the number of runs.
    pub(crate) fn runs(self) -> usize {
        match self {
            ListView::Packed(_) => 1,
            ListView::Nodes(list) => list.nodes().len(),
        }
    }

    /// Passes a run to `work`. Returns `None` if there is no such run.
    #[inline]
    pub(crate) fn with_run<R>(self, number: usize, work: impl FnOnce(Run<'_>) -> R) -> Option<R> {
        match self {
            ListView::Packed(pack) if number == 0 => {
                Some(work(Run { pack, first: pack.first(), end: pack.end(), len: pack.len() }))
            }
            ListView::Packed(_) => None,
            ListView::Nodes(list) => {
                let node = list.nodes().get(number)?;
                Some(node.with_entries(|pack, first, end| work(Run { pack, first, end, len: node.len() })))
            }
        }
    }

    /// Starts a cut ([`crate::cut`]): a reader can then read the current runs in pieces while the
    /// list changes. Returns false for a packed list, which has no cuts.
    pub(crate) fn begin_cut(self) -> bool {
        match self {
            ListView::Packed(_) => false,
            ListView::Nodes(list) => {
                list.begin_cut();
                true
            }
        }
    }

    /// Passes the runs of one piece of the cut to `read`, in order.
    pub(crate) fn read_cut(self, max: PieceMax, mut read: impl FnMut(Run<'_>)) -> CutState {
        match self {
            ListView::Packed(_) => CutState::Lost,
            ListView::Nodes(list) => list.read_cut(max, |node| {
                node.with_entries(|pack, first, end| {
                    read(Run { pack, first, end, len: node.len() });
                    end - first
                })
            }),
        }
    }

    /// Ends the cut, if one runs.
    pub(crate) fn end_cut(self) {
        if let ListView::Nodes(list) = self {
            list.end_cut();
        }
    }

    /// Returns the number of the run that has the element at an index, and the element's index in
    /// this run.
    fn locate(self, index: usize) -> Option<(usize, usize)> {
        if index >= self.len() {
            return None;
        }
        match self {
            ListView::Packed(_) => Some((0, index)),
            ListView::Nodes(list) => list.locate(index),
        }
    }
}

/// Converts a signed index to an index from the front. Returns `None` if the index is out of range.
pub fn resolve(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(len as i64)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < len)
}

/// Converts a signed, inclusive range of Redis. Returns the index of the range's first element and
/// the range's length.
pub fn resolve_range(start: i64, stop: i64, len: usize) -> (usize, usize) {
    let len = len as i64;
    let from_end = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let start = from_end(start).max(0);
    let stop = from_end(stop).min(len - 1);
    if start > stop { (0, 0) } else { (start as usize, (stop - start + 1) as usize) }
}

/// Statistics of a list's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListStats {
    /// Number of nodes. 1 for a packed list.
    pub nodes: usize,
    /// Uncompressed size of all entries, in bytes.
    pub entry_bytes: usize,
    /// Whether the list compresses the nodes in its middle.
    pub compresses: bool,
    /// Number of compressed nodes.
    pub compressed: usize,
}

impl Run<'_> {
    #[inline]
    fn visit_forward(
        &self,
        at: Option<usize>,
        visit: &mut impl FnMut(Element<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut at = at.unwrap_or(self.first);
        while at < self.end {
            visit(self.pack.get(at))?;
            at = self.pack.next(at);
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn visit_backward(
        &self,
        at: Option<usize>,
        visit: &mut impl FnMut(Element<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut end = at.map_or(self.end, |at| self.pack.next(at));
        while end > self.first {
            end = self.pack.previous(end);
            visit(self.pack.get(end))?;
        }
        ControlFlow::Continue(())
    }
}
