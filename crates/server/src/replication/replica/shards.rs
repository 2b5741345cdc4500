//! The worker that owns the link, and the shards that a worker acquires for the link thread.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pantala_engine::message::Message;
use pantala_engine::ownership::Ownership;

use super::WAKE_EVERY;
use crate::host::Server;

/// The value of [`LinkWorker`] if there is no link.
const NO_WORKER: u32 = u32::MAX;

/// The worker that owns the link to the primary.
pub struct LinkWorker(AtomicU32);

impl Default for LinkWorker {
    fn default() -> Self {
        LinkWorker(AtomicU32::new(NO_WORKER))
    }
}

impl LinkWorker {
    /// Returns the worker that owns the link; `None` if there is no link.
    pub fn get(&self) -> Option<u32> {
        let worker = self.0.load(Relaxed);
        (worker != NO_WORKER).then_some(worker)
    }

    /// Records which worker owns the link.
    pub fn set(&self, worker: Option<u32>) {
        self.0.store(worker.unwrap_or(NO_WORKER), Relaxed);
    }
}

/// Passes all shards from the worker that has acquired them to the link thread. The lock of this
/// value is the last in the order of locks.
#[derive(Default)]
pub struct Shards {
    owned: Mutex<Option<Vec<Ownership>>>,
    arrived: Condvar,
    /// Number of workers that may still run a command admitted before the load started. Only the
    /// worker that acquires the shards accesses this number.
    unsettled: AtomicU32,
}

impl Shards {
    fn lock(&self) -> MutexGuard<'_, Option<Vec<Ownership>>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of workers that have to settle before the shards are acquired.
    pub fn expect_settled(&self, workers: u32) {
        self.unsettled.store(workers, Relaxed);
    }

    /// Counts a worker as settled. Returns whether it was the last.
    pub fn note_settled(&self) -> bool {
        self.unsettled.fetch_sub(1, Relaxed) == 1
    }

    /// Passes shards that a worker has acquired to the link thread.
    pub fn deliver(&self, owned: Vec<Ownership>) {
        *self.lock() = Some(owned);
        self.arrived.notify_all();
    }

    /// Acquires all shards for the link thread. Returns `None` if the server stops.
    pub(in crate::replication) fn take_all(&self, server: &Server) -> Option<Vec<Ownership>> {
        server.port(server.facts().first_io_worker).send(Message::TakeAll);
        let mut owned = self.lock();
        loop {
            if let Some(owned) = owned.take() {
                return Some(owned);
            }
            if server.is_stopping() {
                return None;
            }
            owned = self.arrived.wait_timeout(owned, WAKE_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
