//! Replication: the state that all workers share, and the sockets. The protocol, without sockets,
//! is in `pantala_replication`.
//!
//! | file | what |
//! | --- | --- |
//! | `primary/commands` | `SYNC`, `PSYNC`, `REPLCONF`, `ROLE` |
//! | `primary/following` | the next bytes to send to a replica |
//! | `primary/full_sync` | a snapshot for the replicas that wait for one |
//! | `primary/waits` | `WAIT` |
//! | `primary/drain` | holds back writes until replicas have the whole stream; continues a saved history |
//! | `replica` | the state of a replica, and `REPLICAOF` |
//! | `link` | the thread that connects to a primary, shakes hands and receives a snapshot |
//! | `load` | replaces the dataset by that of a primary |
//! | `promotion` | continues the stream of the former primary after `REPLICAOF NO ONE` |
//! | `failover` | `FAILOVER`: hands the role over to a replica |
//! | `primary/care` | timeouts, the backlog's end, replicas that are good enough for writes |
//!
//! # Ownership
//!
//! | state | owner |
//! | --- | --- |
//! | history, table of replicas, pending `WAIT`s | [`Replication`], behind a lock |
//! | what a replica is sent next ([`Link`]) | a lock, shared by its worker and the full sync |
//! | the stream | the journal's log, which replicas share |
//! | the state of a failover | a lock of its own |
//!
//! No thread holds two of these locks at a time, except that [`Replication`]'s may be held when
//! that of the log or of a failover is taken.
//!
//! # Offsets
//!
//! An offset of a history is an offset of the log plus a base. The base changes when a promoted
//! replica continues its primary's history: the log stays, since other readers may have positions
//! in it. While the base may change, no replica has a position.
//!
//! When the stream of a primary starts, the thread hands the socket over to a worker, which runs
//! its commands as those of any client ([`pantala_engine::client::PrimaryLink`],
//! `clients/primary.rs`).

mod failover;
mod link;
mod load;
mod primary;
mod promotion;
pub mod replica;

use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pantala_base::Random;
use pantala_engine::pause::Pause;
use pantala_replication::{History, ReplId, Replicas};

use crate::host::Server;
pub use failover::Failovers;
use primary::{Asker, Link, PendingWait};
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

/// Where a replica may continue.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    /// The history, and the base of its offsets.
    of: (ReplId, u64),
}

/// The state behind the lock.
pub struct State {
    /// The history of the dataset.
    pub history: History,
    /// The replicas.
    pub replicas: Replicas,
    links: Vec<Arc<Link>>,
    waits: Vec<PendingWait>,
    /// Promotions in progress, and the connections that have asked for data meanwhile.
    promotions: u32,
    deferred: Vec<Asker>,
    /// A replica has attached since the history got its ID.
    has_told_id: bool,
    /// The stream is kept for replicas, attached or not.
    has_backlog: bool,
    /// The pause that holds back writes before a shutdown.
    drain: Option<Pause>,
    /// The stream is complete, because no more writes run.
    is_drained: bool,
    /// When the last replica disconnected, in ms of the monotonic clock.
    alone_since_ms: Option<i64>,
    random: Random,
}

impl State {
    /// Returns a new random ID.
    pub fn new_id(&mut self) -> ReplId {
        ReplId::random(&mut self.random)
    }

    /// Continues the history under another ID from `offset` on.
    fn shift(&mut self, own: ReplId, offset: u64) {
        self.history.shift(own, offset);
        self.has_told_id = false;
    }
}

/// Replication: the state that all workers share.
pub struct Replication {
    state: Mutex<State>,
    server: OnceLock<Weak<Server>>,
    /// What an offset of the history is more than that of the log, modulo 2^64.
    base: AtomicU64,
    /// The offset of the log from which on it is the stream of the history: what it holds from
    /// before a promotion is other bytes.
    floor: AtomicU64,
    /// The failover, if there is one.
    pub failovers: Failovers,
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
            promotions: 0,
            deferred: Vec::new(),
            has_told_id: false,
            has_backlog: false,
            drain: None,
            is_drained: false,
            alone_since_ms: None,
            random,
        };
        Replication {
            state: Mutex::new(state),
            server: OnceLock::new(),
            base: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            failovers: Failovers::default(),
            is_syncing: AtomicBool::new(false),
            syncs: Syncs::default(),
            replica: Replica::default(),
        }
    }

    /// Sets the server that this state belongs to.
    pub fn set_server(&self, server: Weak<Server>) {
        // Only the first call has an effect.
        let _ = self.server.set(server);
    }

    /// Returns the offset of the history for one of the log.
    fn offset_of(&self, log_offset: u64) -> u64 {
        log_offset.wrapping_add(self.base.load(Relaxed))
    }

    /// Returns the history and the base of its offsets.
    fn stream_of(&self, state: &State) -> (ReplId, u64) {
        (state.history.id(), self.base.load(Relaxed))
    }

    /// Returns the offsets of the stream that are held, and whether it is recorded.
    pub fn held(&self, server: &Server) -> (Range<u64>, bool) {
        // A thread that sees a base also sees its floor.
        let base = self.base.load(Acquire);
        let floor = self.floor.load(Relaxed);
        let (held, is_recorded) = server.keyspace().journal().held();
        let start = held.start.max(floor).min(held.end);
        (start.wrapping_add(base)..held.end.wrapping_add(base), is_recorded)
    }

    /// Makes the log the stream of the history from `start` on, which is its `offset`.
    fn rebase(&self, start: u64, offset: u64) {
        self.floor.store(start, Relaxed);
        self.base.store(offset.wrapping_sub(start), Release);
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
