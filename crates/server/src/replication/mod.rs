//! Replication: the state that all workers share, and the sockets. The crate `pantala_replication`
//! has the protocol without sockets, and defines the protocol's terms.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | unit | the effects (propagated changes) of one command, transaction or script |
//! | stream | the bytes that replicas receive; on a primary, the server's own units |
//! | log | the last part of the stream, in memory and on disk. The journal's thread appends to it |
//! | reader | a consumer of the log at its own position, such as a replica |
//! | recorded | the stream is being appended to the log, because it has readers |
//! | backlog | the part of the log that is kept for replicas, even if none is attached |
//! | history | the stream under one replication ID |
//! | link | the connection between a primary and a replica; [`Link`] is its state at the primary |
//! | term | a period during which this server follows the same primary, or none ([`replica`]) |
//! | promotion | a replica becomes a primary, and continues the stream that it has applied |
//!
//! # Files
//!
//! | file | purpose |
//! | --- | --- |
//! | `primary/commands` | `SYNC`, `PSYNC`, `REPLCONF`, `ROLE` |
//! | `primary/following` | reads the next bytes to send to a replica |
//! | `primary/full_sync` | sends a snapshot to the replicas that wait for one |
//! | `primary/flows` | the further connections of a full sync with flows |
//! | `primary/shared_feed` | the bytes of a snapshot that replicas have not read yet |
//! | `primary/info` | `INFO replication` of a primary |
//! | `primary/waits` | `WAIT`, `WAITAOF` |
//! | `primary/drain` | before a shutdown, holds back writes until replicas have the whole stream |
//! | `replica` | the state of a replica, and `REPLICAOF` |
//! | `replica/stream` | switches this server's stream when its role changes |
//! | `replica/shards` | passes all shards from a worker to the link thread |
//! | `link` | the thread that connects to a primary and receives its snapshot |
//! | `incoming` | a snapshot that is loaded while it arrives |
//! | `flows` | receives the flows of a snapshot, each on a thread of its own |
//! | `received` | a snapshot that is kept in a file or in memory until it is complete |
//! | `socket` | the socket of that thread, plain or encrypted |
//! | `load` | replaces the dataset by that of a primary |
//! | `spill` | the thread that keeps the older part of the stream on disk |
//! | `unnamed` | temporary files without a name |
//! | `relay` | the stream of a replica, which consists of its primary's bytes |
//! | `promotion` | continues the stream of the former primary after `REPLICAOF NO ONE` |
//! | `failover` | `FAILOVER`: hands the role of the primary over to a replica |
//! | `primary/care` | the table of replicas, the release of the backlog, `min-replicas-to-write` |
//!
//! # Ownership
//!
//! | state | owner |
//! | --- | --- |
//! | the right to change the role ([`replica`]) | a lock of its own in [`Replica`] |
//! | the state of this server as a replica | [`Replica`], behind a lock |
//! | history, table of replicas, pending `WAIT`s | [`Replication`], behind a lock |
//! | the next bytes for a replica | [`Link`] (one for each replica), behind a lock |
//! | the stream | the log, which all replicas share, behind a lock |
//! | the state of a failover | [`Failovers`], behind a lock |
//!
//! A thread that holds one of these locks may take another only in this order:
//!
//! 1. the right to change the role;
//! 2. the lock of [`Replica`];
//! 3. the lock of [`Replication`];
//! 4. the lock of a [`Link`];
//! 5. the lock of the log or of a failover.
//!
//! # Offsets
//!
//! An offset of a history is a position in the stream. On a primary, the stream consists of the
//! server's own units. On a replica, it consists of the primary's bytes (`relay`). A promotion or a
//! demotion switches between these two sources at the end of the stream. The log keeps the part of
//! the stream from before the switch.
//!
//! When the primary's stream starts, the link thread hands over the socket to a worker. The worker
//! runs the commands of the stream like those of a client ([`pantala_engine::client::PrimaryLink`],
//! `clients/primary.rs`).

mod failover;
mod flows;
mod incoming;
mod link;
mod load;
mod primary;
mod promotion;
mod received;
mod relay;
pub mod replica;
mod socket;
mod spill;
mod unnamed;

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pantala_base::Random;
use pantala_replication::{History, ReplId, Replicas};

use crate::host::Server;
pub use failover::Failovers;
pub use primary::end_local_waits;
use primary::{AnnouncedFlows, Asker, Draining, Link, PendingWait};
use promotion::Promotions;
pub use replica::{Address, PauseInLoad, Phase, Replica, Shown, Transfer};
use socket::Handover;
use spill::Spilling;
pub use spill::limits as spill_limits;

/// Counters of syncs, for `INFO stats`.
#[derive(Debug, Default)]
pub struct Syncs {
    /// Full syncs.
    pub full: AtomicU64,
    /// Accepted partial resyncs.
    pub partial_ok: AtomicU64,
    /// Requests for a partial resync that became full syncs.
    pub partial_err: AtomicU64,
    /// Number of flows of the last full sync of a replica of this server.
    pub flows_sent: AtomicU64,
    /// Number of flows of the last snapshot that this server has received.
    pub flows_received: AtomicU64,
}

impl Syncs {
    /// Resets the counters (`CONFIG RESETSTAT`).
    pub fn reset(&self) {
        for counter in [&self.full, &self.partial_ok, &self.partial_err] {
            counter.store(0, Relaxed);
        }
    }
}

/// The position from which a replica may continue.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    /// The ID of the history.
    id: ReplId,
}

/// The state behind the lock of [`Replication`].
pub struct State {
    /// The history of the dataset.
    pub history: History,
    /// The replicas.
    pub replicas: Replicas,
    links: Vec<Arc<Link>>,
    /// The flows that replicas may request.
    flows: Vec<AnnouncedFlows>,
    waits: Vec<PendingWait>,
    promotions: Promotions,
    /// Requests for data (`SYNC`, `PSYNC`) that have arrived during a promotion and wait until the
    /// promotion ends.
    deferred: Vec<Asker>,
    /// Whether a replica has attached since the history got its current ID. Only such a replica
    /// knows this ID.
    has_announced_id: bool,
    /// The ID that the history gets at the end of a promotion.
    next_id: Option<ReplId>,
    /// The database that the stream had selected where the history with the former ID ended.
    former_db: u32,
    /// Whether the stream is kept for replicas, attached or not.
    has_backlog: bool,
    /// The pending shutdown, if any.
    pub draining: Draining,
    /// Time since which no replica has been attached, in ms of the monotonic clock. `None` if
    /// `repl-backlog-ttl` does not apply.
    alone_since_ms: Option<i64>,
    random: Random,
}

impl State {
    /// Returns a new random ID.
    pub fn new_id(&mut self) -> ReplId {
        ReplId::random(&mut self.random)
    }

    /// Continues the history under another ID, starting at `offset`, where the stream has selected
    /// the database `db`.
    fn continue_as(&mut self, own: ReplId, offset: u64, db: u32) {
        self.history.continue_as(own, offset);
        self.former_db = db;
        self.has_announced_id = false;
    }
}

/// Replication: the state that all workers share.
pub struct Replication {
    state: Mutex<State>,
    server: OnceLock<Weak<Server>>,
    /// The current failover, if any.
    pub failovers: Failovers,
    /// Whether a full sync is being prepared or is writing its snapshot.
    is_syncing: AtomicBool,
    /// The thread that keeps the older part of the stream on disk.
    spilling: Spilling,
    /// Counters of syncs.
    pub syncs: Syncs,
    /// The state of this server as a replica.
    pub replica: Replica,
    /// The TLS state of the link to the primary, while the link thread hands the link over to a
    /// worker.
    pub encrypted: Handover,
}

impl Replication {
    /// Returns the state of a server without replicas.
    #[must_use]
    pub fn new(mut random: Random) -> Self {
        let state = State {
            history: History::new(ReplId::random(&mut random)),
            replicas: Replicas::default(),
            links: Vec::new(),
            flows: Vec::new(),
            waits: Vec::new(),
            promotions: Promotions::default(),
            deferred: Vec::new(),
            has_announced_id: false,
            next_id: None,
            former_db: 0,
            has_backlog: false,
            draining: Draining::default(),
            alone_since_ms: None,
            random,
        };
        Replication {
            state: Mutex::new(state),
            server: OnceLock::new(),
            failovers: Failovers::default(),
            is_syncing: AtomicBool::new(false),
            spilling: Spilling::default(),
            syncs: Syncs::default(),
            replica: Replica::default(),
            encrypted: Handover::default(),
        }
    }

    /// Sets the server that this state belongs to.
    pub fn set_server(&self, server: Weak<Server>) {
        // Only the first call has an effect.
        let _ = self.server.set(server);
    }

    /// Returns the range of the stream's offsets that the log holds, and whether the stream is
    /// recorded (has readers).
    pub fn held(&self, server: &Server) -> (Range<u64>, bool) {
        server.keyspace().journal().held()
    }

    /// Returns a weak reference to the server, for threads that may outlive it.
    pub fn shared(&self) -> Weak<Server> {
        self.server.get().cloned().unwrap_or_default()
    }

    fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Returns the state, locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
