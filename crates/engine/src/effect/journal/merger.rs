//! The end of an epoch: its units are merged and appended to the log, by the journal's thread or by
//! an eager reader. [`crate::effect`] defines the terms.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use pantala_base::ThreadHeap;

use super::{ATTENDANCE_POLL, Control, EPOCH_SHIFT, EPOCH_TIME, GET_ACK, Mark, PING, POLLS_PER_BOUND, Shared, lock};
use crate::effect::log::DeferredWork;
use crate::effect::merge::merge;
use crate::effect::piece::Piece;
use crate::effect::segment::Segment;

/// Default interval between `PING`s in the stream, ms (`repl-ping-replica-period`).
const PING_PERIOD_MS_DEFAULT: u64 = 10_000;

/// The state of replication on which the journal's thread depends.
pub(super) struct Replicas {
    /// Whether there are replicas, which need a periodic `PING`.
    pub(super) are_there: AtomicBool,
    /// Interval between `PING`s, ms (`repl-ping-replica-period`).
    pub(super) ping_period_ms: AtomicU64,
    /// Maximum number of bytes that a replica may be behind.
    pub(super) bytes_max: Arc<AtomicU64>,
}

impl Default for Replicas {
    fn default() -> Self {
        Replicas {
            are_there: AtomicBool::new(false),
            ping_period_ms: AtomicU64::new(PING_PERIOD_MS_DEFAULT),
            bytes_max: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }
}

/// Units that were collected from the workers and are not in the log yet. The thread that ends an
/// epoch holds the lock of this state, so that epochs enter the log in order.
#[derive(Default)]
pub(super) struct Merging {
    /// Units of each worker.
    segments: Vec<Segment>,
    /// The last database that the stream has selected.
    selected: Option<u32>,
}

impl Merging {
    pub(super) fn new(workers: usize) -> Self {
        Merging { segments: (0..workers).map(|_| Segment::default()).collect(), selected: None }
    }
}

/// The state of the journal's thread.
pub(super) struct Merger<'s> {
    shared: &'s Shared,
    /// The heap in which this thread allocates the stream. Other threads free this memory.
    heap: ThreadHeap,
}

impl<'s> Merger<'s> {
    pub(super) fn new(shared: &'s Arc<Shared>) -> Self {
        let waiting = Arc::downgrade(shared);
        let heap = ThreadHeap::new(move || {
            if let Some(shared) = waiting.upgrade() {
                let _control = lock(&shared.control);
                shared.work.notify_one();
            }
        });
        Merger { shared, heap }
    }

    pub(super) fn run(&mut self) {
        while self.wait_for_work() {
            self.gather();
            let mut epoch = Epoch::new(self.shared);
            // Checked again, because an eager reader may have ended the epoch meanwhile.
            if self.is_due(&lock(&self.shared.control)) && epoch.end(|_| Some(ATTENDANCE_POLL)) == Outcome::Stopping {
                return;
            }
        }
    }

    /// Waits until [`EPOCH_TIME`] has passed since the last delivery, so that more units are
    /// collected. Does not wait after a quiet time, so the next unit is then delivered immediately.
    /// The end of an epoch for a `PING` or a mark counts as a delivery too.
    fn gather(&self) {
        let control = lock(&self.shared.control);
        let rest = EPOCH_TIME.saturating_sub(control.delivered.elapsed());
        drop(self.shared.work.wait_timeout_while(control, rest, |control| !control.is_stopping));
    }

    /// Returns whether an epoch must end now.
    fn is_due(&self, control: &Control) -> bool {
        let shared = self.shared;
        shared.has_units.load(Ordering::Acquire)
            || shared.is_demanded.load(Ordering::Acquire)
            || control.logs.have_joining()
            || !control.marks.is_empty()
            || needs_pings(shared, control) && ping_due_in(shared, control).is_zero()
    }

    /// Waits until there are units, readers that join, marks or a demand, or until a `PING` is due.
    /// Meanwhile purges the thread's heap if that is requested. Returns `false` if the server
    /// stops.
    fn wait_for_work(&mut self) -> bool {
        let shared = self.shared;
        let mut control = lock(&shared.control);
        loop {
            if control.is_stopping {
                return false;
            }
            if self.heap.is_requested() {
                drop(control);
                self.purge();
                control = lock(&shared.control);
                continue;
            }
            if self.is_due(&control) {
                return true;
            }
            control.thread_sleeps = true;
            control = if needs_pings(shared, &control) {
                let due_in = ping_due_in(shared, &control);
                shared.work.wait_timeout(control, due_in).unwrap_or_else(PoisonError::into_inner).0
            } else {
                shared.work.wait(control).unwrap_or_else(PoisonError::into_inner)
            };
            control.thread_sleeps = false;
        }
    }

    /// Returns unused memory to the kernel, including that of empty segments.
    #[cold]
    fn purge(&mut self) {
        lock(&self.shared.merging).segments.iter_mut().for_each(Segment::shrink);
        self.shared.segments.iter().for_each(|segment| lock(segment).shrink());
        self.shared.pool.clear();
        self.heap.purge_if_requested();
    }
}

/// Returns whether the stream has readers that need periodic `PING`s.
fn needs_pings(shared: &Shared, control: &Control) -> bool {
    shared.replicas.are_there.load(Ordering::Relaxed) && control.logs.need_pings()
}

/// Returns the time until the next `PING` is due.
fn ping_due_in(shared: &Shared, control: &Control) -> Duration {
    let period = Duration::from_millis(shared.replicas.ping_period_ms.load(Ordering::Relaxed));
    period.saturating_sub(control.pinged.elapsed())
}

/// Result of an attempt to end an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The log contains the units of the epoch.
    Delivered,
    /// A worker's turn took too long, so the attempt was abandoned. The units are merged when a
    /// later epoch ends.
    GaveUp,
    /// The server stops.
    Stopping,
}

/// The end of an epoch, on the journal's thread or on the thread of an eager reader.
pub(super) struct Epoch<'s> {
    shared: &'s Shared,
    merging: MutexGuard<'s, Merging>,
}

impl<'s> Epoch<'s> {
    pub(super) fn new(shared: &'s Shared) -> Self {
        Epoch { shared, merging: lock(&shared.merging) }
    }

    /// Returns `None` if another thread is ending an epoch.
    pub(super) fn try_new(shared: &'s Shared) -> Option<Self> {
        match shared.merging.try_lock() {
            Ok(merging) => Some(Epoch { shared, merging }),
            Err(TryLockError::Poisoned(poisoned)) => Some(Epoch { shared, merging: poisoned.into_inner() }),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Ends the current epoch and appends its units to the log. `pause` returns how long to sleep
    /// before the next check of a worker whose turn has not ended, or `None` to abandon the
    /// attempt. Its argument is the number of checks so far.
    pub(super) fn end(&mut self, pause: impl Fn(u32) -> Option<Duration>) -> Outcome {
        let shared = self.shared;
        shared.is_demanded.store(false, Ordering::Release);
        shared.has_units.store(false, Ordering::Release);
        let epoch = match self.await_workers(pause) {
            Ok(epoch) => epoch,
            Err(outcome) => {
                // The attempt failed, so the units still have to be merged.
                shared.has_units.store(true, Ordering::Release);
                return outcome;
            }
        };
        for (own, segment) in self.merging.segments.iter_mut().zip(&shared.segments) {
            own.append(&mut lock(segment), &shared.pool);
        }
        let taken: usize = self.merging.segments.iter().map(Segment::len_bytes).sum();
        shared.merging_bytes.store(taken as u64, Ordering::Relaxed);
        let end = epoch << EPOCH_SHIFT;
        self.deliver_cuts(end);
        let merged = self.merge(end);
        self.deliver(merged, end);
        shared.merging_bytes.store(0, Ordering::Relaxed);
        Outcome::Delivered
    }

    /// Starts the next epoch and waits until no unit can get a stamp of the former one. Returns the
    /// next epoch.
    ///
    /// # Errors
    /// The server stops, or `pause` has given up.
    fn await_workers(&self, pause: impl Fn(u32) -> Option<Duration>) -> Result<u64, Outcome> {
        // A reader that joins after this point must wait for the end of a later epoch. This epoch
        // may contain only some of the commands that were running when the reader joined.
        {
            let mut control = lock(&self.shared.control);
            control.logs.note_epoch_ending();
            control.marks.iter_mut().for_each(|mark| mark.is_due = true);
        }
        let epoch = self.shared.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        let mut polls = 0;
        for attendance in &self.shared.attendance {
            // `ASLEEP` is greater than every epoch, so the thread does not wait for a sleeping
            // worker.
            while attendance.load(Ordering::SeqCst) < epoch {
                if lock(&self.shared.control).is_stopping {
                    return Err(Outcome::Stopping);
                }
                polls += 1;
                if polls % POLLS_PER_BOUND == 0 {
                    self.cut_off();
                }
                match pause(polls) {
                    None => return Err(Outcome::GaveUp),
                    Some(Duration::ZERO) => std::thread::yield_now(),
                    Some(pause) => std::thread::sleep(pause),
                }
            }
        }
        Ok(epoch)
    }

    /// Cuts off readers that exceed their bound while the epoch has not ended.
    fn cut_off(&self) {
        let own: usize = self.merging.segments.iter().map(Segment::len_bytes).sum();
        let handed_over: usize = self.shared.segments.iter().map(|segment| lock(segment).len_bytes()).sum();
        let aftermath = {
            let mut control = lock(&self.shared.control);
            control.logs.cut_off((own + handed_over) as u64);
            self.drop_unwanted(&mut control);
            control.logs.free()
        };
        aftermath.settle();
    }

    /// Checks whether any reader needs the recorded units. If none does, drops these units, and
    /// makes workers drop theirs. No reader needs the units if all readers were cut off and their
    /// owners have not removed them yet.
    fn drop_unwanted(&self, control: &mut Control) {
        if !control.logs.want_units() {
            self.shared.is_wanted.store(false, Ordering::Relaxed);
            for segment in &self.shared.segments {
                let mut segment = lock(segment);
                control.merged_bytes += segment.len_bytes() as u64;
                segment.clear();
            }
        }
    }

    /// For each cut before `end` at which a reader waits, appends the units up to the cut and
    /// starts the reader. Cuts are made only within a worker's turn. The epoch has ended, so no
    /// further cut before `end` can be made.
    fn deliver_cuts(&mut self, end: u64) {
        loop {
            let next = lock(&self.shared.control).logs.next_cut();
            let Some(cut) = next.filter(|cut| *cut < end) else { return };
            let (merged, bytes) = self.merge(cut + 1);
            // A reader has started. At the start of its stream, no database is selected.
            self.merging.selected = None;
            let aftermath = {
                let mut control = lock(&self.shared.control);
                control.merged_bytes += bytes;
                control.logs.append_to_cut(merged, cut)
            };
            aftermath.settle();
        }
    }

    /// Merges the units with stamps below `end`. Returns them, and their length in bytes without
    /// the `SELECT`s that were added.
    fn merge(&mut self, end: u64) -> (Vec<Piece>, u64) {
        let len_bytes = |segments: &[Segment]| segments.iter().map(Segment::len_bytes).sum::<usize>();
        let Merging { segments, selected } = &mut *self.merging;
        let before = len_bytes(segments);
        let merged = merge(segments, end, selected, &self.shared.pool);
        (merged, (before - len_bytes(segments)) as u64)
    }

    /// Appends merged units to the logs, and adds their length in bytes to
    /// [`Control::merged_bytes`]. The logs then contain all units with stamps below `end`.
    fn deliver(&mut self, (merged, bytes): (Vec<Piece>, u64), end: u64) {
        let (aftermath, eager) = {
            let mut control = lock(&self.shared.control);
            control.merged_bytes += bytes;
            control.delivered = Instant::now();
            let (has_started, mut aftermath) = control.logs.append(merged);
            if has_started {
                // A reader has started. At the start of its stream, no database is selected.
                self.merging.selected = None;
            }
            if self.shared.replicas.are_there.load(Ordering::Relaxed) && ping_due_in(self.shared, &control).is_zero() {
                control.pinged = control.delivered;
                aftermath.add(control.logs.append_own(Piece::Control(PING)));
            }
            self.drop_unwanted(&mut control);
            (aftermath, control.logs.complete(end))
        };
        aftermath.settle();
        eager.iter().for_each(|wake| wake());
        self.reach_marks();
    }

    /// Calls the callbacks of the marks that the stream has reached. If one of these marks asks
    /// replicas for an acknowledgement, first appends the request.
    fn reach_marks(&self) {
        let (reached, end, aftermath) = {
            let mut control = lock(&self.shared.control);
            let (reached, later): (Vec<Mark>, _) =
                std::mem::take(&mut control.marks).into_iter().partition(|mark| mark.is_due);
            control.marks = later;
            if reached.is_empty() {
                return;
            }
            let end = control.logs.held().0.end;
            let asks = reached.iter().any(|mark| mark.asks);
            let aftermath =
                if asks { control.logs.append_own(Piece::Control(GET_ACK)) } else { DeferredWork::default() };
            (reached, end, aftermath)
        };
        // Called before sleeping readers are woken, so the callbacks usually run before the
        // replicas' acknowledgements arrive.
        reached.into_iter().for_each(|mark| (mark.reached)(end));
        aftermath.settle();
    }
}
