//! The command table: one record per command, in a file per family, sorted by name.
//!
//! A record says what Redis's own table says of the command (arity, flags, ACL categories, key specifications, tips,
//! declared syntax), plus which shards it takes and the function that runs it. `COMMAND`, routing, arity checks and
//! COMPAT.md's test all read these records; nothing about a command is said twice.

use pantala_engine::command::{Command, Flags};

mod bitmap;
mod cluster;
mod connection;
mod dump;
mod generic;
mod geo;
mod hash_expiry;
mod hashes;
mod hyperloglog;
mod lists;
mod lookup;
mod not_built;
mod pubsub;
mod resolve;
mod scripting;
mod secrets;
mod server;
mod sets;
mod sort;
mod sorted_set_algebra;
mod sorted_set_ranges;
mod sorted_sets;
mod streams;
pub(crate) mod strings;
#[cfg(test)]
mod tests;
mod transactions;
mod watching;

pub use lookup::{lookup, lookup_full, lookup_sub};
pub use not_built::not_built;
pub use resolve::{NOT_IN_SCRIPTS, Unresolved, resolve, resolve_as};

/// Joins flags by their short names; `|` of bitflags isn't `const`.
macro_rules! flags {
    ($($flag:ident),+) => { Flags::empty()$(.union(Flags::$flag))+ };
}
/// Joins ACL categories by their short names.
macro_rules! acl {
    ($($category:ident),+) => { Acl::empty()$(.union(Acl::$category))+ };
}
use {acl, flags};

/// Complexity of a container: it has none of its own.
const DEPENDS_ON_SUBCOMMAND: &str = "That of the subcommand";

/// Every command, sorted by name.
pub static COMMANDS: &[Command] = &[
    strings::APPEND,
    cluster::ASKING,
    connection::AUTH,
    bitmap::BITCOUNT,
    bitmap::BITFIELD,
    bitmap::BITFIELD_RO,
    bitmap::BITOP,
    bitmap::BITPOS,
    lists::BLMOVE,
    lists::BLMPOP,
    lists::BLPOP,
    lists::BRPOP,
    lists::BRPOPLPUSH,
    sorted_sets::BZMPOP,
    sorted_sets::BZPOPMAX,
    sorted_sets::BZPOPMIN,
    connection::CLIENT,
    cluster::CLUSTER,
    server::COMMAND,
    server::CONFIG,
    generic::COPY,
    server::DBSIZE,
    server::DEBUG,
    strings::DECR,
    strings::DECRBY,
    generic::DEL,
    transactions::DISCARD,
    dump::DUMP,
    connection::ECHO,
    scripting::EVAL,
    scripting::EVAL_RO,
    scripting::EVALSHA,
    scripting::EVALSHA_RO,
    transactions::EXEC,
    generic::EXISTS,
    generic::EXPIRE,
    generic::EXPIREAT,
    generic::EXPIRETIME,
    scripting::FCALL,
    scripting::FCALL_RO,
    server::FLUSHALL,
    server::FLUSHDB,
    scripting::FUNCTION,
    geo::GEOADD,
    geo::GEODIST,
    geo::GEOHASH,
    geo::GEOPOS,
    geo::GEORADIUS,
    geo::GEORADIUS_RO,
    geo::GEORADIUSBYMEMBER,
    geo::GEORADIUSBYMEMBER_RO,
    geo::GEOSEARCH,
    geo::GEOSEARCHSTORE,
    strings::GET,
    bitmap::GETBIT,
    strings::GETDEL,
    strings::GETEX,
    strings::GETRANGE,
    strings::GETSET,
    hashes::HDEL,
    connection::HELLO,
    hashes::HEXISTS,
    hash_expiry::HEXPIRE,
    hash_expiry::HEXPIREAT,
    hash_expiry::HEXPIRETIME,
    hashes::HGET,
    hashes::HGETALL,
    hashes::HINCRBY,
    hashes::HINCRBYFLOAT,
    hashes::HKEYS,
    hashes::HLEN,
    hashes::HMGET,
    hashes::HMSET,
    hash_expiry::HPERSIST,
    hash_expiry::HPEXPIRE,
    hash_expiry::HPEXPIREAT,
    hash_expiry::HPEXPIRETIME,
    hash_expiry::HPTTL,
    hashes::HRANDFIELD,
    hashes::HSCAN,
    hashes::HSET,
    hashes::HSETNX,
    hashes::HSTRLEN,
    hash_expiry::HTTL,
    hashes::HVALS,
    strings::INCR,
    strings::INCRBY,
    strings::INCRBYFLOAT,
    server::INFO,
    generic::KEYS,
    watching::LATENCY,
    strings::LCS,
    lists::LINDEX,
    lists::LINSERT,
    lists::LLEN,
    lists::LMOVE,
    lists::LMPOP,
    server::LOLWUT,
    lists::LPOP,
    lists::LPOS,
    lists::LPUSH,
    lists::LPUSHX,
    lists::LRANGE,
    lists::LREM,
    lists::LSET,
    lists::LTRIM,
    server::MEMORY,
    strings::MGET,
    dump::MIGRATE,
    watching::MONITOR,
    generic::MOVE,
    strings::MSET,
    strings::MSETNX,
    transactions::MULTI,
    generic::OBJECT,
    generic::PERSIST,
    generic::PEXPIRE,
    generic::PEXPIREAT,
    generic::PEXPIRETIME,
    hyperloglog::PFADD,
    hyperloglog::PFCOUNT,
    hyperloglog::PFDEBUG,
    hyperloglog::PFMERGE,
    hyperloglog::PFSELFTEST,
    connection::PING,
    strings::PSETEX,
    pubsub::PSUBSCRIBE,
    generic::PTTL,
    pubsub::PUBLISH,
    pubsub::PUBSUB,
    pubsub::PUNSUBSCRIBE,
    connection::QUIT,
    generic::RANDOMKEY,
    cluster::READONLY,
    cluster::READWRITE,
    generic::RENAME,
    generic::RENAMENX,
    connection::RESET,
    dump::RESTORE,
    dump::RESTORE_ASKING,
    lists::RPOP,
    lists::RPOPLPUSH,
    lists::RPUSH,
    lists::RPUSHX,
    sets::SADD,
    generic::SCAN,
    sets::SCARD,
    scripting::SCRIPT,
    sets::SDIFF,
    sets::SDIFFSTORE,
    connection::SELECT,
    strings::SET,
    bitmap::SETBIT,
    strings::SETEX,
    strings::SETNX,
    strings::SETRANGE,
    server::SHUTDOWN,
    sets::SINTER,
    sets::SINTERCARD,
    sets::SINTERSTORE,
    sets::SISMEMBER,
    watching::SLOWLOG,
    sets::SMEMBERS,
    sets::SMISMEMBER,
    sets::SMOVE,
    sort::SORT,
    sort::SORT_RO,
    sets::SPOP,
    pubsub::SPUBLISH,
    sets::SRANDMEMBER,
    sets::SREM,
    sets::SSCAN,
    pubsub::SSUBSCRIBE,
    strings::STRLEN,
    pubsub::SUBSCRIBE,
    strings::SUBSTR,
    sets::SUNION,
    sets::SUNIONSTORE,
    pubsub::SUNSUBSCRIBE,
    server::SWAPDB,
    watching::SYNC,
    server::TIME,
    generic::TOUCH,
    generic::TTL,
    generic::TYPE,
    generic::UNLINK,
    pubsub::UNSUBSCRIBE,
    transactions::UNWATCH,
    transactions::WATCH,
    streams::XACK,
    streams::XADD,
    streams::XAUTOCLAIM,
    streams::XCLAIM,
    streams::XDEL,
    streams::XGROUP,
    streams::XINFO,
    streams::XLEN,
    streams::XPENDING,
    streams::XRANGE,
    streams::XREAD,
    streams::XREADGROUP,
    streams::XREVRANGE,
    streams::XSETID,
    streams::XTRIM,
    sorted_sets::ZADD,
    sorted_sets::ZCARD,
    sorted_set_ranges::ZCOUNT,
    sorted_set_algebra::ZDIFF,
    sorted_set_algebra::ZDIFFSTORE,
    sorted_sets::ZINCRBY,
    sorted_set_algebra::ZINTER,
    sorted_set_algebra::ZINTERCARD,
    sorted_set_algebra::ZINTERSTORE,
    sorted_set_ranges::ZLEXCOUNT,
    sorted_sets::ZMPOP,
    sorted_sets::ZMSCORE,
    sorted_sets::ZPOPMAX,
    sorted_sets::ZPOPMIN,
    sorted_sets::ZRANDMEMBER,
    sorted_set_ranges::ZRANGE,
    sorted_set_ranges::ZRANGEBYLEX,
    sorted_set_ranges::ZRANGEBYSCORE,
    sorted_set_ranges::ZRANGESTORE,
    sorted_sets::ZRANK,
    sorted_sets::ZREM,
    sorted_set_ranges::ZREMRANGEBYLEX,
    sorted_set_ranges::ZREMRANGEBYRANK,
    sorted_set_ranges::ZREMRANGEBYSCORE,
    sorted_set_ranges::ZREVRANGE,
    sorted_set_ranges::ZREVRANGEBYLEX,
    sorted_set_ranges::ZREVRANGEBYSCORE,
    sorted_sets::ZREVRANK,
    sorted_sets::ZSCAN,
    sorted_sets::ZSCORE,
    sorted_set_algebra::ZUNION,
    sorted_set_algebra::ZUNIONSTORE,
];

/// Whether a container's subcommands are its own affair (DEBUG): to `COMMAND` it is a command without subcommands.
fn hides_subcommands(command: &Command) -> bool {
    command.flags.contains(Flags::OWN_SUBCOMMANDS)
}
