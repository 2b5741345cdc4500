//! Active expiry: each worker walks the entries with a TTL in its home shards (those whose periodic
//! work it does) and deletes expired ones. The worker's loop calls [`ActiveExpiry::turn`] `hz`
//! times a second.
//!
//! The work per turn is bounded. While many of the visited entries are expired, the walk continues,
//! but only until it has used the turn's share of time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::events::latency;
use crate::shard::executor::Executor;
use crate::store::expire::{has_expiring, visit, visit_own};
use crate::store::fields;

/// Share of a worker's time that active expiry may take at `active-expire-effort` 1, in percent.
/// Each step of effort adds two. The values are Redis's.
const TIME_PERCENT: u32 = 25;

/// A walk continues in the same turn while more than this percentage of the visited entries are
/// expired. Each step of effort subtracts one. The values are Redis's.
const ACCEPTABLE_STALE_PERCENT: u64 = 10;

/// Minimum number of entries that a visit to a shard checks before a small share of expired entries
/// can end the visit. Redis also samples 20.
const SAMPLED_ENTRIES_MIN: u64 = 20;

/// Number of turns between two measurements of the memory of a worker's shards.
const TURNS_PER_MEASURE: u32 = 10;

/// Weight of a turn's share of expired entries in [`ExpiryStats::stale_share`], as in Redis.
const TURN_WEIGHT: f64 = 0.05;

/// Statistics of active expiry. All workers update them; a lost update of `stale_share` does no
/// harm.
#[derive(Debug, Default)]
pub struct ExpiryStats {
    /// Bits of the moving average ([`Self::stale_share`]).
    stale_share: AtomicU64,
    /// Turns that ended because their time was used up.
    pub capped: AtomicU64,
    /// Time of all turns, us.
    pub spent_us: AtomicU64,
}

impl ExpiryStats {
    /// Returns the share of visited entries that had expired, 0 to 1: a moving average over the
    /// turns that have visited any.
    pub fn stale_share(&self) -> f64 {
        f64::from_bits(self.stale_share.load(Relaxed))
    }

    /// Records a turn that has visited `entries` entries, of which `stale` had expired.
    fn note_visited(&self, entries: u64, stale: u64) {
        // Turns that have visited no entry do not count in the average, because most workers may
        // have no keys with a TTL.
        if entries > 0 {
            let share = stale as f64 / entries as f64;
            let average = share * TURN_WEIGHT + self.stale_share() * (1.0 - TURN_WEIGHT);
            self.stale_share.store(average.to_bits(), Relaxed);
        }
    }

    /// Sets the statistics to 0.
    pub fn reset(&self) {
        [&self.stale_share, &self.capped, &self.spent_us].iter().for_each(|value| value.store(0, Relaxed));
    }
}

/// A worker's position in its round over its shards.
#[derive(Default)]
pub struct ActiveExpiry {
    next_shard: u32,
    turns: u32,
}

impl ActiveExpiry {
    /// Runs one turn: continues the visit of this worker's shards where the last turn ended, for at
    /// most the turn's share of time. Must be called `hz` times a second. A long turn is recorded
    /// for `LATENCY`.
    pub fn turn(&mut self, executor: &mut Executor<'_>, worker: u32, now_ms: i64) {
        let (keyspace, began) = (executor.keyspace(), Instant::now());
        self.walk(executor, worker, now_ms, began);
        let took = began.elapsed();
        keyspace.expiry.spent_us.fetch_add(took.as_micros() as u64, Relaxed);
        keyspace.note_latency(worker, latency::EXPIRE_CYCLE, now_ms, took);
    }

    /// Runs one turn on a replica: visits the keys to which the replica's clients gave a TTL. All
    /// other keys are deleted by commands of the primary.
    pub fn turn_of_replica(&mut self, executor: &mut Executor<'_>, worker: u32, now_ms: i64) {
        let keyspace = executor.keyspace();
        let is_on = keyspace.tuning.active_expire.load(Relaxed) && keyspace.tuning.has_own_ttls.load(Relaxed);
        if !is_on || keyspace.tuning.is_paused(now_ms) {
            return;
        }
        for shard in (0..keyspace.partition_count()).filter(|shard| keyspace.home(*shard) == worker) {
            // A busy shard is skipped until the next turn.
            let Some(mut ownership) = executor.try_take(shard) else { continue };
            let (stats, state) = (keyspace.shard_stats(shard), keyspace.shard(&mut ownership));
            if visit_own(keyspace, stats, state, shard, now_ms) > 0 {
                executor.free_after_removals(ownership, now_ms);
            } else {
                executor.free(ownership);
            }
        }
    }

    fn walk(&mut self, executor: &mut Executor<'_>, worker: u32, now_ms: i64, began: Instant) {
        let keyspace = executor.keyspace();
        self.turns = (self.turns + 1) % TURNS_PER_MEASURE;
        if self.turns == 0 {
            executor.evictor().measure();
        }
        if !keyspace.tuning.active_expire.load(Relaxed) {
            return;
        }
        let effort = keyspace.tuning.active_expire_effort.load(Relaxed).clamp(1, 10) - 1;
        let hz = keyspace.tuning.hz.load(Relaxed).max(1);
        let budget = Duration::from_micros(u64::from(1_000_000 * (TIME_PERCENT + 2 * effort) / 100 / hz));
        let stale_max = ACCEPTABLE_STALE_PERCENT - u64::from(effort);
        let shards = keyspace.partition_count();
        let (mut all_entries, mut all_stale) = (0, 0);
        for _ in 0..shards {
            let shard = self.next_shard % shards;
            self.next_shard = (shard + 1) % shards;
            if keyspace.home(shard) != worker || !has_expiring(keyspace, shard) {
                continue;
            }
            // A busy shard is skipped until the next turn.
            let mut entries = 0;
            while let Some(mut ownership) = executor.try_take(shard) {
                let (stats, state) = (keyspace.shard_stats(shard), keyspace.shard(&mut ownership));
                let seen = visit(keyspace, stats, state, shard, now_ms);
                let fields_expired = fields::visit(keyspace, stats, state, shard, now_ms);
                if seen.stale > 0 || fields_expired > 0 {
                    executor.free_after_removals(ownership, now_ms);
                } else {
                    executor.free(ownership);
                }
                entries += seen.entries;
                all_entries += seen.entries;
                all_stale += seen.stale;
                let few_stale = seen.stale * 100 <= seen.entries * stale_max && fields_expired == 0;
                // If few keys have a TTL, a round may end before enough entries were visited.
                let enough = entries >= SAMPLED_ENTRIES_MIN || seen.is_round;
                if few_stale && enough || began.elapsed() > budget {
                    break;
                }
            }
            if began.elapsed() > budget {
                keyspace.expiry.capped.fetch_add(1, Relaxed);
                break;
            }
        }
        keyspace.expiry.note_visited(all_entries, all_stale);
    }
}
