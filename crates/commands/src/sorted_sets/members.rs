//! Commands on single members, and `ZSCAN`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::pack::Element;
use pantala_types::sorted_set::SortedSetView;
use pantala_types::{Collection, SortedSet};

use super::with_view;
use crate::arguments::is_option;
use crate::errors;
use crate::scanning::{ScanOptions, parse_cursor, reply_empty_page, reply_page};

/// Number of members that a page visits per step.
const MEMBERS_PER_STEP: usize = 10;

/// `ZCARD key`.
pub fn zcard(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_view(access, args, reply, |reply| reply.integer(0), |set, reply| reply.integer(set.len() as i64));
}

/// `ZSCORE key member`.
pub fn zscore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let member = args.at(2);
    with_view(access, args, reply, |reply| reply.null(), |set, reply| reply_score(set.score(member), reply));
}

/// `ZMSCORE key member [member …]`.
pub fn zmscore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let members = args.tail(2);
    let missing = |reply: &mut Reply<'_>| {
        reply.array(members.len());
        members.iter().for_each(|_| reply.null());
    };
    with_view(access, args, reply, missing, |set, reply| {
        reply.array(members.len());
        members.iter().for_each(|member| reply_score(set.score(member), reply));
    });
}

fn reply_score(score: Option<f64>, reply: &mut Reply<'_>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}

/// `ZRANK key member [WITHSCORE]` (`WITHSCORE` from Redis 7.2).
pub fn zrank(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    rank(access, args, false, reply);
}

/// `ZREVRANK key member [WITHSCORE]` (`WITHSCORE` from Redis 7.2).
pub fn zrevrank(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    rank(access, args, true, reply);
}

fn rank(access: &mut Access<'_>, args: &Args<'_>, reverse: bool, reply: &mut Reply<'_>) {
    if args.len() > 4 {
        let name = if reverse { "zrevrank" } else { "zrank" };
        return reply.error_bytes(format!("ERR wrong number of arguments for '{name}' command").as_bytes());
    }
    let with_score = match args.get(3) {
        None => false,
        Some(option) if is_option(option, "WITHSCORE") => true,
        Some(_) => return reply.error(errors::SYNTAX),
    };
    let null = |reply: &mut Reply<'_>| if with_score { reply.null_array() } else { reply.null() };
    let member = args.at(2);
    with_view(access, args, reply, null, |set, reply| {
        let Some((before, score)) = set.rank(member) else { return null(reply) };
        if with_score {
            reply.array(2);
        }
        reply.integer(if reverse { set.len() - 1 - before } else { before } as i64);
        if with_score {
            reply.double(score);
        }
    });
}

/// `ZREM key member [member …]`.
pub fn zrem(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let result = access.db(&key).change_as(&key, Missing::Skip, |set: &mut SortedSet| {
        let mut removed = 0;
        for member in args.tail(2) {
            removed += i64::from(set.remove(member));
            if set.is_empty() {
                break;
            }
        }
        (Change::event(&Event(EventClass::SortedSet, "zrem")).when(removed > 0), removed)
    });
    match result {
        Ok(removed) => reply.integer(removed.unwrap_or(0)),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// `ZSCAN key cursor [MATCH pattern] [COUNT count]`.
pub fn zscan(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(cursor) = parse_cursor(args.at(2)) else { return reply.error("ERR invalid cursor") };
    // As in Redis, options are parsed only if the key exists.
    with_view(access, args, reply, reply_empty_page, |set, reply| {
        let options = match ScanOptions::parse(args, false) {
            Ok(options) => options,
            Err(error) => return reply.error(error),
        };
        reply_page(reply, cursor, &options, |cursor, page| {
            let (mut seen, mut written) = (0, 0);
            let next = set.scan(cursor, MEMBERS_PER_STEP, |member, score| {
                seen += 1;
                if options.matches(Element::Bytes(member)) {
                    page.bulk(member);
                    bulk_score(set, score, page);
                    written += 2;
                }
            });
            (next, seen, written)
        });
    });
}

/// Writes a score as `ZSCAN` does, as a string also in RESP3. An integer stored in a listpack is
/// written with all its digits.
fn bulk_score(set: SortedSetView<'_>, score: f64, reply: &mut Reply<'_>) {
    match set.stored_integer(score) {
        Some(integer) => reply.bulk_integer(integer),
        None => {
            let mut buf = [0; pantala_resp::DOUBLE_LEN_MAX];
            reply.bulk(pantala_resp::format_double(score, &mut buf));
        }
    }
}
