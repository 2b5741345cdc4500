//! The databases of a shard, the operations of a shard's owner on them, and the state shared by all
//! shards ([`Store`]).
//!
//! This layer takes no shards. Its callers hold a shard and pass the shard's [`state::Shard`]. In
//! this layer a shard is a partition (see the words on [the crate's page](crate)).

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use pantala_base::key_slot;
use pantala_base::limits::SLOTS;
use pantala_base::numa::Node;
use pantala_base::random::Random;
use pantala_dict::{Dict, Hint, Roots, hash_key};
use pantala_types::Value;

use crate::command::KeyPlace;
use crate::effect::published::PublishedCount;
use crate::events::{Events, Workers};

pub(crate) mod databases;
pub mod db;
pub mod eviction;
pub mod expire;
pub mod fields;
mod key_list;
pub mod layout;
pub mod lazyfree;
pub mod memory;
mod rdb;
pub(crate) mod snapshot;
pub mod state;
pub mod undo;

use databases::{DatabasesChange, Permit};
use layout::Layout;
use lazyfree::{Garbage, LazyFree};
use memory::Memory;
use snapshot::detached::Detached;
use state::{Database, DatabaseStats};

/// The state shared by the databases of all shards: the places of keys, statistics, memory
/// accounting, and the [`Events`] with the settings.
pub struct Store {
    layout: Layout,
    /// Statistics of each database in each partition. The index is the number of the physical
    /// database times the number of partitions, plus the partition. The statistics of a database
    /// that was never used are zero and use no resident memory.
    db_stats: Box<[DatabaseStats]>,
    /// Home of each partition.
    homes: Box<[u32]>,
    /// NUMA node for the entries of each partition; empty if the entries are not placed.
    nodes: Box<[Node]>,
    /// Roots of dictionaries for prefetching, in the order of `db_stats`.
    roots: Roots,
    /// Whether a physical database is in use in any shard.
    used: Box<[AtomicBool]>,
    /// Physical database by logical database, the number that clients use. `SWAPDB` exchanges two
    /// physical databases while it holds all shards, so the mapping is stable for the owner of any
    /// shard. A prefetch owns no shard and may use an outdated number. Such a prefetch is useless
    /// but harmless.
    physical: Box<[AtomicU32]>,
    lazy: LazyFree,
    pub(crate) detached: Detached,
    /// Number of published keys.
    pub published: PublishedCount,
    memory: Memory,
    /// Number of random numbers drawn by [`Store::random_below`].
    draws: AtomicU64,
    events: Events,
}

impl Deref for Store {
    type Target = Events;

    #[inline(always)]
    fn deref(&self) -> &Events {
        &self.events
    }
}

impl Store {
    /// Returns a store without databases.
    pub(crate) fn new(layout: Layout, workers: Arc<dyn Workers>) -> Self {
        let places = layout.databases as usize * layout.partitions as usize;
        Store {
            db_stats: zeroed_stats(places),
            roots: Roots::new(places),
            homes: (0..layout.partitions).map(|partition| layout.home(partition)).collect(),
            nodes: Box::default(),
            used: (0..layout.databases).map(|_| AtomicBool::new(false)).collect(),
            physical: (0..layout.databases).map(AtomicU32::new).collect(),
            lazy: LazyFree::start(),
            detached: Detached::default(),
            published: PublishedCount::default(),
            memory: Memory::new(),
            draws: AtomicU64::new(0),
            events: Events::new(workers, layout.workers as usize),
            layout,
        }
    }

    /// Sets the NUMA node of each home's entries. With an empty list, the entries are not placed.
    /// Must be called before the first database is created.
    pub(crate) fn place_entries(&mut self, nodes: &[Node]) {
        let of_home = |home: &u32| nodes[*home as usize];
        self.nodes = if nodes.is_empty() { Box::default() } else { self.homes.iter().map(of_home).collect() };
    }

    /// Returns whether the server is a node of a cluster (`cluster-enabled`). All keys of a call
    /// must then have the same slot.
    #[inline]
    pub fn is_cluster(&self) -> bool {
        self.tuning.cluster.load(Relaxed)
    }

    /// Returns the layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number of databases.
    pub fn databases(&self) -> u32 {
        self.layout.databases
    }

    /// Returns the number of partitions, which are numbered from 0.
    #[inline]
    pub fn partition_count(&self) -> u32 {
        self.layout.partitions
    }

    /// Returns the partitions of a shard (below [`Layout::shards`]).
    pub fn partitions_of(&self, shard: u32) -> Range<u32> {
        self.layout.first_partition(shard)..self.layout.first_partition(shard + 1)
    }

    /// Returns the place of a key.
    #[inline]
    pub fn place(&self, key: &[u8]) -> KeyPlace {
        KeyPlace { hash: hash_key(self.layout.seed, key), shard: self.shard_of_slot(key_slot(key)) }
    }

    /// Returns the partition of a slot. Partitions are contiguous ranges of slots, as even as
    /// possible.
    #[inline]
    pub fn shard_of_slot(&self, slot: u16) -> u32 {
        u32::from(slot) * self.layout.partitions / SLOTS as u32
    }

    /// Returns the home of a partition's shard. This worker does the shard's periodic work. With
    /// [`Execution::Owner`](layout::Execution::Owner), it also runs the shard's one-key commands.
    #[inline]
    pub fn home(&self, shard: u32) -> u32 {
        self.homes[shard as usize]
    }

    /// Returns a handle for prefetching in a database of a shard.
    #[inline(always)]
    pub fn hint(&self, db: u32, shard: u32) -> Hint {
        self.roots.hint(self.place_of(shard, self.physical(db)))
    }

    /// Returns the index of a database in a shard, in the lists of statistics and of roots.
    #[inline]
    fn place_of(&self, shard: u32, physical: usize) -> usize {
        physical * self.layout.partitions as usize + shard as usize
    }

    /// Returns the statistics of a database in a shard. Any thread may read them at any time.
    #[inline]
    pub(crate) fn db_stats(&self, shard: u32, physical: usize) -> &DatabaseStats {
        &self.db_stats[self.place_of(shard, physical)]
    }

    /// Returns the statistics of a shard's databases that are in use in any shard. The statistics
    /// of other databases are zero.
    pub fn database_stats_of_shard(&self, shard: u32) -> impl Iterator<Item = &DatabaseStats> {
        self.used().map(move |physical| self.db_stats(shard, physical))
    }

    /// Returns the statistics of a database in all shards, in order.
    fn database_stats(&self, db: u32) -> &[DatabaseStats] {
        let physical = self.physical(db);
        &self.db_stats[self.place_of(0, physical)..][..self.layout.partitions as usize]
    }

    /// Returns the physical numbers of the databases that are in use in any shard. The result for
    /// the owner of a shard includes all databases in use in that shard.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> {
        // Relaxed: only the owner of a shard puts a database of the shard into use, and the gate
        // makes this write visible to the shard's next owner.
        self.used.iter().enumerate().filter(|(_, is_used)| is_used.load(Relaxed)).map(|(physical, _)| physical)
    }

    /// Returns whether a database is in use in any shard (see [`Store::used`]).
    pub fn is_used(&self, db: u32) -> bool {
        self.used[self.physical(db)].load(Relaxed)
    }

    /// Returns the statistics of a database in a shard, for tests that modify them.
    #[doc(hidden)]
    pub fn database_stats_for_tests(&self, db: u32, shard: u32) -> &DatabaseStats {
        self.used[self.physical(db)].store(true, Relaxed);
        self.db_stats(shard, self.physical(db))
    }

    /// Creates a database on its first use in a shard that the caller holds.
    pub(crate) fn make_database(&self, shard: u32, physical: usize) -> Database {
        self.used[physical].store(true, Relaxed);
        let node = self.nodes.get(shard as usize).copied().unwrap_or_default();
        Database::new(self.roots.dict(self.place_of(shard, physical), self.layout.seed, node))
    }

    /// Returns the number of keys and the number of keys with a TTL in a database, over all shards.
    pub fn database_size(&self, db: u32) -> (u64, u64) {
        self.database_stats(db)
            .iter()
            .fold((0, 0), |(keys, expires), db_stats| (keys + db_stats.keys.get(), expires + db_stats.expires.get()))
    }

    /// Returns the number of keys of a database in one shard.
    pub fn shard_size(&self, db: u32, shard: u32) -> u64 {
        self.db_stats(shard, self.physical(db)).keys.get()
    }

    /// Returns the number of keys with a TTL of a database in one shard.
    pub fn shard_expires(&self, db: u32, shard: u32) -> u64 {
        self.db_stats(shard, self.physical(db)).expires.get()
    }

    /// Returns the memory usage of a database over all shards, in bytes: first that of its
    /// dictionaries, then that of values outside of them.
    pub fn memory_bytes(&self, db: u32) -> (u64, u64) {
        self.database_stats(db)
            .iter()
            .fold((0, 0), |(dict, heap), db_stats| (dict + db_stats.dict_bytes.get(), heap + db_stats.heap_bytes.get()))
    }

    /// Returns a random number below `bound`, which must not be 0. Used by callers that hold no
    /// shard, and so have no generator. The sequence depends on [`Layout::random_seed`] only.
    pub fn random_below(&self, bound: u64) -> u64 {
        // Relaxed: one atomic operation returns a different number to each caller, and nothing else
        // depends on the number.
        let draw = self.draws.fetch_add(1, Relaxed);
        Random::from_seed(self.layout.random_seed.wrapping_add(draw)).below(bound)
    }

    /// Returns the mean remaining TTL of a database's keys, in ms, or 0 if no key has a TTL. The
    /// mean is an estimate. It covers the keys that active expiry saw in each shard, in its last
    /// visit that found keys with a TTL. Shards without TTLs do not count, because active expiry
    /// does not visit them.
    pub fn average_ttl_ms(&self, db: u32) -> u64 {
        let visited = self.database_stats(db).iter().filter(|db_stats| db_stats.expires.get() > 0);
        let (sum, samples) = visited.fold((0u64, 0), |(sum, samples), db_stats| {
            (sum.saturating_add(db_stats.ttl_sum_ms.get()), samples + db_stats.ttl_samples.get())
        });
        sum.checked_div(samples).unwrap_or(0)
    }

    /// Returns the memory accounting of the data.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the thread that frees memory in the background.
    pub fn lazy_free(&self) -> &LazyFree {
        &self.lazy
    }

    /// Swaps two databases. The caller must own all shards.
    pub(crate) fn swap_databases(&self, a: u32, b: u32, _: &Permit) -> DatabasesChange {
        let (first, second) = (self.physical(a), self.physical(b));
        self.physical[a as usize].store(second as u32, Relaxed);
        self.physical[b as usize].store(first as u32, Relaxed);
        DatabasesChange::Swapped(a, b)
    }

    /// Returns the index of a logical database in each shard's table of databases.
    #[inline]
    pub(crate) fn physical(&self, db: u32) -> usize {
        self.physical[db as usize].load(Relaxed) as usize
    }

    /// Returns the logical number of the database at an index of each shard's table.
    pub(crate) fn logical(&self, physical: usize) -> u32 {
        (0..self.layout.databases).find(|&db| self.physical(db) == physical).expect("every database has a number")
    }

    /// Frees a value that was removed: in the background if `lazy` is set and the value is large
    /// enough, otherwise immediately. A value that a snapshot must still read is freed after the
    /// snapshot has read it.
    pub(crate) fn dispose(&self, value: Value, lazy: bool) {
        /// Freeing a smaller value takes less time than sending it to the background thread.
        const WORTH_SENDING_BYTES: usize = 64 * 1024;
        /// A value that consists of more memory blocks than this is sent, as in Redis.
        const WORTH_SENDING_BLOCKS: usize = 64;
        let Some(value) = self.detached.keep(value) else { return };
        if lazy && (value.heap_blocks() > WORTH_SENDING_BLOCKS || value.allocated_bytes() >= WORTH_SENDING_BYTES) {
            self.lazy.send(Garbage::Value(value), 1);
        }
    }

    /// Frees a whole dictionary in the background.
    pub(crate) fn dispose_dict(&self, dict: Dict<Value>) {
        let objects = dict.len() as u64;
        if objects > 0 {
            self.lazy.send(Garbage::Dict(dict), objects);
        }
    }
}

/// Returns statistics that are all zero. Large zeroed memory is not resident until it is written.
fn zeroed_stats(count: usize) -> Box<[DatabaseStats]> {
    let layout = std::alloc::Layout::array::<DatabaseStats>(count).expect("databases and partitions are bounded");
    // SAFETY: there is at least one database and one partition, so the layout is not empty. The
    // block belongs to the box, and has the layout with which a box frees such a slice. The
    // statistics are counts in atomic words, for which zero bytes are valid: the default value.
    unsafe {
        let start = std::alloc::alloc_zeroed(layout).cast::<DatabaseStats>();
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, count))
    }
}
