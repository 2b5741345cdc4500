//! Measures values and compares their sizes with the tables at the heads of the types' files.
//!
//! The size of a short packed value is the number of its bytes inside its dictionary entry. The
//! size of any other value is that of its [`Value`] and of the heap memory that the value owns.
//! Key, entry and slot are not included (see `pantala-dict`).

use std::fmt::Write;

use pantala_types::geo::Point;
use pantala_types::list::{End, NodeLimit};
use pantala_types::sorted_set::{AddOptions, PackLimits};
use pantala_types::stream::{NewId, NodeLimits, StreamId};
use pantala_types::{Collection, Hash, HashLimits, INLINE_PACKED_BYTES_MAX, List, Set, SortedSet, Stream, Value};
use pantala_types::{RawString, hyperloglog};

const FEW: u64 = 20;
const MANY: u64 = 100_000;
/// A prime factor, with which consecutive numbers become scattered ones.
const STEP: u64 = 7_919_317;
/// Relative tolerance, because the written sizes are rounded and the seeds of hash tables vary.
const SLACK: f64 = 0.01;

fn bytes_of<C: Collection>(value: C) -> usize {
    if let Some((_, bytes)) = value.packed()
        && bytes.len() <= INLINE_PACKED_BYTES_MAX
    {
        return bytes.len();
    }
    on_heap(&value.into_value())
}

fn on_heap(value: &Value) -> usize {
    size_of::<Value>() + value.allocated_bytes()
}

/// A row of a table: contents, form, bytes, and number of elements.
struct Row(&'static str, &'static str, usize, u64);

/// Checks that the table at the head of the source file has these rows.
fn check_table(file: &str, source: &str, rows: &[Row]) {
    let mut wrong = String::new();
    for Row(contents, form, bytes, count) in rows {
        let each = *bytes as f64 / *count as f64;
        println!("{file}: | {contents} | {form} | {each:.3} |");
        let written = source.lines().find_map(|line| {
            let cells: Vec<&str> = line.strip_prefix("//! |")?.split('|').map(str::trim).collect();
            (cells.len() > 2 && cells[..2] == [*contents, *form]).then(|| cells[2].parse::<f64>().ok())?
        });
        if written.is_none_or(|written| (written - each).abs() > written * SLACK) {
            let _ = writeln!(wrong, "//! | {contents} | {form} | {each:.3} |   and not {written:?}");
        }
    }
    assert!(wrong.is_empty(), "{file} must have\n{wrong}");
}

fn strings() -> [Row; 2] {
    let exact = RawString::try_from_slice(&[b'x'; 10_000]).unwrap();
    let mut appended = RawString::try_from_slice(&[b'x'; 10_000]).unwrap();
    appended.try_append(b"x").unwrap();
    [
        Row("a string of 10,000 bytes", "after SET", on_heap(&Value::String(exact)), 1),
        Row("a string of 10,001 bytes", "after APPEND of one", on_heap(&Value::String(appended)), 1),
    ]
}

#[test]
fn strings_match_their_table() {
    check_table("raw_string.rs", include_str!("../src/raw_string.rs"), &strings());
}

fn list(elements: u64) -> usize {
    let mut list = List::empty();
    (0..elements).for_each(|number| {
        list.push(End::Right, format!("element:{number:05}").as_bytes(), NodeLimit::from_setting(-2));
    });
    bytes_of(list)
}

#[test]
fn lists_match_their_table() {
    let rows = [
        Row("20 elements of 13 bytes", "packed", list(FEW), FEW),
        Row("100,000 elements of 13 bytes", "Quicklist", list(MANY), MANY),
    ];
    check_table("list/mod.rs", include_str!("../src/list/mod.rs"), &rows);
}

fn hash(fields: u64, times: bool) -> usize {
    let mut hash = Hash::empty();
    for number in 0..fields {
        let (field, limits) = (format!("field:{number:05}"), HashLimits { entries_max: 512, value_bytes_max: 64 });
        hash.set(field.as_bytes(), format!("value:{number:05}").as_bytes(), limits);
        if times {
            hash.set_expiry(field.as_bytes(), number as i64);
        }
    }
    bytes_of(hash)
}

#[test]
fn hashes_match_their_table() {
    let rows = [
        Row("10 fields of 11 bytes with values of 11", "packed", hash(FEW / 2, false), FEW / 2),
        Row("100,000 fields of 11 bytes with values of 11", "Table", hash(MANY, false), MANY),
        Row("100,000 fields of 11 bytes with values of 11", "Expiring, all with a TTL", hash(MANY, true), MANY),
    ];
    check_table("hash/mod.rs", include_str!("../src/hash/mod.rs"), &rows);
}

fn set(members: u64, member: impl Fn(u64) -> String) -> usize {
    let mut set = Set::empty();
    (0..members).for_each(|number| assert!(set.add(member(number).as_bytes(), 512)));
    bytes_of(set)
}

#[test]
fn sets_match_their_table() {
    let integer = |number: u64| (number * STEP % 1_000_000_007).to_string();
    let text = |number: u64| format!("element:{number:05}");
    let rows = [
        Row("20 integers of 10 digits", "IntSet", set(FEW, integer), FEW),
        Row("20 members of 13 bytes", "packed", set(FEW, text), FEW),
        Row("100,000 integers", "Table", set(MANY, integer), MANY),
        Row("100,000 members of 13 bytes", "Table", set(MANY, text), MANY),
    ];
    check_table("set/mod.rs", include_str!("../src/set/mod.rs"), &rows);
}

fn sorted_set(members: u64, score: impl Fn(u64) -> f64) -> usize {
    let mut set = SortedSet::empty();
    for number in 0..members {
        let member = format!("element:{number:05}");
        set.add(member.as_bytes(), score(number), AddOptions::default(), PackLimits::DEFAULT);
    }
    bytes_of(set)
}

#[test]
fn sorted_sets_match_their_table() {
    let score = |number: u64| (number * STEP % 1_000_003) as f64;
    let rows = [
        Row("20 members of 13 bytes, scores of 6 digits", "packed", sorted_set(FEW, score), FEW),
        Row("100,000 members of 13 bytes, scores of 6 digits", "LargeSet", sorted_set(MANY, score), MANY),
    ];
    check_table("sorted_set/mod.rs", include_str!("../src/sorted_set/mod.rs"), &rows);
}

#[test]
fn points_match_their_table() {
    let score = |number: u64| {
        let degrees = (number * STEP % 80_000) as f64 / 1000.0;
        Point { longitude: degrees + 1.0, latitude: degrees }.score()
    };
    let rows = [
        Row("20 points of 13 bytes", "packed", sorted_set(FEW, score), FEW),
        Row("100,000 points of 13 bytes", "LargeSet", sorted_set(MANY, score), MANY),
    ];
    check_table("geo.rs", include_str!("../src/geo.rs"), &rows);
}

fn stream(groups: usize) -> usize {
    let mut stream = Stream::default();
    for number in 0..MANY {
        let (sensor, value) = ((number % 1000).to_string(), format!("value:{number:05}"));
        let fields = [(&b"sensor"[..], sensor.as_bytes()), (&b"reading"[..], value.as_bytes())];
        let limits = NodeLimits { bytes: 4096, entries: 100 };
        stream.append(NewId::Given(StreamId { ms: number + 1, seq: 0 }), 1, fields.into_iter(), &limits).unwrap();
    }
    for _ in 0..groups {
        assert!(stream.create_group(b"group", StreamId::MIN, 0));
        let group = stream.group_number(b"group").unwrap();
        stream.deliver(group, b"consumer", usize::MAX, 1, false, |_, _| {});
    }
    on_heap(&Value::Stream(Box::new(stream))) + size_of::<Stream>()
}

#[test]
fn streams_match_their_table() {
    let (plain, pending) = (stream(0), stream(1));
    let rows = [
        Row("100,000 entries of two fields, 13 bytes of values", "nodes of 100", plain, MANY),
        Row("100,000 entries pending for a consumer", "pending", pending - plain, MANY),
    ];
    check_table("stream/mod.rs", include_str!("../src/stream/mod.rs"), &rows);
}

fn counter(elements: u64) -> usize {
    let mut string = hyperloglog::empty().unwrap();
    for number in 0..elements {
        hyperloglog::add(&mut string, number.to_string().as_bytes(), 3000).unwrap();
    }
    string.len()
}

#[test]
fn hyperloglogs_match_their_table() {
    let rows = [Row("20 elements", "sparse", counter(FEW), 1), Row("100,000 elements", "dense", counter(MANY), 1)];
    check_table("hyperloglog/mod.rs", include_str!("../src/hyperloglog/mod.rs"), &rows);
}

#[test]
fn bitmaps_match_their_table() {
    let mut bits = RawString::try_from_slice(b"").unwrap();
    bits.try_set_range((MANY / 8) as usize - 1, b"\x01").unwrap();
    let rows = [Row("100,000 bits", "string", bits.len(), MANY)];
    check_table("bitmap/mod.rs", include_str!("../src/bitmap/mod.rs"), &rows);
}
