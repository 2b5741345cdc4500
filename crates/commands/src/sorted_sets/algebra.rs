//! Unions, intersections and differences of sorted sets and sets, which may lie in different
//! shards. The members of a set have score 1.

use pantala_base::number::parse_i64;
use pantala_engine::access::{Access, Key};
use pantala_engine::db::Held;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::pack::Element;
use pantala_types::sorted_set::{Builder, PackLimits, SortedSetView};
use pantala_types::{Collection, Set, SetView, SortedSet, double};

use super::{pack_limits, reply_pairs, store};
use crate::arguments::is_option;
use crate::elements::write;
use crate::errors;

/// The limits with which no set is stored as a listpack.
const UNPACKED: PackLimits = PackLimits { entries: 0, value_bytes: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// The function that merges the scores that a member has in several sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn join(self, one: f64, other: f64) -> f64 {
        match self {
            // As in Redis, the sum of opposite infinities is 0.
            Aggregate::Sum => zero_if_nan(one + other),
            Aggregate::Min if other < one => other,
            Aggregate::Max if other > one => other,
            Aggregate::Min | Aggregate::Max => one,
        }
    }
}

fn zero_if_nan(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// The value of a source key.
#[derive(Clone, Copy)]
enum Content<'a> {
    Nothing,
    Sorted(SortedSetView<'a>),
    Plain(SetView<'a>),
}

impl<'a> Content<'a> {
    /// Returns the content of a key. Returns `None` if the value is neither a sorted set nor a set.
    fn of(held: Option<Held<'a>>) -> Option<Self> {
        let Some(held) = held else { return Some(Content::Nothing) };
        let sorted = held.view::<SortedSet>().map(Content::Sorted);
        sorted.or_else(|| held.view::<Set>().map(Content::Plain))
    }

    fn len(self) -> usize {
        match self {
            Content::Nothing => 0,
            Content::Sorted(set) => set.len(),
            Content::Plain(set) => set.len(),
        }
    }

    fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            Content::Nothing => None,
            Content::Sorted(set) => set.score(member),
            Content::Plain(set) => set.contains(member).then_some(1.0),
        }
    }

    fn for_each(self, mut visit: impl FnMut(Element<'a>, f64)) {
        self.all(|member, score| {
            visit(member, score);
            true
        });
    }

    /// Returns whether all members satisfy `is`. Stops at the first member that doesn't.
    fn all(self, mut is: impl FnMut(Element<'a>, f64) -> bool) -> bool {
        match self {
            Content::Nothing => true,
            Content::Sorted(set) => set.iter().all(|(member, score)| is(member, score)),
            Content::Plain(set) => set.all(|member| is(member, 1.0)),
        }
    }
}

#[derive(Clone, Copy)]
struct Source<'a> {
    content: Content<'a>,
    weight: f64,
}

/// The options after the keys.
struct Options {
    aggregate: Aggregate,
    with_scores: bool,
    /// Maximum number of members that `ZINTERCARD` counts.
    limit: usize,
}

/// `ZUNION numkeys key [key …] [WEIGHTS weight …] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]`.
pub fn zunion(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_result(access, args, Operation::Union, reply);
}

/// `ZINTER numkeys key [key …] [WEIGHTS weight …] [AGGREGATE SUM|MIN|MAX] [WITHSCORES]`.
pub fn zinter(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_result(access, args, Operation::Intersection, reply);
}

/// `ZDIFF numkeys key [key …] [WITHSCORES]`.
pub fn zdiff(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_result(access, args, Operation::Difference, reply);
}

/// `ZUNIONSTORE destination numkeys key [key …] [WEIGHTS weight …] [AGGREGATE SUM|MIN|MAX]`.
pub fn zunionstore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    store_result(access, args, Operation::Union, &Event(EventClass::SortedSet, "zunionstore"), reply);
}

/// `ZINTERSTORE destination numkeys key [key …] [WEIGHTS weight …] [AGGREGATE SUM|MIN|MAX]`.
pub fn zinterstore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    store_result(access, args, Operation::Intersection, &Event(EventClass::SortedSet, "zinterstore"), reply);
}

/// `ZDIFFSTORE destination numkeys key [key …]`.
pub fn zdiffstore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    store_result(access, args, Operation::Difference, &Event(EventClass::SortedSet, "zdiffstore"), reply);
}

/// `ZINTERCARD numkeys key [key …] [LIMIT limit]`.
pub fn zintercard(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(keys) = keys_of(access, args, 1, "zintercard", reply) else { return };
    let held = access.held(&keys, has_members);
    let Some((sources, options)) = sources(held, args, 1, Form::Count, Operation::Intersection, reply) else { return };
    let mut found = 0;
    if options.limit > 0 {
        intersect(&sources, Aggregate::Sum, |_, _| {
            found += 1;
            found < options.limit
        });
    }
    reply.integer(found as i64);
}

fn reply_result(access: &mut Access<'_>, args: &Args<'_>, operation: Operation, reply: &mut Reply<'_>) {
    let name = match operation {
        Operation::Union => "zunion",
        Operation::Intersection => "zinter",
        Operation::Difference => "zdiff",
    };
    let Some(keys) = keys_of(access, args, 1, name, reply) else { return };
    let held = access.held(&keys, has_members);
    let Some((sources, options)) = sources(held, args, 1, Form::Reply, operation, reply) else { return };
    // The result is read only once, so it isn't worth storing as a listpack.
    let Some(result) = run(&sources, operation, options.aggregate, UNPACKED) else {
        return reply.error(errors::SORTED_SET_FULL);
    };
    let members = result.view().iter();
    if options.with_scores {
        return reply_pairs(members, reply);
    }
    reply.array(members.len());
    members.for_each(|(member, _)| write(member, reply));
}

fn store_result(
    access: &mut Access<'_>,
    args: &Args<'_>,
    operation: Operation,
    event: &'static Event,
    reply: &mut Reply<'_>,
) {
    let Some(keys) = keys_of(access, args, 2, event.1, reply) else { return };
    let (destination, limits) = (access.first_key(args, 1), pack_limits(access));
    let held = access.held(&keys, has_members);
    let Some((sources, options)) = sources(held, args, 2, Form::Store, operation, reply) else { return };
    let Some(result) = run(&sources, operation, options.aggregate, limits) else {
        return reply.error(errors::SORTED_SET_FULL);
    };
    store(access, &destination, result, event, reply);
}

/// Returns whether a source is a sorted set or a set.
fn has_members(held: Held<'_>) -> bool {
    held.view::<SortedSet>().is_some() || held.view::<Set>().is_some()
}

/// Returns the keys of a call. `args[number]` is the number of keys, and the keys follow it.
/// Replies with an error and returns `None` if this number is invalid.
fn keys_of<'k>(
    access: &Access<'_>,
    args: &Args<'k>,
    number: usize,
    name: &str,
    reply: &mut Reply<'_>,
) -> Option<Vec<Key<'k>>> {
    let Some(count) = parse_i64(args.at(number)) else {
        reply.error(errors::NOT_AN_INTEGER);
        return None;
    };
    if count < 1 {
        reply.error(&format!("ERR at least 1 input key is needed for '{name}' command"));
        return None;
    }
    let first = number + 1;
    let Some(count) = usize::try_from(count).ok().filter(|&count| count <= args.len() - first) else {
        reply.error(errors::SYNTAX);
        return None;
    };
    Some((first..first + count).map(|index| access.key(args, index)).collect())
}

/// The use of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Reply,
    Store,
    Count,
}

/// Returns the sources with their weights, and the options. As in Redis, the types of the values
/// are checked before the options.
fn sources<'a>(
    held: Vec<Option<Held<'a>>>,
    args: &Args<'_>,
    number: usize,
    form: Form,
    operation: Operation,
    reply: &mut Reply<'_>,
) -> Option<(Vec<Source<'a>>, Options)> {
    let first = number + 1 + held.len();
    let contents: Option<Vec<Content<'a>>> = held.into_iter().map(Content::of).collect();
    let Some(contents) = contents else {
        reply.error(errors::WRONG_TYPE);
        return None;
    };
    let mut sources: Vec<Source<'a>> = contents.into_iter().map(|content| Source { content, weight: 1.0 }).collect();
    match parse_options(args, first, form, operation, &mut sources) {
        Ok(options) => {
            if operation != Operation::Difference {
                sources.sort_by_key(|source| source.content.len());
            }
            Some((sources, options))
        }
        Err(error) => {
            reply.error(error);
            None
        }
    }
}

fn parse_options(
    args: &Args<'_>,
    mut index: usize,
    form: Form,
    operation: Operation,
    sources: &mut [Source<'_>],
) -> Result<Options, &'static str> {
    let mut options = Options { aggregate: Aggregate::Sum, with_scores: false, limit: usize::MAX };
    let merges_scores = operation != Operation::Difference && form != Form::Count;
    while let Some(option) = args.get(index) {
        let left = args.len() - index;
        if merges_scores && left > sources.len() && is_option(option, "WEIGHTS") {
            for (source, weight) in sources.iter_mut().zip(args.tail(index + 1)) {
                source.weight = double::parse(weight).ok_or("ERR weight value is not a float")?;
            }
            index += 1 + sources.len();
        } else if merges_scores && left >= 2 && is_option(option, "AGGREGATE") {
            let kind = args.at(index + 1);
            options.aggregate = if is_option(kind, "SUM") {
                Aggregate::Sum
            } else if is_option(kind, "MIN") {
                Aggregate::Min
            } else if is_option(kind, "MAX") {
                Aggregate::Max
            } else {
                return Err(errors::SYNTAX);
            };
            index += 2;
        } else if form == Form::Reply && is_option(option, "WITHSCORES") {
            options.with_scores = true;
            index += 1;
        } else if form == Form::Count && left >= 2 && is_option(option, "LIMIT") {
            let limit = parse_i64(args.at(index + 1)).and_then(|limit| usize::try_from(limit).ok());
            // 0 means no limit.
            options.limit = match limit.ok_or("ERR LIMIT can't be negative")? {
                0 => usize::MAX,
                limit => limit,
            };
            index += 2;
        } else {
            return Err(errors::SYNTAX);
        }
    }
    Ok(options)
}

/// Returns the result of an operation; `None` if it has too many members for a sorted set.
fn run(sources: &[Source<'_>], operation: Operation, aggregate: Aggregate, limits: PackLimits) -> Option<SortedSet> {
    Some(match operation {
        Operation::Union => union(sources, aggregate)?.finish(limits),
        Operation::Intersection => {
            let mut builder = Builder::with_capacity(0);
            intersect(sources, aggregate, |member, score| {
                builder.merge(member, score, |same| same);
                true
            });
            builder.finish(limits)
        }
        Operation::Difference => difference(sources, limits),
    })
}

/// Returns the union; `None` if it has too many members. Scores are merged in the order of the
/// sources, which is from the shortest to the longest.
fn union(sources: &[Source<'_>], aggregate: Aggregate) -> Option<Builder> {
    let longest = sources.last().map_or(0, |source| source.content.len());
    let mut builder = Builder::with_capacity(longest);
    for source in sources {
        let fits = source.content.all(|member, score| {
            let has_room = builder.has_room();
            if has_room {
                let score = zero_if_nan(source.weight * score);
                member.with_bytes(|member| builder.merge(member, score, |before| aggregate.join(before, score)));
            }
            has_room
        });
        if !fits {
            return None;
        }
    }
    Some(builder)
}

/// Calls `visit` with the members that all sources have, until `visit` returns `false`.
fn intersect(sources: &[Source<'_>], aggregate: Aggregate, mut visit: impl FnMut(&[u8], f64) -> bool) {
    let Some((shortest, others)) = sources.split_first() else { return };
    shortest.content.all(|member, score| {
        member.with_bytes(|member| {
            let mut joined = zero_if_nan(shortest.weight * score);
            for other in others {
                let Some(score) = other.content.score(member) else { return true };
                joined = aggregate.join(joined, score * other.weight);
            }
            visit(member, joined)
        })
    });
}

/// Returns the members that only the first source has.
fn difference(sources: &[Source<'_>], limits: PackLimits) -> SortedSet {
    let Some((first, others)) = sources.split_first() else { return SortedSet::empty() };
    let mut others: Vec<Content<'_>> = others.iter().map(|source| source.content).collect();
    if is_removal_cheaper(first.content, &others) {
        return difference_by_removal(first.content, &others, limits);
    }
    others.sort_by_key(|other| std::cmp::Reverse(other.len()));
    difference_by_search(first.content, &others, limits)
}

/// Returns whether [`difference_by_removal`] costs less than [`difference_by_search`], by Redis's
/// estimate.
fn is_removal_cheaper(first: Content<'_>, others: &[Content<'_>]) -> bool {
    let search_work = first.len().saturating_mul(others.len() + 1) / 2;
    let removal_work = first.len() + others.iter().map(|other| other.len()).sum::<usize>();
    search_work > removal_work
}

/// Computes the difference by searching the other sources for each member of the first.
fn difference_by_search(first: Content<'_>, others: &[Content<'_>], limits: PackLimits) -> SortedSet {
    let mut builder = Builder::with_capacity(0);
    first.for_each(|member, score| {
        member.with_bytes(|member| {
            if others.iter().all(|other| other.score(member).is_none()) {
                builder.merge(member, score, |same| same);
            }
        });
    });
    builder.finish(limits)
}

/// Computes the difference by removing the members of the other sources from a copy of the first.
fn difference_by_removal(first: Content<'_>, others: &[Content<'_>], limits: PackLimits) -> SortedSet {
    let mut builder = Builder::with_capacity(first.len());
    first.for_each(|member, score| member.with_bytes(|member| builder.merge(member, score, |same| same)));
    let mut rest = builder.finish(UNPACKED);
    for other in others {
        let has_rest = other.all(|member, _| {
            member.with_bytes(|member| rest.remove(member));
            !rest.is_empty()
        });
        if !has_rest {
            break;
        }
    }
    if rest.view().len() >= first.len() / 2 {
        return rest.packed_within(limits);
    }
    // The memory of removed members is freed only with the whole set. As few members are left, they
    // are copied to a new set.
    let mut builder = Builder::with_capacity(rest.view().len());
    for (member, score) in rest.view().iter() {
        member.with_bytes(|member| builder.merge(member, score, |same| same));
    }
    builder.finish(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sorted set of these members. The score of each member is its number.
    fn set_of(members: impl Iterator<Item = u32>) -> SortedSet {
        let mut builder = Builder::with_capacity(0);
        members.for_each(|member| builder.merge(member.to_string().as_bytes(), f64::from(member), |same| same));
        builder.finish(PackLimits::DEFAULT)
    }

    #[test]
    fn both_ways_to_compute_a_difference_agree() {
        let first = set_of(0..1000);
        let mut plain = Set::empty();
        for member in 900..2000 {
            plain.add(member.to_string().as_bytes(), 512);
        }
        let sorted = [set_of(0..10), set_of((0..1000).step_by(7)), set_of(5..5), set_of(3000..4000)];
        let mut others: Vec<Content<'_>> = sorted.iter().map(|set| Content::Sorted(set.view())).collect();
        others.extend([Content::Plain(plain.view()), Content::Nothing]);
        for count in 0..=others.len() {
            let others = &others[..count];
            let first = Content::Sorted(first.view());
            let expected = (0..1000).filter(|member| {
                let member = member.to_string();
                others.iter().all(|other| other.score(member.as_bytes()).is_none())
            });
            let expected = set_of(expected);
            assert_eq!(difference_by_search(first, others, PackLimits::DEFAULT), expected);
            assert_eq!(difference_by_removal(first, others, PackLimits::DEFAULT), expected);
        }
        let all = [Content::Sorted(first.view()), Content::Plain(plain.view())];
        assert!(difference_by_removal(all[0], &all, PackLimits::DEFAULT).is_empty());
        let most = set_of(0..800);
        let rest = difference_by_removal(all[0], &[Content::Sorted(most.view())], PackLimits::DEFAULT);
        assert_eq!(rest, set_of(800..1000));
        assert!(rest.allocated_bytes() < first.allocated_bytes() / 2, "{}", rest.allocated_bytes());
    }

    #[test]
    fn the_way_depends_on_the_lengths_as_in_redis() {
        let (large, small) = (set_of(0..1000), set_of(0..1));
        let (large, small) = (Content::Sorted(large.view()), Content::Sorted(small.view()));
        // Only the lengths of the sources matter. The first source has 1000 members, and each of
        // the others has one, so the estimates are 1000 * (others + 1) / 2 by search and 1000 +
        // others by removal.
        for (others, is_cheaper) in [(1, false), (2, true), (100, true)] {
            assert_eq!(is_removal_cheaper(large, &vec![small; others]), is_cheaper, "{others}");
        }
        assert!(!is_removal_cheaper(small, &vec![large; 100]));
    }
}
