//! Tests of reply encoding in both protocol versions.

use pantala_base::Random;

use super::*;
use crate::value::{Value, parse_reply};

fn encoded(version: Version, write: impl FnOnce(&mut Reply<'_>)) -> Vec<u8> {
    let mut out = b"before".to_vec();
    write(&mut Reply::new(&mut out, version));
    assert_eq!(&out[..6], b"before");
    out.split_off(6)
}

/// Asserts the encoding in RESP2 and in RESP3.
#[track_caller]
fn check(resp2: &[u8], resp3: &[u8], write: impl Fn(&mut Reply<'_>)) {
    assert_eq!(encoded(Version::Resp2, &write).escape_ascii().to_string(), resp2.escape_ascii().to_string());
    assert_eq!(encoded(Version::Resp3, &write).escape_ascii().to_string(), resp3.escape_ascii().to_string());
}

#[test]
fn every_type_in_both_versions() {
    check(b"+OK\r\n", b"+OK\r\n", |reply| reply.ok());
    check(b"+QUEUED\r\n", b"+QUEUED\r\n", |reply| reply.simple("QUEUED"));
    check(b"-ERR no\r\n", b"-ERR no\r\n", |reply| reply.error("ERR no"));
    check(b":-7\r\n", b":-7\r\n", |reply| reply.integer(-7));
    check(b"$2\r\nab\r\n", b"$2\r\nab\r\n", |reply| reply.bulk(b"ab"));
    check(b"$0\r\n\r\n", b"$0\r\n\r\n", |reply| reply.bulk(b""));
    check(b"$3\r\n-12\r\n", b"$3\r\n-12\r\n", |reply| reply.bulk_integer(-12));
    check(b"$-1\r\n", b"_\r\n", |reply| reply.null());
    check(b"*-1\r\n", b"_\r\n", |reply| reply.null_array());
    check(b"*3\r\n", b"*3\r\n", |reply| reply.array(3));
    check(b"*6\r\n", b"%3\r\n", |reply| reply.map(3));
    check(b"*3\r\n", b"~3\r\n", |reply| reply.set(3));
    check(b"*3\r\n", b">3\r\n", |reply| reply.push(3));
    check(b"", b"|1\r\n", |reply| assert_eq!(reply.attribute(1), reply.version() == Version::Resp3));
    check(b":1\r\n", b"#t\r\n", |reply| reply.boolean(true));
    check(b":0\r\n", b"#f\r\n", |reply| reply.boolean(false));
    check(b"$18\r\n3.1000000000000001\r\n", b",3.1000000000000001\r\n", |reply| reply.double(3.1));
    check(b"$3\r\ninf\r\n", b",inf\r\n", |reply| reply.double(f64::INFINITY));
    check(b"$4\r\n-inf\r\n", b",-inf\r\n", |reply| reply.double(f64::NEG_INFINITY));
    check(b"$2\r\n12\r\n", b"(12\r\n", |reply| reply.big_number(b"12"));
    check(b"$2\r\nhi\r\n", b"=6\r\ntxt:hi\r\n", |reply| reply.verbatim("txt", b"hi"));
    check(b"$0\r\n\r\n", b"=4\r\nt  :\r\n", |reply| reply.verbatim("t", b""));
    check(b"$0\r\n\r\n", b"=4\r\ntex:\r\n", |reply| reply.verbatim("text", b""));
    check(b"raw", b"raw", |reply| reply.raw(b"raw"));
    assert_eq!((Version::Resp2.number(), Version::Resp3.number()), (2, 3));
}

#[test]
fn errors_contain_no_line_ends() {
    check(b"-ERR a  b\r\n", b"-ERR a  b\r\n", |reply| reply.error("\r\nERR a\r\nb\r\n\n"));
    check(b"-\r\n", b"-\r\n", |reply| reply.error("\r\n"));
    check(b"-\r\n", b"-\r\n", |reply| reply.error(""));
    check(b"-ERR '\xff'\r\n", b"-ERR '\xff'\r\n", |reply| reply.error_bytes(b"ERR '\xff'"));
}

#[test]
fn numbers_of_every_length() {
    let mut values: Vec<i64> = (-1_100..=1_100).collect();
    values.extend((0..19).flat_map(|power| {
        let ten = 10i64.pow(power);
        [ten - 1, ten, ten + 1, -ten]
    }));
    values.extend([i64::MIN, i64::MAX]);
    for value in values {
        assert_eq!(encoded(Version::Resp2, |reply| reply.integer(value)), format!(":{value}\r\n").into_bytes());
        let text = value.to_string();
        let expected = format!("${}\r\n{text}\r\n", text.len());
        assert_eq!(encoded(Version::Resp2, |reply| reply.bulk_integer(value)), expected.into_bytes());
        if let Ok(len) = usize::try_from(value) {
            assert_eq!(encoded(Version::Resp2, |reply| reply.array(len)), format!("*{len}\r\n").into_bytes());
        }
    }
    for len in [9, 10, 99, 100, 999, 1_000, 65_536] {
        let bytes = vec![b'x'; len];
        let expected = [format!("${len}\r\n").as_bytes(), &bytes, b"\r\n"].concat();
        assert_eq!(encoded(Version::Resp3, |reply| reply.bulk(&bytes)), expected);
    }
}

#[test]
fn truncate_discards_a_reply() {
    let out = encoded(Version::Resp2, |reply| {
        reply.ok();
        let position = reply.position();
        reply.array(2);
        reply.bulk(b"half");
        reply.truncate(position);
        reply.null();
    });
    assert_eq!(out, b"+OK\r\n$-1\r\n");
}

#[test]
fn set_version_applies_to_the_next_reply() {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Version::Resp2);
    reply.null();
    reply.set_version(Version::Resp3);
    reply.null();
    assert_eq!(out, b"$-1\r\n_\r\n");
}

#[test]
fn deferred_aggregates_equal_direct_ones() {
    for len in [0usize, 1, 9, 10, 999, 1_000, 12_345] {
        for version in [Version::Resp2, Version::Resp3] {
            let direct = encoded(version, |reply| {
                reply.array(2);
                reply.map(len);
                (0..2 * len).for_each(|n| reply.integer(n as i64));
                reply.set(1);
                reply.ok();
                reply.null();
            });
            let deferred = encoded(version, |reply| {
                let outer = reply.defer_array();
                let map = reply.defer_map();
                (0..2 * len).for_each(|n| reply.integer(n as i64));
                reply.patch(map, len);
                let set = reply.defer_set();
                reply.ok();
                reply.patch(set, 1);
                reply.patch(outer, 2);
                reply.null();
            });
            assert!(direct == deferred, "length {len} in {version:?}");
        }
    }
}

#[test]
fn random_values_round_trip() {
    let seed = 0x5eed_0003;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    for _ in 0..20_000 {
        let value = random_value(&mut random, 3);
        let out = encoded(Version::Resp3, |reply| write(reply, &value));
        assert_eq!(parse_reply(&out), Ok(Some((value, out.len()))));
    }
}

fn random_value(random: &mut Random, depth: u64) -> Value {
    let mut bytes = vec![0; random.below(20) as usize];
    random.fill(&mut bytes);
    let line: Vec<u8> = bytes.iter().map(|byte| b' ' + byte % 90).collect();
    let kinds = if depth == 0 { 9 } else { 14 };
    match random.below(kinds) {
        0 => Value::Simple(line),
        1 => Value::Error([b"ERR ", &line[..]].concat()),
        2 => Value::Integer((random.next_u64() >> random.below(64)) as i64),
        3 => Value::Bulk(bytes),
        4 => Value::Null,
        5 => Value::Boolean(random.below(2) == 1),
        6 => Value::Double((random.next_u64() as i64) as f64 / 1e6),
        7 => Value::BigNumber(random.next_u64().to_string().into_bytes()),
        8 => Value::Verbatim(*b"txt", bytes),
        kind => {
            let mut inner = || random_value(random, depth - 1);
            match kind {
                9 => Value::Array(vec![inner(), inner()]),
                10 => Value::Set(vec![inner()]),
                11 => Value::Push(vec![inner(), inner(), inner()]),
                12 => Value::Map(vec![(inner(), inner())]),
                _ => Value::Attribute(vec![(inner(), inner())], Box::new(inner())),
            }
        }
    }
}

fn write(reply: &mut Reply<'_>, value: &Value) {
    let each = |reply: &mut Reply<'_>, values: &[Value]| values.iter().for_each(|value| write(reply, value));
    let pairs = |reply: &mut Reply<'_>, pairs: &[(Value, Value)]| {
        for (key, value) in pairs {
            write(reply, key);
            write(reply, value);
        }
    };
    match value {
        Value::Simple(text) => reply.simple(std::str::from_utf8(text).unwrap()),
        Value::Error(text) => reply.error_bytes(text),
        Value::Integer(value) => reply.integer(*value),
        Value::Bulk(bytes) => reply.bulk(bytes),
        Value::Null => reply.null(),
        Value::Boolean(value) => reply.boolean(*value),
        Value::Double(value) => reply.double(*value),
        Value::BigNumber(digits) => reply.big_number(digits),
        Value::Verbatim(format, text) => reply.verbatim(std::str::from_utf8(format).unwrap(), text),
        Value::Array(values) => {
            reply.array(values.len());
            each(reply, values);
        }
        Value::Set(values) => {
            reply.set(values.len());
            each(reply, values);
        }
        Value::Push(values) => {
            reply.push(values.len());
            each(reply, values);
        }
        Value::Map(map) => {
            reply.map(map.len());
            pairs(reply, map);
        }
        Value::Attribute(map, value) => {
            assert!(reply.attribute(map.len()));
            pairs(reply, map);
            write(reply, value);
        }
    }
}

/// Covers the two ways of copying a long bulk. The addresses of source and destination determine
/// the way.
#[test]
fn long_bulks_are_complete_at_any_alignment() {
    let bytes: Vec<u8> = (0..70_000u32).map(|number| (number * 7 % 251) as u8).collect();
    for len in [4095, 4096, 4097, 6143, 6144, 65_535, 65_536, 65_537] {
        for from in [0, 1, 8, 63, 64, 100] {
            for before in [0, 1, 7, 56, 64, 4000] {
                let mut out = vec![b'x'; before];
                Reply::new(&mut out, Version::Resp2).bulk(&bytes[from..from + len]);
                let header = format!("${len}\r\n");
                let wanted = [&vec![b'x'; before][..], header.as_bytes(), &bytes[from..from + len], b"\r\n"].concat();
                assert!(out == wanted, "{len} bytes from {from}, after {before}");
            }
        }
    }
}

#[test]
fn large_bulks_grow_the_buffer_in_few_steps() {
    const BULKS: usize = 64;
    let bulk = vec![b'x'; EXACT_BULK_BYTES];
    let encoded_bytes = bulk.len() + "$1048576\r\n\r\n".len();
    let mut out = Vec::new();
    Reply::new(&mut out, Version::Resp2).bulk(&bulk);
    assert!((encoded_bytes..encoded_bytes + 2 * HEADER_LEN_MAX).contains(&out.capacity()), "{}", out.capacity());
    let mut capacities = std::collections::BTreeSet::from([out.capacity()]);
    for _ in 1..BULKS {
        Reply::new(&mut out, Version::Resp2).bulk(&bulk);
        capacities.insert(out.capacity());
    }
    assert_eq!(out.len(), BULKS * encoded_bytes);
    // The capacity at least doubles when it changes.
    assert!(capacities.len() <= 1 + BULKS.ilog2() as usize, "{capacities:?}");
}

#[test]
fn a_large_bulk_replaces_a_mostly_empty_buffer() {
    let bulk = vec![b'x'; EXACT_BULK_BYTES];
    for written in [&b""[..], b"+OK\r\n"] {
        let mut out = Vec::with_capacity(EXACT_BULK_BYTES / 2);
        out.extend_from_slice(written);
        Reply::new(&mut out, Version::Resp2).bulk(&bulk);
        assert_eq!(out, [written, b"$1048576\r\n", &bulk, b"\r\n"].concat());
        assert!(out.capacity() < out.len() + 2 * HEADER_LEN_MAX);
    }
}

#[test]
fn a_reply_is_aborted_when_it_exceeds_its_limit() {
    const MAX: u64 = 10_000;
    let error = b"-ERR The reply is longer than client-output-buffer-limit allows\r\n";
    let limit = AtomicU64::new(MAX);
    for (len, count) in [(20, 1000), (5_000, 10), (70_000, 3), (1 << 22, 1)] {
        let mut out = b"+OK\r\n".to_vec();
        let mut reply = Reply::limited(&mut out, Version::Resp3, Some(&limit));
        let (outer, inner) = (reply.defer_array(), reply.defer_map());
        (0..count).for_each(|_| reply.bulk(&vec![b'x'; len]));
        reply.patch(inner, count / 2);
        reply.patch(outer, 1);
        reply.finish();
        assert_eq!(out, [b"+OK\r\n", &error[..]].concat(), "{count} of {len} bytes");
        assert!(out.capacity() < 2 * MAX as usize + 100, "{count} of {len} bytes: {}", out.capacity());
    }
    type Write = fn(&mut Reply<'_>);
    let writes: [(&str, Write); 8] = [
        ("integers", |reply| reply.integer(7)),
        ("long integers", |reply| reply.integer(i64::MIN)),
        ("nulls", |reply| reply.null()),
        ("null arrays", |reply| reply.null_array()),
        ("booleans", |reply| reply.boolean(true)),
        ("headers", |reply| reply.array(1)),
        ("encoded bytes", |reply| reply.raw(&[b'x'; 5 * MAX as usize])),
        ("texts", |reply| reply.verbatim("txt", &[b'x'; 5 * MAX as usize])),
    ];
    for version in [Version::Resp2, Version::Resp3] {
        for (what, write) in writes {
            let mut out = b"+OK\r\n".to_vec();
            let mut reply = Reply::limited(&mut out, version, Some(&limit));
            let array = reply.defer_array();
            (0..100_000).for_each(|_| write(&mut reply));
            reply.patch(array, 100_000);
            reply.finish();
            assert_eq!(out, [b"+OK\r\n", &error[..]].concat(), "{what}");
            assert!(out.capacity() < 2 * MAX as usize + 100, "{what}: {}", out.capacity());
        }
    }
    // A part has the limit of the whole.
    let (mut out, mut elements) = (Vec::new(), Vec::new());
    let mut reply = Reply::limited(&mut out, Version::Resp2, Some(&limit));
    let mut part = reply.part(&mut elements);
    (0..100_000).for_each(|_| part.bulk(b"element"));
    assert!(part.is_aborted());
    reply.abort();
    reply.finish();
    assert_eq!(out, error);
    assert!(elements.capacity() < 2 * MAX as usize + 100, "{}", elements.capacity());
    // The header of an aggregate aborts the reply.
    let mut out = Vec::with_capacity(MAX as usize);
    let mut reply = Reply::limited(&mut out, Version::Resp2, Some(&limit));
    let array = reply.defer_array();
    reply.bulk(&[b'x'; MAX as usize - 30]);
    (0..3).for_each(|_| reply.ok());
    reply.patch(array, 4);
    reply.finish();
    assert_eq!(out, error);
    // A reply within the limit is complete, and so is a reply after an aborted one was rolled back.
    let mut out = Vec::new();
    let mut reply = Reply::limited(&mut out, Version::Resp2, Some(&limit));
    reply.bulk(&[b'x'; 20_000]);
    reply.truncate(0);
    reply.bulk(b"short");
    reply.finish();
    assert_eq!(out, b"$5\r\nshort\r\n");
}
