//! Commands on whole hashes: all fields, random fields, `HSCAN`.

use pantala_base::random::Random;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Propagated};
use pantala_resp::{Args, Reply, Version};
use pantala_types::HashView;
use pantala_types::pack::Element;

use super::fields::{with_unfiltered, with_view};
use crate::arguments::{is_option, signed_count};
use crate::elements::{REPEATED_PICKS_MAX, distinct_below, reply_at_random, write};
use crate::errors;
use crate::scanning::{ScanOptions, parse_cursor, reply_empty_page, reply_page};

/// `HGETALL key`.
pub fn hgetall(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_view(
        access,
        args,
        reply,
        |reply| reply.map(0),
        |hash, reply| {
            reply.map(hash.len());
            hash.for_each(|field, value| {
                write(field, reply);
                write(value, reply);
            });
        },
    );
}

/// `HKEYS key`.
pub fn hkeys(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_view(
        access,
        args,
        reply,
        |reply| reply.array(0),
        |hash, reply| {
            reply.array(hash.len());
            hash.for_each(|field, _| write(field, reply));
        },
    );
}

/// `HVALS key`.
pub fn hvals(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_view(
        access,
        args,
        reply,
        |reply| reply.array(0),
        |hash, reply| {
            reply.array(hash.len());
            hash.for_each(|_, value| write(value, reply));
        },
    );
}

/// `HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]`.
pub fn hscan(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(cursor) = parse_cursor(args.at(2)) else { return reply.error("ERR invalid cursor") };
    with_unfiltered(access, args, reply, reply_empty_page, |hash, now_ms, reply| {
        let options = match ScanOptions::parse(args, true) {
            Ok(options) => options,
            Err(error) => return reply.error(error),
        };
        let has_expired = hash.has_expired(now_ms);
        let is_expired = |field: Element<'_>| has_expired && field.with_bytes(|field| hash.is_expired(field, now_ms));
        reply_page(reply, cursor, &options, |cursor, page| {
            let (mut seen, mut written) = (0, 0);
            let next = hash.scan(cursor, &mut |field, value| {
                seen += 1;
                if options.matches(field) && !is_expired(field) {
                    write(field, page);
                    written += 1;
                    if !options.no_values {
                        write(value, page);
                        written += 1;
                    }
                }
            });
            (next, seen, written)
        });
    });
}

/// `HRANDFIELD key [count [WITHVALUES]]`.
pub fn hrandfield(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    chance: Chance,
) -> Option<Propagated> {
    reply_at_random(access, args, reply, chance, reply_random)
}

fn reply_random(access: &mut Access<'_>, args: &Args<'_>, mut random: Random, reply: &mut Reply<'_>) {
    if args.len() == 2 {
        return with_view(
            access,
            args,
            reply,
            |reply| reply.null(),
            |hash, reply| match hash.nth(random.below(hash.len() as u64) as usize) {
                Some((field, _)) => write(field, reply),
                None => reply.null(),
            },
        );
    }
    let Some(count) = signed_count(args.at(2), reply) else { return };
    let with_values = args.len() == 4 && is_option(args.at(3), "WITHVALUES");
    if args.len() > 4 || args.len() == 4 && !with_values {
        return reply.error(errors::SYNTAX);
    }
    if with_values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return reply.error(errors::OUT_OF_RANGE);
    }
    let picks = Picks { count, with_values };
    with_view(access, args, reply, |reply| reply.array(0), |hash, reply| picks.reply(hash.plain(), &mut random, reply));
}

/// The arguments of `HRANDFIELD` with a count.
struct Picks {
    count: i64,
    with_values: bool,
}

impl Picks {
    fn reply(&self, hash: HashView<'_>, random: &mut Random, reply: &mut Reply<'_>) {
        let (len, wanted) = (hash.len(), self.count.unsigned_abs());
        if self.count < 0 {
            if wanted > REPEATED_PICKS_MAX {
                return reply.error(errors::OUT_OF_RANGE);
            }
            self.header(wanted as usize, reply);
            // Finding one field in a listpack takes a scan, so this collects all fields once.
            let mut all = Vec::new();
            if let HashView::Packed(_) = hash {
                hash.for_each(|field, value| all.push((field, value)));
            }
            for _ in 0..wanted {
                let index = random.below(len as u64) as usize;
                if let Some((field, value)) = all.get(index).copied().or_else(|| hash.nth(index)) {
                    self.write(field, value, reply);
                }
                if reply.is_aborted() {
                    return;
                }
            }
        } else if wanted >= len as u64 {
            self.header(len, reply);
            hash.for_each(|field, value| self.write(field, value, reply));
        } else {
            let chosen = distinct_below(random, wanted as usize, len);
            self.header(chosen.len(), reply);
            if let HashView::Table(_) = hash {
                for (field, value) in chosen.into_iter().filter_map(|index| hash.nth(index)) {
                    self.write(field, value, reply);
                }
            } else {
                let (mut chosen, mut index) = (chosen.into_iter().peekable(), 0);
                hash.for_each(|field, value| {
                    if chosen.next_if_eq(&index).is_some() {
                        self.write(field, value, reply);
                    }
                    index += 1;
                });
            }
        }
    }

    fn header(&self, picks: usize, reply: &mut Reply<'_>) {
        let is_flat = self.with_values && reply.version() == Version::Resp2;
        reply.array(if is_flat { 2 * picks } else { picks });
    }

    fn write(&self, field: Element<'_>, value: Element<'_>, reply: &mut Reply<'_>) {
        if self.with_values && reply.version() == Version::Resp3 {
            reply.array(2);
        }
        write(field, reply);
        if self.with_values {
            write(value, reply);
        }
    }
}
