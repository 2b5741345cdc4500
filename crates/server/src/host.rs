//! The server: the state that all workers share.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pantala_base::{Clock, Moment, Random, SystemClock};
use pantala_engine::client::{Client, Endpoint, Listener, Session};
use pantala_engine::command::{Command, Flags};
use pantala_engine::keyspace::{Keyspace, WorkerPort};
use pantala_engine::message::Message;
use pantala_runtime::Backend;

use crate::admission::Admission;
use crate::config::{ConfigStore, Settings};
use crate::loads::Loads;
use crate::net;
use crate::process;
use crate::process::placement::choose;
use crate::rates::ServerStats;
use crate::renames::Renames;
use crate::replication::Replication;
use crate::scripting::{Scripting, Thresholds};
use crate::snapshot::Snapshots;
use crate::stats::WorkerStats;

/// Facts about the start of the server, for `INFO` and the log.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The backend of the event loops.
    pub backend: Backend,
    /// The reason why this backend was chosen.
    pub backend_reason: String,
    /// Path of the executable.
    pub executable: String,
    /// Path of the configuration file, or "".
    pub config_file: String,
    /// 40 random hexadecimal digits, new at each start.
    pub run_id: String,
    /// The ID of this server as a cluster node: 40 random hexadecimal digits, new at each start.
    pub node_id: String,
    /// Start of the server, Unix time in ms.
    pub started_ms: i64,
    /// Resident memory of the server before any data was stored, bytes.
    pub startup_bytes: u64,
    /// Number of workers, including I/O workers.
    pub workers: u32,
    /// The CPUs on which the workers run.
    pub placement: process::Placement,
    /// Number of the first worker that owns connections: 0 without I/O workers. With I/O workers,
    /// it is the first I/O worker, because the homes of shards (the workers that run the shards'
    /// commands) have lower numbers.
    pub first_io_worker: u32,
}

/// The server. All workers and background threads share one value.
pub struct Server {
    keyspace: Keyspace,
    config: ConfigStore,
    pub(crate) clock: SystemClock,
    workers: Box<[WorkerStats]>,
    admission: Admission,
    /// The loads of the workers.
    pub loads: Loads,
    facts: Facts,
    renames: Renames,
    listening: process::Listening,
    scripting: Scripting,
    stopping: AtomicBool,
    kept_messages: Arc<AtomicU64>,
    snapshots: Snapshots,
    replication: Replication,
    /// Statistics of the whole server, as opposed to one worker.
    pub stats: ServerStats,
}

impl Server {
    /// Creates a server for a keyspace.
    pub fn new(
        mut keyspace: Keyspace,
        config: ConfigStore,
        renames: Renames,
        facts: Facts,
        sockets: Vec<process::Listener>,
    ) -> Self {
        pantala_commands::acl::set_catalog(&mut keyspace);
        let (workers, started_ms) = (facts.workers, facts.started_ms);
        let server = Server {
            keyspace,
            config,
            clock: SystemClock::new(),
            workers: (0..workers).map(|_| WorkerStats::new()).collect(),
            admission: Admission::default(),
            loads: Loads::new(workers),
            facts,
            renames,
            listening: process::Listening::new(sockets),
            scripting: Scripting::new(workers),
            stopping: AtomicBool::new(false),
            kept_messages: Arc::default(),
            snapshots: Snapshots::new(started_ms, workers),
            replication: Replication::new(Random::from_entropy()),
            stats: ServerStats::default(),
        };
        let settings = server.config.settings();
        server.keyspace.memory().add_other(server.facts.startup_bytes as i64);
        server.keyspace.tuning.cluster.store(settings.cluster_enabled, Relaxed);
        server.keyspace.users().set_default_password(settings.requirepass.as_deref());
        server.tune(&settings);
        server
    }

    /// Returns the keyspace.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Returns the settings.
    pub fn config(&self) -> &ConfigStore {
        &self.config
    }

    /// Returns the renamed commands.
    pub fn renames(&self) -> &Renames {
        &self.renames
    }

    /// Returns the listening sockets.
    pub fn listening(&self) -> &process::Listening {
        &self.listening
    }

    /// Returns the state of scripts and functions that workers share.
    pub fn scripting(&self) -> &Scripting {
        &self.scripting
    }

    /// Returns the state of snapshots.
    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// Returns the state of replication.
    pub fn replication(&self) -> &Replication {
        &self.replication
    }

    /// Returns the facts about the server's start.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Returns a worker's statistics.
    pub fn worker_stats(&self, worker: u32) -> &WorkerStats {
        &self.workers[worker as usize]
    }

    /// Returns the statistics of all workers.
    pub fn all_worker_stats(&self) -> &[WorkerStats] {
        &self.workers
    }

    /// Returns a worker's port, through which the worker receives messages.
    pub fn port(&self, worker: u32) -> &WorkerPort {
        self.keyspace.port(worker)
    }

    /// Returns the counter of bytes of published messages that have not been sent to all
    /// subscribers yet. The bytes of a message that several subscribers receive count once.
    pub fn kept_messages(&self) -> &Arc<AtomicU64> {
        &self.kept_messages
    }

    /// Returns the monotonic time, ms. Deadlines refer to this time.
    pub fn monotonic_ms(&self) -> i64 {
        (self.clock.monotonic_ns() / 1_000_000) as i64
    }

    /// Returns the monotonic time of a past moment, ms.
    #[inline]
    pub fn monotonic_ms_of(&self, moment: Moment) -> i64 {
        (self.clock.monotonic_ns_of(moment) / 1_000_000) as i64
    }

    /// Returns the monotonic time, µs.
    pub fn monotonic_us(&self) -> i64 {
        (self.clock.monotonic_ns() / 1000) as i64
    }

    /// Returns the Unix time, ms.
    pub fn now_ms(&self) -> i64 {
        self.clock.now_us() / 1000
    }

    /// Returns when the last pause of clients ends or has ended, Unix time in ms. Returns 0 if
    /// there was no pause.
    pub fn paused_until_ms(&self) -> i64 {
        self.keyspace.tuning.paused_until_ms.load(Relaxed)
    }

    /// Returns whether a pause of clients delays this call of a command. Calls `flags` only during
    /// a pause.
    #[inline]
    pub fn is_paused(&self, command: &Command, session: &Session, now_ms: i64, flags: impl FnOnce() -> Flags) -> bool {
        self.paused_until_ms() != 0
            && pantala_session::access::held_by_pause(&self.keyspace.tuning, command, session, now_ms, flags)
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> u64 {
        self.admission.open()
    }

    /// Admits an accepted connection and counts it. Returns `None` if the peer has disconnected or
    /// is rejected. A rejected peer gets an error, and its connection is closed.
    pub fn admit(&self, socket: OwnedFd, kind: process::Kind, settings: &Settings) -> Option<OwnedFd> {
        let (peer, _) = net::endpoints(&socket).ok()?;
        let open = self.admission.count();
        let is_full = open > u64::from(settings.maxclients);
        if is_full && !self.makes_room(open, settings.maxclients) {
            self.admission.uncount();
            self.stats.connections_rejected.fetch_add(1, Relaxed);
            net::send_rejection(&socket, kind, "-ERR max number of clients reached\r\n");
            return None;
        }
        if settings.protected_mode
            && !net::is_admitted_in_protected_mode(&peer)
            && self.keyspace.users().default_user().rules().needs_no_password()
        {
            self.admission.uncount();
            self.stats.connections_rejected.fetch_add(1, Relaxed);
            tracing::debug!("Rejected {peer}: protected mode is enabled, and the user default has no password");
            net::send_rejection(&socket, kind, PROTECTED_MODE_DENIED);
            return None;
        }
        self.stats.connections_received.fetch_add(1, Relaxed);
        self.stats.peak_clients.fetch_max(open, Relaxed);
        Some(socket)
    }

    /// Closes the oldest unauthenticated connection to make room for a new one. Returns false if
    /// there is none ([`Admission::to_close`]).
    fn makes_room(&self, open: u64, maxclients: u32) -> bool {
        let found = self.admission.to_close(&self.keyspace, self.now_ms(), open, maxclients);
        if let Some(client) = &found {
            tracing::debug!("Closing a client that has not authenticated, to make room for a new client");
            self.close_client(client);
        }
        found.is_some()
    }

    /// Marks a client as killed, and asks its worker to close the connection.
    pub fn close_client(&self, client: &Client) {
        let listener = client.kill();
        self.port(listener.worker).send(Message::Kill(listener.connection, client.id));
    }

    /// Chooses the worker for a new connection among the workers that may own connections
    /// ([`choose`]), and counts the connection for this worker.
    pub fn worker_for(&self, socket: &OwnedFd, settings: &Settings) -> u32 {
        let first = self.facts.first_io_worker;
        let placement = &self.facts.placement;
        let cpu = if placement.is_placed() { net::receiving_cpu(socket) } else { None };
        let is_near = cpu.map(|cpu| move |index| placement.is_near(first + index as u32, cpu));
        // Only one worker accepts connections and calls this, so calls don't race.
        let loads = self.loads.connections(first);
        let chosen = first
            + choose(loads, settings.spreading.packed_connections.into(), is_near)
                .expect("at least one worker owns connections") as u32;
        self.loads.add(chosen);
        chosen
    }

    /// Removes an admitted connection from the counts. Called when the connection's worker has
    /// closed the connection or could not take it over.
    pub fn uncount_connection(&self, worker: u32) {
        self.admission.uncount();
        self.loads.remove(worker);
    }

    /// Registers a connection that a worker has taken over.
    pub fn client_joined(
        &self,
        listener: Listener,
        fd: i32,
        address: Endpoint,
        local_address: Endpoint,
    ) -> Arc<Client> {
        let id = self.keyspace.clients().next_id();
        let client = Arc::new(Client::new(id, listener, fd, address, local_address, self.now_ms()));
        self.keyspace.clients().add(Arc::clone(&client));
        self.workers[listener.worker as usize].connections.add(1);
        client
    }

    /// Removes a connection that a worker has closed.
    pub fn client_left(&self, client: &Client) {
        client.is_disconnected.store(true, Relaxed);
        self.keyspace.clients().remove(client.id);
        let worker = client.listener().worker;
        self.workers[worker as usize].connections.sub(1);
        self.uncount_connection(worker);
    }

    /// Logs and counts a client that is closed because it has exceeded its output limit.
    pub fn log_output_limit(&self, client: &Client) {
        self.stats.output_limit_closed.fetch_add(1, Relaxed);
        tracing::warn!(
            "Client id={} addr={} scheduled to be closed ASAP for overcoming of output buffer limits.",
            client.id,
            client.address
        );
    }

    /// Returns the memory usage of all databases, bytes.
    pub(crate) fn data_bytes(&self) -> u64 {
        (0..self.keyspace.partition_count())
            .flat_map(|shard| self.keyspace.database_stats_of_shard(shard))
            .map(|stats| stats.dict_bytes.get() + stats.heap_bytes.get())
            .sum()
    }

    /// Returns two thresholds of a script's run time: when it counts as busy, and when it can be
    /// killed.
    pub fn script_thresholds(&self) -> Thresholds {
        Thresholds::of(self.config.settings().busy_reply_threshold_ms)
    }

    /// Makes all workers stop.
    pub fn stop(&self) {
        if !self.stopping.swap(true, Relaxed) {
            process::notify("STOPPING=1");
            self.keyspace.tuning.interrupt_sleep();
            for port in self.keyspace.ports().iter() {
                port.send(Message::Stop);
            }
        }
    }

    /// Stops the server after a signal. The settings decide whether it saves a snapshot first.
    pub fn signalled(&self, signal: process::Ending) {
        self.keyspace.tuning.interrupt_sleep();
        if self.snapshots.loading.is_incomplete() {
            tracing::warn!("Received shutdown signal during loading, exiting now.");
            return self.stop();
        }
        let settings = self.config.settings();
        let how = match signal {
            process::Ending::Interrupt => settings.shutdown_on_sigint,
            process::Ending::Terminate => settings.shutdown_on_sigterm,
        };
        self.replication.drain_and_end(self, how, None);
    }

    /// Returns whether the server is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }
}

/// Counts the link to a primary as an open connection, regardless of `maxclients`.
pub fn admit_link(server: &Server) {
    server.admission.count();
}

/// The error for a remote peer that protected mode rejects.
const PROTECTED_MODE_DENIED: &str = "-DENIED Pantala is running in protected mode because protected mode is enabled and no \
     password is set for the default user. In this mode connections are only accepted from the loopback interface. To connect \
     from elsewhere, either set a password with 'requirepass' (in the configuration file or by CONFIG SET from the loopback \
     interface), or switch protected mode off with 'protected-mode no' if no untrusted host can reach this port.\r\n";
