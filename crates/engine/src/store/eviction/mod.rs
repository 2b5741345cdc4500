//! Chooses the keys to evict: picks a random shard, with a probability proportional to its number
//! of evictable keys ([`Weights`]), and then the best candidate of that shard's pool ([`Pool`]). A
//! pool holds a shard's eviction candidates.
//!
//! `shard::eviction` picks the shard, takes it, and calls [`evict_in`] while it holds it. Databases
//! are identified here by their *physical* number: the index in each shard's table of databases.
//! (Clients use other numbers, whose physical numbers `SWAPDB` exchanges.)

mod pool;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pantala_base::Random;

use crate::command::{Key, KeyPlace};
use crate::effect::change::{Change, commit};
use crate::events::latency;
use crate::store::Store;
use crate::store::db::uncount;
use crate::store::layout::Execution;
use crate::store::memory::Memory;
use crate::store::state::{Database, Shard, ShardStats};
use crate::tuning::policy::EvictionPolicy;

pub(crate) use pool::Pool;

/// The error for a command that may allocate, if memory is above its limit and nothing can be
/// evicted.
pub const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// Duration of a time slice (*span*) in ms. With `--execution owner`, each worker evicts only from
/// its home shards (those whose periodic work it does). The workers therefore share the eviction:
/// in each span, a worker's share of the bytes to free is proportional to the number of evictable
/// keys in its home shards.
const SHARED_MS: i64 = 100;

/// Numbers of evictable keys by shard and database.
pub(crate) struct Weights {
    random: Random,
    /// An item for each physical database of each shard that this worker can evict from and that
    /// has evictable keys: the number of evictable keys up to and including this item, the shard,
    /// and the physical database. [`Weights::pick`] picks a random number below the last sum.
    pub(crate) sums: Vec<(u64, u32, usize)>,
    /// Number of evictable keys in shards that only other workers can evict from (`--execution
    /// owner`).
    pub(crate) others: u64,
    /// Bytes that this worker has freed by eviction in the span `span`.
    pub(crate) freed_bytes: u64,
    span: i64,
    /// Whether `sums` counts only keys with a TTL.
    pub(crate) is_volatile: bool,
    pub(crate) refreshed_ms: i64,
    /// Time of the last search for empty dictionaries that released no memory.
    pub(crate) release_failed_ms: i64,
    /// Credit for the next search in the same millisecond. Each command adds to it, and the search
    /// starts once the credit reaches the number of all dictionaries. So a search costs little per
    /// command.
    pub(crate) release_credit: u64,
    /// Whether the last eviction reached its time limit, so that the next one should follow soon.
    pub(crate) has_more_to_evict: bool,
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
            refreshed_ms: i64::MIN / 2,
            release_failed_ms: i64::MIN,
            release_credit: 0,
            has_more_to_evict: false,
        }
    }

    /// Recomputes the numbers of evictable keys in all shards. `worker` is the worker that evicts.
    pub(crate) fn recompute(&mut self, store: &Store, worker: u32, is_volatile: bool, now_ms: i64) {
        self.sums.clear();
        (self.others, self.is_volatile, self.refreshed_ms) = (0, is_volatile, now_ms);
        let is_inline = store.layout().execution == Execution::Inline;
        let mut sum = 0;
        for shard in 0..store.partition_count() {
            let is_ours = is_inline || store.home(shard) == worker;
            for physical in store.used() {
                let db_stats = store.db_stats(shard, physical);
                let keys = if is_volatile { db_stats.expires.get() } else { db_stats.keys.get() };
                if !is_ours {
                    self.others += keys;
                } else if keys > 0 {
                    sum += keys;
                    self.sums.push((sum, shard, physical));
                }
            }
        }
    }

    /// Starts the time slice of `now_ms`, unless it is already the current one.
    pub(crate) fn start_span(&mut self, memory: &Memory, now_ms: i64) {
        let span = now_ms / SHARED_MS;
        memory.start_span(span);
        if std::mem::replace(&mut self.span, span) != span {
            self.freed_bytes = 0;
        }
    }

    /// Returns whether this worker has evicted its share of this time slice. Other workers evict
    /// the rest from their home shards.
    pub(crate) fn has_evicted_its_share(&self, memory: &Memory) -> bool {
        if self.others == 0 {
            return false;
        }
        let ours = self.sums.last().map_or(0, |(sum, ..)| *sum);
        let all_bytes = memory.excess_bytes() + memory.freed_bytes();
        u128::from(self.freed_bytes) * u128::from(ours + self.others) >= u128::from(all_bytes) * u128::from(ours)
    }

    /// Picks a random shard and physical database. The probability of each is proportional to its
    /// number of evictable keys.
    pub(crate) fn pick(&mut self) -> Option<(u32, usize)> {
        let (all, ..) = self.sums.last()?;
        let chosen = self.random.below(*all);
        let at = self.sums.partition_point(|(sum, ..)| *sum <= chosen);
        let (_, shard, physical) = self.sums[at];
        Some((shard, physical))
    }
}

/// Releases the memory of those dictionaries of a shard that have no keys. Returns whether any
/// memory was released.
pub(crate) fn release_emptied_of(store: &Store, shard: &mut Shard, number: u32) -> bool {
    let mut has_released = false;
    for (physical, Database { dict, .. }) in shard.databases.used() {
        if dict.release_if_empty() {
            has_released = true;
            let db_stats = store.db_stats(number, physical);
            db_stats.dict_bytes.set(dict.allocated_bytes() as u64);
            store.flush_memory(db_stats);
        }
    }
    has_released
}

/// Evicts a key of a held shard, preferably from the physical database `physical`. Returns the
/// number of bytes freed, or `None` if no key was found.
pub(crate) fn evict_in(
    store: &Store,
    worker: u32,
    stats: &ShardStats,
    shard: &mut Shard,
    (number, physical): (u32, usize),
    policy: EvictionPolicy,
    now_ms: i64,
) -> Option<u64> {
    let Shard { databases, observers, random, eviction, .. } = shard;
    let pool = eviction.get_or_insert_default();
    let (physical, hash) = pool.choose(store, databases, physical, policy, random, now_ms)?;
    let (dict, db_stats) = (&mut databases.get_mut(physical)?.dict, store.db_stats(number, physical));
    let bytes_before = dict.allocated_bytes() as u64 + db_stats.heap_bytes.get();
    let entry = dict.find_by_hash(hash)?;
    let bytes: Box<[u8]> = entry.key().into();
    let removed = entry.remove();
    stats.evicted.add(1);
    uncount(db_stats, &removed);
    if let Some(value) = removed.into_heap() {
        let began = Instant::now();
        store.dispose(value, store.tuning.lazyfree_lazy_eviction.load(Relaxed));
        store.note_latency(worker, latency::EVICTION_DEL, now_ms, began.elapsed());
    }
    // An empty dictionary would keep a page of memory for its next keys. If the memory limit is
    // small, the pages of all shards together could exceed the limit.
    dict.release_if_empty();
    db_stats.dict_bytes.set(dict.allocated_bytes() as u64);
    store.flush_memory(db_stats);
    let (db, place) = (store.logical(physical), KeyPlace { hash, shard: number });
    commit(store, observers, db, &Key { bytes: &bytes, place }, Change::evicted());
    Some(bytes_before.saturating_sub(db_stats.dict_bytes.get() + db_stats.heap_bytes.get()))
}
