//! Tests of the string commands. The expected replies were compared with those of redis-server
//! 7.0.15.

use pantala_base::block_bytes;

use crate::errors::NOT_AN_INTEGER;
use crate::testing::{START_MS, TestServer};

fn error(text: &str) -> String {
    format!("-{text}")
}

#[test]
fn set_obeys_its_conditions() {
    let mut server = TestServer::new(3);
    server.expect(&[
        ("GET k", "$-1"),
        ("SET k v NX GET", "$-1"),
        ("GET k", "v"),
        ("SET k w NX", "$-1"),
        ("SET k w NX GET", "v"),
        ("SET k w XX GET", "v"),
        ("SET other w XX", "$-1"),
        ("GET k", "w"),
        ("SETNX k x", ":0"),
        ("SETNX n 7", ":1"),
        ("GETSET k y", "w"),
        ("GETSET missing y", "$-1"),
        ("GETDEL k", "y"),
        ("GETDEL k", "$-1"),
        ("SET k v NX XX", "-ERR syntax error"),
        ("SET k v EX", "-ERR syntax error"),
        ("SET k v EX 10 KEEPTTL", "-ERR syntax error"),
        ("SET k v EX 10 EXAT 10", "-ERR syntax error"),
        ("SET k v PERSIST", "-ERR syntax error"),
        ("SET k v EX 10 EX 20", "+OK"),
        ("TTL k", ":20"),
    ]);
    server.check_counts(3, 1);
}

#[test]
fn set_with_expiry() {
    let mut server = TestServer::new(1);
    let past = (START_MS / 1000 - 5).to_string();
    server.expect(&[
        ("SET k v EX 10", "+OK"),
        ("PTTL k", ":10000"),
        ("SET k w KEEPTTL", "+OK"),
        ("PTTL k", ":10000"),
        ("SET k w", "+OK"),
        ("PTTL k", ":-1"),
        ("SET k v EX 0", "-ERR invalid expire time in 'set' command"),
        ("SET k v PX -1", "-ERR invalid expire time in 'set' command"),
        ("SET k v EX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
        ("SET k v PX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
        ("SET k v PXAT 9223372036854775807", "+OK"),
        ("SETEX k 0 v", "-ERR invalid expire time in 'setex' command"),
        ("PSETEX k -3 v", "-ERR invalid expire time in 'psetex' command"),
        ("SETEX k 3 v", "+OK"),
        ("TTL k", ":3"),
        ("SET k v EX x", &error(NOT_AN_INTEGER)),
    ]);
    // A deadline in the past is accepted and deletes the key immediately.
    server.expect(&[(&format!("SET k v EXAT {past}"), "+OK"), ("EXISTS k", ":0")]);
    server.check_counts(0, 0);
}

#[test]
fn getex_sets_and_removes_the_expiry() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("GETEX missing EX -5", "$-1"),
        ("SET k v", "+OK"),
        ("GETEX k EX -5", "-ERR invalid expire time in 'getex' command"),
        ("GETEX k PX 700", "v"),
        ("PTTL k", ":700"),
        ("GETEX k", "v"),
        ("PTTL k", ":700"),
        ("GETEX k PERSIST", "v"),
        ("PTTL k", ":-1"),
        ("GETEX k PERSIST EX 5", "-ERR syntax error"),
        ("GETEX k NX", "-ERR syntax error"),
        ("GETEX k EXAT 1", "v"),
        ("GET k", "$-1"),
    ]);
    server.check_counts(0, 0);
}

#[test]
fn counters_at_their_limits() {
    let mut server = TestServer::new(2);
    server.expect(&[
        ("INCR n", ":1"),
        ("DECR n", ":0"),
        ("DECR n", ":-1"),
        ("INCRBY n 9223372036854775807", ":9223372036854775806"),
        ("INCR n", ":9223372036854775807"),
        ("INCR n", "-ERR increment or decrement would overflow"),
        ("GET n", "9223372036854775807"),
        ("DECRBY n -9223372036854775808", "-ERR decrement would overflow"),
        ("INCRBY n x", &error(NOT_AN_INTEGER)),
        ("SET s 007", "+OK"),
        ("INCR s", &error(NOT_AN_INTEGER)),
        ("SET t 1 EX 100", "+OK"),
        ("INCRBY t 41", ":42"),
        ("TTL t", ":100"),
        // Bytes that form an integer can be incremented. The result is stored as an integer.
        ("APPEND t 0", ":3"),
        ("OBJECT ENCODING t", "raw"),
        ("INCR t", ":421"),
        ("OBJECT ENCODING t", "int"),
        ("TTL t", ":100"),
    ]);
    server.check_counts(3, 1);
}

#[test]
fn incrbyfloat_formats_as_redis() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("INCRBYFLOAT f 10.50", "10.5"),
        ("INCRBYFLOAT f 0.1", "10.6"),
        ("INCRBYFLOAT f -5.6e0", "5"),
        ("OBJECT ENCODING f", "embstr"),
        ("INCR f", ":6"),
        ("INCRBYFLOAT f nan", "-ERR value is not a valid float"),
        ("INCRBYFLOAT f inf", "-ERR increment would produce NaN or Infinity"),
        ("SET f x", "+OK"),
        ("INCRBYFLOAT f 1", "-ERR value is not a valid float"),
    ]);
}

#[test]
fn commands_on_several_keys() {
    let mut server = TestServer::new(5);
    server.expect(&[
        ("MSET a 1 b 2 a 3", "+OK"),
        ("MGET a b c a", "*4 3 2 $-1 3"),
        ("MSET a", "-ERR wrong number of arguments for 'mset' command"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
        ("MSETNX c 1 d", "-ERR wrong number of arguments for 'msetnx' command"),
        ("MSETNX c 1 b 9", ":0"),
        ("MGET b c", "*2 2 $-1"),
        ("MSETNX c 1 d 2 c 3", ":1"),
        ("GET c", "3"),
    ]);
    server.check_counts(4, 0);
    let large = "x".repeat(100_000);
    server.expect(&[
        (&format!("MSET a {large} e 5 f {large}"), "+OK"),
        ("STRLEN a", ":100000"),
        ("STRLEN f", ":100000"),
        ("GET e", "5"),
    ]);
    assert_eq!(server.heap_bytes(), 2 * block_bytes(100_000) as u64);
    server.expect(&[("MSET a 1 f 2", "+OK")]);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn getrange_and_setrange() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("SETRANGE k 2 ab", ":4"),
        ("GET k", "\\x00\\x00ab"),
        ("OBJECT ENCODING k", "raw"),
        ("SETRANGE k 0 zz", ":4"),
        ("GETRANGE k 0 -1", "zzab"),
        ("GETRANGE k -3 -2", "za"),
        ("GETRANGE k 3 1", "$0"),
        ("SUBSTR k 1 1", "z"),
        ("GETRANGE missing 0 -1", "$0"),
        ("GETRANGE k a 1", &error(NOT_AN_INTEGER)),
        ("SETRANGE k -1 x", "-ERR offset is out of range"),
        ("SETRANGE k 536870911 xy", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("SETRANGE k 9223372036854775807 xy", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("STRLEN k", ":4"),
        ("STRLEN missing", ":0"),
        ("SET n 12345", "+OK"),
        ("STRLEN n", ":5"),
        ("GETRANGE n 1 2", "23"),
        ("SETRANGE n 1 xx", ":5"),
        ("GET n", "1xx45"),
    ]);
    let empty: [&[u8]; 4] = [b"SETRANGE", b"missing", b"10", b""];
    assert_eq!(server.raw(&empty), b":0\r\n");
    server.check_counts(2, 0);
}

#[test]
fn append_grows_through_all_representations() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("APPEND k 12", ":2"),
        ("OBJECT ENCODING k", "int"),
        ("EXPIRE k 100", ":1"),
        ("APPEND k 3", ":3"),
        ("OBJECT ENCODING k", "raw"),
    ]);
    let mut expected = b"123".to_vec();
    let piece = "p".repeat(700);
    // The string outgrows its dictionary entry, and then passes through every size class of the
    // heap.
    for _ in 0..50 {
        expected.extend_from_slice(piece.as_bytes());
        assert_eq!(server.run(&format!("APPEND k {piece}")), format!(":{}", expected.len()));
        let reply = server.raw(&[b"GET", b"k"]);
        assert!(reply.windows(expected.len()).any(|window| window == expected), "{} bytes", expected.len());
    }
    server.expect(&[("TTL k", ":100"), ("OBJECT ENCODING k", "raw")]);
    assert!(server.heap_bytes() as usize >= expected.len());
    server.expect(&[("DEL k", ":1")]);
    assert_eq!(server.heap_bytes(), 0);
    server.check_counts(0, 0);
}

#[test]
fn a_string_grows_up_to_the_limit() {
    use std::sync::atomic::Ordering::Relaxed;
    const LIMIT: usize = 1 << 20;
    let mut server = TestServer::new(1);
    server.keyspace.tuning.proto_max_bulk_len.store(LIMIT as u64, Relaxed);
    let too_long = error(crate::errors::STRING_TOO_LONG);
    server.expect(&[
        (&format!("SETRANGE k {} x", LIMIT - 1), ":1048576"),
        ("APPEND k y", &too_long),
        (&format!("SETRANGE k {LIMIT} x"), &too_long),
        ("STRLEN k", ":1048576"),
    ]);
}

#[test]
fn lcs_obeys_its_options() {
    let mut server = TestServer::new(4);
    server.expect(&[
        ("MSET a ohmytext b mynewtext", "+OK"),
        ("LCS a b", "mytext"),
        ("LCS a b LEN", ":6"),
        ("LCS a b IDX", "*4 matches *2 *2 *2 :4 :7 *2 :5 :8 *2 *2 :2 :3 *2 :0 :1 len :6"),
        ("LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN", "*4 matches *1 *3 *2 :4 :7 *2 :5 :8 :4 len :6"),
        ("LCS a b IDX LEN", "-ERR If you want both the length and indexes, please just use IDX."),
        ("LCS a b MINMATCHLEN", "-ERR syntax error"),
        ("LCS a b MINMATCHLEN x", &error(NOT_AN_INTEGER)),
        ("LCS a missing", "$0"),
    ]);
}

#[test]
fn hits_and_misses_count_as_in_redis() {
    let mut server = TestServer::new(2);
    server.expect(&[("SET a 1", "+OK"), ("SETNX a 2", ":0"), ("INCR a", ":2"), ("APPEND a 1", ":2")]);
    assert_eq!(server.hits_and_misses(), (0, 0), "writes don't count");
    server.expect(&[("MGET a b", "*2 21 $-1"), ("GET a", "21"), ("SET a 1 GET", "21"), ("EXISTS a b", ":1")]);
    assert_eq!(server.hits_and_misses(), (4, 2));
}

/// If two workers use one shard, they exchange its cache lines (docs/scaling.md). The counters that
/// a command writes are in the cache line of the shard's gate, the word that shows whether the
/// shard is held. Only a change of the database's size writes another line.
#[test]
fn counters_of_a_command_are_in_the_gates_cache_line() {
    const LINE_BYTES: usize = 64;
    let mut server = TestServer::new(4);
    // A database has no counters before its first use, so this uses the database once.
    server.run("EXISTS a");
    // Returns the address and the value of each counter.
    let all_counters = |server: &TestServer| -> Vec<(usize, u64)> {
        let of = |shard| {
            let stats = server.keyspace.shard_stats(shard);
            let counters = [&stats.commands, &stats.hits, &stats.misses, &stats.expired, &stats.combined];
            let databases = server.keyspace.database_stats_of_shard(shard).flat_map(|database| {
                let gauges = [&database.keys, &database.expires, &database.dict_bytes, &database.heap_bytes];
                gauges.map(|gauge| (std::ptr::from_ref(gauge).addr(), gauge.get()))
            });
            let counters = counters.map(|counter| (std::ptr::from_ref(counter).addr(), counter.get()));
            counters.into_iter().chain(databases).collect::<Vec<_>>()
        };
        (0..4).flat_map(of).collect()
    };
    let mut lines_of = |words: &[&[u8]]| {
        let before = all_counters(&server);
        server.raw(words);
        let changed = before.iter().zip(all_counters(&server)).filter(|(before, after)| before.1 != after.1);
        let mut lines: Vec<usize> = changed.map(|(before, _)| before.0 / LINE_BYTES).collect();
        lines.dedup();
        lines.len()
    };
    let (value, other) = ([b'v'; 64], [b'w'; 64]);
    // A new key also changes the counters of the database, which may span two cache lines.
    assert!((2..=3).contains(&lines_of(&[b"SET", b"key", &value])), "a new key");
    assert_eq!(lines_of(&[b"GET", b"key"]), 1);
    assert_eq!(lines_of(&[b"GET", b"missing"]), 1);
    assert_eq!(lines_of(&[b"SET", b"key", &other]), 1);
    assert!((1..=3).contains(&lines_of(&[b"SET", b"key", b"of another size"])));
}
