//! All partitions, and what is the same for all of them.
//!
//! # Words
//!
//! The key space is divided twice. A *partition* is the unit of ownership: a range of slots with its gate, its
//! dictionaries, its blocked clients and its statistics. A *shard* is what users count (`--shards N`, `INFO shards`): a
//! group of neighbouring partitions with one home. Nearly all code deals with partitions only, and calls them shards as it
//! did when each shard was one ([`Shard`], `KeyPlace::shard`, …). Where both occur the names are exact:
//! [`Layout::shards`] and [`Layout::partitions`], [`Keyspace::partitions_of`].

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crossbeam::utils::CachePadded;
use pantala_base::limits::{DATABASES_MAX, PARTITIONS_MAX, SHARDS_MAX, SLOTS};
use pantala_base::mailbox::{Mailbox, Node};
use pantala_base::random::Random;
use pantala_base::{Counter, key_slot};
use pantala_dict::{Dict, Hint, Roots, hash_key};
use pantala_types::Value;

use crate::clients::client::Clients;
use crate::effect::Journal;
use crate::events::latency::LatencyMonitor;
use crate::events::monitor::Monitors;
use crate::events::pubsub::PubSub;
use crate::events::slowlog::SlowLog;
use crate::events::tracking::Tracking;
use crate::shard::access::KeyPlace;
use crate::shard::message::Message;
use crate::shard::ownership::{Gate, Ownership};
use crate::shard::request::Request;
use crate::store::lazyfree::{Garbage, LazyFree};
use crate::store::memory::Memory;
use crate::store::state::{Database, DatabaseStats, Shard, ShardStats};
use crate::tuning::Tuning;

/// Which thread runs a command whose shard is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The worker that parsed it.
    Inline,
    /// The shard's home.
    Owner,
}

/// How long a script that holds all shards must have run to be reckoned with again: to have commands wait together costs more than to run them, so it must be
/// much that they wait for.
const ALL_HELD_LONG: Duration = Duration::from_micros(100);

/// For how long after such a script another is reckoned with, in ms: many times as long as the way from one to the next of a connection that does nothing
/// else.
const ALL_HELD_LATELY_MS: i64 = 10;

/// How a [`Keyspace`] is laid out.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Shards, as users count them: 1 to [`SHARDS_MAX`].
    pub shards: u32,
    /// Partitions of all shards together: at least one of each, at most [`PARTITIONS_MAX`].
    pub partitions: u32,
    /// Databases, 1 to [`DATABASES_MAX`].
    pub databases: u32,
    /// Workers that are homes of shards, at least 1: the first of all workers.
    pub homes: u32,
    /// All workers, I/O workers included.
    pub workers: u32,
    /// Who runs commands.
    pub execution: Execution,
    /// Seed of the hash function: a secret, or a client could choose keys that all fall into one bucket.
    pub seed: u64,
    /// Seed of everything that is random and may be seen (random keys, access counters).
    pub random_seed: u64,
}

impl Layout {
    /// The first partition of a shard, or for the number of shards that of partitions: contiguous ranges, as even as
    /// possible.
    fn first_partition(&self, shard: u32) -> u32 {
        (u64::from(shard) * u64::from(self.partitions)).div_ceil(u64::from(self.shards)) as u32
    }

    /// The shard that a partition is one of.
    fn shard_of(&self, partition: u32) -> u32 {
        (u64::from(partition) * u64::from(self.shards) / u64::from(self.partitions)) as u32
    }

    /// The home of a partition's shard.
    fn home(&self, partition: u32) -> u32 {
        // Contiguous ranges again, so that a worker's shards are neighbours.
        (u64::from(self.shard_of(partition)) * u64::from(self.homes) / u64::from(self.shards)) as u32
    }
}

/// The state of a shard, for whoever has its ownership.
struct OwnedState(UnsafeCell<Shard>);

// SAFETY: the state is reached only through `Keyspace::shard` and `Keyspace::shard_ref`, which borrow
// the shard's `Ownership`, of which there is never more than one (see `crate::shard::ownership`); the gate's
// acquire and release order one owner's accesses before the next one's. `Shard` is Send.
unsafe impl Sync for OwnedState {}

/// A shard with its gate and its figures. The gate stands with the figures that each command writes in one cache line, since a
/// line that another core has written last is the dearest thing that a command of one key meets.
#[repr(C)]
struct ShardCell {
    gate: Gate<Request>,
    stats: ShardStats,
    state: CachePadded<OwnedState>,
    /// Touched with the state: loom reports who isn't its only owner, or doesn't see what the last one wrote.
    #[cfg(loom)]
    touched: loom::cell::UnsafeCell<()>,
}

const _: () = {
    const LINE_BYTES: usize = 64;
    assert!(offset_of!(ShardCell, stats) + offset_of!(ShardStats, misses) + size_of::<Counter>() <= LINE_BYTES);
};

/// How to reach a worker.
pub struct WorkerPort {
    mailbox: CachePadded<Mailbox<Message>>,
    doorbell: Box<dyn Fn() + Send + Sync>,
}

impl WorkerPort {
    /// A port that rings `doorbell` (any thread, any time, cheap) when its worker sleeps and a message comes.
    pub fn new(doorbell: Box<dyn Fn() + Send + Sync>) -> Self {
        WorkerPort { mailbox: CachePadded::new(Mailbox::new()), doorbell }
    }

    /// Sends a message; rings only when the worker sleeps.
    pub fn send(&self, message: Message) {
        if self.mailbox.send(Node::new(message)) {
            (self.doorbell)();
        }
    }

    /// The mailbox, for the worker itself.
    pub fn mailbox(&self) -> &Mailbox<Message> {
        &self.mailbox
    }
}

/// Numbers of the keyspaces of this process.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// The data of the server: shards, and the tables that lead to them.
pub struct Keyspace {
    shards: Box<[CachePadded<ShardCell>]>,
    /// Figures by physical database times shards plus shard: zero, and not resident, for databases that were never used.
    figures: Box<[DatabaseStats]>,
    /// The home of each partition.
    homes: Box<[u32]>,
    /// Where dictionaries are found for prefetching, in the same order.
    roots: Roots,
    /// Physical databases that were used in any shard.
    used: Box<[AtomicBool]>,
    /// Logical to physical database: what `SWAPDB` swaps. Changed only by the owner of all shards, so that whoever owns any
    /// shard sees it at rest; hint reads may see it change, which costs them a wasted prefetch.
    physical: Box<[AtomicU32]>,
    ports: Arc<[WorkerPort]>,
    layout: Layout,
    id: u32,
    lazy: LazyFree,
    pubsub: PubSub,
    clients: Clients,
    monitors: Monitors,
    slowlog: SlowLog,
    latency: LatencyMonitor,
    tracking: Tracking,
    journal: Journal,
    memory: Memory,
    /// Live settings.
    pub tuning: Tuning,
    /// Requests that found their shard busy, by worker: a count for all would be one more line that goes from core to core just when
    /// they are in each other's way.
    contended: Box<[CachePadded<Counter>]>,
    /// When a script ended that had held all shards for long, in ms of the clock that never goes back.
    all_held_ms: CachePadded<AtomicI64>,
    /// How many random numbers were drawn outside of any shard.
    draws: AtomicU64,
    /// The last ticket of a waiter.
    tickets: CachePadded<AtomicU64>,
    /// Waiters that are to be served when their destination's shard is free.
    served_later: AtomicI64,
}

/// Asserted rather than assumed: the argument above needs it.
const fn assert_send<T: Send>() {}
const _: () = {
    assert_send::<Shard>();
    assert_send::<Request>();
    assert_send::<Message>();
};

impl Keyspace {
    /// An empty keyspace.
    ///
    /// # Panics
    /// When `layout` is out of range: the configuration checks it first.
    pub fn new(layout: Layout, ports: Vec<WorkerPort>) -> Self {
        assert!((1..=SHARDS_MAX as u32).contains(&layout.shards), "shards");
        assert!((layout.shards..=PARTITIONS_MAX as u32).contains(&layout.partitions), "partitions");
        assert!((1..=DATABASES_MAX as u32).contains(&layout.databases), "databases");
        assert!(layout.homes >= 1 && layout.homes <= layout.workers && layout.workers as usize == ports.len());
        // Tables of hashes and sets are hashed with the dictionary's secret.
        pantala_types::table::set_seed(layout.seed);
        let databases = layout.databases as usize;
        let (pubsub, slowlog) = (PubSub::new(ports.len()), SlowLog::new(ports.len()));
        let latency = LatencyMonitor::new(ports.len());
        let journal = Journal::new(ports.len());
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let shards: Box<[_]> = (0..layout.partitions)
            .map(|number| {
                let seed = layout.random_seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                CachePadded::new(ShardCell {
                    gate: Gate::new(number, id),
                    stats: ShardStats::new(),
                    state: CachePadded::new(OwnedState(UnsafeCell::new(Shard::new(databases, seed)))),
                    #[cfg(loom)]
                    touched: loom::cell::UnsafeCell::new(()),
                })
            })
            .collect();
        Keyspace {
            shards,
            figures: zeroed_figures(databases * layout.partitions as usize),
            roots: Roots::new(databases * layout.partitions as usize),
            homes: (0..layout.partitions).map(|partition| layout.home(partition)).collect(),
            used: (0..databases).map(|_| AtomicBool::new(false)).collect(),
            physical: (0..layout.databases).map(AtomicU32::new).collect(),
            contended: ports.iter().map(|_| CachePadded::new(Counter::default())).collect(),
            ports: ports.into(),
            layout,
            id,
            lazy: LazyFree::start(),
            pubsub,
            clients: Clients::new(),
            monitors: Monitors::new(),
            slowlog,
            latency,
            tracking: Tracking::default(),
            journal,
            memory: Memory::new(),
            tuning: Tuning::new(),
            all_held_ms: CachePadded::new(AtomicI64::new(i64::MIN / 2)),
            draws: AtomicU64::new(0),
            tickets: CachePadded::new(AtomicU64::new(0)),
            served_later: AtomicI64::new(0),
        }
    }

    /// Whether the server is a node of a cluster (`cluster-enabled`): a call's keys must then have one slot.
    #[inline]
    pub fn is_cluster(&self) -> bool {
        self.tuning.cluster.load(Relaxed)
    }

    /// How it is laid out.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Number of databases.
    pub fn databases(&self) -> u32 {
        self.layout.databases
    }

    /// Number of partitions: they are numbered from 0.
    #[inline]
    pub fn partition_count(&self) -> u32 {
        self.layout.partitions
    }

    /// The partitions of a shard (below [`Layout::shards`]).
    pub fn partitions_of(&self, shard: u32) -> Range<u32> {
        self.layout.first_partition(shard)..self.layout.first_partition(shard + 1)
    }

    /// Where a key lives.
    #[inline]
    pub fn place(&self, key: &[u8]) -> KeyPlace {
        KeyPlace { hash: hash_key(self.layout.seed, key), shard: self.shard_of_slot(key_slot(key)) }
    }

    /// The partition of a slot: each has a contiguous range of slots, as even as possible.
    #[inline]
    pub fn shard_of_slot(&self, slot: u16) -> u32 {
        u32::from(slot) * self.layout.partitions / SLOTS as u32
    }

    /// The worker that does the periodic work of a partition, and with [`Execution::Owner`] all work: the home of its
    /// shard.
    #[inline]
    pub fn home(&self, shard: u32) -> u32 {
        self.homes[shard as usize]
    }

    /// A handle for prefetching in the selected database of a shard.
    #[inline(always)]
    pub fn hint(&self, db: u32, shard: u32) -> Hint {
        self.roots.hint(self.place_of(shard, self.physical(db)))
    }

    /// Notes that a script has held all shards for so long, until `now_ms`, in the clock that never goes back.
    pub fn note_all_held(&self, took: Duration, now_ms: i64) {
        if took >= ALL_HELD_LONG {
            self.all_held_ms.store(now_ms, Relaxed);
        }
    }

    /// A waiter is to be served later (`by` 1), or that was tried (-1). Called while a shard is held.
    pub(crate) fn count_served_later(&self, by: i64) {
        self.served_later.fetch_add(by, Relaxed);
    }

    /// Whether waiters are on their way to be served: exact for who holds all shards.
    pub fn serves_later(&self) -> bool {
        // Relaxed: it is changed by who holds a shard, which has been handed over since.
        self.served_later.load(Relaxed) > 0
    }

    /// Whether a script has held all shards for long a moment ago, so that the next may be near.
    #[inline]
    pub fn were_all_held(&self, now_ms: i64) -> bool {
        now_ms - self.all_held_ms.load(Relaxed) < ALL_HELD_LATELY_MS
    }

    /// Figures of a shard, readable at any time.
    #[inline]
    pub fn shard_stats(&self, shard: u32) -> &ShardStats {
        &self.shards[shard as usize].stats
    }

    /// Where the figures and the root of a database in a shard stand.
    #[inline]
    fn place_of(&self, shard: u32, physical: usize) -> usize {
        physical * self.shards.len() + shard as usize
    }

    /// Figures of a database in a shard, readable at any time.
    #[inline]
    pub(crate) fn figures(&self, shard: u32, physical: usize) -> &DatabaseStats {
        &self.figures[self.place_of(shard, physical)]
    }

    /// Figures of the databases of a shard that were used in any shard: those of others are zero.
    pub fn shard_figures(&self, shard: u32) -> impl Iterator<Item = &DatabaseStats> {
        self.used().map(move |physical| self.figures(shard, physical))
    }

    /// Figures of a database in all shards, in order.
    fn database_figures(&self, db: u32) -> &[DatabaseStats] {
        let physical = self.physical(db);
        &self.figures[self.place_of(0, physical)..][..self.shards.len()]
    }

    /// The numbers of the databases that were used in any shard, as shards number them. Whoever holds a shard sees all
    /// that were used there.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> {
        // Relaxed: a shard's databases are made by its owner, so the gate orders this for the next one.
        self.used.iter().enumerate().filter(|(_, is_used)| is_used.load(Relaxed)).map(|(physical, _)| physical)
    }

    /// Whether a database was used in any shard, as [`Keyspace::used`].
    pub fn is_used(&self, db: u32) -> bool {
        self.used[self.physical(db)].load(Relaxed)
    }

    /// Figures of a database in a shard, for tests that make them up.
    #[doc(hidden)]
    pub fn invented_figures(&self, db: u32, shard: u32) -> &DatabaseStats {
        self.used[self.physical(db)].store(true, Relaxed);
        self.figures(shard, self.physical(db))
    }

    /// A database for its first use in a shard that the caller holds.
    pub(crate) fn make_database(&self, shard: u32, physical: usize) -> Database {
        self.used[physical].store(true, Relaxed);
        Database::new(self.roots.dict(self.place_of(shard, physical), self.layout.seed))
    }

    /// Keys and keys with an expiry in a database, over all shards.
    pub fn database_size(&self, db: u32) -> (u64, u64) {
        self.database_figures(db)
            .iter()
            .fold((0, 0), |(keys, expires), figures| (keys + figures.keys.get(), expires + figures.expires.get()))
    }

    /// Keys of a database in one shard.
    pub fn shard_size(&self, db: u32, shard: u32) -> u64 {
        self.figures(shard, self.physical(db)).keys.get()
    }

    /// Keys with an expiry of a database in one shard.
    pub fn shard_expires(&self, db: u32, shard: u32) -> u64 {
        self.figures(shard, self.physical(db)).expires.get()
    }

    /// Bytes that a database takes over all shards: its dictionary's, and its large values'.
    pub fn memory_bytes(&self, db: u32) -> (u64, u64) {
        self.database_figures(db)
            .iter()
            .fold((0, 0), |(dict, heap), figures| (dict + figures.dict_bytes.get(), heap + figures.heap_bytes.get()))
    }

    /// A random number in `0..bound` (`bound` above 0) for choices that are made before any shard is held. One sequence
    /// for each [`Layout::random_seed`].
    pub fn random_below(&self, bound: u64) -> u64 {
        // Relaxed: each caller gets a number of its own, and that is all there is to it.
        let draw = self.draws.fetch_add(1, Relaxed);
        Random::from_seed(self.layout.random_seed.wrapping_add(draw)).below(bound)
    }

    /// A ticket for a command that waits: above all that were drawn before.
    pub(crate) fn next_ticket(&self) -> u64 {
        // Relaxed: in one queue they ascend because they are drawn while its shard is held, and what orders one holder
        // after another orders these too.
        self.tickets.fetch_add(1, Relaxed) + 1
    }

    /// Mean remaining time to live that the active expiry last saw in a database, ms; 0 when it saw none.
    pub fn average_ttl_ms(&self, db: u32) -> u64 {
        let (sum, samples) = self.database_figures(db).iter().fold((0u64, 0), |(sum, samples), figures| {
            (sum.saturating_add(figures.ttl_sum_ms.get()), samples + figures.ttl_samples.get())
        });
        sum.checked_div(samples).unwrap_or(0)
    }

    /// How to reach a worker.
    #[inline]
    pub fn port(&self, worker: u32) -> &WorkerPort {
        &self.ports[worker as usize]
    }

    /// All workers' ports.
    pub fn ports(&self) -> &Arc<[WorkerPort]> {
        &self.ports
    }

    /// Who listens to which channel.
    pub fn pubsub(&self) -> &PubSub {
        &self.pubsub
    }

    /// All clients.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Who sees every command.
    #[inline]
    pub fn monitors(&self) -> &Monitors {
        &self.monitors
    }

    /// Returns the journal: the merged stream of effects and its consumers.
    #[inline]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Who tracks which keys.
    pub fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// What the data takes, and what it may.
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Tracked keys, and the readers of all of them together.
    pub fn tracked(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(keys, readers), cell| {
            (keys + cell.stats.tracked_keys.get(), readers + cell.stats.tracked_readers.get())
        })
    }

    /// Commands that took long.
    pub fn slowlog(&self) -> &SlowLog {
        &self.slowlog
    }

    /// What took longer than `latency-monitor-threshold`.
    pub fn latency(&self) -> &LatencyMonitor {
        &self.latency
    }

    /// What frees memory in the background.
    pub fn lazy_free(&self) -> &LazyFree {
        &self.lazy
    }

    /// Swaps two databases. The caller owns all shards.
    pub(crate) fn swap_databases(&self, a: u32, b: u32) {
        let (first, second) = (self.physical(a), self.physical(b));
        self.physical[a as usize].store(second as u32, Relaxed);
        self.physical[b as usize].store(first as u32, Relaxed);
    }

    /// A request of a worker's has found its shard busy. Called by that worker alone.
    pub(crate) fn count_contended(&self, worker: u32) {
        self.contended[worker as usize].add(1);
    }

    /// Requests that found their shard busy.
    pub fn contended(&self) -> u64 {
        self.contended.iter().map(|count| count.get()).sum()
    }

    /// Where a logical database stands in each shard's table.
    #[inline]
    pub(crate) fn physical(&self, db: u32) -> usize {
        self.physical[db as usize].load(Relaxed) as usize
    }

    /// The number by which clients know the database that stands there in each shard's table.
    pub(crate) fn logical(&self, physical: usize) -> u32 {
        (0..self.layout.databases).find(|&db| self.physical(db) == physical).expect("each one has a number")
    }

    /// Asks the processor for a shard's gate, to be written soon, and for the beginning of its state. A hint: it takes nothing from a thread that is about to free it
    /// but time, so it is for the command that runs next or next but one, not for a whole window.
    #[inline]
    pub fn prefetch_gate(&self, shard: u32) {
        let cell = &self.shards[shard as usize];
        prefetch_for_write(&raw const cell.gate);
        prefetch_for_write(&raw const cell.state);
    }

    /// The gate of a shard.
    #[inline]
    pub(crate) fn gate(&self, shard: u32) -> &Gate<Request> {
        &self.shards[shard as usize].gate
    }

    /// The state of the shard that `ownership` stands for.
    #[inline]
    pub(crate) fn shard<'o>(&'o self, ownership: &'o mut Ownership) -> &'o mut Shard {
        assert_eq!(ownership.keyspace(), self.id, "the ownership of another keyspace's shard");
        let cell = &self.shards[ownership.shard() as usize];
        #[cfg(loom)]
        cell.touched.with_mut(|_| ());
        // SAFETY: at most one Ownership of a shard exists (module `ownership`), it is made only by this keyspace's gate of
        // that number (gates are crate-private and called with their own index), and it is borrowed mutably for as long as the
        // reference lives: no second reference to the state can be made meanwhile. The gate's acquire made the previous
        // owner's writes visible.
        unsafe { &mut *cell.state.0.get() }
    }

    /// As [`Keyspace::shard`], to be read.
    pub(crate) fn shard_ref<'o>(&'o self, ownership: &'o Ownership) -> &'o Shard {
        assert_eq!(ownership.keyspace(), self.id, "the ownership of another keyspace's shard");
        #[cfg(loom)]
        self.shards[ownership.shard() as usize].touched.with(|_| ());
        // SAFETY: as in `shard`; the ownership is borrowed for as long as the reference lives, so no mutable reference to
        // the state can be made meanwhile, and shared ones don't conflict.
        unsafe { &*self.shards[ownership.shard() as usize].state.0.get() }
    }

    /// Frees a large value, in the background when `lazy` and worth it.
    pub(crate) fn dispose(&self, value: Value, lazy: bool) {
        /// Below this a value is freed faster than it is sent away.
        const WORTH_SENDING_BYTES: usize = 64 * 1024;
        /// As in Redis.
        const WORTH_SENDING_PIECES: usize = 64;
        if lazy && (value.pieces() > WORTH_SENDING_PIECES || value.allocated_bytes() >= WORTH_SENDING_BYTES) {
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

/// Figures that are all zero. Of many that is memory which the kernel hasn't provided yet.
fn zeroed_figures(count: usize) -> Box<[DatabaseStats]> {
    let layout = std::alloc::Layout::array::<DatabaseStats>(count).expect("databases and partitions are bounded");
    // SAFETY: there is a database and a partition, so the layout isn't empty; the block is the box's from here on, and of
    // the layout with which a box frees such a slice. The figures are counts in atomic words, for which zero bytes are a
    // value: the default one.
    unsafe {
        let start = std::alloc::alloc_zeroed(layout).cast::<DatabaseStats>();
        if start.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, count))
    }
}

/// Asks the processor to load the line that holds `address`, for itself alone. Never faults, whatever the address.
#[inline(always)]
fn prefetch_for_write<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint: it doesn't fault and has no architectural effect for any address. Every 64-bit processor
    // decodes the instruction, those that don't implement it as one that does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: `prfm` is a hint: it doesn't fault and changes neither registers nor memory.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shards_are_even_groups_of_neighbouring_partitions() {
        for (shards, partitions, homes) in
            [(1, 1, 1), (1, 16, 1), (40, 40, 2), (40, 640, 40), (40, 41, 7), (3, 16_384, 3), (16_384, 16_384, 5)]
        {
            let layout = Layout {
                shards,
                partitions,
                databases: 1,
                homes,
                workers: homes,
                execution: Execution::Inline,
                seed: 1,
                random_seed: 1,
            };
            assert_eq!((layout.first_partition(0), layout.first_partition(shards)), (0, partitions));
            let mut sizes: Vec<u32> = Vec::new();
            for shard in 0..shards {
                let group = layout.first_partition(shard)..layout.first_partition(shard + 1);
                assert!(group.clone().all(|partition| layout.shard_of(partition) == shard), "{layout:?} {shard}");
                assert!(group.clone().all(|partition| layout.home(partition) == layout.home(group.start)));
                sizes.push(group.end - group.start);
            }
            let (least, most) = (sizes.iter().min().expect("a shard"), sizes.iter().max().expect("a shard"));
            assert!(*least >= 1 && most - least <= 1, "{layout:?}: {least} to {most}");
            assert_eq!((layout.home(0), layout.home(partitions - 1)), (0, homes - 1));
        }
    }
}
