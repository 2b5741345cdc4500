//! Every bound that holds across crates, by name. A bound that concerns one module only lives in that module.
//!
//! Each is tested at its value and one past it, in the crate that enforces it.

/// Slots of the key space, as in Redis Cluster.
pub const SLOTS: usize = 16_384;

/// Most shards a server may have: a shard owns at least one slot.
pub const SHARDS_MAX: usize = SLOTS;

/// Most partitions a server may have, over all shards: a partition owns at least one slot.
pub const PARTITIONS_MAX: usize = SLOTS;

/// Most workers (threads with an event loop) a server may have.
pub const WORKERS_MAX: usize = 1_024;

/// Most logical databases (`databases` in the configuration). Redis accepts up to `INT_MAX`, but every database that
/// is used costs a dictionary in every partition, so that the product with those has to stay within memory.
pub const DATABASES_MAX: usize = 16_384;

/// Logical databases without configuration.
pub const DATABASES_DEFAULT: usize = 16;

/// Longest inline command, in bytes before its newline; also the longest `*n` or `$n` header line
/// (Redis's `PROTO_INLINE_MAX_SIZE`).
pub const PROTO_INLINE_MAX_SIZE: usize = 64 * 1_024;

/// Most arguments of one command: Redis 7.0 takes what fits an `int`.
pub const MULTIBULK_MAX: usize = i32::MAX as usize;

/// Most arguments of a command before authentication.
pub const MULTIBULK_UNAUTHENTICATED_MAX: usize = 10;

/// Longest argument before authentication, in bytes.
pub const BULK_UNAUTHENTICATED_MAX: usize = 16_384;

/// Default of `proto-max-bulk-len`, in bytes: the longest argument, and the longest string value.
pub const PROTO_MAX_BULK_LEN_DEFAULT: usize = 512 * 1_024 * 1_024;

/// Lowest value that `proto-max-bulk-len` takes, in bytes.
pub const PROTO_MAX_BULK_LEN_MIN: usize = 1_024 * 1_024;

/// Default of `client-query-buffer-limit`, in bytes.
pub const CLIENT_QUERY_BUFFER_LIMIT_DEFAULT: usize = 1_024 * 1_024 * 1_024;

/// Default of `maxclients`.
pub const MAXCLIENTS_DEFAULT: usize = 10_000;

/// Deepest nesting of a reply that our own reply parser follows (tests and load generator).
pub const REPLY_DEPTH_MAX: usize = 64;
