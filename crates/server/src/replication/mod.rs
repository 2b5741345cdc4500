//! Replication: the state that all workers share. The protocol is in `pantala_replication`, without
//! sockets; here it meets them.
//!
//! | file | what |
//! | --- | --- |
//! | `primary/commands` | `SYNC`, `PSYNC`, `REPLCONF`, `ROLE` |
//! | `primary/following` | what the connection of a replica is sent next |
//! | `primary/full_sync` | a snapshot for the replicas that wait for one |
//! | `primary/waits` | `WAIT` |
//! | `primary/drain` | holds writes back until replicas have everything; continues a saved history |
//! | `replica` | the state of a replica, and `REPLICAOF` |
//! | `link` | the thread that connects to a primary, shakes hands and receives a snapshot |
//! | `load` | replaces the dataset by that of a primary |
//! | `primary/care` | timeouts, the backlog's end, replicas that are good enough for writes |
//!
//! # Who owns what
//!
//! | what | owner |
//! | --- | --- |
//! | history, table of replicas, pending `WAIT`s | [`Replication`], behind a lock |
//! | what a replica is sent next ([`Link`]) | a lock, taken by its worker and the full sync |
//! | the stream | the journal's log, which replicas share |
//!
//! No thread holds two of these locks.
//!
//! When the stream of a primary starts, the thread hands the socket over to a worker, which runs
//! its commands as those of any client ([`pantala_engine::client::PrimaryLink`],
//! `clients/primary.rs`).

mod link;
mod load;
mod primary;
pub mod replica;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pantala_base::Random;
use pantala_engine::pause::Pause;
use pantala_replication::{History, ReplId, Replicas};

use crate::host::Server;
use primary::{Link, PendingWait};
pub use replica::{Address, Phase, Replica, Shown, Transfer};

/// Counters of syncs, for `INFO stats`.
#[derive(Debug, Default)]
pub struct Syncs {
    /// Full syncs.
    pub full: AtomicU64,
    /// Accepted partial syncs.
    pub partial_ok: AtomicU64,
    /// Partial syncs that became full ones.
    pub partial_err: AtomicU64,
}

/// The state behind the lock.
pub struct State {
    /// The history of the dataset.
    pub history: History,
    /// The replicas.
    pub replicas: Replicas,
    links: Vec<Arc<Link>>,
    waits: Vec<PendingWait>,
    /// The stream is kept for replicas, attached or not.
    has_backlog: bool,
    /// The pause that holds writes back before a shutdown.
    drain: Option<Pause>,
    /// The stream is complete: nothing is written any more.
    is_drained: bool,
    /// When the last replica left, monotonic, ms.
    alone_since_ms: Option<i64>,
    random: Random,
}

impl State {
    /// Returns a new random ID.
    pub fn new_id(&mut self) -> ReplId {
        ReplId::random(&mut self.random)
    }
}

/// Replication: the state that all workers share.
pub struct Replication {
    state: Mutex<State>,
    server: OnceLock<Weak<Server>>,
    /// A full sync is being prepared or is writing its snapshot.
    is_syncing: AtomicBool,
    /// Counters.
    pub syncs: Syncs,
    /// This server as a replica.
    pub replica: Replica,
}

impl Replication {
    /// Returns the state of a server without replicas.
    #[must_use]
    pub fn new(mut random: Random) -> Self {
        let state = State {
            history: History::new(ReplId::random(&mut random)),
            replicas: Replicas::default(),
            links: Vec::new(),
            waits: Vec::new(),
            has_backlog: false,
            drain: None,
            is_drained: false,
            alone_since_ms: None,
            random,
        };
        Replication {
            state: Mutex::new(state),
            server: OnceLock::new(),
            is_syncing: AtomicBool::new(false),
            syncs: Syncs::default(),
            replica: Replica::default(),
        }
    }

    /// Sets the server that it belongs to, once.
    pub fn set_server(&self, server: Weak<Server>) {
        // Only the first call counts.
        let _ = self.server.set(server);
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Returns the state, locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the counters (`CONFIG RESETSTAT`).
    pub fn reset_stats(&self) {
        for counter in [&self.syncs.full, &self.syncs.partial_ok, &self.syncs.partial_err] {
            counter.store(0, Relaxed);
        }
    }
}
