//! `HINCRBY` and `HINCRBYFLOAT`.

use pantala_base::number::Decimal;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Propagated};
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::fields::Fields;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::{Collection, LongDouble};

use super::expiry::propagate_deadline;
use super::limits;
use crate::arguments::integer;
use crate::{elements, errors};

/// `HINCRBY key field increment`.
pub fn hincrby(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(by) = integer(args.at(3), reply) else { return };
    let key = access.first_key(args, 1);
    let limits = limits(access);
    let result = access.db(&key).change_hash(&key, Missing::Create, Fields::one(args, 2), |hash| {
        let sum = match hash.view().get(args.at(2)).map(elements::integer) {
            None if !hash.view().has_room(std::iter::once(args.at(2))) => Err(errors::HASH_FULL),
            None => Ok(by),
            Some(None) => Err("ERR hash value is not an integer"),
            Some(Some(value)) => value.checked_add(by).ok_or("ERR increment or decrement would overflow"),
        };
        if let Ok(sum) = sum {
            hash.update(args.at(2), Decimal::new().format_i64(sum), limits);
        }
        (Change::event(&Event(EventClass::Hash, "hincrby")).when(sum.is_ok()), sum)
    });
    match result {
        Ok(Some(Ok(sum))) => reply.integer(sum),
        Ok(Some(Err(error))) => reply.error(error),
        Ok(None) => reply.integer(0),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// `HINCRBYFLOAT key field increment`.
pub fn hincrbyfloat(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let Some(by) = LongDouble::parse(args.at(3)) else {
        reply.error(errors::NOT_A_FLOAT);
        return None;
    };
    if by.is_infinite() {
        reply.error("ERR value is NaN or Infinity");
        return None;
    }
    let key = access.first_key(args, 1);
    let limits = limits(access);
    let result = access.db(&key).change_hash(&key, Missing::Create, Fields::one(args, 2), |hash| {
        let sum = match hash.view().get(args.at(2)).map(elements::long_double) {
            None if !hash.view().has_room(std::iter::once(args.at(2))) => Err(errors::HASH_FULL),
            None => Ok(by),
            Some(None) => Err("ERR hash value is not a float"),
            Some(Some(value)) => value.checked_add(by).ok_or("ERR increment would produce NaN or Infinity"),
        };
        let text = sum.map(LongDouble::to_human);
        if let Ok(text) = &text {
            hash.update(args.at(2), text, limits);
        }
        let expiry = hash.view().expiry(args.at(2));
        (Change::event(&Event(EventClass::Hash, "hincrbyfloat")).when(text.is_ok()), text.map(|text| (text, expiry)))
    });
    match result {
        Ok(Some(Ok((text, expiry)))) => {
            let propagated = access.propagate(&[b"HSET", key.bytes, args.at(2), &text]);
            if let Some(at_ms) = expiry {
                // The propagated HSET removes the field's TTL on replicas, so HPEXPIREAT sets it
                // again.
                propagate_deadline(access, &key, at_ms, &[args.at(2)]);
            }
            reply.bulk(&text);
            return Some(propagated);
        }
        Ok(Some(Err(error))) => reply.error(error),
        Ok(None) => reply.null(),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
    None
}
