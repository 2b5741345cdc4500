//! Pops the members with the lowest or highest scores: `ZPOPMIN`, `ZPOPMAX`, `ZMPOP`.

use pantala_base::number::parse_i64;
use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply, Version};
use pantala_types::{Collection, SortedSet};

use crate::arguments::{is_option, natural};
use crate::elements::write;
use crate::{errors, propagated};

/// The end to pop from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The lowest scores.
    Min,
    /// The highest scores.
    Max,
}

impl End {
    fn command(self) -> &'static str {
        match self {
            End::Min => "ZPOPMIN",
            End::Max => "ZPOPMAX",
        }
    }

    fn event(self) -> &'static Event {
        match self {
            End::Min => &Event(EventClass::SortedSet, "zpopmin"),
            End::Max => &Event(EventClass::SortedSet, "zpopmax"),
        }
    }
}

/// The form of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Member, score, member, score ….
    Flat,
    /// A pair per member.
    Nested,
    /// The key, then a member and its score (`BZPOPMIN`).
    FlatWithKey,
    /// The key, then an array of pairs (`ZMPOP`).
    WithKey,
}

/// `ZPOPMIN key [count]`.
pub fn zpopmin(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    pop_one(access, args, End::Min, reply);
}

/// `ZPOPMAX key [count]`.
pub fn zpopmax(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    pop_one(access, args, End::Max, reply);
}

fn pop_one(access: &mut Access<'_>, args: &Args<'_>, end: End, reply: &mut Reply<'_>) {
    if args.len() > 3 {
        return reply.error(errors::SYNTAX);
    }
    let count = match args.get(2) {
        None => None,
        Some(count) => match natural(count, reply) {
            None => return,
            count => count,
        },
    };
    let key = access.first_key(args, 1);
    let shape = if reply.version() == Version::Resp3 && count.is_some() { Shape::Nested } else { Shape::Flat };
    match pop(access, &key, end, count.unwrap_or(1), shape, reply) {
        Ok(true) => {}
        Ok(false) => reply.array(0),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// `ZMPOP numkeys key [key …] MIN|MAX [COUNT count]`.
pub fn zmpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let call = match MultiPop::parse(args, 1) {
        Ok(call) => call,
        Err(error) => return reply.error(error),
    };
    for index in call.keys {
        let key = access.key(args, index);
        match pop(access, &key, call.end, call.count, Shape::WithKey, reply) {
            Ok(true) => return,
            Ok(false) => {}
            Err(WrongType) => return reply.error(errors::WRONG_TYPE),
        }
    }
    reply.null_array();
}

/// The arguments of `ZMPOP` and `BZMPOP`.
#[derive(Clone, Debug)]
pub(crate) struct MultiPop {
    /// Indexes of the keys.
    pub(crate) keys: std::ops::Range<usize>,
    pub(crate) end: End,
    pub(crate) count: u64,
}

impl MultiPop {
    /// Parses the arguments. `args[number]` is the number of keys, and the other arguments follow
    /// it.
    pub(crate) fn parse(args: &Args<'_>, number: usize) -> Result<Self, &'static str> {
        let positive =
            |text: &[u8]| parse_i64(text).and_then(|value| u64::try_from(value).ok()).filter(|&value| value > 0);
        let keys = positive(args.at(number)).ok_or("ERR numkeys should be greater than 0")?;
        let end_at = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(number + 1));
        let (end_at, end) = end_at.and_then(|at| Some((at, args.get(at)?))).ok_or(errors::SYNTAX)?;
        let end = if is_option(end, "MIN") {
            End::Min
        } else if is_option(end, "MAX") {
            End::Max
        } else {
            return Err(errors::SYNTAX);
        };
        let (mut count, mut index) = (None, end_at + 1);
        while let Some(option) = args.get(index) {
            let value = args.get(index + 1).filter(|_| count.is_none() && is_option(option, "COUNT"));
            count = Some(positive(value.ok_or(errors::SYNTAX)?).ok_or("ERR count should be greater than 0")?);
            index += 2;
        }
        Ok(MultiPop { keys: number + 1..end_at, end, count: count.unwrap_or(1) })
    }
}

/// Pops up to `count` members from the set at a key and replies with them. If there is no such key,
/// returns `false` without a reply.
pub(crate) fn pop(
    access: &mut Access<'_>,
    key: &Key<'_>,
    end: End,
    count: u64,
    shape: Shape,
    reply: &mut Reply<'_>,
) -> Result<bool, WrongType> {
    let result = access.db(key).change_as(key, Missing::Skip, |set: &mut SortedSet| {
        let len = set.view().len();
        let popped = usize::try_from(count).unwrap_or(usize::MAX).min(len);
        let ranks = if end == End::Min { 0..popped } else { len - popped..len };
        match shape {
            Shape::Flat => reply.array(popped * 2),
            Shape::Nested => reply.array(popped),
            Shape::FlatWithKey => {
                reply.array(1 + popped * 2);
                reply.bulk(key.bytes);
            }
            Shape::WithKey => {
                reply.array(2);
                reply.bulk(key.bytes);
                reply.array(popped);
            }
        }
        for (member, score) in set.view().range(ranks.clone(), end == End::Max) {
            if matches!(shape, Shape::Nested | Shape::WithKey) {
                reply.array(2);
            }
            write(member, reply);
            reply.double(score);
        }
        set.remove_range(ranks);
        (Change::event(end.event()).when(popped > 0), popped)
    })?;
    let Some(popped) = result else { return Ok(false) };
    if popped > 0 {
        // `ZPOPMIN` and `ZPOPMAX` (flat or nested replies) are propagated as the client sent them.
        // Other commands are propagated as one of these two.
        match shape {
            Shape::Flat | Shape::Nested => {}
            Shape::FlatWithKey => _ = propagated::pop(access, end.command(), key, None),
            Shape::WithKey => _ = propagated::pop(access, end.command(), key, Some(popped)),
        }
    }
    Ok(true)
}
