//! Eviction: keys go where memory is above its limit ([`Memory`](crate::store::memory::Memory)), before a command runs.
//!
//! A worker evicts from shards that it holds already, and from any that is free at that moment (with `--execution owner`: and that it is the home of). It never
//! waits for one. Each key goes while its shard is held, and everybody is told then, as of any other removal: so it is in order with what else happens to its
//! shard, and who sent the command hears of it before the reply.
//!
//! How long that may take for one command is what `maxmemory-eviction-tenacity` says. What is left then is evicted by the next commands, and in turns of the workers' loops.
//! But memory that is above the limit by more than a sixteenth, and higher than before, isn't left: so it stays bounded however fast commands come.

mod pool;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pantala_base::Random;

use crate::command::Flags;
use crate::effect::change::commit;
use crate::events::latency;
use crate::shard::access::{Key, KeyPlace};
use crate::shard::executor::{Executor, has_news};
use crate::shard::keyspace::{Execution, Keyspace};
use crate::shard::ownership::Ownership;
use crate::store::db::{Change, uncount};
use crate::store::memory::{Memory, time_limit};
use crate::store::state::{Database, DatabaseStats, Shard};

pub(crate) use pool::Pool;
pub use pool::{EvictionPolicy, Rank};

/// The error of a command that may take more memory where there is none left.
pub const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// Keys that go before the clock is looked at again, as in Redis.
const KEYS_PER_LOOK: u64 = 16;

/// Tries by chance for each key to find a shard that is free and has one to give, before all are asked in turn.
const TRIES: usize = 8;

/// Times in a row that no shard is come by a key of, though there are some, before that is left: many times what it takes to go through all.
const MISSES_MAX: u64 = 100_000;

/// How long the weights of shards are kept before they are told anew, ms.
const WEIGHTS_KEPT_MS: i64 = 100;

/// Over how long workers that evict each from shards of their own see to it that each frees its share, ms: what a round of `hz` takes.
const SHARED_MS: i64 = 100;

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

/// Which shards and databases have how many keys that may go.
pub(crate) struct Weights {
    random: Random,
    /// Up to each entry's end, for one that is chosen by chance: sums of keys, with shard and database as that numbers it.
    sums: Vec<(u64, u32, usize)>,
    /// Keys in shards that only others can evict from (`--execution owner`).
    others: u64,
    /// What this worker has freed in this span of time, bytes, and which that is.
    freed_bytes: u64,
    span: i64,
    /// Whose sums: of keys with a time to live.
    is_volatile: bool,
    told_ms: i64,
    /// When emptied dictionaries were last looked for without any being found, and how many could
    /// have been looked at since.
    release_failed_ms: i64,
    release_credit: u64,
    /// There was more to evict than there was time for.
    goes_on: bool,
}

impl Weights {
    pub(crate) fn new(random: Random) -> Self {
        Weights {
            random,
            sums: Vec::new(),
            others: 0,
            freed_bytes: 0,
            span: 0,
            is_volatile: false,
            told_ms: i64::MIN / 2,
            release_failed_ms: i64::MIN,
            release_credit: 0,
            goes_on: false,
        }
    }

    fn tell(&mut self, keyspace: &Keyspace, worker: u32, is_volatile: bool, now_ms: i64) {
        self.sums.clear();
        (self.others, self.is_volatile, self.told_ms) = (0, is_volatile, now_ms);
        let is_inline = keyspace.layout().execution == Execution::Inline;
        let mut sum = 0;
        for shard in 0..keyspace.partition_count() {
            let is_ours = is_inline || keyspace.home(shard) == worker;
            for physical in keyspace.used() {
                let figures = keyspace.figures(shard, physical);
                let keys = if is_volatile { figures.expires.get() } else { figures.keys.get() };
                if !is_ours {
                    self.others += keys;
                } else if keys > 0 {
                    sum += keys;
                    self.sums.push((sum, shard, physical));
                }
            }
        }
    }

    /// Of a time that it may be another span than it was.
    fn begin_span(&mut self, memory: &Memory, now_ms: i64) {
        let span = now_ms / SHARED_MS;
        memory.begin_span(span);
        if std::mem::replace(&mut self.span, span) != span {
            self.freed_bytes = 0;
        }
    }

    /// Whether this worker has evicted its share of what all have to: as much of it as it has of the keys. The rest is for the homes of the others.
    fn has_done_its_share(&self, memory: &Memory) -> bool {
        if self.others == 0 {
            return false;
        }
        let ours = self.sums.last().map_or(0, |(sum, ..)| *sum);
        let all_bytes = memory.excess_bytes() + memory.freed_bytes();
        u128::from(self.freed_bytes) * u128::from(ours + self.others) >= u128::from(all_bytes) * u128::from(ours)
    }

    fn pick(&mut self) -> Option<(u32, usize)> {
        let (all, ..) = self.sums.last()?;
        let chosen = self.random.below(*all);
        let at = self.sums.partition_point(|(sum, ..)| *sum <= chosen);
        let (_, shard, physical) = self.sums[at];
        Some((shard, physical))
    }
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
            evict_in(keyspace, worker, ownership, physical, policy, now_ms).map_or(Tried::NotFound, Tried::Evicted)
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
                has_released |= release_emptied_of(keyspace, &mut held[at]);
            } else if let Some(ownership) = self.to_free.iter_mut().find(|ownership| ownership.shard() == shard) {
                has_released |= release_emptied_of(keyspace, ownership);
            } else if let Some(mut ownership) = self.take_if_ours(shard) {
                has_released |= release_emptied_of(keyspace, &mut ownership);
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
            release_emptied_of(keyspace, &mut ownership);
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

/// Releases what the dictionaries of a shard that have no keys hold. Says whether that was
/// anything.
fn release_emptied_of(keyspace: &Keyspace, ownership: &mut Ownership) -> bool {
    let number = ownership.shard();
    let mut has_released = false;
    for (physical, Database { dict, .. }) in keyspace.shard(ownership).databases.used() {
        if dict.release_if_empty() {
            has_released = true;
            let figures = keyspace.figures(number, physical);
            figures.dict_bytes.set(dict.allocated_bytes() as u64);
            keyspace.tell_memory(figures);
        }
    }
    has_released
}

/// Evicts a key of a shard that is held. Gives how many bytes that has freed, if it has found one.
fn evict_in(
    keyspace: &Keyspace,
    worker: u32,
    ownership: &mut Ownership,
    physical: usize,
    policy: EvictionPolicy,
    now_ms: i64,
) -> Option<u64> {
    let number = ownership.shard();
    let stats = keyspace.shard_stats(number);
    let Shard { databases, waiters, random, eviction, .. } = keyspace.shard(ownership);
    let pool = eviction.get_or_insert_default();
    let (physical, hash) = pool.choose(keyspace, databases, physical, policy, random, now_ms)?;
    let (dict, figures) = (&mut databases.get_mut(physical)?.dict, keyspace.figures(number, physical));
    let bytes_before = dict.allocated_bytes() as u64 + figures.heap_bytes.get();
    let entry = dict.find_by_hash(hash)?;
    let bytes: Box<[u8]> = entry.key().into();
    let removed = entry.remove();
    stats.evicted.add(1);
    uncount(figures, &removed);
    if let Some(value) = removed.into_heap() {
        let began = Instant::now();
        keyspace.dispose(value, keyspace.tuning.lazyfree_lazy_eviction.load(Relaxed));
        keyspace.note_latency(worker, latency::EVICTION_DEL, now_ms, began.elapsed());
    }
    // An empty dictionary keeps a page for its next keys: with little memory, that of all shards
    // would be more than the keys may have.
    dict.release_if_empty();
    figures.dict_bytes.set(dict.allocated_bytes() as u64);
    keyspace.tell_memory(figures);
    let (db, place) = (keyspace.logical(physical), KeyPlace { hash, shard: number });
    commit(keyspace, waiters, db, &Key { bytes: &bytes, place }, Change::evicted());
    Some(bytes_before.saturating_sub(figures.dict_bytes.get() + figures.heap_bytes.get()))
}

#[cfg(all(test, not(loom)))]
mod tests;
