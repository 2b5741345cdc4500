//! One record for each directive of redis-server 7.0.15 and of Pantala. Parsing, warnings, and
//! `CONFIG GET`, `SET` and `REWRITE` use these records.
//!
//! If Pantala's default differs from Redis's, a comment at the record gives the reason. All types
//! and ranges are Redis's, so Pantala rejects the same values as Redis, even for directives that it
//! doesn't support yet.

use super::directive::{Directive, Kind};
use pantala_base::limits::{DATABASES_MAX, PARTITIONS_MAX, SHARDS_MAX, WORKERS_MAX};
use pantala_replication::FLOWS_MAX;

use Directive as D;
use Kind::{Bool, Choice, FileName, Integer, Memory, MemoryOrPercent, Octal, RequiredFileName, Text};

const INT_MAX: i128 = i32::MAX as i128;
const INT_MIN: i128 = i32::MIN as i128;
const UINT_MAX: i128 = u32::MAX as i128;
const LONG_MAX: i128 = i64::MAX as i128;
const ULONG_MAX: i128 = u64::MAX as i128;
const MB: i128 = 1024 * 1024;
const PORT: Kind = Integer(0, u16::MAX as i128);
const COUNT: Kind = Integer(0, INT_MAX);
/// Which clients may use a protected command or directive: none, all, or those on this host.
const ALLOWED: Kind = Choice(&["no", "yes", "local"]);

/// Value of `shards`, `partitions` and `workers` before the host's defaults are applied.
pub const AUTOMATIC: &str = "0";

/// The directives, in the order in which `CONFIG GET` lists them.
pub static DIRECTIVES: &[Directive] = &[
    // Pantala's own directives.
    D::at_start("shards", Integer(1, SHARDS_MAX as i128), AUTOMATIC).own(),
    D::at_start("partitions", Integer(1, PARTITIONS_MAX as i128), AUTOMATIC).own(),
    D::at_start("workers", Integer(1, WORKERS_MAX as i128), AUTOMATIC).own(),
    D::at_start("execution", Choice(&["inline", "owner"]), "inline").own(),
    D::at_start("io-backend", Choice(&["auto", "io_uring", "epoll"]), "auto").own(),
    D::at_start("pin-threads", Bool, "no").own(),
    D::at_start("numa", Choice(&["auto", "off"]), "auto").own(),
    D::at_start("sandbox", Bool, "no").own(),
    // With `yes`, directives that are unsafe to ignore cause a warning instead of an error.
    D::at_start("ignore-unsupported", Bool, "no").own(),
    // Network.
    D::live("port", PORT, "6379"),
    D::live("bind", Kind::Bind, "* -::*"),
    D::live("protected-mode", Bool, "yes"),
    D::at_start("unixsocket", Text, ""),
    D::at_start("unixsocketperm", Octal(0, 0o777), "0"),
    D::at_start("tcp-backlog", COUNT, "511"),
    D::live("tcp-keepalive", COUNT, "300"),
    D::live("timeout", COUNT, "0"),
    D::live("unauthenticated-timeout", COUNT, "0").own(),
    D::live("packed-connections", COUNT, "32").own(),
    D::live("move-connections", Bool, "yes").own(),
    D::live("replica-refuse-empty-primary", Bool, "no").own(),
    D::live("maxclients", Integer(1, UINT_MAX), "10000"),
    // In Redis, I/O threads read and write for the main thread. The main thread counts as one of
    // them, so the minimum is 1. In Pantala, I/O threads read and parse commands and encode replies
    // for the workers that own shards (`execution owner`), and 0 means no I/O threads.
    D::at_start("io-threads", Integer(0, WORKERS_MAX as i128), "0"),
    D::known("io-threads-do-reads", Bool, "no").immutable(),
    D::live("bind-source-addr", Text, ""),
    D::known("socket-mark-id", Integer(0, UINT_MAX), "0").immutable(),
    // Process.
    D::at_start("daemonize", Bool, "no"),
    D::at_start("pidfile", Text, ""),
    D::live("loglevel", Choice(&["debug", "verbose", "notice", "warning"]), "notice"),
    D::at_start("logfile", Text, ""),
    D::live("dir", Kind::Dir, "").protected().denied_while_loading(),
    D::at_start("always-show-logo", Bool, "no"),
    D::live("shutdown-timeout", COUNT, "10"),
    D::live("shutdown-on-sigint", Kind::ShutdownOptions, "default"),
    D::live("shutdown-on-sigterm", Kind::ShutdownOptions, "default"),
    D::at_start("supervised", Choice(&["upstart", "systemd", "auto", "no"]), "no"),
    D::at_start("syslog-enabled", Bool, "no"),
    D::at_start("syslog-ident", Text, "redis"),
    D::at_start(
        "syslog-facility",
        Choice(&["user", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"]),
        "local0",
    ),
    D::at_start("set-proc-title", Bool, "yes"),
    D::live("proc-title-template", Kind::TitleTemplate, "{title} {listen-addr} {server-mode}"),
    // Redis's default is yes. Pantala prints no crash report.
    D::known("crash-log-enabled", Bool, "no"),
    D::known("crash-memcheck-enabled", Bool, "no"),
    D::known("use-exit-on-panic", Bool, "no").hidden(),
    // Redis's default is yes, because huge pages make its fork expensive. Pantala doesn't fork for
    // snapshots.
    D::known("disable-thp", Bool, "no").immutable(),
    D::live("oom-score-adj", Kind::OomScoreAdj, "no"),
    D::live("oom-score-adj-values", Kind::OomScores, "0 200 800"),
    D::known("ignore-warnings", Text, ""),
    D::known("watchdog-period", COUNT, "0").hidden(),
    D::known("server_cpulist", Text, "").immutable(),
    D::known("bio_cpulist", Text, "").immutable(),
    D::known("aof_rewrite_cpulist", Text, "").immutable(),
    D::known("bgsave_cpulist", Text, "").immutable(),
    // Access.
    D::live("requirepass", Text, ""),
    D::at_start("enable-debug-command", ALLOWED, "no"),
    D::at_start("enable-protected-configs", ALLOWED, "no"),
    D::at_start("enable-module-command", ALLOWED, "no"),
    D::at_start("aclfile", Text, ""),
    D::live("acllog-max-len", Integer(0, LONG_MAX), "128"),
    D::live("acl-pubsub-default", Choice(&["allchannels", "resetchannels"]), "resetchannels"),
    // Limits of clients.
    D::live("proto-max-bulk-len", Memory(MB, LONG_MAX), "536870912"),
    D::live("client-query-buffer-limit", Memory(MB, LONG_MAX), "1073741824"),
    D::live(
        "client-output-buffer-limit",
        Kind::OutputBufferLimit,
        "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60",
    ),
    D::live("maxmemory-clients", MemoryOrPercent, "0"),
    D::live("tracking-table-max-keys", Integer(0, LONG_MAX), "1000000"),
    // Keys.
    D::at_start("databases", Integer(1, DATABASES_MAX as i128), "16"),
    D::live("hz", COUNT, "10"),
    D::live("dynamic-hz", Bool, "yes"),
    D::live("active-expire-effort", Integer(1, 10), "1"),
    D::live("lazyfree-lazy-eviction", Bool, "no"),
    D::live("lazyfree-lazy-expire", Bool, "no"),
    D::live("lazyfree-lazy-server-del", Bool, "no"),
    D::live("lazyfree-lazy-user-del", Bool, "no"),
    D::live("lazyfree-lazy-user-flush", Bool, "no"),
    D::live(
        "maxmemory-policy",
        Choice(&[
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "noeviction",
        ]),
        "noeviction",
    ),
    D::live("lfu-log-factor", COUNT, "10"),
    D::live("lfu-decay-time", COUNT, "1"),
    D::live("maxmemory", Memory(0, ULONG_MAX), "0"),
    D::live("maxmemory-samples", Integer(1, INT_MAX), "5"),
    D::live("maxmemory-eviction-tenacity", Integer(0, 100), "10"),
    // Redis's default is yes. Pantala's dictionary never rehashes as a whole.
    D::known("activerehashing", Bool, "no"),
    // Redis's default is yes. Pantala doesn't use jemalloc.
    D::known("jemalloc-bg-thread", Bool, "no"),
    D::known("activedefrag", Bool, "no"),
    D::known("active-defrag-cycle-min", Integer(1, 99), "1"),
    D::known("active-defrag-cycle-max", Integer(1, 99), "25"),
    D::known("active-defrag-threshold-lower", Integer(0, 1000), "10"),
    D::known("active-defrag-threshold-upper", Integer(0, 1000), "100"),
    D::known("active-defrag-max-scan-fields", Integer(1, LONG_MAX), "1000"),
    D::known("active-defrag-ignore-bytes", Memory(1, LONG_MAX), "104857600"),
    D::live("notify-keyspace-events", Kind::KeyspaceEvents, ""),
    // Encodings.
    D::live("hash-max-listpack-entries", Integer(0, LONG_MAX), "512").alias("hash-max-ziplist-entries"),
    D::live("hash-max-listpack-value", Memory(0, LONG_MAX), "64").alias("hash-max-ziplist-value"),
    D::live("list-max-listpack-size", Integer(INT_MIN, INT_MAX), "-2").alias("list-max-ziplist-size"),
    D::live("list-compress-depth", COUNT, "0"),
    D::live("set-max-intset-entries", Integer(0, LONG_MAX), "512"),
    D::live("hll-sparse-max-bytes", Memory(0, LONG_MAX), "3000"),
    D::live("zset-max-listpack-entries", Integer(0, LONG_MAX), "128").alias("zset-max-ziplist-entries"),
    D::live("zset-max-listpack-value", Memory(0, LONG_MAX), "64").alias("zset-max-ziplist-value"),
    D::live("stream-node-max-bytes", Memory(0, LONG_MAX), "4096"),
    D::live("stream-node-max-entries", Integer(0, LONG_MAX), "100"),
    // Monitoring and scripts.
    D::live("slowlog-log-slower-than", Integer(-1, LONG_MAX), "10000"),
    D::live("slowlog-max-len", Integer(0, LONG_MAX), "128"),
    D::live("latency-monitor-threshold", Integer(0, LONG_MAX), "0"),
    D::live("latency-tracking", Bool, "yes"),
    D::live("latency-tracking-info-percentiles", Kind::Percentiles, "50 99 99.9"),
    D::live("busy-reply-threshold", Integer(0, LONG_MAX), "5000").alias("lua-time-limit"),
    D::known("lua-enable-deprecated-api", Bool, "no").immutable().hidden(),
    // Snapshots.
    D::live("save", Kind::Save, "3600 1 300 100 60 10000"),
    D::live("dbfilename", FileName("dbfilename can't be a path, just a filename"), "dump.rdb").protected(),
    D::live("rdbcompression", Bool, "yes"),
    D::at_start("rdbchecksum", Bool, "yes"),
    D::live("rdb-del-sync-files", Bool, "no"),
    D::live("rdb-save-incremental-fsync", Bool, "yes"),
    D::live("rdb-key-save-delay", Integer(INT_MIN, INT_MAX), "0").hidden(),
    D::live("key-load-delay", Integer(INT_MIN, INT_MAX), "0").hidden(),
    D::known("loading-process-events-interval-bytes", Integer(1024, INT_MAX), "2097152").hidden(),
    D::live("stop-writes-on-bgsave-error", Bool, "yes"),
    // The value has no effect, because payloads are always checked completely.
    D::live("sanitize-dump-payload", Choice(&["no", "yes", "clients"]), "no"),
    // Append-only file.
    D::live("appendonly", Bool, "no").denied_while_loading(),
    D::at_start(
        "appendfilename",
        RequiredFileName("appendfilename can't be a path, just a filename"),
        "appendonly.aof",
    ),
    D::at_start("appenddirname", RequiredFileName("appenddirname can't be a path, just a dirname"), "appendonlydir"),
    D::live("appendfsync", Choice(&["everysec", "always", "no"]), "everysec"),
    D::live("no-appendfsync-on-rewrite", Bool, "no"),
    D::live("auto-aof-rewrite-percentage", COUNT, "100"),
    D::live("auto-aof-rewrite-min-size", Memory(0, LONG_MAX), "67108864"),
    D::live("aof-load-truncated", Bool, "yes"),
    D::live("aof-use-rdb-preamble", Bool, "yes"),
    D::live("aof-timestamp-enabled", Bool, "no"),
    D::live("aof-checksums", Bool, "no").own(),
    D::live("aof-rewrite-incremental-fsync", Bool, "yes"),
    D::live("aof-disable-auto-gc", Bool, "no"),
    // Replication.
    D::at_start("replicaof", Kind::ReplicaOf, "").alias("slaveof"),
    D::live("masterauth", Text, ""),
    D::live("masteruser", Text, ""),
    D::live("replica-priority", COUNT, "100").alias("slave-priority"),
    D::live("replica-announced", Bool, "yes"),
    D::live("replica-announce-ip", Text, "").alias("slave-announce-ip"),
    D::live("replica-announce-port", PORT, "0").alias("slave-announce-port"),
    D::live("replica-serve-stale-data", Bool, "yes").alias("slave-serve-stale-data"),
    D::live("replica-read-only", Bool, "yes").alias("slave-read-only"),
    D::live("replica-ignore-maxmemory", Bool, "yes").alias("slave-ignore-maxmemory"),
    D::known("replica-ignore-disk-write-errors", Bool, "no"),
    D::live("replica-lazy-flush", Bool, "no").alias("slave-lazy-flush"),
    D::known("propagation-error-behavior", Choice(&["ignore", "panic", "panic-on-replicas"]), "ignore"),
    D::live("repl-diskless-sync", Bool, "yes"),
    D::live("repl-diskless-sync-delay", COUNT, "5"),
    D::live("repl-diskless-sync-max-replicas", COUNT, "0"),
    D::live("repl-diskless-load", Choice(&["disabled", "on-empty-db", "swapdb"]), "disabled").denied_while_loading(),
    D::known("repl-disable-tcp-nodelay", Bool, "no"),
    D::live("repl-ping-replica-period", Integer(1, INT_MAX), "10").alias("repl-ping-slave-period"),
    D::live("repl-timeout", Integer(1, INT_MAX), "60"),
    D::live("repl-backlog-size", Memory(1, LONG_MAX), "1048576"),
    D::live("repl-backlog-disk-size", Memory(0, LONG_MAX), "0").own(),
    D::live("repl-flows", Integer(0, FLOWS_MAX as i128), "1").own(),
    D::live("repl-flows-compression", Choice(&["no", "lz4"]), "no").own(),
    D::live("repl-backlog-ttl", Integer(0, LONG_MAX), "3600"),
    D::live("min-replicas-to-write", COUNT, "0").alias("min-slaves-to-write"),
    D::live("min-replicas-max-lag", COUNT, "10").alias("min-slaves-max-lag"),
    // Cluster.
    D::at_start("cluster-enabled", Bool, "no"),
    D::known("cluster-config-file", Text, "nodes.conf").immutable(),
    D::at_start("cluster-port", PORT, "0"),
    D::live("cluster-announce-ip", Text, ""),
    D::live("cluster-announce-hostname", Kind::HostName, ""),
    D::live("cluster-announce-port", PORT, "0"),
    D::known("cluster-announce-tls-port", PORT, "0"),
    D::live("cluster-announce-bus-port", PORT, "0"),
    D::live("cluster-preferred-endpoint-type", Choice(&["ip", "hostname", "unknown-endpoint"]), "ip"),
    D::known("cluster-node-timeout", Integer(0, LONG_MAX), "15000"),
    D::known("cluster-link-sendbuf-limit", Memory(0, ULONG_MAX), "0"),
    D::known("cluster-migration-barrier", COUNT, "1"),
    D::known("cluster-allow-replica-migration", Bool, "yes"),
    D::known("cluster-replica-validity-factor", COUNT, "10").alias("cluster-slave-validity-factor"),
    D::known("cluster-replica-no-failover", Bool, "no").alias("cluster-slave-no-failover"),
    D::known("cluster-require-full-coverage", Bool, "yes"),
    D::known("cluster-allow-reads-when-down", Bool, "no"),
    D::known("cluster-allow-pubsubshard-when-down", Bool, "yes"),
    // TLS.
    D::live("tls-port", PORT, "0"),
    // The cluster bus is not built yet.
    D::known("tls-cluster", Bool, "no").unsafe_to_ignore("nothing would be encrypted"),
    D::live("tls-replication", Bool, "no"),
    D::live("tls-handshake-threads", Integer(0, WORKERS_MAX as i128), "1").own(),
    D::live("tls-auth-clients", Choice(&["no", "yes", "optional"]), "yes"),
    D::live("tls-prefer-server-ciphers", Bool, "no"),
    D::live("tls-session-caching", Bool, "yes"),
    D::live("tls-session-cache-size", COUNT, "20480"),
    D::live("tls-session-cache-timeout", COUNT, "300"),
    D::live("tls-cert-file", Text, ""),
    D::live("tls-key-file", Text, ""),
    D::live("tls-key-file-pass", Text, ""),
    D::live("tls-client-cert-file", Text, ""),
    D::live("tls-client-key-file", Text, ""),
    D::live("tls-client-key-file-pass", Text, ""),
    D::live("tls-dh-params-file", Text, ""),
    D::live("tls-ca-cert-file", Text, ""),
    D::live("tls-ca-cert-dir", Text, ""),
    D::live("tls-protocols", Text, ""),
    D::live("tls-ciphers", Text, ""),
    D::live("tls-ciphersuites", Text, ""),
];

/// A directive, found by one of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The directive's index in [`DIRECTIVES`].
    pub index: usize,
    /// Whether the directive was found by its alias.
    pub by_alias: bool,
}

impl Found {
    /// Returns the record.
    pub fn directive(self) -> &'static Directive {
        &DIRECTIVES[self.index]
    }

    /// Returns the name by which the directive was found, as the table spells it.
    pub fn name(self) -> &'static str {
        let directive = self.directive();
        match directive.alias {
            Some(alias) if self.by_alias => alias,
            _ => directive.name,
        }
    }
}

/// Finds the directive with the name `name`, ignoring case. Configuration is never on a hot path,
/// so a linear scan of some 200 names is fast enough.
pub fn find(name: &[u8]) -> Option<Found> {
    names().find(|found| found.name().as_bytes().eq_ignore_ascii_case(name))
}

/// Iterates over all names. An alias follows its directive's name.
pub fn names() -> impl Iterator<Item = Found> {
    DIRECTIVES.iter().enumerate().flat_map(|(index, directive)| {
        let primary = Found { index, by_alias: false };
        let alias = directive.alias.map(|_| Found { index, by_alias: true });
        std::iter::once(primary).chain(alias)
    })
}

#[cfg(test)]
mod tests;
