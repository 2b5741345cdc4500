//! Random members of sets: `SPOP`, `SRANDMEMBER`.

use pantala_base::random::Random;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Propagated};
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::pack::Element;
use pantala_types::{Collection, Set, SetView};

use super::intset_entries_max;
use super::members::with_view;
use crate::arguments::{natural, signed_count};
use crate::elements::{REPEATED_PICKS_MAX, distinct_below, reply_at_random, write};
use crate::{errors, propagated};

/// If `SPOP` pops at least this many members for each remaining one, it moves the remaining members
/// to a new set instead of removing the popped ones. The value is the same as in Redis, because
/// clients see the resulting encoding.
const POPPED_PER_KEPT: usize = 5;

/// `SPOP key [count]`.
pub fn spop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, chance: Chance) -> Option<Propagated> {
    if args.len() > 3 {
        reply.error(errors::SYNTAX);
        return None;
    }
    let count = match args.get(2).map(|count| natural(count, reply)) {
        None => None,
        Some(Some(count)) => Some(count),
        Some(None) => return None,
    };
    let key = access.first_key(args, 1);
    let mut random = access.random(&key, chance.draw());
    let intset_entries_max = intset_entries_max(access);
    // The choice is random, so the popped members are propagated by name.
    let mut popped = access.is_journaled().then(Vec::new);
    let result = access.db(&key).change_as(&key, Missing::Skip, |set: &mut Set| {
        let len = set.view().len();
        let mut reply_popped = |member: Element<'_>, reply: &mut Reply<'_>| {
            write(member, reply);
            if let Some(popped) = &mut popped {
                member.with_bytes(|bytes| popped.push(bytes.to_vec()));
            }
        };
        let taken = count.map_or(1, |count| usize::try_from(count).unwrap_or(usize::MAX)).min(len);
        if count.is_some() {
            reply.set(taken);
        }
        if taken == len {
            set.view().for_each(|member| reply_popped(member, reply));
            set.clear();
        } else if (len - taken).saturating_mul(POPPED_PER_KEPT) <= taken && count.is_some() && !set.has_cut() {
            // The set is not replaced while a snapshot reads its cut (its members at one instant);
            // see `Set::has_cut`.
            *set = keep_some(set.view(), len - taken, &mut random, intset_entries_max, |member| {
                reply_popped(member, reply);
            });
        } else {
            take_some(set, taken, &mut random, |member| reply_popped(member, reply));
        }
        (Change::event(&Event(EventClass::Set, "spop")).when(taken > 0), taken == len)
    });
    match result {
        Ok(Some(is_deleted)) => {
            return Some(match popped {
                Some(_) if is_deleted && count.is_some() => propagated::deletion(access, &key, false),
                popped => propagated::each(access, popped.iter().flatten().map(|member| [b"SREM", key.bytes, member])),
            });
        }
        Ok(None) if count.is_some() => reply.set(0),
        Ok(None) => reply.null(),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
    None
}

/// Calls `popped` with all but `kept` members. Returns the kept members as a new set. As in Redis,
/// the new set is an intset if all its members are integers.
fn keep_some(
    set: SetView<'_>,
    kept: usize,
    random: &mut Random,
    intset_entries_max: usize,
    mut popped: impl FnMut(Element<'_>),
) -> Set {
    let mut kept = distinct_below(random, kept, set.len()).into_iter().peekable();
    let (mut rest, mut buf, mut index) = (Set::empty(), Vec::new(), 0);
    set.for_each(|member| {
        if kept.next_if_eq(&index).is_some() {
            rest.add_element(member, intset_entries_max, &mut buf);
        } else {
            popped(member);
        }
        index += 1;
    });
    rest
}

/// Removes `count` members and calls `popped` with each. The set must have more than `count`
/// members.
fn take_some(set: &mut Set, count: usize, random: &mut Random, mut popped: impl FnMut(Element<'_>)) {
    for _ in 0..count {
        let index = random.below(set.view().len() as u64) as usize;
        if let Some(member) = set.view().nth(index) {
            popped(member);
        }
        set.remove_nth(index);
    }
}

/// `SRANDMEMBER key [count]`.
pub fn srandmember(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    chance: Chance,
) -> Option<Propagated> {
    reply_at_random(access, args, reply, chance, reply_random)
}

fn reply_random(access: &mut Access<'_>, args: &Args<'_>, mut random: Random, reply: &mut Reply<'_>) {
    if args.len() > 3 {
        return reply.error(errors::SYNTAX);
    }
    let Some(count) = args.get(2) else {
        return with_view(
            access,
            args,
            reply,
            |reply| reply.null(),
            |set, reply| match set.nth(random.below(set.len() as u64) as usize) {
                Some(member) => write(member, reply),
                None => reply.null(),
            },
        );
    };
    let Some(count) = signed_count(count, reply) else { return };
    with_view(access, args, reply, |reply| reply.array(0), |set, reply| pick(set, count, &mut random, reply));
}

/// Replies with `count` distinct members if `count` isn't negative, or with `-count` members that
/// may repeat.
fn pick(set: SetView<'_>, count: i64, random: &mut Random, reply: &mut Reply<'_>) {
    let (len, wanted) = (set.len(), count.unsigned_abs());
    if count < 0 {
        if wanted > REPEATED_PICKS_MAX {
            return reply.error(errors::OUT_OF_RANGE);
        }
        reply.array(wanted as usize);
        for _ in 0..wanted {
            if let Some(member) = set.nth(random.below(len as u64) as usize) {
                write(member, reply);
            }
            if reply.is_aborted() {
                return;
            }
        }
    } else if wanted >= len as u64 {
        // As in redis-server 7.0.15, the reply is an array even if it contains the whole set, also
        // in RESP3.
        reply.array(len);
        set.for_each(|member| write(member, reply));
    } else {
        let chosen = distinct_below(random, wanted as usize, len);
        reply.array(chosen.len());
        for member in chosen.into_iter().filter_map(|index| set.nth(index)) {
            write(member, reply);
        }
    }
}
