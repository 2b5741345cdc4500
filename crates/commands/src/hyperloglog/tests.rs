//! Tests of the HyperLogLog commands. The expected replies were compared with those of redis-server
//! 7.0.15.

use super::{CORRUPTED, NOT_ONE};
use crate::testing::TestServer;
use std::sync::atomic::Ordering::Relaxed;

fn error(text: &str) -> String {
    format!("-{text}")
}

#[test]
fn pfadd_and_pfcount() {
    let mut server = TestServer::new(4);
    server.expect(&[
        ("PFCOUNT h", ":0"),
        ("PFADD h", ":1"),
        ("PFADD h", ":0"),
        ("PFCOUNT h", ":0"),
        ("PFADD h a b c d e f g", ":1"),
        ("PFADD h a b", ":0"),
        ("PFCOUNT h", ":7"),
        ("PFCOUNT h", ":7"),
        ("PFADD h2 x y a", ":1"),
        ("PFCOUNT h h2 missing", ":9"),
        ("OBJECT ENCODING h", "raw"),
        ("EXPIRE h 100", ":1"),
        ("PFADD h new", ":1"),
        ("TTL h", ":100"),
        ("PFCOUNT h", ":8"),
    ]);
    server.check_counts(2, 1);
}

#[test]
fn pfmerge_unites() {
    let mut server = TestServer::new(8);
    server.expect(&[
        ("PFADD a 1 2 3", ":1"),
        ("PFADD b 3 4 5 6", ":1"),
        ("PFMERGE d a b missing", "+OK"),
        ("PFCOUNT d", ":6"),
        ("PFDEBUG ENCODING d", "+sparse"),
        ("PFDEBUG TODENSE b", ":1"),
        ("PFDEBUG TODENSE b", ":0"),
        ("PFMERGE a b", "+OK"),
        ("PFDEBUG ENCODING a", "+dense"),
        ("PFCOUNT a", ":6"),
        ("STRLEN a", ":12304"),
        ("PFMERGE empty", "+OK"),
        ("PFCOUNT empty", ":0"),
        ("PFDEBUG DECODE empty", "Z:16384"),
        ("PFDEBUG DECODE a", "-ERR HLL encoding is not sparse"),
    ]);
    server.check_counts(4, 0);
    assert!(server.heap_bytes() >= 2 * 12_304);
    server.expect(&[("DEL a b", ":2")]);
}

#[test]
fn other_values_are_errors() {
    let mut server = TestServer::new(2);
    server.expect(&[("SET s foo", "+OK"), ("SET n 12", "+OK"), ("PFADD h a", ":1")]);
    for command in
        ["PFADD s a", "PFADD n a", "PFCOUNT s", "PFCOUNT h s", "PFMERGE h s", "PFMERGE n h", "PFDEBUG DECODE s"]
    {
        assert_eq!(server.run(command), error(NOT_ONE), "{command}");
    }
    server.expect(&[
        ("PFDEBUG DECODE missing", "-ERR The specified key does not exist"),
        ("PFDEBUG NOSUCH h", "-ERR Unknown PFDEBUG subcommand 'NOSUCH'"),
        ("GET s", "foo"),
        ("PFCOUNT h", ":1"),
    ]);
}

/// A corrupted HyperLogLog gives an error, even if a command detects it halfway, and is not
/// changed.
#[test]
fn corruption_changes_nothing() {
    let mut server = TestServer::new(1);
    server.expect(&[("PFADD h a", ":1")]);
    let mut bytes = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
    // The registers end after the first half.
    bytes.extend([0x40 | 0x1f, 0xff]);
    server.raw(&[b"SET", b"h", &bytes]);
    let before = server.raw(&[b"GET", b"h"]);
    for command in [
        "PFADD h a b c d e f g h i j k l m n o p",
        "PFCOUNT h",
        "PFCOUNT h x",
        "PFMERGE h x",
        "PFDEBUG TODENSE h",
        "PFDEBUG GETREG h",
    ] {
        assert_eq!(server.run(command), error(CORRUPTED), "{command}");
        assert_eq!(server.raw(&[b"GET", b"h"]), before, "{command}");
    }
}

#[test]
fn a_new_limit_of_the_sparse_form_applies_immediately() {
    let mut server = TestServer::new(1);
    server.expect(&[("PFADD h a", ":1"), ("PFDEBUG ENCODING h", "+sparse")]);
    server.keyspace.tuning.hll_sparse_max_bytes.store(24, Relaxed);
    server.expect(&[("PFADD h b c", ":1"), ("PFDEBUG ENCODING h", "+dense"), ("PFCOUNT h", ":3")]);
    let registers = server.run("PFDEBUG GETREG h");
    assert!(registers.starts_with("*16384 :0 "));
    assert_eq!(registers.split(' ').filter(|value| !value.ends_with(":0")).count(), 1 + 3);
}
