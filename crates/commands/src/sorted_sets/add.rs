//! `ZADD` and `ZINCRBY`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::sorted_set::{AddOptions, Added};
use pantala_types::{Collection, SortedSet, double};

use super::pack_limits;
use crate::arguments::is_option;
use crate::errors;

/// `ZADD key [NX|XX] [GT|LT] [CH] [INCR] score member [score member …]`.
pub fn zadd(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    add(access, args, AddOptions::default(), reply);
}

/// `ZINCRBY key increment member`: does the same as `ZADD` with `INCR`. As in Redis, it also
/// accepts the other options of `ZADD`.
pub fn zincrby(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    add(access, args, AddOptions { incr: true, ..AddOptions::default() }, reply);
}

fn add(access: &mut Access<'_>, args: &Args<'_>, mut options: AddOptions, reply: &mut Reply<'_>) {
    let (mut index, mut count_changed) = (2, false);
    while let Some(word) = args.get(index) {
        // Options start with a letter, and nearly every score starts with a digit.
        if word.first().is_none_or(|first| !first.is_ascii_alphabetic()) {
            break;
        } else if is_option(word, "NX") {
            options.nx = true;
        } else if is_option(word, "XX") {
            options.xx = true;
        } else if is_option(word, "CH") {
            count_changed = true;
        } else if is_option(word, "INCR") {
            options.incr = true;
        } else if is_option(word, "GT") {
            options.gt = true;
        } else if is_option(word, "LT") {
            options.lt = true;
        } else {
            break;
        }
        index += 1;
    }
    let pairs = args.tail(index);
    if pairs.is_empty() || pairs.len() % 2 == 1 {
        return reply.error(errors::SYNTAX);
    }
    if options.nx && options.xx {
        return reply.error("ERR XX and NX options at the same time are not compatible");
    }
    if [options.gt, options.lt, options.nx].into_iter().filter(|given| *given).count() > 1 {
        return reply.error("ERR GT, LT, and/or NX options at the same time are not compatible");
    }
    if options.incr && pairs.len() > 2 {
        return reply.error("ERR INCR option supports a single increment-element pair");
    }
    let parse = |at: usize| double::parse(pairs.at(at));
    // Parses the first score separately, so that a call with one member doesn't allocate.
    let Some(first) = parse(0) else { return reply.error(errors::NOT_A_FLOAT) };
    let mut rest = Vec::new();
    for at in (2..pairs.len()).step_by(2) {
        let Some(score) = parse(at) else { return reply.error(errors::NOT_A_FLOAT) };
        rest.push(score);
    }
    let score_of = |number: usize| if number == 0 { first } else { rest[number - 1] };
    let members = (0..pairs.len() / 2).map(|number| (pairs.at(number * 2 + 1), score_of(number)));
    add_scores(access, args, members, options, count_changed, reply);
}

/// The outcome of adding members.
#[derive(Default)]
struct Tally {
    added: i64,
    updated: i64,
    /// The new score of the last member, or `None` if an option prevented the update.
    score: Option<f64>,
    /// The reason why no members were added, if any.
    error: Option<&'static str>,
}

impl Tally {
    fn has_changed(&self) -> bool {
        self.added + self.updated > 0
    }
}

/// Adds members to the set at `args[1]`, replies as `ZADD` does, and returns whether anything
/// changed. There must be at least one member, and exactly one with `INCR`.
pub(crate) fn add_scores<'m>(
    access: &mut Access<'_>,
    args: &Args<'_>,
    mut members: impl ExactSizeIterator<Item = (&'m [u8], f64)>,
    options: AddOptions,
    count_changed: bool,
    reply: &mut Reply<'_>,
) -> bool {
    let (key, limits) = (access.first_key(args, 1), pack_limits(access));
    let missing = if options.xx { Missing::Skip } else { Missing::Create };
    let event = match options.incr {
        true => &Event(EventClass::SortedSet, "zincr"),
        false => &Event(EventClass::SortedSet, "zadd"),
    };
    let result = access.db(&key).change_as(&key, missing, |set: &mut SortedSet| {
        let mut tally = Tally::default();
        if !set.view().has_room(members.len()) {
            tally.error = Some(errors::SORTED_SET_FULL);
            return (Change::none(), tally);
        }
        let first = members.next();
        if let Some((member, _)) = first
            && set.is_empty()
        {
            *set = SortedSet::for_first(member.len(), limits);
        }
        for (member, score) in first.into_iter().chain(members) {
            tally.score = match set.add(member, score, options, limits) {
                Added::New(score) => {
                    tally.added += 1;
                    Some(score)
                }
                Added::Updated(score) => {
                    tally.updated += 1;
                    Some(score)
                }
                Added::Same(score) => Some(score),
                Added::Skipped => None,
                Added::NotANumber => {
                    tally.error = Some("ERR resulting score is not a number (NaN)");
                    None
                }
            };
        }
        (Change::event(event).when(tally.has_changed()), tally)
    });
    let tally = match result {
        Ok(tally) => tally.unwrap_or_default(),
        Err(WrongType) => {
            reply.error(errors::WRONG_TYPE);
            return false;
        }
    };
    if let Some(error) = tally.error {
        reply.error(error);
        return tally.has_changed();
    }
    match (options.incr, tally.score) {
        (true, Some(score)) => reply.double(score),
        (true, None) => reply.null(),
        (false, _) => reply.integer(if count_changed { tally.added + tally.updated } else { tally.added }),
    }
    tally.has_changed()
}
