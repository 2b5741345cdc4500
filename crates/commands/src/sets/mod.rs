//! Set commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `members` | `SADD`, `SREM`, `SISMEMBER`, `SMISMEMBER`, `SCARD`, `SMEMBERS`, `SMOVE`, `SSCAN` |
//! | `random` | `SPOP`, `SRANDMEMBER` |
//! | `algebra` | `SINTER`, `SINTERCARD`, `SUNION`, `SDIFF` and those with STORE |
//!
//! A small set's bytes lie in its dictionary entry: `SADD` and `SISMEMBER` hash the key once (the router did), probe once and don't
//! allocate.

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

/// Most members of a set of integers, as it is now.
#[inline]
fn intset_entries_max(access: &Access<'_>) -> usize {
    access.keyspace().tuning.set_max_intset_entries.load(Relaxed) as usize
}
