//! Tests of `DUMP` and `RESTORE`. Replies and payloads were compared with those of redis-server
//! 7.0.15.

use pantala_types::rdb_value::payload::seal;

use crate::testing::{START_MS, TestServer};

/// Returns the payload of a value that is given with its type byte.
fn sealed(value: &[u8]) -> Vec<u8> {
    let mut payload = value.to_vec();
    seal(&mut payload);
    payload
}

fn restore(server: &mut TestServer, arguments: &[&[u8]]) -> String {
    let reply = server.raw(&[&[b"RESTORE".as_slice()], arguments].concat());
    String::from_utf8(reply).unwrap().trim_end().to_owned()
}

/// Returns the payload that `DUMP` replies.
fn dump(server: &mut TestServer, key: &str) -> Vec<u8> {
    let reply = server.raw(&[b"DUMP", key.as_bytes()]);
    let head = reply.iter().position(|&byte| byte == b'\n').unwrap();
    reply[head + 1..reply.len() - 2].to_vec()
}

#[test]
fn dumps_equal_those_of_redis() {
    let mut server = TestServer::new(3);
    server.expect(&[("DUMP missing", "$-1"), ("SET k hello", "+OK")]);
    assert_eq!(dump(&mut server, "k"), sealed(b"\x00\x05hello"));
    assert_eq!(dump(&mut server, "k"), b"\x00\x05hello\x0a\x00cr\xdfve4 \x0a");
    for (text, value) in [
        ("-1", &b"\x00\xc0\xff"[..]),
        ("40000", b"\x00\xc2\x40\x9c\x00\x00"),
        ("9999999999", b"\x00\x0a9999999999"),
        ("01", b"\x00\x0201"),
    ] {
        server.run(&format!("SET k {text}"));
        assert_eq!(dump(&mut server, "k"), sealed(value));
    }
    server.run("RPUSH list 1 2 abc");
    assert_eq!(
        dump(&mut server, "list"),
        sealed(b"\x12\x01\x02\x10\x10\x00\x00\x00\x03\x00\x01\x01\x02\x01\x83abc\x04\xff")
    );
    server.run("SADD integers 300 5");
    assert_eq!(dump(&mut server, "integers"), sealed(b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x05\x00\x2c\x01"));
    server.run("SADD set abc");
    assert_eq!(dump(&mut server, "set"), sealed(b"\x02\x01\x03abc"));
    server.run("HSET hash f vv");
    assert_eq!(dump(&mut server, "hash"), sealed(b"\x10\x0e\x0e\x00\x00\x00\x02\x00\x81f\x02\x82vv\x03\xff"));
    // DUMP counts as a read.
    assert_eq!(server.hits_and_misses(), (10, 1));
}

#[test]
fn every_type_round_trips() {
    let mut server = TestServer::new(5);
    server.run("SET string 17");
    server.run("SET raw abc");
    server.run("RPUSH list a 1 b");
    server.run("HSET hash f v g 2");
    server.run("SADD integers 5 300");
    server.run("SADD set a b");
    server.run("ZADD zset 1 a 2.5 b -inf c");
    for key in ["string", "raw", "list", "hash", "integers", "set", "zset"] {
        let payload = dump(&mut server, key);
        let (digest, encoding) =
            (server.run(&format!("DEBUG DIGEST-VALUE {key}")), server.run(&format!("OBJECT ENCODING {key}")));
        // The length excludes the type byte, the version and the checksum.
        let length = format!("serializedlength:{} ", payload.len() - 1 - 2 - 8);
        let described = server.run(&format!("DEBUG OBJECT {key}"));
        assert!(described.contains(&length), "{described} without {length}");
        assert_eq!(restore(&mut server, &[b"new", b"0", &payload, b"REPLACE"]), "+OK");
        assert_eq!(server.run("DEBUG DIGEST-VALUE new"), digest, "{key}");
        assert_eq!(server.run("OBJECT ENCODING new"), encoding, "{key}");
    }
    server.check_counts(8, 0);
    server.run("FLUSHALL");
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn expired_fields_are_not_dumped() {
    let mut server = TestServer::new(1);
    for len in [3, 1000] {
        let fields: String = (0..len).map(|field| format!(" {field} v{field}")).collect();
        server.run(&format!("HSET hash{fields}"));
        server.expect(&[("HPEXPIRE hash 5 FIELDS 2 0 2", "*2 :1 :1"), ("HPEXPIRE hash 6 FIELDS 1 1", "*1 :1")]);
        server.now_ms += 5;
        let payload = dump(&mut server, "hash");
        assert_eq!(restore(&mut server, &[b"back", b"0", &payload]), "+OK");
        server.expect(&[
            ("HLEN back", &format!(":{}", len - 2)),
            ("HMGET back 0 1 2", "*3 $-1 v1 $-1"),
            ("DEL hash back", ":2"),
        ]);
    }
    assert_eq!(server.heap_bytes(), 0);
}

#[test]
fn restore_applies_its_options() {
    let mut server = TestServer::new(3);
    let hello = sealed(b"\x00\x05hello");
    let mut ask = |arguments: &[&str], expected: &str| {
        let arguments: Vec<&[u8]> =
            arguments.iter().map(|text| if *text == "PAYLOAD" { &hello[..] } else { text.as_bytes() }).collect();
        assert_eq!(restore(&mut server, &arguments), expected);
    };
    ask(&["k", "0", "PAYLOAD"], "+OK");
    ask(&["k", "0", "PAYLOAD"], "-BUSYKEY Target key name already exists.");
    ask(&["k", "x", "..."], "-BUSYKEY Target key name already exists.");
    ask(&["k", "0", "..."], "-BUSYKEY Target key name already exists.");
    ask(&["k", "0", "...", "nonsense"], "-ERR syntax error");
    ask(&["n", "x", "..."], "-ERR value is not an integer or out of range");
    ask(&["n", "-1", "..."], "-ERR Invalid TTL value, must be >= 0");
    ask(&["n", "0", "..."], "-ERR DUMP payload version or checksum are wrong");
    ask(&["n", "0", "..............."], "-ERR DUMP payload version or checksum are wrong");
    ask(&["k", "5000", "PAYLOAD", "replace"], "+OK");
    ask(&["k", "0", "PAYLOAD", "IDLETIME", "-1"], "-ERR Invalid IDLETIME value, must be >= 0");
    ask(&["k", "0", "PAYLOAD", "IDLETIME", "x"], "-ERR value is not an integer or out of range");
    ask(&["k", "0", "PAYLOAD", "FREQ", "256"], "-ERR Invalid FREQ value, must be >= 0 and <= 255");
    ask(&["k", "0", "PAYLOAD", "FREQ", "1", "IDLETIME", "1"], "-ERR syntax error");
    ask(&["k", "0", "PAYLOAD", "IDLETIME"], "-ERR syntax error");
    ask(&["idle", "0", "PAYLOAD", "IDLETIME", "1000"], "+OK");
    ask(&["abs", &(START_MS + 3000).to_string(), "PAYLOAD", "ABSTTL"], "+OK");
    server.expect(&[("PTTL k", ":5000"), ("PTTL abs", ":3000"), ("OBJECT IDLETIME idle", ":1000")]);
    server.check_counts(3, 2);
}

#[test]
fn an_expired_value_only_deletes_the_key() {
    let mut server = TestServer::new(3);
    let hello = sealed(b"\x00\x05hello");
    server.run("SET k old");
    let past = (START_MS - 1).to_string();
    assert_eq!(restore(&mut server, &[b"n", past.as_bytes(), &hello, b"ABSTTL"]), "+OK");
    server.check_counts(1, 0);
    assert_eq!(restore(&mut server, &[b"k", past.as_bytes(), &hello, b"ABSTTL", b"REPLACE"]), "+OK");
    server.check_counts(0, 0);
    // The deadline overflows, so it counts as past.
    assert_eq!(restore(&mut server, &[b"k", b"9223372036854775807", &hello]), "+OK");
    server.check_counts(0, 0);
}

#[test]
fn bad_data_changes_nothing() {
    let mut server = TestServer::new(3);
    server.run("SET k old");
    for value in [&b""[..], b"\x00\x05hell", b"\x08", b"\x12\x00", b"\x02\x02\x01a\x01a", b"\xff"] {
        let mut wrong = sealed(value);
        let expected = if value == b"\x00\x05hell" {
            // Redis reads beyond the truncated value into the version, and gets "hell\n".
            "+OK"
        } else {
            "-ERR Bad data format"
        };
        assert_eq!(restore(&mut server, &[b"k", b"0", &wrong, b"REPLACE"]), expected, "{}", value.escape_ascii());
        *wrong.last_mut().unwrap() ^= 1;
        let checksum = "-ERR DUMP payload version or checksum are wrong";
        assert_eq!(restore(&mut server, &[b"k", b"0", &wrong, b"REPLACE"]), checksum);
    }
    assert_eq!(server.run("GET k"), "hell\\n");
}
