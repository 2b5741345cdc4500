//! What the threads of a load share with who watches them.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use hdrhistogram::Histogram;

use super::tally::histogram;

pub(super) struct Shared {
    /// Set from outside: no request is begun any more.
    pub(super) stop: Arc<AtomicBool>,
    /// Operations published so far. Statistics: needs no order.
    pub(super) operations: AtomicU64,
    /// Latencies since the watcher last looked.
    pub(super) interval: Mutex<Histogram<u64>>,
}

impl Shared {
    pub(super) fn new(stop: Arc<AtomicBool>) -> Self {
        Self { stop, operations: AtomicU64::new(0), interval: Mutex::new(histogram()) }
    }
}
