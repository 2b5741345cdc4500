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
use pantala_resp::Args;
use pantala_types::{Collection, Hash, HashLimits};

/// The limits of packed hashes, as they are now.
#[inline]
fn limits(access: &Access<'_>) -> HashLimits {
    let tuning = &access.keyspace().tuning;
    HashLimits {
        entries_max: tuning.hash_max_listpack_entries.load(Relaxed) as usize,
        value_bytes_max: tuning.hash_max_listpack_value_bytes.load(Relaxed) as usize,
    }
}

/// Fields that a command which names its fields takes out for others' sake, because they are due: some hundred microseconds. Those that it
/// leaves are the active expiry's.
const DUE_PER_COMMAND: usize = 512;

/// Which fields of a hash a command looks at: of those none may be there whose time has come.
#[derive(Clone, Copy)]
enum Fields<'a, 'b> {
    All,
    /// The arguments from `first` on, each `step`th.
    Named {
        args: &'a Args<'b>,
        first: usize,
        step: usize,
    },
}

impl<'a, 'b> Fields<'a, 'b> {
    /// A single one.
    fn one(args: &'a Args<'b>, index: usize) -> Self {
        Fields::Named { args, first: index, step: usize::MAX }
    }

    /// All arguments from `first` on.
    fn from(args: &'a Args<'b>, first: usize) -> Self {
        Fields::Named { args, first, step: 1 }
    }

    /// Removes those of them that have expired from a hash, and some others that have; calls
    /// `removed` with each, and returns how many.
    fn expire(self, hash: &mut Hash, now_ms: i64, mut removed: impl FnMut(&[u8])) -> usize {
        let Fields::Named { args, first, step } = self else { return hash.expire(now_ms, usize::MAX, removed) };
        let mut expired = hash.expire(now_ms, DUE_PER_COMMAND, &mut removed);
        if hash.view().is_due(now_ms) {
            for index in (first..args.len()).step_by(step) {
                if hash.expire_field(args.at(index), now_ms) {
                    removed(args.at(index));
                    expired += 1;
                }
            }
        }
        expired
    }
}

/// Changes the hash at a key as `Db::change_as` does, after what is due of the fields has expired.
#[inline]
fn change<R>(
    access: &mut Access<'_>,
    key: &Key<'_>,
    missing: Missing,
    fields: Fields<'_, '_>,
    work: impl FnOnce(&mut Hash) -> (bool, R),
) -> Result<Option<R>, WrongType> {
    let now_ms = access.now_ms();
    let mut expired = 0;
    let is_journaled = access.is_journaled();
    let mut names = Vec::new();
    let result = access.db(key).change_as(key, missing, |hash: &mut Hash| {
        expired = fields.expire(hash, now_ms, |field| {
            if is_journaled {
                names.push(field.to_vec());
            }
        });
        let (is_changed, result) = work(hash);
        (is_changed || expired > 0, result)
    });
    if expired > 0 {
        access.notify(EventClass::Hash, "hexpired", key);
        names.iter().for_each(|field| access.propagate_expired_field(key, field));
    }
    result
}

/// Takes out of the hash at a key what is due of the fields.
#[cold]
fn expire_fields(access: &mut Access<'_>, key: &Key<'_>, fields: Fields<'_, '_>) {
    // The key was just read as a hash.
    if change(access, key, Missing::Skip, fields, |hash| (false, hash.is_empty())) == Ok(Some(true)) {
        access.notify(EventClass::Generic, "del", key);
    }
}
