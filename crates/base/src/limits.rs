//! Bounds shared by several crates. A bound that only one module uses is defined in that module.
//!
//! The crate that enforces a bound has tests at the bound and at one more.

/// Slots of the key space, as in Redis Cluster.
pub const SLOTS: usize = 16_384;

/// Maximum number of shards: each owns at least one slot.
pub const SHARDS_MAX: usize = SLOTS;

/// Maximum number of partitions in all shards together. A partition is a part of a shard, and owns
/// at least one slot. At most one thread at a time runs code on a partition.
pub const PARTITIONS_MAX: usize = SLOTS;

/// Maximum number of workers (threads with an event loop).
pub const WORKERS_MAX: usize = 1_024;

/// Maximum number of logical databases (`databases`). Redis accepts up to `INT_MAX`. In Pantala
/// each used database costs a dictionary per partition, and all of these must fit in memory.
pub const DATABASES_MAX: usize = 16_384;

/// Default of `databases`.
pub const DATABASES_DEFAULT: usize = 16;

/// Maximum length of an inline command and of a `*n` or `$n` header line, in bytes before the
/// newline (Redis's `PROTO_INLINE_MAX_SIZE`).
pub const PROTO_INLINE_MAX_SIZE: usize = 64 * 1_024;

/// Maximum number of arguments of a command: the largest `int`, as in Redis 7.0.
pub const MULTIBULK_MAX: usize = i32::MAX as usize;

/// Maximum number of arguments of a command before authentication.
pub const MULTIBULK_UNAUTHENTICATED_MAX: usize = 10;

/// Maximum length of an argument before authentication, in bytes.
pub const BULK_UNAUTHENTICATED_MAX: usize = 16_384;

/// Default of `proto-max-bulk-len`, in bytes: the limit for an argument and for a string value.
pub const PROTO_MAX_BULK_LEN_DEFAULT: usize = 512 * 1_024 * 1_024;

/// Lowest accepted `proto-max-bulk-len`, in bytes.
pub const PROTO_MAX_BULK_LEN_MIN: usize = 1_024 * 1_024;

/// Default of `client-query-buffer-limit`, in bytes.
pub const CLIENT_QUERY_BUFFER_LIMIT_DEFAULT: usize = 1_024 * 1_024 * 1_024;

/// Default of `maxclients`.
pub const MAXCLIENTS_DEFAULT: usize = 10_000;

/// Maximum nesting of a reply that the reply parser accepts. Tests and the load generator use this
/// parser.
pub const REPLY_DEPTH_MAX: usize = 64;
