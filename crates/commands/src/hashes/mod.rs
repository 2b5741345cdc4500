//! Hash commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `fields` | `HSET`, `HMSET`, `HSETNX`, `HGET`, `HMGET`, `HDEL`, `HLEN`, `HEXISTS`, `HSTRLEN` |
//! | `counters` | `HINCRBY`, `HINCRBYFLOAT` |
//! | `expiry` | `HEXPIRE`, `HPEXPIRE`, `HEXPIREAT`, `HPEXPIREAT`, `HPERSIST`, `HTTL`, `HPTTL`, `HEXPIRETIME`, `HPEXPIRETIME` |
//! | `walk` | `HGETALL`, `HKEYS`, `HVALS`, `HSCAN`, `HRANDFIELD` |
//!
//! `HGET` and `HSET` of a small hash hash the key once (the router did), probe once and don't allocate: its bytes lie in the
//! dictionary entry.
//!
//! Fields whose time has come are taken out of a hash before a command sees it, all of them: what that costs was paid for
//! field by field when they got their times, and the active expiry leaves few to a command.

mod counters;
mod expiry;
mod fields;
#[cfg(test)]
mod tests;
mod walk;

pub use counters::{hincrby, hincrbyfloat};
pub use expiry::{hexpire, hexpireat, hexpiretime, hpersist, hpexpire, hpexpireat, hpexpiretime, hpttl, httl};
pub use fields::{hdel, hexists, hget, hlen, hmget, hmset, hset, hsetnx, hstrlen};
pub use walk::{hgetall, hkeys, hrandfield, hscan, hvals};

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Missing, WrongType};
use pantala_engine::notify::EventClass;
use pantala_types::{Hash, HashLimits};

/// The limits of packed hashes, as they are now.
#[inline]
fn limits(access: &Access<'_>) -> HashLimits {
    let tuning = &access.keyspace().tuning;
    HashLimits {
        entries_max: tuning.hash_max_listpack_entries.load(Relaxed) as usize,
        value_bytes_max: tuning.hash_max_listpack_value_bytes.load(Relaxed) as usize,
    }
}

/// Changes the hash at a key as `Db::change_as` does, after what is due has expired.
#[inline]
fn change<R>(
    access: &mut Access<'_>,
    key: &Key<'_>,
    missing: Missing,
    work: impl FnOnce(&mut Hash) -> (bool, R),
) -> Result<Option<R>, WrongType> {
    let now_ms = access.now_ms();
    let mut expired = 0;
    let result = access.db(key).change_as(key, missing, |hash: &mut Hash| {
        expired = hash.expire(now_ms, usize::MAX);
        let (is_changed, result) = work(hash);
        (is_changed || expired > 0, result)
    });
    if expired > 0 {
        access.notify(EventClass::Hash, "hexpired", key);
    }
    result
}

/// Takes out of the hash at a key what is due.
#[cold]
fn expire_fields(access: &mut Access<'_>, key: &Key<'_>) {
    use pantala_types::Collection;
    // The key was just read as a hash.
    if change(access, key, Missing::Skip, |hash| (false, hash.is_empty())) == Ok(Some(true)) {
        access.notify(EventClass::Generic, "del", key);
    }
}
