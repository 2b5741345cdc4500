//! Iterates over the members in a range of ranks, ascending or descending, in packed and in large
//! sets.

use super::tree::Place;
use super::{LargeSet, SortedSetView, packed};
use crate::pack::{Element, OneWay, PackRef};

/// An iterator over members and their scores, from either end. See [`SortedSetView::range`].
#[derive(Clone, Debug)]
pub struct Range<'a> {
    source: Source<'a>,
    left: usize,
    reverse: bool,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    /// A packed set in ascending order, and the position of the next member.
    Packed(PackRef<'a, OneWay>, usize),
    /// A packed set in descending order, with the positions of the remaining members. The last
    /// position is that of the next member. The positions are collected in advance, because the
    /// pack can't be read backwards.
    PackedReverse(PackRef<'a, OneWay>, Vec<usize>),
    /// A large set, and the place of the next member.
    Large(&'a LargeSet, Place),
    Nothing,
}

impl<'a> Range<'a> {
    pub(super) fn new(view: SortedSetView<'a>, ranks: std::ops::Range<usize>, reverse: bool) -> Self {
        if ranks.is_empty() {
            return Range { source: Source::Nothing, left: 0, reverse };
        }
        let left = ranks.len();
        let source = match view {
            SortedSetView::Packed(pack) => {
                let first = pack.nth(ranks.start * 2).unwrap_or(pack.end());
                if reverse {
                    let positions = std::iter::successors(Some(first), |&at| Some(pack.next(pack.next(at))));
                    Source::PackedReverse(pack, positions.take(left).collect())
                } else {
                    Source::Packed(pack, first)
                }
            }
            SortedSetView::Large(set) => Source::Large(set, set.nth(if reverse { ranks.end - 1 } else { ranks.start })),
        };
        Range { source, left, reverse }
    }
}

impl<'a> Iterator for Range<'a> {
    type Item = (Element<'a>, f64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        match &mut self.source {
            Source::Packed(pack, at) => {
                let (member_at, score_at) = (*at, pack.next(*at));
                *at = pack.next(score_at);
                Some((pack.get(member_at), packed::score_of(pack.get(score_at))))
            }
            Source::PackedReverse(pack, positions) => {
                let at = positions.pop()?;
                Some((pack.get(at), packed::score_at(*pack, at)))
            }
            Source::Large(set, place) => {
                let (member, score) = set.at(*place);
                if self.left > 0 {
                    *place = if self.reverse { set.previous(*place) } else { set.next(*place) };
                }
                Some((Element::Bytes(member), score))
            }
            Source::Nothing => None,
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Range<'_> {}
