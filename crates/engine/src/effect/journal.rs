//! The journal: merges all workers' streams into one. Terms: see [`crate::effect`].
//!
//! An *eager* reader does not wait for the journal's thread, but ends epochs itself
//! ([`Reader::set_eager`]). So two threads can end an epoch, one at a time: the journal's thread,
//! and the thread that owns an eager reader. The thread that ends an epoch is the *merging thread*.
//!
//! | data | written by | read by |
//! | --- | --- | --- |
//! | the epoch | the merging thread | workers, once a turn and for each stamp |
//! | a worker's attendance: the epoch that it last saw between two turns, or [`ASLEEP`] | that worker | the merging thread |
//! | a worker's segment, behind a lock | that worker, at the end of a turn | the merging thread |
//! | the two logs ([`logs`]), behind a lock | the merging thread, the primary's link | readers |
//!
//! Both locks are rarely contended. A worker that hands over units takes the logs' lock in two
//! cases only: to wake a thread that ends the epoch (for the first units of the epoch), and to warn
//! readers ([`HANDED_OVER_BYTES_MAX`]).
//!
//! Attendance and epoch work as in Dekker's algorithm. A worker that wakes writes its attendance
//! and then reads the epoch again. The merging thread writes the epoch and then reads the
//! attendance. All operations are sequentially consistent, so at least one of the two sees the
//! other's write. Therefore no worker runs commands in an epoch that the merging thread considers
//! ended.
//!
//! # Memory
//!
//! A reader's *bound* is the maximum number of bytes that it may be behind. The bound covers unread
//! bytes of the log, and bytes that workers have handed over since the last merge. So memory stays
//! bounded even while a long turn delays the end of an epoch. If every reader exceeds its bound,
//! workers drop the units that they have recorded.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;
use pantala_base::BufferPool;

use crate::effect::batch::encode;
use crate::effect::log::{DeferredWork, EpochEnder, NotHeld, Start, Wake};
use crate::effect::piece::Piece;
use crate::effect::segment::{Segment, Stream};
use crate::tuning::Tuning;

mod logs;
mod merger;
mod reader;
mod spilling;
#[cfg(all(test, not(loom)))]
mod tests;

use logs::Logs;
pub use logs::Which;
use merger::{Merger, Merging, Replicas};
pub use reader::{Lag, Reader};
pub use spilling::Spilling;

/// Number of low bits of a stamp, which count the units of an epoch. (The high bits are the epoch's
/// number.) If an epoch has more units than these bits can count, the further units get stamps of
/// the next epoch. They are then delivered one epoch later, which has no other effect.
const EPOCH_SHIFT: u32 = 24;

/// Attendance of a sleeping worker.
const ASLEEP: u64 = u64::MAX;

/// Minimum time between two deliveries by the journal's thread. The units of this time form one
/// epoch.
const EPOCH_TIME: Duration = Duration::from_millis(1);

/// Interval between two checks of a worker whose turn has not ended.
const ATTENDANCE_POLL: Duration = Duration::from_micros(50);

/// Number of attendance checks between two checks of the readers' bounds.
const POLLS_PER_BOUND: u32 = 20;

/// If a worker's segment has at least this length in bytes, the worker itself warns readers that
/// are far behind. The journal's thread may be too slow for that.
const HANDED_OVER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// State behind the journal's lock.
struct Control {
    logs: Logs,
    /// How many of the bytes counted in [`Shared::handed_over`] have been merged or dropped.
    merged_bytes: u64,
    is_stopping: bool,
    thread: Option<JoinHandle<()>>,
    /// Whether the journal's thread sleeps until it is notified. False while the thread gathers
    /// units.
    thread_sleeps: bool,
    /// When the last epoch was delivered.
    delivered: Instant,
    /// When the last `PING` was appended.
    pinged: Instant,
    /// Marks ([`Journal::mark`]) that the stream has not reached.
    marks: Vec<Mark>,
}

/// A point in the stream after everything that was committed before the mark was requested.
struct Mark {
    /// Whether the mark is reached when the current epoch has ended. False for a mark that was
    /// requested after the end of this epoch had started.
    is_due: bool,
    /// Whether replicas are asked for an acknowledgement at the mark.
    asks: bool,
    reached: Box<dyn FnOnce(u64) + Send>,
}

/// Command in the stream that shows replicas that the link is alive.
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// Command in the stream that asks replicas for an acknowledgement.
const GET_ACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";

/// State shared by the journal, its thread and its readers.
struct Shared {
    epoch: CachePadded<AtomicU64>,
    attendance: Box<[CachePadded<AtomicU64>]>,
    segments: Box<[CachePadded<Mutex<Segment>>]>,
    /// Bytes of all units that each worker has handed over.
    handed_over: Box<[CachePadded<AtomicU64>]>,
    /// Whether workers have handed over units that no thread has collected.
    has_units: AtomicBool,
    /// Whether any reader needs the units that workers record.
    is_wanted: AtomicBool,
    /// Stamp of the latest unit whose command held no shard.
    without_shards: AtomicU64,
    /// See [`Journal::order_libraries`].
    libraries: Mutex<()>,
    replicas: Replicas,
    /// Locked before `control` by the merging thread.
    merging: Mutex<Merging>,
    control: Mutex<Control>,
    work: Condvar,
    /// Memory of the logs and segments, for reuse.
    pool: Arc<BufferPool>,
    /// Bytes that the merging thread has taken from the segments and not yet appended to the log.
    merging_bytes: AtomicU64,
    /// Whether the current epoch must end even if it has no units ([`Journal::demand`]).
    is_demanded: AtomicBool,
}

impl Shared {
    /// Wakes a thread that then ends the epoch: an eager reader that sleeps, or the journal's
    /// thread if no eager reader will end the epoch soon. The caller has set a flag, which these
    /// threads check under the lock before they sleep. So a thread that is still awake, and is not
    /// woken here, sees the flag.
    #[cold]
    fn request_epoch_end(&self) {
        let mut control = lock(&self.control);
        match control.logs.of_mut(Which::Effects).epoch_ender() {
            EpochEnder::ToWake(wake) => {
                drop(control);
                wake();
            }
            EpochEnder::None if control.thread_sleeps => self.work.notify_one(),
            EpochEnder::None | EpochEnder::Woken => {}
        }
    }
}

/// The journal of a keyspace. See the head of this module.
pub struct Journal {
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Returns a journal without readers. The journal's thread is started for the first reader.
    pub(crate) fn new(workers: usize) -> Self {
        let pool = Arc::default();
        let shared = Shared {
            epoch: CachePadded::new(AtomicU64::new(1)),
            attendance: (0..workers).map(|_| CachePadded::new(AtomicU64::new(ASLEEP))).collect(),
            segments: (0..workers).map(|_| CachePadded::new(Mutex::default())).collect(),
            handed_over: (0..workers).map(|_| CachePadded::default()).collect(),
            has_units: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            without_shards: AtomicU64::new(0),
            libraries: Mutex::new(()),
            replicas: Replicas::default(),
            merging: Mutex::new(Merging::new(workers)),
            control: Mutex::new(Control {
                logs: Logs::new(&pool),
                merged_bytes: 0,
                is_stopping: false,
                thread: None,
                thread_sleeps: false,
                delivered: Instant::now(),
                pinged: Instant::now(),
                marks: Vec::new(),
            }),
            work: Condvar::new(),
            pool,
            merging_bytes: AtomicU64::new(0),
            is_demanded: AtomicBool::new(false),
        };
        Journal { shared: Arc::new(shared) }
    }

    /// Returns the pool from which streams take their memory.
    pub(crate) fn pool(&self) -> &Arc<BufferPool> {
        &self.shared.pool
    }

    /// Returns the smallest stamp of the current epoch.
    pub(crate) fn epoch_floor(&self) -> u64 {
        // Relaxed: a worker that has attended an epoch has read the epoch's number from this word.
        // Later loads of the same thread return no earlier value.
        self.shared.epoch.load(Ordering::Relaxed) << EPOCH_SHIFT
    }

    /// Sets the interval between `PING`s, which show replicas that the link is alive.
    pub fn set_ping_period(&self, period: Duration) {
        // The lock is held, so the thread cannot miss the change between its check and its wait.
        let _control = lock(&self.shared.control);
        self.shared.replicas.ping_period_ms.store(period.as_millis() as u64, Ordering::Relaxed);
        self.shared.work.notify_one();
    }

    /// Sets whether there are replicas. If there are, the stream contains periodic `PING`s.
    pub fn set_replicas(&self, are_there: bool) {
        // The lock is held, so the thread cannot miss the change between its check and its wait.
        let _control = lock(&self.shared.control);
        self.shared.replicas.are_there.store(are_there, Ordering::Relaxed);
        self.shared.work.notify_one();
    }

    /// Makes the next recorded stream start at `offset`, the end of an earlier stream. Must be
    /// called before there are readers.
    pub fn continue_at(&self, offset: u64) {
        lock(&self.shared.control).logs.of_mut(Which::Stream).continue_at(offset);
    }

    /// Calls `reached` with the offset of the stream's end, once the stream contains everything
    /// that was committed before this call. If `asks` is true, the stream then asks replicas for an
    /// acknowledgement. `reached` runs on the merging thread and must be cheap. If no reader needs
    /// this server's units, `reached` is called immediately, on the caller's thread.
    pub fn mark(&self, asks: bool, reached: Box<dyn FnOnce(u64) + Send>) {
        let mut control = lock(&self.shared.control);
        if control.thread.is_none() || !control.logs.want_units() {
            let end = control.logs.held().0.end;
            drop(control);
            return reached(end);
        }
        control.marks.push(Mark { is_due: false, asks, reached });
        self.shared.work.notify_one();
    }

    /// Returns an offset in the stream that all effects with stamps below `before` precede. Returns
    /// `None` if some of these effects may not be in the stream yet.
    pub fn offset_after(&self, before: u64) -> Option<u64> {
        lock(&self.shared.control).logs.of(Which::Stream).offset_after(before)
    }

    /// Sets the size of the backlog in bytes. [`Journal::keep`] sets whether the backlog is kept.
    pub fn set_backlog(&self, bytes: u64) {
        lock(&self.shared.control).logs.of_mut(Which::Stream).set_backlog(bytes);
    }

    /// Sets the maximum number of bytes that a replica may be behind without being cut off.
    pub fn set_replica_bound(&self, bytes_max: u64) {
        self.shared.replicas.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Returns a shared reference to the limit that [`Journal::set_replica_bound`] sets.
    pub fn replica_bound(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.replicas.bytes_max)
    }

    /// Returns the range of offsets that are in the stream's log, in memory or on disk, and whether
    /// the stream has readers. Without readers the log is empty, and offsets do not advance.
    pub fn held(&self) -> (Range<u64>, bool) {
        lock(&self.shared.control).logs.held()
    }

    /// Returns the offset of the stream's end plus the number of bytes that workers have handed
    /// over and that are not merged yet. The sum includes the effects of every command whose reply
    /// a client has seen, but not the `SELECT`s that merging will add. Returns exactly the stream's
    /// end if nothing is pending, if the stream has no reader, or if it consists of a primary's
    /// bytes.
    pub fn end_with_pending(&self) -> u64 {
        let (end, merged_bytes) = {
            let control = lock(&self.shared.control);
            let (held, is_recorded) = control.logs.held();
            if !control.logs.are_own() || !is_recorded {
                return held.end;
            }
            (held.end, control.merged_bytes)
        };
        // The counters of handed-over bytes are read after the number of merged bytes, so that they
        // include at least the merged bytes.
        let handed_over = self.shared.handed_over.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum::<u64>();
        end + handed_over.saturating_sub(merged_bytes)
    }

    /// Appends a command to the stream without running it on this server (`DEBUG REPLICATE`). Does
    /// nothing while the stream is not recorded, or consists of a primary's bytes.
    pub fn append_command(&self, words: &[&[u8]]) {
        let mut command = Vec::new();
        encode(&mut command, words.len(), words.iter().copied());
        let aftermath = lock(&self.shared.control).logs.append_own(Piece::Own(command));
        aftermath.settle();
    }

    /// Appends bytes of the primary's stream whose commands this server has run.
    pub fn relay(&self, bytes: Vec<u8>) {
        let aftermath = lock(&self.shared.control).logs.relay(bytes);
        aftermath.settle();
    }

    /// Returns whether the stream consists of this server's units, and not of a primary's bytes.
    pub fn has_own_stream(&self) -> bool {
        lock(&self.shared.control).logs.are_own()
    }

    /// Returns the memory usage of the stream in bytes: parts that readers or the backlog need, and
    /// parts that are being sent.
    pub fn memory_bytes(&self) -> u64 {
        lock(&self.shared.control).logs.of(Which::Stream).memory_bytes()
    }

    /// Returns the memory usage in bytes of the effects that the append-only file has not received,
    /// or of the stream, whichever is larger. A sum would count shared memory twice.
    pub fn unread_memory_bytes(&self) -> u64 {
        let control = lock(&self.shared.control);
        control.logs.of(Which::Effects).memory_bytes().max(control.logs.of(Which::Stream).memory_bytes())
    }

    /// Returns the latest stamp of a unit whose command holds no shard (`FUNCTION LOAD`,
    /// `PUBLISH`). The units of all such commands that have been answered are included.
    pub(crate) fn latest_without_shards(&self) -> u64 {
        self.shared.without_shards.load(Ordering::Acquire)
    }

    pub(crate) fn note_without_shards(&self, stamp: u64) {
        self.shared.without_shards.fetch_max(stamp, Ordering::AcqRel);
    }

    /// Locks the function libraries, whose changes hold no shard. A thread that changes them keeps
    /// the lock until its unit is committed. A thread that makes a cut keeps the lock until it has
    /// copied the libraries for the snapshot. Must be called after shards are taken, never before.
    pub fn order_libraries(&self) -> MutexGuard<'_, ()> {
        lock(&self.shared.libraries)
    }

    /// Returns the first stamp of the next epoch, which is later than the stamps of all units
    /// committed so far.
    pub fn epoch_end(&self) -> u64 {
        (self.shared.epoch.load(Ordering::SeqCst) + 1) << EPOCH_SHIFT
    }

    /// Makes the current epoch end soon. Called when a reply, or the writer of the append-only
    /// file, waits for units of this epoch.
    pub fn demand(&self) {
        if !self.shared.is_demanded.swap(true, Ordering::AcqRel) {
            self.shared.request_epoch_end();
        }
    }

    /// Records that a worker is between two turns and has handed over all committed units.
    #[inline]
    pub fn attend(&self, worker: u32) {
        let attendance = &self.shared.attendance[worker as usize];
        let epoch = self.shared.epoch.load(Ordering::SeqCst);
        // Relaxed: only this worker writes the word, so it reads its own last store.
        if attendance.load(Ordering::Relaxed) != epoch {
            self.attend_again(attendance, epoch);
        }
    }

    #[cold]
    fn attend_again(&self, attendance: &AtomicU64, mut epoch: u64) {
        loop {
            attendance.store(epoch, Ordering::SeqCst);
            let now = self.shared.epoch.load(Ordering::SeqCst);
            if now == epoch {
                return;
            }
            epoch = now;
        }
    }

    /// Records that a worker is about to sleep and has handed over all committed units.
    #[inline]
    pub fn rest(&self, worker: u32) {
        self.shared.attendance[worker as usize].store(ASLEEP, Ordering::SeqCst);
    }

    /// Receives the units of a worker's turn.
    #[cold]
    pub(crate) fn take(&self, worker: u32, stream: &mut Stream) {
        let shared = &*self.shared;
        // Relaxed: a worker that still sees the old value `false` drops only units that no reader
        // needs. A reader that joins at the end of an epoch needs only later units. A reader that
        // joins at a cut needs the units after the cut. The worker of such a unit acquired a shard,
        // or the lock of `order_libraries`, after the cutting thread had released it. So the worker
        // sees the store.
        if !shared.is_wanted.load(Ordering::Relaxed) {
            return stream.segment.clear();
        }
        let handed_over = {
            let mut segment = lock(&shared.segments[worker as usize]);
            // Relaxed: the segment's lock orders this before the merging thread counts the bytes as
            // merged.
            shared.handed_over[worker as usize].fetch_add(stream.segment.len_bytes() as u64, Ordering::Relaxed);
            segment.append(&mut stream.segment, &shared.pool);
            segment.len_bytes() as u64
        };
        if handed_over >= HANDED_OVER_BYTES_MAX {
            self.warn(handed_over);
        }
        if !shared.has_units.load(Ordering::Acquire) && !shared.has_units.swap(true, Ordering::AcqRel) {
            shared.request_epoch_end();
        }
    }
}

impl Journal {
    /// Warns the readers that are too far behind. Handed-over bytes count as unread, although the
    /// thread has not merged them.
    #[cold]
    fn warn(&self, handed_over: u64) {
        let merging = self.shared.merging_bytes.load(Ordering::Relaxed);
        let warned = lock(&self.shared.control).logs.of(Which::Effects).warn(merging + handed_over);
        // Readers are woken last. A reader may have checked for a warning just before this one was
        // set, and then sleeps. It must be woken to check again.
        warned.iter().for_each(|wake| wake());
    }
}

impl Journal {
    /// Adds a reader of one of the logs. The reader is cut off when it is more than `bytes_max`
    /// bytes behind.
    ///
    /// # Errors
    /// The journal's thread cannot be started, or the log no longer contains `start`.
    pub(crate) fn join(
        &self,
        tuning: &Tuning,
        (which, start): (Which, Start),
        bytes_max: Arc<AtomicU64>,
        wake: Wake,
    ) -> std::io::Result<Result<Reader, NotHeld>> {
        self.with_thread(tuning, |logs| logs.join(which, start, bytes_max, wake))
            .map(|joined| joined.map(|id| Reader { shared: Arc::clone(&self.shared), which, id }))
    }

    /// Removes a reader. Recording stops with the last reader.
    pub(crate) fn leave(&self, tuning: &Tuning, reader: &Reader) {
        self.change(tuning, |logs| logs.of_mut(reader.which).leave(reader.id));
    }

    /// Sets whether the stream is recorded, and its backlog kept, even while it has no readers.
    ///
    /// # Errors
    /// The journal's thread cannot be started.
    pub(crate) fn keep(&self, tuning: &Tuning, is_kept: bool) -> std::io::Result<()> {
        if is_kept {
            self.with_thread(tuning, |logs| _ = logs.keep())
        } else {
            self.change(tuning, Logs::stop_keeping);
            Ok(())
        }
    }

    /// Stops adding this server's units to the stream. Returns the offset of the stream's end.
    pub fn hold_stream(&self, tuning: &Tuning) -> u64 {
        let mut end = 0;
        self.change(tuning, |logs| {
            end = logs.hold();
            DeferredWork::default()
        });
        end
    }

    /// Makes the stream consist of a primary's bytes from `offset` on, which [`Journal::relay`]
    /// appends. Keeps the held bytes if they belong to the primary's stream (`is_same`) and end at
    /// `offset`. Otherwise drops them and cuts off their readers.
    pub fn relay_from(&self, tuning: &Tuning, offset: u64, is_same: bool) {
        self.change(tuning, |logs| logs.relay_from(offset, is_same));
    }

    /// Makes the stream consist of this server's units again, from the next end of an epoch. From
    /// then on [`Journal::has_own_stream`] returns true. Until then no unit may be committed.
    ///
    /// # Errors
    /// The journal's thread cannot be started.
    pub fn resume_stream(&self, tuning: &Tuning) -> std::io::Result<()> {
        self.with_thread(tuning, Logs::resume)
    }

    /// Starts the journal's thread if it does not run, changes the logs, and wakes the thread.
    fn with_thread<T>(&self, tuning: &Tuning, change: impl FnOnce(&mut Logs) -> T) -> std::io::Result<T> {
        let shared = &self.shared;
        let mut control = lock(&shared.control);
        if control.thread.is_none() {
            let of_thread = Arc::clone(shared);
            let run = move || Merger::new(&of_thread).run();
            control.thread = Some(std::thread::Builder::new().name("pantala-journal".into()).spawn(run)?);
        }
        let changed = change(&mut control.logs);
        self.settle(tuning, &control);
        Ok(changed)
    }

    /// Changes the logs, wakes the journal's thread, and does the deferred work.
    fn change(&self, tuning: &Tuning, change: impl FnOnce(&mut Logs) -> DeferredWork) {
        let mut control = lock(&self.shared.control);
        let aftermath = change(&mut control.logs);
        self.settle(tuning, &control);
        drop(control);
        aftermath.settle();
    }

    /// Publishes whether units are to be recorded, and wakes the thread.
    fn settle(&self, tuning: &Tuning, control: &Control) {
        // The journal's thread needs the lock that the caller holds to end the next epoch. So both
        // flags are set before that epoch ends.
        if control.logs.want_units() {
            self.shared.is_wanted.store(true, Ordering::Relaxed);
            tuning.set_journaled(true);
        } else {
            tuning.set_journaled(false);
            self.shared.is_wanted.store(false, Ordering::Relaxed);
        }
        self.shared.work.notify_one();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let thread = {
            let mut control = lock(&self.shared.control);
            control.is_stopping = true;
            self.shared.work.notify_one();
            control.thread.take()
        };
        if let Some(thread) = thread {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}
