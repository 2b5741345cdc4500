//! Expiry of fields, with the commands of Redis 7.4: `HEXPIRE`, `HPEXPIRE`, `HEXPIREAT`,
//! `HPEXPIREAT`, `HPERSIST`, `HTTL`, `HPTTL`, `HEXPIRETIME`, `HPEXPIRETIME`.
//!
//! As in Redis, the arguments are checked in this order: the type of the value, the time, the
//! condition and the fields. Whether the key exists is checked last.

use pantala_base::number::Decimal;
use pantala_engine::access::{Access, Key};
use pantala_engine::command::{Chance, Omission, Propagated};
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::fields::Fields;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::{Collection, Hash, HashView};

use super::fields::{with_fields, with_unfiltered};
use crate::arguments::{integer, is_option, positive};
use crate::expiry::{Base, Unit, invalid_expire, requested_expiry_ms};
use crate::{errors, propagated};

/// Latest deadline of a field that a client may set (Unix time, ms). As in Redis, it has 46 bits.
/// Valkey allows later deadlines, so a primary's commands and files may contain them.
const TIME_MAX_MS: i64 = (1 << 46) - 1;

/// The reply for one field is one of these constants.
const NO_FIELD: i64 = -2;
const NO_EXPIRY: i64 = -1;
const CONDITION_FAILED: i64 = 0;
const DONE: i64 = 1;
const DELETED: i64 = 2;

/// `HEXPIRE key seconds [NX | XX | GT | LT] FIELDS numfields field [field …]`.
pub fn hexpire(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiries(access, args, Unit::Seconds, Base::Now, "hexpire", reply)
}

/// `HPEXPIRE key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field …]`.
pub fn hpexpire(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiries(access, args, Unit::Milliseconds, Base::Now, "hpexpire", reply)
}

/// `HEXPIREAT key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field …]`.
pub fn hexpireat(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiries(access, args, Unit::Seconds, Base::Epoch, "hexpireat", reply)
}

/// `HPEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field …]`.
pub fn hpexpireat(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiries(access, args, Unit::Milliseconds, Base::Epoch, "hpexpireat", reply)
}

/// The condition for changing the expiry of a field.
#[derive(Clone, Copy, PartialEq)]
enum Condition {
    Always,
    /// The field has no expiry.
    Nx,
    /// The field has an expiry.
    Xx,
    /// The field has an expiry, and the new expiry is later.
    Gt,
    /// The new expiry is earlier. A missing expiry counts as later than any time.
    Lt,
}

impl Condition {
    /// Parses a condition; `None` if the argument isn't one.
    fn parse(argument: &[u8]) -> Option<Self> {
        [("NX", Condition::Nx), ("XX", Condition::Xx), ("GT", Condition::Gt), ("LT", Condition::Lt)]
            .into_iter()
            .find_map(|(word, condition)| is_option(argument, word).then_some(condition))
    }

    fn allows(self, current: Option<i64>, wanted: i64) -> bool {
        match self {
            Condition::Always => true,
            Condition::Nx => current.is_none(),
            Condition::Xx => current.is_some(),
            Condition::Gt => current.is_some_and(|at| wanted > at),
            Condition::Lt => current.is_none_or(|at| wanted < at),
        }
    }
}

/// Checks the arguments `FIELDS numfields field [field …]`, which start at index `at`. Returns the
/// index of the first field. Replies with an error and returns `None` if the arguments are invalid.
pub(super) fn fields(args: &Args<'_>, at: usize, wrong_number: &str, reply: &mut Reply<'_>) -> Option<usize> {
    if !args.get(at).is_some_and(|word| is_option(word, "FIELDS")) {
        reply.error("ERR Mandatory argument FIELDS is missing or not at the right position");
        return None;
    }
    let number = positive(args.get(at + 1).unwrap_or_default(), wrong_number, reply)?;
    if number != args.len().saturating_sub(at + 2) as u64 {
        reply.error("ERR The `numfields` parameter must match the number of arguments");
        return None;
    }
    Some(at + 2)
}

/// Returns the deadline (Unix time, ms) of a field that an argument states. The deadline may have
/// passed. Replies with an error and returns `None` if the argument is invalid.
pub(super) fn field_deadline(
    access: &Access<'_>,
    argument: &[u8],
    (unit, base): (Unit, Base),
    command: &str,
    reply: &mut Reply<'_>,
) -> Option<i64> {
    let number = integer(argument, reply)?;
    if number < 0 {
        reply.error("ERR invalid expire time, must be >= 0");
        return None;
    }
    let max_ms = if access.session().of_primary { i64::MAX } else { TIME_MAX_MS };
    let at_ms = requested_expiry_ms(number, unit, base, access.now_ms()).filter(|&at| at <= max_ms);
    if at_ms.is_none() {
        invalid_expire(command, reply);
    }
    at_ms
}

/// Returns whether the key holds a hash or doesn't exist. Replies with an error if the key holds
/// another type.
pub(super) fn is_hash(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) -> bool {
    let key = access.first_key(args, 1);
    let is_hash = access.db(&key).write_as::<Hash>(&key).is_ok();
    if !is_hash {
        reply.error(errors::WRONG_TYPE);
    }
    is_hash
}

fn reply_all(replies: &[i64], reply: &mut Reply<'_>) {
    reply.array(replies.len());
    replies.iter().for_each(|&one| reply.integer(one));
}

fn set_expiries(
    access: &mut Access<'_>,
    args: &Args<'_>,
    unit: Unit,
    base: Base,
    command: &str,
    reply: &mut Reply<'_>,
) -> Option<Propagated> {
    if !is_hash(access, args, reply) {
        return None;
    }
    let at_ms = field_deadline(access, args.at(2), (unit, base), command, reply)?;
    let (condition, at) = match Condition::parse(args.at(3)) {
        Some(condition) => (condition, 4),
        None => (Condition::Always, 3),
    };
    let first = fields(args, at, "ERR Parameter `numFields` should be greater than 0", reply)?;
    let (key, is_past) = (access.first_key(args, 1), access.is_past(at_ms));
    let result = access.db(&key).change_hash(&key, Missing::Skip, Fields::from(args, first), |hash| {
        let set = |index| set_expiry(hash, args.at(index), at_ms, is_past, condition);
        let replies: Vec<i64> = (first..args.len()).map(set).collect();
        let change = if replies.contains(&DELETED) {
            Some(Change::event(&Event(EventClass::Hash, "hdel")))
        } else {
            Change::event(&Event(EventClass::Hash, "hexpire")).when(replies.contains(&DONE))
        };
        (change, replies)
    });
    let replies = match result {
        Ok(Some(replies)) => replies,
        Ok(None) => vec![NO_FIELD; args.len() - first],
        Err(WrongType) => {
            reply.error(errors::WRONG_TYPE);
            return None;
        }
    };
    reply_all(&replies, reply);
    Some(propagate_expiries(access, &key, &args.tail(first), &replies, at_ms))
}

/// Sets the expiry of one field and returns the reply for it.
fn set_expiry(hash: &mut Hash, field: &[u8], at_ms: i64, is_past: bool, condition: Condition) -> i64 {
    let view = hash.view();
    if view.get(field).is_none() {
        return NO_FIELD;
    }
    if !condition.allows(view.expiry(field), at_ms) {
        return CONDITION_FAILED;
    }
    if is_past {
        hash.remove(field);
        return DELETED;
    }
    hash.set_expiry(field, at_ms);
    DONE
}

/// `HPERSIST key FIELDS numfields field [field …]`.
pub fn hpersist(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if !is_hash(access, args, reply) {
        return;
    }
    let Some(first) = fields(args, 2, WRONG_NUMBER, reply) else { return };
    let key = access.first_key(args, 1);
    let result = access.db(&key).change_hash(&key, Missing::Skip, Fields::from(args, first), |hash| {
        let persist = |index| {
            let field = args.at(index);
            match hash.view().get(field).is_some() {
                true if hash.clear_expiry(field) => DONE,
                true => NO_EXPIRY,
                false => NO_FIELD,
            }
        };
        let replies: Vec<i64> = (first..args.len()).map(persist).collect();
        (Change::event(&Event(EventClass::Hash, "hpersist")).when(replies.contains(&DONE)), replies)
    });
    match result {
        Ok(replies) => {
            let replies = replies.unwrap_or_else(|| vec![NO_FIELD; args.len() - first]);
            reply_all(&replies, reply);
        }
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// Propagates the changed fields as Redis 7.4 does: fields with a new deadline as `HPEXPIREAT`, and
/// fields whose new deadline has passed as `HDEL`.
#[cold]
fn propagate_expiries(
    access: &mut Access<'_>,
    key: &Key<'_>,
    fields: &Args<'_>,
    replies: &[i64],
    at_ms: i64,
) -> Propagated {
    let propagated = access.propagate_nothing(Omission::Replaced);
    if !access.is_journaled() {
        return propagated;
    }
    let fields_with = |wanted: i64| -> Vec<&[u8]> {
        fields.iter().zip(replies).filter(|(_, reply)| **reply == wanted).map(|(field, _)| field).collect()
    };
    let (set, deleted) = (fields_with(DONE), fields_with(DELETED));
    if !set.is_empty() {
        propagate_deadline(access, key, at_ms, &set);
    }
    if !deleted.is_empty() {
        propagate_deletion(access, key, &deleted);
    }
    propagated
}

/// Propagates a deadline of fields (Unix time, ms).
pub(super) fn propagate_deadline(access: &mut Access<'_>, key: &Key<'_>, at_ms: i64, fields: &[&[u8]]) -> Propagated {
    let (mut at, mut number) = (Decimal::new(), Decimal::new());
    let count = number.format_u64(fields.len() as u64);
    let head = [b"HPEXPIREAT", key.bytes, at.format_i64(at_ms), b"FIELDS", count];
    propagated::words(access, head.into_iter().chain(fields.iter().copied()))
}

/// Propagates the deletion of fields.
pub(super) fn propagate_deletion(access: &mut Access<'_>, key: &Key<'_>, fields: &[&[u8]]) -> Propagated {
    propagated::words(access, [b"HDEL", key.bytes].into_iter().chain(fields.iter().copied()))
}

/// The error of `HPERSIST`, `HTTL`, the variants of `HTTL`, `HGETDEL` and `HGETEX` for an invalid
/// number of fields.
pub(super) const WRONG_NUMBER: &str = "ERR Number of fields must be a positive integer";

/// `HTTL key FIELDS numfields field [field …]`.
pub fn httl(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_expiries(access, args, Unit::Seconds, Base::Now, reply);
}

/// `HPTTL key FIELDS numfields field [field …]`.
pub fn hpttl(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_expiries(access, args, Unit::Milliseconds, Base::Now, reply);
}

/// `HEXPIRETIME key FIELDS numfields field [field …]`.
pub fn hexpiretime(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_expiries(access, args, Unit::Seconds, Base::Epoch, reply);
}

/// `HPEXPIRETIME key FIELDS numfields field [field …]`.
pub fn hpexpiretime(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_expiries(access, args, Unit::Milliseconds, Base::Epoch, reply);
}

fn reply_expiries(access: &mut Access<'_>, args: &Args<'_>, unit: Unit, base: Base, reply: &mut Reply<'_>) {
    let now_ms = access.now_ms();
    let missing = |reply: &mut Reply<'_>| {
        if let Some(first) = fields(args, 2, WRONG_NUMBER, reply) {
            reply_all(&vec![NO_FIELD; args.len() - first], reply);
        }
    };
    let work = |hash: HashView<'_>, reply: &mut Reply<'_>| {
        let Some(first) = fields(args, 2, WRONG_NUMBER, reply) else { return };
        reply.array(args.len() - first);
        for index in first..args.len() {
            let field = args.at(index);
            reply.integer(match (hash.get(field), hash.expiry(field)) {
                (None, _) => NO_FIELD,
                (_, None) => NO_EXPIRY,
                (_, Some(at_ms)) if at_ms <= now_ms => NO_FIELD,
                (_, Some(at_ms)) => in_unit(at_ms, unit, base, now_ms),
            });
        }
    };
    // While expired fields are kept, `with_fields` may pass a copy without the deadlines.
    // `with_unfiltered` passes the hash itself, and `work` treats an expired field as missing.
    if access.keyspace().tuning.keeps_expired(now_ms) {
        with_unfiltered(access, args, reply, missing, |hash, _, reply| work(hash, reply));
    } else {
        with_fields(access, args, Fields::from(args, 2), reply, missing, work);
    }
}

/// Converts a deadline to the command's unit and base. Seconds are rounded up.
fn in_unit(at_ms: i64, unit: Unit, base: Base, now_ms: i64) -> i64 {
    let ms = at_ms - base.ms(now_ms);
    match unit {
        Unit::Seconds => (ms + 999) / 1000,
        Unit::Milliseconds => ms,
    }
}
