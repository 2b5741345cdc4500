//! Settings that commands and shards read while they run. The server writes them at startup and on
//! `CONFIG SET`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_types::list::{ALONE_BYTES_DEFAULT, NodeLimit};

pub mod pause;
pub mod policy;
pub mod refusal;

use pause::Pauses;
use policy::{EvictionPolicy, Rank};

/// The content of an entry's access word (a number that records when or how often the key was
/// accessed). `maxmemory-policy` determines it. `OBJECT IDLETIME` and `OBJECT FREQ` show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccessPolicy {
    /// Time of the last access, in seconds.
    Lru = 0,
    /// Logarithmic access counter.
    Lfu = 1,
}

/// The interval at which `DEBUG SLEEP` checks whether it was interrupted.
const SLEEP_SLICE: Duration = Duration::from_millis(10);

/// Whether commands can be observed and timed (`MONITOR`, `SLOWLOG`, `LATENCY`, client-side
/// caching). Builds with the feature `unwatched` lack these hooks. They are for measuring what the
/// hooks cost while unused, and not for production.
pub const WATCHING: bool = !cfg!(feature = "unwatched");

/// Bit of [`Tuning::events`]: effects are recorded for the journal (see `effect`). The lower bits
/// of the word are classes of keyspace events.
const JOURNALED: u32 = 1 << 27;
/// Bit: the server rejects some commands ([`refusal`]).
const REFUSES: u32 = 1 << 26;
/// Bit: memory is limited (`maxmemory`).
const LIMITED: u32 = 1 << 28;
/// Bit: there are monitors.
const MONITORS: u32 = 1 << 29;
/// Bit: clients track the keys that they read.
const TRACKS: u32 = 1 << 30;
/// Bit: clients receive invalidations by prefix.
const BROADCASTS: u32 = 1 << 31;
/// All bits declared above, except [`REFUSES`].
pub(crate) const WATCHED: u32 = JOURNALED | LIMITED | MONITORS | TRACKS | BROADCASTS;
/// The bits that don't depend on `notify-keyspace-events`.
pub(crate) const KEPT: u32 = WATCHED | REFUSES;

/// Live settings and states of the server. The hot path reads each setting with a plain load of an
/// atomic. Relaxed ordering suffices, because the settings are independent of each other.
pub struct Tuning {
    /// `proto-max-bulk-len`, bytes. Also the maximum length of a string value.
    pub proto_max_bulk_len: AtomicU64,
    /// Maximum length of the replies of a connection, bytes. It is the larger of the two hard
    /// limits of `client-output-buffer-limit` for `normal` and `pubsub`. `u64::MAX` if one of the
    /// two classes has no limit.
    pub reply_bytes_max: AtomicU64,
    /// Maximum length of the messages in flight to a subscriber, bytes: the hard limit of
    /// `client-output-buffer-limit` for `pubsub`, or `u64::MAX`.
    pub pubsub_bytes_max: AtomicU64,
    /// `lazyfree-lazy-eviction`.
    pub lazyfree_lazy_eviction: AtomicBool,
    /// `lazyfree-lazy-expire`.
    pub lazyfree_lazy_expire: AtomicBool,
    /// `lazyfree-lazy-server-del`.
    pub lazyfree_lazy_server_del: AtomicBool,
    /// `lazyfree-lazy-user-del`.
    pub lazyfree_lazy_user_del: AtomicBool,
    /// `lazyfree-lazy-user-flush`.
    pub lazyfree_lazy_user_flush: AtomicBool,
    /// `maxmemory-policy` as an [`AccessPolicy`].
    access_policy: AtomicU8,
    /// `maxmemory-policy`, encoded by [`EvictionPolicy::bits`].
    eviction_policy: AtomicU8,
    /// `maxmemory-samples`, at least 1.
    pub maxmemory_samples: AtomicU32,
    /// `maxmemory-eviction-tenacity`, 0 to 100.
    pub maxmemory_eviction_tenacity: AtomicU32,
    /// `lfu-log-factor`.
    pub lfu_log_factor: AtomicU32,
    /// `lfu-decay-time`, minutes.
    pub lfu_decay_time_minutes: AtomicU32,
    /// `list-max-listpack-size`.
    pub list_max_listpack_size: AtomicI32,
    /// `list-compress-depth`. Applies to lists created later.
    pub list_compress_depth: AtomicU32,
    /// `DEBUG QUICKLIST-PACKED-THRESHOLD`, bytes: a list element of at least this length is alone
    /// in its node.
    pub list_alone_bytes: AtomicU64,
    /// `hash-max-listpack-entries`.
    pub hash_max_listpack_entries: AtomicU64,
    /// `hash-max-listpack-value`, bytes.
    pub hash_max_listpack_value_bytes: AtomicU64,
    /// `set-max-intset-entries`.
    pub set_max_intset_entries: AtomicU64,
    /// `zset-max-listpack-entries`.
    pub zset_max_listpack_entries: AtomicU64,
    /// `zset-max-listpack-value`, bytes.
    pub zset_max_listpack_value_bytes: AtomicU64,
    /// `active-expire-effort`, 1 to 10.
    pub active_expire_effort: AtomicU32,
    /// `DEBUG SET-ACTIVE-EXPIRE`.
    pub active_expire: AtomicBool,
    /// Whether clients of this writable replica may have given keys a TTL. The replica deletes such
    /// keys itself when they expire.
    pub has_own_ttls: AtomicBool,
    /// `hll-sparse-max-bytes`: a HyperLogLog whose sparse form would be longer becomes dense.
    pub hll_sparse_max_bytes: AtomicU64,
    /// `rdbcompression`: compresses long strings in snapshots and in replies to `DUMP`.
    pub rdb_compression: AtomicBool,
    /// `hz`.
    pub hz: AtomicU32,
    /// `stream-node-max-bytes`; 0: no limit.
    pub stream_node_max_bytes: AtomicU64,
    /// `stream-node-max-entries`; 0: no limit.
    pub stream_node_max_entries: AtomicU64,
    /// `latency-monitor-threshold`; 0: off.
    pub latency_threshold_ms: AtomicU64,
    /// `slowlog-log-slower-than`.
    pub slowlog_slower_than_us: AtomicI64,
    /// `slowlog-max-len`.
    pub slowlog_max_len: AtomicU64,
    /// Whether every command is timed individually, even a plain one
    /// ([`Command::is_plain`](crate::command::Command::is_plain)).
    pub times_all: AtomicBool,
    /// The enabled classes of `notify-keyspace-events`, and bits such as `MONITORS` for the other
    /// observers of commands and changes. Without `K` or `E` nothing is published, so no class is
    /// enabled here. One load of this word checks for all observers.
    pub(crate) events: AtomicU32,
    /// `tracking-table-max-keys`; 0: no limit.
    pub tracking_table_max_keys: AtomicU64,
    /// `DEBUG PAUSE-CRON`.
    pub cron_is_paused: AtomicBool,
    /// `DEBUG SET-SKIP-CHECKSUM-VALIDATION`: the checksums of `DUMP` payloads and RDB files are not
    /// checked.
    pub skips_checksums: AtomicBool,
    /// `DEBUG AOF-FLUSH-SLEEP`: delay before each write to the append-only file, µs.
    pub aof_flush_delay_us: AtomicU64,
    /// Whether a worker runs `DEBUG SLEEP`. Meanwhile no worker serves clients.
    pub is_asleep: AtomicBool,
    /// Number of interruptions of `DEBUG SLEEP`.
    interruptions: AtomicU64,
    /// `DEBUG SET-DISABLE-DENY-SCRIPTS`: scripts may run `DEBUG`.
    pub scripts_may_debug: AtomicBool,
    /// The time at which the last pause ends (Unix time, ms; 0: there was no pause), including
    /// lasting pauses. Keeps its value after the end of the pause. Only [`crate::tuning::pause`]
    /// writes it.
    pub paused_until_ms: AtomicI64,
    /// Like `paused_until_ms`, but ignores lasting pauses, which only the server itself starts.
    pub clients_paused_until_ms: AtomicI64,
    /// The remaining state of pauses. Its lock is held while `paused_until_ms`,
    /// `clients_paused_until_ms` and `pause_all` are written.
    pub(crate) pauses: Mutex<Pauses>,
    /// Whether the pauses by clients hold back all commands or only writes.
    pub pause_all: AtomicBool,
    /// `cluster-enabled`. Set before the first command, and not changed afterwards.
    pub cluster: AtomicBool,
    /// The reasons for which the server rejects commands ([`refusal::Refusals`]).
    refusals: AtomicU32,
    /// Whether the server is a replica.
    is_replica: AtomicBool,
}

impl Tuning {
    /// Returns Redis's defaults.
    pub fn new() -> Self {
        Tuning {
            proto_max_bulk_len: AtomicU64::new(512 * 1024 * 1024),
            reply_bytes_max: AtomicU64::new(u64::MAX),
            pubsub_bytes_max: AtomicU64::new(u64::MAX),
            lazyfree_lazy_eviction: AtomicBool::new(false),
            lazyfree_lazy_expire: AtomicBool::new(false),
            lazyfree_lazy_server_del: AtomicBool::new(false),
            lazyfree_lazy_user_del: AtomicBool::new(false),
            lazyfree_lazy_user_flush: AtomicBool::new(false),
            access_policy: AtomicU8::new(AccessPolicy::Lru as u8),
            eviction_policy: AtomicU8::new(EvictionPolicy::Nothing.bits()),
            maxmemory_samples: AtomicU32::new(5),
            maxmemory_eviction_tenacity: AtomicU32::new(10),
            lfu_log_factor: AtomicU32::new(10),
            lfu_decay_time_minutes: AtomicU32::new(1),
            list_max_listpack_size: AtomicI32::new(-2),
            list_compress_depth: AtomicU32::new(0),
            list_alone_bytes: AtomicU64::new(ALONE_BYTES_DEFAULT as u64),
            hash_max_listpack_entries: AtomicU64::new(512),
            hash_max_listpack_value_bytes: AtomicU64::new(64),
            set_max_intset_entries: AtomicU64::new(512),
            zset_max_listpack_entries: AtomicU64::new(128),
            zset_max_listpack_value_bytes: AtomicU64::new(64),
            active_expire_effort: AtomicU32::new(1),
            active_expire: AtomicBool::new(true),
            has_own_ttls: AtomicBool::new(false),
            hll_sparse_max_bytes: AtomicU64::new(3000),
            rdb_compression: AtomicBool::new(true),
            hz: AtomicU32::new(10),
            stream_node_max_bytes: AtomicU64::new(4096),
            stream_node_max_entries: AtomicU64::new(100),
            latency_threshold_ms: AtomicU64::new(0),
            slowlog_slower_than_us: AtomicI64::new(10_000),
            slowlog_max_len: AtomicU64::new(128),
            times_all: AtomicBool::new(false),
            events: AtomicU32::new(0),
            tracking_table_max_keys: AtomicU64::new(1_000_000),
            cron_is_paused: AtomicBool::new(false),
            skips_checksums: AtomicBool::new(false),
            aof_flush_delay_us: AtomicU64::new(0),
            is_asleep: AtomicBool::new(false),
            interruptions: AtomicU64::new(0),
            scripts_may_debug: AtomicBool::new(false),
            paused_until_ms: AtomicI64::new(0),
            clients_paused_until_ms: AtomicI64::new(0),
            pauses: Mutex::default(),
            pause_all: AtomicBool::new(false),
            cluster: AtomicBool::new(false),
            refusals: AtomicU32::new(0),
            is_replica: AtomicBool::new(false),
        }
    }

    /// Stops all workers for this time, or until [`Tuning::interrupt_sleep`] is called (`DEBUG
    /// SLEEP`).
    pub fn sleep(&self, time: Duration) {
        let before = self.interruptions.load(Relaxed);
        let started = Instant::now();
        self.is_asleep.store(true, Relaxed);
        while self.interruptions.load(Relaxed) == before {
            let left = time.saturating_sub(started.elapsed());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(SLEEP_SLICE));
        }
        self.is_asleep.store(false, Relaxed);
    }

    /// Ends a running `DEBUG SLEEP`, so that a shutdown doesn't wait for it. (In Redis, the
    /// shutdown signal interrupts the sleep.)
    pub fn interrupt_sleep(&self) {
        self.interruptions.fetch_add(1, Relaxed);
    }

    /// Returns the limits of a list's node.
    #[inline]
    pub fn list_node_limit(&self) -> NodeLimit {
        NodeLimit {
            alone_bytes: self.list_alone_bytes.load(Relaxed) as usize,
            plain_depth: self.list_compress_depth.load(Relaxed),
            ..NodeLimit::from_setting(self.list_max_listpack_size.load(Relaxed))
        }
    }

    /// Returns whether there are monitors, clients that track keys (`CLIENT TRACKING`), a memory
    /// limit (`maxmemory`), or readers of the journal. One load checks for all of them.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        // Relaxed, like all accesses to `events`. If a command sets a bit, the delivery of the
        // command's reply orders the store before the client's later commands.
        const ALL: u32 = if WATCHING { JOURNALED | LIMITED | MONITORS | TRACKS } else { JOURNALED | LIMITED };
        self.events.load(Relaxed) & ALL != 0
    }

    /// Returns whether memory is limited (`maxmemory` isn't 0).
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.events.load(Relaxed) & LIMITED != 0
    }

    pub(crate) fn set_limited(&self, is_limited: bool) {
        self.set_watched(LIMITED, is_limited);
    }

    /// Returns the eviction policy.
    pub fn eviction_policy(&self) -> EvictionPolicy {
        EvictionPolicy::from_bits(self.eviction_policy.load(Relaxed))
    }

    /// Sets the eviction policy, and with it the content of access words.
    pub fn set_eviction_policy(&self, policy: EvictionPolicy) {
        self.eviction_policy.store(policy.bits(), Relaxed);
        self.set_access_policy(if policy.rank() == Some(Rank::Lfu) { AccessPolicy::Lfu } else { AccessPolicy::Lru });
    }

    /// Returns whether Redis would use one shared object for equal small integers of several keys.
    /// It does not if memory is limited and the eviction policy needs the access time or count of
    /// each key, because these are stored in the object.
    #[inline]
    pub fn shares_integers(&self) -> bool {
        !self.is_limited() || !matches!(self.eviction_policy().rank(), Some(Rank::Lru | Rank::Lfu))
    }

    /// Returns whether effects are recorded, because the journal has a reader.
    #[inline]
    pub(crate) fn is_journaled(&self) -> bool {
        self.events.load(Relaxed) & JOURNALED != 0
    }

    pub(crate) fn set_journaled(&self, is_journaled: bool) {
        self.set_watched(JOURNALED, is_journaled);
    }

    /// Returns whether a change with events of these classes may have an observer outside its
    /// shard. Such an observer is the journal, a client that receives invalidations by prefix, or,
    /// if one of the classes is enabled, a subscriber.
    #[inline]
    pub(crate) fn has_observer(&self, classes: u32) -> bool {
        self.events.load(Relaxed) & (BROADCASTS | JOURNALED | classes) != 0
    }

    /// Returns whether a change with events of these classes may have an observer outside its shard
    /// ([`Tuning::has_observer`]), not counting the journal.
    #[inline]
    pub(crate) fn has_observer_beside_journal(&self, classes: u32) -> bool {
        self.events.load(Relaxed) & (BROADCASTS | classes) != 0
    }

    /// Returns whether there are monitors, clients that track keys or receive invalidations by
    /// prefix, or a memory limit. Unlike [`Tuning::is_watched`], ignores the journal.
    #[inline]
    pub(crate) fn is_watched_beside_journal(&self) -> bool {
        self.events.load(Relaxed) & (WATCHED & !JOURNALED) != 0
    }

    /// Returns whether clients receive invalidations by prefix (`CLIENT TRACKING … BCAST`).
    #[inline]
    pub(crate) fn broadcasts(&self) -> bool {
        self.events.load(Relaxed) & BROADCASTS != 0
    }

    pub(crate) fn set_monitors(&self, are_there: bool) {
        self.set_watched(MONITORS, are_there);
    }

    pub(crate) fn set_tracks(&self, tracks: bool) {
        self.set_watched(TRACKS, tracks);
    }

    pub(crate) fn set_broadcasts(&self, broadcasts: bool) {
        self.set_watched(BROADCASTS, broadcasts);
    }

    fn set_watched(&self, bit: u32, is_set: bool) {
        if is_set {
            self.events.fetch_or(bit, Relaxed);
        } else {
            self.events.fetch_and(!bit, Relaxed);
        }
    }

    /// Returns whether a pause holds back writes, or all commands.
    pub fn is_paused(&self, now_ms: i64) -> bool {
        self.paused_until_ms.load(Relaxed) > now_ms
    }

    /// Returns whether a pause by clients holds back writes, or all commands. Ignores the lasting
    /// pauses of failovers, promotions and shutdowns.
    pub fn is_paused_by_clients(&self, now_ms: i64) -> bool {
        self.clients_paused_until_ms.load(Relaxed) > now_ms
    }

    /// Returns the content of access words.
    #[inline]
    pub fn access_policy(&self) -> AccessPolicy {
        if self.access_policy.load(Relaxed) == AccessPolicy::Lfu as u8 { AccessPolicy::Lfu } else { AccessPolicy::Lru }
    }

    /// Sets the content of access words.
    pub fn set_access_policy(&self, policy: AccessPolicy) {
        self.access_policy.store(policy as u8, Relaxed);
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::new()
    }
}
