//! Hash commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `fields` | `HSET`, `HMSET`, `HSETNX`, `HGET`, `HMGET`, `HDEL`, `HLEN`, `HEXISTS`, `HSTRLEN` |
//! | `counters` | `HINCRBY`, `HINCRBYFLOAT` |
//! | `expiry` | `HEXPIRE`, `HPERSIST`, `HTTL`, `HEXPIRETIME` and their variants |
//! | `combined` | `HGETDEL`, `HGETEX`, `HSETEX` |
//! | `walk` | `HGETALL`, `HKEYS`, `HVALS`, `HSCAN`, `HRANDFIELD` |
//!
//! A small hash is stored in the dictionary entry. For such a hash, `HGET` and `HSET` compute the
//! hash value of the key once (also to find the key's shard), look the key up once, and do not
//! allocate.
//!
//! Expired fields are deleted before a command sees the hash. See [`pantala_engine::fields`].

mod combined;
mod counters;
mod expiry;
mod fields;
#[cfg(test)]
mod tests;
mod walk;

pub use combined::*;
pub use counters::*;
pub use expiry::*;
pub use fields::*;
pub use walk::*;

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::Access;
use pantala_types::HashLimits;

/// Returns the limits up to which a hash is stored as a listpack.
#[inline]
fn limits(access: &Access<'_>) -> HashLimits {
    let tuning = &access.keyspace().tuning;
    HashLimits {
        entries_max: tuning.hash_max_listpack_entries.load(Relaxed) as usize,
        value_bytes_max: tuning.hash_max_listpack_value_bytes.load(Relaxed) as usize,
    }
}
