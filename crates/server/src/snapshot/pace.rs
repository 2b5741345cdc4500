//! Pauses of the snapshot's thread, for workers that share its CPU.
//!
//! When a worker becomes ready to run, the kernel first lets the running thread finish its time
//! slice of some milliseconds, whatever that thread's priority. So the snapshot's thread sleeps
//! after each part if it shares its CPU, which shows in its own waits for a CPU. With a CPU of its
//! own it doesn't pause. While the thread sleeps, the walk of the entries pauses too, once
//! `QUEUED_BYTES_MAX` of parts wait for the thread. But commands still encode the entries that they
//! change, so the thread doesn't pause if more than twice that amount waits.

use std::time::{Duration, Instant};

use pantala_engine::snapshot::Progress;

use crate::process::RunQueueWait;

/// Interval between checks whether the thread has waited for a CPU.
const CHECK: Duration = Duration::from_millis(5);

/// The thread counts as sharing its CPU if it has waited for a CPU for more than 1/20 of the time
/// since the last check.
const WAIT_PER_CHECK: u32 = 20;

/// Duration of a pause, as a multiple of the time of the work before it.
const PAUSE_PER_WORK: u32 = 2;

/// Maximum pause. Work that took longer has probably waited for the disk.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Decides when the snapshot's thread pauses.
pub(super) struct Pace {
    wait: Option<RunQueueWait>,
    /// Time of the last check, and how long the thread had waited by then.
    checked: (Instant, Duration),
    /// Whether the thread shared its CPU at the last check.
    shares_cpu: bool,
}

impl Pace {
    /// Creates the state for the calling thread, which must be the snapshot's thread.
    pub(super) fn new() -> Self {
        let wait = RunQueueWait::open();
        let waited = wait.as_ref().and_then(RunQueueWait::so_far).unwrap_or_default();
        Self { wait, checked: (Instant::now(), waited), shares_cpu: false }
    }

    /// Pauses after work that began at `began`, if the thread shares its CPU.
    pub(super) fn pause_after(&mut self, began: Instant, progress: &Progress) {
        let now = Instant::now();
        let (checked, waited) = self.checked;
        if now - checked >= CHECK {
            let wait = self.wait.as_ref().and_then(RunQueueWait::so_far).unwrap_or_default();
            self.shares_cpu = wait.saturating_sub(waited) > (now - checked) / WAIT_PER_CHECK;
            self.checked = (now, wait);
        }
        if self.shares_cpu && !progress.is_flooded() {
            std::thread::sleep(((now - began) * PAUSE_PER_WORK).min(PAUSE_MAX));
        }
    }
}
