//! Bounds of the ranges of `ZRANGE … BYSCORE` and `BYLEX`.

use crate::double;

/// A range of scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreRange {
    /// The lower bound.
    pub min: f64,
    /// The upper bound.
    pub max: f64,
    /// Whether the lower bound is exclusive.
    pub min_excluded: bool,
    /// Whether the upper bound is exclusive.
    pub max_excluded: bool,
}

impl ScoreRange {
    /// Parses two bounds. A bound is a number. A preceding `(` makes the bound exclusive. Returns
    /// `None` if either bound isn't a number.
    pub fn parse(min: &[u8], max: &[u8]) -> Option<Self> {
        let (min, min_excluded) = score_bound(min)?;
        let (max, max_excluded) = score_bound(max)?;
        Some(ScoreRange { min, max, min_excluded, max_excluded })
    }

    /// Returns whether a score is below the range.
    #[inline]
    pub fn is_below(&self, score: f64) -> bool {
        if self.min_excluded { score <= self.min } else { score < self.min }
    }

    /// Returns whether a score satisfies the upper bound.
    #[inline]
    pub fn reaches(&self, score: f64) -> bool {
        if self.max_excluded { score < self.max } else { score <= self.max }
    }
}

fn score_bound(text: &[u8]) -> Option<(f64, bool)> {
    let (text, excluded) = match text {
        [b'(', rest @ ..] => (rest, true),
        text => (text, false),
    };
    double::parse_as_c(text).map(|bound| (bound, excluded))
}

/// A bound of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexBound<'a> {
    /// `-`: below all members.
    Lowest,
    /// `+`: above all members.
    Highest,
    /// `[member`.
    Including(&'a [u8]),
    /// `(member`.
    Excluding(&'a [u8]),
}

impl<'a> LexBound<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        // Redis compares `-` and `+` as C strings, which end at a zero byte.
        match text {
            [b'-'] | [b'-', 0, ..] => Some(LexBound::Lowest),
            [b'+'] | [b'+', 0, ..] => Some(LexBound::Highest),
            [b'[', rest @ ..] => Some(LexBound::Including(rest)),
            [b'(', rest @ ..] => Some(LexBound::Excluding(rest)),
            _ => None,
        }
    }
}

/// A range of members, ordered by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LexRange<'a> {
    /// The lower bound.
    pub min: LexBound<'a>,
    /// The upper bound.
    pub max: LexBound<'a>,
}

impl<'a> LexRange<'a> {
    /// Parses two bounds. Returns `None` if either text isn't a bound.
    pub fn parse(min: &'a [u8], max: &'a [u8]) -> Option<Self> {
        Some(LexRange { min: LexBound::parse(min)?, max: LexBound::parse(max)? })
    }

    /// Returns whether a member precedes the range.
    #[inline]
    pub fn is_below(&self, member: &[u8]) -> bool {
        match self.min {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::Including(min) => member < min,
            LexBound::Excluding(min) => member <= min,
        }
    }

    /// Returns whether a member satisfies the upper bound.
    #[inline]
    pub fn reaches(&self, member: &[u8]) -> bool {
        match self.max {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::Including(max) => member <= max,
            LexBound::Excluding(max) => member < max,
        }
    }

    /// Returns whether no member can be in the range.
    pub fn is_empty(&self) -> bool {
        use LexBound::{Excluding, Highest, Including, Lowest};
        match (self.min, self.max) {
            (Highest, _) | (_, Lowest) => true,
            (Lowest, _) | (_, Highest) => false,
            (Including(min), Including(max)) => min > max,
            (Including(min) | Excluding(min), Including(max) | Excluding(max)) => min >= max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_parse_as_in_redis() {
        let range = ScoreRange::parse(b"(1.5", b"+inf").unwrap();
        assert_eq!((range.min, range.min_excluded, range.max), (1.5, true, f64::INFINITY));
        assert!(range.is_below(1.5) && !range.is_below(1.6) && range.reaches(f64::INFINITY));
        // C's `strtod` accepts leading blanks, an empty text, and a zero byte as the end.
        assert_eq!(ScoreRange::parse(b" 1", b"").unwrap().max, 0.0);
        assert!(ScoreRange::parse(b"(", b"2\0x").is_some());
        for bad in ["x", "nan", "1x", "((1", " ", "1 "] {
            assert_eq!(ScoreRange::parse(bad.as_bytes(), b"1"), None, "{bad:?}");
        }
        let range = LexRange::parse(b"[a", b"(c").unwrap();
        assert!(range.is_below(b"") && !range.is_below(b"a") && range.reaches(b"bz") && !range.reaches(b"c"));
        for bad in ["", "a", "-x", "+x"] {
            assert_eq!(LexRange::parse(bad.as_bytes(), b"+"), None, "{bad:?}");
        }
        assert!(LexRange::parse(b"-", b"-").unwrap().is_empty() && LexRange::parse(b"[b", b"(b").unwrap().is_empty());
        assert!(!LexRange::parse(b"[b", b"[b").unwrap().is_empty());
    }
}
