//! Counters: `INCR`, `DECR` and their variants.

use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Propagated};
use pantala_engine::db::{Change, Expire, Holds, NewString};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::LongDouble;

use super::StringRef;
use crate::arguments::integer;
use crate::errors;

const OVERFLOW: &str = "ERR increment or decrement would overflow";

/// `INCR key`.
#[inline]
pub fn incr(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    add(access, args, 1, reply);
}

/// `DECR key`.
pub fn decr(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    add(access, args, -1, reply);
}

/// `INCRBY key increment`.
pub fn incrby(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(by) = integer(args.at(2), reply) else { return };
    add(access, args, by, reply);
}

/// `DECRBY key decrement`.
pub fn decrby(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(by) = integer(args.at(2), reply) else { return };
    match by.checked_neg() {
        Some(by) => add(access, args, by, reply),
        None => reply.error("ERR decrement would overflow"),
    }
}

/// Adds `by` to the integer at a key, and keeps the expiry. A missing key counts as 0.
#[inline]
fn add(access: &mut Access<'_>, args: &Args<'_>, by: i64, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let change = Change::event(&Event(EventClass::String, "incrby"));
    let sum = access.db(&key).edit_integer(&key, change, |held| {
        let Some(held) = held else { return Ok(by) };
        let string = StringRef::of(held).ok_or(errors::WRONG_TYPE)?;
        let value = string.integer().ok_or(errors::NOT_AN_INTEGER)?;
        value.checked_add(by).ok_or(OVERFLOW)
    });
    match sum {
        Ok(sum) => reply.integer(sum),
        Err(error) => reply.error(error),
    }
}

/// `INCRBYFLOAT key increment`. Keeps the expiry.
pub fn incrbyfloat(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let value = match db.write(&key) {
        None => LongDouble::ZERO,
        Some(entry) => {
            let Some(string) = StringRef::of(entry.held()) else {
                reply.error(errors::WRONG_TYPE);
                return None;
            };
            let Some(value) = string.long_double() else {
                reply.error(errors::NOT_A_FLOAT);
                return None;
            };
            value
        }
    };
    let Some(by) = LongDouble::parse(args.at(2)) else {
        reply.error(errors::NOT_A_FLOAT);
        return None;
    };
    let Some(sum) = value.checked_add(by) else {
        reply.error("ERR increment would produce NaN or Infinity");
        return None;
    };
    // As in Redis, the sum is stored as bytes even if it looks like an integer. Clients can see
    // this with `OBJECT ENCODING`.
    let text = sum.to_human();
    let change = Change::event(&Event(EventClass::String, "incrbyfloat"));
    match db.set_string(&key, NewString::Bytes(&text), Expire::Keep, change) {
        Ok(()) => {
            reply.bulk(&text);
            Some(access.propagate(&[b"SET", key.bytes, &text, b"KEEPTTL"]))
        }
        Err(_) => {
            reply.error(errors::OUT_OF_MEMORY);
            None
        }
    }
}
