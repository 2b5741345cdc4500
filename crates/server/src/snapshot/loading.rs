//! The progress of loading a dataset, at startup or from a primary. During the load, workers serve
//! connections, and reply `-LOADING` to commands that need the dataset.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::time::Duration;

use pantala_engine::faults::{self, Fault};
use pantala_engine::tuning::refusal::Refusals;

use crate::host::Server;

/// A load at startup counts as *short* until it has read this number of bytes. The number is the
/// default of Redis's `loading-process-events-interval-bytes`.
const SHORT_BYTES: u64 = 2 * 1024 * 1024;

/// Number of pauses after which [`wait_while_short`] stops waiting, even if the load still counts
/// as short. This number of pauses takes one second.
const SHORT_PAUSES_MAX: u32 = 4000;

/// Pause between two checks of whether the load still counts as short.
const SHORT_PAUSE: Duration = Duration::from_micros(250);

/// The progress of a load.
#[derive(Debug, Default)]
pub struct Loading {
    /// Start of the running load, Unix time in seconds; 0 if there is none.
    started_s: AtomicI64,
    /// Whether the running load is that at startup.
    is_startup: AtomicBool,
    /// Whether the dataset is incomplete. A load at startup sets this at its start, and a load from
    /// a primary when it begins to replace the dataset. A load clears this before it releases the
    /// shards, so no client can write a key and then find the dataset incomplete.
    is_incomplete: AtomicBool,
    /// Whether a primary's dataset has been loaded, and the append-only file is now being reopened.
    is_reopening: AtomicBool,
    /// Number of loads that have failed and left an empty dataset.
    failures: AtomicU64,
    /// The value of `failures` when the last shutdown was requested.
    failures_at_shutdown: AtomicU64,
    total_bytes: AtomicU64,
    loaded_bytes: AtomicU64,
    /// The memory usage that the loaded file states, bytes (auxiliary field `used-mem`).
    used_bytes: AtomicU64,
    /// `key-load-delay`.
    delay: AtomicI64,
    /// Number of keys loaded under a negative delay. With a delay of -n, the load sleeps before
    /// each n-th of them.
    delayed: AtomicU64,
}

/// The fields that `INFO` shows while a dataset is loaded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Start of the load, Unix time in seconds.
    pub started_s: i64,
    /// Length of the files, bytes.
    pub total_bytes: u64,
    /// Length of the part that has been read, bytes.
    pub loaded_bytes: u64,
    /// `loaded_bytes` as a percentage of `total_bytes`.
    pub loaded_percent: f64,
    /// The memory usage that the loaded file states, bytes.
    pub used_bytes: u64,
    /// Estimated time until the load ends, seconds.
    pub left_s: u64,
}

impl Loading {
    /// Returns the progress of the running load, if any. `now_s` is Unix time in seconds.
    pub fn progress(&self, now_s: i64) -> Option<Progress> {
        let started_s = self.started_s.load(Relaxed);
        if started_s == 0 {
            return None;
        }
        let (total_bytes, loaded_bytes) = (self.total_bytes.load(Relaxed), self.loaded_bytes.load(Relaxed));
        let passed_s = u64::try_from(now_s - started_s).unwrap_or(0);
        let used_bytes = self.used_bytes.load(Relaxed);
        // If the total length is unknown, the memory usage that the file states is used as a rough
        // estimate, as in Redis.
        let (percent, left_bytes) = match (total_bytes, used_bytes) {
            (0, 0) => (0.0, 1),
            (0, used) => (percentage(loaded_bytes, used).min(99.99), used.saturating_sub(loaded_bytes).max(1)),
            (total, _) => (percentage(loaded_bytes, total), total.saturating_sub(loaded_bytes)),
        };
        // Redis uses the same formula.
        let left_s = u128::from(passed_s) * u128::from(left_bytes) / u128::from(loaded_bytes + 1);
        Some(Progress {
            started_s,
            total_bytes,
            loaded_bytes,
            loaded_percent: percent,
            used_bytes,
            left_s: if passed_s == 0 { 1 } else { u64::try_from(left_s).unwrap_or(u64::MAX) },
        })
    }

    /// Returns whether the dataset is incomplete, because it is being loaded at startup or from a
    /// primary. The server must not save it.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Relaxed)
    }

    /// Records whether the dataset is incomplete. The caller must hold all shards.
    pub fn set_incomplete(&self, is_incomplete: bool) {
        self.is_incomplete.store(is_incomplete, Relaxed);
    }

    /// Returns whether `CONFIG SET` denies changes of `appendonly` and other directives that a load
    /// depends on. While the append-only file is being reopened, these changes are permitted,
    /// because `CONFIG SET appendonly` repeats or ends the attempts to open the file.
    pub fn denies_changes(&self, refusals: Refusals) -> bool {
        // At the end of a load at startup, commands are accepted shortly before `is_startup`
        // becomes false. So both are checked.
        refusals.contains(Refusals::LOADING) && !self.is_reopening.load(Relaxed) || self.is_startup()
    }

    /// Records whether the append-only file is being reopened after a load.
    pub fn set_reopening(&self, is_reopening: bool) {
        self.is_reopening.store(is_reopening, Relaxed);
    }

    /// Records that a load has failed and left an empty dataset.
    pub fn note_failure(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Records that a shutdown was requested.
    pub fn note_shutdown(&self) {
        self.failures_at_shutdown.store(self.failures.load(Relaxed), Relaxed);
    }

    /// Returns whether a load has failed since the last shutdown was requested. If so, the shutdown
    /// must not replace the snapshot file by one without keys.
    pub fn has_failed_since_shutdown(&self) -> bool {
        self.failures.load(Relaxed) != self.failures_at_shutdown.load(Relaxed)
    }

    /// Returns whether the dataset is being loaded at startup.
    pub fn is_startup(&self) -> bool {
        // Acquire: see `end`.
        self.is_startup.load(Acquire)
    }

    /// Returns whether a load at startup is running and counts as short. A load that is delayed by
    /// `key-load-delay` counts as short only until the length of its files is known.
    fn is_short(&self) -> bool {
        let has_length = self.total_bytes.load(Relaxed) > 0;
        let is_delayed = self.delay.load(Relaxed) != 0;
        self.is_startup() && (!has_length || !is_delayed && self.loaded_bytes() < SHORT_BYTES)
    }

    /// Sets `key-load-delay`: n > 0 sleeps n µs per key, -n sleeps 1 µs per n keys, and 0 does not
    /// sleep.
    pub fn set_delay(&self, delay: i64) {
        self.delay.store(delay, Relaxed);
    }

    /// Sleeps before a key is loaded, according to `key-load-delay`. Does nothing once the server
    /// is stopping.
    #[inline]
    pub fn delay_key(&self, server: &Server) {
        let delay = self.delay.load(Relaxed);
        if delay != 0 && !server.is_stopping() {
            self.sleep(delay);
        }
    }

    #[cold]
    fn sleep(&self, delay: i64) {
        let is_due = delay > 0 || self.delayed.fetch_add(1, Relaxed).is_multiple_of(delay.unsigned_abs());
        if is_due {
            std::thread::sleep(Duration::from_micros(delay.max(1).unsigned_abs()));
        }
    }

    /// Notes the memory usage that the loaded file states, bytes.
    pub fn note_used_bytes(&self, bytes: u64) {
        self.used_bytes.store(bytes, Relaxed);
    }

    /// Returns the number of bytes that have been read.
    pub fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes.load(Relaxed)
    }

    /// Sets the number of bytes that have been read. Called before a part of a file is read a
    /// second time, so that this part doesn't count twice.
    pub fn set_loaded_bytes(&self, bytes: u64) {
        self.loaded_bytes.store(bytes, Relaxed);
    }

    /// Adds to the number of bytes that have been read.
    pub fn add_loaded_bytes(&self, bytes: u64) {
        self.loaded_bytes.fetch_add(bytes, Relaxed);
    }

    /// Notes the length of all files to load.
    pub fn note_total_bytes(&self, bytes: u64) {
        self.total_bytes.store(bytes, Relaxed);
    }
}

fn percentage(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole as f64
}

/// Starts a load. Commands that need the dataset are rejected until [`end`].
pub fn begin(server: &Server, is_startup: bool) {
    let loading = &server.snapshots().loading;
    for bytes in [&loading.total_bytes, &loading.loaded_bytes, &loading.used_bytes] {
        bytes.store(0, Relaxed);
    }
    loading.is_startup.store(is_startup, Relaxed);
    if is_startup {
        loading.set_incomplete(true);
    }
    loading.started_s.store(server.now_ms() / 1000, Relaxed);
    server.keyspace().tuning.set_refusals(Refusals::LOADING, true);
}

/// Ends a load. Commands that need the dataset are accepted again. The caller has recorded that the
/// dataset is complete ([`Loading::set_incomplete`]), and has then released the shards.
pub fn end(server: &Server) {
    server.keyspace().tuning.set_refusals(Refusals::LOADING, false);
    while faults::is_set(Fault::SlowLoadEnd) && !server.is_stopping() {
        std::thread::sleep(SHORT_PAUSE);
    }
    let loading = &server.snapshots().loading;
    loading.started_s.store(0, Relaxed);
    // This store comes last: after a load at startup, the link thread waits for it, and may then
    // begin a load of its own. Release, so that the link thread's load sees the changes above.
    loading.is_startup.store(false, Release);
}

/// Waits until the load at startup has ended or no longer counts as short, but for at most
/// [`SHORT_PAUSES_MAX`] pauses. So clients that connect while a small dataset is loaded normally
/// don't get `-LOADING`. Redis, too, serves no client until it has loaded [`SHORT_BYTES`].
pub fn wait_while_short(server: &Server) {
    let loading = &server.snapshots().loading;
    for _ in 0..SHORT_PAUSES_MAX {
        if server.is_stopping() || !loading.is_short() {
            break;
        }
        std::thread::sleep(SHORT_PAUSE);
    }
}

/// A file that is being loaded. Counts the bytes that are read. Once the server is stopping,
/// reading fails.
pub struct Watched<'f> {
    /// The file.
    pub file: &'f File,
    /// The server that loads the file.
    pub server: &'f Server,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.server.is_stopping() {
            return Err(io::Error::other("the server is stopping"));
        }
        let len = self.file.read(buf)?;
        self.server.snapshots().loading.add_loaded_bytes(len as u64);
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_is_estimated_from_the_bytes() {
        let loading = Loading::default();
        assert_eq!(loading.progress(1_000), None);
        loading.started_s.store(1_000, Relaxed);
        loading.note_total_bytes(400);
        loading.loaded_bytes.store(99, Relaxed);
        let progress = loading.progress(1_000).expect("it is running");
        assert_eq!((progress.left_s, progress.loaded_percent), (1, 24.75));
        assert_eq!(loading.progress(1_010).expect("it is running").left_s, 30);
        loading.note_total_bytes(0);
        let shown = |loading: &Loading| loading.progress(1_010).map(|shown| (shown.left_s, shown.loaded_percent));
        assert_eq!(shown(&loading), Some((0, 0.0)));
        loading.note_used_bytes(400);
        assert_eq!(shown(&loading), Some((30, 24.75)));
        loading.note_used_bytes(90);
        assert_eq!(shown(&loading), Some((0, 99.99)));
    }

    #[test]
    fn a_failure_counts_for_the_shutdown_that_was_requested_before_it() {
        let loading = Loading::default();
        loading.note_shutdown();
        assert!(!loading.has_failed_since_shutdown());
        loading.note_failure();
        assert!(loading.has_failed_since_shutdown());
        loading.note_shutdown();
        assert!(!loading.has_failed_since_shutdown(), "an empty dataset may be saved later");
    }

    #[test]
    fn only_the_start_of_an_undelayed_load_at_startup_is_short() {
        let loading = Loading::default();
        assert!(!loading.is_short(), "no load is running");
        loading.is_startup.store(true, Relaxed);
        assert!(loading.is_short());
        loading.set_delay(1);
        assert!(loading.is_short(), "INFO would report a length of 0");
        loading.note_total_bytes(2 * SHORT_BYTES);
        assert!(!loading.is_short());
        loading.set_delay(0);
        loading.set_loaded_bytes(SHORT_BYTES);
        assert!(!loading.is_short());
    }
}
