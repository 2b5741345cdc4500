//! Reads sorted sets.

use super::read::{EMPTY, element, nonzero_count};
use super::{Error, Limits, Reader, listpack};
use crate::double;
use crate::pack::{Element, Pack};
use crate::sorted_set::{Builder, SortedSet};

/// Maximum number of members for which space is reserved before they are read.
const ROOM_MEMBERS_MAX: usize = 1 << 16;
/// The length byte of a text score that denotes NaN. No text follows.
const TEXT_NAN: u8 = 253;
/// The length byte of a text score that denotes infinity. No text follows.
const TEXT_INFINITE: u8 = 254;
/// The length byte of a text score that denotes minus infinity. No text follows.
const TEXT_MINUS_INFINITE: u8 = 255;

const NOT_A_SCORE: Error = Error::Corrupt("score");

/// Reads a sorted set member by member.
pub(super) fn of_members(
    reader: &mut Reader<'_>,
    limits: &Limits,
    score: fn(&mut Reader<'_>) -> Result<f64, Error>,
) -> Result<SortedSet, Error> {
    let count = nonzero_count(reader, 2)?;
    let mut members = Members::with_room(count);
    for _ in 0..count {
        let member = element(reader)?;
        members.add(&member, score(reader)?)?;
    }
    Ok(members.set.finish(limits.sorted_set))
}

/// Reads a score in text form.
pub(super) fn text_score(reader: &mut Reader<'_>) -> Result<f64, Error> {
    match reader.byte()? {
        TEXT_NAN => Err(NOT_A_SCORE),
        TEXT_INFINITE => Ok(f64::INFINITY),
        TEXT_MINUS_INFINITE => Ok(f64::NEG_INFINITY),
        len => score_of(reader.take(u64::from(len))?),
    }
}

/// Reads a score as the eight bytes of a double.
pub(super) fn binary_score(reader: &mut Reader<'_>) -> Result<f64, Error> {
    Ok(f64::from_le_bytes(reader.array()?))
}

/// Returns the set with these members and scores. As in Redis, a set of few members stays packed
/// even if its members are long.
pub(super) fn of_pack(pack: &Pack, limits: &Limits) -> Result<SortedSet, Error> {
    let entries = pack.as_ref();
    if entries.is_empty() {
        return Err(EMPTY);
    }
    if !listpack::has_distinct_keys(entries) {
        return Err(Error::Corrupt("members of a sorted set"));
    }
    let mut members = Members::with_room(entries.len() / 2);
    let mut iter = entries.iter();
    while let (Some(member), Some(score)) = (iter.next(), iter.next()) {
        let score = match score {
            Element::Int(score) => score as f64,
            Element::Bytes(text) => score_of(text)?,
        };
        member.with_bytes(|member| members.add(member, score))?;
    }
    let mut pack_limits = limits.sorted_set;
    pack_limits.value_bytes = u64::MAX;
    Ok(members.set.finish(pack_limits))
}

fn score_of(text: &[u8]) -> Result<f64, Error> {
    // Redis reads a score as a C string, which ends at a NUL. A text that starts with a NUL is
    // therefore empty in Redis, and an empty text isn't a score.
    double::parse_as_c(text).filter(|_| text.first().is_some_and(|first| *first != 0)).ok_or(NOT_A_SCORE)
}

/// A sorted set under construction. The members are distinct, and no score is NaN.
struct Members {
    set: Builder,
}

impl Members {
    fn with_room(count: usize) -> Self {
        Members { set: Builder::with_capacity(count.min(ROOM_MEMBERS_MAX)) }
    }

    fn add(&mut self, member: &[u8], score: f64) -> Result<(), Error> {
        if score.is_nan() {
            return Err(NOT_A_SCORE);
        }
        if !self.set.has_room() {
            return Err(Error::Corrupt("sorted set of more than 32 GiB"));
        }
        let len = self.set.len();
        self.set.merge(member, score, |same| same);
        if self.set.len() == len { Err(Error::Corrupt("duplicate member")) } else { Ok(()) }
    }
}
