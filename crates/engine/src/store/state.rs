//! A shard: a partition of the slots, and all state of its keys.

use std::sync::atomic::AtomicU64;

use pantala_base::{Counter, Gauge, Random};
use pantala_dict::Dict;
use pantala_types::Value;

use crate::effect::blocking::Waiters;
use crate::store::eviction::Pool;
use crate::store::fields::Watched;
use crate::store::snapshot::ShardSnapshot;

/// One database in one shard. A lookup reads its first cache line and no other.
#[repr(C, align(64))]
pub(crate) struct Database {
    pub(crate) dict: Dict<Value>,
    /// The position at which its active expiry continues.
    pub(crate) expire_cursor: u64,
    /// Keys of hashes with fields that expire.
    pub(crate) watched: Watched,
}

impl Database {
    pub(crate) fn new(dict: Dict<Value>) -> Self {
        Database { dict, expire_cursor: 0, watched: Watched::default() }
    }
}

/// The databases of a shard by number. An unused one takes a word.
pub(crate) struct Databases {
    /// Number 0, stored here because few servers use another: each cache line that a command reads
    /// of its shard may have been written by another worker, or evicted from this one's cache.
    first: Option<Box<Database>>,
    others: Box<[Option<Box<Database>>]>,
}

impl Databases {
    fn new(count: usize) -> Self {
        Databases { first: None, others: (1..count).map(|_| None).collect() }
    }

    #[inline]
    fn slot(&mut self, physical: usize) -> &mut Option<Box<Database>> {
        if physical == 0 { &mut self.first } else { &mut self.others[physical - 1] }
    }

    /// Returns a database, if it is in use.
    #[inline]
    pub(crate) fn get(&self, physical: usize) -> Option<&Database> {
        if physical == 0 { self.first.as_deref() } else { self.others[physical - 1].as_deref() }
    }

    /// As [`Databases::get`], mutably.
    #[inline]
    pub(crate) fn get_mut(&mut self, physical: usize) -> Option<&mut Database> {
        self.slot(physical).as_deref_mut()
    }

    /// Returns a database, made with `make` on its first use.
    #[inline]
    pub(crate) fn get_or_make(&mut self, physical: usize, make: impl FnOnce() -> Database) -> &mut Database {
        #[cold]
        #[inline(never)]
        fn boxed(make: impl FnOnce() -> Database) -> Box<Database> {
            Box::new(make())
        }
        self.slot(physical).get_or_insert_with(|| boxed(make))
    }

    /// Returns the databases in use, with their numbers.
    pub(crate) fn used(&mut self) -> impl Iterator<Item = (usize, &mut Database)> {
        let all = std::iter::once(&mut self.first).chain(&mut self.others);
        all.enumerate().filter_map(|(physical, database)| Some((physical, database.as_deref_mut()?)))
    }
}

/// The state of a shard. Only its owner (see `shard::ownership`) accesses it.
///
/// The fields that every command reads come first.
#[repr(C)]
pub struct Shard {
    pub(crate) databases: Databases,
    /// Commands blocked on its keys.
    pub(crate) waiters: Waiters,
    /// The candidates for eviction, once something has been evicted.
    pub(crate) eviction: Option<Box<Pool>>,
    /// For LFU counters and random keys.
    pub(crate) random: Random,
    /// What the snapshot that runs has yet to walk.
    pub(crate) snapshot: Option<Box<ShardSnapshot>>,
    /// Scratch in which packed collections are changed before they return to their entries: kept
    /// for its memory.
    pub(crate) scratch: Vec<u8>,
}

impl Shard {
    pub(crate) fn new(databases: usize, seed: u64) -> Self {
        Shard {
            databases: Databases::new(databases),
            waiters: Waiters::default(),
            eviction: None,
            random: Random::from_seed(seed),
            snapshot: None,
            scratch: Vec::new(),
        }
    }
}

/// The statistics of a shard. Written by its owner alone, so that no write needs a locked
/// instruction; any thread may read them at any time.
///
/// The fields that nearly every command writes come first: in the cache line of the shard's gate.
#[repr(C)]
pub struct ShardStats {
    /// Commands that ran on it.
    pub commands: Counter,
    /// Lookups for reading that found a key.
    pub hits: Counter,
    /// Changes of keys by commands, since the start.
    pub changes: Gauge,
    /// Lookups for reading that found none. What a reset records need not stand in that line.
    pub misses: Counter,
    /// Keys that expired.
    pub expired: Counter,
    /// Keys that were evicted.
    pub evicted: Counter,
    /// Requests that its owner ran for others.
    pub combined: Counter,
    /// Times its owner passed it to its home because too many requests waited.
    pub handovers: Counter,
    /// Entries that active expiry has visited, the expired ones included: for its estimate of stale
    /// ones.
    pub expire_visited: Counter,
    /// Keys that clients track.
    pub tracked_keys: Gauge,
    /// Their readers.
    pub tracked_readers: Gauge,
}

/// Statistics of one database in one shard, in a cache line of their own.
#[derive(Default)]
#[repr(align(64))]
pub struct DatabaseStats {
    /// Keys.
    pub keys: Gauge,
    /// Keys with an expiry.
    pub expires: Gauge,
    /// Keys on active expiry's list because their hashes may have fields that expire.
    pub timed_hashes: Gauge,
    /// Sum of the remaining TTLs that the last round of active expiry saw, ms.
    pub ttl_sum_ms: Gauge,
    /// Number of TTLs in that sum.
    pub ttl_samples: Gauge,
    /// Bytes of the dictionary (entries, segments, directory), without large values.
    pub dict_bytes: Gauge,
    /// Bytes of values outside the dictionary's own memory.
    pub heap_bytes: Gauge,
    /// The part of the two that is flushed into the global counter
    /// ([`Memory`](crate::store::memory::Memory)).
    pub(crate) told_bytes: AtomicU64,
}

impl ShardStats {
    pub(crate) fn new() -> Self {
        ShardStats {
            commands: Counter::default(),
            hits: Counter::default(),
            changes: Gauge::default(),
            misses: Counter::default(),
            expired: Counter::default(),
            evicted: Counter::default(),
            combined: Counter::default(),
            handovers: Counter::default(),
            expire_visited: Counter::default(),
            tracked_keys: Gauge::default(),
            tracked_readers: Gauge::default(),
        }
    }
}
