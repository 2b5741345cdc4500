//! The journal: merges the streams of all workers into one, on a thread of its own.
//!
//! | what | written by | read by |
//! | --- | --- | --- |
//! | epoch | the journal's thread | workers, once a turn and at each stamp |
//! | a worker's attendance: its epoch between two turns, or [`ASLEEP`] | that worker | the thread |
//! | a worker's segment, behind a lock | that worker, at the end of a turn | the thread |
//! | the log ([`log`](crate::effect::log)), behind a lock | the thread | readers |
//!
//! Both locks are rarely contended: workers that write take that of the log at most once an epoch.
//!
//! Attendance and epoch are a Dekker pair: a worker that wakes writes its attendance and then reads
//! the epoch again; the thread writes the epoch and then reads attendance. With sequentially
//! consistent operations at least one of them sees the other, so no worker runs commands in an
//! epoch that the thread considers ended.
//!
//! # Memory
//!
//! A reader's bound counts the bytes in the log and those that workers have handed over since, so
//! that it also holds while a long turn keeps an epoch from ending. Without a reader within its
//! bound, workers drop what they have recorded.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::utils::CachePadded;
use pantala_base::Outgoing;

use crate::effect::log::{Aftermath, Ahead, Log, NotHeld, ReaderId, Start, Wake};
use crate::effect::segment::{Segment, Stream};
use crate::tuning::Tuning;

mod merger;

use merger::Merger;

/// Bits of a stamp below its epoch: units that one epoch's Lamport clock can count before it runs
/// into the next one's, which delays their delivery and does nothing else.
const EPOCH_SHIFT: u32 = 24;

/// The attendance of a worker that sleeps.
const ASLEEP: u64 = u64::MAX;

/// How long the thread gathers units before it ends an epoch.
const EPOCH_TIME: Duration = Duration::from_millis(1);

/// How long it waits between two checks of a worker whose turn has not ended.
const ATTENDANCE_POLL: Duration = Duration::from_micros(50);

/// The checks after which it compares the bytes recorded meanwhile with readers' bounds.
const POLLS_PER_BOUND: u32 = 20;

/// Bytes handed over by a worker from which on it looks itself how far readers are behind: the
/// thread may be slower than the workers.
const HANDED_OVER_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// How often readers are sent a `PING` unless `repl-ping-replica-period` says otherwise, ms.
const PING_PERIOD_MS_DEFAULT: u64 = 10_000;

struct Control {
    log: Log,
    is_stopping: bool,
    thread: Option<JoinHandle<()>>,
    /// The reader of [`Journal::keep`].
    keeper: Option<ReaderId>,
    /// Marks that the stream has not reached: those of [`Journal::mark`].
    marks: Vec<Mark>,
}

/// A point in the stream: behind all that was committed before it was asked for.
struct Mark {
    /// The epoch that ends next is a later one.
    is_due: bool,
    /// Replicas are then asked for an acknowledgement.
    asks: bool,
    reached: Box<dyn FnOnce(u64) + Send>,
}

/// Asks replicas for an acknowledgement, as part of the stream.
const GET_ACK: &[u8] = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n";

struct Shared {
    epoch: CachePadded<AtomicU64>,
    attendance: Box<[CachePadded<AtomicU64>]>,
    segments: Box<[CachePadded<Mutex<Segment>>]>,
    has_units: AtomicBool,
    /// The recorded units have a reader.
    is_wanted: AtomicBool,
    /// Stamp of the latest unit that held no shard.
    without_shards: AtomicU64,
    /// See [`Journal::order_libraries`].
    libraries: Mutex<()>,
    /// There are replicas, which need a `PING` from time to time.
    has_replicas: AtomicBool,
    /// `repl-ping-replica-period`, ms.
    ping_period_ms: AtomicU64,
    /// The most bytes that a replica may be behind.
    replica_bytes_max: Arc<AtomicU64>,
    control: Mutex<Control>,
    work: Condvar,
    /// Bytes that the thread has taken from the segments and not appended to the log.
    merging_bytes: AtomicU64,
    /// An epoch is to end even if there are no units ([`Journal::demand`]).
    is_demanded: AtomicBool,
}

/// The journal of a keyspace. See the head of this module.
pub struct Journal {
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Returns a journal without readers. Its thread starts with the first one.
    pub(crate) fn new(workers: usize) -> Self {
        let shared = Shared {
            epoch: CachePadded::new(AtomicU64::new(1)),
            attendance: (0..workers).map(|_| CachePadded::new(AtomicU64::new(ASLEEP))).collect(),
            segments: (0..workers).map(|_| CachePadded::new(Mutex::default())).collect(),
            has_units: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
            without_shards: AtomicU64::new(0),
            libraries: Mutex::new(()),
            has_replicas: AtomicBool::new(false),
            ping_period_ms: AtomicU64::new(PING_PERIOD_MS_DEFAULT),
            replica_bytes_max: Arc::new(AtomicU64::new(u64::MAX)),
            control: Mutex::new(Control {
                log: Log::new(),
                is_stopping: false,
                thread: None,
                keeper: None,
                marks: Vec::new(),
            }),
            work: Condvar::new(),
            merging_bytes: AtomicU64::new(0),
            is_demanded: AtomicBool::new(false),
        };
        Journal { shared: Arc::new(shared) }
    }

    /// Returns the least stamp of the current epoch.
    pub(crate) fn epoch_floor(&self) -> u64 {
        // Relaxed: a worker that has attended an epoch reads no earlier one from the same word.
        self.shared.epoch.load(Ordering::Relaxed) << EPOCH_SHIFT
    }

    /// Sets how often a `PING` goes into the stream, so that a replica knows the link to be alive.
    pub fn set_ping_period(&self, period: Duration) {
        self.shared.ping_period_ms.store(period.as_millis() as u64, Ordering::Relaxed);
    }

    /// Sets whether there are replicas: the stream has a `PING` from time to time then.
    pub fn set_replicas(&self, are_there: bool) {
        self.shared.has_replicas.store(are_there, Ordering::Relaxed);
        self.shared.work.notify_one();
    }

    /// Makes the stream continue at this offset, which was the end of a former one, when recording
    /// starts. Before anything reads it.
    pub fn continue_at(&self, offset: u64) {
        lock(&self.shared.control).log.continue_at(offset);
    }

    /// Calls `reached` with an offset behind everything that was committed before this call, once
    /// the stream has it. `asks`: replicas are then asked for an acknowledgement, in the stream.
    /// `reached` is called on the journal's thread, and must be cheap; without a stream it is
    /// called at once.
    pub fn mark(&self, asks: bool, reached: Box<dyn FnOnce(u64) + Send>) {
        let mut control = lock(&self.shared.control);
        if control.thread.is_none() || !control.log.is_wanted() {
            let end = control.log.held().end;
            drop(control);
            return reached(end);
        }
        control.marks.push(Mark { is_due: false, asks, reached });
        self.shared.work.notify_one();
    }

    /// Sets how many bytes of the stream are held for later readers while [`Journal::keep`] asks
    /// for it.
    pub fn set_backlog(&self, bytes: u64) {
        lock(&self.shared.control).log.set_backlog(bytes);
    }

    /// Sets how many bytes a replica may be behind before it is cut off.
    pub fn set_replica_bound(&self, bytes_max: u64) {
        self.shared.replica_bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Returns how many bytes a replica may be behind: a bound that follows the settings.
    pub fn replica_bound(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.shared.replica_bytes_max)
    }

    /// Returns the offsets of the stream that are held, and whether it has readers: without any,
    /// nothing is held, and offsets stand still.
    pub fn held(&self) -> (Range<u64>, bool) {
        let control = lock(&self.shared.control);
        (control.log.held(), control.log.has_readers())
    }

    /// Returns the memory usage of the stream, bytes: held for readers and for the backlog, or
    /// being sent.
    pub fn memory_bytes(&self) -> u64 {
        lock(&self.shared.control).log.memory_bytes()
    }

    /// Returns a stamp not below those of all answered units that held no shard (`FUNCTION LOAD`,
    /// `PUBLISH`).
    pub(crate) fn latest_without_shards(&self) -> u64 {
        self.shared.without_shards.load(Ordering::Acquire)
    }

    pub(crate) fn note_without_shards(&self, stamp: u64) {
        self.shared.without_shards.fetch_max(stamp, Ordering::AcqRel);
    }

    /// Puts a change of the function libraries, which holds no shard, on one side of each cut. Held
    /// from the change until its effect is committed, and while a cut is made and the libraries are
    /// copied for its snapshot. Taken after shards, never before.
    pub fn order_libraries(&self) -> MutexGuard<'_, ()> {
        lock(&self.shared.libraries)
    }

    /// Returns a stamp that is later than those of all units committed so far: the first one of the
    /// next epoch.
    pub fn epoch_end(&self) -> u64 {
        (self.shared.epoch.load(Ordering::SeqCst) + 1) << EPOCH_SHIFT
    }

    /// Ends the current epoch soon: a reply waits until its units are synced.
    pub fn demand(&self) {
        if !self.shared.is_demanded.swap(true, Ordering::AcqRel) {
            let _control = lock(&self.shared.control);
            self.shared.work.notify_one();
        }
    }

    /// Records that a worker is between two turns: it has handed over all committed units.
    #[inline]
    pub fn attend(&self, worker: u32) {
        let attendance = &self.shared.attendance[worker as usize];
        let epoch = self.shared.epoch.load(Ordering::SeqCst);
        // Relaxed: the worker's own word.
        if attendance.load(Ordering::Relaxed) != epoch {
            self.attend_anew(attendance, epoch);
        }
    }

    #[cold]
    fn attend_anew(&self, attendance: &AtomicU64, mut epoch: u64) {
        loop {
            attendance.store(epoch, Ordering::SeqCst);
            let now = self.shared.epoch.load(Ordering::SeqCst);
            if now == epoch {
                return;
            }
            epoch = now;
        }
    }

    /// Records that a worker is about to sleep, and has handed over all committed units.
    #[inline]
    pub fn rest(&self, worker: u32) {
        self.shared.attendance[worker as usize].store(ASLEEP, Ordering::SeqCst);
    }

    /// Takes over the units of a worker's turn.
    #[cold]
    pub(crate) fn take(&self, worker: u32, stream: &mut Stream) {
        let shared = &*self.shared;
        // Relaxed: a missed store loses nothing. A reader that joins starts behind the epochs that
        // have not ended yet, or at a cut: then a unit behind it was made on a shard that the
        // thread which made the cut has released since, or under the lock of `order_libraries`.
        if !shared.is_wanted.load(Ordering::Relaxed) {
            return stream.segment.clear();
        }
        let handed_over = {
            let mut segment = lock(&shared.segments[worker as usize]);
            segment.append(&mut stream.segment);
            segment.bytes.len() as u64
        };
        if handed_over >= HANDED_OVER_BYTES_MAX {
            self.warn(handed_over);
        }
        if !shared.has_units.load(Ordering::Acquire) && !shared.has_units.swap(true, Ordering::AcqRel) {
            // Under the lock, so that the thread is either before its check or in its wait.
            let _control = lock(&shared.control);
            shared.work.notify_one();
        }
    }
}

impl Journal {
    /// Warns of readers that are too far behind: the thread has not come to merge what a worker has
    /// handed over.
    #[cold]
    fn warn(&self, handed_over: u64) {
        let merging = self.shared.merging_bytes.load(Ordering::Relaxed);
        lock(&self.shared.control).log.warn(merging + handed_over);
    }
}

/// A reader of the merged stream, at a position of its own. Must be passed to [`Journal::leave`] in
/// the end.
pub struct Reader {
    shared: Arc<Shared>,
    id: ReaderId,
}

impl Reader {
    /// Adds the next parts of the stream to `into`, until they have at least `bytes`, and returns
    /// what is ahead of the reader then. If that is nothing, the reader is woken when there is
    /// more. All parts together are whole units, as RESP; one part need not be.
    pub fn read(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> Ahead {
        let (ahead, aftermath) = {
            let mut control = lock(&self.shared.control);
            (control.log.read(self.id, bytes, into), control.log.free())
        };
        aftermath.settle();
        ahead
    }

    /// Returns the offset of the next byte that it reads; `None` before its start, and once it was
    /// cut off. An offset stands for the same byte for as long as the server runs.
    pub fn position(&self) -> Option<u64> {
        lock(&self.shared.control).log.position(self.id)
    }

    /// Reads as [`Reader::read`] does. Also returns a stamp if it has read all units with earlier
    /// ones. An eager reader that has read everything makes the current epoch end.
    pub fn read_through(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> (Ahead, Option<u64>) {
        let (ahead, before, aftermath, is_awaited) = {
            let mut control = lock(&self.shared.control);
            let ahead = control.log.read(self.id, bytes, into);
            (ahead, control.log.read_before(self.id), control.log.free(), control.log.is_awaited())
        };
        aftermath.settle();
        if is_awaited {
            self.shared.work.notify_one();
        }
        (ahead, before)
    }

    /// Sets whether epochs end as soon as it has read everything, and whether it is woken at each
    /// end. Otherwise units are gathered for a millisecond.
    pub fn set_eager(&self, is_eager: bool) {
        lock(&self.shared.control).log.set_eager(self.id, is_eager);
    }

    /// Returns the number of bytes it has not read.
    pub fn behind_bytes(&self) -> u64 {
        lock(&self.shared.control).log.behind_bytes(self.id)
    }

    /// Calls `warn` again and again while it is more than `bytes` behind, those included that
    /// workers have handed over. It must be cheap and take no lock.
    pub fn warn_beyond(&self, bytes: u64, warn: &Wake) {
        lock(&self.shared.control).log.warn_beyond(self.id, bytes, warn);
    }

    /// Returns the number of bytes it has not read, whenever it is asked.
    pub fn behind(&self) -> Behind {
        Behind { shared: Arc::clone(&self.shared), id: self.id }
    }
}

/// How far a [`Reader`] is behind, for other threads than its own.
pub struct Behind {
    shared: Arc<Shared>,
    id: ReaderId,
}

impl Behind {
    /// Returns the number of bytes that the reader has not read; 0 if it has left.
    pub fn bytes(&self) -> u64 {
        lock(&self.shared.control).log.behind_bytes(self.id)
    }
}

impl Journal {
    /// Adds a reader of the merged stream. It is cut off when it is more than `bytes_max` behind.
    ///
    /// # Errors
    /// The journal's thread can't be started, or the start is not held.
    pub(crate) fn join(
        &self,
        tuning: &Tuning,
        start: Start,
        bytes_max: Arc<AtomicU64>,
        wake: Wake,
    ) -> std::io::Result<Result<Reader, NotHeld>> {
        self.with_thread(tuning, |log| log.join(start, bytes_max, wake))
            .map(|joined| joined.map(|id| Reader { shared: Arc::clone(&self.shared), id }))
    }

    /// Removes a reader. After the last one nothing is recorded any more.
    pub(crate) fn leave(&self, tuning: &Tuning, reader: &Reader) {
        let aftermath = self.remove_reader(tuning, &mut lock(&self.shared.control), reader.id);
        aftermath.settle();
    }

    /// Starts or stops recording and merging the stream, and holding its backlog, whether or not it
    /// has another reader.
    ///
    /// # Errors
    /// The journal's thread can't be started.
    pub(crate) fn keep(&self, tuning: &Tuning, is_kept: bool) -> std::io::Result<()> {
        let control = &self.shared.control;
        if is_kept && lock(control).keeper.is_none() {
            let id = self.with_thread(tuning, Log::join_discarding)?;
            lock(control).keeper = Some(id);
        } else if !is_kept {
            let mut control = lock(control);
            if let Some(id) = control.keeper.take() {
                let aftermath = self.remove_reader(tuning, &mut control, id);
                drop(control);
                aftermath.settle();
            }
        }
        Ok(())
    }

    /// Adds a reader to the log, starts the thread unless it runs, and wakes it.
    fn with_thread<T>(&self, tuning: &Tuning, join: impl FnOnce(&mut Log) -> T) -> std::io::Result<T> {
        let shared = &self.shared;
        let mut control = lock(&shared.control);
        if control.thread.is_none() {
            let of_thread = Arc::clone(shared);
            let run = move || Merger::new(&of_thread).run();
            control.thread = Some(std::thread::Builder::new().name("pantala-journal".into()).spawn(run)?);
        }
        let joined = join(&mut control.log);
        if control.log.is_wanted() {
            // Both before the thread ends the next epoch, which needs this lock.
            shared.is_wanted.store(true, Ordering::Relaxed);
            tuning.set_journaled(true);
        }
        shared.work.notify_one();
        Ok(joined)
    }

    fn remove_reader(&self, tuning: &Tuning, control: &mut Control, id: ReaderId) -> Aftermath {
        let aftermath = control.log.leave(id);
        if !control.log.is_wanted() {
            tuning.set_journaled(false);
            self.shared.is_wanted.store(false, Ordering::Relaxed);
        }
        self.shared.work.notify_one();
        aftermath
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
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}
