//! Pauses of the snapshot's thread. The pauses give CPU time to workers that share a CPU with this
//! thread.
//!
//! When a worker becomes ready to run, the kernel first lets the running thread finish its time
//! slice of some milliseconds, regardless of that thread's priority. So the snapshot's thread
//! sleeps after each part if it shares its CPU. To find this out, the thread measures for how long
//! it has had to wait for a CPU. If it hardly ever waits, it has a CPU of its own, and doesn't
//! pause.
//!
//! While the thread sleeps, encoded parts queue up. When more than `QUEUED_BYTES_MAX` bytes are
//! queued, the walk of the shards, which encodes the entries, pauses. But commands must encode the
//! entries that they change even then. So the thread doesn't pause while more than twice
//! `QUEUED_BYTES_MAX` bytes are queued. If it then mostly waits for a CPU, each worker pauses once
//! a turn (`Progress::note_waits_for_cpu`).

use std::time::{Duration, Instant};

use pantala_engine::snapshot::Progress;

use crate::process::RunQueueWait;

/// Interval between two measurements of the time for which the thread has waited for a CPU.
const CHECK: Duration = Duration::from_millis(5);

/// The thread counts as sharing its CPU if it has waited for a CPU during more than 1/20 of the
/// time since the last check.
const WAIT_PER_CHECK: u32 = 20;

/// The thread counts as starved if it has waited for a CPU during more than 1/3 of the time since
/// the last check. A thread that mostly waits for the disk waits less for a CPU.
const STARVED_PER_CHECK: u32 = 3;

/// Duration of a pause, as a multiple of the duration of the work before it.
const PAUSE_PER_WORK: u32 = 2;

/// Maximum duration of a pause. It applies after work that took long, which has probably waited for
/// the disk.
const PAUSE_MAX: Duration = Duration::from_millis(1);

/// Decides when the snapshot's thread pauses.
pub(super) struct Pace {
    wait: Option<RunQueueWait>,
    /// Time of the last check, and the total time that the thread had waited for a CPU by then.
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

    /// Sleeps after work that began at `began`, if the thread shares its CPU.
    pub(super) fn pause_after(&mut self, began: Instant, progress: &Progress) {
        let now = Instant::now();
        let (checked, waited) = self.checked;
        if now - checked >= CHECK {
            let wait = self.wait.as_ref().and_then(RunQueueWait::so_far).unwrap_or_default();
            let waited = wait.saturating_sub(waited);
            self.shares_cpu = waited > (now - checked) / WAIT_PER_CHECK;
            if waited > (now - checked) / STARVED_PER_CHECK {
                progress.note_waits_for_cpu();
            }
            self.checked = (now, wait);
        }
        if self.shares_cpu && !progress.is_flooded() {
            std::thread::sleep(((now - began) * PAUSE_PER_WORK).min(PAUSE_MAX));
        }
    }
}
