//! The streams of all workers, merged into one by a thread of their own.
//!
//! | what | written by | read by |
//! | --- | --- | --- |
//! | epoch | the journal's thread | workers, once a turn and at each stamp |
//! | a worker's attendance | that worker: the epoch it has seen between two turns, or [`ASLEEP`] | the thread |
//! | a worker's segment | that worker adds units at the end of a turn, the thread takes them | both, behind a lock that is hardly ever contended |
//! | consumers | the thread, and who attaches or detaches one | – |
//!
//! Attendance and epoch are a Dekker pair: a worker that wakes writes its attendance and then reads
//! the epoch again; the thread writes the epoch and then reads attendance. With sequentially
//! consistent operations at least one of them sees the other, so no worker runs commands in an
//! epoch that the thread takes for ended.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;

use crate::effect::batch::Batch;
use crate::effect::merge::{Merged, merge};
use crate::tuning::Tuning;

/// Bits of a stamp below its epoch: units that one epoch's Lamport clock can count before it runs
/// into the next one's, which delays their delivery and does nothing else.
const EPOCH_SHIFT: u32 = 24;

/// The attendance of a worker that sleeps.
const ASLEEP: u64 = u64::MAX;

/// How long the thread gathers units before it ends an epoch.
const EPOCH_TIME: Duration = Duration::from_millis(1);

/// How long it waits before it looks again at a worker whose turn has not ended.
const ATTENDANCE_POLL: Duration = Duration::from_micros(50);

/// How often consumers are sent a `PING` unless `repl-ping-replica-period` says otherwise, ms.
const PING_PERIOD_MS_DEFAULT: u64 = 10_000;

/// Number of a consumer: unique while the server runs.
pub type ConsumerId = u64;

/// A reader of the merged stream. Called by the journal's thread, which waits for it: a consumer
/// hands the bytes on and returns.
pub trait Consumer: Send {
    /// Called once, at the point of the merged order where the stream of this consumer begins.
    fn begin(&mut self);

    /// Takes the next whole units, as RESP. Returns whether it wants more.
    fn take(&mut self, bytes: &Arc<[u8]>) -> bool;
}

/// A unit of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StampedUnit {
    pub(crate) stamp: u64,
    /// Where its effects end in [`Batch::effects`].
    pub(crate) effects_end: usize,
}

/// Units of one worker, with ascending stamps.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    pub(crate) batch: Batch,
    pub(crate) units: Vec<StampedUnit>,
}

impl Segment {
    fn push(&mut self, stamp: u64, batch: &Batch) {
        self.batch.extend(batch);
        self.units.push(StampedUnit { stamp, effects_end: self.batch.effects.len() });
    }

    fn append(&mut self, other: &mut Segment) {
        if self.units.is_empty() {
            return std::mem::swap(self, other);
        }
        let effects = self.batch.effects.len();
        self.batch.extend(&other.batch);
        let moved = other.units.iter().map(|unit| StampedUnit { effects_end: effects + unit.effects_end, ..*unit });
        self.units.extend(moved);
        other.clear();
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.units.clear();
    }
}

/// A worker's own end of its stream.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    segment: Segment,
    clock: u64,
}

impl Stream {
    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segment.units.is_empty()
    }

    /// Takes up a clock that this worker, or one of its connections, has seen.
    #[inline]
    pub(crate) fn observe(&mut self, clock: u64) {
        self.clock = self.clock.max(clock);
    }

    /// Adds a unit. Its stamp must be later than the stream's clock.
    pub(crate) fn push(&mut self, stamp: u64, batch: &Batch) {
        assert!(stamp > self.clock, "stamps of a stream ascend");
        self.segment.push(stamp, batch);
        self.clock = stamp;
    }

    /// Adds each effect as a unit of its own, from this stamp on.
    pub(crate) fn push_each(&mut self, mut stamp: u64, batch: &Batch) {
        let mut start = 0;
        for effect in &batch.effects {
            let mut one = Batch::default();
            one.bytes.extend_from_slice(&batch.bytes[start..effect.end]);
            one.effects.push(*effect);
            one.effects[0].end = effect.end - start;
            start = effect.end;
            self.push(stamp, &one);
            stamp += 1;
        }
    }
}

#[derive(Default)]
struct Control {
    consumers: Vec<(ConsumerId, Box<dyn Consumer>)>,
    joining: Vec<(ConsumerId, Box<dyn Consumer>)>,
    leaving: Vec<ConsumerId>,
    next_id: ConsumerId,
    is_stopping: bool,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    epoch: CachePadded<AtomicU64>,
    attendance: Box<[CachePadded<AtomicU64>]>,
    segments: Box<[CachePadded<Mutex<Segment>>]>,
    has_units: AtomicBool,
    /// Stamp of the latest unit that held no shard.
    without_shards: AtomicU64,
    /// `repl-ping-replica-period`, ms.
    ping_period_ms: AtomicU64,
    control: Mutex<Control>,
    work: Condvar,
}

/// See the head of this module.
pub struct Journal {
    shared: Arc<Shared>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Journal {
    /// Returns a journal without consumers. Its thread starts with the first one.
    pub(crate) fn new(workers: usize) -> Self {
        let shared = Shared {
            epoch: CachePadded::new(AtomicU64::new(1)),
            attendance: (0..workers).map(|_| CachePadded::new(AtomicU64::new(ASLEEP))).collect(),
            segments: (0..workers).map(|_| CachePadded::new(Mutex::default())).collect(),
            has_units: AtomicBool::new(false),
            without_shards: AtomicU64::new(0),
            ping_period_ms: AtomicU64::new(PING_PERIOD_MS_DEFAULT),
            control: Mutex::default(),
            work: Condvar::new(),
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

    /// Returns a stamp that all units have reached which held no shard (`FUNCTION LOAD`, `PUBLISH`)
    /// and were answered.
    pub(crate) fn latest_without_shards(&self) -> u64 {
        self.shared.without_shards.load(Ordering::Acquire)
    }

    pub(crate) fn note_without_shards(&self, stamp: u64) {
        self.shared.without_shards.fetch_max(stamp, Ordering::AcqRel);
    }

    /// Says that a worker is between two turns: all that it committed was handed over.
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

    /// Says that a worker is about to sleep, and has handed over all that it committed.
    #[inline]
    pub fn rest(&self, worker: u32) {
        self.shared.attendance[worker as usize].store(ASLEEP, Ordering::SeqCst);
    }

    /// Takes over the units of a worker's turn.
    #[cold]
    pub(crate) fn take(&self, worker: u32, stream: &mut Stream) {
        lock(&self.shared.segments[worker as usize]).append(&mut stream.segment);
        if !self.shared.has_units.swap(true, Ordering::AcqRel) {
            // Under the lock, so that the thread is either before its look or in its wait.
            let _control = lock(&self.shared.control);
            self.shared.work.notify_one();
        }
    }
}

impl Journal {
    /// Has a consumer read the merged stream, from a point in the order that [`Consumer::begin`]
    /// announces.
    ///
    /// # Errors
    /// The journal's thread can't be started.
    pub(crate) fn attach(&self, tuning: &Tuning, consumer: Box<dyn Consumer>) -> std::io::Result<ConsumerId> {
        let shared = &self.shared;
        let mut control = lock(&shared.control);
        if control.thread.is_none() {
            let of_thread = Arc::clone(shared);
            let run = move || Merger::new(&of_thread).run();
            control.thread = Some(std::thread::Builder::new().name("pantala-journal".into()).spawn(run)?);
        }
        tuning.set_journaled(true);
        control.next_id += 1;
        let id = control.next_id;
        control.joining.push((id, consumer));
        shared.work.notify_one();
        Ok(id)
    }

    /// Detaches a consumer: it is dropped, and gets no more units once the thread knows.
    pub(crate) fn detach(&self, tuning: &Tuning, id: ConsumerId) {
        let shared = &self.shared;
        let mut control = lock(&shared.control);
        control.joining.retain(|(known, _)| *known != id);
        control.leaving.push(id);
        let left = control.consumers.iter().filter(|(known, _)| !control.leaving.contains(known)).count();
        if left == 0 && control.joining.is_empty() {
            tuning.set_journaled(false);
        }
        shared.work.notify_one();
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
            // It can only have panicked in a consumer, which has said so already.
            let _ = thread.join();
        }
    }
}

/// What the journal's thread works with.
struct Merger<'s> {
    shared: &'s Shared,
    /// Units of each worker that are later than the last prefix.
    segments: Vec<Segment>,
    /// The database that the stream has selected last.
    selected: Option<u32>,
    /// When consumers were last sent a `PING`.
    pinged: Instant,
}

impl<'s> Merger<'s> {
    fn new(shared: &'s Shared) -> Self {
        let segments = shared.segments.iter().map(|_| Segment::default()).collect();
        Merger { shared, segments, selected: None, pinged: Instant::now() }
    }

    fn run(&mut self) {
        while self.wait_for_work() {
            std::thread::sleep(EPOCH_TIME);
            self.shared.has_units.store(false, Ordering::Release);
            let Some(epoch) = self.end_epoch() else { return };
            for (own, segment) in self.segments.iter_mut().zip(&self.shared.segments) {
                own.append(&mut lock(segment));
            }
            let mut merged = merge(&mut self.segments, epoch << EPOCH_SHIFT, &mut self.selected);
            if self.ping_due_in().is_zero() {
                self.pinged = Instant::now();
                merged.bytes.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
            }
            self.deliver(merged);
        }
    }

    /// Returns how long it is until the next `PING`.
    fn ping_due_in(&self) -> Duration {
        let period = Duration::from_millis(self.shared.ping_period_ms.load(Ordering::Relaxed));
        period.saturating_sub(self.pinged.elapsed())
    }

    /// Waits for units, for consumers that join, or until a `PING` is due. `false`: the server stops.
    fn wait_for_work(&self) -> bool {
        let mut control = lock(&self.shared.control);
        loop {
            if control.is_stopping {
                return false;
            }
            let ping_due_in = self.ping_due_in();
            let is_ping_due = ping_due_in.is_zero() && !control.consumers.is_empty();
            if !control.joining.is_empty() || self.shared.has_units.load(Ordering::Acquire) || is_ping_due {
                return true;
            }
            control = if control.consumers.is_empty() {
                self.shared.work.wait(control).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.shared.work.wait_timeout(control, ping_due_in).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Ends the epoch: returns the next one when no unit can get a stamp before it any more. `None`:
    /// the server stops.
    fn end_epoch(&self) -> Option<u64> {
        let epoch = self.shared.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        for attendance in &self.shared.attendance {
            // An attendance is an epoch or ASLEEP, the greatest number.
            while attendance.load(Ordering::SeqCst) < epoch {
                if lock(&self.shared.control).is_stopping {
                    return None;
                }
                std::thread::sleep(ATTENDANCE_POLL);
            }
        }
        Some(epoch)
    }

    fn deliver(&mut self, merged: Merged) {
        let mut control = lock(&self.shared.control);
        let leaving = std::mem::take(&mut control.leaving);
        control.consumers.retain(|(id, _)| !leaving.contains(id));
        if !merged.bytes.is_empty() {
            let bytes: Arc<[u8]> = merged.bytes.into();
            control.consumers.retain_mut(|(_, consumer)| consumer.take(&bytes));
        }
        let mut joined = std::mem::take(&mut control.joining);
        if !joined.is_empty() {
            // Whoever joins has selected no database yet.
            self.selected = None;
            joined.iter_mut().for_each(|(_, consumer)| consumer.begin());
            control.consumers.append(&mut joined);
        }
    }
}

#[cfg(test)]
impl Stream {
    pub(crate) fn into_segment(self) -> Segment {
        self.segment
    }
}
