//! The readers of the journal's logs. [`crate::effect`] defines epoch, unit, stamp and the other
//! terms.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pantala_base::Outgoing;

use super::merger::{Epoch, Outcome};
use super::{ATTENDANCE_POLL, Shared, Which, lock};
use crate::effect::log::{Ahead, Place, ReaderId, Wake};

/// Number of checks of a worker's attendance between which an eager reader only yields its CPU and
/// does not sleep. The worker may be waiting for the same CPU.
const YIELDS_MAX: u32 = 16;
/// Number of further checks, with pauses between them. After these, a reader that has something to
/// read stops waiting for the worker.
const SHORT_POLLS: u32 = 4;

/// A reader of one of the logs, at a position of its own. Must be passed to
/// [`Journal::leave`](super::Journal::leave) in the end.
pub struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) which: Which,
    pub(super) id: ReaderId,
}

impl Reader {
    /// Appends parts of the stream to `into` until these parts contain at least `bytes` bytes, or
    /// the stream ends. Returns the state of the stream after the parts. If the state is
    /// [`Ahead::Nothing`], the reader is woken when there is more to read. The concatenated parts
    /// are whole units in RESP, but a part may end within a unit.
    pub fn read(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> Ahead {
        let (ahead, aftermath) = {
            let mut control = lock(&self.shared.control);
            let log = control.logs.of_mut(self.which);
            (log.read(self.id, bytes, into), log.free())
        };
        aftermath.settle();
        ahead
    }

    /// Returns the offset of the next byte to read, or `None` before the reader has started and
    /// after it was cut off.
    pub fn position(&self) -> Option<u64> {
        lock(&self.shared.control).logs.of(self.which).position(self.id)
    }

    /// Reads like [`Reader::read`]. If the reader has read everything in the log, also returns the
    /// stamp below which all units have been read.
    pub fn read_through(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> (Ahead, Option<u64>) {
        let (ahead, before, aftermath) = {
            let mut control = lock(&self.shared.control);
            let log = control.logs.of_mut(self.which);
            let was_awake = log.place(self.id).is_none_or(|place| place.is_busy());
            let ahead = log.read(self.id, bytes, into);
            let (before, aftermath) = (log.read_before(self.id), log.free());
            if !was_awake && self.is_epoch_due() {
                // This reader had been woken to end the epoch, but is busy from now on. So the
                // journal's thread must end the epoch.
                self.shared.work.notify_one();
            }
            (ahead, before, aftermath)
        };
        aftermath.settle();
        (ahead, before)
    }

    /// Sets whether the reader is eager. An eager reader ends epochs itself, with
    /// [`Reader::end_epoch`], and announces with [`Reader::may_sleep`] that it sleeps until it is
    /// woken. Without eager readers, at most one epoch ends in a millisecond.
    pub fn set_eager(&self, is_eager: bool) {
        let mut control = lock(&self.shared.control);
        if let Some(place) = control.logs.of_mut(self.which).place(self.id) {
            place.set_eager(is_eager);
        }
        if !is_eager {
            // From now on the journal's thread must end epochs.
            self.shared.work.notify_one();
        }
    }

    /// Ends the current epoch on this thread, if workers have handed over units or called
    /// [`Journal::demand`](super::Journal::demand). The log then contains all units of the epoch.
    /// Waits for the end of the workers' turns. But if there is something to read, waits only
    /// briefly, and leaves the epoch to the journal's thread if a turn takes longer.
    pub fn end_epoch(&self) {
        let shared = &*self.shared;
        if !self.is_epoch_due() {
            return;
        }
        let has_read_all = || {
            let mut control = lock(&shared.control);
            control.logs.of_mut(self.which).place(self.id).is_none_or(|place| place.has_read_all())
        };
        let epoch = if has_read_all() { Some(Epoch::new(shared)) } else { Epoch::try_new(shared) };
        let outcome = match epoch {
            // Checked again, because the journal's thread may have ended the epoch meanwhile.
            Some(mut epoch) if self.is_epoch_due() => {
                let may_wait = has_read_all();
                if let Some(place) = lock(&shared.control).logs.of_mut(self.which).place(self.id) {
                    place.note_reading();
                }
                epoch.end(|polls| match polls {
                    ..=YIELDS_MAX => Some(Duration::ZERO),
                    _ => (may_wait || polls <= YIELDS_MAX + SHORT_POLLS).then_some(ATTENDANCE_POLL),
                })
            }
            _ => return,
        };
        if outcome == Outcome::GaveUp {
            let _control = lock(&shared.control);
            shared.work.notify_one();
        }
    }

    fn is_epoch_due(&self) -> bool {
        self.shared.has_units.load(Ordering::Acquire) || self.shared.is_demanded.load(Ordering::Acquire)
    }

    /// Returns whether the owner of this eager reader may sleep. If there is anything to read, or
    /// an epoch to end, returns `false`. Otherwise the reader is woken when that changes.
    pub fn may_sleep(&self) -> bool {
        let mut control = lock(&self.shared.control);
        !self.is_epoch_due() && control.logs.of_mut(self.which).place(self.id).is_some_and(Place::note_sleeping)
    }

    /// Returns the number of unread bytes.
    pub fn lag_bytes(&self) -> u64 {
        lock(&self.shared.control).logs.of(self.which).lag_bytes(self.id)
    }

    /// Returns the number of unread bytes that count towards the reader's limits. While the older
    /// part of the stream is written to disk, no bytes count.
    pub fn limited_bytes(&self) -> u64 {
        lock(&self.shared.control).logs.of(self.which).limited_bytes(self.id)
    }

    /// Makes the journal call `warn` repeatedly while the reader is more than `bytes` behind. Bytes
    /// that workers have handed over count as unread. `warn` must be cheap and take no lock. A late
    /// call may occur when the reader has already read everything. The reader is woken after such a
    /// call, so that it checks for the warning again.
    pub fn warn_beyond(&self, bytes: u64, warn: &Wake) {
        lock(&self.shared.control).logs.of_mut(self.which).warn_beyond(self.id, bytes, warn);
    }

    /// Returns a handle with which other threads can see how far the reader is behind.
    pub fn lag(&self) -> Lag {
        Lag { shared: Arc::clone(&self.shared), which: self.which, id: self.id }
    }
}

/// A handle that reports how far a [`Reader`] is behind.
pub struct Lag {
    shared: Arc<Shared>,
    which: Which,
    id: ReaderId,
}

impl Lag {
    /// Returns the number of bytes that the reader has not read; 0 if it has left.
    pub fn bytes(&self) -> u64 {
        lock(&self.shared.control).logs.of(self.which).lag_bytes(self.id)
    }
}
