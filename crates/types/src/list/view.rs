//! A list, to be read: the same for both forms, as a row of *runs* of entries.

use super::node::nth;
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

    /// The element of an index; negative ones count from the end, -1 being the last.
    pub fn get(self, index: i64) -> Option<Element<'a>> {
        let (run, index) = self.locate(resolve(index, self.len())?)?;
        let run = self.run(run)?;
        Some(run.pack.get(nth(run.pack, run.first, run.end, run.len, index)))
    }

    /// The elements from an index (from the front, whichever way it goes) on: towards the end, or `backward` to the front.
    pub fn iter_from(self, index: usize, backward: bool) -> ListIter<'a> {
        let mut iter = ListIter { list: self, run: 0, at: 0, stop: 0, backward };
        if let Some((number, index)) = self.locate(index)
            && let Some(run) = self.run(number)
        {
            let at = nth(run.pack, run.first, run.end, run.len, index);
            iter.run = number;
            (iter.at, iter.stop) = if backward { (run.pack.next(at), run.first) } else { (at, run.end) };
        } else {
            iter.run = self.runs();
        }
        iter
    }

    /// All elements in order.
    pub fn iter(self) -> ListIter<'a> {
        self.iter_from(0, false)
    }

    /// How many runs there are.
    pub(crate) fn runs(self) -> usize {
        match self {
            ListView::Packed(_) => 1,
            ListView::Nodes(list) => list.nodes().len(),
        }
    }

    /// The run of a number.
    pub(crate) fn run(self, number: usize) -> Option<Run<'a>> {
        match self {
            ListView::Packed(pack) if number == 0 => {
                Some(Run { pack, first: pack.first(), end: pack.end(), len: pack.len() })
            }
            ListView::Packed(_) => None,
            ListView::Nodes(list) => list.nodes().get(number).map(|node| Run {
                pack: node.pack(),
                first: node.first(),
                end: node.end(),
                len: node.len(),
            }),
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

/// Elements of a list, one way or the other.
#[derive(Clone)]
pub struct ListIter<'a> {
    list: ListView<'a>,
    run: usize,
    at: usize,
    stop: usize,
    backward: bool,
}

impl<'a> Iterator for ListIter<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        if self.at == self.stop && !self.next_run() {
            return None;
        }
        let run = self.list.run(self.run)?;
        if self.backward {
            self.at = run.pack.previous(self.at);
            Some(run.pack.get(self.at))
        } else {
            let element = run.pack.get(self.at);
            self.at = run.pack.next(self.at);
            Some(element)
        }
    }
}

impl ListIter<'_> {
    #[cold]
    fn next_run(&mut self) -> bool {
        let next = if self.backward { self.run.checked_sub(1) } else { Some(self.run + 1) };
        let Some((number, run)) = next.and_then(|number| Some((number, self.list.run(number)?))) else {
            return false;
        };
        self.run = number;
        (self.at, self.stop) = if self.backward { (run.end, run.first) } else { (run.first, run.end) };
        true
    }
}
