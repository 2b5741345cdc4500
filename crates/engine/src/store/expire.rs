//! Active expiry: each home worker walks its shards' entries that have a time to live and removes those that are over.
//!
//! Redis keeps a second table of the keys that have one and samples it. Here a bit in each slot of the dictionary tells, so a
//! walk over the slots (8 bytes a key, in order) finds them without touching other entries and without a second table. Work is
//! bounded per turn, and adapts: while many of the entries seen are stale the walk goes on at once, as far as the turn's share
//! of time goes.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::effect::change::commit_unplaced;
use crate::events::latency;
use crate::shard::executor::Executor;
use crate::shard::keyspace::Keyspace;
use crate::shard::ownership::Ownership;
use crate::store::db::{Change, Db, forget};
use crate::store::fields;

/// Buckets of a dictionary that one visit to a shard walks: some ten microseconds.
const BUCKETS_PER_VISIT: usize = 256;

/// The share of a worker's time that active expiry may take at `active-expire-effort` 1, in percent; each step of effort adds
/// two. Redis's own figures.
const TIME_PERCENT: u32 = 25;

/// The share of stale entries among those seen, in percent, above which a walk goes on within its turn; each step of effort
/// lowers it by one. Redis's own figures.
const ACCEPTABLE_STALE_PERCENT: u64 = 10;

/// Entries to see in a shard before a small share of stale ones lets the walk go on elsewhere: Redis's sample of 20.
const ENTRIES_TO_JUDGE_BY: u64 = 20;

/// Turns between two looks at the memory of a worker's shards.
const TURNS_PER_MEASURE: u32 = 10;

/// What a visit found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    entries: u64,
    stale: u64,
    /// The walk came to the end of every database.
    is_round: bool,
}

/// Where a worker's round over its shards stands.
#[derive(Default)]
pub struct ActiveExpiry {
    next_shard: u32,
    turns: u32,
}

impl ActiveExpiry {
    /// One turn, to be called `hz` times a second: visits this worker's shards from where the last turn ended, for at most its share of time.
    /// A turn that took long is an event of `LATENCY`.
    pub fn turn(&mut self, executor: &mut Executor<'_>, worker: u32, now_ms: i64) {
        let (keyspace, began) = (executor.keyspace(), Instant::now());
        self.walk(executor, worker, now_ms, began);
        keyspace.note_latency(worker, latency::EXPIRE_CYCLE, now_ms, began.elapsed());
    }

    fn walk(&mut self, executor: &mut Executor<'_>, worker: u32, now_ms: i64, began: Instant) {
        let keyspace = executor.keyspace();
        self.turns = (self.turns + 1) % TURNS_PER_MEASURE;
        if self.turns == 0 {
            executor.measure();
        }
        if !keyspace.tuning.active_expire.load(Relaxed) {
            return;
        }
        let effort = keyspace.tuning.active_expire_effort.load(Relaxed).clamp(1, 10) - 1;
        let hz = keyspace.tuning.hz.load(Relaxed).max(1);
        let budget = Duration::from_micros(u64::from(1_000_000 * (TIME_PERCENT + 2 * effort) / 100 / hz));
        let stale_max = ACCEPTABLE_STALE_PERCENT - u64::from(effort);
        let shards = keyspace.partition_count();
        for _ in 0..shards {
            let shard = self.next_shard % shards;
            self.next_shard = (shard + 1) % shards;
            if keyspace.home(shard) != worker || !has_expiring(keyspace, shard) {
                continue;
            }
            // A busy shard is passed over: it is met again in the next turn.
            let mut entries = 0;
            while let Some(mut ownership) = executor.try_take(shard) {
                let seen = visit(keyspace, &mut ownership, now_ms);
                let fields_expired = fields::visit(keyspace, &mut ownership, now_ms);
                if seen.stale > 0 || fields_expired > 0 {
                    executor.free_after_removals(ownership, now_ms);
                } else {
                    executor.free(ownership);
                }
                entries += seen.entries;
                let few_stale = seen.stale * 100 <= seen.entries * stale_max && fields_expired == 0;
                // Where few keys have a time to live, many buckets go by before enough were seen to tell.
                let enough = entries >= ENTRIES_TO_JUDGE_BY || seen.is_round;
                if few_stale && enough || began.elapsed() > budget {
                    break;
                }
            }
            if began.elapsed() > budget {
                return;
            }
        }
    }
}

fn has_expiring(keyspace: &Keyspace, shard: u32) -> bool {
    keyspace.shard_figures(shard).any(|figures| figures.expires.get() + figures.timed_hashes.get() > 0)
}

/// Walks some buckets of each database of a shard.
fn visit(keyspace: &Keyspace, ownership: &mut Ownership, now_ms: i64) -> Seen {
    let number = ownership.shard();
    let mut all = Seen { is_round: true, ..Seen::default() };
    for db in 0..keyspace.databases() {
        let physical = keyspace.physical(db);
        if keyspace.figures(number, physical).expires.get() == 0 {
            continue;
        }
        let state = keyspace.shard(ownership);
        let Some(cursor) = state.databases.get(physical).map(|database| database.expire_cursor) else { continue };
        let mut view = Db::new(keyspace, state, number, db, now_ms, true);
        let (dict, waiters, stats, figures) = view.parts();
        let (mut seen, mut ttl_sum_ms) = (Seen::default(), 0u64);
        let next = dict.walk_expiring(
            cursor,
            BUCKETS_PER_VISIT,
            &mut |entry| {
                seen.entries += 1;
                let left_ms = entry.expire_at_ms().map_or(i64::MAX, |at| at - now_ms);
                if left_ms <= 0 {
                    seen.stale += 1;
                    // It is removed as soon as this returns.
                    commit_unplaced(keyspace, waiters, db, entry.key(), Change::expired_actively());
                    true
                } else {
                    ttl_sum_ms = ttl_sum_ms.saturating_add(left_ms as u64);
                    false
                }
            },
            &mut |removed| forget(keyspace, stats, figures, removed, now_ms),
        );
        if seen.entries > 0 {
            figures.ttl_sum_ms.set(ttl_sum_ms);
            figures.ttl_samples.set(seen.entries - seen.stale);
        }
        stats.expire_visited.add(seen.entries);
        view.publish_bytes();
        if let Some(database) = keyspace.shard(ownership).databases.get_mut(physical) {
            database.expire_cursor = next;
        }
        all.is_round &= next == 0;
        all.entries += seen.entries;
        all.stale += seen.stale;
    }
    all
}
