//! The state of a shard: its databases, blocked commands and statistics. (A shard is a partition,
//! see `docs/architecture.md`.)

use std::sync::atomic::AtomicU64;

use pantala_base::{Counter, Gauge, Random};
use pantala_dict::Dict;
use pantala_types::Value;

use crate::effect::blocking::KeyObservers;
use crate::store::eviction::Pool;
use crate::store::fields::Watched;
use crate::store::snapshot::ShardSnapshot;

/// One database in one shard. A lookup reads only the first cache line of this struct.
#[repr(C, align(64))]
pub(crate) struct Database {
    pub(crate) dict: Dict<Value>,
    /// Position at which active expiry continues.
    pub(crate) expire_cursor: u64,
    /// Keys that active expiry visits one by one, such as those of hashes with fields that expire.
    pub(crate) watched: Watched,
}

impl Database {
    pub(crate) fn new(dict: Dict<Value>) -> Self {
        Database { dict, expire_cursor: 0, watched: Watched::default() }
    }
}

/// The databases of a shard. The index of a database in this table is its physical number. Clients
/// use logical numbers, and `SWAPDB` exchanges the physical numbers that two logical numbers stand
/// for. An unused database takes one word of memory.
pub(crate) struct Databases {
    /// Database 0. Few servers use other databases. So database 0 is stored here and not in
    /// `others`. This saves each command the load of a cache line, which may be in another core's
    /// cache or only in memory.
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

    /// Returns a database for changes, if it is in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, physical: usize) -> Option<&mut Database> {
        self.slot(physical).as_deref_mut()
    }

    /// Returns a database. Creates it with `make` on its first use.
    #[inline]
    pub(crate) fn get_or_make(&mut self, physical: usize, make: impl FnOnce() -> Database) -> &mut Database {
        #[cold]
        #[inline(never)]
        fn boxed(make: impl FnOnce() -> Database) -> Box<Database> {
            Box::new(make())
        }
        self.slot(physical).get_or_insert_with(|| boxed(make))
    }

    /// Returns the databases in use, with their physical numbers.
    pub(crate) fn used(&mut self) -> impl Iterator<Item = (usize, &mut Database)> {
        let all = std::iter::once(&mut self.first).chain(&mut self.others);
        all.enumerate().filter_map(|(physical, database)| Some((physical, database.as_deref_mut()?)))
    }
}

/// The state of a shard. Only its owner (see `shard::ownership`) accesses it.
///
/// Fields that every command reads come first.
#[repr(C)]
pub struct Shard {
    pub(crate) databases: Databases,
    /// Blocked commands, watches, tracked keys and pending effects of the shard.
    pub(crate) observers: KeyObservers,
    /// Candidates for eviction. `None` until the first eviction.
    pub(crate) eviction: Option<Box<Pool>>,
    /// Generator for LFU counters and random keys.
    pub(crate) random: Random,
    /// The part of a running snapshot that is still to be walked.
    pub(crate) snapshot: Option<Box<ShardSnapshot>>,
    /// Buffer in which packed collections are changed before they are copied to their entries. It
    /// is kept so that its memory is reused.
    pub(crate) scratch: Vec<u8>,
}

impl Shard {
    pub(crate) fn new(databases: usize, seed: u64) -> Self {
        Shard {
            databases: Databases::new(databases),
            observers: KeyObservers::default(),
            eviction: None,
            random: Random::from_seed(seed),
            snapshot: None,
            scratch: Vec::new(),
        }
    }
}

/// The statistics of a shard. Only its owner writes them, so no write needs a locked instruction.
/// Any thread may read them at any time.
///
/// Fields that nearly every command writes come first, in the cache line of the shard's gate.
#[repr(C)]
pub struct ShardStats {
    /// Commands that ran on the shard.
    pub commands: Counter,
    /// Lookups for reading that found a key.
    pub hits: Counter,
    /// Changes of keys by commands.
    pub changes: Gauge,
    /// Lookups for reading that found no key.
    pub misses: Counter,
    /// Keys that expired.
    pub expired: Counter,
    /// Keys that were evicted.
    pub evicted: Counter,
    /// Requests of other workers that the owner ran.
    pub combined: Counter,
    /// Times that the owner passed the shard to its home (the worker that does its periodic work)
    /// because it had reached the limit of requests that it may run in succession.
    pub handovers: Counter,
    /// Keys that clients track.
    pub tracked_keys: Gauge,
    /// Pairs of a tracked key and a client that tracks it.
    pub tracked_readers: Gauge,
}

/// Statistics of one database in one shard. They have their own cache line.
#[derive(Default)]
#[repr(align(64))]
pub struct DatabaseStats {
    /// Keys.
    pub keys: Gauge,
    /// Keys with a TTL.
    pub expires: Gauge,
    /// Keys on the list of active expiry, whose hashes may have fields with a TTL.
    pub timed_hashes: Gauge,
    /// Sum in ms of the remaining TTLs that active expiry saw in its last visit that found keys
    /// with a TTL.
    pub ttl_sum_ms: Gauge,
    /// Number of TTLs in `ttl_sum_ms`.
    pub ttl_samples: Gauge,
    /// Bytes of the dictionary (entries, segments, directory), without large values.
    pub dict_bytes: Gauge,
    /// Bytes of values outside the dictionary's own memory.
    pub heap_bytes: Gauge,
    /// Sum of the two preceding fields at the last flush into the global counter
    /// ([`Memory`](crate::store::memory::Memory)).
    pub(crate) flushed_bytes: AtomicU64,
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
            tracked_keys: Gauge::default(),
            tracked_readers: Gauge::default(),
        }
    }
}
