//! Commands of Redis 8.0 that read or set fields and change their expiry in one step: `HGETDEL`,
//! `HGETEX`, `HSETEX`.
//!
//! Replicas and the append-only file do not get these commands, but `HSET`, `HDEL`, `HPEXPIREAT`
//! and `HPERSIST`, which Redis 7.4 knows too.

use pantala_base::number::Decimal;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Omission, Propagated};
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::fields::Fields;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::{Collection, Hash, HashLimits};

use super::expiry::{WRONG_NUMBER, field_deadline, fields, is_hash, propagate_deadline, propagate_deletion};
use super::fields::{reply_nulls, reply_values};
use super::limits;
use crate::arguments::{c_string, is_option, positive};
use crate::strings::time_option;
use crate::{elements, errors, propagated};

const HDEL: &Event = &Event(EventClass::Hash, "hdel");
const HEXPIRE: &Event = &Event(EventClass::Hash, "hexpire");
const HPERSIST: &Event = &Event(EventClass::Hash, "hpersist");
const HSET: &Event = &Event(EventClass::Hash, "hset");

/// Replies with the value of a field, or null. Returns whether the field exists.
fn reply_value(hash: &Hash, field: &[u8], reply: &mut Reply<'_>) -> bool {
    let value = hash.view().get(field);
    match value {
        Some(value) => elements::write(value, reply),
        None => reply.null(),
    }
    value.is_some()
}

/// `HGETDEL key FIELDS numfields field [field …]`.
pub fn hgetdel(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if !is_hash(access, args, reply) {
        return;
    }
    let Some(first) = fields(args, 2, WRONG_NUMBER, reply) else { return };
    let (key, mut removed) = (access.first_key(args, 1), Vec::new());
    let result = access.db(&key).change_hash(&key, Missing::Skip, Fields::from(args, first), |hash| {
        reply.array(args.len() - first);
        for index in first..args.len() {
            let field = args.at(index);
            if reply_value(hash, field, reply) {
                hash.remove(field);
                removed.push(field);
            }
        }
        (Change::event(HDEL).when(!removed.is_empty()), ())
    });
    match result {
        Ok(Some(())) => {}
        Ok(None) => reply_nulls(args.len() - first, reply),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
    if !removed.is_empty() {
        propagate_deletion(access, &key, &removed);
    }
}

/// The new expiry of the fields of `HGETEX`.
#[derive(Clone, Copy)]
enum NewExpiry {
    /// This deadline (Unix time, ms). If it has passed, the fields are deleted.
    At(i64),
    /// None (`PERSIST`).
    Persist,
}

/// `HGETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST] FIELDS numfields field [field …]`.
pub fn hgetex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    if !is_hash(access, args, reply) {
        return None;
    }
    let (expiry, at) = match time_option(args.at(2)) {
        Some(time) => {
            let at_ms = field_deadline(access, args.at(3), time, "hgetex", reply)?;
            (Some(NewExpiry::At(at_ms)), 4)
        }
        None if is_option(args.at(2), "PERSIST") => (Some(NewExpiry::Persist), 3),
        None => (None, 2),
    };
    let first = fields(args, at, WRONG_NUMBER, reply)?;
    let count = args.len() - first;
    let Some(expiry) = expiry else {
        reply_values(access, args, first, reply);
        return None;
    };
    let key = access.first_key(args, 1);
    let is_past = matches!(expiry, NewExpiry::At(at_ms) if access.is_past(at_ms));
    let mut changed = Vec::new();
    let result = access.db(&key).change_hash(&key, Missing::Skip, Fields::from(args, first), |hash| {
        reply.array(count);
        for index in first..args.len() {
            let field = args.at(index);
            if !reply_value(hash, field, reply) {
                continue;
            }
            let is_changed = match expiry {
                NewExpiry::At(_) if is_past => hash.remove(field),
                NewExpiry::At(at_ms) => {
                    hash.set_expiry(field, at_ms);
                    true
                }
                NewExpiry::Persist => hash.clear_expiry(field),
            };
            if is_changed {
                changed.push(field);
            }
        }
        let event = match expiry {
            NewExpiry::At(_) if is_past => HDEL,
            NewExpiry::At(_) => HEXPIRE,
            NewExpiry::Persist => HPERSIST,
        };
        (Change::event(event).when(!changed.is_empty()), ())
    });
    match result {
        Ok(Some(())) => {}
        Ok(None) => reply_nulls(count, reply),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
    if changed.is_empty() {
        return None;
    }
    Some(match expiry {
        NewExpiry::At(_) if is_past => propagate_deletion(access, &key, &changed),
        NewExpiry::At(at_ms) => propagate_deadline(access, &key, at_ms, &changed),
        NewExpiry::Persist => {
            let mut number = Decimal::new();
            let head = [b"HPERSIST", key.bytes, b"FIELDS", number.format_u64(changed.len() as u64)];
            propagated::words(access, head.into_iter().chain(changed))
        }
    })
}

/// The condition of `HSETEX`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    Always,
    /// None of the fields exists (`FNX`).
    Missing,
    /// All fields exist (`FXX`).
    Existing,
}

/// The expiry of the fields that `HSETEX` sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SetExpiry {
    /// None.
    Clear,
    /// Unchanged (`KEEPTTL`).
    Keep,
    /// This deadline (Unix time, ms). If it has passed, the fields are deleted.
    At(i64),
}

/// The options of `HSETEX`.
struct Options {
    condition: Condition,
    expiry: SetExpiry,
    /// Index of the first field.
    first: usize,
}

impl Options {
    /// Parses the options. Replies with an error and returns `None` if they are invalid.
    fn parse(access: &Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) -> Option<Options> {
        const WRONG_ARITY: &str = "ERR wrong number of arguments for 'hsetex' command";
        let (mut condition, mut expiry, mut index) = (Condition::Always, SetExpiry::Clear, 2);
        while let Some(option) = args.get(index) {
            index += 1;
            let time = time_option(option);
            if is_option(option, "FIELDS") {
                // At least a number, a field and a value must follow.
                if index + 2 >= args.len() {
                    break;
                }
                let number = positive(args.at(index), "ERR invalid number of fields", reply)?;
                let first = index + 1;
                if number.checked_mul(2) != Some((args.len() - first) as u64) {
                    break;
                }
                return Some(Options { condition, expiry, first });
            } else if time.is_some() || is_option(option, "KEEPTTL") {
                if expiry != SetExpiry::Clear {
                    reply.error("ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified");
                    return None;
                }
                expiry = SetExpiry::Keep;
                if let Some(time) = time {
                    let Some(text) = args.get(index) else {
                        reply.error("ERR missing expire time");
                        return None;
                    };
                    index += 1;
                    expiry = SetExpiry::At(field_deadline(access, text, time, "hsetex", reply)?);
                }
            } else if is_option(option, "FNX") || is_option(option, "FXX") {
                if condition != Condition::Always {
                    reply.error("ERR Only one of FXX or FNX arguments can be specified");
                    return None;
                }
                condition = if is_option(option, "FNX") { Condition::Missing } else { Condition::Existing };
            } else {
                reply.error_bytes(&[b"ERR unknown argument: ", c_string(option)].concat());
                return None;
            }
        }
        reply.error(WRONG_ARITY);
        None
    }
}

/// The result of setting the fields.
enum Outcome<'a> {
    /// The condition does not hold.
    Refused,
    /// The hash can't hold more fields.
    Full,
    /// The fields were set. With `KEEPTTL`, these fields have kept a deadline.
    Set(Vec<(&'a [u8], i64)>),
    /// The new deadline has passed. These fields existed and were deleted.
    Deleted(Vec<&'a [u8]>),
}

/// `HSETEX key [FNX | FXX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL] FIELDS numfields field value
/// [field value …]`.
pub fn hsetex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let options = Options::parse(access, args, reply)?;
    let Options { condition, expiry, first } = options;
    let is_past = matches!(expiry, SetExpiry::At(at_ms) if access.is_past(at_ms));
    let key = access.first_key(args, 1);
    let limits = limits(access);
    let fields = Fields::Named { args, first, step: 2 };
    let missing = if condition == Condition::Existing { Missing::Skip } else { Missing::Create };
    let result = access.db(&key).change_hash(&key, missing, fields, |hash| {
        let outcome = set_fields(hash, args, &options, is_past, limits);
        let change = match (&outcome, expiry) {
            (Outcome::Refused | Outcome::Full, _) => Change::none(),
            (Outcome::Deleted(_), _) => Some(Change::event(HSET).and(HDEL)),
            (Outcome::Set(_), SetExpiry::At(_)) => Some(Change::event(HSET).and(HEXPIRE)),
            (Outcome::Set(_), SetExpiry::Clear | SetExpiry::Keep) => Some(Change::event(HSET)),
        };
        (change, outcome)
    });
    let names = || (first..args.len()).step_by(2).map(|index| args.at(index));
    match result {
        Ok(Some(Outcome::Deleted(removed))) => {
            reply.integer(1);
            Some(match removed.is_empty() {
                true => access.propagate_nothing(Omission::Replaced),
                false => propagate_deletion(access, &key, &removed),
            })
        }
        Ok(Some(Outcome::Set(kept))) => {
            reply.integer(1);
            if !access.is_journaled() {
                return Some(access.propagate_nothing(Omission::Unrecorded));
            }
            // HSET removes the deadlines, so it comes first.
            let pairs = (first..args.len()).map(|index| args.at(index));
            let propagated = propagated::words(access, [b"HSET", key.bytes].into_iter().chain(pairs));
            if let SetExpiry::At(at_ms) = expiry {
                propagate_deadline(access, &key, at_ms, &names().collect::<Vec<_>>());
            }
            for group in kept.chunk_by(|one, next| one.1 == next.1) {
                let names: Vec<&[u8]> = group.iter().map(|(field, _)| *field).collect();
                propagate_deadline(access, &key, group[0].1, &names);
            }
            Some(propagated)
        }
        Ok(Some(Outcome::Refused) | None) => {
            reply.integer(0);
            None
        }
        Ok(Some(Outcome::Full)) => {
            reply.error(errors::HASH_FULL);
            None
        }
        Err(WrongType) => {
            reply.error(errors::WRONG_TYPE);
            None
        }
    }
}

/// Sets the fields of `HSETEX`, or deletes them if the new deadline has passed (`is_past`).
fn set_fields<'a>(
    hash: &mut Hash,
    args: &'a Args<'_>,
    &Options { condition, expiry, first }: &Options,
    is_past: bool,
    limits: HashLimits,
) -> Outcome<'a> {
    let names = || (first..args.len()).step_by(2).map(|index| args.at(index));
    let exists = |field: &[u8]| hash.view().get(field).is_some();
    let holds = match condition {
        Condition::Always => true,
        Condition::Missing => !names().any(exists),
        Condition::Existing => names().all(exists),
    };
    if !holds {
        return Outcome::Refused;
    }
    if is_past {
        return Outcome::Deleted(names().filter(|field| hash.remove(field)).collect());
    }
    if !hash.view().has_room(names()) {
        return Outcome::Full;
    }
    hash.prepare((first..args.len()).map(|index| args.at(index).len()), limits);
    let mut kept = Vec::new();
    for index in (first..args.len()).step_by(2) {
        let (field, value) = (args.at(index), args.at(index + 1));
        match expiry {
            SetExpiry::Clear => _ = hash.set(field, value, limits),
            SetExpiry::Keep => {
                hash.update(field, value, limits);
                kept.extend(hash.view().expiry(field).map(|at_ms| (field, at_ms)));
            }
            SetExpiry::At(at_ms) => {
                hash.update(field, value, limits);
                hash.set_expiry(field, at_ms);
            }
        }
    }
    Outcome::Set(kept)
}
