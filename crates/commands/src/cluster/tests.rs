//! Tests of `CLUSTER`, with and without cluster mode.

use std::sync::atomic::Ordering::Relaxed;

use crate::testing::TestServer;
use crate::testing_host::LocalTest;

fn clustered() -> LocalTest {
    let test = LocalTest::new();
    test.keyspace.tuning.cluster.store(true, Relaxed);
    test
}

#[test]
fn every_command_fails_without_cluster_mode() {
    let mut test = LocalTest::new();
    for command in ["READONLY", "READWRITE", "ASKING", "CLUSTER INFO", "CLUSTER HELP", "CLUSTER KEYSLOT a"] {
        test.expect(&[(command, "-ERR This instance has cluster support disabled|")]);
    }
    let mut server = TestServer::new(4);
    for command in [&[&b"CLUSTER"[..], b"COUNTKEYSINSLOT", b"x"][..], &[b"CLUSTER", b"GETKEYSINSLOT", b"1", b"2"]] {
        assert_eq!(server.raw(command), b"-ERR This instance has cluster support disabled\r\n");
    }
}

#[test]
fn cluster_mode_allows_only_database_0() {
    let mut test = clustered();
    test.expect(&[
        ("SELECT 0", "+OK|"),
        ("SELECT 1", "-ERR SELECT is not allowed in cluster mode|"),
        ("SELECT 1000", "-ERR SELECT is not allowed in cluster mode|"),
        ("SELECT x", "-ERR value is not an integer or out of range|"),
        ("CLUSTER LINKS", "*0|"),
        ("CLUSTER KEYSLOT {a}b", ":15495|"),
        ("CLUSTER KEYSLOT ''", ":0|"),
    ]);
    assert!(test.run("HELLO").contains("$4|mode|$7|cluster|"));
}

/// The keys of a slot are counted and returned for any number of shards.
#[test]
fn keys_of_a_slot_are_found() {
    for shards in [1, 4, 16384] {
        let mut server = TestServer::new(shards);
        server.keyspace.tuning.cluster.store(true, Relaxed);
        for number in 0..50 {
            server.raw(&[b"SET", format!("{{a}}{number}").as_bytes(), b"v"]);
            server.raw(&[b"SET", format!("other{number}").as_bytes(), b"v"]);
        }
        let mut ask = |words: &[&[u8]]| {
            let words: Vec<&[u8]> = std::iter::once(&b"CLUSTER"[..]).chain(words.iter().copied()).collect();
            String::from_utf8(server.raw(&words)).expect("text")
        };
        assert_eq!(ask(&[b"COUNTKEYSINSLOT", b"15495"]), ":50\r\n");
        assert_eq!(ask(&[b"COUNTKEYSINSLOT", b"15494"]), ":0\r\n");
        for (count, wanted) in [(0, 0), (1, 1), (49, 49), (50, 50), (51, 50), (i64::MAX, 50)] {
            let reply = ask(&[b"GETKEYSINSLOT", b"15495", count.to_string().as_bytes()]);
            assert!(reply.starts_with(&format!("*{wanted}\r\n")), "{count}: {reply}");
            assert_eq!(reply.matches("{a}").count(), wanted as usize);
        }
    }
}
