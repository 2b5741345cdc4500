//! Tests that write and read values, and that read bytes from Redis and damaged bytes.

use super::*;
use crate::list::End;
use crate::sorted_set::AddOptions;
use crate::stream::{NewId, NodeLimits, StreamId};
use crate::testing::Random;
use crate::{Collection, Encoding};

pub(super) const LIMITS: Limits = Limits {
    string_bytes_max: 1 << 20,
    list_node: NodeLimit { bytes: 8192, entries: usize::MAX, alone_bytes: 1 << 30, plain_depth: 0 },
    hash: HashLimits { entries_max: 128, value_bytes_max: 64 },
    set_intset_entries_max: 512,
    sorted_set: PackLimits::DEFAULT,
};

pub(super) fn load(bytes: &[u8]) -> Result<Loaded<'_>, Error> {
    read(&mut Reader::new(bytes, LIMITS.string_bytes_max), &LIMITS)
}

fn dump(value: ValueRef<'_>, compress: bool) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, &mut Writer::new(&mut out, compress));
    out
}

fn value_ref<'a>(loaded: &'a Loaded<'_>) -> ValueRef<'a> {
    match loaded {
        Loaded::String(bytes) => ValueRef::String(bytes),
        Loaded::List(list) => ValueRef::List(list.view()),
        Loaded::Hash(hash) => ValueRef::Hash(hash.view()),
        Loaded::Set(set) => ValueRef::Set(set.view()),
        Loaded::SortedSet(set) => ValueRef::SortedSet(set.view()),
        Loaded::Stream(stream) => ValueRef::Stream(stream),
    }
}

/// Returns the contents of a value, sorted if the value is unordered.
pub(super) fn content(loaded: &Loaded<'_>) -> Vec<Vec<u8>> {
    let mut content = Vec::new();
    match loaded {
        Loaded::String(bytes) => content.push(bytes.to_vec()),
        Loaded::List(list) => list.view().for_each(|element| content.push(element.to_vec())),
        Loaded::Hash(hash) => {
            hash.view().for_each(|field, value| content.push([field.to_vec(), b"=".to_vec(), value.to_vec()].concat()));
            content.sort_unstable();
        }
        Loaded::Set(set) => {
            set.view().for_each(|member| content.push(member.to_vec()));
            content.sort_unstable();
        }
        Loaded::Stream(stream) => content.push(dump(ValueRef::Stream(stream), false)),
        Loaded::SortedSet(set) => {
            for (member, score) in set.view().iter() {
                content.extend([member.to_vec(), score.to_bits().to_le_bytes().to_vec()]);
            }
        }
    }
    content
}

fn encoding(loaded: &Loaded<'_>) -> Encoding {
    match loaded {
        Loaded::String(_) => Encoding::Raw,
        Loaded::List(list) => list.view().encoding(),
        Loaded::Hash(hash) => hash.view().encoding(),
        Loaded::Set(set) => set.view().encoding(),
        Loaded::SortedSet(set) => set.view().encoding(),
        Loaded::Stream(stream) => stream.encoding(),
    }
}

fn random_text(random: &mut Random) -> Vec<u8> {
    match random.below(5) {
        0 => (random.next() as i64 >> random.below(64)).to_string().into_bytes(),
        1 => random.text(b"ab", 0, 200),
        2 if random.one_in(10) => random.bytes(0, 20_000),
        _ => random.bytes(0, 70),
    }
}

fn random_value(random: &mut Random) -> Loaded<'static> {
    let most = random.pick(&[1, 5, 50, 400]);
    let count = 1 + random.below(most);
    match random.below(7) {
        6 => Loaded::Stream(random_stream(random, count)),
        5 => {
            let mut set = SortedSet::empty();
            for _ in 0..count {
                let score = match random.below(4) {
                    0 => random.between(-5, 5) as f64,
                    1 => random.pick(&[f64::INFINITY, f64::NEG_INFINITY, f64::MAX, 5e-324, 1e19, 0.1, -0.0]),
                    2 => random.between(-100_000, 100_000) as f64 / 8.0,
                    _ => Some(f64::from_bits(random.next())).filter(|score| !score.is_nan()).unwrap_or(0.0),
                };
                set.add(&random_text(random), score, AddOptions::default(), LIMITS.sorted_set);
            }
            Loaded::SortedSet(set)
        }
        0 => Loaded::String(random_text(random).into()),
        1 => {
            let mut list = List::empty();
            for _ in 0..count {
                list.push(random.pick(&[End::Left, End::Right]), &random_text(random), LIMITS.list_node);
            }
            Loaded::List(list)
        }
        2 => {
            let mut hash = Hash::empty();
            for _ in 0..count {
                hash.set(&random_text(random), &random_text(random), LIMITS.hash);
            }
            Loaded::Hash(hash)
        }
        kind => {
            let mut set = Set::empty();
            for _ in 0..count {
                let member = if kind == 3 { random_text(random) } else { random.below(99_999).to_string().into() };
                set.add(&member, LIMITS.set_intset_entries_max);
            }
            Loaded::Set(set)
        }
    }
}

/// Returns a stream with a group, some pending and some deleted entries.
fn random_stream(random: &mut Random, count: u64) -> Box<Stream> {
    let mut stream = Box::<Stream>::default();
    let limits = NodeLimits { bytes: 4096, entries: 10 };
    let mut ids = Vec::new();
    for _ in 0..count {
        let fields: Vec<(Vec<u8>, Vec<u8>)> = (0..=random.below(3))
            .map(|field| {
                let name = if random.one_in(4) { random_text(random) } else { vec![b'a' + field as u8] };
                (name, random_text(random))
            })
            .collect();
        let fields = fields.iter().map(|(name, value)| (&name[..], &value[..]));
        let now_ms = random.below(1 << 40);
        ids.extend(stream.append(NewId::Auto, now_ms, fields, &limits));
    }
    stream.create_group(b"group", StreamId::MIN, random.pick(&[-1, 0, 7]));
    stream.create_consumer(0, b"idle", 5);
    ids.retain(|_| random.one_in(3));
    stream.delete(&ids);
    stream
}

/// Writes the seed corpus for the fuzz target of `RESTORE`. The corpus isn't kept in the
/// repository: `.ci/run` and `.ci/nightly` create it.
#[test]
#[ignore = "writes files into the folder that PANTALA_FUZZ_CORPUS names"]
fn corpus_of_restore() {
    const FILES: u32 = 400;
    const BYTES_MAX: usize = 4096;
    let folder = std::path::PathBuf::from(std::env::var_os("PANTALA_FUZZ_CORPUS").expect("PANTALA_FUZZ_CORPUS is set"));
    std::fs::create_dir_all(&folder).unwrap();
    let mut random = Random::with_printed_seed("corpus of RESTORE");
    let mut types = std::collections::BTreeSet::new();
    for number in 0..FILES {
        let value = random_value(&mut random);
        let bytes = dump(value_ref(&value), random.one_in(3));
        if bytes.len() <= BYTES_MAX {
            types.insert(bytes[0]);
            std::fs::write(folder.join(format!("value-{number}")), bytes).unwrap();
        }
    }
    assert!(types.len() >= 8, "values of the types {types:?} only");
}

#[test]
fn written_values_read_back_equal() {
    let mut random = Random::with_printed_seed("rdb values");
    for _ in 0..400 {
        let value = random_value(&mut random);
        let bytes = dump(value_ref(&value), random.one_in(2));
        let mut reader = Reader::new(&bytes, LIMITS.string_bytes_max);
        let back = read(&mut reader, &LIMITS).unwrap();
        assert_eq!((content(&back), encoding(&back)), (content(&value), encoding(&value)));
        assert_eq!(reader.remaining(), 0);
        if let Loaded::List(list) = &back {
            let again = dump(value_ref(&back), false);
            assert_eq!(content(&load(&again).unwrap()), content(&value));
            assert!(list.allocated_bytes() <= 2 * bytes.len() * 100);
        }
        for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            assert!(load(&bytes[..cut]).is_err(), "cut at {cut} of {}", bytes.len());
        }
    }
}

/// Reading damaged values returns an error or a usable value.
#[test]
fn damage_never_panics() {
    let mut random = Random::with_printed_seed("rdb values, damaged");
    for _ in 0..400 {
        let value = random_value(&mut random);
        let good = dump(value_ref(&value), random.one_in(3));
        for _ in 0..60 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(3) {
                // Damage the start of the value more often, because lengths are there.
                let within = if random.one_in(2) { bytes.len().min(24) } else { bytes.len() };
                let at = random.below(within as u64) as usize;
                match random.below(4) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = random.pick(&[0, 0x7f, 0x80, 0x81, 0xc0, 0xc3, 0xf0, 0xf4, 0xfe, 0xff]),
                    2 => bytes[at] = random.next() as u8,
                    _ if bytes.len() > 2 => drop(bytes.remove(at)),
                    _ => bytes.insert(at, 0),
                }
            }
            if let Ok(loaded) = load(&bytes) {
                let again = dump(value_ref(&loaded), true);
                assert_eq!(content(&load(&again).unwrap()), content(&loaded));
            }
        }
    }
}

/// The expected bytes are replies of redis-server 7.0.15 to DUMP, without version and checksum.
#[test]
fn bytes_of_redis_are_read_and_written() {
    let long = [b"hello ".repeat(20), b"world".to_vec()].concat();
    for (bytes, expected) in [
        (&b"\x00\x05hello"[..], &[&b"hello"[..]][..]),
        (b"\x00\xc0\x7b", &[b"123"]),
        (b"\x00\xc1\x39\x30", &[b"12345"]),
        (b"\x00\xc2\x15\xcd\x5b\x07", &[b"123456789"]),
        (b"\x00\x0c123456789012", &[b"123456789012"]),
        (b"\x12\x01\x02\x10\x10\x00\x00\x00\x03\x00\x01\x01\x02\x01\x83abc\x04\xff", &[b"1", b"2", b"abc"]),
        (b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x05\x00\x2c\x01", &[b"300", b"5"]),
        (b"\x10\x0e\x0e\x00\x00\x00\x02\x00\x81f\x02\x82vv\x03\xff", &[b"f=vv"]),
        (b"\x02\x01\x03abc", &[b"abc"]),
        (b"\x11\x0c\x0c\x00\x00\x00\x02\x00\x81m\x02\x05\x01\xff", &[b"m", b"\0\0\0\0\0\0\x14@"]),
    ] {
        let loaded = load(bytes).unwrap();
        assert_eq!(content(&loaded), expected);
        let written = match &loaded {
            Loaded::String(text) if crate::parse_i64(text).is_some() => {
                dump(ValueRef::Int(crate::parse_i64(text).unwrap()), true)
            }
            loaded => dump(value_ref(loaded), true),
        };
        assert_eq!(written, bytes, "{}", bytes.escape_ascii());
    }
    let compressed = dump(ValueRef::String(&long), true);
    assert!(compressed.len() < 40);
    assert_eq!(content(&load(&compressed).unwrap()), [long]);
}

/// Returns a ziplist as Redis wrote it. With `odd`, every entry stores the size of the preceding
/// entry in the long form.
fn ziplist(entries: &[(&[u8], &[u8])], odd: bool) -> Vec<u8> {
    let (mut body, mut before, mut last) = (Vec::new(), 0usize, 10);
    for (encoding, data) in entries {
        let at = body.len();
        last = 10 + at;
        if before < 254 && !odd {
            body.push(before as u8);
        } else {
            body.push(254);
            body.extend_from_slice(&(before as u32).to_le_bytes());
        }
        body.extend_from_slice(encoding);
        body.extend_from_slice(data);
        before = body.len() - at;
    }
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(body.len() as u32 + 11).to_le_bytes());
    bytes.extend_from_slice(&(last as u32).to_le_bytes());
    bytes.extend_from_slice(&(entries.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.push(0xff);
    bytes
}

fn of_kind(kind: u8, string: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    Writer::new(&mut out, false).put_string(string);
    out
}

#[test]
fn ziplists_of_every_encoding() {
    let long = [b'x'; 300];
    let entries: [(&[u8], &[u8]); 12] = [
        (b"\x03", b"abc"),
        (b"\x41\x2c", &long),
        (b"\x80\x00\x00\x00\x02", b"de"),
        (b"\xc0", b"\xff\x7f"),
        (b"\xd0", b"\x00\x00\x00\x80"),
        (b"\xe0", b"\x01\x00\x00\x00\x00\x00\x00\x80"),
        (b"\xf0", b"\xff\xff\xff"),
        (b"\xfe", b"\x80"),
        (b"\xf1", b""),
        (b"\xfd", b""),
        (b"\x00", b""),
        (b"\x02", b"17"),
    ];
    let expected: Vec<Vec<u8>> = [
        &b"abc"[..],
        &long,
        b"de",
        b"32767",
        b"-2147483648",
        b"-9223372036854775807",
        b"-1",
        b"-128",
        b"0",
        b"12",
        b"",
        b"17",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    for odd in [false, true] {
        let bytes = ziplist(&entries, odd);
        let list = of_kind(kind::LIST_ZIPLIST, &bytes);
        let loaded = load(&list).unwrap();
        assert_eq!(content(&loaded), expected);
        // The text of an integer became an integer, so a search finds it.
        let Loaded::List(list) = loaded else { panic!("a list") };
        assert!(list.view().position(crate::pack::Element::Int(17)).is_some());
        let mut nodes = vec![kind::LIST_QUICKLIST, 3];
        for node in [&bytes, &ziplist(&[], false), &bytes] {
            Writer::new(&mut nodes, true).put_string(node);
        }
        assert_eq!(content(&load(&nodes).unwrap()), [&expected[..], &expected].concat());
        let hash = of_kind(kind::HASH_ZIPLIST, &bytes);
        assert_eq!(content(&load(&hash).unwrap()).len(), 6);
        for at in 0..bytes.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                drop(load(&of_kind(kind::LIST_ZIPLIST, &bytes)).map(|loaded| content(&loaded)));
            }
            assert!(load(&of_kind(kind::LIST_ZIPLIST, &bytes[..at])).is_err());
        }
    }
    let twice = ziplist(&[(b"\x01", b"a"), (b"\xf1", b""), (b"\x01", b"a"), (b"\xf1", b"")], false);
    assert!(load(&of_kind(kind::LIST_ZIPLIST, &twice)).is_ok());
    assert_eq!(load(&of_kind(kind::HASH_ZIPLIST, &twice)), Err(Error::Corrupt("fields of a hash")));
}

#[test]
fn zipmaps() {
    let long = [b'v'; 300];
    let bytes = [&b"\x02\x01a\x02\x03bb###\x03foo\xfe\x2c\x01\x00\x00\x00"[..], &long, b"\xff"].concat();
    let hash = of_kind(kind::HASH_ZIPMAP, &bytes);
    let loaded = load(&hash).unwrap();
    assert_eq!(content(&loaded), [b"a=bb".to_vec(), [b"foo=", &long[..]].concat()]);
    assert_eq!(encoding(&loaded), Encoding::Hashtable);
    for wrong in [
        &b"\x00\xff"[..],
        b"\x02\x01a\x01\x00b\xff",
        b"\x01\x01a\x01\x00b",
        b"\x01\x01a\x01\x01b\xff",
        b"\x02\x01a\x01\x00b\x01a\x01\x00b\xff",
        b"\x01\xfe\x01\x00\x00\x00a\x01\x00b\xff",
        b"\x01\xfe\xff\xff\xff\xffa\x01\x00b\xff",
        b"",
    ] {
        assert!(load(&of_kind(kind::HASH_ZIPMAP, wrong)).is_err(), "{}", wrong.escape_ascii());
    }
}

#[test]
fn older_sorted_sets() {
    let text = b"\x03\x04\x01a\x032.5\x01b\xff\x01c\xfe\x01d\x04-1e1";
    let expected: Vec<Vec<u8>> = [("b", f64::NEG_INFINITY), ("d", -10.0), ("a", 2.5), ("c", f64::INFINITY)]
        .into_iter()
        .flat_map(|(member, score)| [member.into(), score.to_le_bytes().to_vec()])
        .collect();
    assert_eq!(content(&load(text).unwrap()), expected);
    let pairs = ziplist(&[(b"\x01", b"a"), (b"\x03", b"2.5"), (b"\x01", b"b"), (b"\xf4", b"")], false);
    let bytes = of_kind(kind::ZSET_ZIPLIST, &pairs);
    assert_eq!(content(&load(&bytes).unwrap()).len(), 4);
    for wrong in [
        &b"\x03\x01\x01a\xfd"[..],
        b"\x03\x01\x01a\x03abc",
        b"\x03\x01\x01a\x03\x00.5",
        b"\x03\x01\x01a\x00",
        b"\x03\x02\x01a\x011\x01a\x012",
        b"\x05\x01\x01a\x00\x00\x00\x00\x00\x00\xf8\x7f",
        b"\x05\x01\x01a\x00\x00\x00\x00\x00\x00\xf0",
        b"\x05\x00",
        b"\x11\x07\x07\x00\x00\x00\x00\x00\xff",
        b"\x11\x0e\x0e\x00\x00\x00\x02\x00\x81m\x02\x81x\x02\xff",
    ] {
        assert!(load(wrong).is_err(), "{}", wrong.escape_ascii());
    }
}

#[test]
fn settings_choose_the_encoding() {
    let mut hash = Hash::empty();
    for n in 0..=LIMITS.hash.entries_max {
        hash.set(n.to_string().as_bytes(), b"v", HashLimits { entries_max: 1000, value_bytes_max: 64 });
    }
    let bytes = dump(ValueRef::Hash(hash.view()), true);
    assert_eq!(encoding(&load(&bytes).unwrap()), Encoding::Hashtable);
    hash.remove(b"5");
    let bytes = dump(ValueRef::Hash(hash.view()), true);
    assert_eq!(encoding(&load(&bytes).unwrap()), Encoding::Listpack);
    let mut set = Set::empty();
    for n in 0..=LIMITS.set_intset_entries_max {
        set.add(n.to_string().as_bytes(), 1000);
    }
    let bytes = dump(ValueRef::Set(set.view()), true);
    assert_eq!(encoding(&load(&bytes).unwrap()), Encoding::Hashtable);
}

#[test]
fn corrupt_values_are_rejected() {
    for wrong in [
        &b""[..],
        b"\x08\x01a",                                             // unknown type
        b"\x00\x82",                                              // invalid length
        b"\x00\x81\xff\xff\xff\xff\xff\xff\xff\xf7",              // a length beyond the end
        b"\x00\xc4",                                              // unknown encoding
        b"\x00\xc3\x02\x81\x00\x00\x01\x00\x00\x00\x00\x00\x00a", // claims a length of a terabyte
        b"\x01\x00",                                              // four empty collections
        b"\x02\x00",
        b"\x04\x00",
        b"\x12\x00",
        b"\x02\x80\xff\xff\xff\xff\x01a",                // claims four billion members
        b"\x02\x02\x01a\x01a",                           // duplicate member
        b"\x04\x02\x01a\x01b\x01a\x01c",                 // duplicate field
        b"\x10\x07\x07\x00\x00\x00\x00\x00\xff",         // an empty hash
        b"\x10\x09\x09\x00\x00\x00\x01\x00\x01\x01\xff", // a field without a value
        b"\x12\x01\x03\x07\x07\x00\x00\x00\x00\x00\xff", // unknown form of a node
        b"\x12\x01\x01\x00",                             // an empty large element
        b"\x12\x01\x02\x07\x07\x00\x00\x00\x00\x00\xff", // only an empty node
        b"\x0b\x08\x02\x00\x00\x00\x00\x00\x00\x00",     // an empty intset
        b"\x0b\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x05\x00\x05\x00", // not ascending
        b"\x0b\x0b\x03\x00\x00\x00\x01\x00\x00\x00\x05\x00\x05", // invalid width
    ] {
        assert!(load(wrong).is_err(), "{}", wrong.escape_ascii());
    }
}

#[test]
fn a_string_at_the_limit_and_one_past() {
    let limit = LIMITS.string_bytes_max as usize;
    for compress in [false, true] {
        let text = vec![b'a'; limit];
        assert!(load(&dump(ValueRef::String(&text), compress)).is_ok());
        let text = vec![b'a'; limit + 1];
        assert_eq!(load(&dump(ValueRef::String(&text), compress)), Err(Error::Corrupt("string too long")));
    }
}

#[test]
fn lengths_in_every_form() {
    for (len, bytes) in [
        (0, &b"\x00"[..]),
        (63, b"\x3f"),
        (64, b"\x40\x40"),
        (16_383, b"\x7f\xff"),
        (16_384, b"\x80\x00\x00\x40\x00"),
        (u64::from(u32::MAX), b"\x80\xff\xff\xff\xff"),
        (1 << 32, b"\x81\x00\x00\x00\x01\x00\x00\x00\x00"),
    ] {
        let mut out = Vec::new();
        Writer::new(&mut out, true).put_length(len);
        assert_eq!(out, bytes);
        assert_eq!(Reader::new(&out, 0).length(), Ok(len));
    }
    assert!(Reader::new(&[0x81, 255, 255, 255, 255, 255, 255, 255, 255], 0).length().is_err());
}
