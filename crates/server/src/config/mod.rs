//! Configuration as redis-server 7.0 has it: redis.conf, options, `CONFIG GET`, `SET` and `REWRITE`.
//!
//! | module | what |
//! | --- | --- |
//! | [`table`] | one record per directive ([`directive`] says what a record holds) |
//! | [`quote`], [`number`] | words and numbers of a line |
//! | [`value`], [`values`] | one directive's value, and all of them |
//! | [`settings`] | the served values, typed: what the rest of the server looks at |
//! | [`load`], [`host`] | reading file, standard input and options; the files behind an interface |
//! | [`store`], [`rewrite`] | the running configuration |
//!
//! [`load`] gives [`Loaded`], of which [`ConfigStore`] is made. Nothing here is on a hot path but
//! [`ConfigStore::generation`].

pub mod directive;
pub mod host;
pub mod load;
pub mod number;
pub mod quote;
pub mod rewrite;
pub mod settings;
pub mod store;
pub mod table;
pub mod value;
pub mod values;

use pantala_base::limits::{PARTITIONS_MAX, SHARDS_MAX};

pub use host::{Host, System, reason};
pub use load::{HostDefaults, LoadError, Loaded, Sources, Warning, load};
pub use rewrite::replace_file;
pub use settings::{
    Allowed, BUS_PORT_OFFSET, Execution, IoBackend, LogLevel, MaxmemoryPolicy, SLOWLOG_FINE_US, Settings,
};
pub use store::{Apply, ConfigStore, Refusal};
pub use value::OutputLimit;

/// Dictionaries of a server: its partitions times its databases.
pub const DICTIONARIES_MAX: u64 = 1 << 20;

/// Partitions per worker at least where nobody says how many: as many as shards are by default. More make no command
/// faster: each has lines of its own that workers' caches must hold.
const PARTITIONS_PER_WORKER: usize = 16;

/// Partitions for a number of workers and of shards where nobody says how many: as many of each shard. One of each, where
/// there is nobody to wait for.
pub const fn default_partitions(workers: usize, shards: usize) -> usize {
    if workers <= 1 {
        return shards;
    }
    let wanted = workers.saturating_mul(PARTITIONS_PER_WORKER).div_ceil(shards).saturating_mul(shards);
    if wanted <= PARTITIONS_MAX { wanted } else { shards }
}

/// What the host decides where nobody says anything, for a number of workers.
pub const fn host_defaults(workers: usize) -> HostDefaults {
    HostDefaults { workers, shards: default_shards, partitions: default_partitions }
}

/// Shards per worker where nobody says how many shards: enough that workers rarely want the same one at a time.
const SHARDS_PER_WORKER: usize = 16;

/// Number of shards for a number of workers where nobody says how many.
pub const fn default_shards(workers: usize) -> usize {
    let shards = workers.saturating_mul(SHARDS_PER_WORKER);
    if shards > SHARDS_MAX { SHARDS_MAX } else { shards }
}
