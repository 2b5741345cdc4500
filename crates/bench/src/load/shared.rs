//! The state that the threads of a load share with the watcher, the thread that starts them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;

use super::tally::{Tally, histogram};

pub(super) struct Shared {
    /// The flag that stops the run. While it is set, no further requests are sent.
    pub(super) stop: Arc<AtomicBool>,
    /// Number of operations published so far. The number is a statistic, so relaxed ordering
    /// suffices.
    pub(super) operations: AtomicU64,
    /// The latencies since the watcher's last sample.
    pub(super) interval: Mutex<Histogram<u64>>,
}

impl Shared {
    pub(super) fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, operations: AtomicU64::new(0), interval: Mutex::new(histogram()) }
    }

    /// Publishes the counts that a thread has made since its last call.
    pub(super) fn publish(&self, tally: &mut Tally) {
        // A poisoned lock is accepted. It means that a thread has panicked, and the run then fails
        // anyway.
        let mut interval = self.interval.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = tally.settle(&mut interval);
        self.operations.fetch_add(moved, Ordering::Relaxed);
    }
}
