//! Commands on fields of hashes.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::fields::Fields;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::{Collection, Hash, HashView, OutOfMemory};

use super::limits;
use crate::{elements, errors};

/// The change of a hash by setting fields.
const SET: Change = Change::event(&Event(EventClass::Hash, "hset"));

/// `HSET key field value [field value …]`.
#[inline]
pub fn hset(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if let Some(created) = set_pairs(access, args, "hset", reply) {
        reply.integer(created);
    }
}

/// `HMSET key field value [field value …]`.
pub fn hmset(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if set_pairs(access, args, "hmset", reply).is_some() {
        reply.ok();
    }
}

/// Sets the fields and values from `args[2]` on, and returns the number of new fields. Replies with
/// an error and returns `None` on failure.
#[inline]
fn set_pairs(access: &mut Access<'_>, args: &Args<'_>, name: &str, reply: &mut Reply<'_>) -> Option<i64> {
    if !args.len().is_multiple_of(2) {
        reply.error(&format!("ERR wrong number of arguments for '{name}' command"));
        return None;
    }
    let key = access.first_key(args, 1);
    let limits = limits(access);
    let fields = Fields::Named { args, first: 2, step: 2 };
    let result = access.db(&key).change_hash(&key, Missing::Create, fields, |hash| {
        if !hash.view().has_room((2..args.len()).step_by(2).map(|index| args.at(index))) {
            return (Change::none(), None);
        }
        hash.prepare((2..args.len()).map(|index| args.at(index).len()), limits);
        let mut created = 0;
        for index in (2..args.len()).step_by(2) {
            created += i64::from(hash.set(args.at(index), args.at(index + 1), limits));
        }
        (Some(SET), Some(created))
    });
    match result {
        Ok(Some(None)) => {
            reply.error(errors::HASH_FULL);
            None
        }
        Ok(created) => created.flatten(),
        Err(WrongType) => {
            reply.error(errors::WRONG_TYPE);
            None
        }
    }
}

/// `HSETNX key field value`.
pub fn hsetnx(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let (field, value) = (args.at(2), args.at(3));
    let limits = limits(access);
    let result = access.db(&key).change_hash(&key, Missing::Create, Fields::one(args, 2), |hash| {
        if hash.view().get(field).is_some() {
            return (Change::none(), Ok(false));
        }
        if !hash.view().has_room(std::iter::once(field)) {
            return (Change::none(), Err(errors::HASH_FULL));
        }
        hash.prepare([field.len(), value.len()].into_iter(), limits);
        hash.set(field, value, limits);
        (Some(SET), Ok(true))
    });
    match result {
        Ok(Some(Ok(is_set))) => reply.integer(i64::from(is_set)),
        Ok(Some(Err(full))) => reply.error(full),
        Ok(None) => reply.integer(0),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// `HDEL key field [field …]`.
pub fn hdel(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let result = access.db(&key).change_hash(&key, Missing::Skip, Fields::from(args, 2), |hash| {
        let removed = (2..args.len()).filter(|&index| hash.remove(args.at(index))).count();
        (Change::event(&Event(EventClass::Hash, "hdel")).when(removed > 0), removed)
    });
    match result {
        Ok(removed) => reply.integer(removed.unwrap_or(0) as i64),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// Calls `work` with the hash at `args[1]`, without expired fields. Calls `missing` if there is no
/// such key.
#[inline]
pub(super) fn with_view(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    missing: impl FnOnce(&mut Reply<'_>),
    work: impl FnOnce(HashView<'_>, &mut Reply<'_>),
) {
    with_fields(access, args, Fields::All, reply, missing, work);
}

/// Calls `work` like [`with_view`], and passes the current time. On a replica and during a pause,
/// expired fields aren't deleted. The hash then contains them, and `work` must skip them.
pub(super) fn with_unfiltered(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    missing: impl FnOnce(&mut Reply<'_>),
    work: impl FnOnce(HashView<'_>, i64, &mut Reply<'_>),
) {
    let now_ms = access.now_ms();
    if !access.keyspace().tuning.keeps_expired(now_ms) {
        return with_view(access, args, reply, missing, |hash, reply| work(hash, now_ms, reply));
    }
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<Hash>(&key) {
        Ok(Some(hash)) => work(hash, now_ms, reply),
        Ok(None) => missing(reply),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// Calls `work` like [`with_view`], but deletes only the expired fields that are among `fields`.
/// `work` must therefore read no other fields.
#[inline]
pub(super) fn with_fields(
    access: &mut Access<'_>,
    args: &Args<'_>,
    fields: Fields<'_, '_>,
    reply: &mut Reply<'_>,
    missing: impl FnOnce(&mut Reply<'_>),
    work: impl FnOnce(HashView<'_>, &mut Reply<'_>),
) {
    let key = access.first_key(args, 1);
    let now_ms = access.now_ms();
    let keeps_expired = access.keyspace().tuning.keeps_expired(now_ms);
    match access.db(&key).read_as::<Hash>(&key) {
        Ok(Some(view)) if !view.has_expired(now_ms) => return work(view, reply),
        Ok(Some(view)) if keeps_expired => {
            // On a replica and during a pause, no field is deleted, but `work` must not see expired
            // fields. If none of the named fields is expired, `work` can read the hash itself.
            // Otherwise it gets a copy without the expired fields.
            let rest = match fields {
                Fields::All => view.without_expired(now_ms),
                Fields::Named { .. } if !fields.names().any(|field| view.is_expired(field, now_ms)) => {
                    return work(view, reply);
                }
                Fields::Named { .. } => Ok(view.without_expired_of(fields.names(), now_ms)),
            };
            return match rest {
                Ok(rest) if rest.is_empty() => missing(reply),
                Ok(rest) => work(rest.view(), reply),
                Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
            };
        }
        Ok(Some(_)) => {}
        Ok(None) => return missing(reply),
        Err(WrongType) => return reply.error(errors::WRONG_TYPE),
    }
    access.db(&key).expire_fields(&key, fields);
    match access.db(&key).write_as::<Hash>(&key) {
        Ok(Some(view)) => work(view, reply),
        _ => missing(reply),
    }
}

/// `HGET key field`.
#[inline]
pub fn hget(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_fields(
        access,
        args,
        Fields::one(args, 2),
        reply,
        |reply| reply.null(),
        |hash, reply| match hash.get(args.at(2)) {
            Some(value) => elements::write(value, reply),
            None => reply.null(),
        },
    );
}

/// `HMGET key field [field …]`.
pub fn hmget(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply_values(access, args, 2, reply);
}

/// Replies with the values of the fields from `args[first]` on, and null for each missing field.
#[inline]
pub(super) fn reply_values(access: &mut Access<'_>, args: &Args<'_>, first: usize, reply: &mut Reply<'_>) {
    let count = args.len() - first;
    let nulls = |reply: &mut Reply<'_>| reply_nulls(count, reply);
    with_fields(access, args, Fields::from(args, first), reply, nulls, |hash, reply| {
        reply.array(count);
        for index in first..args.len() {
            match hash.get(args.at(index)) {
                Some(value) => elements::write(value, reply),
                None => reply.null(),
            }
        }
    });
}

/// Replies with an array of nulls.
pub(super) fn reply_nulls(count: usize, reply: &mut Reply<'_>) {
    reply.array(count);
    (0..count).for_each(|_| reply.null());
}

/// `HLEN key`.
pub fn hlen(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let zero = |reply: &mut Reply<'_>| reply.integer(0);
    with_unfiltered(access, args, reply, zero, |hash, now_ms, reply| reply.integer(hash.len_at(now_ms) as i64));
}

/// `HEXISTS key field`.
pub fn hexists(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let zero = |reply: &mut Reply<'_>| reply.integer(0);
    let work = |hash: HashView<'_>, reply: &mut Reply<'_>| reply.integer(i64::from(hash.get(args.at(2)).is_some()));
    with_fields(access, args, Fields::one(args, 2), reply, zero, work);
}

/// `HSTRLEN key field`.
pub fn hstrlen(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let zero = |reply: &mut Reply<'_>| reply.integer(0);
    with_fields(access, args, Fields::one(args, 2), reply, zero, |hash, reply| {
        reply.integer(hash.get(args.at(2)).map_or(0, |value| value.len() as i64));
    });
}
