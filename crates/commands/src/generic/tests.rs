//! Tests of the commands on keys of any type. The expected replies were compared with those of
//! redis-server 7.0.15.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::block_bytes;
use pantala_base::random::Random;
use pantala_engine::executor::Executor;

use crate::testing::{START_MS, TestServer};

#[test]
fn existence_and_deletion() {
    let mut server = TestServer::new(4);
    server.expect(&[
        ("MSET a 1 b 2 c 3", "+OK"),
        ("EXISTS a a b x", ":3"),
        ("TOUCH a x c", ":2"),
        ("TYPE a", "+string"),
        ("TYPE x", "+none"),
        ("DEL a a x", ":1"),
        ("UNLINK b c", ":2"),
    ]);
    server.check_counts(0, 0);
}

#[test]
fn expire_obeys_its_conditions() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("SET k v", "+OK"),
        ("EXPIRE k 100 XX", ":0"),
        ("EXPIRE k 100 GT", ":0"),
        ("EXPIRE k 100 LT", ":1"),
        ("EXPIRE k 200 NX", ":0"),
        ("EXPIRE k 200 LT", ":0"),
        ("EXPIRE k 200 GT", ":1"),
        ("EXPIRE k 150 XX LT", ":1"),
        ("TTL k", ":150"),
        ("EXPIRE k 10 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE k 10 GT LT", "-ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE k x foo", "-ERR Unsupported option foo"),
        ("EXPIRE k 9223372036854775", "-ERR invalid expire time in 'expire' command"),
        ("PEXPIRE k 9223372036854775807", "-ERR invalid expire time in 'pexpire' command"),
        ("EXPIREAT k -9223372036854776", "-ERR invalid expire time in 'expireat' command"),
        ("EXPIRE missing 10", ":0"),
        ("PERSIST k", ":1"),
        ("PERSIST k", ":0"),
        ("PERSIST missing", ":0"),
        ("EXPIRE k -1 LT", ":1"),
        ("EXISTS k", ":0"),
        ("TTL k", ":-2"),
    ]);
    server.check_counts(0, 0);
    let expired: u64 = server.keyspace.shard_stats(0).expired.get();
    assert_eq!(expired, 0, "a deadline in the past counts as a deletion");
}

#[test]
fn ttl_rounds_to_the_nearest_second() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("SET k v PX 1499", "+OK"),
        ("TTL k", ":1"),
        ("PEXPIRE k 1500", ":1"),
        ("TTL k", ":2"),
        ("PEXPIRE k 1", ":1"),
        ("TTL k", ":0"),
        ("PEXPIREAT k 9223372036854775807", ":1"),
        ("EXPIRETIME k", ":9223372036854776"),
        ("PEXPIRETIME k", ":9223372036854775807"),
        ("EXPIRE k 10", ":1"),
        ("PEXPIRETIME k", &format!(":{}", START_MS + 10_000)),
    ]);
    server.now_ms += 9_999;
    server.expect(&[("PTTL k", ":1"), ("GET k", "v")]);
    server.now_ms += 1;
    server.expect(&[("PTTL k", ":-2"), ("GET k", "$-1")]);
    assert_eq!(server.keyspace.shard_stats(0).expired.get(), 1);
    server.check_counts(0, 0);
}

#[test]
fn rename_between_shards() {
    let mut server = TestServer::new(16);
    let large = "L".repeat(50_000);
    server.expect(&[
        ("RENAME x y", "-ERR no such key"),
        ("RENAMENX x y", "-ERR no such key"),
        ("SET a 1 EX 100", "+OK"),
        ("RENAME a a", "+OK"),
        ("RENAMENX a a", ":0"),
        ("RENAME a b", "+OK"),
        ("EXISTS a", ":0"),
        ("TTL b", ":100"),
        ("SET c 2", "+OK"),
        ("RENAMENX b c", ":0"),
        ("RENAME c b", "+OK"),
        ("GET b", "2"),
        ("TTL b", ":-1"),
        (&format!("SET big {large}"), "+OK"),
        ("RENAME big b", "+OK"),
        ("STRLEN b", ":50000"),
        ("EXISTS big", ":0"),
    ]);
    assert_eq!(server.heap_bytes(), block_bytes(50_000) as u64);
    server.check_counts(1, 0);
}

#[test]
fn a_longer_key_moves_the_value_out_of_the_entry() {
    let mut server = TestServer::new(8);
    let (key, value) = ("K".repeat(5_000), "v".repeat(1_000));
    server.expect(&[
        (&format!("SETRANGE short 0 {value}"), ":1000"),
        (&format!("RENAME short {key}"), "+OK"),
        (&format!("STRLEN {key}"), ":1000"),
        (&format!("OBJECT ENCODING {key}"), "raw"),
        (&format!("COPY {key} short"), ":1"),
        ("STRLEN short", ":1000"),
    ]);
    server.check_counts(2, 0);
    server.expect(&[(&format!("DEL {key} short"), ":2")]);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn move_and_copy() {
    let mut server = TestServer::new(4);
    server.expect(&[
        ("SET a 1 EX 50", "+OK"),
        ("MOVE a 0", "-ERR source and destination objects are the same"),
        ("MOVE a 16", "-ERR DB index is out of range"),
        ("MOVE a x", "-ERR value is not an integer or out of range"),
        ("MOVE a 99999999999", "-ERR value is out of range, value must between -2147483648 and 2147483647"),
        ("MOVE missing 1", ":0"),
        ("MOVE a 1", ":1"),
        ("EXISTS a", ":0"),
        ("SET a 2", "+OK"),
        ("MOVE a 1", ":0"),
        ("COPY a a", "-ERR source and destination objects are the same"),
        ("COPY a b", ":1"),
        ("COPY missing b", ":0"),
        ("COPY a b", ":0"),
        ("COPY a a DB 1", ":0"),
        ("COPY a a DB 2", ":1"),
        ("COPY a b DB", "-ERR syntax error"),
        ("COPY a b DB 77", "-ERR DB index is out of range"),
        ("OBJECT REFCOUNT a", ":2147483647"),
        ("OBJECT REFCOUNT b", ":1"),
        ("INCR b", ":3"),
        ("OBJECT REFCOUNT b", ":2147483647"),
    ]);
    server.check_counts(2, 0);
    server.session.db = 1;
    server.expect(&[("TTL a", ":50"), ("COPY a a DB 0", ":0"), ("COPY a a DB 0 REPLACE", ":1")]);
    server.check_counts(1, 1);
    server.session.db = 0;
    server.expect(&[("GET a", "1"), ("TTL a", ":50")]);
    server.check_counts(2, 1);
}

#[test]
fn keys_skips_expired_keys() {
    let mut server = TestServer::new(6);
    server.expect(&[("MSET one 1 two 2 three 3", "+OK"), ("SET gone x PX 5", "+OK")]);
    server.now_ms += 5;
    let mut all = server.list("KEYS *");
    all.sort();
    assert_eq!(all, ["one", "three", "two"]);
    let mut some = server.list("KEYS t*");
    some.sort();
    assert_eq!(some, ["three", "two"]);
    server.expect(&[("KEYS none", "*0")]);
}

/// Runs a full scan. Returns its keys and the number of pages.
fn scan_all(server: &mut TestServer, options: &str) -> (Vec<String>, usize) {
    let (mut keys, mut cursor, mut pages) = (Vec::new(), "0".to_owned(), 0);
    loop {
        let reply = server.list(&format!("SCAN {cursor}{options}"));
        cursor = reply[0].clone();
        keys.extend_from_slice(&reply[2..]);
        pages += 1;
        if cursor == "0" {
            return (keys, pages);
        }
    }
}

#[test]
fn scan_returns_every_key_once_when_nothing_changes() {
    for shards in [1, 7, 200] {
        let mut server = TestServer::new(shards);
        server.expect(&[("SCAN 0", "*2 0 *0"), ("DEBUG POPULATE 1000", "+OK"), ("SET gone x PX 1", "+OK")]);
        server.now_ms += 1;
        let expected: BTreeSet<String> = (0..1000).map(|number| format!("key:{number}")).collect();
        for count in [1, 10, 333, 100_000] {
            let (keys, pages) = scan_all(&mut server, &format!(" COUNT {count}"));
            assert_eq!(keys.len(), 1000, "{shards} shards, COUNT {count}");
            assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected);
            assert!(pages <= 1000 / count + shards as usize / 64 + 10 || count < 10, "{pages} pages of {count}");
        }
        let (keys, _) = scan_all(&mut server, " MATCH key:99? TYPE string");
        assert_eq!(keys.len(), 10);
        assert!(scan_all(&mut server, " TYPE unheard-of").0.is_empty());
    }
}

#[test]
fn scan_returns_every_key_that_exists_throughout() {
    let seed = Random::from_entropy().next_u64();
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let mut server = TestServer::new(5);
    for number in 0..500 {
        server.run(&format!("SET stays:{number} x"));
    }
    for round in 0..5 {
        let (mut seen, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let reply = server.list(&format!("SCAN {cursor} COUNT 20"));
            cursor = reply[0].clone();
            seen.extend(reply[2..].iter().filter(|key| key.starts_with("stays")).cloned());
            if cursor == "0" {
                break;
            }
            for _ in 0..random.below(400) {
                let (verb, number) = (random.below(2), random.below(3000));
                server.run(&if verb == 0 { format!("SET comes:{number} x") } else { format!("DEL comes:{number}") });
            }
        }
        assert_eq!(seen.len(), 500, "round {round}, seed {seed}");
    }
}

#[test]
fn scan_rejects_invalid_arguments() {
    TestServer::new(3).expect(&[
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN x COUNT", "-ERR invalid cursor"),
        ("SCAN 18446744073709551616", "-ERR invalid cursor"),
        ("SCAN 18446744073709551615", "*2 0 *0"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range"),
        ("SCAN 0 COUNT", "-ERR syntax error"),
        ("SCAN 0 FOO 1", "-ERR syntax error"),
    ]);
}

/// The expected behaviour of `SCAN` and `RANDOMKEY` is that of Redis 7.0 and 7.2.
#[test]
fn scan_and_randomkey_delete_expired_keys_but_keys_does_not() {
    const KEYS: u64 = 40;
    let mut server = TestServer::new(3);
    // Returns the number of keys that were deleted as expired, and the number of keys left.
    let key_counts = |server: &TestServer| {
        let shards = 0..server.keyspace.partition_count();
        shards.fold((0, 0), |(expired, left), shard| {
            let (stats, size) = (server.keyspace.shard_stats(shard), server.keyspace.shard_size(0, shard));
            (expired + stats.expired.get(), left + size)
        })
    };
    for number in 0..KEYS {
        server.run(&format!("SET a:{number} x PX 10"));
        server.run(&format!("SET b:{number} x PX 10"));
        server.run(&format!("RPUSH c:{number} x"));
        server.run(&format!("PEXPIRE c:{number} 10"));
    }
    server.now_ms += 10;
    assert_eq!(server.run("KEYS *"), "*0");
    assert_eq!(key_counts(&server), (0, 3 * KEYS));
    // Only keys that match the pattern are deleted.
    assert!(scan_all(&mut server, " MATCH a:*").0.is_empty());
    assert_eq!(key_counts(&server), (KEYS, 2 * KEYS));
    // Expired keys are deleted even if `TYPE` excludes them.
    assert!(scan_all(&mut server, " MATCH c:* TYPE string").0.is_empty());
    assert_eq!(key_counts(&server), (2 * KEYS, KEYS));
    // A pause prevents deletion.
    server.keyspace.tuning.paused_until_ms.store(server.now_ms + 1, Relaxed);
    assert!(scan_all(&mut server, "").0.is_empty());
    assert_eq!(key_counts(&server), (2 * KEYS, KEYS));
    server.now_ms += 1;
    server.expect(&[("RANDOMKEY", "$-1")]);
    assert_eq!(key_counts(&server), (3 * KEYS, 0));
    server.check_counts(0, 0);
}

#[test]
fn randomkey_finds_the_only_key() {
    let mut server = TestServer::new(9);
    server.expect(&[("RANDOMKEY", "$-1")]);
    for number in 0..300 {
        server.run(&format!("SET gone:{number} x PX 10"));
    }
    server.expect(&[("SET left x", "+OK")]);
    server.now_ms += 10;
    for _ in 0..100 {
        server.expect(&[("RANDOMKEY", "left")]);
    }
    server.expect(&[("DEL left", ":1"), ("RANDOMKEY", "$-1")]);
}

#[test]
fn randomkey_is_uniform_over_shards() {
    const KEYS: usize = 20;
    const DRAWS: usize = 4_000;
    let mut server = TestServer::new(7);
    for expiry in ["", " EX 100"] {
        for number in 0..KEYS {
            server.run(&format!("SET k{number} x{expiry}"));
        }
        let mut drawn = std::collections::BTreeMap::new();
        for _ in 0..DRAWS {
            *drawn.entry(server.run("RANDOMKEY")).or_insert(0usize) += 1;
        }
        assert_eq!(drawn.len(), KEYS);
        // The expected count of each key is 200, with a standard deviation of 14. The limits are
        // wider, because the dictionary chooses only nearly uniformly among the keys of a shard.
        assert!(drawn.values().all(|&times| (80..400).contains(&times)), "{drawn:?}");
    }
}

#[test]
fn flush_and_swapdb() {
    let mut server = TestServer::new(3);
    for option in ["", " ASYNC", " SYNC", " async"] {
        server.expect(&[("MSET a 1 b 2 c 3", "+OK"), (&format!("FLUSHDB{option}"), "+OK"), ("EXISTS a b c", ":0")]);
        server.check_counts(0, 0);
    }
    server.expect(&[
        ("FLUSHALL x", "-ERR syntax error"),
        ("FLUSHALL SYNC ASYNC", "-ERR syntax error"),
        ("SWAPDB a 1", "-ERR invalid first DB index"),
        ("SWAPDB 1 a", "-ERR invalid second DB index"),
        ("SWAPDB 1 16", "-ERR DB index is out of range"),
        ("SET a zero EX 5", "+OK"),
        ("SWAPDB 0 3", "+OK"),
        ("GET a", "$-1"),
    ]);
    server.session.db = 3;
    server.check_counts(1, 1);
    server.expect(&[("GET a", "zero"), ("SWAPDB 3 3", "+OK"), ("GET a", "zero"), ("FLUSHALL", "+OK")]);
    server.check_counts(0, 0);
}

#[test]
fn object_and_memory_usage() {
    let mut server = TestServer::new(2);
    server.expect(&[
        ("SET n 9999", "+OK"),
        ("SET m 10000", "+OK"),
        (&format!("SET e {}", "x".repeat(44)), "+OK"),
        (&format!("SET r {}", "x".repeat(45)), "+OK"),
        ("OBJECT ENCODING n", "int"),
        ("OBJECT ENCODING e", "embstr"),
        ("OBJECT ENCODING r", "raw"),
        ("OBJECT ENCODING missing", "$-1"),
        ("OBJECT REFCOUNT n", ":2147483647"),
        ("OBJECT REFCOUNT m", ":1"),
        ("MEMORY USAGE missing", "$-1"),
        ("MEMORY USAGE r SAMPLES", "-ERR syntax error"),
        ("MEMORY USAGE r SAMPLES -1", "-ERR syntax error"),
        ("MEMORY USAGE missing SAMPLES x", "-ERR value is not an integer or out of range"),
        ("DEBUG OBJECT missing", "-ERR no such key"),
    ]);
    server.now_ms += 7_000;
    server.expect(&[("OBJECT IDLETIME r", ":7"), ("TOUCH r", ":1"), ("OBJECT IDLETIME r", ":0")]);
    let used: i64 = server.run("MEMORY USAGE r SAMPLES 0")[1..].parse().expect("an integer");
    assert!((45..200).contains(&used), "{used}");
    assert!(server.run("OBJECT FREQ r").starts_with("-ERR An LFU maxmemory policy is not selected"));
    server.keyspace.tuning.set_access_policy(pantala_engine::tuning::AccessPolicy::Lfu);
    server.expect(&[("SET fresh x", "+OK"), ("OBJECT FREQ fresh", ":5")]);
    assert!(server.run("OBJECT IDLETIME r").starts_with("-ERR An LFU maxmemory policy is selected"));
}

#[test]
fn no_touch_clients_leave_access_times() {
    let mut server = TestServer::new(1);
    server.expect(&[("SET k v", "+OK")]);
    server.now_ms += 5_000;
    server.session.no_touch = true;
    server.expect(&[("GET k", "v"), ("OBJECT IDLETIME k", ":5"), ("TOUCH k", ":1"), ("OBJECT IDLETIME k", ":0")]);
}

#[test]
fn populate_creates_missing_keys() {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("SET key:1 mine", "+OK"),
        ("DEBUG POPULATE 20", "+OK"),
        ("MGET key:0 key:1 key:19 key:20", "*4 value:0 mine value:19 $-1"),
        ("DEBUG POPULATE 2 p 5", "+OK"),
        ("GET p:1", "value"),
        ("DEBUG POPULATE 2 q 9", "+OK"),
        ("GET q:1", "value:1\\x00\\x00"),
        ("DEBUG POPULATE 1 big 3000", "+OK"),
        ("STRLEN big:0", ":3000"),
        ("DEBUG POPULATE 1 huge 100000", "+OK"),
        ("STRLEN huge:0", ":100000"),
        ("DEBUG POPULATE x", "-ERR value is out of range, must be positive"),
        ("DEBUG POPULATE 1 p -1", "-ERR value is out of range, must be positive"),
        (
            "DEBUG POPULATE 1 2 3 4",
            "-ERR unknown subcommand or wrong number of arguments for 'POPULATE'. Try DEBUG HELP.",
        ),
    ]);
    server.check_counts(26, 0);
    // As in Redis, which builds the keys in a buffer of 128 bytes, longer keys are truncated.
    let long = "P".repeat(200);
    server.expect(&[(&format!("DEBUG POPULATE 3 {long}"), "+OK"), (&format!("EXISTS {}", &long[..127]), ":1")]);
    server.check_counts(27, 0);
}

/// Two workers may have different times. After the worker with the newer time has deleted an
/// expired key, a client of the other worker may find this key missing. From then on, that client
/// must not find a key alive whose deadline is earlier.
#[test]
fn an_older_time_advances_to_the_last_expiry_of_a_shard() {
    let mut server = TestServer::new(1);
    let [early, late, last] = [5, 10, 20].map(|after_ms| START_MS + after_ms);
    server.expect(&[
        (&format!("SET early 1 PXAT {early}"), "+OK"),
        (&format!("SET late 1 PXAT {late}"), "+OK"),
        (&format!("SET last 1 PXAT {last}"), "+OK"),
    ]);
    let [mut newer, mut older] = [1, 0].map(|worker| Executor::new(&server.keyspace, worker));
    let (alive, missing) = (b"$1\r\n1\r\n", b"$-1\r\n");
    assert_eq!(server.raw_on(&mut older, START_MS, &[b"GET", b"early"]), alive);
    assert_eq!(server.raw_on(&mut newer, late, &[b"GET", b"late"]), missing);
    assert_eq!(server.raw_on(&mut older, START_MS, &[b"GET", b"late"]), missing);
    assert_eq!(server.raw_on(&mut older, START_MS, &[b"GET", b"early"]), missing);
    assert_eq!(server.raw_on(&mut older, START_MS, &[b"GET", b"last"]), alive);
    // The same order holds within one command on several keys.
    assert_eq!(server.raw_on(&mut newer, last, &[b"GET", b"last"]), missing);
    assert_eq!(server.raw_on(&mut older, START_MS, &[b"MGET", b"last", b"early"]), b"*2\r\n$-1\r\n$-1\r\n");
}
