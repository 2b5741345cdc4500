//! A list, to be read: the same for both forms, as a row of *runs* of entries.
//!
//! Elements are shown to a closure and don't outlive the call: where a node is compressed they stand in memory that is gone afterwards.

use std::ops::ControlFlow;

use super::node::{Node, nth};
use super::quicklist::Quicklist;
use crate::Encoding;
use crate::pack::{Element, PackRef};

/// A [`List`](super::List), to be read.
#[derive(Clone, Copy, Debug)]
pub enum ListView<'a> {
    /// In one piece.
    Packed(PackRef<'a>),
    /// In nodes.
    Nodes(&'a Quicklist),
}

/// Entries that stand in one piece of memory.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    pub(crate) pack: PackRef<'a>,
    pub(crate) first: usize,
    pub(crate) end: usize,
    pub(crate) len: usize,
}

impl<'a> ListView<'a> {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(self) -> Encoding {
        Encoding::Quicklist
    }

    /// Elements.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            ListView::Packed(pack) => pack.len(),
            ListView::Nodes(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Shows the element of an index; negative ones count from the end, -1 being the last.
    pub fn get<R>(self, index: i64, show: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let (number, index) = self.locate(resolve(index, self.len())?)?;
        self.with_run(number, |run| show(run.pack.get(nth(run.pack, run.first, run.end, run.len, index))))
    }

    /// Shows the elements from an index (from the front, whichever way it goes) on, towards the end or `backward` to the front, until
    /// `show` breaks off.
    pub fn show_from(self, index: usize, backward: bool, mut show: impl FnMut(Element<'_>) -> ControlFlow<()>) {
        let Some((mut number, index)) = self.locate(index) else { return };
        let mut start = Some(index);
        loop {
            let flow = self.with_run(number, |run| {
                let at = start.take().map(|index| nth(run.pack, run.first, run.end, run.len, index));
                if backward { run.show_backward(at, &mut show) } else { run.show_forward(at, &mut show) }
            });
            let next = if backward { number.checked_sub(1) } else { Some(number + 1) };
            match (flow, next) {
                (Some(ControlFlow::Continue(())), Some(next)) => number = next,
                _ => return,
            }
        }
    }

    /// Shows up to `count` elements from an index on, as [`ListView::show_from`].
    #[inline]
    pub fn show_count(self, index: usize, backward: bool, count: usize, mut show: impl FnMut(Element<'_>)) {
        let mut left = count;
        if left == 0 {
            return;
        }
        self.show_from(index, backward, |element| {
            show(element);
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }

    /// Shows all elements in order.
    pub fn for_each(self, show: impl FnMut(Element<'_>)) {
        self.show_count(0, false, usize::MAX, show);
    }

    /// Whether all elements are so; stops at the first that isn't.
    pub fn all(self, mut is: impl FnMut(Element<'_>) -> bool) -> bool {
        let mut all = true;
        self.show_from(0, false, |element| {
            all = is(element);
            if all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        all
    }

    /// Index of the first element that equals a value.
    pub fn position(self, wanted: Element<'_>) -> Option<usize> {
        let mut index = 0;
        let is_missing = self.all(|element| {
            let other = element != wanted;
            index += usize::from(other);
            other
        });
        (!is_missing).then_some(index)
    }

    /// How it is kept (`DEBUG OBJECT`).
    pub fn figures(self) -> ListFigures {
        match self {
            ListView::Packed(pack) => {
                ListFigures { nodes: 1, entry_bytes: pack.entries().len(), compresses: false, compressed: 0 }
            }
            ListView::Nodes(list) => ListFigures {
                nodes: list.nodes().len(),
                entry_bytes: list.nodes().iter().map(Node::entry_bytes).sum(),
                compresses: list.compresses(),
                compressed: list.nodes().iter().filter(|node| node.is_compressed()).count(),
            },
        }
    }

    /// How many runs there are.
    pub(crate) fn runs(self) -> usize {
        match self {
            ListView::Packed(_) => 1,
            ListView::Nodes(list) => list.nodes().len(),
        }
    }

    /// Shows the run of a number. `None`: there is none.
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

    /// Which run an index falls into, and its index there.
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

/// The index from the front that an index with a sign means. `None`: there is no such element.
pub fn resolve(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(len as i64)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < len)
}

/// First index and number of elements of Redis's ranges with signed ends, both included.
pub fn resolve_range(start: i64, stop: i64, len: usize) -> (usize, usize) {
    let len = len as i64;
    let from_end = |index: i64| if index < 0 { index.saturating_add(len) } else { index };
    let start = from_end(start).max(0);
    let stop = from_end(stop).min(len - 1);
    if start > stop { (0, 0) } else { (start as usize, (stop - start + 1) as usize) }
}

/// How a list is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListFigures {
    /// Pieces of memory.
    pub nodes: usize,
    /// Bytes of the entries in them, uncompressed.
    pub entry_bytes: usize,
    /// Whether those in the middle are compressed.
    pub compresses: bool,
    /// How many of them are.
    pub compressed: usize,
}

impl Run<'_> {
    #[inline]
    fn show_forward(
        &self,
        at: Option<usize>,
        show: &mut impl FnMut(Element<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut at = at.unwrap_or(self.first);
        while at < self.end {
            show(self.pack.get(at))?;
            at = self.pack.next(at);
        }
        ControlFlow::Continue(())
    }

    #[inline]
    fn show_backward(
        &self,
        at: Option<usize>,
        show: &mut impl FnMut(Element<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut end = at.map_or(self.end, |at| self.pack.next(at));
        while end > self.first {
            end = self.pack.previous(end);
            show(self.pack.get(end))?;
        }
        ControlFlow::Continue(())
    }
}
