//! Sorted set commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `add` | `ZADD`, `ZINCRBY` |
//! | `members` | `ZCARD`, `ZMSCORE`, `ZRANK`, `ZREM`, `ZREVRANK`, `ZSCAN`, `ZSCORE` |
//! | `range` | parses ranges, and resolves them to ranks |
//! | `ranges` | `ZCOUNT`, `ZLEXCOUNT`, `ZRANGE` and variants, `ZRANGESTORE`, `ZREMRANGEBY…` |
//! | `pop` | `ZMPOP`, `ZPOPMAX`, `ZPOPMIN` |
//! | `blocking` | `BZMPOP`, `BZPOPMAX`, `BZPOPMIN` |
//! | `random` | `ZRANDMEMBER` |
//! | `algebra` | `ZDIFF`, `ZINTER`, `ZINTERCARD`, `ZUNION` and their `STORE` variants |
//!
//! A command parses all its arguments before it changes anything, so a command that fails has no
//! effect.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Change, Expire, WrongType};
use pantala_engine::notify::Event;
use pantala_resp::{Args, Reply, Version};
use pantala_types::sorted_set::{PackLimits, SortedSetView};
use pantala_types::{Collection, SortedSet};

use crate::elements::write;
use crate::errors;

mod add;
mod algebra;
mod blocking;
mod members;
mod pop;
mod random;
mod range;
mod ranges;
#[cfg(test)]
mod tests;

pub use add::*;
pub use algebra::*;
pub use blocking::*;
pub use members::*;
pub use pop::*;
pub use random::*;
pub use ranges::*;

/// Returns the limits up to which a sorted set is stored as a listpack.
pub(crate) fn pack_limits(access: &Access<'_>) -> PackLimits {
    let tuning = &access.keyspace().tuning;
    PackLimits {
        entries: tuning.zset_max_listpack_entries.load(Relaxed),
        value_bytes: tuning.zset_max_listpack_value_bytes.load(Relaxed),
    }
}

/// Calls `work` with the sorted set at `args[1]`. Calls `on_missing` if there is no such key, and
/// replies with an error if the value has another type.
#[inline]
fn with_view(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    on_missing: impl FnOnce(&mut Reply<'_>),
    work: impl FnOnce(SortedSetView<'_>, &mut Reply<'_>),
) {
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<SortedSet>(&key) {
        Ok(Some(view)) => work(view, reply),
        Ok(None) => on_missing(reply),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// Replies with members and scores, as a flat array in RESP2 and as pairs in RESP3.
fn reply_pairs<'a>(
    members: impl ExactSizeIterator<Item = (pantala_types::pack::Element<'a>, f64)>,
    reply: &mut Reply<'_>,
) {
    let nested = reply.version() == Version::Resp3;
    reply.array(if nested { members.len() } else { members.len() * 2 });
    for (member, score) in members {
        if nested {
            reply.array(2);
        }
        write(member, reply);
        reply.double(score);
    }
}

/// Stores a result as the key's value, or deletes the key if the result is empty. Replies with the
/// number of members.
pub(crate) fn store(
    access: &mut Access<'_>,
    key: &Key<'_>,
    result: SortedSet,
    event: &'static Event,
    reply: &mut Reply<'_>,
) {
    let len = result.view().len();
    if len > 0 {
        access.db(key).put(key, result, Expire::Clear, Change::event(event));
    } else {
        access.remove_destination(key);
    }
    reply.integer(len as i64);
}
