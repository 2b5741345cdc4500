//! The server: the state that all workers share, and the services that commands call (trait
//! [`Host`]).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pantala_base::{Clock, Distribution, Moment, Random, SystemClock, purges};
use pantala_engine::client::{
    Client, Clients, ClusterNode, Endpoint, Followed, Host, ProcessMemory, Replicator, Session, Shutdown,
};
use pantala_engine::command::{Command, Flags};
use pantala_engine::functions::Functions;
use pantala_engine::keyspace::{Keyspace, WorkerPort};
use pantala_engine::message::Message;
use pantala_runtime::Backend;

use crate::admission::Admission;
use crate::aof;
use crate::config::{ConfigStore, Settings};
use crate::net;
use crate::process;
use crate::process::placement::choose;
use crate::rates::ServerStats;
use crate::renames::Renames;
use crate::replication::{Address, Replication};
use crate::scripting::{Kind, Scripting, Thresholds};
use crate::snapshot::{SHUTDOWN_FAILED, Snapshots};
use crate::stats::WorkerStats;
use crate::users;

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
    clock: SystemClock,
    workers: Box<[WorkerStats]>,
    admission: Admission,
    /// For each worker: number of its connections, including connections that are still being
    /// handed over to this worker.
    loads: Box<[AtomicU64]>,
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
            loads: (0..workers).map(|_| AtomicU64::new(0)).collect(),
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
        if is_full && !self.admission.makes_room(self, open, settings.maxclients) {
            self.admission.uncount();
            self.stats.connections_rejected.fetch_add(1, Relaxed);
            net::send_rejection(&socket, kind, "-ERR max number of clients reached\r\n");
            return None;
        }
        if settings.protected_mode && !net::is_admitted_in_protected_mode(&peer) && self.needs_no_password() {
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

    /// Chooses the worker for a new connection among the workers that may own connections
    /// ([`choose`]), and counts the connection for this worker.
    pub fn worker_for(&self, socket: &OwnedFd) -> u32 {
        let first = self.facts.first_io_worker;
        let placement = &self.facts.placement;
        let cpu = if placement.is_placed() { net::receiving_cpu(socket) } else { None };
        let is_near = cpu.map(|cpu| move |index| placement.is_near(first + index as u32, cpu));
        // Only one worker accepts connections and calls this, so calls don't race.
        let loads = self.loads[first as usize..].iter().map(|load| load.load(Relaxed));
        let chosen = first + choose(loads, is_near).expect("at least one worker owns connections") as u32;
        self.loads[chosen as usize].fetch_add(1, Relaxed);
        chosen
    }

    /// Removes an admitted connection from the counts. Called when the connection's worker has
    /// closed the connection or could not take it over.
    pub fn uncount_connection(&self, worker: u32) {
        self.admission.uncount();
        self.loads[worker as usize].fetch_sub(1, Relaxed);
    }

    /// Registers a connection that a worker has taken over.
    pub fn client_joined(
        &self,
        worker: u32,
        connection: u64,
        fd: i32,
        address: Endpoint,
        local_address: Endpoint,
    ) -> Arc<Client> {
        let client = Client::new(self.keyspace.clients().next_id(), worker, fd, address, local_address, self.now_ms());
        client.connection.store(connection, Relaxed);
        let client = Arc::new(client);
        self.keyspace.clients().add(Arc::clone(&client));
        self.workers[worker as usize].connections.add(1);
        client
    }

    /// Removes a connection that a worker has closed.
    pub fn client_left(&self, client: &Client) {
        client.is_disconnected.store(true, Relaxed);
        self.keyspace.clients().remove(client.id);
        self.workers[client.worker as usize].connections.sub(1);
        self.uncount_connection(client.worker);
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

impl Host for Server {
    fn command(&self, name: &[u8]) -> Option<&'static Command> {
        self.renames.command(name)
    }

    fn is_removed(&self, command: &'static Command) -> bool {
        self.renames.is_removed(command)
    }

    fn replication(&self) -> &dyn Replicator {
        self
    }

    fn cluster_node(&self) -> ClusterNode {
        let settings = self.config.settings();
        let or = |announced: u16, port: u16| if announced == 0 { port } else { announced };
        ClusterNode {
            id: self.facts.node_id.clone(),
            ip: settings.cluster_announce_ip.clone(),
            hostname: settings.cluster_announce_hostname.clone(),
            port: or(settings.cluster_announce_port, settings.port),
            bus_port: or(settings.cluster_announce_bus_port, settings.bus_port()),
            endpoint: settings.cluster_preferred_endpoint,
        }
    }

    fn script_load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        self.scripting.load(body)
    }

    fn script_exists(&self, name: &[u8]) -> bool {
        self.scripting.exists(name)
    }

    fn script_flush(&self) {
        self.scripting.scripts.flush();
    }

    fn script_kill(&self) -> Result<(), &'static str> {
        self.scripting.kill(Kind::Script, self.monotonic_ms(), self.script_thresholds())
    }

    fn functions(&self) -> &dyn Functions {
        self
    }

    fn follow(&self, primary: Option<(&[u8], u16)>, client: &Client) -> Followed {
        let primary = primary.map(|(host, port)| Address { host: String::from_utf8_lossy(host).into_owned(), port });
        self.replication().replica.follow(self, primary, client)
    }

    fn config_get(&self, patterns: &[&[u8]]) -> Vec<(String, Vec<u8>)> {
        self.config.get(patterns)
    }

    fn config_set(&self, pairs: &[(&[u8], &[u8])], client: &Client) -> Result<(), String> {
        let is_replica = self.keyspace.tuning.is_replica();
        let names_appendonly = pairs.iter().any(|(name, _)| name.eq_ignore_ascii_case(b"appendonly"));
        let apply = |old: &Settings, new: &Settings| {
            process::change_oom_score(&old.process, &new.process, is_replica, || self.apply(old, new, names_appendonly))
        };
        self.config.set(pairs, client.address.is_local(), &apply).map_err(|reason| format!("ERR {reason}"))?;
        for port in self.keyspace.ports().iter() {
            port.send(Message::Reload);
        }
        Ok(())
    }

    fn config_rewrite(&self) -> Result<(), String> {
        self.config.rewrite(&self.keyspace.users().lines()).map_err(|reason| format!("ERR {reason}"))
    }

    fn reset_stats(&self) {
        for worker in &self.workers {
            worker.reset();
        }
        for shard in 0..self.keyspace.partition_count() {
            let stats = self.keyspace.shard_stats(shard);
            for counter in [
                &stats.commands,
                &stats.hits,
                &stats.misses,
                &stats.expired,
                &stats.evicted,
                &stats.combined,
                &stats.handovers,
            ] {
                counter.reset();
            }
        }
        self.keyspace.lazy_free().reset();
        self.keyspace.memory().reset();
        self.keyspace.expiry.reset();
        for counter in [
            &self.stats.connections_received,
            &self.stats.connections_rejected,
            &self.stats.output_limit_closed,
            &self.stats.link_bytes,
        ] {
            counter.store(0, Relaxed);
        }
        self.keyspace.clients().memory().evicted.store(0, Relaxed);
        self.replication.syncs.reset();
    }

    fn clients(&self) -> &Clients {
        self.keyspace.clients()
    }

    fn kill(&self, client: &Client) {
        client.killed.store(true, Relaxed);
        self.port(client.worker).send(Message::Kill(client.connection.load(Relaxed), client.id));
    }

    fn read_acl_file(&self) -> Option<(String, Result<Vec<u8>, String>)> {
        self.acl_file().map(|path| users::read(&path))
    }

    fn write_acl_file(&self, text: &[u8]) -> Option<bool> {
        self.acl_file().map(|path| users::write(&path, text))
    }

    fn fill_random(&self, bytes: &mut [u8]) -> bool {
        users::fill_random(bytes)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), String> {
        if how.abort {
            return match self.replication.abort_shutdown(self) {
                true => Ok(()),
                false => Err("ERR No shutdown in progress.".into()),
            };
        }
        tracing::warn!("User requested shutdown...");
        // While the dataset is being loaded, the append-only file doesn't match it, so the state of
        // the file doesn't prevent the exit.
        if !self.snapshots.loading.is_incomplete() && !aof::allows_exit(self, how) {
            return Err(SHUTDOWN_FAILED.into());
        }
        self.stop();
        Ok(())
    }

    fn log(&self, line: &str) {
        tracing::warn!("{line}");
    }

    fn drains_before(&self, how: Shutdown) -> bool {
        !how.abort && !self.snapshots.loading.is_incomplete() && self.replication.drains_before(self)
    }

    fn saves_before(&self, how: Shutdown) -> bool {
        Server::saves_before(self, how)
    }

    fn note_asks_always(&self, asks: bool) {
        self.snapshots.aof.note_asks_always(self, asks);
    }

    fn rewrite_append_only_file(&self) -> Result<&'static str, &'static str> {
        aof::rewrite_in_background(self)
    }

    fn last_save_s(&self) -> i64 {
        self.snapshots.saves.last_save_s()
    }

    fn info(&self, sections: &[String]) -> String {
        crate::info::info(self, sections)
    }

    fn latencies(&self) -> Vec<(&'static str, Distribution)> {
        crate::info::stats::latencies(self)
    }

    fn memory(&self) -> ProcessMemory {
        // Bytes that several clients share are counted once.
        let mut clients_bytes = self.kept_messages.load(Relaxed);
        for client in self.keyspace.clients().all() {
            clients_bytes += client.unshared_bytes();
        }
        let startup_bytes = self.facts.startup_bytes;
        let used_bytes = startup_bytes + self.data_bytes() + clients_bytes;
        let peak_bytes = self.stats.peak_used_bytes.fetch_max(used_bytes, Relaxed).max(used_bytes);
        let resident_bytes = process::resident_bytes().unwrap_or(used_bytes);
        let scripts_bytes = self.scripting.scripts.bytes();
        let libraries_bytes = self.scripting.libraries.table().bytes() as u64;
        ProcessMemory {
            used_bytes,
            peak_bytes,
            startup_bytes,
            clients_bytes,
            resident_bytes,
            scripts_bytes,
            libraries_bytes,
        }
    }

    fn purge_memory(&self) {
        purges::request();
        self.keyspace.ports().iter().for_each(|port| port.send(Message::Purge));
    }

    fn debug_allowed(&self, client: &Client) -> bool {
        self.config.settings().enable_debug_command.allows(client.address.is_local())
    }

    fn modules_allowed(&self, client: &Client) -> bool {
        self.config.settings().enable_module_command.allows(client.address.is_local())
    }

    fn log_unloadable(&self, path: &[u8], reason: &str) {
        tracing::warn!("Module {} failed to load: {reason}", path.escape_ascii());
    }

    fn now_us(&self) -> i64 {
        self.clock.now_us()
    }
}
