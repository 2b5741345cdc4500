//! The worker that owns the link (the connection to the primary), and the shards that a worker
//! acquires for the link thread. This thread connects to the primary and loads its snapshot, for
//! which it needs all shards. Afterwards a worker owns the link.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use pantala_engine::message::Message;
use pantala_engine::ownership::Ownership;
use pantala_engine::pubsub::Listener;

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

/// Whether the load of a primary's snapshot waits for the shards or holds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No load is running.
    #[default]
    Free,
    /// A load waits for the shards.
    Wanted,
    /// A load holds the shards.
    Held,
}

/// How a pause comes into force. `CLIENT PAUSE` starts a pause, and `REPLICAOF` starts
/// one until the earlier commands have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseInLoad {
    /// Acquire all shards: no load is running.
    Acquires,
    /// Wait for [`Message::LoadHolds`]: the load will hold all shards once earlier commands have
    /// run.
    Waits,
    /// Nothing: the load holds all shards, so no command runs on them.
    Holds,
}

#[derive(Default)]
struct State {
    stage: Stage,
    /// Shards that the link thread has not taken yet.
    owned: Option<Vec<Ownership>>,
    /// The connections whose pauses wait until the load holds the shards.
    pauses: Vec<Listener>,
}

/// Passes all shards from the worker that has acquired them to the link thread. The lock of this
/// value is the last in the order of locks.
#[derive(Default)]
pub struct Shards {
    state: Mutex<State>,
    arrived: Condvar,
    /// Number of workers that may still run a command admitted before the load started. Only the
    /// worker that acquires the shards accesses this number.
    unsettled: AtomicU32,
}

impl Shards {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a load waits for the shards. Must be called before commands are rejected with
    /// `-LOADING`.
    pub(in crate::replication) fn want(&self) {
        self.lock().stage = Stage::Wanted;
    }

    /// Notes that no load needs the shards any more.
    pub(in crate::replication) fn release(&self) {
        *self.lock() = State::default();
    }

    /// Returns what the pause of a connection must do. A pause that acquires all shards gets them
    /// before any load that starts later: the pause's worker requests the shards before it counts
    /// as settled ([`Self::note_settled`]), and the load waits until all workers are settled.
    pub fn pause(&self, connection: Listener) -> PauseInLoad {
        let mut state = self.lock();
        match state.stage {
            Stage::Free => PauseInLoad::Acquires,
            Stage::Wanted => {
                state.pauses.push(connection);
                PauseInLoad::Waits
            }
            Stage::Held => PauseInLoad::Holds,
        }
    }

    /// Sets the number of workers that have to settle before the shards are acquired.
    pub fn expect_settled(&self, workers: u32) {
        self.unsettled.store(workers, Relaxed);
    }

    /// Counts a worker as settled. Returns whether it was the last.
    pub fn note_settled(&self) -> bool {
        self.unsettled.fetch_sub(1, Relaxed) == 1
    }

    /// Passes to the link thread the shards that a worker has acquired for it. Returns the
    /// connections whose pauses waited for this.
    #[must_use]
    pub fn deliver(&self, owned: Vec<Ownership>) -> Vec<Listener> {
        let mut state = self.lock();
        state.stage = Stage::Held;
        state.owned = Some(owned);
        self.arrived.notify_all();
        std::mem::take(&mut state.pauses)
    }

    /// Acquires all shards for the link thread. Returns `None` if the server stops.
    pub(in crate::replication) fn take_all(&self, server: &Server) -> Option<Vec<Ownership>> {
        server.port(server.facts().first_io_worker).send(Message::TakeAll);
        let mut state = self.lock();
        loop {
            if let Some(owned) = state.owned.take() {
                return Some(owned);
            }
            if server.is_stopping() {
                return None;
            }
            state = self.arrived.wait_timeout(state, WAKE_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
