//! The settings that the server reads, as typed values. [`Settings::from_values`] creates them from
//! the values of the directives, at startup and at each `CONFIG SET`.

use super::primary::PrimarySettings;
use super::process::ProcessSettings;
use super::replica::ReplicaSettings;
use super::tls::TlsSettings;
use super::value::{ClientsLimit, OutputLimit, pending_limits};
use super::values::Values;
use pantala_engine::client::{PreferredEndpoint, Shutdown};
use pantala_engine::eviction::{EvictionPolicy, Rank};
use pantala_engine::notify::EventClasses;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Value of `enable-debug-command` and similar directives: which clients may use a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// No client.
    No,
    /// Every client.
    Yes,
    /// Clients on this host: loopback addresses and the Unix socket.
    Local,
}

impl Allowed {
    /// Returns whether a client is allowed. `is_local` says whether the client is on this host.
    pub fn allows(self, is_local: bool) -> bool {
        self == Allowed::Yes || self == Allowed::Local && is_local
    }
}

/// `loglevel`: the lowest severity that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum LogLevel {
    /// All messages.
    Debug = 0,
    /// Many messages that are rarely useful.
    Verbose = 1,
    /// Messages that matter in production.
    Notice = 2,
    /// Important messages and errors only.
    Warning = 3,
}

/// `execution`: which worker runs a command on a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// A worker takes any free shard and runs the command itself.
    Inline,
    /// Only a shard's home, the worker that the shard belongs to, runs commands on the shard.
    Owner,
}

/// `io-backend`: the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoBackend {
    /// io_uring if it can be set up, otherwise epoll.
    Auto,
    /// io_uring, or startup fails.
    IoUring,
    /// epoll.
    Epoll,
}

/// `maxmemory-policy`: which keys are evicted, and how accesses to keys are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are Redis's names of its policies")]
pub enum MaxmemoryPolicy {
    VolatileLru,
    VolatileLfu,
    VolatileRandom,
    VolatileTtl,
    AllkeysLru,
    AllkeysLfu,
    AllkeysRandom,
    NoEviction,
}

impl MaxmemoryPolicy {
    /// Returns which keys the policy evicts, and in which order.
    pub fn eviction(self) -> EvictionPolicy {
        match self {
            MaxmemoryPolicy::VolatileLru => EvictionPolicy::Volatile(Rank::Lru),
            MaxmemoryPolicy::VolatileLfu => EvictionPolicy::Volatile(Rank::Lfu),
            MaxmemoryPolicy::VolatileRandom => EvictionPolicy::Volatile(Rank::Random),
            MaxmemoryPolicy::VolatileTtl => EvictionPolicy::Volatile(Rank::Ttl),
            MaxmemoryPolicy::AllkeysLru => EvictionPolicy::All(Rank::Lru),
            MaxmemoryPolicy::AllkeysLfu => EvictionPolicy::All(Rank::Lfu),
            MaxmemoryPolicy::AllkeysRandom => EvictionPolicy::All(Rank::Random),
            MaxmemoryPolicy::NoEviction => EvictionPolicy::Nothing,
        }
    }

    /// Returns the policy's name, as `INFO` prints it.
    pub fn name(self) -> &'static str {
        POLICIES.iter().find(|(_, policy)| *policy == self).map_or("noeviction", |(name, _)| name)
    }
}

const POLICIES: [(&str, MaxmemoryPolicy); 8] = [
    ("volatile-lru", MaxmemoryPolicy::VolatileLru),
    ("volatile-lfu", MaxmemoryPolicy::VolatileLfu),
    ("volatile-random", MaxmemoryPolicy::VolatileRandom),
    ("volatile-ttl", MaxmemoryPolicy::VolatileTtl),
    ("allkeys-lru", MaxmemoryPolicy::AllkeysLru),
    ("allkeys-lfu", MaxmemoryPolicy::AllkeysLfu),
    ("allkeys-random", MaxmemoryPolicy::AllkeysRandom),
    ("noeviction", MaxmemoryPolicy::NoEviction),
];

/// `appendfsync`: when effects (propagated changes) in the append-only file are synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum AppendFsync {
    /// Before the server replies to the commands that produced the effects.
    Always,
    /// Once a second.
    #[default]
    EverySecond,
    /// Never by the server. The kernel decides when to write effects to disk.
    No,
}

/// The directives of the append-only file, except names and paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AofSettings {
    /// Whether to write the file, and to load it at startup (`appendonly`).
    pub is_on: bool,
    /// `appendfsync`.
    pub fsync: AppendFsync,
    /// `no-appendfsync-on-rewrite`: whether to skip the syncs of `everysec` during snapshots.
    pub no_fsync_on_rewrite: bool,
    /// `auto-aof-rewrite-percentage`: growth that causes a rewrite, percent; 0 means never.
    pub rewrite_percentage: u64,
    /// `auto-aof-rewrite-min-size`: size up to which no automatic rewrite starts, bytes.
    pub rewrite_min_bytes: u64,
    /// `aof-load-truncated`: whether to truncate and load a file that ends in a partial command.
    pub load_truncated: bool,
    /// `aof-use-rdb-preamble`: whether the base (the file with the dataset) is an RDB file.
    pub uses_rdb: bool,
    /// `aof-timestamp-enabled`: whether to annotate effects with their time.
    pub writes_times: bool,
    /// `aof-checksums`: whether to write effects with checksums.
    pub checksums: bool,
    /// `aof-rewrite-incremental-fsync`: whether to sync a base also while it is being written.
    pub rewrite_incremental_fsync: bool,
    /// `aof-disable-auto-gc`: whether to keep the files that a rewrite has replaced.
    pub keeps_history: bool,
}

impl AofSettings {
    fn from_values(values: &Values) -> Self {
        AofSettings {
            is_on: values.bool("appendonly"),
            fsync: match values.text("appendfsync") {
                b"always" => AppendFsync::Always,
                b"no" => AppendFsync::No,
                _ => AppendFsync::EverySecond,
            },
            no_fsync_on_rewrite: values.bool("no-appendfsync-on-rewrite"),
            rewrite_percentage: bytes(values, "auto-aof-rewrite-percentage"),
            rewrite_min_bytes: bytes(values, "auto-aof-rewrite-min-size"),
            load_truncated: values.bool("aof-load-truncated"),
            uses_rdb: values.bool("aof-use-rdb-preamble"),
            writes_times: values.bool("aof-timestamp-enabled"),
            checksums: values.bool("aof-checksums"),
            rewrite_incremental_fsync: values.bool("aof-rewrite-incremental-fsync"),
            keeps_history: values.bool("aof-disable-auto-gc"),
        }
    }
}

/// Lowest effective `hz`. Lower values, such as that of `CONFIG SET hz 0`, have the same effect.
pub const HZ_MIN: i128 = 1;
/// Highest effective `hz`.
pub const HZ_MAX: i128 = 500;

/// All settings that the server reads. Each change creates a new value ([`super::ConfigStore`]).
/// The fields are named after their directives. redis.conf explains the directives.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Number of shards, 1 to 16384.
    pub shards: usize,
    /// Number of partitions of all shards together, at least one per shard, at most 16384.
    pub partitions: usize,
    /// Number of workers, 1 to 1024.
    pub workers: usize,
    /// With [`Execution::Owner`], the number of threads that only read, parse and encode.
    pub io_threads: usize,
    /// How commands run on shards.
    pub execution: Execution,
    /// The event loop.
    pub io_backend: IoBackend,
    /// Whether to pin each worker to one CPU.
    pub pin_threads: bool,
    /// Whether to place workers and memory by NUMA node.
    pub numa: bool,
    /// TCP port; 0 disables TCP.
    pub port: u16,
    /// Addresses to listen on: `*`, `::*`, an address or a name. Optional ones start with `-`.
    pub bind: Vec<String>,
    /// Settings of TLS connections.
    pub tls: TlsSettings,
    /// Whether to reject clients of other hosts while no password is set.
    pub protected_mode: bool,
    /// Path of the Unix socket.
    pub unixsocket: Option<PathBuf>,
    /// Permissions of the Unix socket; 0 means that the umask determines them.
    pub unixsocketperm: u32,
    /// Length of the kernel's queue of connections that are not accepted yet.
    pub tcp_backlog: i32,
    /// Idle time after which TCP keep-alive probes are sent, s; 0 disables them.
    pub tcp_keepalive_s: u32,
    /// Idle time after which a client is closed, s; 0 means never.
    pub timeout_s: u32,
    /// Time after which a client that has not authenticated is closed, s; 0 means never.
    pub unauthenticated_timeout_s: u32,
    /// The distribution of connections over workers.
    pub spreading: super::Spreading,
    /// Maximum number of clients.
    pub maxclients: u32,
    /// Settings of the process: its supervisor, log, title and out-of-memory score.
    pub process: ProcessSettings,
    /// Whether to run in the background.
    pub daemonize: bool,
    /// Path of the file with the process ID.
    pub pidfile: Option<PathBuf>,
    /// The lowest severity that is logged.
    pub loglevel: LogLevel,
    /// Log file; `None` means standard output.
    pub logfile: Option<PathBuf>,
    /// Working directory.
    pub dir: PathBuf,
    /// Time to wait for replicas at shutdown, s.
    pub shutdown_timeout_s: u32,
    /// Password of the default user.
    pub requirepass: Option<Vec<u8>>,
    /// The file of the ACL users.
    pub aclfile: Option<PathBuf>,
    /// Maximum number of entries of `ACL LOG`.
    pub acllog_max_len: u64,
    /// Whether new users may use all channels (`acl-pubsub-default`).
    pub acl_channels_by_default: bool,
    /// Clients that may use `DEBUG`.
    pub enable_debug_command: Allowed,
    /// Clients that may use `MODULE LOAD`, `LOADEX` and `UNLOAD`.
    pub enable_module_command: Allowed,
    /// Clients that may change protected directives.
    pub enable_protected_configs: Allowed,
    /// Whether to log the version, mode, port and process ID on several lines at startup.
    pub always_show_logo: bool,
    /// Whether to compress long strings in snapshots and in the replies of `DUMP`.
    pub rdb_compression: bool,
    /// Whether a failed background snapshot rejects writes. No effect if `save_points` is empty.
    pub stop_writes_on_bgsave_error: bool,
    /// Whether to write and check checksums of snapshots.
    pub rdb_checksum: bool,
    /// `key-load-delay`, for tests: n > 0 delays a load by n µs per key, and -n by 1 µs per n keys.
    pub key_load_delay: i64,
    /// `rdb-key-save-delay`: delays a snapshot as `key-load-delay` delays a load.
    pub key_save_delay: i64,
    /// Whether to sync a snapshot also while it is being written, not only at its end.
    pub rdb_save_incremental_fsync: bool,
    /// Name of the snapshot's file in `dir`.
    pub dbfilename: PathBuf,
    /// The append-only file.
    pub aof: AofSettings,
    /// Name of the directory of the append-only file, in `dir` (`appenddirname`).
    pub appenddirname: PathBuf,
    /// Prefix of the names of the append-only files (`appendfilename`).
    pub appendfilename: Vec<u8>,
    /// The pairs of `save`, as text. If it is empty, no snapshot starts automatically.
    pub save_points: String,
    /// How SIGINT stops the server.
    pub shutdown_on_sigint: Shutdown,
    /// How SIGTERM stops the server.
    pub shutdown_on_sigterm: Shutdown,
    /// Maximum size of a sparse HyperLogLog, bytes.
    pub hll_sparse_max_bytes: u64,
    /// Maximum length of a command's argument, bytes.
    pub proto_max_bulk_len_bytes: u64,
    /// Time that a script runs before other clients receive the busy error, ms; 0 means no limit.
    pub busy_reply_threshold_ms: i64,
    /// Maximum size of a client's unprocessed input, bytes.
    pub client_query_buffer_limit_bytes: u64,
    /// Output limits of ordinary clients, [`with_reply_buffer`](OutputLimit::with_reply_buffer).
    pub output_limit_normal: OutputLimit,
    /// Output limits of replicas.
    pub output_limit_replica: OutputLimit,
    /// Output limits of subscribed clients, [`with_reply_buffer`](OutputLimit::with_reply_buffer).
    pub output_limit_pubsub: OutputLimit,
    /// Number of databases.
    pub databases: usize,
    /// Background rounds per second, [`HZ_MIN`] to [`HZ_MAX`].
    pub hz: u32,
    /// Effort of active expiry, 1 to 10.
    pub active_expire_effort: u32,
    /// Whether to free evicted values in the background.
    pub lazyfree_lazy_eviction: bool,
    /// Whether to free expired values in the background.
    pub lazyfree_lazy_expire: bool,
    /// Whether to free overwritten values in the background.
    pub lazyfree_lazy_server_del: bool,
    /// Whether `DEL` works like `UNLINK`.
    pub lazyfree_lazy_user_del: bool,
    /// Whether `FLUSHDB`, `FLUSHALL` and `SCRIPT FLUSH` work as with `ASYNC`.
    pub lazyfree_lazy_user_flush: bool,
    /// Memory usage above which keys are evicted, bytes; 0 means no limit.
    pub maxmemory_bytes: u64,
    /// Limit on the memory usage of all clients.
    pub maxmemory_clients: ClientsLimit,
    /// Which keys are evicted, and how accesses are recorded.
    pub maxmemory_policy: MaxmemoryPolicy,
    /// Number of keys sampled for each eviction, at least 1.
    pub maxmemory_samples: u32,
    /// How long one command may evict, 0 to 100; at 100, until memory is within its limit.
    pub maxmemory_eviction_tenacity: u32,
    /// How slowly the access counter of the LFU policies grows.
    pub lfu_log_factor: u32,
    /// Minutes after which the access counter of the LFU policies falls by one.
    pub lfu_decay_time_minutes: u32,
    /// Capacity of a list node: a number of entries, or -1 to -5 for 4 to 64 KiB.
    pub list_max_listpack_size: i32,
    /// Number of uncompressed nodes at either end of a new list; 0 disables compression.
    pub list_compress_depth: u32,
    /// Maximum number of fields of a packed hash.
    pub hash_max_listpack_entries: u64,
    /// Maximum length of a packed hash's field or value, bytes.
    pub hash_max_listpack_value_bytes: u64,
    /// Maximum number of members of a set of integers.
    pub set_max_intset_entries: u64,
    /// Maximum number of members of a packed sorted set.
    pub zset_max_listpack_entries: u64,
    /// Maximum length of a packed sorted set's member, bytes.
    pub zset_max_listpack_value_bytes: u64,
    /// Maximum size of a stream node, bytes; 0 means no limit.
    pub stream_node_max_bytes: u64,
    /// Maximum number of entries of a stream node; 0 means no limit.
    pub stream_node_max_entries: u64,
    /// Minimum duration of a command that is logged as slow, µs. A negative value disables the log.
    pub slowlog_log_slower_than_us: i64,
    /// Minimum duration of a `LATENCY` event, ms; 0 means that no events are recorded.
    pub latency_monitor_threshold_ms: u64,
    /// Whether to record the latencies of each command.
    pub latency_tracking: bool,
    /// Percentiles that `INFO latencystats` shows, 0 to 100 each.
    pub latency_percentiles: Vec<f64>,
    /// Maximum number of entries of the log of slow commands.
    pub slowlog_max_len: u64,
    /// `repl-backlog-size`: size of the replication backlog, bytes.
    pub repl_backlog_bytes: u64,
    /// `repl-ping-replica-period`: interval between pings to replicas, s.
    pub repl_ping_period_s: u64,
    /// Settings that apply while the server has replicas.
    pub primary: PrimarySettings,
    /// Settings that apply while the server is a replica.
    pub replica: ReplicaSettings,
    /// Maximum number of keys tracked for clients; 0 means no limit.
    pub tracking_table_max_keys: u64,
    /// Classes of keyspace events that are published.
    pub notify_keyspace_events: EventClasses,
    /// Whether to run as a node of a cluster.
    pub cluster_enabled: bool,
    /// Port for other nodes; 0 means the client port plus [`BUS_PORT_OFFSET`].
    pub cluster_port: u16,
    /// Address announced to clients. If empty, the address to which the client connected.
    pub cluster_announce_ip: String,
    /// Host name announced to clients. If empty, none.
    pub cluster_announce_hostname: String,
    /// Port announced to clients; 0 means the real port.
    pub cluster_announce_port: u16,
    /// Port announced to other nodes; 0 means the real port.
    pub cluster_announce_bus_port: u16,
    /// Kind of endpoint announced to clients.
    pub cluster_preferred_endpoint: PreferredEndpoint,
}

/// Difference between the port for other nodes and the client port if `cluster-port` is 0.
pub const BUS_PORT_OFFSET: u16 = 10_000;

/// Threshold of `slowlog-log-slower-than`, µs. Below it, every command is timed individually.
pub const SLOWLOG_FINE_US: i64 = 1000;

impl Settings {
    /// Returns the points of `save`: seconds until a snapshot is due, minimum number of changes.
    pub fn save_points(&self) -> impl Iterator<Item = (i64, u64)> + Clone {
        let mut numbers = self.save_points.split_ascii_whitespace();
        // The value consists of complete pairs of numbers, as `save` accepts only pairs.
        std::iter::from_fn(move || Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?)))
    }

    /// Returns whether every command is timed individually.
    pub fn times_all(&self) -> bool {
        (0..SLOWLOG_FINE_US).contains(&self.slowlog_log_slower_than_us)
    }

    /// Returns the port for other nodes, or 0 if it would exceed 65535.
    pub fn bus_port(&self) -> u16 {
        if self.cluster_port != 0 { self.cluster_port } else { self.port.checked_add(BUS_PORT_OFFSET).unwrap_or(0) }
    }

    /// Returns the limit on the memory usage of all clients, bytes; 0 means no limit.
    pub fn clients_memory_bytes(&self) -> u64 {
        match self.maxmemory_clients {
            ClientsLimit::Bytes(limit_bytes) => limit_bytes,
            ClientsLimit::Percent(percent) => {
                u64::try_from(u128::from(self.maxmemory_bytes) * u128::from(percent) / 100).unwrap_or(u64::MAX)
            }
        }
    }

    /// Converts `values` to settings.
    pub fn from_values(values: &Values) -> Self {
        let [output_limit_normal, output_limit_replica, output_limit_pubsub] = output_limits_of(values);
        Settings {
            shards: count(values, "shards"),
            partitions: count(values, "partitions"),
            workers: count(values, "workers"),
            io_threads: count(values, "io-threads"),
            execution: if values.text("execution") == b"owner" { Execution::Owner } else { Execution::Inline },
            io_backend: match values.text("io-backend") {
                b"io_uring" => IoBackend::IoUring,
                b"epoll" => IoBackend::Epoll,
                _ => IoBackend::Auto,
            },
            pin_threads: values.bool("pin-threads"),
            numa: values.text("numa") == b"auto",
            port: port(values, "port"),
            bind: words(values.text("bind")),
            tls: TlsSettings::from_values(values),
            protected_mode: values.bool("protected-mode"),
            unixsocket: path(values.text("unixsocket")),
            unixsocketperm: small(values, "unixsocketperm"),
            tcp_backlog: i32::try_from(values.number("tcp-backlog")).unwrap_or(i32::MAX),
            tcp_keepalive_s: small(values, "tcp-keepalive"),
            timeout_s: small(values, "timeout"),
            unauthenticated_timeout_s: small(values, "unauthenticated-timeout"),
            spreading: super::Spreading::new(values),
            maxclients: small(values, "maxclients"),
            process: ProcessSettings::new(values),
            daemonize: values.bool("daemonize"),
            pidfile: path(values.text("pidfile")),
            loglevel: log_level(values.text("loglevel")),
            logfile: path(values.text("logfile")),
            dir: path(values.text("dir")).unwrap_or_default(),
            shutdown_timeout_s: small(values, "shutdown-timeout"),
            requirepass: Some(values.text("requirepass").to_vec()).filter(|password| !password.is_empty()),
            aclfile: path(values.text("aclfile")),
            acllog_max_len: u64::try_from(values.number("acllog-max-len")).unwrap_or(u64::MAX),
            acl_channels_by_default: values.text("acl-pubsub-default") == b"allchannels",
            enable_debug_command: allowed(values.text("enable-debug-command")),
            enable_module_command: allowed(values.text("enable-module-command")),
            enable_protected_configs: allowed(values.text("enable-protected-configs")),
            rdb_compression: values.bool("rdbcompression"),
            stop_writes_on_bgsave_error: values.bool("stop-writes-on-bgsave-error"),
            rdb_checksum: values.bool("rdbchecksum"),
            always_show_logo: values.bool("always-show-logo"),
            key_load_delay: values.number("key-load-delay") as i64,
            key_save_delay: values.number("rdb-key-save-delay") as i64,
            rdb_save_incremental_fsync: values.bool("rdb-save-incremental-fsync"),
            dbfilename: path(values.text("dbfilename")).unwrap_or_default(),
            aof: AofSettings::from_values(values),
            appenddirname: path(values.text("appenddirname")).unwrap_or_default(),
            appendfilename: values.text("appendfilename").to_vec(),
            save_points: text(values, "save"),
            shutdown_on_sigint: shutdown(values.text("shutdown-on-sigint")),
            shutdown_on_sigterm: shutdown(values.text("shutdown-on-sigterm")),
            hll_sparse_max_bytes: bytes(values, "hll-sparse-max-bytes"),
            proto_max_bulk_len_bytes: bytes(values, "proto-max-bulk-len"),
            busy_reply_threshold_ms: i64::try_from(values.number("busy-reply-threshold")).unwrap_or(i64::MAX),
            client_query_buffer_limit_bytes: bytes(values, "client-query-buffer-limit"),
            output_limit_normal,
            output_limit_replica,
            output_limit_pubsub,
            databases: count(values, "databases"),
            hz: small(values, "hz"),
            active_expire_effort: small(values, "active-expire-effort"),
            lazyfree_lazy_eviction: values.bool("lazyfree-lazy-eviction"),
            lazyfree_lazy_expire: values.bool("lazyfree-lazy-expire"),
            lazyfree_lazy_server_del: values.bool("lazyfree-lazy-server-del"),
            lazyfree_lazy_user_del: values.bool("lazyfree-lazy-user-del"),
            lazyfree_lazy_user_flush: values.bool("lazyfree-lazy-user-flush"),
            maxmemory_bytes: bytes(values, "maxmemory"),
            maxmemory_clients: match values.number("maxmemory-clients") {
                share @ ..0 => ClientsLimit::Percent(u8::try_from(-share).unwrap_or(100)),
                limit => ClientsLimit::Bytes(u64::try_from(limit).unwrap_or(u64::MAX)),
            },
            maxmemory_policy: policy(values.text("maxmemory-policy")),
            maxmemory_samples: small(values, "maxmemory-samples"),
            maxmemory_eviction_tenacity: small(values, "maxmemory-eviction-tenacity"),
            lfu_log_factor: small(values, "lfu-log-factor"),
            lfu_decay_time_minutes: small(values, "lfu-decay-time"),
            list_max_listpack_size: i32::try_from(values.number("list-max-listpack-size")).unwrap_or(-2),
            list_compress_depth: small(values, "list-compress-depth"),
            hash_max_listpack_entries: bytes(values, "hash-max-listpack-entries"),
            hash_max_listpack_value_bytes: bytes(values, "hash-max-listpack-value"),
            set_max_intset_entries: bytes(values, "set-max-intset-entries"),
            zset_max_listpack_entries: bytes(values, "zset-max-listpack-entries"),
            zset_max_listpack_value_bytes: bytes(values, "zset-max-listpack-value"),
            stream_node_max_bytes: bytes(values, "stream-node-max-bytes"),
            stream_node_max_entries: bytes(values, "stream-node-max-entries"),
            slowlog_log_slower_than_us: i64::try_from(values.number("slowlog-log-slower-than")).unwrap_or(i64::MAX),
            latency_monitor_threshold_ms: bytes(values, "latency-monitor-threshold"),
            latency_tracking: values.bool("latency-tracking"),
            latency_percentiles: words(values.text("latency-tracking-info-percentiles"))
                .iter()
                .filter_map(|word| word.parse().ok())
                .collect(),
            slowlog_max_len: bytes(values, "slowlog-max-len"),
            repl_backlog_bytes: bytes(values, "repl-backlog-size"),
            repl_ping_period_s: bytes(values, "repl-ping-replica-period"),
            primary: PrimarySettings::new(values),
            replica: ReplicaSettings::new(values),
            tracking_table_max_keys: bytes(values, "tracking-table-max-keys"),
            notify_keyspace_events: EventClasses::from_bits(small(values, "notify-keyspace-events")),
            cluster_enabled: values.bool("cluster-enabled"),
            cluster_port: port(values, "cluster-port"),
            cluster_announce_ip: text(values, "cluster-announce-ip"),
            cluster_announce_hostname: text(values, "cluster-announce-hostname"),
            cluster_announce_port: port(values, "cluster-announce-port"),
            cluster_announce_bus_port: port(values, "cluster-announce-bus-port"),
            cluster_preferred_endpoint: match values.text("cluster-preferred-endpoint-type") {
                b"hostname" => PreferredEndpoint::Hostname,
                b"unknown-endpoint" => PreferredEndpoint::Unknown,
                _ => PreferredEndpoint::Ip,
            },
        }
    }
}

/// Returns the options of `SHUTDOWN` that a directive names.
fn shutdown(options: &[u8]) -> Shutdown {
    let has = |name: &[u8]| options.split(|byte| *byte == b' ').any(|option| option == name);
    Shutdown { save: has(b"save"), no_save: has(b"nosave"), now: has(b"now"), force: has(b"force"), abort: false }
}

fn output_limits_of(values: &Values) -> [OutputLimit; 3] {
    pending_limits(&super::value::Value::Text(values.text("client-output-buffer-limit").to_vec()))
}

/// Returns the value of a port directive, which the table limits to 16 bits.
pub(super) fn port(values: &Values, name: &str) -> u16 {
    u16::try_from(values.number(name)).unwrap_or(0)
}

/// Returns the value of a text directive, with invalid UTF-8 replaced.
pub(super) fn text(values: &Values, name: &str) -> String {
    String::from_utf8_lossy(values.text(name)).into_owned()
}

/// Returns the value of a numeric directive, which the table limits to 32 bits.
fn small(values: &Values, name: &str) -> u32 {
    u32::try_from(values.number(name)).unwrap_or(u32::MAX)
}

pub(super) fn count(values: &Values, name: &str) -> usize {
    usize::try_from(values.number(name)).unwrap_or(usize::MAX)
}

pub(super) fn bytes(values: &Values, name: &str) -> u64 {
    u64::try_from(values.number(name)).unwrap_or(u64::MAX)
}

pub(super) fn path(text: &[u8]) -> Option<PathBuf> {
    (!text.is_empty()).then(|| OsString::from_vec(text.to_vec()).into())
}

/// Splits a list that is joined by spaces. If an address isn't UTF-8, resolving it fails later.
fn words(text: &[u8]) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|byte| *byte == b' ').map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn allowed(text: &[u8]) -> Allowed {
    match text {
        b"yes" => Allowed::Yes,
        b"local" => Allowed::Local,
        _ => Allowed::No,
    }
}

fn log_level(text: &[u8]) -> LogLevel {
    match text {
        b"debug" => LogLevel::Debug,
        b"verbose" => LogLevel::Verbose,
        b"warning" => LogLevel::Warning,
        _ => LogLevel::Notice,
    }
}

fn policy(text: &[u8]) -> MaxmemoryPolicy {
    POLICIES.iter().find(|(name, _)| name.as_bytes() == text).map_or(MaxmemoryPolicy::NoEviction, |(_, policy)| *policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_match_redis() {
        let settings = Settings::from_values(&Values::new());
        assert_eq!(settings.port, 6379);
        assert_eq!(settings.bind, ["*", "-::*"]);
        assert!(settings.protected_mode && !settings.daemonize);
        assert_eq!((settings.tcp_backlog, settings.tcp_keepalive_s, settings.timeout_s), (511, 300, 0));
        assert_eq!((settings.maxclients, settings.databases, settings.hz), (10_000, 16, 10));
        assert_eq!(settings.requirepass, None);
        assert_eq!(settings.output_limit_normal, OutputLimit::default());
        let replica = OutputLimit { hard_bytes: 256 << 20, soft_bytes: 64 << 20, soft_seconds: 60 };
        assert_eq!(settings.output_limit_replica, replica);
        let pubsub = OutputLimit { hard_bytes: 32 << 20, soft_bytes: 8 << 20, soft_seconds: 60 };
        assert_eq!(settings.output_limit_pubsub, pubsub.with_reply_buffer());
        assert_eq!(settings.maxmemory_policy.name(), "noeviction");
        assert_eq!(settings.maxmemory_policy.eviction(), EvictionPolicy::Nothing);
    }

    #[test]
    fn clients_memory_limit_is_bytes_or_a_percentage() {
        let mut settings = Settings::from_values(&Values::new());
        assert_eq!((settings.maxmemory_clients, settings.clients_memory_bytes()), (ClientsLimit::Bytes(0), 0));
        settings.maxmemory_clients = ClientsLimit::Bytes(5_000);
        assert_eq!(settings.clients_memory_bytes(), 5_000);
        settings.maxmemory_clients = ClientsLimit::Percent(7);
        assert_eq!(settings.clients_memory_bytes(), 0);
        settings.maxmemory_bytes = 6 << 20;
        assert_eq!(settings.clients_memory_bytes(), 440_401);
        (settings.maxmemory_bytes, settings.maxmemory_clients) = (u64::MAX, ClientsLimit::Percent(100));
        assert_eq!(settings.clients_memory_bytes(), u64::MAX);
    }

    #[test]
    fn local_allows_local_clients_only() {
        assert!(Allowed::Local.allows(true) && !Allowed::Local.allows(false));
        assert!(Allowed::Yes.allows(false) && !Allowed::No.allows(true));
    }
}
