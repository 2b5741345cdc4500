//! Commands that read, count, store or remove the members of a range. [`super::range`] parses
//! ranges.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::sorted_set::Builder;
use pantala_types::{Collection, SortedSet};

use super::range::{Bounds, Preset, Query, RangeKind};
use super::{pack_limits, reply_pairs, store, with_view};
use crate::elements::write;
use crate::errors;

/// `ZRANGE key start stop [BYSCORE|BYLEX] [REV] [LIMIT offset count] [WITHSCORES]`.
pub fn zrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    read(access, args, Preset::default(), reply);
}

/// `ZREVRANGE key start stop [WITHSCORES]`.
pub fn zrevrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    read(access, args, preset(RangeKind::Rank, true), reply);
}

/// `ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]`.
pub fn zrangebyscore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    read(access, args, preset(RangeKind::Score, false), reply);
}

/// `ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]`.
pub fn zrevrangebyscore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    read(access, args, preset(RangeKind::Score, true), reply);
}

/// `ZRANGEBYLEX key min max [LIMIT offset count]`.
pub fn zrangebylex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    read(access, args, preset(RangeKind::Lex, false), reply);
}

/// `ZREVRANGEBYLEX key max min [LIMIT offset count]`.
pub fn zrevrangebylex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    read(access, args, preset(RangeKind::Lex, true), reply);
}

fn preset(kind: RangeKind, reverse: bool) -> Preset {
    Preset { kind: Some(kind), reverse: Some(reverse), stores: false }
}

fn read(access: &mut Access<'_>, args: &Args<'_>, preset: Preset, reply: &mut Reply<'_>) {
    let query = match Query::parse(args, 2, preset) {
        Ok(query) => query,
        Err(error) => return reply.error(error),
    };
    with_view(
        access,
        args,
        reply,
        |reply| reply.array(0),
        |set, reply| {
            let members = set.range(query.ranks(set), query.reverse);
            if query.with_scores {
                return reply_pairs(members, reply);
            }
            reply.array(members.len());
            members.for_each(|(member, _)| write(member, reply));
        },
    );
}

/// `ZRANGESTORE destination source min max [BYSCORE|BYLEX] [REV] [LIMIT offset count]`.
pub fn zrangestore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let query = match Query::parse(args, 3, Preset { stores: true, ..Preset::default() }) {
        Ok(query) => query,
        Err(error) => return reply.error(error),
    };
    let (destination, source, limits) = (access.first_key(args, 1), access.key(args, 2), pack_limits(access));
    let result = match access.db(&source).read_as::<SortedSet>(&source) {
        Ok(None) => SortedSet::empty(),
        Ok(Some(set)) => {
            let members = set.range(query.ranks(set), query.reverse);
            let mut builder = Builder::with_capacity(members.len());
            for (member, score) in members {
                member.with_bytes(|member| builder.merge(member, score, |same| same));
            }
            builder.finish(limits)
        }
        Err(WrongType) => return reply.error(errors::WRONG_TYPE),
    };
    store(access, &destination, result, &Event(EventClass::SortedSet, "zrangestore"), reply);
}

/// `ZCOUNT key min max`.
pub fn zcount(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    count(access, args, RangeKind::Score, reply);
}

/// `ZLEXCOUNT key min max`.
pub fn zlexcount(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    count(access, args, RangeKind::Lex, reply);
}

fn count(access: &mut Access<'_>, args: &Args<'_>, kind: RangeKind, reply: &mut Reply<'_>) {
    let bounds = match Bounds::parse(kind, args.at(2), args.at(3)) {
        Ok(bounds) => bounds,
        Err(error) => return reply.error(error),
    };
    with_view(
        access,
        args,
        reply,
        |reply| reply.integer(0),
        |set, reply| {
            reply.integer(bounds.ranks(set, false).len() as i64);
        },
    );
}

/// `ZREMRANGEBYRANK key start stop`.
pub fn zremrangebyrank(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    remove(access, args, RangeKind::Rank, &Event(EventClass::SortedSet, "zremrangebyrank"), reply);
}

/// `ZREMRANGEBYSCORE key min max`.
pub fn zremrangebyscore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    remove(access, args, RangeKind::Score, &Event(EventClass::SortedSet, "zremrangebyscore"), reply);
}

/// `ZREMRANGEBYLEX key min max`.
pub fn zremrangebylex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    remove(access, args, RangeKind::Lex, &Event(EventClass::SortedSet, "zremrangebylex"), reply);
}

fn remove(access: &mut Access<'_>, args: &Args<'_>, kind: RangeKind, event: &'static Event, reply: &mut Reply<'_>) {
    let bounds = match Bounds::parse(kind, args.at(2), args.at(3)) {
        Ok(bounds) => bounds,
        Err(error) => return reply.error(error),
    };
    let key = access.first_key(args, 1);
    let result = access.db(&key).change_as(&key, Missing::Skip, |set: &mut SortedSet| {
        let ranks = bounds.ranks(set.view(), false);
        let removed = ranks.len();
        set.remove_range(ranks);
        (Change::event(event).when(removed > 0), removed)
    });
    match result {
        Ok(removed) => reply.integer(removed.unwrap_or(0) as i64),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}
