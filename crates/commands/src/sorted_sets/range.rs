//! Parses ranges of sorted sets and resolves them to ranks.

use std::ops::Range;

use pantala_base::number::parse_i64;
use pantala_resp::Args;
use pantala_types::sorted_set::{LexRange, ScoreRange, SortedSetView};

use crate::arguments::is_option;
use crate::errors;

/// The type of the bounds of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeKind {
    /// Ranks.
    Rank,
    /// Scores.
    Score,
    /// Members.
    Lex,
}

/// The bounds of a range.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bounds<'a> {
    /// First and last rank. Negative ranks count from the end.
    Rank(i64, i64),
    /// Scores.
    Score(ScoreRange),
    /// Members.
    Lex(LexRange<'a>),
}

impl<'a> Bounds<'a> {
    /// Parses the bounds.
    pub(super) fn parse(kind: RangeKind, min: &'a [u8], max: &'a [u8]) -> Result<Self, &'static str> {
        match kind {
            RangeKind::Rank => match (parse_i64(min), parse_i64(max)) {
                (Some(start), Some(end)) => Ok(Bounds::Rank(start, end)),
                _ => Err(errors::NOT_AN_INTEGER),
            },
            RangeKind::Score => ScoreRange::parse(min, max).map(Bounds::Score).ok_or("ERR min or max is not a float"),
            RangeKind::Lex => {
                LexRange::parse(min, max).map(Bounds::Lex).ok_or("ERR min or max not valid string range item")
            }
        }
    }

    /// Returns the ranks within the bounds, ascending. If `reverse`, the bounds count from the end.
    pub(super) fn ranks(&self, set: SortedSetView<'_>, reverse: bool) -> Range<usize> {
        match self {
            Bounds::Rank(start, end) => {
                let len = set.len();
                let ranks = clamp_ranks(*start, *end, len);
                if reverse { len - ranks.end..len - ranks.start } else { ranks }
            }
            Bounds::Score(range) => set.score_range(range),
            Bounds::Lex(range) => set.lex_range(range, reverse),
        }
    }
}

/// Resolves ranks, both inclusive, in a set of `len` members. Negative ranks count from the end.
fn clamp_ranks(start: i64, end: i64, len: usize) -> Range<usize> {
    let absolute = |rank: i64| if rank < 0 { rank.saturating_add(len as i64) } else { rank };
    let (start, end) = (absolute(start).max(0), absolute(end).min(len as i64 - 1));
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

/// A complete query: bounds, direction and limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Query<'a> {
    pub(super) bounds: Bounds<'a>,
    pub(super) reverse: bool,
    pub(super) with_scores: bool,
    offset: i64,
    limit: i64,
}

/// The properties of a query that the name of the command determines.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Preset {
    /// The kind of range; `None` if options determine it.
    pub(super) kind: Option<RangeKind>,
    /// The direction; `None` if options determine it.
    pub(super) reverse: Option<bool>,
    /// Whether the result is stored, which excludes `WITHSCORES`.
    pub(super) stores: bool,
}

impl<'a> Query<'a> {
    /// Parses the bounds at `args[first]` and `args[first + 1]`, and the options after them.
    pub(super) fn parse(args: &Args<'a>, first: usize, preset: Preset) -> Result<Self, &'static str> {
        let (mut kind, mut reverse) = (preset.kind, preset.reverse);
        let (mut with_scores, mut offset, mut limit) = (false, 0, -1);
        let mut index = first + 2;
        while let Some(option) = args.get(index) {
            if !preset.stores && is_option(option, "WITHSCORES") {
                with_scores = true;
            } else if let (true, Some(skip), Some(count)) =
                (is_option(option, "LIMIT"), args.get(index + 1), args.get(index + 2))
            {
                offset = parse_i64(skip).ok_or(errors::NOT_AN_INTEGER)?;
                limit = parse_i64(count).ok_or(errors::NOT_AN_INTEGER)?;
                index += 2;
            } else if reverse.is_none() && is_option(option, "REV") {
                reverse = Some(true);
            } else if kind.is_none() && is_option(option, "BYLEX") {
                kind = Some(RangeKind::Lex);
            } else if kind.is_none() && is_option(option, "BYSCORE") {
                kind = Some(RangeKind::Score);
            } else {
                return Err(errors::SYNTAX);
            }
            index += 1;
        }
        let (kind, reverse) = (kind.unwrap_or(RangeKind::Rank), reverse.unwrap_or(false));
        if limit != -1 && kind == RangeKind::Rank {
            return Err("ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX");
        }
        if with_scores && kind == RangeKind::Lex {
            return Err("ERR syntax error, WITHSCORES not supported in combination with BYLEX");
        }
        let (min, max) = (args.at(first), args.at(first + 1));
        // In a reversed range, the maximum precedes the minimum.
        let (min, max) = if reverse && kind != RangeKind::Rank { (max, min) } else { (min, max) };
        Ok(Query { bounds: Bounds::parse(kind, min, max)?, reverse, with_scores, offset, limit })
    }

    /// Returns the selected ranks, ascending.
    pub(super) fn ranks(&self, set: SortedSetView<'_>) -> Range<usize> {
        let ranks = self.bounds.ranks(set, self.reverse);
        if let Bounds::Rank(..) = self.bounds {
            return ranks;
        }
        // As in Redis, a negative offset selects nothing, and a negative limit means no limit.
        let offset = usize::try_from(self.offset).unwrap_or(usize::MAX).min(ranks.len());
        let left = ranks.len() - offset;
        let count = usize::try_from(self.limit).map_or(left, |limit| limit.min(left));
        if self.reverse {
            let end = ranks.end - offset;
            end - count..end
        } else {
            let start = ranks.start + offset;
            start..start + count
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_clamped() {
        for (start, end, len, ranks) in [
            (0, -1, 5, 0..5),
            (-2, -1, 5, 3..5),
            (1, 100, 5, 1..5),
            (-100, 1, 5, 0..2),
            (5, 9, 5, 0..0),
            (3, 2, 5, 0..0),
            (i64::MIN, i64::MAX, 5, 0..5),
            (i64::MIN, i64::MIN, 5, 0..0),
            (i64::MAX, i64::MAX, 5, 0..0),
        ] {
            assert_eq!(clamp_ranks(start, end, len), ranks, "{start} {end}");
        }
    }
}
