//! The named workloads: published ones with their parameters, and ours.

/// Which commands with which weights, keys, sizes and clients. What its source leaves open says so in `ours`.
#[derive(Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// Where the parameters were published; empty for our own.
    pub(crate) source: &'static str,
    /// What the source leaves open, and what is taken here.
    pub(crate) ours: &'static str,
    pub(crate) commands: &'static [Command],
    /// Commands that make the data, each once for every key.
    pub(crate) fill: &'static [&'static str],
    pub(crate) keys: u64,
    pub(crate) key_prefix: &'static str,
    pub(crate) key_minimum: u64,
    pub(crate) data_bytes: u64,
    pub(crate) clients: Clients,
    pub(crate) pipeline: u32,
    pub(crate) zipf_exponent: f64,
    pub(crate) needs: Needs,
    /// The latency that it was published with as its condition, in microseconds; held against p99.
    pub(crate) latency_max_us: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) text: &'static str,
    /// As in `--key-pattern`.
    pub(crate) pattern: &'static str,
    pub(crate) weight: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clients {
    PerThread(u32),
    /// Of all threads.
    Total(u32),
    /// Connections of all threads, in a cluster divided by its nodes; scaled.
    Connections(u32),
}

/// What a peer must be capable of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// Cluster mode is used where a peer has it.
    ClusterMode,
    /// An append-only file, synchronized every second.
    AppendOnlyFile,
    /// Commands on keys of several slots: no Redis cluster.
    SeveralSlots,
    /// All commands on one key, whose members are the numbers: more processes would have nothing to do.
    OneKey,
}

const SET: &str = "SET __key__ __data__";
const GET: &str = "GET __key__";

const fn uniform(text: &'static str, weight: u32) -> Command {
    Command { text, pattern: "R", weight }
}

/// What most have; the records below say what differs.
const BASE: Workload = Workload {
    name: "",
    source: "",
    ours: "",
    commands: &[],
    fill: &[SET],
    keys: 1_000_000,
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

/// A collection of a million members under one key, as the rows of one collection in `benches/type_costs.py`.
const COLLECTION: Workload = Workload { key_prefix: "", data_bytes: 12, pipeline: 16, needs: Needs::OneKey, ..BASE };
const HASH: Workload = Workload {
    ours: "one hash of 1 M fields, each field of up to 12 bytes with a value of 12, pipeline 16",
    fill: &["HSET hash field:__key__ __data__"],
    ..COLLECTION
};
const LIST: Workload = Workload {
    ours: "one list of 1 M elements of up to 14 bytes at first, pipeline 16",
    fill: &["RPUSH list element:__key__"],
    ..COLLECTION
};
const MEMBERS: Workload = Workload {
    ours: "one set of 1 M members of up to 14 bytes, all of which it has, pipeline 16",
    fill: &["SADD set element:__key__"],
    ..COLLECTION
};
const SCORED: Workload = Workload {
    ours: "one sorted set of 1 M members of up to 14 bytes, scores of up to 6 digits, pipeline 16",
    fill: &["ZADD zset __key__ element:__same_key__"],
    ..COLLECTION
};

/// All of them.
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
        keys: 3_000_000,
        // Ten digits behind six bytes, at every scale.
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
        keys: 10_000_000,
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
        keys: 20_000,
        data_bytes: 10 * 1024,
        clients: Clients::Total(50),
        pipeline: 25,
        needs: Needs::AppendOnlyFile,
        ..BASE
    },
    Workload {
        name: "flash",
        source: "redis.io documentation, memtier_benchmark and Redis on Flash: SET:GET 1:1, values of 500 bytes, pipeline 11, 20 connections, Gaussian keys",
        ours: "2 M keys, all in memory; deviation a sixth of the range, memtier_benchmark's default",
        commands: &[Command { text: SET, pattern: "G", weight: 1 }, Command { text: GET, pattern: "G", weight: 1 }],
        keys: 2_000_000,
        data_bytes: 500,
        clients: Clients::Total(20),
        pipeline: 11,
        ..BASE
    },
    Workload {
        name: "mset10",
        ours: "MSET of 10 uniform keys over all slots, pipeline 10",
        commands: &[uniform(
            "MSET __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__ __key__ __data__",
            1,
        )],
        pipeline: 10,
        needs: Needs::SeveralSlots,
        ..BASE
    },
    Workload {
        name: "transactions",
        ours: "MULTI, SET of 4 uniform keys over all slots, EXEC: one operation; 4 of them on their way per client",
        commands: &[uniform(
            "MULTI ; SET __key__ __data__ ; SET __key__ __data__ ; SET __key__ __data__ ; SET __key__ __data__ ; EXEC",
            1,
        )],
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
        keys: 10_000,
        data_bytes: 64 * 1024,
        pipeline: 4,
        ..BASE
    },
    Workload {
        name: "many-connections",
        ours: "10,000 connections (in a cluster shared out among its nodes), one SET and nine GETs in turn, pipeline 1, 100,000 keys",
        commands: &[uniform(SET, 1), uniform(GET, 9)],
        keys: 100_000,
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
            "SET s:__key__ __data__",
            "HSET h:__key__ f1 __data__ f2 __data__ f3 __data__",
            "RPUSH l:__key__ __data__ __data__ __data__ __data__",
            "SADD t:__key__ a b c __data__",
            "ZADD z:__key__ 1 a 2 b 3 c 4 __data__",
        ],
        keys: 100_000,
        key_prefix: "",
        data_bytes: 32,
        pipeline: 10,
        ..BASE
    },
    Workload { name: "hset", commands: &[uniform("HSET hash field:__key__ __data__", 1)], ..HASH },
    Workload { name: "hget", commands: &[uniform("HGET hash field:__key__", 1)], ..HASH },
    Workload { name: "lpush", commands: &[uniform("LPUSH list element:__key__", 1)], ..LIST },
    // By itself RPOP would find an empty list soon.
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
        commands: &[uniform("XADD stream * sensor __key__ reading __data__", 1)],
        fill: &["XADD stream * sensor __key__ reading __data__"],
        ..COLLECTION
    },
];

impl Workload {
    /// The one called `name`.
    pub(crate) fn named(name: &str) -> Result<&'static Workload, String> {
        ALL.iter().find(|workload| workload.name == name).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
            format!("no workload '{name}': {}", names.join(", "))
        })
    }

    /// Keys at `scale`.
    pub(crate) fn keys_at(&self, scale: f64) -> u64 {
        ((self.keys as f64 * scale).round() as u64).max(1)
    }

    /// Clients of all `threads` at `scale`, against a peer of `nodes` nodes that are each connected to.
    pub(crate) fn clients_at(&self, scale: f64, threads: u32, nodes: u32) -> u32 {
        match self.clients {
            Clients::PerThread(clients) => clients.saturating_mul(threads),
            Clients::Total(clients) => clients.max(threads),
            Clients::Connections(all) => {
                let all = (f64::from(all) * scale).round() as u32;
                (all / nodes.max(1)).max(threads)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::keys::Pattern;
    use crate::load::template::{KEY, Template};

    #[test]
    fn every_record_is_sound() {
        let mut names: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len(), "two have the same name");
        let compile = |text: &str, prefix: &str| {
            let words: Vec<Vec<u8>> = text.split(' ').map(|word| word.as_bytes().to_vec()).collect();
            Template::compile(&words, prefix.as_bytes()).unwrap_or_else(|why| panic!("{text}: {why}"))
        };
        for workload in ALL {
            assert!(!workload.source.is_empty() || !workload.ours.is_empty(), "{}", workload.name);
            for command in workload.commands {
                let template = compile(command.text, workload.key_prefix);
                command.pattern.parse::<Pattern>().unwrap();
                let several = template.keys > 1 || template.replies > 1;
                if workload.needs != Needs::OneKey {
                    assert_eq!(several, workload.needs == Needs::SeveralSlots, "{}", workload.name);
                }
            }
            // The second word is the key, of what fills it too.
            let texts = workload.commands.iter().map(|command| command.text).chain(workload.fill.iter().copied());
            let mut keys: Vec<&str> = texts.map(|text| text.split(' ').nth(1).unwrap_or_default()).collect();
            keys.dedup();
            let is_one = keys.len() == 1 && !keys[0].contains(KEY);
            assert_eq!(is_one, workload.needs == Needs::OneKey, "{}: {keys:?}", workload.name);
            for text in workload.fill {
                assert_eq!(compile(text, workload.key_prefix).keys, 1, "{}", workload.name);
            }
        }
    }

    #[test]
    fn published_parameters() {
        let figures = |name: &str| {
            let w = Workload::named(name).unwrap();
            (w.keys, w.data_bytes, w.pipeline, w.clients)
        };
        assert_eq!(figures("dragonfly-get30"), (1_000_000, 256, 30, Clients::PerThread(30)));
        assert_eq!(figures("dragonfly-set1"), (1_000_000, 256, 1, Clients::PerThread(30)));
        assert_eq!(figures("elasticache"), (3_000_000, 512, 1, Clients::Total(500)));
        assert_eq!(figures("enterprise"), (10_000_000, 100, 9, Clients::PerThread(50)));
        assert_eq!(figures("aof"), (20_000, 10_240, 25, Clients::Total(50)));
        assert_eq!(figures("flash"), (2_000_000, 500, 11, Clients::Total(20)));
        let elasticache = Workload::named("elasticache").unwrap();
        let most = elasticache.keys_at(super::super::options::SCALE_MAX);
        for key in [elasticache.key_minimum, elasticache.key_minimum + most - 1] {
            assert_eq!(format!("{}{key}", elasticache.key_prefix).len(), 16);
        }
        assert!(Workload::named("x").unwrap_err().contains("hot-key"));
    }

    #[test]
    fn scaling() {
        let many = Workload::named("many-connections").unwrap();
        assert_eq!((many.keys_at(0.5), many.clients_at(0.5, 2, 1), many.clients_at(1.0, 2, 40)), (50_000, 5_000, 250));
        assert_eq!(many.clients_at(0.00001, 2, 40), 2);
        let get = Workload::named("dragonfly-get1").unwrap();
        assert_eq!((get.keys_at(1e-9), get.clients_at(0.1, 2, 40)), (1, 60));
    }
}
