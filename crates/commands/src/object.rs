//! `OBJECT`: encoding, reference count and access statistics of a value.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::Access;
use pantala_engine::client::LocalContext;
use pantala_engine::db::{FLAG_RAW, FLAG_UNSHARED, Held, Holds};
use pantala_engine::keyspace::Keyspace;
use pantala_engine::tuning::{AccessPolicy, Tuning};
use pantala_engine::{EntryRef, Payload};
use pantala_resp::{Args, Reply};
use pantala_types::access::{idle_time_s, lfu_decay};
use pantala_types::{Encoding, SHARED_INTEGER_REFCOUNT, Value, is_shared_integer, string_encoding};

use crate::help;

const NOT_LFU: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";
const NOT_LRU: &str = "ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.";

/// `OBJECT ENCODING key`.
pub fn encoding(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_entry(access, args, reply, |entry, _, _, reply| {
        reply.bulk(encoding_of(entry).name().as_bytes());
    });
}

/// `OBJECT REFCOUNT key`.
pub fn refcount(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_entry(access, args, reply, |entry, keyspace, _, reply| {
        reply.integer(refcount_of(entry, &keyspace.tuning));
    });
}

/// `OBJECT IDLETIME key`: the idle time in seconds.
pub fn idletime(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_entry(access, args, reply, |entry, keyspace, now_ms, reply| match keyspace.tuning.access_policy() {
        AccessPolicy::Lru => reply.integer(i64::from(idle_time_s(entry.access(), now_ms as u64))),
        AccessPolicy::Lfu => reply.error(NOT_LRU),
    });
}

/// `OBJECT FREQ key`.
pub fn freq(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_entry(access, args, reply, |entry, keyspace, now_ms, reply| match keyspace.tuning.access_policy() {
        AccessPolicy::Lru => reply.error(NOT_LFU),
        AccessPolicy::Lfu => {
            let decay_time_min = keyspace.tuning.lfu_decay_time_minutes.load(Relaxed);
            reply.integer(i64::from(lfu_decay(entry.access(), now_ms as u64, decay_time_min)));
        }
    });
}

/// `OBJECT HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "ENCODING <key>",
            "    Return the encoding of the value of a key.",
            "FREQ <key>",
            "    Return the logarithmic access frequency of a key (LFU policies only).",
            "IDLETIME <key>",
            "    Return the seconds since the last access to a key (not with LFU policies).",
            "REFCOUNT <key>",
            "    Return the reference count of the value of a key.",
        ],
    );
}

/// Calls `work` with the entry of the key `args[2]`, the keyspace and the time (ms). Replies null
/// if there is no such key.
fn with_entry(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    work: impl FnOnce(EntryRef<'_, Value>, &Keyspace, i64, &mut Reply<'_>),
) {
    let (key, keyspace, now_ms) = (access.first_key(args, 2), access.keyspace(), access.now_ms());
    let mut db = access.db(&key);
    let found = db.find(&key);
    // The call counts as a lookup in the statistics. As in Redis, a miss publishes no event.
    let stats = keyspace.shard_stats(key.place.shard);
    let counter = if found.is_some() { &stats.hits } else { &stats.misses };
    counter.add(1);
    match found {
        Some(entry) => work(entry, keyspace, now_ms, reply),
        None => reply.null(),
    }
}

/// Returns the encoding of an entry's value.
pub(crate) fn encoding_of(entry: EntryRef<'_, Value>) -> Encoding {
    match entry.held() {
        Held::Int(_) => Encoding::Int,
        Held::Bytes(bytes) => string_encoding(bytes.len(), entry.user_flags() & FLAG_RAW != 0),
        Held::Packed(form, _) => form.encoding(),
        Held::Heap(value) => value.encoding(),
    }
}

/// Returns the reference count that Redis would report for an entry's value. Pantala never shares
/// values. Redis shares small integers, unless its eviction policy needs access statistics of each
/// key.
pub(crate) fn refcount_of(entry: EntryRef<'_, Value>, tuning: &Tuning) -> i64 {
    match entry.payload() {
        Payload::Int(value)
            if is_shared_integer(value) && entry.user_flags() & FLAG_UNSHARED == 0 && tuning.shares_integers() =>
        {
            SHARED_INTEGER_REFCOUNT
        }
        _ => 1,
    }
}
