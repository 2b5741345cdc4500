//! The state of a replica: the primary that it follows, and how much of the stream it has applied.
//! `REPLICAOF` changes the primary. The applied offset is set by the link thread (`link.rs`), and
//! later by the worker that runs the commands of the stream.
//!
//! A *term* is a period during which this server follows the same primary, or none. Each change of
//! the primary starts a new term. A connection attempt, a load or a link of an earlier term must
//! not change the state, and ends as soon as it finds that its term is over.

mod shards;
mod stream;

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use pantala_engine::client::{Client, Followed, NewPrimary, Progress};
use pantala_engine::message::Message;
use pantala_engine::tuning::refusal::Refusals;
use pantala_replication::ReplId;
use pantala_replication::replica::Position;

use super::{link, promotion};
use crate::config::Settings;
pub use crate::config::replica::Address;
use crate::host::{Server, admit_link};
use crate::process;
pub use shards::PauseInLoad;
use shards::{LinkWorker, Shards};

/// The state of the link to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The link thread is about to connect.
    Connect,
    /// The socket is being connected.
    Connecting,
    /// The handshake is in progress.
    Handshake,
    /// The replica waits for a snapshot, receives it or loads it.
    Sync,
    /// The stream is being applied.
    Connected,
}

impl Phase {
    /// Returns the phase's name in `ROLE`.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Connect => "connect",
            Phase::Connecting => "connecting",
            Phase::Handshake => "handshake",
            Phase::Sync => "sync",
            Phase::Connected => "connected",
        }
    }
}

/// The progress of a snapshot that is being received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Transfer {
    /// Length of the snapshot, bytes, if the primary has sent it.
    pub total_bytes: Option<u64>,
    /// Bytes received.
    pub read_bytes: u64,
}

/// The state as `INFO` and `ROLE` show it.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The primary's address.
    pub primary: Address,
    /// The state of the link.
    pub phase: Phase,
    /// The snapshot that is being received.
    pub transfer: Option<Transfer>,
    /// For how long the link has been down, s.
    pub down_s: u64,
    /// When bytes last arrived, Unix time in ms; 0 if none have arrived.
    pub received_ms: i64,
    /// Offset up to which the stream was applied, and offset up to which it was received.
    pub offsets: (u64, u64),
}

/// The position from which the stream can be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) position: Position,
    /// The database that the stream has selected at this position.
    pub(super) db: u32,
}

impl Known {
    /// Returns the position at which another server takes over as the primary. The database of the
    /// position doesn't matter, because the new primary's stream starts by selecting a database.
    pub(super) fn at(id: ReplId, offset: u64) -> Known {
        Known { position: Position { id, offset }, db: 0 }
    }
}

/// The parameters of the next connection attempt.
pub(super) struct Wanted {
    pub(super) primary: Address,
    pub(super) term: u64,
    pub(super) known: Option<Known>,
    /// Whether the dataset is at the end of this server's own stream, and this end has not been
    /// recorded yet.
    pub(super) is_own: bool,
}

struct State {
    primary: Option<Address>,
    phase: Phase,
    transfer: Option<Transfer>,
    known: Option<Known>,
    /// Whether the dataset is at the end of this server's own stream, and this end has not been
    /// recorded yet.
    is_own: bool,
    down_since: Instant,
    /// During a promotion: the end of the former primary's stream, which the dataset has reached.
    former: Option<Known>,
    has_thread: bool,
    /// Whether no link may be established, because the server is about to stop.
    is_held: bool,
    /// The term of the link, while a worker owns the link.
    link: Option<u64>,
}

/// The right to change the role of this server. A thread acquires it before it checks whether the
/// role may change, and keeps it until it has changed the state and the setting `replicaof`. This
/// right must be acquired before any other lock. Its owner waits for nothing except locks.
pub(super) struct RoleLock<'s> {
    server: &'s Server,
    _guard: MutexGuard<'s, ()>,
}

/// The state of this server as a replica.
pub struct Replica {
    state: Mutex<State>,
    changed: Condvar,
    /// The lock of [`RoleLock`].
    role: Mutex<()>,
    /// Number of the current term.
    term: AtomicU64,
    progress: Arc<Progress>,
    /// Memory of a snapshot that is being received or loaded (`repl-diskless-load swapdb`), bytes.
    pub snapshot_bytes: AtomicU64,
    /// The worker that owns the link.
    pub link_worker: LinkWorker,
    /// All shards, while a worker passes them to the link thread.
    pub shards: Shards,
    /// Serializes publications of the role, so that no older role replaces a newer one.
    publishing: Mutex<()>,
    server: OnceLock<Weak<Server>>,
}

impl Default for Replica {
    fn default() -> Self {
        let state = State {
            primary: None,
            phase: Phase::Connect,
            transfer: None,
            known: None,
            is_own: false,
            down_since: Instant::now(),
            former: None,
            has_thread: false,
            is_held: false,
            link: None,
        };
        Replica {
            state: Mutex::new(state),
            changed: Condvar::new(),
            role: Mutex::default(),
            term: AtomicU64::new(0),
            progress: Arc::default(),
            snapshot_bytes: AtomicU64::new(0),
            link_worker: LinkWorker::default(),
            shards: Shards::default(),
            publishing: Mutex::new(()),
            server: OnceLock::new(),
        }
    }
}

impl Replica {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock doesn't matter, because each field is valid on its own.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts to follow the primary that the settings name, if any. The link thread connects after
    /// the dataset has been loaded at startup.
    pub fn start(server: &Arc<Server>) {
        let replica = &server.replication().replica;
        // Can't fail: a server is started once.
        let _ = replica.server.set(Arc::downgrade(server));
        if let Some(address) = server.config().settings().replica.primary.clone() {
            RoleLock::of(server).change(Some(address));
        }
    }

    /// Returns the number of the current term.
    pub fn term(&self) -> u64 {
        self.term.load(Relaxed)
    }

    /// Returns the primary that this server follows.
    pub fn primary(&self) -> Option<Address> {
        self.lock().primary.clone()
    }

    /// Returns the replication ID of the stream that this replica applies. Returns `None` if the
    /// server is no replica, or does not have the primary's dataset yet.
    pub fn followed_id(&self) -> Option<ReplId> {
        let state = self.lock();
        state.primary.as_ref().and(state.known).map(|known| known.position.id)
    }

    /// Returns the ID of the former primary's stream and the offset at which this stream ended.
    /// Returns `None` if no promotion is in progress.
    pub fn former(&self) -> Option<(ReplId, u64)> {
        self.lock().former.map(|Known { position, .. }| (position.id, position.offset))
    }

    /// Returns whether the server is a replica whose link is down. Such a replica can't serve
    /// replicas of its own.
    pub fn lacks_link(&self) -> bool {
        let state = self.lock();
        state.primary.is_some() && state.phase != Phase::Connected
    }

    /// Returns how many of the primary's commands have failed.
    pub fn unexpected_errors(&self) -> u64 {
        self.progress.errors.load(Relaxed)
    }

    /// Returns the offset up to which the stream was applied.
    pub fn applied(&self) -> u64 {
        self.progress.applied.load(Relaxed)
    }

    /// Returns the state for `INFO` and `ROLE`; `None` if the server is no replica.
    pub fn shown(&self) -> Option<Shown> {
        let state = self.lock();
        let primary = state.primary.clone()?;
        let is_up = state.phase == Phase::Connected;
        Some(Shown {
            primary,
            phase: state.phase,
            transfer: state.transfer,
            down_s: if is_up { 0 } else { state.down_since.elapsed().as_secs() },
            received_ms: self.progress.received_ms.load(Relaxed),
            offsets: (self.progress.applied.load(Relaxed), self.progress.received.load(Relaxed)),
        })
    }

    /// Runs `REPLICAOF` for a client.
    pub fn follow(&self, server: &Server, primary: Option<Address>, client: &Client) -> Followed {
        let role = RoleLock::of(server);
        if server.replication().failovers.is_running() {
            return Followed::FailingOver;
        }
        if self.primary() == primary {
            if let Some(Address { .. }) = primary {
                tracing::info!(
                    "REPLICAOF would result into synchronization with the master we are already connected with. No operation performed."
                );
            }
            return Followed::Same;
        }
        match &primary {
            Some(Address { host, port }) => {
                tracing::info!("REPLICAOF {host}:{port} enabled (user request from '{}')", shown(client));
            }
            None => tracing::info!("MASTER MODE enabled (user request from '{}')", shown(client)),
        }
        role.change(primary);
        Followed::Changed
    }

    /// Starts to follow another primary, or none. Does so only if `check` finds no error in the
    /// current state. `own` is the end of this server's own stream, if known. The caller must own
    /// the [`RoleLock`].
    fn change<E>(
        &self,
        server: &Server,
        primary: Option<Address>,
        own: Option<Known>,
        check: impl FnOnce(&State) -> Result<(), E>,
    ) -> Result<(), E> {
        let (is_replica, setting) = (primary.is_some(), primary.clone());
        let mut is_promoted = false;
        let term;
        {
            let mut state = self.lock();
            check(&state)?;
            term = self.term.fetch_add(1, Relaxed) + 1;
            let was_replica = state.primary.is_some();
            if was_replica && !is_replica {
                // The former primary's stream ends at the offset that was applied.
                let has_link = state.link.is_some();
                state.former = state.known.take().map(|mut known| {
                    if has_link {
                        known.position.offset = self.applied();
                    }
                    known
                });
                state.is_own = false;
                log_promotion(state.former);
                is_promoted = true;
            } else if !was_replica {
                // If a promotion is in progress, writes are held back, so the dataset is still at
                // `former`. If no promotion is in progress, clients may have written, so the
                // dataset is at the end of this server's own stream.
                state.known = own.or(state.former.take());
                state.is_own = state.known.is_none();
            }
            state.primary = primary;
            state.phase = Phase::Connect;
            state.transfer = None;
            state.down_since = Instant::now();
        }
        server.config().note_replica_of(setting.as_ref().map(|it| (it.host.as_str(), it.port)));
        process::set_log_role(is_replica);
        // The result is ignored. As in Redis, a failure is logged and doesn't prevent the change of
        // role.
        process::adjust_oom_score(&server.config().settings().process, is_replica);
        if is_promoted {
            promotion::begin(server);
        }
        self.publish_role(server);
        self.end_link(server);
        if is_promoted {
            // In a failover, the thread of the promotion replies to the former primary's `PSYNC`.
            // So this thread must start only after the role has changed.
            promotion::run(server, term);
        }
        if is_replica {
            self.start_thread();
            server.keyspace().ports().iter().for_each(|port| port.send(Message::Demoted));
        }
        self.changed.notify_all();
        Ok(())
    }

    fn start_thread(&self) {
        if std::mem::replace(&mut self.lock().has_thread, true) {
            return;
        }
        let server = self.server.get().cloned().unwrap_or_default();
        let thread = std::thread::Builder::new().name("pantala-replica".into());
        if let Err(error) = thread.spawn(move || link::run(&server)) {
            tracing::warn!("Can't start the thread of the link to the master: {error}");
            self.lock().has_thread = false;
        }
    }

    /// Closes the connection of the link, if any.
    fn end_link(&self, server: &Server) {
        for client in server.keyspace().clients().all() {
            if client.is_primary.load(Relaxed) && !client.is_disconnected.load(Relaxed) {
                pantala_engine::client::Host::kill(server, &client);
            }
        }
    }

    /// Publishes what commands must know about the role: whether this server expires and evicts
    /// keys, and which commands it rejects.
    pub fn publish_role(&self, server: &Server) {
        self.tune(server, &server.config().settings());
    }

    /// Publishes the role like [`Replica::publish_role`], but with these settings.
    pub fn tune(&self, server: &Server, settings: &Settings) {
        let _publishing = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_replica, is_connected) = {
            let state = self.lock();
            (state.primary.is_some(), state.phase == Phase::Connected)
        };
        let tuning = &server.keyspace().tuning;
        tuning.set_replica(is_replica);
        // At once, so that a promoted server accepts no write that too few replicas would receive.
        server.replication().require_good_replicas(server, settings.primary);
        tuning.set_refusals(Refusals::READ_ONLY, is_replica && settings.replica.is_read_only);
        let is_stale = is_replica && !is_connected && !settings.replica.serves_stale_data;
        tuning.set_refusals(Refusals::STALE, is_stale);
        // With `replica-ignore-maxmemory`, only the primary evicts keys.
        let is_unlimited = is_replica && settings.replica.ignores_maxmemory;
        server.keyspace().limit_memory(if is_unlimited { 0 } else { settings.maxmemory_bytes });
    }

    /// Waits until there is a primary to connect to. Returns what the connection attempt needs, or
    /// `None` if the server stops.
    pub(super) fn next_attempt(&self, server: &Weak<Server>) -> Option<Wanted> {
        let mut state = self.lock();
        loop {
            let server = server.upgrade().filter(|server| !server.is_stopping())?;
            // A new link continues the stream where the previous link has ended, so no attempt may
            // start before that end is known.
            let is_free = state.link.is_none() && !state.is_held && !server.snapshots().loading.is_startup();
            drop(server);
            if let (Some(primary), Phase::Connect, true) = (&state.primary, state.phase, is_free) {
                let (primary, term) = (primary.clone(), self.term());
                return Some(Wanted { primary, term, known: state.known, is_own: state.is_own });
            }
            state = self.changed.wait_timeout(state, WAKE_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits between two connection attempts. `REPLICAOF` ends the wait.
    pub(super) fn wait_to_retry(&self, term: u64, after: Duration) {
        let state = self.lock();
        let is_same = |_: &mut State| self.term() == term;
        drop(self.changed.wait_timeout_while(state, after, is_same).unwrap_or_else(PoisonError::into_inner));
    }

    /// Changes the state if `term` is the current term. Returns whether it is.
    fn in_term(&self, term: u64, change: impl FnOnce(&mut State)) -> bool {
        let mut state = self.lock();
        let is_current = self.term() == term;
        if is_current {
            change(&mut state);
        }
        drop(state);
        self.changed.notify_all();
        is_current
    }

    /// Enters a phase of the link. Returns whether `term` is still the current term.
    pub(super) fn enter(&self, term: u64, phase: Phase) -> bool {
        self.in_term(term, |state| {
            if state.phase == Phase::Connected {
                state.down_since = Instant::now();
            }
            state.phase = phase;
            state.transfer = None;
        })
    }

    /// Publishes how much of a snapshot has been received.
    pub(super) fn show_transfer(&self, term: u64, transfer: Transfer, now_ms: i64) {
        self.progress.received_ms.store(now_ms, Relaxed);
        self.in_term(term, |state| state.transfer = Some(transfer));
    }

    /// Records that bytes have arrived from the primary.
    pub(super) fn note_received(&self, now_ms: i64) {
        self.progress.received_ms.store(now_ms, Relaxed);
    }

    /// Returns the counters of the link.
    pub(super) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Hands the link over to a worker. Returns whether `term` was still the current term.
    pub(super) fn hand_over(&self, server: &Server, term: u64, link: NewPrimary) -> bool {
        let is_current = self.in_term(term, |state| {
            state.phase = Phase::Connected;
            state.transfer = None;
            state.link = Some(term);
        });
        if !is_current {
            return false;
        }
        self.publish_role(server);
        admit_link(server);
        server.port(server.facts().first_io_worker).send(Message::Primary(Box::new(link)));
        true
    }

    /// Records that the link has ended. The link has applied the stream up to `offset`, where the
    /// stream had selected database `db`. If `offset` is `None`, the stream can't be continued.
    pub fn link_ended(&self, server: &Server, term: u64, offset: Option<u64>, db: u32) {
        let was_lost = {
            let mut locked = self.lock();
            let state = &mut *locked;
            state.link = None;
            let was_lost = self.term() == term && state.phase == Phase::Connected;
            if was_lost {
                state.phase = Phase::Connect;
                state.down_since = Instant::now();
            }
            match (offset, &mut state.known) {
                (Some(offset), Some(known)) => {
                    *known = Known { position: Position { offset, ..known.position }, db };
                }
                (None, known) => (*known, state.former) = (None, None),
                (Some(offset), None) => {
                    if let (None, Some(former)) = (&state.primary, &mut state.former) {
                        // The server was promoted while a command of the stream was running. The
                        // former primary's stream ends after that command.
                        *former = Known { position: Position { offset, ..former.position }, db };
                    }
                }
            }
            was_lost
        };
        self.changed.notify_all();
        if was_lost {
            tracing::warn!("Connection with master lost.");
            self.publish_role(server);
        }
    }
}

impl<'s> RoleLock<'s> {
    /// Waits until no other thread owns the right to change the role, and acquires this right.
    pub(super) fn of(server: &'s Server) -> Self {
        // The lock protects no data, so a panic of its owner leaves no invalid state.
        let guard = server.replication().replica.role.lock().unwrap_or_else(PoisonError::into_inner);
        RoleLock { server, _guard: guard }
    }

    fn replica(&self) -> &'s Replica {
        &self.server.replication().replica
    }

    /// Starts to follow another primary, or none. Closes the link to the current primary.
    pub(super) fn change(&self, primary: Option<Address>) {
        let Ok(()) = self.replica().change(self.server, primary, None, |_| Ok::<(), Infallible>(()));
    }

    /// Follows a replica of this server, which takes over as the primary. `end` is the position at
    /// which this server's own stream ends, if known.
    pub(super) fn hand_over(&self, primary: Address, end: Option<Known>) {
        let Ok(()) = self.replica().change(self.server, Some(primary), end, |_| Ok::<(), Infallible>(()));
    }

    /// Stops following the primary, if the server is a replica that applies the stream `id`.
    ///
    /// # Errors
    /// The server is no replica or applies another stream. Returns the complete error reply.
    pub(super) fn take_over(&self, id: Option<ReplId>) -> Result<(), &'static str> {
        self.replica().change(self.server, None, None, |state| {
            if state.primary.is_none() {
                return Err("ERR PSYNC FAILOVER can't be sent to a master.");
            }
            if id.is_none() || id != state.known.map(|known| known.position.id) {
                return Err("ERR PSYNC FAILOVER replid must match my replid.");
            }
            Ok(())
        })
    }
}

/// Returns the description of a client for the log.
pub(super) fn shown(client: &Client) -> String {
    format!("id={} addr={} laddr={} name={}", client.id, client.address, client.local_address, {
        String::from_utf8_lossy(&client.names().name).into_owned()
    })
}

/// Interval at which waiting threads check whether the server stops.
const WAKE_EVERY: Duration = Duration::from_millis(200);

fn log_promotion(former: Option<Known>) {
    if let Some(Known { position: Position { id, offset }, .. }) = former {
        tracing::warn!("Setting secondary replication ID to {id}, valid up to offset: {}.", offset + 1);
    }
}
