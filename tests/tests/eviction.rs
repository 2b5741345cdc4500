//! `maxmemory`: which commands are rejected, which keys are evicted, how close memory stays to the
//! limit, and which clients are notified. Redis's own test unit/maxmemory has the same subject, but
//! can only test a server that it has started itself. Tests whose results don't depend on the
//! allocator also run on redis-server.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::waiting::{eventually, pantalas, play, play_together, waiting};
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};

const KB: usize = 1024;
const MB: usize = 1024 * KB;

const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// Memory usage may exceed the limit by at most `limit / EXCESS_PART` (docs/semantics.md).
const EXCESS_PART: usize = 16;

/// Like [`EXCESS_PART`], for the time in which other workers hold all partitions (parts of the key
/// space) with evictable keys.
const BUSY_EXCESS_PART: usize = 4;

/// Policies that evict keys, and whether they also evict keys without a TTL.
const POLICIES: [(&str, bool); 7] = [
    ("allkeys-random", true),
    ("allkeys-lru", true),
    ("allkeys-lfu", true),
    ("volatile-lru", false),
    ("volatile-lfu", false),
    ("volatile-random", false),
    ("volatile-ttl", false),
];

#[track_caller]
fn set(client: &mut Client, pairs: &[(&str, &str)]) {
    let words = ["CONFIG", "SET"].into_iter().chain(pairs.iter().flat_map(|(name, value)| [*name, *value]));
    assert_eq!(client.command(&words.collect::<Vec<_>>()), Reply::ok());
}

/// Returns a numeric field of `INFO`.
#[track_caller]
fn info_field(client: &mut Client, name: &str) -> usize {
    let text = client.call("INFO everything").text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("INFO has no {name}")).trim().parse().expect("a number")
}

/// Sets the limit to the current memory usage plus `bytes`. Returns the limit.
fn allow_more(client: &mut Client, bytes: usize, policy: &str) -> usize {
    let limit = info_field(client, "used_memory") + bytes;
    set(client, &[("maxmemory", &limit.to_string()), ("maxmemory-policy", policy)]);
    limit
}

fn allow_any(client: &mut Client) {
    set(client, &[("maxmemory", "0"), ("maxmemory-policy", "noeviction")]);
}

/// Commands that run while nothing can be evicted, each with the number of its client (0 or 1).
/// `!n` sets `maxmemory` to n.
const REJECTIONS: &[(usize, &str)] = &[
    (0, "FUNCTION LOAD #!lua_name=lib"),
    (0, "SET there 1"),
    (0, "RPUSH list a b c"),
    (0, "!1"),
    // Single commands, of every kind.
    (0, "SET k v"),
    (0, "GET there"),
    (0, "GETSET there 2"),
    (0, "GETDEL nothing"),
    (0, "GETEX there EX 1000"),
    (0, "INCR there"),
    (0, "APPEND there x"),
    (0, "SETRANGE there 5 x"),
    (0, "SETBIT k 7 1"),
    (0, "MSET a 1 b 2"),
    (0, "MSETNX a 1 b 2"),
    (0, "LPUSH list d"),
    (0, "LPOP list"),
    (0, "RPOPLPUSH list other"),
    (0, "LMOVE list other LEFT LEFT"),
    (0, "BLPOP list 0"),
    (0, "BLMOVE list other LEFT LEFT 0"),
    (0, "LTRIM list 0 0"),
    (0, "SADD s 1"),
    (0, "SREM s 1"),
    (0, "SUNIONSTORE s t u"),
    (0, "ZADD z 1 m"),
    (0, "ZRANGESTORE z y 0 -1"),
    (0, "HSET h f v"),
    (0, "HDEL h f"),
    (0, "HINCRBY h f 1"),
    (0, "XADD x * f v"),
    (0, "XTRIM x MAXLEN 3"),
    (0, "XGROUP CREATE x g $ MKSTREAM"),
    (0, "XDEL x 1-1"),
    (0, "PFADD p a"),
    (0, "PFCOUNT p"),
    (0, "GEOADD g 1 1 m"),
    (0, "BITOP AND k there there"),
    (0, "BITFIELD there GET u8 0"),
    (0, "BITFIELD_RO there GET u8 0"),
    (0, "SORT list STORE k"),
    (0, "SORT_RO list"),
    (0, "COPY there k"),
    (0, "RENAME there there2"),
    (0, "RENAME there2 there"),
    (0, "MOVE there 3"),
    (0, "RESTORE k 0 x"),
    (0, "DUMP nothing"),
    (0, "EXPIRE there 100"),
    (0, "PERSIST there"),
    (0, "TOUCH there"),
    (0, "OBJECT ENCODING list"),
    (0, "PUBLISH channel message"),
    (0, "SCRIPT LOAD return_1"),
    (0, "FUNCTION LOAD #!lua_name=lib2"),
    (0, "FUNCTION RESTORE x"),
    (0, "FUNCTION STATS"),
    (0, "SWAPDB 0 1"),
    (0, "SWAPDB 0 1"),
    (0, "SELECT 1"),
    (0, "SELECT 0"),
    (0, "SET k"),
    (0, "SET"),
    (0, "NOSUCHCOMMAND"),
    // A transaction starts above the limit. Its commands are rejected instead of queued.
    (0, "MULTI"),
    (0, "GET there"),
    (0, "PING"),
    (0, "MULTI"),
    (0, "WATCH there"),
    (0, "EXEC"),
    (0, "GET there"),
    (0, "MULTI"),
    (0, "GET there"),
    (0, "DISCARD"),
    (0, "MULTI"),
    (0, "RESET"),
    (0, "PING"),
    (0, "EXEC"),
    // The commands of a transaction are queued below the limit. Memory is checked again at EXEC.
    (0, "!0"),
    (0, "MULTI"),
    (0, "GET there"),
    (0, "DEL nothing"),
    (1, "!1"),
    (0, "EXEC"),
    (1, "!0"),
    (0, "MULTI"),
    (0, "GET there"),
    (0, "SET there 2"),
    (1, "!1"),
    (0, "EXEC"),
    (0, "GET there"),
    (0, "EXEC"),
    (1, "!0"),
    (0, "MULTI"),
    (0, "SET there 3"),
    (1, "!1"),
    (0, "SET there 4"),
    (1, "!0"),
    (0, "SET there 5"),
    (0, "EXEC"),
    (0, "GET there"),
    // A transaction that sets its own limit.
    (1, "!0"),
    (0, "MULTI"),
    (0, "SET there 6"),
    (0, "CONFIG SET maxmemory 1"),
    (0, "SET there 7"),
    (0, "EXEC"),
    (0, "SET there 8"),
    (0, "GET there"),
    // Scripts without flags.
    (0, "EVAL return_redis.call('set',KEYS[1],'x') 1 there"),
    (0, "EVAL return_redis.call('get',KEYS[1]) 1 there"),
    (0, "EVAL return_redis.pcall('set',KEYS[1],'x') 1 there"),
    (0, "EVAL return_redis.pcall('set',KEYS[1],'x').err 1 there"),
    (0, "EVAL return_redis.call('set','there','x') 0"),
    // A script that has written may continue.
    (0, "EVAL redis.call('del',KEYS[1]);return_redis.call('set',KEYS[1],'begun') 1 begun"),
    (0, "EVAL redis.call('get',KEYS[1]);return_redis.call('set',KEYS[1],'begun2') 1 begun"),
    (0, "EVAL redis.pcall('set',KEYS[1],'x');return_redis.call('get',KEYS[1]) 1 begun"),
    (0, "EVAL_RO return_redis.call('get',KEYS[1]) 1 begun"),
    (0, "EVAL_RO return_redis.call('set',KEYS[1],'x') 1 begun"),
    // Scripts with flags.
    (0, "EVAL #!lua|return_1 0"),
    (0, "EVAL #!lua_flags=no-writes|return_redis.call('get',KEYS[1]) 1 begun"),
    (0, "EVAL #!lua_flags=no-writes|return_redis.call('set',KEYS[1],'x') 1 begun"),
    (0, "EVAL #!lua_flags=allow-oom|return_redis.call('set',KEYS[1],'allowed') 1 begun"),
    (0, "EVAL #!lua_flags=allow-oom,no-writes|return_redis.call('get',KEYS[1]) 1 begun"),
    (0, "EVAL #!lua_flags=nonsense|return_1 0"),
    (0, "EVAL_RO #!lua|return_1 0"),
    (0, "EVAL_RO #!lua_flags=no-writes|return_1 0"),
    (0, "EVALSHA ffffffffffffffffffffffffffffffffffffffff 0"),
    // The script without flags that was loaded above.
    (0, "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0"),
    // Functions.
    (0, "FCALL writes 1 there"),
    (0, "FCALL reads 1 begun"),
    (0, "FCALL_RO reads 1 begun"),
    (0, "FCALL allowed 1 begun"),
    (0, "FCALL_RO allowed 1 begun"),
    (0, "FCALL nothing 0"),
    // Scripts are queued in a transaction below the limit. At EXEC, their flags decide.
    (1, "!0"),
    (0, "MULTI"),
    (0, "EVAL return_redis.call('set',KEYS[1],'x') 1 there"),
    (0, "EVAL #!lua_flags=allow-oom|return_redis.call('set',KEYS[1],'allowed2') 1 begun"),
    (0, "FCALL reads 1 begun"),
    (1, "!1"),
    (0, "EXEC"),
    (1, "!0"),
    (0, "MULTI"),
    (0, "EVAL #!lua|return_1 0"),
    (1, "!1"),
    (0, "EXEC"),
    // A transaction queues the call of a script that isn't loaded yet.
    (1, "!0"),
    (0, "MULTI"),
    (0, "EVALSHA 121982a2098f0a549345ef911e130b9242ec5d83 0"),
    (1, "SCRIPT LOAD #!lua|return_9"),
    (1, "!1"),
    (0, "EXEC"),
    (1, "CLIENT REPLY ON"),
    (0, "DBSIZE"),
    (0, "GET begun"),
    (1, "!0"),
    (0, "SET k v"),
];

/// Splits a line into words. In all words except the first, `_` is a blank and `|` a line break.
/// The word `#!lua_name=lib` stands for a library.
fn words(line: &str) -> Vec<String> {
    let library = "#!lua name=lib\nredis.register_function('writes', function(keys) return redis.call('set', keys[1], 'f') end)\n\
        redis.register_function{function_name='reads', callback=function(keys) return redis.call('get', keys[1]) end, flags={'no-writes'}}\n\
        redis.register_function{function_name='allowed', callback=function(keys) return redis.call('set', keys[1], 'g') end, flags={'allow-oom'}}";
    let word = |word: &str| match word {
        "#!lua_name=lib" => library.to_owned(),
        word => word.replace('_', " ").replace('|', "\n"),
    };
    let mut all = line.split(' ');
    let name = all.next().unwrap_or_default().to_owned();
    std::iter::once(name).chain(all.map(word)).collect()
}

/// Returns the replies to all clients and the server's statistics.
fn rejections(server: &Server) -> Vec<String> {
    let mut clients = [server.connect(), server.connect()];
    let mut got = Vec::new();
    for (number, line) in REJECTIONS {
        let client = &mut clients[*number];
        let reply = match line.strip_prefix('!') {
            Some(limit) => client.command(&["CONFIG", "SET", "maxmemory", limit]),
            None => client.command(&words(line)),
        };
        got.push(format!("{line}: {reply:?}"));
    }
    let [client, _] = &mut clients;
    let text = client.call("INFO commandstats errorstats").text();
    // Only counts are compared, no durations. INFO itself is left out.
    let counts = text.lines().filter(|line| line.contains(':') && !line.starts_with("cmdstat_info"));
    got.extend(
        counts.map(|line| line.split(',').filter(|field| !field.starts_with("usec")).collect::<Vec<_>>().join(",")),
    );
    got.sort_by_key(|line| line.starts_with("cmdstat") || line.starts_with("errorstat"));
    let at = got.iter().position(|line| line.starts_with("cmdstat") || line.starts_with("errorstat"));
    got[at.unwrap_or(0)..].sort();
    got
}

#[test]
fn commands_are_rejected_as_in_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let expected = rejections(&reference);
    let count = expected.iter().filter(|line| line.contains(OUT_OF_MEMORY)).count();
    assert!(count > 40, "{count} rejections");
    for mut server in pantalas() {
        for (got, expected) in rejections(&server).iter().zip(&expected) {
            assert_eq!(got, expected);
        }
        server.assert_sound();
    }
}

/// Writes random keys with values of about 100 bytes, pipelined, until `bytes` bytes are written.
/// Returns the number of errors.
fn fill(client: &mut Client, random: &mut Random, bytes: usize, is_volatile: bool) -> usize {
    const PIPELINE: usize = 50;
    let (mut errors, mut written) = (0, 0);
    while written < bytes {
        let commands: Vec<Vec<String>> = (0..PIPELINE)
            .map(|_| {
                let (key, value) = (format!("key:{}", random.below(1 << 40)), "v".repeat(50 + random.below(100)));
                written += value.len();
                let mut words = vec!["SET".to_owned(), key, value];
                if is_volatile {
                    words.extend(["EX".into(), (1000 + random.below(100_000)).to_string()]);
                }
                words
            })
            .collect();
        errors += client.pipeline(&commands).iter().filter(|reply| reply.is_error()).count();
    }
    errors
}

#[test]
fn memory_stays_within_its_limit() {
    let seed = Random::seed("memory_stays_within_its_limit");
    play(|server| {
        let mut random = Random::from_seed(seed);
        let mut control = server.connect();
        // Keys of a database other than the first must be evicted too.
        assert_eq!(control.call("SELECT 3"), Reply::ok());
        for (policy, _) in POLICIES {
            assert_eq!(control.call("FLUSHALL"), Reply::ok());
            assert_eq!(control.call("CONFIG RESETSTAT"), Reply::ok());
            let limit = allow_more(&mut control, 2 * MB, policy);
            let mut others = [server.connect(), server.connect()];
            for _ in 0..2 {
                assert_eq!(fill(&mut control, &mut random, MB, true), 0, "{policy}");
                for other in &mut others {
                    assert_eq!(fill(other, &mut random, MB, true), 0, "{policy}");
                }
                let used = info_field(&mut control, "used_memory");
                assert!(used < limit + limit / EXCESS_PART, "{policy}: {used} of {limit}");
            }
            assert!(info_field(&mut control, "evicted_keys") > 10_000, "{policy}");
            // Later commands evict the remaining excess.
            eventually("within the limit", || info_field(&mut control, "used_memory") <= limit + 4 * KB);
            assert!(info_field(&mut control, "used_memory") > limit - MB, "{policy}: too much was evicted");
            allow_any(&mut control);
        }
    });
}

#[test]
fn only_keys_with_a_ttl_are_volatile() {
    const STAYING: usize = 2000;
    let seed = Random::seed("only_keys_with_a_ttl_are_volatile");
    play(|server| {
        let mut random = Random::from_seed(seed);
        let mut control = server.connect();
        for (policy, evicts_all) in POLICIES {
            assert_eq!(control.call("FLUSHALL"), Reply::ok());
            let value = "v".repeat(100);
            let staying = |number: usize| format!("stays:{number}");
            let sets: Vec<Vec<String>> =
                (0..STAYING).map(|number| vec!["SET".into(), staying(number), value.clone()]).collect();
            control.pipeline(&sets);
            let limit = allow_more(&mut control, MB, policy);
            assert_eq!(fill(&mut control, &mut random, 3 * MB, true), 0, "{policy}");
            let exist: Vec<String> = std::iter::once("EXISTS".into()).chain((0..STAYING).map(staying)).collect();
            let keys_left = control.command(&exist).integer() as usize;
            assert_eq!(keys_left < STAYING, evicts_all, "{policy}: {keys_left} left");
            // Writes of keys without a TTL are rejected when no key with a TTL is left to evict.
            let errors = fill(&mut control, &mut random, 3 * MB, false);
            assert_eq!(errors > 0, !evicts_all, "{policy}: {errors} errors");
            if !evicts_all {
                assert_eq!(control.command(&exist).integer() as usize, STAYING, "{policy}");
                assert_eq!(control.call("DEL stays:1").integer(), 1, "{policy}");
            }
            assert!(info_field(&mut control, "used_memory") < limit + limit / EXCESS_PART);
            allow_any(&mut control);
        }
    });
}

/// Lets the server evict half of all keys. Returns the percentages of the used keys and of the
/// unused keys that are left.
fn keys_left(server: &Server, policy: &str, uses: usize) -> (usize, usize) {
    const KEYS: usize = 6000;
    let mut client = server.connect();
    assert_eq!(client.call("FLUSHALL"), Reply::ok());
    allow_any(&mut client);
    set(&mut client, &[("maxmemory-policy", policy)]);
    let before = info_field(&mut client, "used_memory");
    // One key in five is used, or has a longer TTL.
    let is_used = |number: usize| number.is_multiple_of(5);
    let value = "v".repeat(200);
    let sets: Vec<Vec<String>> = (0..KEYS)
        .map(|number| {
            let ttl_s = if is_used(number) { 1_000_000 + number } else { 1000 + number };
            vec!["SET".into(), format!("k{number}"), value.clone(), "EX".into(), ttl_s.to_string()]
        })
        .collect();
    client.pipeline(&sets);
    if policy.ends_with("lru") {
        // The server keeps access times in whole seconds, so the accesses below must be in a later
        // second.
        std::thread::sleep(Duration::from_millis(2100));
    }
    let used: Vec<usize> = (0..KEYS).filter(|number| is_used(*number)).collect();
    for _ in 0..uses {
        client.pipeline(&used.iter().map(|number| vec!["GET".into(), format!("k{number}")]).collect::<Vec<_>>());
    }
    let full = info_field(&mut client, "used_memory");
    let limit = before + (full - before) / 2;
    set(&mut client, &[("maxmemory", &limit.to_string())]);
    // The tolerance is for the memory of the client that runs INFO.
    eventually("half of the keys are evicted", || info_field(&mut client, "used_memory") <= limit + 32 * KB);
    // The checks below must not evict more keys.
    allow_any(&mut client);
    // EXISTS finds keys without touching them.
    let alive = |client: &mut Client, wanted: bool| {
        let keys: Vec<String> =
            (0..KEYS).filter(|&number| is_used(number) == wanted).map(|n| format!("k{n}")).collect();
        let all = keys.len();
        let words: Vec<String> = std::iter::once("EXISTS".into()).chain(keys).collect();
        client.command(&words).integer() as usize * 100 / all
    };
    (alive(&mut client, true), alive(&mut client, false))
}

#[test]
fn used_keys_stay_and_unused_keys_are_evicted() {
    /// With `execution owner`, each worker evicts only its own keys. If the host doesn't schedule
    /// one worker for a while, the other workers must evict more keys, including used ones. Other
    /// tests that run at the same time may cause this. So only the first tries follow each other
    /// directly; before each later one, the test waits.
    const TRIES: usize = 12;
    const TRIES_AT_ONCE: usize = 3;
    let eventually_left = |server: &Server, policy: &str, uses: usize, is_right: fn(usize, usize) -> bool| {
        let mut seen = Vec::new();
        let is_seen = (0..TRIES).any(|number| {
            if number >= TRIES_AT_ONCE {
                std::thread::sleep(Duration::from_secs(2));
            }
            let (used, unused) = keys_left(server, policy, uses);
            seen.push((used, unused));
            is_right(used, unused)
        });
        assert!(is_seen, "{policy}: % of used and of unused keys that are left: {seen:?}");
    };
    play_together(|server| {
        // Half of all keys are evicted, and four fifths of all keys are unused. So if all used keys
        // stay, 5 of 8 unused keys are evicted.
        for (policy, uses) in
            [("allkeys-lru", 1), ("volatile-lru", 1), ("allkeys-lfu", 40), ("volatile-lfu", 40), ("volatile-ttl", 0)]
        {
            eventually_left(server, policy, uses, |used, unused| used >= 90 && unused <= 55);
        }
        for policy in ["allkeys-random", "volatile-random"] {
            eventually_left(server, policy, 1, |used, unused| used.abs_diff(unused) < 12);
        }
    });
}

#[test]
fn pipelines_of_large_values_stay_within_the_limit() {
    const VALUE_BYTES: usize = 512 * KB;
    const VALUES: usize = 900;
    for mut server in pantalas() {
        let mut control = server.connect();
        let limit = allow_more(&mut control, 16 * MB, "allkeys-lru");
        let before = server.resident_bytes() as usize;
        let value = "v".repeat(VALUE_BYTES);
        let (highest, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for part in 0..3 {
                let (server, value, done) = (&server, &value, &done);
                scope.spawn(move || {
                    let mut client = server.connect();
                    let sets: Vec<Vec<u8>> =
                        (0..VALUES / 3).map(|n| encode(&["SET", &format!("{part}:{n}"), value])).collect();
                    for some in sets.chunks(20) {
                        client.send_raw(&some.concat());
                        (0..some.len()).for_each(|_| assert_eq!(client.receive(), Reply::ok()));
                    }
                    done.fetch_add(1, Relaxed);
                });
            }
            while done.load(Relaxed) < 3 {
                highest.fetch_max(info_field(&mut control, "used_memory"), Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        // Memory may exceed the limit by a sixteenth of the limit, by one command per worker, and
        // by the buffers of clients (commands that were received but haven't run).
        let clients = 3 * 20 * (VALUE_BYTES + KB);
        let is_owner = control.call("CONFIG GET execution").elements()[1] == Reply::bulk("owner");
        let excess = limit / if is_owner { BUSY_EXCESS_PART } else { EXCESS_PART };
        let bound = limit + excess + 3 * VALUE_BYTES + clients;
        let highest = highest.into_inner();
        assert!(highest > limit / 2 && highest < bound, "{highest} used at most, of {limit}");
        let resident = server.peak_resident_bytes() as usize - before;
        assert!(
            resident < 3 * clients + 32 * MB,
            "{resident} bytes more resident, for {} written",
            VALUES * VALUE_BYTES
        );
        server.assert_sound();
    }
}

#[test]
fn the_sum_of_memory_does_not_drift() {
    let seed = Random::seed("the_sum_of_memory_does_not_drift");
    for mut server in pantalas() {
        let mut control = server.connect();
        for round in 0..3 {
            allow_more(&mut control, MB, "allkeys-random");
            std::thread::scope(|scope| {
                for part in 0..4u64 {
                    let server = &server;
                    scope.spawn(move || {
                        let (mut client, mut random) = (server.connect(), Random::from_seed(seed ^ part));
                        for _ in 0..300 {
                            let (a, b) = (random.below(500), random.below(500));
                            let (db, size) = (random.below(3), 10 + random.below(4000));
                            client.call(&format!("SELECT {db}"));
                            let value = "v".repeat(size);
                            for words in [
                                vec!["SET", &format!("s{a}"), &value],
                                vec!["RPUSH", &format!("l{a}"), &value],
                                vec!["HSET", &format!("h{b}"), "f", &value],
                                vec!["MSET", &format!("s{a}"), "1", &format!("s{b}"), &value],
                                vec!["MOVE", &format!("l{a}"), &(3 + db).to_string()],
                                vec!["COPY", &format!("h{b}"), &format!("s{a}"), "DB", "5", "REPLACE"],
                                vec!["DEL", &format!("l{b}"), &format!("s{b}")],
                                vec!["EVAL", "redis.call('SET', KEYS[1], ARGV[1])", "1", &format!("e{a}"), &value],
                                vec!["SWAPDB", "0", "1"],
                            ] {
                                client.command(&words);
                            }
                            if random.one_in(100) {
                                client.call("FLUSHDB");
                            }
                        }
                    });
                }
            });
            assert!(info_field(&mut control, "evicted_keys") > 0);
            // Deleted values no longer count as memory usage. 1 MB of values therefore fits without
            // eviction, and 4 MB more do not.
            assert_eq!(control.call("FLUSHALL"), Reply::ok());
            allow_more(&mut control, 4 * MB, "allkeys-random");
            assert_eq!(control.call("CONFIG RESETSTAT"), Reply::ok());
            let mut random = Random::from_seed(seed ^ round);
            fill(&mut control, &mut random, MB, false);
            assert_eq!(info_field(&mut control, "evicted_keys"), 0);
            fill(&mut control, &mut random, 4 * MB, false);
            assert!(info_field(&mut control, "evicted_keys") > 0);
            assert_eq!(control.call("FLUSHALL"), Reply::ok());
            allow_any(&mut control);
        }
        server.assert_sound();
    }
}

/// Evicts all keys.
fn evict_all(control: &mut Client) {
    set(control, &[("maxmemory-policy", "allkeys-lru"), ("maxmemory", "1")]);
    eventually("all keys are evicted", || control.call("DBSIZE").integer() == 0);
}

/// `used_memory` in `INFO` includes the memory of all earlier writes. So a limit that is a little
/// higher than `used_memory` causes no eviction.
#[test]
fn a_new_limit_counts_the_last_writes() {
    const KEYS: usize = 300;
    const VALUE: usize = 200;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut client = server.connect();
        let before = info_field(&mut client, "used_memory");
        let value = "x".repeat(VALUE);
        for db in 0..4 {
            client.call(&format!("SELECT {db}"));
            for key in 0..KEYS {
                client.command(&["SET", &format!("k{key}"), &value]);
            }
        }
        let after = info_field(&mut client, "used_memory");
        assert!(after >= before + 4 * KEYS * VALUE, "{before} {after}");
        allow_more(&mut client, 50_000, "allkeys-lru");
        std::thread::sleep(Duration::from_millis(200));
        client.call("PING");
        assert_eq!(info_field(&mut client, "evicted_keys"), 0);
    });
}

/// After a client has released memory, no worker rejects commands because of that memory.
#[test]
fn released_client_memory_causes_no_rejections() {
    const MIB: usize = 1 << 20;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        allow_more(&mut clients[0], 2 * MIB, "noeviction");
        let value = "x".repeat(MIB);
        for round in 0..3 {
            clients[0].call("MULTI");
            for _ in 0..6 {
                clients[0].command(&["SET", "a", &value]);
            }
            eventually("the limit is exceeded", || clients[1].call("SET b 1") != Reply::ok());
            clients[0].call("DISCARD");
            for client in &mut clients {
                assert_eq!(client.call("SET b 1"), Reply::ok(), "round {round}");
            }
        }
    });
}

#[test]
fn a_limit_applies_at_once_and_is_reported() {
    play(|server| {
        let mut control = server.connect();
        for number in 0..3000 {
            control.send(&["SET", &format!("k{number}"), "v"]);
        }
        (0..3000).for_each(|_| assert_eq!(control.receive(), Reply::ok()));
        assert_eq!(info_field(&mut control, "maxmemory"), 0);
        evict_all(&mut control);
        let info = control.call("INFO everything").text();
        for line in
            ["maxmemory:1\r\n", "maxmemory_human:1B\r\n", "maxmemory_policy:allkeys-lru\r\n", "evicted_keys:3000\r\n"]
        {
            assert!(info.contains(line), "{line}: {info}");
        }
        assert_eq!(control.call("SET k v"), Reply::Error(OUT_OF_MEMORY.into()));
        eventually("time above the limit is reported", || {
            info_field(&mut control, "current_eviction_exceeded_time") > 0
        });
        allow_any(&mut control);
        assert_eq!(control.call("SET k v"), Reply::ok());
        assert_eq!(control.call("CONFIG RESETSTAT"), Reply::ok());
        for name in ["evicted_keys", "total_eviction_exceeded_time", "current_eviction_exceeded_time"] {
            assert_eq!(info_field(&mut control, name), 0, "{name}");
        }
        let got = control.call("CONFIG GET maxmemory*");
        for (name, value) in [("maxmemory", "0"), ("maxmemory-samples", "5"), ("maxmemory-eviction-tenacity", "10")] {
            assert_eq!(got.field(name), Some(&Reply::bulk(value)), "{got:?}");
        }
        for (name, value) in
            [("maxmemory-samples", "0"), ("maxmemory-eviction-tenacity", "101"), ("maxmemory-policy", "x")]
        {
            assert!(control.command(&["CONFIG", "SET", name, value]).is_error(), "{name} {value}");
        }
        for tenacity in ["0", "100"] {
            set(&mut control, &[("maxmemory-eviction-tenacity", tenacity), ("maxmemory-samples", "64")]);
            control.call("MSET a 1 b 2 c 3");
            evict_all(&mut control);
            allow_any(&mut control);
        }
    });
}

#[test]
fn a_configured_limit_holds_from_the_start() {
    let args = ["--maxmemory", "1", "--maxmemory-policy", "volatile-lru"];
    for server in Backend::all().iter().map(|backend| Server::pantala(*backend, &args)).chain(Server::redis(&args)) {
        let mut client = server.connect();
        assert_eq!(client.call("SET k v"), Reply::Error(OUT_OF_MEMORY.into()));
        assert_eq!(client.call("CONFIG GET maxmemory").elements()[1], Reply::bulk("1"));
        assert!(!server.log().contains("isn't served"), "{}", server.log());
    }
}

#[test]
fn small_integers_are_not_shared_under_lru_and_lfu() {
    play(|server| {
        let mut control = server.connect();
        for (policy, is_shared) in [("allkeys-random", true), ("allkeys-lru", false), ("volatile-lfu", false)] {
            set(&mut control, &[("maxmemory", "1gb"), ("maxmemory-policy", policy)]);
            assert_eq!(control.call("SET a 1"), Reply::ok());
            assert_eq!(control.call("OBJECT REFCOUNT a").integer() > 1, is_shared, "{policy}");
        }
        allow_any(&mut control);
        assert_eq!(control.call("SET a 1"), Reply::ok());
        assert!(control.call("OBJECT REFCOUNT a").integer() > 1);
    });
}

#[test]
fn evicted_events_follow_the_events_of_writes() {
    const KEYS: usize = 500;
    play(|server| {
        let mut control = server.connect();
        set(&mut control, &[("notify-keyspace-events", "KE$e")]);
        let mut listener = server.connect();
        listener.call("PSUBSCRIBE __key*__:*");
        assert_eq!(control.call("SELECT 2"), Reply::ok());
        (0..KEYS).for_each(|number| assert_eq!(control.call(&format!("SET k{number} v")), Reply::ok()));
        evict_all(&mut control);
        allow_any(&mut control);
        let (mut set_keys, mut evicted_keys) = (BTreeSet::new(), BTreeSet::new());
        // Two messages for each of the two events of a key.
        for _ in 0..4 * KEYS {
            let message = listener.receive();
            let [_, _, channel, payload] = message.elements() else { panic!("no message: {message:?}") };
            match (channel.text().as_str(), payload.text()) {
                ("__keyevent@2__:set", key) => assert!(set_keys.insert(key)),
                ("__keyevent@2__:evicted", key) => {
                    assert!(set_keys.contains(&key), "{key} evicted before it was set");
                    assert!(evicted_keys.insert(key), "a key was evicted twice");
                }
                (channel, event) => {
                    assert!(channel.starts_with("__keyspace@2__:k") && ["set", "evicted"].contains(&&*event));
                }
            }
        }
        assert_eq!((set_keys.len(), evicted_keys.len()), (KEYS, KEYS));
    });
}

#[test]
fn eviction_aborts_watches_and_unblocks_consumers() {
    play(|server| {
        let mut control = server.connect();
        let mut watcher = server.connect();
        assert_eq!(control.call("MSET watched 1 other 2"), Reply::ok());
        assert!(!control.call("XGROUP CREATE stream group $ MKSTREAM").is_error());
        let mut waiter = waiting(server, "XREADGROUP GROUP group consumer BLOCK 0 STREAMS stream >", 1);
        assert_eq!(watcher.call("WATCH watched"), Reply::ok());
        assert_eq!(watcher.call("MULTI"), Reply::ok());
        assert_eq!(watcher.call("GET watched"), Reply::Simple("QUEUED".into()));
        evict_all(&mut control);
        let got = waiter.receive();
        assert!(got.text().starts_with("UNBLOCKED"), "{got:?}");
        assert_eq!(watcher.call("EXEC"), Reply::Null);
        allow_any(&mut control);
    });
}

#[test]
fn eviction_invalidates_before_the_reply() {
    play(|server| {
        let mut control = server.connect();
        let mut client = server.connect();
        client.call("HELLO 3");
        assert_eq!(client.call("CLIENT TRACKING on"), Reply::ok());
        allow_more(&mut control, 200 * KB, "volatile-random");
        assert_eq!(client.call("SETEX volatile 10000 x"), Reply::ok());
        assert_eq!(client.call("GET volatile"), Reply::bulk("x"));
        let invalidation = Reply::Push(vec![Reply::bulk("invalidate"), Reply::Array(vec![Reply::bulk("volatile")])]);
        let (big, bit) = (["SETBIT", "big", "3200000", "0"], ["GETBIT", "big", "0"]);
        // With `owner`, another worker may evict the key, and then the invalidation may follow the
        // reply (docs/semantics.md).
        if control.call("CONFIG GET execution").elements().get(1) == Some(&Reply::bulk("owner")) {
            client.send(&big);
            client.send(&bit);
            let got: Vec<Reply> = (0..3).map(|_| client.receive()).collect();
            assert!(got.contains(&invalidation), "{got:?}");
            return;
        }
        assert_eq!(control.call("DEBUG PAUSE-CRON 1"), Reply::ok());
        assert_eq!(client.command(&big), Reply::Integer(0));
        client.send(&bit);
        assert_eq!([client.receive(), client.receive()], [invalidation, Reply::Integer(0)]);
        assert_eq!(control.call("DEBUG PAUSE-CRON 0"), Reply::ok());
        allow_any(&mut control);
    });
}

#[test]
fn evicted_values_are_freed_in_the_background_if_configured() {
    play(|server| {
        let mut control = server.connect();
        let members: Vec<String> = (0..5000).map(|number| format!("member:{number}")).collect();
        for lazy in ["no", "yes"] {
            set(&mut control, &[("lazyfree-lazy-eviction", lazy)]);
            let words = ["SADD", "set"].into_iter().chain(members.iter().map(String::as_str));
            control.command(&words.collect::<Vec<_>>());
            let before = info_field(&mut control, "lazyfreed_objects");
            evict_all(&mut control);
            allow_any(&mut control);
            eventually("all objects are freed", || info_field(&mut control, "lazyfree_pending_objects") == 0);
            assert_eq!(info_field(&mut control, "lazyfreed_objects") > before, lazy == "yes");
        }
    });
}

#[test]
fn long_evictions_are_latency_events() {
    play(|server| {
        let mut control = server.connect();
        set(&mut control, &[("latency-monitor-threshold", "1"), ("maxmemory-eviction-tenacity", "100")]);
        eventually("both events", || {
            for from in (0..400_000).step_by(20_000) {
                let members = (from..from + 20_000).map(|number| format!("member:{number}"));
                let words: Vec<String> = ["SADD".into(), "set".into()].into_iter().chain(members).collect();
                control.command(&words);
            }
            evict_all(&mut control);
            allow_any(&mut control);
            let events = control.call("LATENCY LATEST");
            let has = |name: &str| events.elements().iter().any(|event| event.elements()[0] == Reply::bulk(name));
            has("eviction-cycle") && has("eviction-del")
        });
    });
}

#[test]
fn client_memory_causes_eviction() {
    play(|server| {
        let mut control = server.connect();
        (0..50).for_each(|number| _ = control.call(&format!("SETRANGE {number} 100000 x")));
        allow_more(&mut control, 2 * MB, "allkeys-lru");
        assert_eq!(control.call("DBSIZE").integer(), 50);
        // Each client sends an incomplete command, which the server must buffer.
        let mut clients: Vec<Client> = (0..30).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send_raw(b"*250\r\n");
            client.send_raw(&encode(&["x".repeat(1000)])[4..].repeat(249));
        }
        eventually("keys are evicted for client memory", || control.call("DBSIZE").integer() < 50);
        allow_any(&mut control);
    });
}

#[test]
fn nothing_is_evicted_or_rejected_while_writes_are_paused() {
    play(|server| {
        let mut control = server.connect();
        assert_eq!(control.call("SET k v"), Reply::ok());
        set(&mut control, &[("maxmemory-policy", "allkeys-lru")]);
        assert_eq!(control.call("CLIENT PAUSE 400 WRITE"), Reply::ok());
        set(&mut control, &[("maxmemory", "1")]);
        assert_eq!(control.call("GET k"), Reply::bulk("v"));
        let mut writer = server.connect();
        writer.send(&["SET", "other", "v"]);
        assert_eq!(control.call("DBSIZE").integer(), 1);
        // After the pause all keys are evicted, and the write is rejected.
        assert_eq!(writer.receive(), Reply::Error(OUT_OF_MEMORY.into()));
        eventually("all keys are evicted", || control.call("DBSIZE").integer() == 0);
        allow_any(&mut control);
    });
}

/// Reads by clients with `CLIENT NO-TOUCH` must not keep the access time of a hot key from
/// advancing.
#[test]
fn hot_keys_are_touched() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1", "--enable-debug-command", "yes"]);
        let (mut silent, mut client) = (server.connect(), server.connect());
        if client.call("DEBUG FAULT every-key-hot 1000") != Reply::ok() {
            return eprintln!("SKIPPED: this build lacks fault injection");
        }
        client.call("SET k v");
        assert_eq!(silent.call("CLIENT NO-TOUCH on"), Reply::ok());
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(3500) {
            for _ in 0..20 {
                silent.call("GET k");
            }
            client.call("GET k");
        }
        assert!(client.call("OBJECT IDLETIME k").integer() <= 1);
    });
}
