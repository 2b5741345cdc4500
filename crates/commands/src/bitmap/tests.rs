//! Tests of the bitmap commands. The expected replies were compared with those of redis-server
//! 7.0.15.

use crate::errors::{NOT_AN_INTEGER, STRING_TOO_LONG, SYNTAX};
use crate::testing::TestServer;
use std::sync::atomic::Ordering::Relaxed;

const BAD_OFFSET: &str = "-ERR bit offset is not an integer or out of range";

fn error(text: &str) -> String {
    format!("-{text}")
}

#[test]
fn getbit_and_setbit() {
    let mut server = TestServer::new(2);
    server.expect(&[
        ("GETBIT k 0", ":0"),
        ("SETBIT k 1 1", ":0"),
        ("GET k", "@"),
        ("OBJECT ENCODING k", "raw"),
        ("SETBIT k 1 1", ":1"),
        ("SETBIT k 15 1", ":0"),
        ("STRLEN k", ":2"),
        ("SETBIT k 1 0", ":1"),
        ("GET k", "\\x00\\x01"),
        ("GETBIT k 15", ":1"),
        ("GETBIT k 4294967295", ":0"),
        ("SETBIT k 4294967296 1", BAD_OFFSET),
        ("GETBIT k -1", BAD_OFFSET),
        ("GETBIT k #1", BAD_OFFSET),
        ("SETBIT k 0 2", "-ERR bit is not an integer or out of range"),
        ("SETBIT k x 2", BAD_OFFSET),
        // SETBIT converts the integer to bytes.
        ("SET n 12 EX 100", "+OK"),
        ("GETBIT n 3", ":1"),
        ("SETBIT n 6 1", ":0"),
        ("GET n", "32"),
        ("OBJECT ENCODING n", "raw"),
        ("TTL n", ":100"),
        ("SET short abc", "+OK"),
        ("SETBIT short 0 0", ":0"),
        ("OBJECT ENCODING short", "raw"),
    ]);
    server.check_counts(3, 1);
}

#[test]
fn a_bitmap_grows_up_to_the_limit() {
    let mut server = TestServer::new(1);
    server.keyspace.tuning.proto_max_bulk_len.store(1 << 20, Relaxed);
    server.expect(&[
        ("SETBIT k 8388607 1", ":0"),
        ("STRLEN k", ":1048576"),
        ("SETBIT k 8388608 1", BAD_OFFSET),
        ("BITFIELD k SET u8 8388608 1", BAD_OFFSET),
        ("APPEND k x", &error(STRING_TOO_LONG)),
        ("BITCOUNT k", ":1"),
        ("BITPOS k 1", ":8388607"),
    ]);
    assert!(server.heap_bytes() >= 1 << 20);
    server.expect(&[("DEL k", ":1")]);
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn bitcount_counts_ranges() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("SET k foobar", "+OK"),
        ("BITCOUNT k", ":26"),
        ("BITCOUNT k 0 0", ":4"),
        ("BITCOUNT k 1 1", ":6"),
        ("BITCOUNT k -2 -1", ":7"),
        ("BITCOUNT k -1 -2", ":0"),
        ("BITCOUNT k 5 30 BIT", ":17"),
        ("BITCOUNT k 0 -1 byte", ":26"),
        ("BITCOUNT k 3 2", ":0"),
        ("BITCOUNT k 9223372036854775807 -9223372036854775808", ":0"),
        ("BITCOUNT k 0", &error(SYNTAX)),
        ("BITCOUNT k 0 1 BITS", &error(SYNTAX)),
        ("BITCOUNT k 0 x", &error(NOT_AN_INTEGER)),
        ("BITCOUNT missing 0 x y z", ":0"),
        ("SET n 7", "+OK"),
        ("BITCOUNT n", ":5"),
    ]);
}

#[test]
fn bitpos_searches_ranges() {
    let mut server = TestServer::new(1);
    let ones = |len: usize| vec![0xff; len];
    server.raw(&[b"SET", b"ones", &ones(3)]);
    server.raw(&[b"SET", b"k", &[0, 0x0f, 0]]);
    server.expect(&[
        ("BITPOS k 1", ":12"),
        ("BITPOS k 0", ":0"),
        ("BITPOS k 0 1", ":8"),
        ("BITPOS k 1 2", ":-1"),
        ("BITPOS k 0 12 15 BIT", ":-1"),
        ("BITPOS k 0 12 16 BIT", ":16"),
        ("BITPOS ones 0", ":24"),
        ("BITPOS ones 0 1", ":24"),
        ("BITPOS ones 0 0 -1", ":-1"),
        ("BITPOS ones 0 0 100", ":-1"),
        ("BITPOS ones 0 5", ":-1"),
        ("BITPOS missing 0", ":0"),
        ("BITPOS missing 1", ":-1"),
        ("BITPOS k 2", "-ERR The bit argument must be 1 or 0."),
        ("BITPOS k x", &error(NOT_AN_INTEGER)),
        ("BITPOS k 1 0 1 NIBBLE", &error(SYNTAX)),
        ("BITPOS k 1 0 1 BIT BIT", &error(SYNTAX)),
    ]);
}

#[test]
fn bitop_combines_keys_of_several_shards() {
    let mut server = TestServer::new(8);
    server.raw(&[b"SET", b"a", &[0xf0, 0xff]]);
    server.raw(&[b"SET", b"b", &[0x33]]);
    server.expect(&[
        ("BITOP AND d a b", ":2"),
        ("GET d", "0\\x00"),
        ("OBJECT ENCODING d", "raw"),
        ("BITOP or d a b missing", ":2"),
        ("GET d", "\\xf3\\xff"),
        ("BITOP XOR d a b", ":2"),
        ("GET d", "\\xc3\\xff"),
        ("BITOP AND d a missing", ":2"),
        ("GET d", "\\x00\\x00"),
        ("BITOP NOT a a", ":2"),
        ("GET a", "\\x0f\\x00"),
        ("BITOP NOT d a b", "-ERR BITOP NOT must be called with a single source key."),
        ("BITOP NAND d a b", &error(SYNTAX)),
        ("BITOP OR d missing none", ":0"),
        ("EXISTS d", ":0"),
        ("SET t 1 EX 100", "+OK"),
        ("BITOP OR t a", ":2"),
        ("TTL t", ":-1"),
    ]);
    // The sources are a string of several blocks and an integer.
    let large = vec![b'@'; 100_000];
    server.raw(&[b"SET", b"large", &large]);
    server.expect(&[
        ("SET n 1", "+OK"),
        ("BITOP XOR d large n large", ":100000"),
        ("BITCOUNT d", ":3"),
        ("BITCOUNT d 0 0", ":3"),
        ("BITOP AND d large large", ":100000"),
        ("BITCOUNT d", ":100000"),
    ]);
}

#[test]
fn bitfield_reads_and_writes_fields() {
    let mut server = TestServer::new(1);
    server.expect(&[
        ("BITFIELD k", "*0"),
        ("EXISTS k", ":0"),
        ("BITFIELD k GET u8 0 GET i64 #7", "*2 :0 :0"),
        ("EXISTS k", ":0"),
        ("BITFIELD k SET u8 0 255 GET u8 0", "*2 :0 :255"),
        ("BITFIELD k INCRBY u8 0 1 OVERFLOW SAT INCRBY u8 0 -1 INCRBY u8 0 300", "*3 :0 :0 :255"),
        ("BITFIELD k OVERFLOW FAIL INCRBY u8 0 1 GET u8 0", "*2 $-1 :255"),
        ("BITFIELD k SET i8 #1 -100 GET i8 8", "*2 :0 :-100"),
        ("STRLEN k", ":2"),
        // As in Redis's arithmetic, setting the smallest number saturates to the maximum.
        ("BITFIELD k OVERFLOW SAT SET i8 0 -9223372036854775808 GET i8 0", "*2 :-1 :127"),
        ("BITFIELD_RO k GET u4 4", "*1 :15"),
        ("BITFIELD_RO k GET u4 4 SET u4 4 1", "-ERR BITFIELD_RO only supports the GET subcommand"),
        ("BITFIELD k SET u8 100 1 GET u64 0", BAD_FIELD),
        ("BITFIELD k SET u8 100 1 NOSUCH u8 0", &error(SYNTAX)),
        ("BITFIELD k SET u8 100 1 GET u8", &error(SYNTAX)),
        ("BITFIELD k SET u8 100 1 OVERFLOW maybe", "-ERR Invalid OVERFLOW type specified"),
        ("BITFIELD k SET u8 100 1 SET u8 -1 1", BAD_OFFSET),
        ("BITFIELD k SET u8 100 x", &error(NOT_AN_INTEGER)),
        ("STRLEN k", ":2"),
        ("SET n 12", "+OK"),
        ("BITFIELD n INCRBY u8 0 1", "*1 :50"),
        ("GET n", "22"),
        ("OBJECT ENCODING n", "raw"),
    ]);
    server.check_counts(2, 0);
}

const BAD_FIELD: &str =
    "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
