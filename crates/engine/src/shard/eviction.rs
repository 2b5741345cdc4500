//! Eviction: keys go where memory is above its limit ([`Memory`](crate::store::memory::Memory)), before a command runs.
//!
//! A worker evicts from shards that it holds already, and from any that is free at that moment (with `--execution owner`: and that it is the home of). It never
//! waits for one. Each key goes while its shard is held, and everybody is told then, as of any other removal: so it is in order with what else happens to its
//! shard, and who sent the command hears of it before the reply.
//!
//! How long that may take for one command is what `maxmemory-eviction-tenacity` says. What is left then is evicted by the next commands, and in turns of the workers' loops.
//! But memory that is above the limit by more than a sixteenth, and higher than before, isn't left: so it stays bounded however fast commands come.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::command::Flags;
use crate::events::latency;
use crate::shard::executor::{Executor, has_news};
use crate::shard::ownership::Ownership;
pub use crate::store::eviction::OUT_OF_MEMORY;
use crate::store::eviction::{evict_in, release_emptied_of};
use crate::store::layout::Execution;
use crate::store::memory::time_limit;
use crate::store::state::{DatabaseStats, Shard};
pub use crate::tuning::policy::{EvictionPolicy, Rank};

/// Keys that go before the clock is looked at again, as in Redis.
const KEYS_PER_LOOK: u64 = 16;

/// Tries by chance for each key to find a shard that is free and has one to give, before all are asked in turn.
const TRIES: usize = 8;

/// Times in a row that no shard is come by a key of, though there are some, before that is left: many times what it takes to go through all.
const MISSES_MAX: u64 = 100_000;

/// How long the weights of shards are kept before they are told anew, ms.
const WEIGHTS_KEPT_MS: i64 = 100;

/// How many dictionaries a command that is short of memory looks at, on average, for memory that
/// they have kept without keys.
const DICTS_LOOKED_AT: u64 = 1024;

/// What became of an attempt to get below the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Memory is within its limit.
    Enough,
    /// It isn't, but there is more to evict, later.
    Later,
    /// It isn't, and nothing more can be evicted.
    None,
}

/// What became of an attempt to evict one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// So many bytes are free now.
    Evicted(u64),
    /// There are keys, but none was come by.
    NotFound,
    /// There are keys, but others hold their shards.
    Busy,
    /// There is nothing to evict.
    Nothing,
    /// Memory is no longer above its limit.
    Enough,
}

impl Executor<'_> {
    /// Before a command runs: evicts keys where memory is above its limit. `held`: the shards that the caller holds, ascending; who waits for
    /// what goes from them, or is to be told of it, is left for when they are given back.
    #[inline]
    pub fn make_room(&mut self, held: &mut [Ownership], now_ms: i64) -> Room {
        let memory = self.keyspace().memory();
        if !memory.is_over() {
            memory.note_exceeded(false);
            self.weights.goes_on = false;
            return Room::Enough;
        }
        self.evict(held, now_ms)
    }

    /// As [`Executor::make_room`], for a command with these flags. Says whether it may run.
    pub(crate) fn has_room(&mut self, flags: Flags, held: &mut [Ownership], now_ms: i64) -> bool {
        self.make_room(held, now_ms) != Room::None || !flags.contains(Flags::DENYOOM)
    }

    #[cold]
    fn evict(&mut self, held: &mut [Ownership], now_ms: i64) -> Room {
        let keyspace = self.keyspace();
        let (memory, tuning) = (keyspace.memory(), &keyspace.tuning);
        // As in Redis: while writes are paused nothing may change, and nothing is refused for it.
        if tuning.is_paused(now_ms) {
            return Room::Enough;
        }
        let policy = tuning.eviction_policy();
        let began = Instant::now();
        let time_max = time_limit(tuning.maxmemory_eviction_tenacity.load(Relaxed));
        self.tell_old_weights(policy, now_ms);
        self.weights.begin_span(memory, now_ms);
        self.weights.goes_on = false;
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
            if self.weights.has_done_its_share(memory) && memory.is_bearable() {
                // Unless the others have none left.
                self.tell_weights(policy, now_ms);
                if self.weights.has_done_its_share(memory) {
                    break Room::Later;
                }
            }
            match self.evict_one(policy, held, now_ms) {
                Tried::Enough => continue,
                Tried::Nothing if self.release_emptied(held, now_ms) => {}
                Tried::Nothing => break Room::None,
                Tried::NotFound if missed < MISSES_MAX => missed += 1,
                Tried::NotFound | Tried::Busy if memory.is_bearable_while_busy() => break Room::Later,
                Tried::NotFound | Tried::Busy => break Room::None,
                Tried::Evicted(bytes) => {
                    (evicted, missed) = (evicted + 1, 0);
                    self.weights.freed_bytes += bytes;
                    if self.weights.others > 0 {
                        memory.add_freed(bytes);
                    }
                    if evicted % KEYS_PER_LOOK != 0 {
                        continue;
                    }
                }
            }
            if began.elapsed() > time_max && memory.is_bearable() {
                self.weights.goes_on = evicted > 0;
                break Room::Later;
            }
        };
        if room != Room::Enough {
            memory.lower_ceiling();
        }
        if policy != EvictionPolicy::Nothing {
            keyspace.note_latency(self.worker(), latency::EVICTION_CYCLE, now_ms, began.elapsed());
        }
        memory.note_exceeded(room != Room::Enough);
        room
    }

    fn evict_one(&mut self, policy: EvictionPolicy, held: &mut [Ownership], now_ms: i64) -> Tried {
        for _ in 0..TRIES {
            let Some((shard, physical)) = self.weights.pick() else { break };
            if let done @ (Tried::Evicted(_) | Tried::Enough) = self.evict_from(shard, physical, policy, held, now_ms) {
                return done;
            }
        }
        // What they had may be gone since.
        self.tell_weights(policy, now_ms);
        let mut all = if self.weights.others > 0 { Tried::Busy } else { Tried::Nothing };
        for at in 0..self.weights.sums.len() {
            let (_, shard, physical) = self.weights.sums[at];
            match (all, self.evict_from(shard, physical, policy, held, now_ms)) {
                (_, done @ (Tried::Evicted(_) | Tried::Enough)) => return done,
                (_, Tried::NotFound) => all = Tried::NotFound,
                (Tried::Nothing, tried) => all = tried,
                _ => {}
            }
        }
        all
    }

    /// Whether the last attempt has evicted keys and left some for want of time: the next one is worth it at once.
    pub fn goes_on_evicting(&self) -> bool {
        self.weights.goes_on
    }

    fn tell_old_weights(&mut self, policy: EvictionPolicy, now_ms: i64) {
        let is_old = now_ms - self.weights.told_ms >= WEIGHTS_KEPT_MS;
        if is_old || self.weights.is_volatile != policy.is_volatile() {
            self.tell_weights(policy, now_ms);
        }
    }

    fn tell_weights(&mut self, policy: EvictionPolicy, now_ms: i64) {
        let (keyspace, worker) = (self.keyspace(), self.worker());
        self.weights.tell(keyspace, worker, policy.is_volatile(), now_ms);
    }

    /// Evicts a key of that shard, preferably of that database.
    fn evict_from(
        &mut self,
        shard: u32,
        physical: usize,
        policy: EvictionPolicy,
        held: &mut [Ownership],
        now_ms: i64,
    ) -> Tried {
        let (keyspace, worker) = (self.keyspace(), self.worker());
        let evict = |ownership: &mut Ownership| {
            // CONFIG SET may have raised the limit since the caller looked. Whoever has written to
            // this shard after that must not lose the key: the check needs the shard held.
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
        // With shards of a request in hand nothing is given back before that has run: what was taken lies there until then.
        let pending = self.to_free.iter().position(|ownership| ownership.shard() == shard);
        let taken = match pending {
            Some(at) => Some(self.to_free.swap_remove(at)),
            None => self.take_if_ours(shard),
        };
        let Some(mut ownership) = taken else { return Tried::Busy };
        let tried = evict(&mut ownership);
        let mut owned = vec![ownership];
        self.outside_unit(|executor| {
            executor.commit_deletions(&mut owned);
            if has_news(keyspace, &mut owned) {
                executor.serve(&mut owned, now_ms);
                executor.tell(&mut owned);
            }
        });
        self.to_free.append(&mut owned);
        if held.is_empty() {
            self.free_all();
        }
        tried
    }

    /// Releases the memory of dictionaries that have lost their last keys, of the shards that this
    /// worker may take. Says whether there was any. Where there was none, many commands share the
    /// cost of the next look.
    fn release_emptied(&mut self, held: &mut [Ownership], now_ms: i64) -> bool {
        let keyspace = self.keyspace();
        let weights = &mut self.weights;
        if weights.release_failed_ms == now_ms {
            weights.release_credit += DICTS_LOOKED_AT;
            if weights.release_credit < u64::from(keyspace.partition_count()) * keyspace.used().count() as u64 {
                return false;
            }
        }
        weights.release_credit = 0;
        let mut has_released = false;
        for shard in 0..keyspace.partition_count() {
            let is_emptied = |figures: &DatabaseStats| figures.keys.get() == 0 && figures.dict_bytes.get() > 0;
            if !keyspace.shard_figures(shard).any(is_emptied) {
                continue;
            }
            if let Ok(at) = held.binary_search_by_key(&shard, Ownership::shard) {
                has_released |= release_emptied_of(keyspace, keyspace.shard(&mut held[at]), shard);
            } else if let Some(ownership) = self.to_free.iter_mut().find(|ownership| ownership.shard() == shard) {
                has_released |= release_emptied_of(keyspace, keyspace.shard(ownership), shard);
            } else if let Some(mut ownership) = self.take_if_ours(shard) {
                has_released |= release_emptied_of(keyspace, keyspace.shard(&mut ownership), shard);
                self.to_free.push(ownership);
            }
        }
        self.weights.release_failed_ms = if has_released { i64::MIN } else { now_ms };
        // As where a key is evicted: with shards of a request in hand nothing is released before
        // that has run.
        if held.is_empty() {
            self.free_all();
        }
        has_released
    }

    /// Has the sum of all memory know exactly what the shards take that this worker is home of and that are free.
    pub fn measure(&mut self) {
        let (keyspace, worker) = (self.keyspace(), self.worker());
        self.measure_free(|shard| keyspace.home(shard) == worker);
    }

    /// As [`Executor::measure`], of all shards that this worker may take: for who asks, or is about to set a limit. Without one they tell about once a second only.
    pub fn measure_all(&mut self) {
        let (keyspace, worker) = (self.keyspace(), self.worker());
        let is_inline = keyspace.layout().execution == Execution::Inline;
        self.measure_free(|shard| is_inline || keyspace.home(shard) == worker);
        self.free_all();
    }

    fn measure_free(&mut self, is_wanted: impl Fn(u32) -> bool) {
        let keyspace = self.keyspace();
        for shard in (0..keyspace.partition_count()).filter(|&shard| is_wanted(shard)) {
            let Some(mut ownership) = self.try_take(shard) else { continue };
            release_emptied_of(keyspace, keyspace.shard(&mut ownership), shard);
            let Shard { databases, waiters, .. } = keyspace.shard(&mut ownership);
            waiters.watches.sweep_few();
            for (physical, database) in databases.used() {
                let figures = keyspace.figures(shard, physical);
                figures.dict_bytes.set(database.dict.allocated_bytes() as u64);
                keyspace.tell_memory(figures);
            }
            self.free(ownership);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
