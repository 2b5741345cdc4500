//! `XADD` and `XTRIM`.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::parse_i64;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Omission, Propagated};
use pantala_engine::db::{Change, Missing};
use pantala_engine::notify::{Event, EventClass};
use pantala_engine::tuning::Tuning;
use pantala_resp::{Args, Reply};
use pantala_types::Stream;
use pantala_types::stream::{AppendError, NewId, NodeLimits, StreamId, Trim};

use super::StreamBox;
use super::ids::{INVALID_ID, write_id};
use super::propagated;
use crate::arguments::{c_string, is_option};
use crate::errors;

const TWO_STRATEGIES: &str = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible";
const NEGATIVE_MAXLEN: &str = "ERR The MAXLEN argument must be >= 0.";
const NEGATIVE_LIMIT: &str = "ERR The LIMIT argument must be >= 0.";
const LIMIT_ALONE: &str = "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy";
const LIMIT_EXACT: &str = "ERR syntax error, LIMIT cannot be used without the special ~ option";
const NO_STRATEGY: &str = "ERR syntax error, XTRIM must be called with a trimming strategy";
const WRONG_ARITY: &str = "ERR wrong number of arguments for 'xadd' command";
const ZERO_ID: &str = "ERR The ID specified in XADD must be greater than 0-0";
const NOT_ABOVE: &str = "ERR The ID specified in XADD is equal or smaller than the target stream top item";
const EXHAUSTED: &str = "ERR The stream has exhausted the last possible ID, unable to add more items";
const TOO_LARGE: &str = "ERR Elements are too large to be stored";

/// An approximate trim without LIMIT removes at most the entries of this number of full nodes. A
/// node is a block of entries that are stored together.
const TRIMMED_NODES_MAX: u64 = 100;
/// Maximum number of entries that an approximate trim without LIMIT removes, if the number of
/// entries per node is not limited (`stream-node-max-entries` 0).
const TRIMMED_ENTRIES_DEFAULT: u64 = 10_000;
/// Maximum number of entries that an approximate trim without LIMIT removes in any case.
const TRIMMED_ENTRIES_MAX: u64 = 1_000_000;

/// The options of a trim.
#[derive(Clone, Copy, Debug)]
struct Trimming {
    to: Trim,
    approximate: bool,
    limit: u64,
    /// Index of the argument with the threshold.
    at: usize,
}

impl Trimming {
    /// Returns the threshold to propagate and its argument index; `None` if the trim is exact.
    fn remaining_threshold(&self, stream: &Stream) -> Option<(usize, Trim)> {
        self.approximate.then(|| (self.at, stream.remaining_threshold(self.to)))
    }
}

/// The options before the ID of a new entry, and this ID.
struct Options {
    trimming: Option<Trimming>,
    no_mkstream: bool,
    id: NewId,
    /// Index of the ID. For `XTRIM`, which has no ID, the end of the arguments.
    id_at: usize,
}

/// `XADD key [NOMKSTREAM] [MAXLEN | MINID [= | ~] threshold [LIMIT count]] * | id field value
/// [field value ...]`.
pub fn xadd(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, chance: Chance) -> Option<Propagated> {
    let key = access.first_key(args, 1);
    let tuning = &access.keyspace().tuning;
    let options = match Options::parse(access, args, true) {
        Ok(options) => options,
        Err(error) => {
            reply.error(error);
            return None;
        }
    };
    let fields = args.tail(options.id_at + 1);
    if fields.len() < 2 || fields.len() % 2 == 1 {
        reply.error(WRONG_ARITY);
        return None;
    }
    if options.id == NewId::Given(StreamId::MIN) {
        reply.error(ZERO_ID);
        return None;
    }
    let missing = if options.no_mkstream { Missing::Skip } else { Missing::Create };
    let (limits, now_ms) = (node_limits(tuning), access.now_ms() as u64);
    let is_journaled = access.is_journaled();
    let added = access.db(&key).change_as(&key, missing, |stream: &mut StreamBox| {
        let pairs = (0..fields.len() / 2).map(|pair| (fields.at(2 * pair), fields.at(2 * pair + 1)));
        let added = stream.append(options.id, now_ms, pairs, &limits);
        let trimmed = match options.trimming {
            Some(how) if added.is_ok() => stream.trim(how.to, how.approximate, how.limit),
            _ => 0,
        };
        let threshold = options.trimming.filter(|_| is_journaled).and_then(|how| how.remaining_threshold(stream));
        let change = Change::event(&Event(EventClass::Stream, "xadd"));
        let change = if trimmed > 0 { change.and(&Event(EventClass::Stream, "xtrim")) } else { change };
        (change.when(added.is_ok()), added.map(|id| (id, threshold)))
    });
    match added {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.null(),
        Ok(Some(Err(error))) => reply.error(match error {
            AppendError::Exhausted => EXHAUSTED,
            AppendError::NotAbove => NOT_ABOVE,
            AppendError::TooLarge => TOO_LARGE,
            AppendError::OutOfMemory => errors::OUT_OF_MEMORY,
        }),
        Ok(Some(Ok((id, threshold)))) => {
            write_id(id, reply);
            let id = (!matches!(options.id, NewId::Given(_))).then_some((options.id_at, id));
            return Some(match is_journaled {
                true => propagated::resolved(access, args, id, threshold, chance),
                false => access.propagate_nothing(Omission::Unrecorded),
            });
        }
    }
    None
}

/// `XTRIM key MAXLEN | MINID [= | ~] threshold [LIMIT count]`.
pub fn xtrim(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, chance: Chance) -> Option<Propagated> {
    let key = access.first_key(args, 1);
    let how = match Options::parse(access, args, false) {
        Ok(Options { trimming: Some(how), .. }) => how,
        Ok(_) => {
            reply.error(NO_STRATEGY);
            return None;
        }
        Err(error) => {
            reply.error(error);
            return None;
        }
    };
    let is_journaled = access.is_journaled();
    let trimmed = access.db(&key).change_as(&key, Missing::Skip, |stream: &mut StreamBox| {
        let trimmed = stream.trim(how.to, how.approximate, how.limit);
        let threshold =
            Some(how).filter(|_| is_journaled && trimmed > 0).and_then(|how| how.remaining_threshold(stream));
        (Change::event(&Event(EventClass::Stream, "xtrim")).when(trimmed > 0), (trimmed, threshold))
    });
    let Ok(trimmed) = trimmed else {
        reply.error(errors::WRONG_TYPE);
        return None;
    };
    let (trimmed, threshold) = trimmed.unwrap_or((0, None));
    reply.integer(trimmed as i64);
    (trimmed > 0).then(|| match is_journaled {
        true => propagated::resolved(access, args, None, threshold, chance),
        false => access.propagate_nothing(Omission::Unrecorded),
    })
}

/// Returns the limits of a stream's nodes.
fn node_limits(tuning: &Tuning) -> NodeLimits {
    NodeLimits {
        bytes: tuning.stream_node_max_bytes.load(Relaxed),
        entries: tuning.stream_node_max_entries.load(Relaxed),
    }
}

impl Options {
    /// Parses the options of `XADD` up to its ID if `adds` is true, and otherwise those of `XTRIM`.
    fn parse(access: &Access<'_>, args: &Args<'_>, adds: bool) -> Result<Options, &'static str> {
        let mut options = Options { trimming: None, no_mkstream: false, id: NewId::Auto, id_at: args.len() };
        let mut limit = None;
        let mut at = 2;
        while at < args.len() {
            let option = args.at(at);
            let more = args.len() - 1 - at;
            if adds && c_string(option) == b"*" {
                options.id_at = at;
                break;
            } else if more > 0 && (is_option(option, "MAXLEN") || is_option(option, "MINID")) {
                if options.trimming.is_some() {
                    return Err(TWO_STRATEGIES);
                }
                let operator = if more >= 2 { c_string(args.at(at + 1)) } else { b"" };
                at += 1 + usize::from(operator == b"~" || operator == b"=");
                let to = threshold(args.at(at), is_option(option, "MAXLEN"))?;
                options.trimming = Some(Trimming { to, approximate: operator == b"~", limit: 0, at });
            } else if more > 0 && is_option(option, "LIMIT") {
                at += 1;
                let count = parse_i64(args.at(at)).ok_or(errors::NOT_AN_INTEGER)?;
                limit = Some(u64::try_from(count).map_err(|_| NEGATIVE_LIMIT)?);
            } else if adds && is_option(option, "NOMKSTREAM") {
                options.no_mkstream = true;
            } else if adds {
                options.id = NewId::parse(option).ok_or(INVALID_ID)?;
                options.id_at = at;
                break;
            } else {
                return Err(errors::SYNTAX);
            }
            at += 1;
        }
        let (tuning, of_primary) = (&access.keyspace().tuning, access.session().of_primary);
        // In a command from the primary, the threshold is the one that the primary's trim reached.
        // So the trim here must reach it too, and LIMIT does not apply.
        options.resolve_limit(limit.filter(|_| !of_primary), adds, tuning)?;
        if let (Some(trimming), true) = (&mut options.trimming, of_primary) {
            trimming.limit = 0;
        }
        Ok(options)
    }

    fn resolve_limit(&mut self, limit: Option<u64>, adds: bool, tuning: &Tuning) -> Result<(), &'static str> {
        let Some(trimming) = &mut self.trimming else {
            return match limit {
                Some(1..) => Err(LIMIT_ALONE),
                _ if !adds => Err(NO_STRATEGY),
                Some(0) => Err(LIMIT_EXACT),
                None => Ok(()),
            };
        };
        trimming.limit = match limit {
            Some(_) if !trimming.approximate => return Err(LIMIT_EXACT),
            Some(limit) => limit,
            None if trimming.approximate => default_limit(tuning.stream_node_max_entries.load(Relaxed)),
            None => 0,
        };
        Ok(())
    }
}

fn threshold(argument: &[u8], is_length: bool) -> Result<Trim, &'static str> {
    if is_length {
        let length = parse_i64(argument).ok_or(errors::NOT_AN_INTEGER)?;
        u64::try_from(length).map(Trim::Length).map_err(|_| NEGATIVE_MAXLEN)
    } else {
        StreamId::parse(argument, 0).map(Trim::Id).ok_or(INVALID_ID)
    }
}

/// Returns the maximum number of entries that an approximate trim without LIMIT removes.
fn default_limit(node_entries_max: u64) -> u64 {
    match (node_entries_max as i64).wrapping_mul(TRIMMED_NODES_MAX as i64) {
        ..=0 => TRIMMED_ENTRIES_DEFAULT,
        limit => (limit as u64).min(TRIMMED_ENTRIES_MAX),
    }
}
