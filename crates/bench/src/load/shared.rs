//! The state that the threads of a load share with its watcher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hdrhistogram::Histogram;

use super::tally::{Tally, histogram};

pub(super) struct Shared {
    /// Set from outside: no request is sent any more.
    pub(super) stop: Arc<AtomicBool>,
    /// Operations published so far. Statistics: needs no ordering.
    pub(super) operations: AtomicU64,
    /// Latencies since the watcher's last sample.
    pub(super) interval: Mutex<Histogram<u64>>,
}

impl Shared {
    pub(super) fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, operations: AtomicU64::new(0), interval: Mutex::new(histogram()) }
    }

    /// Publishes what a thread has counted since the last call.
    pub(super) fn publish(&self, tally: &mut Tally) {
        // A thread that panicked with the lock held has ended the run anyway.
        let mut interval = self.interval.lock().unwrap_or_else(PoisonError::into_inner);
        let moved = tally.settle(&mut interval);
        self.operations.fetch_add(moved, Ordering::Relaxed);
    }
}
