//! All partitions, and the state that they share. All workers have a reference to one [`Keyspace`].
//!
//! # Words
//!
//! The key space is divided twice. A *partition* is the unit of ownership: a range of slots with
//! its gate, dictionaries, blocked clients and statistics. A *shard* is what users configure
//! (`--shards N`, `INFO shards`): a group of neighbouring partitions, all assigned to one worker,
//! their *home*. Nearly all code deals with partitions only, but calls them shards ([`Shard`],
//! `KeyPlace::shard`, …), because at first each shard was a single partition. Where both occur, the
//! names are exact: [`Layout::shards`] and [`Layout::partitions`], [`Store::partitions_of`].
//!
//! [The crate's page](crate) defines the other words: gate, request, waiter, window.

use std::cell::UnsafeCell;
use std::mem::offset_of;
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use crossbeam::utils::CachePadded;
use pantala_base::limits::{DATABASES_MAX, PARTITIONS_MAX, SHARDS_MAX};
use pantala_base::{Counter, numa};

use crate::acl::Catalog;
use crate::effect::log::{NotHeld, Start, Wake};
use crate::effect::{Journal, Reader, Which};
use crate::events::Workers;
use crate::shard::expire::ExpiryStats;
pub use crate::shard::hot::HotReadCount;
use crate::shard::message::Message;
use crate::shard::ownership::{Gate, Ownership};
use crate::shard::permissions::Permissions;
pub use crate::shard::port::WorkerPort;
use crate::shard::request::{Backlog, Request};
use crate::shard::whole::Storage;
use crate::store::Store;
pub use crate::store::layout::{Execution, Layout};
use crate::store::state::{Shard, ShardStats};

/// If a script has held all shards for at least this long, another such script is expected soon.
/// While it is expected, a connection whose last command waited for a shard sends its next commands
/// together, as one request. A request costs more than running the commands directly, so this pays
/// only if the commands would wait for a long time.
const ALL_HELD_LONG: Duration = Duration::from_micros(100);

/// Time in ms, from the end of such a script, during which another one is expected. It is many
/// times the gap between two scripts of a connection that sends only scripts.
const ALL_HELD_RECENTLY_MS: i64 = 10;

/// State of a shard that only its owner may access.
#[repr(C)]
struct Owned {
    state: Shard,
    /// Requests taken from the gate's queue that still wait for the shard.
    backlog: Backlog,
}

/// The state of a shard. Accessible only with the shard's ownership.
struct OwnedState(UnsafeCell<Owned>);

// SAFETY: the state is reached only through `ShardCell::owned` and `Keyspace::shard_ref`. Both
// functions borrow the shard's `Ownership`, of which at most one exists (see
// `crate::shard::ownership`). The gate's acquire and release order the accesses of one owner before
// those of the next. `Owned` is Send.
unsafe impl Sync for OwnedState {}

/// A shard with its gate and statistics. The gate shares a cache line with the statistics that each
/// command writes. Most of the cost of a one-key command is fetching cache lines that another core
/// has modified.
#[repr(C)]
pub(crate) struct ShardCell {
    gate: Gate<Request>,
    stats: ShardStats,
    state: CachePadded<OwnedState>,
    /// Accessed whenever the state is accessed. Loom reports an access by a thread that is not the
    /// owner, or that has not seen the writes of the last owner.
    #[cfg(loom)]
    touched: loom::cell::UnsafeCell<()>,
}

const _: () = {
    const LINE_BYTES: usize = 64;
    assert!(offset_of!(ShardCell, stats) + offset_of!(ShardStats, misses) + size_of::<u64>() <= LINE_BYTES);
};

impl ShardCell {
    /// Returns the shard's gate.
    #[inline]
    pub(crate) fn gate(&self) -> &Gate<Request> {
        &self.gate
    }

    /// Returns the shard's statistics, which any thread may read.
    #[inline]
    pub(crate) fn stats(&self) -> &ShardStats {
        &self.stats
    }

    /// Returns the shard's state. `ownership` proves that the caller owns the shard.
    ///
    /// # Panics
    /// If `ownership` belongs to another shard or another keyspace.
    #[inline]
    pub(crate) fn state<'o>(&'o self, ownership: &'o mut Ownership) -> &'o mut Shard {
        &mut self.owned(ownership).state
    }

    /// Returns the shard's backlog. Requires the shard's ownership and panics like
    /// [`ShardCell::state`].
    #[inline]
    pub(crate) fn backlog<'o>(&'o self, ownership: &'o mut Ownership) -> &'o mut Backlog {
        &mut self.owned(ownership).backlog
    }

    #[inline]
    fn owned<'o>(&'o self, ownership: &'o mut Ownership) -> &'o mut Owned {
        assert!(self.gate.is_of(ownership), "the ownership of another shard");
        #[cfg(loom)]
        self.touched.with_mut(|_| ());
        // SAFETY: at most one Ownership of a shard exists (module `ownership`). IDs of gates are
        // unique in the process, so the assertion above shows that `ownership` is that of this
        // cell's shard. `ownership` is borrowed mutably for as long as the returned reference
        // lives, so no second reference to the state can be created meanwhile. The gate's acquire
        // made the previous owner's writes visible.
        unsafe { &mut *self.state.0.get() }
    }
}

/// The empty catalog of commands, used until the server sets one.
static NO_COMMANDS: LazyLock<Catalog> = LazyLock::new(Catalog::empty);

/// Number of the next keyspace of this process.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

/// The data of the server: the shards, and the state that all of them share. The [`Store`] is the
/// part of that state which does not depend on gates, requests or the journal.
pub struct Keyspace {
    shards: Box<[CachePadded<ShardCell>]>,
    store: Store,
    ports: Arc<[WorkerPort]>,
    id: u32,
    pub(super) permissions: Permissions,
    journal: Journal,
    /// Number of requests that found a shard busy, by worker. If all workers shared one counter,
    /// its cache line would move between cores exactly when they contend for shards.
    contended: Box<[CachePadded<Counter>]>,
    /// Number of reads of published values.
    pub hot: HotReadCount,
    /// The last script that held all shards for long.
    pub all_held: CachePadded<AllHeld>,
    /// Last ticket drawn by a waiter.
    tickets: CachePadded<AtomicU64>,
    /// Number of pending requests (`Task::Serve`) that will serve a client blocked in a command
    /// with a destination key (`BLMOVE`). Such a request takes two shards: those of the source and
    /// of the destination.
    pub deferred_waiters: Returning,
    /// Number of requests that a script has reset (`shard::release_during_script`) and that have
    /// not run since. Such a request may be in no gate.
    pub reset_requests: Returning,
    /// Number of times that the workers were called to walk their shards for a snapshot
    /// ([`Keyspace::call_walkers`]).
    snapshots: CachePadded<AtomicU64>,
    /// The file storage, if the server has one.
    storage: OnceLock<Box<dyn Storage>>,
    /// Statistics of active expiry.
    pub expiry: ExpiryStats,
}

/// End of the last script that held all shards for long, in ms of the monotonic clock.
pub struct AllHeld(AtomicI64);

impl AllHeld {
    /// Records that a script held all shards for `took`, until `now_ms` (monotonic clock). Ignores
    /// a short `took`.
    pub fn note(&self, took: Duration, now_ms: i64) {
        if took >= ALL_HELD_LONG {
            self.0.store(now_ms, Relaxed);
        }
    }

    /// Returns whether a script has recently held all shards for long, so that another one is
    /// expected.
    #[inline]
    pub fn is_recent(&self, now_ms: i64) -> bool {
        now_ms - self.0.load(Relaxed) < ALL_HELD_RECENTLY_MS
    }
}

/// Number of requests in flight that have yet to take shards.
#[derive(Default)]
pub struct Returning(AtomicI64);

impl Returning {
    /// Adds `by` to the number. Called while a shard is held, except after a rejection.
    pub(crate) fn count(&self, by: i64) {
        self.0.fetch_add(by, Relaxed);
    }

    /// Returns whether there is such a request. Exact for a caller that holds all shards.
    pub fn are_there(&self) -> bool {
        // Relaxed: a request is counted while some shard is held. A caller that holds all shards
        // has acquired that shard after the write, so the shard's gate orders the write before this
        // load. The result may still include a request that was rejected shortly before, because a
        // rejection holds no shard.
        self.0.load(Relaxed) > 0
    }
}

impl Deref for Keyspace {
    type Target = Store;

    #[inline(always)]
    fn deref(&self) -> &Store {
        &self.store
    }
}

/// Requires at compile time that `T` is `Send`. `unsafe impl Sync for OwnedState` relies on this
/// for `Owned`. Gates and mailboxes need it for the values that they pass between threads.
const fn assert_send<T: Send>() {}
const _: () = {
    assert_send::<Owned>();
    assert_send::<Request>();
    assert_send::<Message>();
};

impl Keyspace {
    /// Returns an empty keyspace.
    ///
    /// # Panics
    /// If `layout` is out of range. The caller has checked the configuration.
    pub fn new(layout: Layout, ports: Vec<WorkerPort>) -> Self {
        assert!((1..=SHARDS_MAX as u32).contains(&layout.shards), "invalid number of shards");
        assert!((layout.shards..=PARTITIONS_MAX as u32).contains(&layout.partitions), "invalid number of partitions");
        assert!((1..=DATABASES_MAX as u32).contains(&layout.databases), "invalid number of databases");
        assert!(layout.homes >= 1 && layout.homes <= layout.workers && layout.workers as usize == ports.len());
        // The hash tables inside hash and set values use the dictionary's seed too.
        pantala_types::table::set_seed(layout.seed);
        let databases = layout.databases as usize;
        let id = NEXT_ID.fetch_add(1, Relaxed);
        let shards: Box<[_]> = (0..layout.partitions)
            .map(|number| {
                let seed = layout.random_seed ^ u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let owned = Owned { state: Shard::new(databases, seed), backlog: Backlog::new() };
                CachePadded::new(ShardCell {
                    gate: Gate::new(number, id),
                    stats: ShardStats::new(),
                    state: CachePadded::new(OwnedState(UnsafeCell::new(owned))),
                    #[cfg(loom)]
                    touched: loom::cell::UnsafeCell::new(()),
                })
            })
            .collect();
        let ports: Arc<[WorkerPort]> = ports.into();
        let workers: Arc<dyn Workers> = Arc::new(Arc::clone(&ports));
        Keyspace {
            shards,
            store: Store::new(layout, workers),
            id,
            permissions: Permissions::new(&NO_COMMANDS, |_, _| Vec::new()),
            journal: Journal::new(ports.len()),
            contended: ports.iter().map(|_| CachePadded::new(Counter::default())).collect(),
            hot: HotReadCount::new(ports.len()),
            ports,
            all_held: CachePadded::new(AllHeld(AtomicI64::new(i64::MIN / 2))),
            tickets: CachePadded::new(AtomicU64::new(0)),
            deferred_waiters: Returning::default(),
            reset_requests: Returning::default(),
            snapshots: CachePadded::new(AtomicU64::new(0)),
            storage: OnceLock::new(),
            expiry: ExpiryStats::default(),
        }
    }

    /// Places the entries of each worker's shards on the worker's NUMA node. `nodes` has a node for
    /// each home, or is empty. Must be called before the keyspace is used.
    pub fn place_entries(&mut self, nodes: &[numa::Node]) {
        self.store.place_entries(nodes);
    }

    /// Sets the file storage for commands. Only the first call has an effect.
    pub fn set_storage(&self, storage: Box<dyn Storage>) {
        // The error of a second call can be ignored: a keyspace belongs to one server, which calls
        // this once.
        let _ = self.storage.set(storage);
    }

    /// Returns the file storage, if the server has one.
    pub fn storage(&self) -> Option<&dyn Storage> {
        self.storage.get().map(|storage| &**storage)
    }

    /// Returns how often the workers were called to walk their home shards for a snapshot. A worker
    /// that sees a new number starts to walk.
    #[inline]
    pub fn snapshots(&self) -> u64 {
        // Relaxed: each worker is sent a message after the change, and sees the change once it has
        // received that message. The gates order the worker's later reads of the shards.
        self.snapshots.load(Relaxed)
    }

    /// Makes all workers, which may be asleep, walk their home shards for a snapshot. Called when a
    /// snapshot has started, and when a command has moved a value to another key before the
    /// snapshot has read all of it.
    pub(crate) fn call_walkers(&self) {
        self.snapshots.fetch_add(1, Relaxed);
        self.ports().iter().for_each(|port| port.send(Message::Snapshot));
    }

    /// Returns the number of changes of keys by commands since the start.
    pub fn changes(&self) -> u64 {
        (0..self.partition_count()).map(|shard| self.shard_stats(shard).changes.get()).sum()
    }

    /// Returns the statistics of a shard. Any thread may read them at any time.
    #[inline]
    pub fn shard_stats(&self, shard: u32) -> &ShardStats {
        &self.shards[shard as usize].stats
    }

    /// Returns a ticket for a command that blocks. It is higher than all tickets drawn before.
    pub(crate) fn next_ticket(&self) -> u64 {
        // Relaxed: a ticket is drawn while the shard of the key's queue is held. Successive owners
        // of a shard are ordered by its gate, so the tickets in each queue ascend.
        self.tickets.fetch_add(1, Relaxed) + 1
    }

    /// Returns a worker's port.
    #[inline]
    pub fn port(&self, worker: u32) -> &WorkerPort {
        &self.ports[worker as usize]
    }

    /// Returns all workers' ports.
    pub fn ports(&self) -> &Arc<[WorkerPort]> {
        &self.ports
    }

    /// Returns the journal: the merged stream of effects and its readers.
    #[inline]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Adds a reader of the merged stream of effects. The reader is cut off when it is more than
    /// `bytes_max` bytes behind.
    ///
    /// # Errors
    /// The journal's thread cannot be started, or the log no longer contains `start`.
    pub fn read_journal(
        &self,
        start: Start,
        bytes_max: Arc<AtomicU64>,
        wake: Wake,
    ) -> std::io::Result<Result<Reader, NotHeld>> {
        self.journal.join(&self.tuning, (Which::Stream, start), bytes_max, wake)
    }

    /// Removes a reader of a log of the journal. Without readers nothing is recorded.
    pub fn leave_journal(&self, reader: &Reader) {
        self.journal.leave(&self.tuning, reader);
    }

    /// Sets whether the stream is recorded, and its backlog kept, even while it has no readers.
    ///
    /// # Errors
    /// The journal's thread cannot be started.
    pub fn keep_journal(&self, is_kept: bool) -> std::io::Result<()> {
        self.journal.keep(&self.tuning, is_kept)
    }

    /// Returns the number of keys that clients track, and the number of pairs of a tracked key and
    /// a client.
    pub fn tracked(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(keys, readers), cell| {
            (keys + cell.stats.tracked_keys.get(), readers + cell.stats.tracked_readers.get())
        })
    }

    /// Counts a request of this worker that found a shard busy. Called only by the worker itself.
    pub(crate) fn count_contended(&self, worker: u32) {
        self.contended[worker as usize].add(1);
    }

    /// Returns the number of requests that found a shard busy.
    pub fn contended(&self) -> u64 {
        self.contended.iter().map(|count| count.get()).sum()
    }

    /// Prefetches a shard's gate for writing, and the start of its state. If another thread holds
    /// the shard, the prefetch takes the gate's cache line from that thread and so delays the
    /// release. Therefore callers prefetch for the next one or two commands, not for a whole
    /// window.
    #[inline]
    pub fn prefetch_gate(&self, shard: u32) {
        let cell = &self.shards[shard as usize];
        prefetch_for_write(&raw const cell.gate);
        prefetch_for_write(&raw const cell.state);
    }

    /// Returns a shard's cell: its gate, statistics and state, by one lookup.
    #[inline(always)]
    pub(crate) fn cell(&self, shard: u32) -> &ShardCell {
        &self.shards[shard as usize]
    }

    /// Returns the gate of a shard.
    #[inline]
    pub(crate) fn gate(&self, shard: u32) -> &Gate<Request> {
        &self.shards[shard as usize].gate
    }

    /// Returns the state of the shard that `ownership` owns.
    #[inline]
    pub(crate) fn shard<'o>(&'o self, ownership: &'o mut Ownership) -> &'o mut Shard {
        self.cell(ownership.shard()).state(ownership)
    }

    /// Returns the backlog of the shard that `ownership` owns.
    #[inline]
    pub(crate) fn backlog<'o>(&'o self, ownership: &'o mut Ownership) -> &'o mut Backlog {
        self.cell(ownership.shard()).backlog(ownership)
    }

    /// Returns the state of the shard that `ownership` owns, for reading.
    pub(crate) fn shard_ref<'o>(&'o self, ownership: &'o Ownership) -> &'o Shard {
        assert_eq!(ownership.keyspace(), self.id, "the ownership of another keyspace's shard");
        #[cfg(loom)]
        self.shards[ownership.shard() as usize].touched.with(|_| ());
        // SAFETY: at most one Ownership of a shard exists. `ownership` belongs to this keyspace, as
        // asserted above, and is borrowed for as long as the returned reference lives. So no
        // mutable reference to the state can be created meanwhile, and shared references do not
        // conflict.
        unsafe { &(*self.shards[ownership.shard() as usize].state.0.get()).state }
    }
}

/// Prefetches the line that contains `address` for writing. Never faults, whatever the address.
#[inline(always)]
fn prefetch_for_write<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch is a hint. It does not fault and has no architectural effect for any
    // address. Every 64-bit processor decodes the instruction. A processor that does not implement
    // the instruction treats it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: `prfm` is a hint. It does not fault and changes neither registers nor memory.
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}
