//! A sorted set: members ordered by score, and by their bytes if scores are equal.
//!
//! | form | `OBJECT ENCODING` | structure |
//! | --- | --- | --- |
//! | packed | `listpack` | member, score, member, score …, in order |
//! | large | `skiplist` | records, table and tree |
//!
//! A large set has three parts. `records` holds the members with their scores: a *record* is a
//! member with its score. `table` maps the hash of a member to its record. `tree` is a B+ tree of
//! record ids in order, with counts.
//!
//! A short packed set usually lies inside its dictionary entry. A packed set is searched linearly
//! from one end, as in Redis.
//!
//! # Cost
//!
//! Bytes that a member of 14 bytes takes in a large set. (Redis 7.0 takes about 120: skip list node
//! 54, the member's sds 24, dictionary entry 32 and bucket 12.)
//!
//! ```text
//! record  score 8, length 1, member 14, rounded up to 8           24
//! table   a slot of 5, with 41% to 81% of the slots used           6 to 12
//! tree    an id of 4, in a leaf that is 50% to 100% full; and the
//!         leaf's head (12) and its data in the parent (20),
//!         shared by 44 ids in an average leaf                      4 to 9
//!                                                                 34 to 45
//! ```
//!
//! Finding a member's score takes a lookup in the table and in one record. A search for a score
//! descends the tree. The search compares the scores in the inner nodes (about 4 levels for 10
//! million members), then about six records of one leaf. A search for a rank compares counts
//! instead. The memory and time of an insertion are bounded. No part of the set is ever copied as a
//! whole, except directories. The largest directory is that of the table: it has four bytes for
//! about 600 members.
//!
//! When a set shrinks, its table releases memory. The memory of removed records and leaves is
//! reused, but not released before the set is freed.
//!
//! | contents (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 20 members of 13 bytes, scores of 6 digits | packed | 17.9 |
//! | 100,000 members of 13 bytes, scores of 6 digits | LargeSet | 37.8 |

use crate::collection::{Collection, PackedForm};
use crate::pack::{Element, OneWay, Pack, PackRef};
use crate::{Encoding, OutOfMemory, Value};

mod bounds;
mod build;
mod large;
mod packed;
mod range;
mod records;
mod slab;
mod table;
#[cfg(test)]
mod tests;
mod tree;

pub use bounds::{LexBound, LexRange, ScoreRange};
pub use build::Builder;
pub use large::LargeSet;
pub use range::Range;

/// The limits of a packed set (`zset-max-listpack-entries`, `zset-max-listpack-value`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Maximum number of members.
    pub entries: u64,
    /// Maximum length of a member, in bytes.
    pub value_bytes: u64,
}

impl PackLimits {
    /// Redis's defaults.
    pub const DEFAULT: Self = PackLimits { entries: 128, value_bytes: 64 };
}

/// The options of `ZADD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddOptions {
    /// `NX`: only add new members.
    pub nx: bool,
    /// `XX`: only update existing members.
    pub xx: bool,
    /// `GT`: only raise scores.
    pub gt: bool,
    /// `LT`: only lower scores.
    pub lt: bool,
    /// `INCR`: the score is an increment.
    pub incr: bool,
}

/// The outcome of `ZADD` for one member, with the member's new score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Added {
    /// The member is new.
    New(f64),
    /// The score changed.
    Updated(f64),
    /// The member had this score already.
    Same(f64),
    /// The options exclude this change.
    Skipped,
    /// The sum is NaN, so nothing was changed.
    NotANumber,
}

/// A sorted set: members ordered by score.
#[derive(Debug)]
pub enum SortedSet {
    /// The packed form: one byte string.
    Packed(Pack<OneWay>),
    /// The large form: records, a table and a tree.
    Large(Box<LargeSet>),
}

/// A shared view of a [`SortedSet`].
#[derive(Clone, Copy, Debug)]
pub enum SortedSetView<'a> {
    /// The packed form: one byte string.
    Packed(PackRef<'a, OneWay>),
    /// The large form: records, a table and a tree.
    Large(&'a LargeSet),
}

impl<'a> SortedSetView<'a> {
    /// Returns the encoding that `OBJECT ENCODING` shows.
    pub fn encoding(self) -> Encoding {
        match self {
            SortedSetView::Packed(_) => Encoding::Listpack,
            SortedSetView::Large(_) => Encoding::Skiplist,
        }
    }

    /// Returns the integer that the set stores for a score, or `None` if the set stores a
    /// floating-point number.
    pub fn stored_integer(self, score: f64) -> Option<i64> {
        match self {
            SortedSetView::Packed(_) => packed::integer_of(score),
            SortedSetView::Large(_) => None,
        }
    }

    /// Returns the number of members.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            SortedSetView::Packed(pack) => packed::len(pack),
            SortedSetView::Large(set) => set.len(),
        }
    }

    /// Returns whether there are no members.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns whether this many members of any length can be added. A set has at most 32 GiB of
    /// members and scores, not counting members of more than 254 bytes. Callers check this before
    /// they add the first member.
    #[inline]
    pub fn has_room(self, members: usize) -> bool {
        match self {
            SortedSetView::Packed(_) => true,
            SortedSetView::Large(set) => set.has_room(members),
        }
    }

    /// Returns the score of a member.
    #[inline]
    pub fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            SortedSetView::Packed(pack) => Some(packed::score_at(pack, packed::find(pack, member)?)),
            SortedSetView::Large(set) => Some(set.score_of(set.find(member)?)),
        }
    }

    /// Returns the rank and the score of a member.
    pub fn rank(self, member: &[u8]) -> Option<(usize, f64)> {
        match self {
            SortedSetView::Packed(pack) => {
                let at = packed::find(pack, member)?;
                Some((pack.range(pack.first(), at).count() / 2, packed::score_at(pack, at)))
            }
            SortedSetView::Large(set) => {
                let id = set.find(member)?;
                Some((set.rank_of(id), set.score_of(id)))
            }
        }
    }

    /// Returns the ranks of the members with scores in a range.
    pub fn score_range(self, range: &ScoreRange) -> std::ops::Range<usize> {
        let (from, to) = match self {
            SortedSetView::Packed(pack) => {
                let count =
                    |before: &dyn Fn(f64) -> bool| packed::pairs(pack).take_while(|(_, score)| before(*score)).count();
                (count(&|score| range.is_below(score)), count(&|score| range.reaches(score)))
            }
            SortedSetView::Large(set) => {
                (set.count_scores(|score| range.is_below(score)), set.count_scores(|score| range.reaches(score)))
            }
        };
        from..to.max(from)
    }

    /// Returns the ranks of the members in a lexicographic range. The range is meaningful only if
    /// all scores are equal. If scores differ, a packed set returns the same range as Redis, whose
    /// search starts at the end that `reverse` selects, and a large set returns an arbitrary range.
    pub fn lex_range(self, range: &LexRange<'_>, reverse: bool) -> std::ops::Range<usize> {
        if range.is_empty() || self.is_empty() {
            return 0..0;
        }
        match self {
            SortedSetView::Packed(pack) => packed_lex_range(pack, range, reverse),
            SortedSetView::Large(set) => {
                let from = set.count_members(|member| range.is_below(member));
                from..set.count_members(|member| range.reaches(member)).max(from)
            }
        }
    }

    /// Iterates over the members with these ranks and over their scores, in descending order if
    /// `reverse`. The ranks must exist.
    pub fn range(self, ranks: std::ops::Range<usize>, reverse: bool) -> Range<'a> {
        Range::new(self, ranks, reverse)
    }

    /// Iterates over all members in order.
    pub fn iter(self) -> Range<'a> {
        self.range(0..self.len(), false)
    }

    /// Continues a scan from a cursor. The cursor 0 starts a scan. Visits about `count` members, or
    /// all members of a packed set. Returns the next cursor, or 0 at the end. A member that exists
    /// from the first call to the last is visited at least once.
    pub fn scan(self, cursor: u64, count: usize, mut visit: impl FnMut(&[u8], f64)) -> u64 {
        match self {
            SortedSetView::Packed(pack) => {
                for (member, score) in packed::pairs(pack) {
                    member.with_bytes(|member| visit(member, score));
                }
                0
            }
            SortedSetView::Large(set) => set.scan(cursor, count, visit),
        }
    }
}

/// Implements [`SortedSetView::lex_range`] as Redis searches a listpack.
fn packed_lex_range(pack: PackRef<'_, OneWay>, range: &LexRange<'_>, reverse: bool) -> std::ops::Range<usize> {
    let len = packed::len(pack);
    let holds = |member: Element<'_>, test: &dyn Fn(&[u8]) -> bool| member.with_bytes(|bytes| test(bytes));
    let is_below = |member| holds(member, &|bytes| range.is_below(bytes));
    let reaches = |member| holds(member, &|bytes| range.reaches(bytes));
    let members = || packed::pairs(pack).map(|(member, _)| member);
    let is_outside = members().next().is_none_or(|first| !reaches(first)) || members().last().is_none_or(is_below);
    if is_outside {
        return 0..0;
    }
    if reverse {
        let members: Vec<Element<'_>> = members().collect();
        let end = members.iter().rposition(|member| reaches(*member)).map_or(0, |last| last + 1);
        let start = members[..end].iter().rposition(|member| is_below(*member)).map_or(0, |last| last + 1);
        return start..end;
    }
    let start = members().position(|member| !is_below(member)).unwrap_or(len);
    let end = start + members().skip(start).take_while(|member| reaches(*member)).count();
    start..end
}

impl SortedSet {
    /// Adds a member with a score, subject to the options. A packed set that would exceed `limits`
    /// becomes large.
    #[inline]
    pub fn add(&mut self, member: &[u8], score: f64, options: AddOptions, limits: PackLimits) -> Added {
        match self {
            SortedSet::Packed(pack) => match packed::find(pack.as_ref(), member) {
                Some(at) => {
                    let decided = decide(packed::score_at(pack.as_ref(), at), score, options);
                    if let Added::Updated(score) = decided {
                        pack.remove(at, 2);
                        packed::insert(pack, member, score);
                    }
                    decided
                }
                None if options.xx => Added::Skipped,
                None => {
                    self.insert(member, score, limits);
                    Added::New(score)
                }
            },
            SortedSet::Large(set) => match set.find(member) {
                Some(id) => {
                    let decided = decide(set.score_of(id), score, options);
                    if let Added::Updated(score) = decided {
                        set.set_score(id, score);
                    }
                    decided
                }
                None if options.xx => Added::Skipped,
                None => {
                    set.insert(member, score);
                    Added::New(score)
                }
            },
        }
    }

    /// Adds a new member.
    fn insert(&mut self, member: &[u8], score: f64, limits: PackLimits) {
        let exceeds_limits = |pack: &Pack<OneWay>| {
            packed::len(pack.as_ref()) as u64 + 1 > limits.entries || member.len() as u64 > limits.value_bytes
        };
        if let SortedSet::Packed(pack) = self
            && exceeds_limits(pack)
        {
            let large = to_large(pack.as_ref());
            *self = SortedSet::Large(Box::new(large));
        }
        match self {
            SortedSet::Packed(pack) => packed::insert(pack, member, score),
            SortedSet::Large(set) => set.insert(member, score),
        }
    }

    /// Returns an empty set in the form that Redis creates for a first member of this length.
    pub fn for_first(len_bytes: usize, limits: PackLimits) -> Self {
        if limits.entries == 0 || len_bytes as u64 > limits.value_bytes {
            SortedSet::Large(Box::new(LargeSet::new(0)))
        } else {
            Self::empty()
        }
    }

    /// Removes a member. Returns whether the member existed.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            SortedSet::Packed(pack) => {
                let Some(at) = packed::find(pack.as_ref(), member) else { return false };
                pack.remove(at, 2);
            }
            SortedSet::Large(set) => {
                let Some(id) = set.find(member) else { return false };
                set.remove(id);
            }
        }
        true
    }

    /// Removes the members with these ranks, which must exist.
    pub fn remove_range(&mut self, ranks: std::ops::Range<usize>) {
        match self {
            // While a cut ([`crate::cut`]) of the set runs, remove the members one by one, so that
            // the cut keeps a copy of each unread member.
            SortedSet::Large(set) if ranks.len() == set.len() && !set.has_cut() => *self = Self::empty(),
            SortedSet::Packed(pack) => packed::remove(pack, ranks.start, ranks.len()),
            SortedSet::Large(set) => {
                for _ in ranks.clone() {
                    set.remove_nth(ranks.start);
                }
            }
        }
    }
}

/// Returns the effect of `ZADD` on an existing member.
fn decide(before: f64, score: f64, options: AddOptions) -> Added {
    if options.nx {
        return Added::Skipped;
    }
    let score = if options.incr { before + score } else { score };
    if score.is_nan() {
        Added::NotANumber
    } else if (options.lt && score >= before) || (options.gt && score <= before) {
        Added::Skipped
    } else if score == before {
        Added::Same(score)
    } else {
        Added::Updated(score)
    }
}

/// Returns the large form of a pack.
fn to_large(pack: PackRef<'_, OneWay>) -> LargeSet {
    let mut large = LargeSet::new(packed::len(pack) + 1);
    let ids: Vec<u32> = packed::pairs(pack)
        .filter_map(|(member, score)| member.with_bytes(|member| large.merge(member, score, |same| same)))
        .collect();
    large.build_tree(&ids);
    large
}

impl PartialEq for SortedSet {
    fn eq(&self, other: &Self) -> bool {
        let (one, two) = (self.view(), other.view());
        let pairs =
            |view: SortedSetView<'_>| view.iter().map(|(member, score)| (member.to_vec(), score)).collect::<Vec<_>>();
        one.encoding() == two.encoding() && one.len() == two.len() && pairs(one) == pairs(two)
    }
}

// No score is NaN, so every set equals itself.
impl Eq for SortedSet {}

impl Collection for SortedSet {
    type View<'a> = SortedSetView<'a>;

    fn empty() -> Self {
        SortedSet::Packed(Pack::new())
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::SortedSet(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::SortedSet(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::SortedSet(self)
    }

    #[inline]
    fn view(&self) -> SortedSetView<'_> {
        match self {
            SortedSet::Packed(pack) => SortedSetView::Packed(pack.as_ref()),
            SortedSet::Large(set) => SortedSetView::Large(set),
        }
    }

    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<SortedSetView<'_>> {
        (form == PackedForm::SortedSet).then(|| SortedSetView::Packed(PackRef::new(bytes)))
    }

    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        if form == PackedForm::SortedSet { Ok(SortedSet::Packed(Pack::from_vec(bytes))) } else { Err(bytes) }
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        match self {
            SortedSet::Packed(pack) => Some((PackedForm::SortedSet, pack.as_ref().as_bytes())),
            SortedSet::Large(_) => None,
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            SortedSet::Packed(pack) => Some(pack.into_vec()),
            SortedSet::Large(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.view().is_empty()
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            SortedSet::Packed(pack) => pack.allocated_bytes(),
            SortedSet::Large(set) => size_of::<LargeSet>() + set.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        match self {
            SortedSet::Packed(pack) => Ok(SortedSet::Packed(pack.as_ref().to_pack())),
            SortedSet::Large(set) => Ok(SortedSet::Large(Box::new(set.copy()))),
        }
    }
}
