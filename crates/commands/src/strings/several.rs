//! String commands on several keys. The engine holds the shards of all keys, so each command is
//! atomic.

use pantala_engine::NewPayload;
use pantala_engine::access::{Access, Key, KeyPlace};
use pantala_engine::db::{Change, Expire, Holds, NewString, fits_inline, payload_of};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::{OutOfMemory, Value};

use super::StringRef;
use crate::errors;

/// Number of keys whose entries are prefetched together. An entry spans up to six cache lines. The
/// entries of 16 keys therefore fit in the first-level cache, which has 512 lines.
const PREFETCHED_KEYS_MAX: usize = 16;

/// `MGET key [key …]`.
pub fn mget(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply.array(args.len() - 1);
    for_each_prefetched(access, args, 1, |access, key, _| {
        let found = access.db(key).read(key).map(|entry| match StringRef::of(entry.held()) {
            Some(string) => string.write(reply),
            None => reply.null(),
        });
        if found.is_none() {
            reply.null();
        }
    });
}

/// `MSET key value [key value …]`.
pub fn mset(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len().is_multiple_of(2) {
        return reply.error("ERR wrong number of arguments for 'mset' command");
    }
    if store_pairs(access, args, reply) {
        reply.ok();
    }
}

/// `MSETNX key value [key value …]`.
pub fn msetnx(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len().is_multiple_of(2) {
        return reply.error("ERR wrong number of arguments for 'msetnx' command");
    }
    for index in (1..args.len()).step_by(2) {
        let key = key_at(access, args, index);
        if access.db(&key).write(&key).is_some() {
            return reply.integer(0);
        }
    }
    if store_pairs(access, args, reply) {
        reply.integer(1);
    }
}

/// Calls `visit` with each key and its index. The keys are every `step`th argument, from index 1
/// on.
///
/// The worker prefetches the buckets of the keys before it runs the command. This function
/// prefetches the entries of a group of keys before it calls `visit` with the first key of the
/// group.
fn for_each_prefetched<'k>(
    access: &mut Access<'_>,
    args: &Args<'k>,
    step: usize,
    mut visit: impl FnMut(&mut Access<'_>, &Key<'k>, usize),
) {
    let nothing = Key { bytes: &[], place: KeyPlace { hash: 0, shard: 0 } };
    let mut keys = [nothing; PREFETCHED_KEYS_MAX];
    for first in (1..args.len()).step_by(step * PREFETCHED_KEYS_MAX) {
        let indexes = (first..args.len()).step_by(step).take(PREFETCHED_KEYS_MAX);
        for (index, key) in indexes.clone().zip(&mut keys) {
            *key = key_at(access, args, index);
            access.prefetch(key);
        }
        for (index, key) in indexes.zip(&keys) {
            visit(access, key, index);
        }
    }
}

/// Returns the key at an argument. A handler receives the hash of the first key only, so this
/// function hashes the other keys again.
#[inline]
fn key_at<'k>(access: &Access<'_>, args: &Args<'k>, index: usize) -> Key<'k> {
    if index == 1 { access.first_key(args, 1) } else { access.key(args, index) }
}

/// Stores all pairs. If an allocation fails, replies with an error, stores no pair and returns
/// `false`.
fn store_pairs(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) -> bool {
    let Ok(large) = large_payloads(access, args) else {
        reply.error(errors::OUT_OF_MEMORY);
        return false;
    };
    let mut large = large.into_iter();
    for_each_prefetched(access, args, 2, |access, key, index| {
        let value = args.at(index + 1);
        let (mut db, set) = (access.db(key), Change::event(&Event(EventClass::String, "set")));
        if is_large(key.bytes, value) {
            // There is always a next payload, because `large_payloads` built one for each large
            // pair in this order.
            let Some((payload, flags)) = large.next() else { return };
            db.set_payload(key, payload, flags, Expire::Clear, set);
        } else if db.set_string(key, NewString::encode(value), Expire::Clear, set).is_err() {
            // The value was to be stored inside its entry, which cannot fail.
            debug_assert!(false, "storing an inline string failed");
        }
    });
    true
}

/// Returns whether a value needs its own allocation, which may fail.
fn is_large(key: &[u8], value: &[u8]) -> bool {
    // A value too long for an entry is also too long for an integer.
    !fits_inline(key, value.len()) && matches!(NewString::encode(value), NewString::Bytes(_))
}

type Prepared<'v> = (NewPayload<'v, Value>, u8);

/// Builds the payloads of all large values before anything is stored. Allocates nothing if there
/// are no large values.
fn large_payloads<'v>(access: &Access<'_>, args: &Args<'v>) -> Result<Vec<Prepared<'v>>, OutOfMemory> {
    let mut payloads = Vec::new();
    for index in (1..args.len()).step_by(2) {
        let value = args.at(index + 1);
        if is_large(args.at(index), value) {
            payloads.push(payload_of(&access.key(args, index), NewString::encode(value))?);
        }
    }
    Ok(payloads)
}
