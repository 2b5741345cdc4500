//! Eviction: workers delete keys before a command runs, while memory usage exceeds the limit
//! ([`Memory`](crate::store::memory::Memory)).
//!
//! A worker evicts from shards that it holds and from shards that are free at that moment. With
//! `--execution owner`, it evicts only from its home shards (those whose periodic work it does). A
//! worker never waits for a shard. A key is evicted while its shard is held. Like any other
//! deletion, the eviction is propagated, published and sent to caching clients. So the eviction is
//! ordered with all other changes in the shard. A client whose command causes an eviction receives
//! the invalidation before the reply.
//!
//! `maxmemory-eviction-tenacity` limits the time for which one command may evict. Later commands,
//! and later turns of the workers' loops, evict the rest. The time limit does not apply while
//! memory usage is more than a sixteenth above `maxmemory` and still rises. So memory stays bounded
//! at any rate of commands.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::command::Flags;
use crate::events::latency;
use crate::shard::executor::{Executor, has_pending_events};
use crate::shard::ownership::Ownership;
pub use crate::store::eviction::OUT_OF_MEMORY;
use crate::store::eviction::{evict_in, release_emptied_of};
use crate::store::layout::Execution;
use crate::store::memory::time_limit;
use crate::store::state::{DatabaseStats, Shard};
pub use crate::tuning::policy::{EvictionPolicy, Rank};

/// Number of keys evicted between two reads of the clock, as in Redis.
const KEYS_PER_CLOCK_READ: u64 = 16;

/// Number of times that a random shard is picked for each key to evict. If none of the picked
/// shards is free and has a key to evict, all shards are tried one after the other.
const TRIES: usize = 8;

/// Eviction stops after this number of consecutive searches that found no key. A search continues
/// where the last one ended, so far fewer searches walk through all keys, and this bound is only a
/// safeguard.
const MISSES_MAX: u64 = 100_000;

/// Time in ms for which the weights of shards (their numbers of evictable keys) are used before
/// they are recomputed.
const WEIGHTS_KEPT_MS: i64 = 100;

/// Number of dictionaries per command that searches for unused memory may check, on average. A
/// search checks all dictionaries. After a search that found nothing, the next one in the same
/// millisecond must therefore wait for enough commands.
const DICTS_CHECKED: u64 = 1024;

/// Result of an attempt to get below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory is within its limit, or the limit does not apply because writes are paused.
    Enough,
    /// Memory is above its limit. There is more to evict later.
    Later,
    /// Memory is above its limit, and nothing more can be evicted.
    None,
}

/// Result of an attempt to evict one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// A key was evicted, which freed this many bytes.
    Evicted(u64),
    /// There are evictable keys, but the search found none of them.
    NotFound,
    /// There are evictable keys, but their shards are held by other threads.
    Busy,
    /// There is nothing to evict.
    Nothing,
    /// Memory is no longer above its limit.
    Enough,
}

/// The part of an [`Executor`] that evicts keys and tracked keys, and measures memory.
pub struct Evictor<'e, 'k>(pub(super) &'e mut Executor<'k>);

impl<'k> Executor<'k> {
    /// Returns the part of this executor that evicts keys and tracked keys, and measures memory.
    #[inline]
    pub fn evictor(&mut self) -> Evictor<'_, 'k> {
        Evictor(self)
    }
}

impl Evictor<'_, '_> {
    /// Evicts keys while memory is above its limit, before a command runs. `held` are the shards
    /// that the caller holds, sorted. Blocked clients are served and invalidations sent when the
    /// shards are released.
    #[inline]
    pub fn make_room(&mut self, held: &mut [Ownership], now_ms: i64) -> Room {
        let memory = self.0.keyspace().memory();
        if !memory.is_over() {
            memory.note_exceeded(false);
            self.0.weights.has_more_to_evict = false;
            return Room::Enough;
        }
        self.evict(held, now_ms)
    }

    /// Releases the shards from which keys were evicted while other shards were held
    /// ([`Evictor::make_room`]). Must not be called while a request runs.
    pub fn free_evicted(&mut self) {
        self.0.free_all();
    }

    /// Makes room for a command with these flags. Returns whether the command may run.
    pub(crate) fn has_room(&mut self, flags: Flags, held: &mut [Ownership], now_ms: i64) -> bool {
        self.make_room(held, now_ms) != Room::None || !flags.contains(Flags::DENYOOM)
    }

    #[cold]
    fn evict(&mut self, held: &mut [Ownership], now_ms: i64) -> Room {
        let keyspace = self.0.keyspace();
        let (memory, tuning) = (keyspace.memory(), &keyspace.tuning);
        // As in Redis, nothing is evicted while writes are paused, and no command is rejected for
        // lack of memory.
        if tuning.is_paused(now_ms) {
            return Room::Enough;
        }
        let policy = tuning.eviction_policy();
        let began = Instant::now();
        let time_max = time_limit(tuning.maxmemory_eviction_tenacity.load(Relaxed));
        self.refresh_old_weights(policy, now_ms);
        self.0.weights.start_span(memory, now_ms);
        self.0.weights.has_more_to_evict = false;
        let (mut evicted, mut missed) = (0, 0);
        let room = loop {
            if !memory.is_over() {
                break Room::Enough;
            }
            if policy == EvictionPolicy::Nothing {
                if self.release_emptied(held, now_ms) {
                    continue;
                }
                break Room::None;
            }
            if self.0.weights.has_evicted_its_share(memory) && memory.is_excess_tolerated() {
                // This worker has evicted its share, by weights that may be out of date. By current
                // weights the share may be larger, because other workers have fewer keys left.
                self.refresh_weights(policy, now_ms);
                if self.0.weights.has_evicted_its_share(memory) {
                    break Room::Later;
                }
            }
            match self.evict_one(policy, held, now_ms) {
                Tried::Enough => continue,
                Tried::Nothing if self.release_emptied(held, now_ms) => {}
                Tried::Nothing => break Room::None,
                Tried::NotFound if missed < MISSES_MAX => missed += 1,
                Tried::NotFound | Tried::Busy if memory.is_excess_tolerated_while_busy() => break Room::Later,
                Tried::NotFound | Tried::Busy => break Room::None,
                Tried::Evicted(bytes) => {
                    (evicted, missed) = (evicted + 1, 0);
                    self.0.weights.freed_bytes += bytes;
                    if self.0.weights.others > 0 {
                        memory.add_freed(bytes);
                    }
                    if evicted % KEYS_PER_CLOCK_READ != 0 {
                        continue;
                    }
                }
            }
            if began.elapsed() > time_max && memory.is_excess_tolerated() {
                self.0.weights.has_more_to_evict = evicted > 0;
                break Room::Later;
            }
        };
        if room != Room::Enough {
            memory.lower_ceiling();
        }
        if policy != EvictionPolicy::Nothing {
            keyspace.note_latency(self.0.worker(), latency::EVICTION_CYCLE, now_ms, began.elapsed());
        }
        memory.note_exceeded(room != Room::Enough);
        room
    }

    fn evict_one(&mut self, policy: EvictionPolicy, held: &mut [Ownership], now_ms: i64) -> Tried {
        for _ in 0..TRIES {
            let Some((shard, physical)) = self.0.weights.pick() else { break };
            if let done @ (Tried::Evicted(_) | Tried::Enough) = self.evict_from(shard, physical, policy, held, now_ms) {
                return done;
            }
        }
        // The number of keys may have changed since the weights were computed.
        self.refresh_weights(policy, now_ms);
        let mut all = if self.0.weights.others > 0 { Tried::Busy } else { Tried::Nothing };
        for at in 0..self.0.weights.sums.len() {
            let (_, shard, physical) = self.0.weights.sums[at];
            match (all, self.evict_from(shard, physical, policy, held, now_ms)) {
                (_, done @ (Tried::Evicted(_) | Tried::Enough)) => return done,
                (_, Tried::NotFound) => all = Tried::NotFound,
                (Tried::Nothing, tried) => all = tried,
                _ => {}
            }
        }
        all
    }

    /// Returns whether the last attempt evicted keys and ran out of time, so that the next attempt
    /// should follow soon.
    pub fn must_continue_evicting(&self) -> bool {
        self.0.weights.has_more_to_evict
    }

    fn refresh_old_weights(&mut self, policy: EvictionPolicy, now_ms: i64) {
        let is_old = now_ms - self.0.weights.refreshed_ms >= WEIGHTS_KEPT_MS;
        if is_old || self.0.weights.is_volatile != policy.is_volatile() {
            self.refresh_weights(policy, now_ms);
        }
    }

    fn refresh_weights(&mut self, policy: EvictionPolicy, now_ms: i64) {
        let (keyspace, worker) = (self.0.keyspace(), self.0.worker());
        self.0.weights.recompute(keyspace, worker, policy.is_volatile(), now_ms);
    }

    /// Evicts a key of a shard if the shard is held by this worker or free, preferably from
    /// database `physical`.
    fn evict_from(
        &mut self,
        shard: u32,
        physical: usize,
        policy: EvictionPolicy,
        held: &mut [Ownership],
        now_ms: i64,
    ) -> Tried {
        let (keyspace, worker) = (self.0.keyspace(), self.0.worker());
        let evict = |ownership: &mut Ownership| {
            // `CONFIG SET` may have raised the limit since the caller's check. The limit is checked
            // again while the shard is held, because a key that was written after the limit was
            // raised must not be evicted.
            if !keyspace.memory().is_over() {
                return Tried::Enough;
            }
            let (stats, state) = (keyspace.shard_stats(shard), keyspace.shard(ownership));
            let evicted = evict_in(keyspace, worker, stats, state, (shard, physical), policy, now_ms);
            evicted.map_or(Tried::NotFound, Tried::Evicted)
        };
        if let Ok(at) = held.binary_search_by_key(&shard, Ownership::shard) {
            return evict(&mut held[at]);
        }
        // While the caller holds shards (`held`), other shards from which keys were evicted stay in
        // `to_free`. They are released after the command on the held shards has run.
        let pending = self.0.to_free.iter().position(|ownership| ownership.shard() == shard);
        let taken = match pending {
            Some(at) => Some(self.0.to_free.swap_remove(at)),
            None => self.0.gates().take_if_ours(shard),
        };
        let Some(mut ownership) = taken else { return Tried::Busy };
        let tried = evict(&mut ownership);
        let mut owned = vec![ownership];
        self.0.outside_unit(|executor| {
            executor.runner.recorder.commit_deletions(&mut owned);
            if has_pending_events(keyspace, &mut owned) {
                executor.serving().serve(&mut owned, now_ms);
                executor.outbox.send_invalidations(&mut owned);
            }
        });
        self.0.to_free.append(&mut owned);
        if held.is_empty() {
            self.0.free_all();
        }
        tried
    }

    /// Releases the memory of dictionaries without keys, in the shards that this worker may take.
    /// Returns whether it released any. A search that released nothing is repeated in the same
    /// millisecond only after many commands, so that searches cost little per command.
    fn release_emptied(&mut self, held: &mut [Ownership], now_ms: i64) -> bool {
        let keyspace = self.0.keyspace();
        let weights = &mut self.0.weights;
        if weights.release_failed_ms == now_ms {
            weights.release_credit += DICTS_CHECKED;
            if weights.release_credit < u64::from(keyspace.partition_count()) * keyspace.used().count() as u64 {
                return false;
            }
        }
        weights.release_credit = 0;
        let mut has_released = false;
        for shard in 0..keyspace.partition_count() {
            let is_emptied = |db_stats: &DatabaseStats| db_stats.keys.get() == 0 && db_stats.dict_bytes.get() > 0;
            if !keyspace.database_stats_of_shard(shard).any(is_emptied) {
                continue;
            }
            if let Ok(at) = held.binary_search_by_key(&shard, Ownership::shard) {
                has_released |= release_emptied_of(keyspace, keyspace.shard(&mut held[at]), shard);
            } else if let Some(ownership) = self.0.to_free.iter_mut().find(|ownership| ownership.shard() == shard) {
                has_released |= release_emptied_of(keyspace, keyspace.shard(ownership), shard);
            } else if let Some(mut ownership) = self.0.gates().take_if_ours(shard) {
                has_released |= release_emptied_of(keyspace, keyspace.shard(&mut ownership), shard);
                self.0.to_free.push(ownership);
            }
        }
        self.0.weights.release_failed_ms = if has_released { i64::MIN } else { now_ms };
        // If the caller holds shards, the shards taken here are released later, as after an
        // eviction: when the command on the held shards has run.
        if held.is_empty() {
            self.0.free_all();
        }
        has_released
    }

    /// Flushes the memory usage of this worker's free home shards into the global counter. Also
    /// drops unused memory and records: the memory of empty dictionaries, ended watches, and hot
    /// keys that were not read. Called periodically.
    pub fn measure(&mut self) {
        self.0.hot.sweep();
        let (keyspace, worker) = (self.0.keyspace(), self.0.worker());
        self.measure_free(|shard| keyspace.home(shard) == worker);
    }

    /// Flushes the memory usage of all free shards that this worker may take. Called before memory
    /// usage is read or a limit is set, because without a limit shards flush only about once a
    /// second.
    pub fn measure_all(&mut self) {
        self.0.runner.recorder.hand_over_stream();
        let (keyspace, worker) = (self.0.keyspace(), self.0.worker());
        let is_inline = keyspace.layout().execution == Execution::Inline;
        self.measure_free(|shard| is_inline || keyspace.home(shard) == worker);
        self.0.free_all();
    }

    fn measure_free(&mut self, is_wanted: impl Fn(u32) -> bool) {
        let keyspace = self.0.keyspace();
        for shard in (0..keyspace.partition_count()).filter(|&shard| is_wanted(shard)) {
            let Some(mut ownership) = self.0.try_take(shard) else { continue };
            release_emptied_of(keyspace, keyspace.shard(&mut ownership), shard);
            let Shard { databases, observers, .. } = keyspace.shard(&mut ownership);
            observers.watches.sweep_few(&keyspace.published);
            for (physical, database) in databases.used() {
                let db_stats = keyspace.db_stats(shard, physical);
                db_stats.dict_bytes.set(database.dict.allocated_bytes() as u64);
                keyspace.flush_memory(db_stats);
            }
            self.0.free(ownership);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
