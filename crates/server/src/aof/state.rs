//! The state of the append-only file that workers, commands and `INFO` see.
//!
//! A *base* is a file with the dataset at one instant. An *increment* is a file with the effects
//! (propagated changes) since then. A *stamp* is a number that gives the position of effects in the
//! order of commits.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pantala_engine::client::Durability;
use pantala_engine::effect::log::Wake;
use pantala_engine::message::Message;
use pantala_engine::tuning::refusal::Refusals;

use super::directory::{Directory, Place, directory_of};
use super::gate::Gate;
use super::inbox::{Confirm, Order};
use super::queue::Queue;
use super::writer::{DELAY_MIN, Handle};
use crate::config::{AofSettings, AppendFsync, Settings};
use crate::host::Server;

/// Whether the append-only file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// The file is not written.
    Off,
    /// Effects are written to an increment, but its base is not complete. A server restarted now
    /// would not load these effects.
    AwaitsBase,
    /// The file is written.
    On,
}

/// Statistics of rewrites (`INFO persistence`).
#[derive(Debug)]
pub struct Rewrites {
    /// Whether a rewrite is running, or a worker is acquiring the shards for it.
    pub is_running: AtomicBool,
    /// When the last rewrite was requested, in ms of the monotonic clock.
    pub since_ms: AtomicI64,
    /// Whether a rewrite is scheduled, because another snapshot is running or because the last
    /// rewrite has failed.
    pub is_scheduled: AtomicBool,
    /// Number of rewrites that have ended since startup.
    pub count: AtomicU64,
    /// Whether the last rewrite was ended because its increment could not be written.
    pub is_increment_failed: AtomicBool,
    /// Number of failed rewrites since the last successful one.
    pub failures: AtomicU64,
    /// When the last failed rewrite ended, in ms of the monotonic clock.
    pub failed_ms: AtomicI64,
    /// The duration of the last rewrite, s; -1 if there was none.
    pub last_took_s: AtomicI64,
}

impl Default for Rewrites {
    fn default() -> Self {
        Rewrites {
            is_running: AtomicBool::new(false),
            since_ms: AtomicI64::new(0),
            is_scheduled: AtomicBool::new(false),
            count: AtomicU64::new(0),
            is_increment_failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
            failed_ms: AtomicI64::new(0),
            last_took_s: AtomicI64::new(-1),
        }
    }
}

/// Sizes of the files, and statistics of writes (`INFO persistence`).
#[derive(Debug, Default)]
pub struct Written {
    /// Size of all files, bytes.
    pub current_bytes: AtomicU64,
    /// Size of all files after the last rewrite, bytes.
    pub base_bytes: AtomicU64,
    /// Number of bytes that were read from the journal but not yet written to the file.
    pub pending_bytes: AtomicU64,
    /// Number of syncs that took so long that they delayed writes.
    pub delayed_syncs: AtomicU64,
    /// Error number of the last write or sync; 0 if it succeeded.
    pub error: AtomicI32,
    /// When the running write or sync began, in ms of the monotonic clock. 0 if none runs, or if
    /// its long duration has been logged.
    pub busy_since_ms: AtomicI64,
    /// Whether writes are rejected until a rewrite has written a new base, because a sync has
    /// failed.
    pub awaits_base: AtomicBool,
}

/// Settings of the append-only file that take effect with the next write, sync or rewrite.
#[derive(Debug, Default)]
pub struct Options {
    /// `aof-timestamp-enabled`.
    pub writes_times: AtomicBool,
    /// `aof-checksums`.
    pub checksums: AtomicBool,
    /// `no-appendfsync-on-rewrite`.
    pub no_fsync_on_rewrite: AtomicBool,
}

/// The state of the append-only file. All threads share this state; the writer thread updates most
/// of its fields.
pub struct Aof {
    state: AtomicU8,
    /// `appendfsync`.
    fsync: AtomicU8,
    /// The other settings.
    pub options: Options,
    /// The stamp below which all effects are on disk.
    synced: AtomicU64,
    /// Decides which replies wait for the disk.
    gate: Arc<Gate>,
    /// Held while a thread sets the gate.
    gate_setter: Mutex<()>,
    /// Number of clients that ask for `CLIENT DURABILITY always`.
    asking: AtomicU64,
    /// For each worker: whether it has waiting replies.
    waiting: Box<[AtomicBool]>,
    /// Rewrites.
    pub rewrites: Rewrites,
    /// Sizes and errors.
    pub written: Written,
    /// The directory and its manifest; `None` until they have been read or created. The lock is
    /// held during operations on files, so no worker may take it.
    place: Mutex<Option<Place>>,
    /// The directory, while the file is on.
    directory: Mutex<Option<Directory>>,
    /// The writer threads that use the files or wait for them.
    pub(super) queue: Arc<Queue>,
    /// The writer thread, if it runs.
    pub(super) writer: Mutex<Option<Handle>>,
    /// Confirmations that wait for a writer thread, because the file was turned on and its first
    /// base has not been started. Changed only while `writer` is locked.
    early: Mutex<Vec<Confirm>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Aof {
    /// Creates the state of a server without an append-only file.
    pub fn new(workers: u32) -> Self {
        Aof {
            state: AtomicU8::new(State::Off as u8),
            fsync: AtomicU8::new(AppendFsync::EverySecond as u8),
            options: Options::default(),
            synced: AtomicU64::new(0),
            gate: Arc::default(),
            gate_setter: Mutex::default(),
            asking: AtomicU64::new(0),
            waiting: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            rewrites: Rewrites::default(),
            written: Written::default(),
            place: Mutex::new(None),
            directory: Mutex::new(None),
            queue: Arc::default(),
            writer: Mutex::new(None),
            early: Mutex::default(),
        }
    }

    /// Returns whether the file is written.
    pub fn state(&self) -> State {
        match self.state.load(Relaxed) {
            0 => State::Off,
            1 => State::AwaitsBase,
            _ => State::On,
        }
    }

    /// Sets whether the file is written. Then recomputes which replies wait.
    pub fn set_state(&self, server: &Server, state: State) {
        self.state.store(state as u8, Relaxed);
        self.set_gates(server);
    }

    /// Returns `appendfsync`.
    pub fn fsync(&self) -> AppendFsync {
        match self.fsync.load(Relaxed) {
            0 => AppendFsync::Always,
            1 => AppendFsync::EverySecond,
            _ => AppendFsync::No,
        }
    }

    /// Sets `appendfsync`.
    pub fn set_fsync(&self, server: &Server, fsync: AppendFsync) {
        self.fsync.store(fsync as u8, Relaxed);
        self.set_gates(server);
        if let Some(handle) = &*lock(&self.writer) {
            handle.wake();
        }
    }

    fn set_gates(&self, server: &Server) {
        let awaited_syncs = (self.gate.awaits_syncs(Durability::Default), self.gate.is_asked());
        self.set_gate(server);
        // Wakes the writer thread, so that it starts or stops syncing for waiting replies at once.
        if (self.gate.awaits_syncs(Durability::Default), self.gate.is_asked()) != awaited_syncs
            && let Some(handle) = &*lock(&self.writer)
        {
            handle.wake();
        }
    }

    /// Sets the gate according to the state of the file, its last error, `appendfsync`, and the
    /// number of clients that ask for `CLIENT DURABILITY always`.
    fn set_gate(&self, server: &Server) {
        let releases = {
            // Threads set the gate one after another, so the last of them has seen the stores of
            // all others.
            let _setter = lock(&self.gate_setter);
            let writes = self.state() != State::Off && self.written.error.load(Relaxed) == 0;
            let awaits_syncs = self.state() == State::On && self.fsync() == AppendFsync::Always;
            let is_asked = self.state() == State::On && self.asking.load(SeqCst) > 0;
            // `|` instead of `||`, because both functions must be called.
            self.gate.set_asked(is_asked) | self.gate.set(writes, awaits_syncs)
        };
        if releases {
            self.release(server);
        }
    }

    /// Counts a client that now asks for `CLIENT DURABILITY always` (`asks` is true), or no longer
    /// asks for it.
    pub fn note_asks_always(&self, server: &Server, asks: bool) {
        if asks {
            self.asking.fetch_add(1, SeqCst);
            return self.set_gates(server);
        }
        // Replies to earlier commands of the client may still be waiting. So the client stays in
        // the count until the effects committed so far have been synced.
        match &*lock(&self.writer) {
            Some(handle) => handle.inbox.order(Order::Unask),
            None => self.note_unasked(server),
        }
    }

    /// Removes a client from the count of those that ask for `CLIENT DURABILITY always`. The caller
    /// guarantees one of these: all effects that the client has seen are durable, the file is off,
    /// or the writer thread is ending.
    pub(super) fn note_unasked(&self, server: &Server) {
        self.asking.fetch_sub(1, SeqCst);
        self.set_gate(server);
    }

    /// Returns whether a reply waits for a sync because its client asked for `CLIENT DURABILITY
    /// always`.
    pub(super) fn is_sync_asked(&self) -> bool {
        self.gate.is_asked() && self.waiting.iter().any(|waits| waits.load(SeqCst))
    }

    /// Calls `confirm` with `true` once all effects committed so far are on disk
    /// ([`Order::Confirm`]). Calls `confirm` with `false` if the file is off or is turned off, or
    /// if the writer thread ends before these effects are on disk.
    pub fn confirm(&self, confirm: Confirm) {
        match (&*lock(&self.writer), self.state()) {
            (_, State::Off) => {}
            (Some(handle), _) => return handle.inbox.order(Order::Confirm(confirm)),
            (None, State::AwaitsBase) => return lock(&self.early).push(confirm),
            (None, State::On) => {}
        }
        confirm(false);
    }

    /// Registers a new writer thread in `writer`, which the caller has locked.
    pub(super) fn register(&self, writer: &mut Option<Handle>, handle: Handle) {
        for confirm in lock(&self.early).drain(..) {
            handle.inbox.order(Order::Confirm(confirm));
        }
        *writer = Some(handle);
    }

    /// Ends the current writer thread, if one runs. The file must be off.
    pub(super) fn stop_writer(&self) {
        let early = {
            let mut writer = lock(&self.writer);
            if let Some(handle) = writer.take() {
                handle.inbox.order(Order::Stop);
            }
            std::mem::take(&mut *lock(&self.early))
        };
        early.into_iter().for_each(|confirm| confirm(false));
    }

    /// Returns a callback that makes replies to writes wait. The journal calls it when the writer
    /// thread is too far behind.
    pub(super) fn warning(&self) -> Wake {
        let gate = Arc::clone(&self.gate);
        Arc::new(move || gate.note_behind())
    }

    /// Records the number of bytes of unwritten effects. If the disk has caught up, releases the
    /// waiting replies.
    pub(super) fn note_unwritten(&self, server: &Server, bytes: u64) {
        if self.gate.note_unwritten(bytes) {
            tracing::warn!("Writes have waited for the append-only file: the disk is slower than the writers");
            self.release(server);
        }
    }

    /// Records the error number of a failed write or sync, or 0 once writing works again.
    pub(super) fn set_write_error(&self, server: &Server, number: i32) {
        self.written.error.store(number, Relaxed);
        reject_writes_on_error(server);
        self.set_gate(server);
    }

    /// Returns the gate, which decides which replies wait.
    #[inline]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Returns the stamp below which replies may be sent ([`Gate::open_below`]). While replies wait
    /// for syncs, all effects with smaller stamps are on disk.
    pub fn synced(&self) -> u64 {
        self.gate.open_below(|| self.synced.load(SeqCst))
    }

    /// Registers a worker whose replies wait for a sync. The worker must then check [`Aof::synced`]
    /// once more. If the writer thread's latest sync has missed the registration, this check sees
    /// the sync's stamp. The writer thread notifies the worker of all later syncs.
    pub fn await_sync(&self, worker: u32) {
        let waited = self.waiting[worker as usize].swap(true, SeqCst);
        // With `appendfsync always`, the writer thread syncs after each batch anyway.
        if !waited
            && self.gate.is_asked()
            && let Some(handle) = &*lock(&self.writer)
        {
            handle.wake();
        }
    }

    /// Records that all effects with stamps below `before` are on disk, and notifies the waiting
    /// workers.
    pub(super) fn note_synced(&self, server: &Server, before: u64) {
        if self.synced.fetch_max(before, SeqCst) < before {
            self.release(server);
        }
    }

    /// Notifies the workers that have waiting replies.
    fn release(&self, server: &Server) {
        for (worker, waits) in self.waiting.iter().enumerate() {
            if waits.load(SeqCst) && waits.swap(false, SeqCst) {
                server.port(worker as u32).send(Message::Synced);
            }
        }
    }

    /// Returns the number of bytes of effects that are not in the file yet, including those that
    /// the writer thread has not read from the journal yet.
    pub fn unwritten_bytes(&self) -> u64 {
        let unread = lock(&self.writer).as_ref().map_or(0, Handle::unread_bytes);
        unread + self.written.pending_bytes.load(Relaxed)
    }

    /// Logs a write or sync that has taken longer than [`DELAY_MIN`], once. Worker 0 calls this
    /// function several times a second.
    pub fn warn_if_stalled(&self, server: &Server) {
        let since_ms = self.written.busy_since_ms.load(Relaxed);
        let is_stalled = since_ms != 0 && server.monotonic_ms() - since_ms > DELAY_MIN.as_millis() as i64;
        // If the write has ended meanwhile, it is not logged.
        if is_stalled && self.written.busy_since_ms.compare_exchange(since_ms, 0, Relaxed, Relaxed).is_ok() {
            tracing::warn!(
                "Writing the AOF is taking too long (disk is busy?). Unless appendfsync is 'always', the latest \
                 acknowledged writes are only in memory."
            );
        }
    }

    /// Returns the error of the last write or sync; `None` if it succeeded.
    pub fn write_error(&self) -> Option<io::Error> {
        match self.written.error.load(Relaxed) {
            0 => None,
            number => Some(io::Error::from_raw_os_error(number)),
        }
    }

    /// Returns the directory of the files: the one in use or, if the file is off, the one that the
    /// settings name.
    pub(super) fn directory(&self, settings: &Settings) -> Directory {
        lock(&self.directory).clone().unwrap_or_else(|| directory_of(settings))
    }

    /// Sets the directory in use; `None` if the file is off.
    pub(super) fn set_directory(&self, directory: Option<Directory>) {
        *lock(&self.directory) = directory;
    }

    /// Returns the directory and the manifest, locked.
    pub(super) fn place(&self) -> MutexGuard<'_, Option<Place>> {
        lock(&self.place)
    }
}

/// Publishes the settings of the append-only file.
pub fn tune(server: &Server, settings: &AofSettings) {
    let aof = &server.snapshots().aof;
    aof.options.writes_times.store(settings.writes_times, Relaxed);
    aof.options.checksums.store(settings.checksums, Relaxed);
    aof.options.no_fsync_on_rewrite.store(settings.no_fsync_on_rewrite, Relaxed);
    aof.set_fsync(server, settings.fsync);
}

/// Makes the server reject writes if the last write or sync has failed, and accept them otherwise.
fn reject_writes_on_error(server: &Server) {
    let number = server.snapshots().aof.written.error.load(Relaxed);
    let is_full = number == rustix::io::Errno::NOSPC.raw_os_error();
    let tuning = &server.keyspace().tuning;
    tuning.set_refusals(Refusals::DISK_FULL, is_full);
    tuning.set_refusals(Refusals::DISK_ERROR, number != 0 && !is_full);
}
