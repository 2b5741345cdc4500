//! Active expiry within one shard: deletes expired keys that no command looks up. `shard::expire`
//! calls this module while it holds the shard.
//!
//! Redis keeps a second table of the keys with a TTL and samples it. Pantala marks these keys by a
//! bit in the dictionary's slots. So a walk over the slots (8 bytes a key, in order) finds these
//! keys without reading other entries.

use crate::command::Key;
use crate::effect::blocking::KeyObservers;
use crate::effect::change::{Change, commit, has_sink};
use crate::store::Store;
use crate::store::db::{Db, forget};
use crate::store::state::{Shard, ShardStats};

/// Number of buckets of a dictionary that one visit to a shard walks. The walk takes about ten
/// microseconds.
const BUCKETS_PER_VISIT: usize = 256;

/// Maximum number of keys that one visit to a shard of a writable replica checks in each database.
/// These are keys to which the replica's clients have given a TTL.
const OWN_KEYS_PER_VISIT: usize = 64;

/// The result of a visit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Number of visited entries with a TTL.
    pub(crate) entries: u64,
    /// Number of expired entries among them, which were deleted.
    pub(crate) stale: u64,
    /// Whether the walk has reached the end of each of the shard's databases.
    pub(crate) is_round: bool,
}

/// Returns whether a shard has keys or hash fields with a TTL.
pub(crate) fn has_expiring(store: &Store, shard: u32) -> bool {
    store.database_stats_of_shard(shard).any(|db_stats| db_stats.expires.get() + db_stats.timed_hashes.get() > 0)
}

/// Walks some buckets of each database of a shard and deletes the expired keys in them.
pub(crate) fn visit(store: &Store, stats: &ShardStats, shard: &mut Shard, number: u32, now_ms: i64) -> Seen {
    let mut all = Seen { is_round: true, ..Seen::default() };
    for db in 0..store.databases() {
        let physical = store.physical(db);
        if store.db_stats(number, physical).expires.get() == 0 {
            continue;
        }
        let Some(cursor) = shard.databases.get(physical).map(|database| database.expire_cursor) else { continue };
        let mut view = Db::new(store, stats, shard, number, db, now_ms, true);
        let (dict, observers, stats, db_stats) = view.parts();
        let (mut seen, mut ttl_sum_ms) = (Seen::default(), 0u64);
        let next = dict.walk_expiring(
            cursor,
            BUCKETS_PER_VISIT,
            &mut |entry| {
                seen.entries += 1;
                let left_ms = entry.expire_at_ms().map_or(i64::MAX, |at| at - now_ms);
                if left_ms <= 0 {
                    seen.stale += 1;
                    // The dictionary deletes the entry as soon as this closure returns.
                    commit_expired(store, observers, db, entry.key(), now_ms);
                    true
                } else {
                    ttl_sum_ms = ttl_sum_ms.saturating_add(left_ms as u64);
                    false
                }
            },
            &mut |removed| forget(store, stats, db_stats, removed, now_ms),
        );
        if seen.entries > 0 {
            db_stats.ttl_sum_ms.set(ttl_sum_ms);
            db_stats.ttl_samples.set(seen.entries - seen.stale);
        }
        view.publish_bytes();
        if let Some(database) = shard.databases.get_mut(physical) {
            database.expire_cursor = next;
        }
        all.is_round &= next == 0;
        all.entries += seen.entries;
        all.stale += seen.stale;
    }
    all
}

/// Visits some keys to which clients of a writable replica have given a TTL, and deletes those that
/// have expired. Returns their number.
pub(crate) fn visit_own(store: &Store, stats: &ShardStats, shard: &mut Shard, number: u32, now_ms: i64) -> u64 {
    let mut expired = 0;
    for db in 0..store.databases() {
        let physical = store.physical(db);
        if shard.databases.get(physical).is_none_or(|database| database.watched.own.is_empty()) {
            continue;
        }
        let mut view = Db::new(store, stats, shard, number, db, now_ms, true);
        let mut own = std::mem::take(&mut view.watched.own);
        own.walk(OWN_KEYS_PER_VISIT, |bytes| {
            let key = Key { bytes, place: store.place(bytes) };
            let deadline = view.dict.find(key.place.hash, bytes).and_then(|entry| entry.expire_at_ms());
            match deadline {
                Some(at) if at <= now_ms => {
                    expired += 1;
                    view.expire_now(&key);
                    false
                }
                Some(_) => true,
                // The key was deleted, or has no TTL any more.
                None => false,
            }
        });
        view.watched.own = own;
        view.publish_bytes();
    }
    expired
}

/// Commits the expiry of a key. Computes the key's place only if a sink (a consumer of changes)
/// needs the place.
#[inline]
fn commit_expired(store: &Store, observers: &mut KeyObservers, db: u32, key: &[u8], now_ms: i64) {
    observers.note_expired(now_ms);
    let change = Change::expired_actively();
    if has_sink(store, observers, &change) {
        let key = Key { bytes: key, place: store.place(key) };
        commit(store, observers, db, &key, change);
    }
}
