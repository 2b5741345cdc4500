//! Intersections, unions and differences of sets, which may lie in different shards.

use pantala_base::number::parse_i64;
use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Change, Expire, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::pack::Element;
use pantala_types::set::{
    difference, each_difference, each_intersection, each_union, intersection, union, union_has_room,
};
use pantala_types::{Collection, Set, SetView};
use std::ops::Range;

use super::intset_entries_max;
use crate::arguments::is_option;
use crate::elements::write;
use crate::errors;

type Views<'v, 'a> = &'v [Option<SetView<'a>>];

/// `SINTER key [key …]`.
pub fn sinter(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    show(access, args, reply, always_fits, |views, visit| each_intersection(views, usize::MAX, visit));
}

/// `SUNION key [key …]`.
pub fn sunion(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    show(access, args, reply, union_has_room, |views, visit| each_union(views, visit));
}

/// `SDIFF key [key …]`.
pub fn sdiff(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    show(access, args, reply, always_fits, |views, visit| each_difference(views, visit));
}

/// `SINTERSTORE destination key [key …]`.
pub fn sinterstore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    store(access, args, &Event(EventClass::Set, "sinterstore"), always_fits, intersection, reply);
}

/// `SUNIONSTORE destination key [key …]`.
pub fn sunionstore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    store(access, args, &Event(EventClass::Set, "sunionstore"), union_has_room, union, reply);
}

/// `SDIFFSTORE destination key [key …]`.
pub fn sdiffstore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    store(access, args, &Event(EventClass::Set, "sdiffstore"), always_fits, difference, reply);
}

/// `SINTERCARD numkeys key [key …] [LIMIT limit]`.
pub fn sintercard(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let keys = parse_i64(args.at(1)).filter(|&keys| keys > 0);
    let Some(keys) = keys.and_then(|keys| usize::try_from(keys).ok()) else {
        return reply.error("ERR numkeys should be greater than 0");
    };
    if keys > args.len() - 2 {
        return reply.error("ERR Number of keys can't be greater than number of args");
    }
    let (mut limit, mut index) = (usize::MAX, 2 + keys);
    while let Some(option) = args.get(index) {
        let Some(value) = args.get(index + 1).filter(|_| is_option(option, "LIMIT")) else {
            return reply.error(errors::SYNTAX);
        };
        let Some(value) = parse_i64(value).and_then(|value| usize::try_from(value).ok()) else {
            return reply.error("ERR LIMIT can't be negative");
        };
        // 0 means no limit.
        limit = if value == 0 { usize::MAX } else { value };
        index += 2;
    }
    match views(access, args, 2..2 + keys) {
        Ok(views) => reply.integer(each_intersection(&views, limit, |_| {}) as i64),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// Returns the sets at a range of arguments.
fn views<'v>(
    access: &'v mut Access<'_>,
    args: &Args<'_>,
    keys: Range<usize>,
) -> Result<Vec<Option<SetView<'v>>>, WrongType> {
    let keys: Vec<Key<'_>> = keys.map(|index| access.key(args, index)).collect();
    access.views::<Set>(&keys)
}

/// Returns true. This is the check of intersections and differences whether their result fits into
/// a set. It always does, because it is no larger than the first source.
fn always_fits(_: Views<'_, '_>) -> bool {
    true
}

/// Replies with the members that `each` selects from the sets at all keys.
fn show(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    fits: fn(Views<'_, '_>) -> bool,
    each: impl FnOnce(Views<'_, '_>, &mut dyn FnMut(Element<'_>)) -> usize,
) {
    match views(access, args, 1..args.len()) {
        Ok(views) if !fits(&views) => reply.error(errors::SET_FULL),
        Ok(views) => {
            let set = reply.defer_set();
            let found = each(&views, &mut |member| write(member, reply));
            reply.patch(set, found);
        }
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// Stores the result of `make` at the first key, and replies with its size. `make` gets the sets at
/// the other keys. An empty result deletes the first key.
fn store(
    access: &mut Access<'_>,
    args: &Args<'_>,
    event: &'static Event,
    fits: fn(Views<'_, '_>) -> bool,
    make: fn(Views<'_, '_>, usize) -> Set,
    reply: &mut Reply<'_>,
) {
    let destination = access.first_key(args, 1);
    let entries_max = intset_entries_max(access);
    let result = match views(access, args, 2..args.len()) {
        Ok(views) if !fits(&views) => return reply.error(errors::SET_FULL),
        Ok(views) => make(&views, entries_max),
        Err(WrongType) => return reply.error(errors::WRONG_TYPE),
    };
    let len = result.view().len();
    if len > 0 {
        let change = Change::event(event);
        access.db(&destination).put(&destination, result, Expire::Clear, change);
    } else {
        access.remove_destination(&destination);
    }
    reply.integer(len as i64);
}
