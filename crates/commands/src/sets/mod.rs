//! Set commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `members` | `SADD`, `SREM`, `SISMEMBER`, `SMISMEMBER`, `SCARD`, `SMEMBERS`, `SMOVE`, `SSCAN` |
//! | `random` | `SPOP`, `SRANDMEMBER` |
//! | `algebra` | `SINTER`, `SINTERCARD`, `SUNION`, `SDIFF` and their `STORE` variants |
//!
//! A small set is stored in its dictionary entry. For such a set, `SADD` and `SISMEMBER` hash the
//! key once (also to find its shard), look it up once, and do not allocate.

mod algebra;
mod members;
mod random;
#[cfg(test)]
mod tests;

pub use algebra::*;
pub use members::*;
pub use random::*;

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::Access;

/// Returns the current value of the setting `set-max-intset-entries`.
#[inline]
fn intset_entries_max(access: &Access<'_>) -> usize {
    access.keyspace().tuning.set_max_intset_entries.load(Relaxed) as usize
}
