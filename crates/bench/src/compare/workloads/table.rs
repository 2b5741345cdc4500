//! The records of all workloads.

use super::Appendfsync::{Always, Everysec};
use super::Step::{Count, Each, Every, InOrder, Once};
use super::{Clients, Command, Measured, Needs, Step, Workload};

pub(super) const SET: &str = "SET __key__ __data__";
pub(super) const GET: &str = "GET __key__";

pub(super) const fn uniform(text: &'static str, weight: u32) -> Command {
    Command { text, pattern: "R", weight }
}

/// Returns a command with the key pattern `P`: each client uses its own part of the numbers.
const fn parallel(text: &'static str) -> Command {
    Command { text, pattern: "P", weight: 1 }
}

/// Default values, which the records below override.
pub(super) const BASE: Workload = Workload {
    name: "",
    source: "",
    ours: "",
    commands: &[],
    measured: Measured::Time,
    fill: &[Each(SET)],
    before: &[],
    after: &[],
    numbers: 1_000_000,
    key_prefix: "memtier-",
    key_minimum: 0,
    data_bytes: 256,
    clients: Clients::PerThread(50),
    pipeline: 1,
    zipf_exponent: 1.0,
    needs: Needs::Nothing,
    latency_max_us: None,
};

const DRAGONFLY: Workload = Workload {
    source: "dragonflydb/dragonfly README.md: memtier_benchmark -c 30 --distinct-client-seed -d 256, --pipeline=30 in pipeline mode; 1 M keys as in Redis's answer (redis.io blog, '13 years later: does Redis need a new architecture?', 2022)",
    ours: "threads, which the source tunes per server: one per client CPU",
    clients: Clients::PerThread(30),
    ..BASE
};

/// Base of workloads on one collection with a million members.
const COLLECTION: Workload = Workload { key_prefix: "", data_bytes: 12, pipeline: 16, needs: Needs::OneKey, ..BASE };
const HASH: Workload = Workload {
    ours: "one hash of 1 M fields, each field of up to 12 bytes with a value of 12, pipeline 16",
    fill: &[Each("HSET hash field:__key__ __data__")],
    ..COLLECTION
};
const LIST: Workload = Workload {
    ours: "one list of 1 M elements of up to 14 bytes at first, pipeline 16",
    fill: &[Each("RPUSH list element:__key__")],
    ..COLLECTION
};
const MEMBERS: Workload = Workload {
    ours: "one set of 1 M members of up to 14 bytes, all of which it has, pipeline 16",
    fill: &[Each("SADD set element:__key__")],
    ..COLLECTION
};
const SCORED: Workload = Workload {
    ours: "one sorted set of 1 M members of up to 14 bytes, scores of up to 6 digits, pipeline 16",
    fill: &[Each("ZADD zset __key__ element:__same_key__")],
    ..COLLECTION
};
const XADD: &str = "XADD stream * sensor __key__ reading __data__";
const READ_TEN: &str = "XREADGROUP GROUP group consumer COUNT 10 STREAMS stream >";
/// A command whose reply starts with the number of pending entries (delivered but not
/// acknowledged).
const PENDING: &str = "XPENDING stream group";
/// Steps that create a group that has not read any entries.
const NEW_GROUP: &[Step] = &[Once("XGROUP DESTROY stream group"), Once("XGROUP CREATE stream group 0")];

/// Base of workloads with a command on two collections of a million members each. The keys of the
/// two collections are in different halves of the slots.
const UNION: Workload = Workload {
    measured: Measured::Operations(5),
    numbers: 500_000,
    key_prefix: "",
    clients: Clients::One,
    needs: Needs::SeveralSlots,
    ..BASE
};
/// Base of workloads that measure memory, of many collections or of one with many members. These
/// workloads have no load.
const MEMORY: Workload = Workload { key_prefix: "", ..BASE };

/// Base of workloads with an append-only file that is synced before each reply.
const ALWAYS: Workload =
    Workload { commands: &[uniform(SET, 1)], numbers: 100_000, needs: Needs::AppendOnlyFile(Always), ..BASE };

/// All workloads.
pub(crate) const ALL: &[Workload] = &[
    Workload { name: "dragonfly-get1", commands: &[uniform(GET, 1)], ..DRAGONFLY },
    Workload { name: "dragonfly-get30", commands: &[uniform(GET, 1)], pipeline: 30, ..DRAGONFLY },
    Workload { name: "dragonfly-set1", commands: &[uniform(SET, 1)], ..DRAGONFLY },
    Workload { name: "dragonfly-set30", commands: &[uniform(SET, 1)], pipeline: 30, ..DRAGONFLY },
    Workload {
        name: "elasticache",
        source: "AWS Database Blog, 'Achieve over 500 million requests per second per cluster with Amazon ElastiCache for Redis 7.1', 2023: 80% GET, 20% SET, 3 M keys of 16 bytes, values of 512 bytes, 500 clients",
        ours: "the order, one SET and four GETs in turn; pipeline 1",
        commands: &[uniform(SET, 1), uniform(GET, 4)],
        numbers: 3_000_000,
        // Each key has ten digits after the six bytes of the prefix, at any scale.
        key_prefix: "cache-",
        key_minimum: 1_000_000_000,
        data_bytes: 512,
        clients: Clients::Total(500),
        ..BASE
    },
    Workload {
        name: "enterprise",
        source: "redis.io blog, 'Redis Enterprise: 200 million operations per second': SET:GET 1:1, values of 100 bytes, pipeline 9, 10 M keys, cluster mode, latency below 1 ms",
        ours: "50 clients per thread, memtier_benchmark's default",
        commands: &[uniform(SET, 1), uniform(GET, 1)],
        numbers: 10_000_000,
        data_bytes: 100,
        pipeline: 9,
        needs: Needs::ClusterMode,
        latency_max_us: Some(1000.0),
        ..BASE
    },
    Workload {
        name: "aof",
        source: "the project's issue 3, after published tests of append-only files: SET of 10 KB, 50 connections, pipeline 25, appendfsync everysec",
        ours: "20,000 keys",
        commands: &[uniform(SET, 1)],
        numbers: 20_000,
        data_bytes: 10 * 1024,
        clients: Clients::Total(50),
        pipeline: 25,
        needs: Needs::AppendOnlyFile(Everysec),
        ..BASE
    },
    Workload {
        name: "aof-set30",
        ours: "SET of 256 bytes, pipeline 30, appendfsync everysec",
        commands: &[uniform(SET, 1)],
        pipeline: 30,
        needs: Needs::AppendOnlyFile(Everysec),
        ..BASE
    },
    Workload {
        name: "aof-always",
        ours: "SET of 256 bytes, 50 connections, pipeline 1, appendfsync always, 100,000 keys",
        clients: Clients::Total(50),
        ..ALWAYS
    },
    Workload {
        name: "aof-always-1000",
        ours: "as aof-always, with 1,000 connections",
        clients: Clients::Total(1_000),
        ..ALWAYS
    },
    Workload {
        name: "bgsave",
        ours: "BGSAVE of 10 M keys of up to 11 bytes with values of 11",
        numbers: 10_000_000,
        key_prefix: "key:",
        data_bytes: 11,
        measured: Measured::Saves,
        ..BASE
    },
    Workload {
        name: "bgsave-1k",
        ours: "BGSAVE of 1 M values of 1,024 bytes",
        data_bytes: 1024,
        measured: Measured::Saves,
        ..BASE
    },
    Workload {
        name: "load",
        ours: "restart with a snapshot of bgsave's keys",
        numbers: 10_000_000,
        key_prefix: "key:",
        data_bytes: 11,
        measured: Measured::Loads,
        after: &[Count("DBSIZE", 1)],
        ..BASE
    },
    Workload {
        name: "load-aof",
        ours: "restart with an append-only file of a SET for each of bgsave's keys",
        numbers: 10_000_000,
        key_prefix: "key:",
        data_bytes: 11,
        measured: Measured::Loads,
        after: &[Count("DBSIZE", 1)],
        needs: Needs::AppendOnlyFile(Everysec),
        ..BASE
    },
    Workload {
        name: "flash",
        source: "redis.io documentation, memtier_benchmark and Redis on Flash: SET:GET 1:1, values of 500 bytes, pipeline 11, 20 connections, Gaussian keys",
        ours: "2 M keys, all in memory; deviation a sixth of the range, memtier_benchmark's default",
        commands: &[Command { text: SET, pattern: "G", weight: 1 }, Command { text: GET, pattern: "G", weight: 1 }],
        numbers: 2_000_000,
        data_bytes: 500,
        clients: Clients::Total(20),
        pipeline: 11,
        ..BASE
    },
    Workload {
        name: "mset10",
        ours: "MSET of 10 uniform keys over all slots, pipeline 10",
        commands: &[uniform("MSET [10 __key__ __data__]", 1)],
        pipeline: 10,
        needs: Needs::SeveralSlots,
        ..BASE
    },
    Workload {
        name: "transactions",
        ours: "MULTI, SET of 4 uniform keys over all slots, EXEC: one operation; 4 of them in flight per client",
        commands: &[uniform("MULTI ; [4 SET __key__ __data__ ;] EXEC", 1)],
        pipeline: 4,
        needs: Needs::SeveralSlots,
        ..BASE
    },
    Workload {
        name: "hot-key",
        ours: "one SET and nine GETs in turn by Zipf's law with exponent 1.2, pipeline 10; hot-key-uniform is the same on uniform keys",
        commands: &[Command { text: SET, pattern: "Z", weight: 1 }, Command { text: GET, pattern: "Z", weight: 9 }],
        pipeline: 10,
        zipf_exponent: 1.2,
        ..BASE
    },
    Workload {
        name: "hot-key-uniform",
        ours: "hot-key's counterpart",
        commands: &[uniform(SET, 1), uniform(GET, 9)],
        pipeline: 10,
        ..BASE
    },
    Workload {
        name: "big-values",
        ours: "one SET and four GETs in turn of 64 KB, 10,000 keys, pipeline 4",
        commands: &[uniform(SET, 1), uniform(GET, 4)],
        numbers: 10_000,
        data_bytes: 64 * 1024,
        pipeline: 4,
        ..BASE
    },
    Workload {
        name: "many-connections",
        ours: "10,000 connections (in a cluster divided among its nodes), one SET and nine GETs in turn, pipeline 1, 100,000 keys",
        commands: &[uniform(SET, 1), uniform(GET, 9)],
        numbers: 100_000,
        clients: Clients::Connections(10_000),
        ..BASE
    },
    Workload {
        name: "mixed-types",
        ours: "strings, hashes, lists, sets and sorted sets of 100,000 keys each, values of 32 bytes, pipeline 10",
        commands: &[
            uniform("GET s:__key__", 4),
            uniform("SET s:__key__ __data__", 1),
            uniform("HGET h:__key__ f2", 2),
            uniform("HSET h:__key__ f2 __data__", 1),
            uniform("RPUSH l:__key__ __data__", 1),
            uniform("LPOP l:__key__", 1),
            uniform("LRANGE l:__key__ 0 9", 1),
            uniform("SADD t:__key__ b __data__", 1),
            uniform("SISMEMBER t:__key__ b", 1),
            uniform("ZADD z:__key__ 7 __data__", 1),
            uniform("ZRANGE z:__key__ 0 9", 1),
        ],
        fill: &[
            Each("SET s:__key__ __data__"),
            Each("HSET h:__key__ f1 __data__ f2 __data__ f3 __data__"),
            Each("RPUSH l:__key__ __data__ __data__ __data__ __data__"),
            Each("SADD t:__key__ a b c __data__"),
            Each("ZADD z:__key__ 1 a 2 b 3 c 4 __data__"),
        ],
        numbers: 100_000,
        key_prefix: "",
        data_bytes: 32,
        pipeline: 10,
        ..BASE
    },
    Workload { name: "hset", commands: &[uniform("HSET hash field:__key__ __data__", 1)], ..HASH },
    Workload { name: "hget", commands: &[uniform("HGET hash field:__key__", 1)], ..HASH },
    Workload { name: "lpush", commands: &[uniform("LPUSH list element:__key__", 1)], ..LIST },
    // RPOP alone would soon empty the list.
    Workload {
        name: "lpush-rpop",
        commands: &[uniform("LPUSH list element:__key__", 1), uniform("RPOP list", 1)],
        ..LIST
    },
    Workload { name: "sadd", commands: &[uniform("SADD set element:__key__", 1)], ..MEMBERS },
    Workload { name: "sismember", commands: &[uniform("SISMEMBER set element:__key__", 1)], ..MEMBERS },
    Workload { name: "zadd", commands: &[uniform("ZADD zset __key__ element:__key__", 1)], ..SCORED },
    Workload { name: "zrange10", commands: &[uniform("ZRANGE zset __key__ inf BYSCORE LIMIT 0 10", 1)], ..SCORED },
    Workload { name: "zrank", commands: &[uniform("ZRANK zset element:__key__", 1)], ..SCORED },
    Workload {
        name: "xadd",
        ours: "one stream of 1 M entries of two fields at first, pipeline 16",
        commands: &[uniform(XADD, 1)],
        fill: &[Each(XADD)],
        ..COLLECTION
    },
    Workload {
        name: "xreadgroup",
        ours: "one stream of 1 M entries of two fields; in each round a new group of one consumer reads all of it by tens, pipeline 16",
        commands: &[uniform(READ_TEN, 1)],
        measured: Measured::EveryNumbers(10),
        fill: &[Each(XADD)],
        before: NEW_GROUP,
        after: &[Count(PENDING, 1)],
        ..COLLECTION
    },
    Workload {
        name: "xack",
        ours: "one stream of 1 M entries, in each round all pending in a new group of one consumer and acknowledged one by one, each client its part in the order of the stream, pipeline 16",
        commands: &[parallel("XACK stream group __key__-1")],
        measured: Measured::EachNumber,
        fill: &[InOrder("XADD stream __key__-1 sensor __same_key__ reading __data__")],
        before: &[NEW_GROUP[0], NEW_GROUP[1], Every(10, READ_TEN), Count(PENDING, 1)],
        after: &[Count(PENDING, 0)],
        ..COLLECTION
    },
    Workload {
        name: "xadd-xreadgroup-xack",
        ours: "1 M entries in each round, each added to a stream, read by a group of one consumer, and acknowledged: one operation; one client, 16 of them in flight",
        commands: &[parallel(
            "XADD stream __key__-1 sensor __same_key__ reading __data__ ; XREADGROUP GROUP group consumer COUNT 1 STREAMS stream > ; XACK stream group __same_key__-1",
        )],
        measured: Measured::EachNumber,
        fill: &[],
        before: &[Once("DEL stream"), Once("XGROUP CREATE stream group 0 MKSTREAM")],
        // Checks that every entry was delivered and none is pending, so that all were acknowledged.
        after: &[Count("EVAL return(redis.call('XINFO','GROUPS','stream')[1][10]) 0", 1), Count(PENDING, 0)],
        clients: Clients::One,
        ..COLLECTION
    },
    Workload {
        name: "sunionstore",
        ours: "two sets of 1 M strings of up to 14 bytes, half of them in both, whose keys lie in different shards; one client, one command at a time, 5 in a round, over what the one before stored",
        commands: &[uniform("SUNIONSTORE union first second", 1)],
        fill: &[
            Each("SADD first element:__key__ first:__same_key__"),
            Each("SADD second element:__key__ second:__same_key__"),
        ],
        after: &[Count("SCARD union", 3)],
        ..UNION
    },
    Workload {
        name: "sunionstore-integers",
        ours: "as sunionstore, of integers",
        commands: &[uniform("SUNIONSTORE union first second", 1)],
        fill: &[Each("SADD first __key__ -__same_key__"), Each("SADD second __key__ -9__same_key__")],
        after: &[Count("SCARD union", 3)],
        // All numbers have at least seven digits. At any scale, `-N` in the first set therefore
        // differs from `-9N` in the second.
        key_minimum: 1_000_000,
        ..UNION
    },
    Workload {
        name: "zunionstore",
        ours: "as sunionstore, of sorted sets with random scores",
        commands: &[uniform("ZUNIONSTORE union 2 first second", 1)],
        fill: &[
            Each("ZADD first __random__ element:__key__ __random__ first:__same_key__"),
            Each("ZADD second __random__ element:__key__ __random__ second:__same_key__"),
        ],
        after: &[Count("ZCARD union", 3)],
        ..UNION
    },
    Workload {
        name: "blpop",
        ours: "1,000 clients block on one list; another pushes 64 elements in one write, and the next when all have arrived. An operation is a push, the delivery to the client that has waited longest, and that client's next BLPOP; one thread",
        commands: &[uniform("BLPOP queue 0", 1)],
        measured: Measured::HandOvers,
        fill: &[],
        after: &[Count("LLEN queue", 0)],
        numbers: 1,
        clients: Clients::Connections(1_000),
        pipeline: 64,
        ..COLLECTION
    },
    Workload {
        name: "memory-hashes",
        ours: "1 M hashes of 10 fields of 7 bytes with values of up to 11",
        fill: &[Each("HSET hash:__key__ [10 field{at} value__same_key__]"), Count("DBSIZE", 1)],
        measured: Measured::Resident("hashes", 1),
        ..MEMORY
    },
    Workload {
        name: "memory-lists",
        ours: "1 M lists of 20 elements of up to 13 bytes",
        fill: &[Each("RPUSH list:__key__ [20 item:__same_key__{at}]"), Count("DBSIZE", 1)],
        measured: Measured::Resident("lists", 1),
        ..MEMORY
    },
    Workload {
        name: "memory-sets",
        ours: "1 M sets of 20 random integers of up to 8 digits",
        fill: &[Each("SADD set:__key__ [20 __random__{at}]"), Count("DBSIZE", 1)],
        measured: Measured::Resident("sets", 1),
        ..MEMORY
    },
    Workload {
        name: "memory-zset",
        ours: "one sorted set of 10 M members of 15 bytes, random scores",
        fill: &[Each("ZADD zset __random__ member:__key__"), Count("ZCARD zset", 1)],
        measured: Measured::Resident("members", 1),
        numbers: 10_000_000,
        key_minimum: 10_000_000,
        needs: Needs::OneKey,
        ..MEMORY
    },
    Workload {
        name: "memory-zsets",
        ours: "1 M sorted sets of 20 members of up to 12 bytes, random scores of up to 6 digits",
        fill: &[Each("ZADD zset:__key__ [20 __random__ mem:__same_key__{at}]"), Count("DBSIZE", 1)],
        measured: Measured::Resident("sorted sets", 1),
        ..MEMORY
    },
    Workload {
        name: "memory-streams",
        ours: "100 streams of 100 k entries of two fields, which grow together",
        fill: &[
            Each("[100 XADD stream:{at} * sensor 7{at} reading value:__random__ ;]"),
            Count("XLEN stream:00", 1),
            Count("XLEN stream:99", 1),
        ],
        measured: Measured::Resident("entries", 100),
        numbers: 100_000,
        needs: Needs::SeveralSlots,
        ..MEMORY
    },
];
