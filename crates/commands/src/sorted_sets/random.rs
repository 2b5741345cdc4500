//! `ZRANDMEMBER`: replies with random members of a sorted set.

use pantala_base::random::Random;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Propagated};
use pantala_resp::{Args, Reply, Version};
use pantala_types::pack::Element;
use pantala_types::sorted_set::SortedSetView;

use super::{reply_pairs, with_view};
use crate::arguments::{is_option, signed_count};
use crate::elements::{REPEATED_PICKS_MAX, distinct_below, reply_at_random, write};
use crate::errors;

/// `ZRANDMEMBER key [count [WITHSCORES]]`.
pub fn zrandmember(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    chance: Chance,
) -> Option<Propagated> {
    reply_at_random(access, args, reply, chance, reply_random)
}

fn reply_random(access: &mut Access<'_>, args: &Args<'_>, mut random: Random, reply: &mut Reply<'_>) {
    let Some(count) = args.get(2) else {
        return with_view(
            access,
            args,
            reply,
            |reply| reply.null(),
            |set, reply| {
                write(pick(set, random.below(set.len() as u64) as usize).0, reply);
            },
        );
    };
    let Some(count) = signed_count(count, reply) else { return };
    let with_scores = match args.get(3) {
        None => false,
        Some(option) if is_option(option, "WITHSCORES") && args.len() == 4 => true,
        Some(_) => return reply.error(errors::SYNTAX),
    };
    if with_scores && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return reply.error(errors::OUT_OF_RANGE);
    }
    with_view(
        access,
        args,
        reply,
        |reply| reply.array(0),
        |set, reply| {
            let (len, wanted) = (set.len(), count.unsigned_abs());
            if count >= 0 && wanted >= len as u64 {
                reply_members(set.range(0..len, true), with_scores, reply);
            } else if count >= 0 {
                let chosen = distinct_below(&mut random, wanted as usize, len);
                reply_members(picked(set, chosen).into_iter(), with_scores, reply);
            } else if wanted > REPEATED_PICKS_MAX {
                reply.error(errors::OUT_OF_RANGE);
            } else {
                // To find a rank in a listpack, the listpack is scanned from its start. So all
                // members are collected once.
                let all: Vec<_> = if is_packed(set) { set.iter().collect() } else { Vec::new() };
                let picks = (0..wanted as usize).map(|_| {
                    let rank = random.below(len as u64) as usize;
                    all.get(rank).copied().unwrap_or_else(|| pick(set, rank))
                });
                reply_repeated(picks, with_scores, reply);
            }
        },
    );
}

/// Returns the member with this rank, which must exist.
fn pick(set: SortedSetView<'_>, rank: usize) -> (Element<'_>, f64) {
    set.range(rank..rank + 1, false).next().unwrap_or((Element::Bytes(b""), 0.0))
}

fn is_packed(set: SortedSetView<'_>) -> bool {
    matches!(set, SortedSetView::Packed(_))
}

/// Returns the members with these ranks, which must exist and ascend. Scans a listpack only once.
fn picked(set: SortedSetView<'_>, ranks: Vec<usize>) -> Vec<(Element<'_>, f64)> {
    if !is_packed(set) {
        return ranks.into_iter().map(|rank| pick(set, rank)).collect();
    }
    let mut ranks = ranks.into_iter().peekable();
    let members = set.iter().enumerate();
    members.filter_map(|(rank, member)| ranks.next_if_eq(&rank).map(|_| member)).collect()
}

/// Replies with members, which may repeat.
fn reply_repeated<'a>(
    picks: impl ExactSizeIterator<Item = (Element<'a>, f64)>,
    with_scores: bool,
    reply: &mut Reply<'_>,
) {
    let is_nested = with_scores && reply.version() == Version::Resp3;
    reply.array(if with_scores && !is_nested { picks.len() * 2 } else { picks.len() });
    for (member, score) in picks {
        if is_nested {
            reply.array(2);
        }
        write(member, reply);
        if with_scores {
            reply.double(score);
        }
        if reply.is_aborted() {
            return;
        }
    }
}

fn reply_members<'a>(
    members: impl ExactSizeIterator<Item = (Element<'a>, f64)>,
    with_scores: bool,
    reply: &mut Reply<'_>,
) {
    if with_scores {
        return reply_pairs(members, reply);
    }
    reply.array(members.len());
    members.for_each(|(member, _)| write(member, reply));
}
