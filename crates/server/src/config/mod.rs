//! The configuration, as in redis-server 7.0: redis.conf, command-line options, and `CONFIG GET`,
//! `SET` and `REWRITE`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`table`] | one record per directive ([`directive`] defines the record) |
//! | [`quote`], [`number`] | split a line into words; parse numbers |
//! | [`value`], [`values`] | the value of one directive; the values of all directives |
//! | [`settings`], [`primary`], [`replica`], [`tls`] | the typed settings of the server |
//! | [`mod@load`], [`host`] | reads the configuration at startup; accesses files for it |
//! | [`store`], [`rewrite`] | holds the running configuration; writes the configuration file |
//!
//! At startup, [`mod@load`] returns [`Loaded`], from which [`ConfigStore`] is created. Only
//! [`ConfigStore::generation`] is on a hot path: each worker reads it in every turn of its event
//! loop.

pub mod directive;
pub mod host;
pub mod jobs;
pub mod load;
pub mod number;
pub mod primary;
mod process;
pub mod quote;
pub mod replica;
pub mod rewrite;
pub mod settings;
mod spreading;
pub mod store;
pub mod table;
pub mod title;
mod tls;
pub mod value;
pub mod values;

use pantala_base::limits::{PARTITIONS_MAX, SHARDS_MAX};

pub use host::{Host, OpenDir, System, reason};
pub use load::{HostDefaults, LoadError, Loaded, Sources, Warning, load};
pub use process::{OomScore, ProcessSettings, Supervised, SyslogSettings};
pub use replica::ReplicaSettings;
pub use rewrite::{NEW_FILE_MODE, replace_file};
pub use settings::{
    Allowed, AofSettings, AppendFsync, BUS_PORT_OFFSET, Execution, IoBackend, LogLevel, MaxmemoryPolicy,
    SLOWLOG_FINE_US, Settings,
};
pub use spreading::Spreading;
pub use store::{Apply, Circumstances, ConfigStore, NotSet, Plan, Prepared, Refusal};
pub use title::process_title;
pub use tls::TlsSettings;
pub use value::OutputLimit;

/// Maximum number of dictionaries of a server, which has one for each database in each partition. A
/// partition is a part of a shard that only one worker at a time may access.
pub const DICTIONARIES_MAX: u64 = 1 << 20;

/// Default minimum number of partitions per worker. It equals the default number of shards per
/// worker. With more partitions, no command would be faster, and the cache lines of more partitions
/// would compete for the workers' caches.
const PARTITIONS_PER_WORKER: usize = 16;

/// Returns the default number of partitions, a multiple of the number of shards. With a single
/// worker, each shard has one partition, because no other worker competes for it.
pub const fn default_partitions(workers: usize, shards: usize) -> usize {
    if workers <= 1 {
        return shards;
    }
    let wanted = workers.saturating_mul(PARTITIONS_PER_WORKER).div_ceil(shards).saturating_mul(shards);
    if wanted <= PARTITIONS_MAX { wanted } else { shards }
}

/// Returns the defaults for a number of workers.
pub const fn host_defaults(workers: usize) -> HostDefaults {
    HostDefaults { workers, shards: default_shards, partitions: default_partitions }
}

/// Default number of shards per worker. It is high enough that workers rarely need the same shard
/// at the same time.
const SHARDS_PER_WORKER: usize = 16;

/// Returns the default number of shards for a number of workers.
pub const fn default_shards(workers: usize) -> usize {
    let shards = workers.saturating_mul(SHARDS_PER_WORKER);
    if shards > SHARDS_MAX { SHARDS_MAX } else { shards }
}
