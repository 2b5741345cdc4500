//! The server: the state that all workers share, and the services that commands call ([`Host`]).

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pantala_base::{Clock, Distribution, Moment, Random, SystemClock, purges};
use pantala_engine::client::{
    Client, Clients, ClusterNode, Endpoint, Followed, Host, MemoryFigures, Replicator, Session, Shutdown,
};
use pantala_engine::command::{Command, Flags};
use pantala_engine::functions::Functions;
use pantala_engine::keyspace::{Keyspace, WorkerPort};
use pantala_engine::message::Message;
use pantala_runtime::Backend;

use crate::aof;
use crate::config::{ConfigStore, Refusal, Settings};
use crate::net;
use crate::process;
use crate::renames::Renames;
use crate::replication::{Address, Replication};
use crate::scripting::{Kind, Scripting};
use crate::snapshot::{self, Snapshots};
use crate::stats::WorkerStats;
use crate::users;

/// Number of samples that a rate is the mean of, as in Redis.
const RATE_SAMPLES: usize = 16;

/// Facts about the start of the server, for `INFO` and the log.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The event loop's backend.
    pub backend: Backend,
    /// The reason for choosing the backend.
    pub backend_reason: String,
    /// Path of the executable.
    pub executable: String,
    /// Path of the configuration file, or "".
    pub config_file: String,
    /// 40 hexadecimal digits, new at each start.
    pub run_id: String,
    /// As `run_id`, for this node of a cluster.
    pub node_id: String,
    /// Start of the server, Unix time in ms.
    pub started_ms: i64,
    /// Resident memory allocated before any data, bytes.
    pub startup_bytes: u64,
    /// Workers, I/O workers included.
    pub workers: u32,
    /// The first worker that owns connections: 0, or the number of shard workers if there are I/O
    /// workers.
    pub first_io_worker: u32,
}

/// Statistics of the whole server rather than of one worker.
#[derive(Default)]
pub struct ServerStats {
    /// Connections accepted.
    pub connections_received: AtomicU64,
    /// Connections rejected because of `maxclients`.
    pub connections_rejected: AtomicU64,
    /// Maximum number of simultaneous connections so far.
    pub peak_clients: AtomicU64,
    /// Connections closed for exceeding output limits.
    pub output_limit_closed: AtomicU64,
    /// Peak memory usage, bytes: sampled when a client requests it and, without clients' memory,
    /// once in [`RATE_SAMPLES`] rounds of cron.
    pub peak_used_bytes: AtomicU64,
    rates: Mutex<Rates>,
}

/// Rates per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// Commands.
    pub commands: u64,
    /// Bytes received.
    pub input_bytes: u64,
    /// Bytes sent.
    pub output_bytes: u64,
}

#[derive(Default)]
struct Rates {
    samples: [Rate; RATE_SAMPLES],
    next: usize,
    last_ms: i64,
    last: Rate,
}

/// The server. One value, shared by all workers and background threads.
pub struct Server {
    keyspace: Keyspace,
    config: ConfigStore,
    clock: SystemClock,
    workers: Box<[WorkerStats]>,
    open: AtomicU64,
    loads: Box<[AtomicU64]>,
    facts: Facts,
    renames: Renames,
    listening: process::Listening,
    scripting: Scripting,
    stopping: AtomicBool,
    kept_messages: Arc<AtomicU64>,
    snapshots: Snapshots,
    replication: Replication,
    /// Statistics of the whole server rather than of one worker.
    pub stats: ServerStats,
}

impl Server {
    /// Creates a server around a keyspace.
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
            open: AtomicU64::new(0),
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

    /// Returns the data.
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

    /// Returns the state of scripts that workers share.
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

    /// Returns a worker's port, which takes messages.
    pub fn port(&self, worker: u32) -> &WorkerPort {
        self.keyspace.port(worker)
    }

    /// Returns the counter of bytes of published messages that were not sent to all their
    /// subscribers yet. Subscribers share these bytes.
    pub fn kept_messages(&self) -> &Arc<AtomicU64> {
        &self.kept_messages
    }

    /// Returns the monotonic time, ms. Deadlines use it.
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

    /// Returns when `CLIENT PAUSE` ends, Unix time in ms; 0 without a pause.
    pub fn paused_until_ms(&self) -> i64 {
        self.keyspace.tuning.paused_until_ms.load(Relaxed)
    }

    /// Returns whether a pause holds back this call of a command. `flags` is called only during a
    /// pause.
    #[inline]
    pub fn is_paused(&self, command: &Command, session: &Session, now_ms: i64, flags: impl FnOnce() -> Flags) -> bool {
        self.paused_until_ms() != 0
            && pantala_session::access::held_by_pause(&self.keyspace.tuning, command, session, now_ms, flags)
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// Admits and counts an accepted connection. Returns `None` if the peer has disconnected, or if
    /// the connection was rejected: then it got an error and was closed.
    pub fn admit(&self, socket: OwnedFd, kind: process::Kind, settings: &Settings) -> Option<OwnedFd> {
        let (peer, _) = net::endpoints(&socket).ok()?;
        self.stats.connections_received.fetch_add(1, Relaxed);
        let open = self.open.fetch_add(1, Relaxed) + 1;
        if open > u64::from(settings.maxclients) {
            self.open.fetch_sub(1, Relaxed);
            self.stats.connections_rejected.fetch_add(1, Relaxed);
            net::turn_away(&socket, kind, "-ERR max number of clients reached\r\n");
            return None;
        }
        if settings.protected_mode && !net::is_let_in(&peer) && self.needs_no_password() {
            self.open.fetch_sub(1, Relaxed);
            net::turn_away(&socket, kind, PROTECTED_MODE_DENIED);
            return None;
        }
        self.stats.peak_clients.fetch_max(open, Relaxed);
        Some(socket)
    }

    /// Returns the worker with the fewest connections among those that own any, and counts one more
    /// for it.
    pub fn least_loaded_worker(&self) -> u32 {
        let candidates = self.facts.first_io_worker..self.facts.workers;
        // Only the accepting worker calls this, so calls don't race.
        let chosen = candidates
            .min_by_key(|&worker| self.loads[worker as usize].load(Relaxed))
            .expect("at least one worker owns connections");
        self.loads[chosen as usize].fetch_add(1, Relaxed);
        chosen
    }

    /// Uncounts an admitted connection that a worker could not take over.
    pub fn connection_refused(&self, worker: u32) {
        self.open.fetch_sub(1, Relaxed);
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
        client.gone.store(true, Relaxed);
        self.keyspace.clients().remove(client.id);
        self.workers[client.worker as usize].connections.sub(1);
        self.connection_refused(client.worker);
    }

    /// Logs and counts a client that is closed for exceeding its output limit.
    pub fn log_output_limit(&self, client: &Client) {
        self.stats.output_limit_closed.fetch_add(1, Relaxed);
        tracing::warn!(
            "Client id={} addr={} scheduled to be closed ASAP for overcoming of output buffer limits.",
            client.id,
            client.address
        );
    }

    /// Samples rates and peaks. The first worker calls it in each round of its cron.
    pub fn sample(&self, now_ms: i64) {
        let mut now = Rate::default();
        for worker in &self.workers {
            now.commands += worker.commands.get();
            now.input_bytes += worker.input_bytes.get();
            now.output_bytes += worker.output_bytes.get();
        }
        let mut rates = self.stats.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_ms = (now_ms - rates.last_ms).max(1) as u64;
        let per_second = |now: u64, before: u64| now.saturating_sub(before) * 1000 / elapsed_ms;
        let sample = Rate {
            commands: per_second(now.commands, rates.last.commands),
            input_bytes: per_second(now.input_bytes, rates.last.input_bytes),
            output_bytes: per_second(now.output_bytes, rates.last.output_bytes),
        };
        let next = rates.next;
        rates.samples[next] = sample;
        rates.next = (next + 1) % RATE_SAMPLES;
        rates.last = now;
        rates.last_ms = now_ms;
        // This doesn't run in each round, because it reads a counter of each shard and database,
        // whose cache lines belong to other workers.
        if rates.next == 0 {
            self.stats.peak_used_bytes.fetch_max(self.facts.startup_bytes + self.data_bytes(), Relaxed);
        }
    }

    /// Returns the memory usage of all databases, bytes.
    pub(crate) fn data_bytes(&self) -> u64 {
        (0..self.keyspace.partition_count())
            .flat_map(|shard| self.keyspace.shard_figures(shard))
            .map(|figures| figures.dict_bytes.get() + figures.heap_bytes.get())
            .sum()
    }

    /// Returns the recent mean rates.
    pub fn rate(&self) -> Rate {
        let rates = self.stats.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let mean = |of: fn(&Rate) -> u64| rates.samples.iter().map(of).sum::<u64>() / RATE_SAMPLES as u64;
        Rate {
            commands: mean(|rate| rate.commands),
            input_bytes: mean(|rate| rate.input_bytes),
            output_bytes: mean(|rate| rate.output_bytes),
        }
    }

    /// Returns how long a script may run before other clients get the busy error, ms.
    pub fn busy_ms(&self) -> i64 {
        match self.config.settings().busy_reply_threshold_ms {
            0 => i64::MAX,
            busy_ms => busy_ms,
        }
    }

    /// Makes all workers stop.
    pub fn stop(&self) {
        if !self.stopping.swap(true, Relaxed) {
            process::notify("STOPPING=1");
            for port in self.keyspace.ports().iter() {
                port.send(Message::Stop);
            }
        }
    }

    /// Stops the server after a signal. The settings say whether to save a snapshot first.
    pub fn signalled(&self, signal: process::Ending) {
        let settings = self.config.settings();
        let how = match signal {
            process::Ending::Interrupt => settings.shutdown_on_sigint,
            process::Ending::Terminate => settings.shutdown_on_sigterm,
        };
        self.snapshots.set_ending(how);
        self.replication.drain_and_end(self);
    }

    /// Returns whether the server is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    /// Applies a change of the settings that their readers don't notice by themselves.
    fn apply(&self, old: &Settings, new: &Settings) -> Result<(), Refusal> {
        if new.maxclients > old.maxclients {
            process::allow_clients(new.maxclients).map_err(|reason| Refusal { directive: "maxclients", reason })?;
        }
        let encryption = if old.tls == new.tls {
            self.listening.encryption()
        } else {
            let reason = "Unable to update TLS configuration. Check server logs.";
            let refused = |_| Refusal { directive: new.tls.first_change(&old.tls), reason: reason.into() };
            process::Encryption::read(&new.tls).map_err(refused)?
        };
        // Listening comes after the checks above, so that their rejections leave no sockets to roll
        // back.
        if (old.port, old.tls.port, &old.bind) != (new.port, new.tls.port, &new.bind) {
            let refused = |(directive, reason): (_, &str)| Refusal { directive, reason: reason.into() };
            let changed = self.listening.change(old, new);
            // Also after a rejection: then the old addresses have new sockets.
            self.port(self.facts.first_io_worker).send(Message::Reload);
            changed.map_err(refused)?;
        }
        self.listening.set_encryption(encryption);
        if old.requirepass != new.requirepass {
            self.keyspace.users().set_default_password(new.requirepass.as_deref());
        }
        match (old.aof.is_on, new.aof.is_on) {
            (false, true) => {
                aof::turn_on(self).map_err(|reason| Refusal { directive: "appendonly", reason })?;
            }
            (true, false) => aof::turn_off(self),
            _ => {}
        }
        process::set_log_level(new.loglevel);
        process::update_title(new);
        self.tune(new);
        let (used, limit) = (self.keyspace.memory().used_bytes(), new.maxmemory_bytes);
        if limit != old.maxmemory_bytes && limit > 0 && used > limit {
            tracing::warn!(
                "The new maxmemory value set via CONFIG SET ({limit}) is smaller than the current memory usage ({used}). \
                 Keys will be evicted, or new commands that may take memory refused, depending on the maxmemory-policy."
            );
        }
        Ok(())
    }

    /// Copies settings to the places where commands read them.
    pub fn tune(&self, settings: &Settings) {
        let tuning = &self.keyspace.tuning;
        tuning.proto_max_bulk_len.store(settings.proto_max_bulk_len_bytes, Relaxed);
        let hard_bytes = [&settings.output_limit_normal, &settings.output_limit_pubsub].map(|limit| limit.hard_bytes);
        let reply_bytes_max = if hard_bytes.contains(&0) { u64::MAX } else { hard_bytes[0].max(hard_bytes[1]) };
        tuning.reply_bytes_max.store(reply_bytes_max, Relaxed);
        tuning.lazyfree_lazy_eviction.store(settings.lazyfree_lazy_eviction, Relaxed);
        tuning.lazyfree_lazy_expire.store(settings.lazyfree_lazy_expire, Relaxed);
        tuning.lazyfree_lazy_server_del.store(settings.lazyfree_lazy_server_del, Relaxed);
        tuning.lazyfree_lazy_user_del.store(settings.lazyfree_lazy_user_del, Relaxed);
        tuning.lazyfree_lazy_user_flush.store(settings.lazyfree_lazy_user_flush, Relaxed);
        snapshot::refuse_writes_on_error(self, settings);
        tuning.rdb_compression.store(settings.rdb_compression, Relaxed);
        tuning.hll_sparse_max_bytes.store(settings.hll_sparse_max_bytes, Relaxed);
        tuning.lfu_log_factor.store(settings.lfu_log_factor, Relaxed);
        tuning.lfu_decay_time_minutes.store(settings.lfu_decay_time_minutes, Relaxed);
        tuning.stream_node_max_bytes.store(settings.stream_node_max_bytes, Relaxed);
        tuning.stream_node_max_entries.store(settings.stream_node_max_entries, Relaxed);
        tuning.list_max_listpack_size.store(settings.list_max_listpack_size, Relaxed);
        tuning.list_compress_depth.store(settings.list_compress_depth, Relaxed);
        tuning.hash_max_listpack_entries.store(settings.hash_max_listpack_entries, Relaxed);
        tuning.hash_max_listpack_value_bytes.store(settings.hash_max_listpack_value_bytes, Relaxed);
        tuning.set_max_intset_entries.store(settings.set_max_intset_entries, Relaxed);
        tuning.zset_max_listpack_entries.store(settings.zset_max_listpack_entries, Relaxed);
        tuning.zset_max_listpack_value_bytes.store(settings.zset_max_listpack_value_bytes, Relaxed);
        tuning.active_expire_effort.store(settings.active_expire_effort, Relaxed);
        tuning.hz.store(settings.hz, Relaxed);
        tuning.latency_threshold_ms.store(settings.latency_monitor_threshold_ms, Relaxed);
        tuning.slowlog_slower_than_us.store(settings.slowlog_log_slower_than_us, Relaxed);
        tuning.tracking_table_max_keys.store(settings.tracking_table_max_keys, Relaxed);
        tuning.slowlog_max_len.store(settings.slowlog_max_len, Relaxed);
        self.keyspace.users().set_log_len_max(settings.acllog_max_len);
        self.keyspace.users().set_channels_by_default(settings.acl_channels_by_default);
        self.keyspace.journal().set_ping_period(Duration::from_secs(settings.repl_ping_period_s));
        self.keyspace.journal().set_backlog(settings.repl_backlog_bytes);
        self.keyspace.journal().set_replica_bound(match settings.output_limit_replica.hard_bytes {
            0 => u64::MAX,
            // As in Redis: the limit must not close a replica that is catching up from the backlog.
            hard_bytes => hard_bytes.max(settings.repl_backlog_bytes),
        });
        tuning.times_all.store(settings.times_all(), Relaxed);
        self.keyspace.clients().limit_memory(settings.clients_memory_bytes());
        tuning.set_events(settings.notify_keyspace_events);
        tuning.set_eviction_policy(settings.maxmemory_policy.eviction());
        tuning.maxmemory_samples.store(settings.maxmemory_samples, Relaxed);
        tuning.maxmemory_eviction_tenacity.store(settings.maxmemory_eviction_tenacity, Relaxed);
        self.replication().replica.tune(self, settings);
        aof::tune(self, &settings.aof);
        self.replication.require_good_replicas(self, settings.primary);
    }
}

/// Counts the link to a primary as a connection, regardless of `maxclients`.
pub fn admit_link(server: &Server) {
    server.open.fetch_add(1, Relaxed);
}

/// The error for a remote peer in protected mode.
const PROTECTED_MODE_DENIED: &str = "-DENIED Pantala is running in protected mode because protected mode is enabled and no \
     password is set for the default user. In this mode connections are only accepted from the loopback interface. To connect \
     from elsewhere, either set a password with 'requirepass' (in the configuration file or by CONFIG SET from the loopback \
     interface), or switch protected mode off with 'protected-mode no' if nobody untrusted can reach this port.\r\n";

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
        self.scripting.kill(Kind::Script, self.monotonic_ms(), self.busy_ms())
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
        let apply = |old: &Settings, new: &Settings| {
            process::change_oom_score(&old.process, &new.process, is_replica, || self.apply(old, new))
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
                &stats.expire_visited,
            ] {
                counter.reset();
            }
        }
        self.keyspace.lazy_free().reset();
        self.keyspace.memory().reset();
        for figure in
            [&self.stats.connections_received, &self.stats.connections_rejected, &self.stats.output_limit_closed]
        {
            figure.store(0, Relaxed);
        }
        self.keyspace.clients().memory().evicted.store(0, Relaxed);
        self.replication.reset_stats();
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
            return Err("ERR No shutdown in progress.".into());
        }
        tracing::warn!("User requested shutdown...");
        self.stop();
        Ok(())
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

    fn memory(&self) -> MemoryFigures {
        // Bytes that clients share count once.
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
        MemoryFigures {
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
