//! Tests of RDB files: written files are read back from input chunks of any size, and damaged files
//! are rejected.

use std::cell::RefCell;

use pantala_base::crc64::crc64;
use pantala_types::list::{End, NodeLimit};
use pantala_types::rdb_value::{self, Dialect, Limits, Loaded, ValueRef, kind};
use pantala_types::sorted_set::{AddOptions, PackLimits};
use pantala_types::{Collection, Hash, HashLimits, List, Set, SortedSet};

use super::*;

const NOW_MS: i64 = 1_700_000_000_000;

const LIMITS: Limits = Limits {
    string_bytes_max: 1 << 20,
    list_node: NodeLimit { bytes: 8192, entries: usize::MAX, alone_bytes: 1 << 30, plain_depth: 0 },
    hash: HashLimits { entries_max: 128, value_bytes_max: 64 },
    set_intset_entries_max: 512,
    sorted_set: PackLimits::DEFAULT,
};

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Sink for Bytes {
    fn take(&mut self, chunk: &mut Vec<u8>) -> bool {
        self.0.append(chunk);
        true
    }
}

fn value_ref<'a>(loaded: &'a Loaded<'_>) -> ValueRef<'a> {
    match loaded {
        Loaded::String(bytes) => ValueRef::String(bytes),
        Loaded::List(list) => ValueRef::List(list.view()),
        Loaded::Hash(hash) if hash.view().has_expiring_fields() => ValueRef::ExpiringHash(hash.view(), NOW_MS),
        Loaded::Hash(hash) => ValueRef::Hash(hash.view()),
        Loaded::Set(set) => ValueRef::Set(set.view()),
        Loaded::SortedSet(set) => ValueRef::SortedSet(set.view()),
        Loaded::Stream(stream) => ValueRef::Stream(stream),
    }
}

/// Returns values of each type, small and large.
fn values() -> Vec<Loaded<'static>> {
    let mut values = vec![Loaded::String(b"value".as_slice().into()), Loaded::String(vec![b'a'; 300].into())];
    for count in [3, 600] {
        let (mut list, mut set, mut integers) = (List::empty(), Set::empty(), Set::empty());
        let (mut hash, mut sorted) = (Hash::empty(), SortedSet::empty());
        for number in 0..count {
            let text = format!("element {number}");
            list.push(End::Right, text.as_bytes(), LIMITS.list_node);
            set.add(text.as_bytes(), LIMITS.set_intset_entries_max);
            integers.add(number.to_string().as_bytes(), LIMITS.set_intset_entries_max);
            hash.set(text.as_bytes(), b"12", LIMITS.hash);
            sorted.add(text.as_bytes(), f64::from(number) / 8.0, AddOptions::default(), LIMITS.sorted_set);
        }
        values.extend([Loaded::List(list), Loaded::Set(set), Loaded::Set(integers), Loaded::SortedSet(sorted)]);
        values.push(Loaded::Hash(hash));
    }
    values
}

fn expiring_hash() -> Loaded<'static> {
    let mut hash = Hash::empty();
    for field in ["a", "b", "c"] {
        hash.set(field.as_bytes(), b"value", LIMITS.hash);
    }
    hash.set_expiry(b"a", NOW_MS + 5);
    hash.set_expiry(b"b", NOW_MS + 7000);
    Loaded::Hash(hash)
}

fn file_of(version: Version, values: &[Loaded<'_>]) -> Vec<u8> {
    let mut bytes = Bytes::default();
    let mut writer = Writer::new(version, true, true, &mut bytes);
    writer.aux(b"redis-ver", b"7.0.15");
    writer.function(b"#!lua name=l\n");
    writer.database(3, values.len() as u64, 1);
    for (number, value) in values.iter().enumerate() {
        let attributes = Attributes {
            expire_at_ms: (number == 0).then_some(NOW_MS + 1),
            idle_s: (number == 1).then_some(99),
            frequency: (number == 2).then_some(7),
        };
        writer.entry(format!("key:{number}").as_bytes(), value_ref(value), attributes);
    }
    assert!(writer.finish());
    bytes.0
}

/// Reads a file that is fed in chunks of `step` bytes. Returns a text for each piece. The text of
/// an entry contains the CRC64 of its value after decoding and encoding.
fn read_all(file: &[u8], step: usize, knows_len: bool) -> Result<Vec<String>, Error> {
    let mut reader = Reader::new(knows_len.then_some(file.len() as u64), 16, LIMITS.string_bytes_max, true);
    let mut input = file.chunks(step);
    let mut pieces = Vec::new();
    loop {
        let piece = match reader.next_piece()? {
            Next::NeedsInput => {
                match input.next() {
                    Some(chunk) => reader.feed(chunk)?,
                    None => reader.end_input(),
                }
                continue;
            }
            Next::Piece(_, piece) => piece,
        };
        pieces.push(match piece {
            Piece::End(_) => return Ok(pieces),
            Piece::Entry(entry) => {
                let value = entry.decode(&LIMITS, NOW_MS)?;
                let mut bytes = Vec::new();
                if let Some(value) = &value {
                    rdb_value::write(value_ref(value), &mut rdb_value::Writer::new(&mut bytes, false));
                }
                let attributes = (entry.expire_at_ms, entry.idle_s, entry.frequency);
                format!("{} {} {attributes:?} {:x}", entry.db, entry.key.escape_ascii(), crc64(0, &bytes))
            }
            other => format!("{other:?}"),
        });
    }
}

#[test]
fn written_files_are_read_in_any_pieces() {
    let mut all = values();
    for version in [Version::Redis7_0, Version::Redis7_4] {
        if version == Version::Redis7_4 {
            all.push(expiring_hash());
        }
        let file = file_of(version, &all);
        assert_eq!(&file[..9], if version == Version::Redis7_0 { b"REDIS0010" } else { b"REDIS0012" });
        let whole = read_all(&file, file.len(), true).expect("it is right");
        assert_eq!(whole.len(), all.len() + 3);
        for (number, (value, piece)) in all.iter().zip(&whole[3..]).enumerate() {
            let attributes =
                ((number == 0).then_some(NOW_MS + 1), (number == 1).then_some(99), (number == 2).then_some(7));
            assert!(piece.starts_with(&format!("3 key:{number} {attributes:?} ")), "{piece}");
            let mut bytes = Vec::new();
            rdb_value::write(value_ref(value), &mut rdb_value::Writer::new(&mut bytes, false));
            assert!(piece.ends_with(&format!("{:x}", crc64(0, &bytes))), "{piece}");
        }
        for step in [1, 2, 7, 1000] {
            assert_eq!(read_all(&file, step, step % 2 == 0).as_ref(), Ok(&whole), "in pieces of {step}");
        }
    }
}

#[test]
fn a_truncated_file_is_rejected() {
    let file = file_of(Version::Redis7_4, &[values().swap_remove(2), values().swap_remove(6), expiring_hash()]);
    for len in 0..file.len() {
        for knows_len in [true, false] {
            let cut = read_all(&file[..len], 64, knows_len).expect_err("it is cut off");
            assert_eq!((cut.fault, cut.offset), (Fault::Truncated, len as u64));
        }
    }
}

#[test]
fn any_changed_byte_is_detected() {
    let file = file_of(Version::Redis7_4, &[values().swap_remove(2), values().swap_remove(6), expiring_hash()]);
    // A change of the lowest bit of this digit results in version 2, which has no checksum. So the
    // reader cannot detect it.
    const TENS_OF_VERSION: usize = 7;
    for at in 0..file.len() {
        for bits in [1, 0x80, 0xff] {
            if (at, bits) == (TENS_OF_VERSION, 1) {
                continue;
            }
            let mut bent = file.clone();
            bent[at] ^= bits;
            let error = read_all(&bent, 4096, true).expect_err("it is damaged");
            assert!(error.offset <= file.len() as u64, "byte {at}: {error}");
        }
    }
}

/// Returns a file around some pieces, with a valid checksum.
fn sealed(magic: &[u8], pieces: &[u8]) -> Vec<u8> {
    let mut file = [magic, pieces, &[opcode::END]].concat();
    let checksum = crc64(0, &file);
    file.extend_from_slice(&checksum.to_le_bytes());
    file
}

#[test]
fn headers() {
    for (magic, right) in [
        (b"REDIS0006", true),
        (b"REDIS0012", true),
        (b"VALKEY080", true),
        (b"REDIS0013", false),
        (b"REDIS0005", true),
        (b"REDIS0000", false),
        (b"REDIS00x1", false),
        (b"VALKEY011", false),
        (b"VALKEY081", false),
        (b"REDISX010", false),
        (b"redis0010", false),
    ] {
        let read = read_all(&sealed(magic, &[]), 100, true);
        assert_eq!(read.is_ok(), right, "{}: {read:?}", magic.escape_ascii());
    }
    for magic in [b"REDIS0001", b"REDIS0004"] {
        let file = [&magic[..], &[opcode::END]].concat();
        assert_eq!(read_all(&file, 100, true), Ok(vec![]), "a version without a checksum");
    }
    // A checksum of zero isn't checked.
    assert_eq!(read_all(b"REDIS0010\xff\0\0\0\0\0\0\0\0", 100, true), Ok(vec![]));
    assert_eq!(read_all(b"", 100, true).map_err(|error| error.fault), Err(Fault::Truncated));
    assert_eq!(read_all(b"*1\r\n", 100, true).map_err(|error| error.fault), Err(Fault::Signature));
}

#[test]
fn false_lengths_allocate_no_memory() {
    let huge = [0x81, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    for kind in [kind::LIST, kind::SET, kind::HASH, kind::ZSET_2, kind::LIST_QUICKLIST_2, kind::STREAM_LISTPACKS_3] {
        let file = sealed(b"REDIS0012", &[&[kind, 1, b'k'][..], &huge].concat());
        let mut reader = Reader::new(Some(1 << 40), 16, 1 << 20, true);
        reader.feed(&file).expect("there is memory");
        let read = reader.next_piece();
        assert!(matches!(&read, Err(error) if error.fault == Fault::Truncated), "kind {kind}: {read:?}");
    }
    // The length also exceeds the limit of a string.
    for piece in
        [[&[kind::STRING, 1, b'k'][..], &huge].concat(), [&[kind::STRING, 1, b'k', 0xc3, 1][..], &huge].concat()]
    {
        let read = read_all(&sealed(b"REDIS0012", &piece), 100, false);
        assert!(matches!(&read, Err(error) if error.fault == Fault::Corrupt("string too long")), "{read:?}");
    }
}

#[test]
fn unsupported_content_is_named() {
    // The number encodes the name's letters, and a version.
    let name = b"MBbloom--";
    let number = name.iter().fold(0u64, |number, letter| {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        number << 6 | letters.iter().position(|known| known == letter).expect("a letter of modules") as u64
    }) << 10
        | 3;
    let module = |head: &[u8]| [head, &[0x81], &number.to_be_bytes()[..]].concat();
    for (magic, piece, fault) in [
        (b"REDIS0010", module(&[kind::MODULE, 1, b'k']), Fault::Module("MBbloom--".to_owned())),
        (b"REDIS0010", module(&[opcode::MODULE_AUX]), Fault::Module("MBbloom--".to_owned())),
        (b"REDIS0010", vec![8, 1, b'k'], Fault::UnknownKind(8)),
        (b"REDIS0012", vec![26, 1, b'k'], Fault::UnknownKind(26)),
        (b"REDIS0012", vec![243, 1, b'k'], Fault::UnknownKind(243)),
        (b"VALKEY080", vec![24, 1, b'k'], Fault::UnknownKind(24)),
        (b"VALKEY080", vec![243, 1, b'k'], Fault::Corrupt("a slot is being imported")),
        (b"REDIS0010", vec![opcode::SELECT_DB, 16], Fault::Database(16)),
    ] {
        let read = read_all(&sealed(magic, &piece), 100, true);
        assert_eq!(read, Err(Error { offset: 9, fault }));
    }
}

#[test]
fn newer_hashes_and_streams() {
    let word = |at_ms: i64| at_ms.to_le_bytes();
    let times = |hash: Loaded<'_>| {
        let Loaded::Hash(hash) = hash else { panic!("no hash: {hash:?}") };
        let fields = RefCell::new(Vec::new());
        hash.view().for_each(|field, _| {
            fields.borrow_mut().push((field.to_vec()[0], field.with_bytes(|field| hash.view().expiry(field))));
        });
        let mut fields = fields.into_inner();
        fields.sort_unstable();
        fields
    };
    let (soon, late) = (NOW_MS + 1000, NOW_MS + 9000);
    let number = |number: i64| [&[0x81][..], &number.to_be_bytes()].concat();
    let field = |name: u8| vec![1, name, 1, b'v'];
    let of_old = [
        &[4][..],
        &number(soon),
        &field(b'a'),
        &[0],
        &field(b'b'),
        &number(late),
        &field(b'c'),
        &number(5),
        &field(b'd'),
    ]
    .concat();
    let relative =
        [&word(soon)[..], &[3, 1], &field(b'a'), &[0], &field(b'b'), &number(late - soon + 1), &field(b'c')].concat();
    let valkey = [&[3][..], &field(b'a'), &word(soon), &field(b'b'), &word(-1), &field(b'c'), &word(late)].concat();
    let right = vec![(b'a', Some(soon)), (b'b', None), (b'c', Some(late))];
    for (kind, dialect, body) in [
        (kind::HASH_METADATA_PRE_GA, Dialect::Redis, of_old),
        (kind::HASH_METADATA, Dialect::Redis, relative),
        (kind::HASH_METADATA_PRE_GA, Dialect::Valkey, valkey),
    ] {
        let mut reader = rdb_value::Reader::new(&body, 1 << 20);
        let read = rdb_value::read_newer(kind, dialect, &mut reader, &LIMITS, NOW_MS);
        assert_eq!(times(read.unwrap_or_else(|error| panic!("{kind}: {error}"))), right, "{kind}");
        assert_eq!(reader.remaining(), 0);
        let extent = rdb_value::extent(kind, dialect, &body, 1 << 20);
        assert_eq!(extent, Ok(rdb_value::Extent::Whole(body.len())), "{kind}");
    }
}

#[test]
fn a_check_counts() {
    let file = file_of(Version::Redis7_0, &values());
    let mut lines = Vec::new();
    let mut report = |offset: u64, line: &str| lines.push(format!("{offset} {line}"));
    let mut check = Check::new(Reader::new(None, 16, 1 << 20, true), LIMITS, NOW_MS + 2, &mut report);
    let mut is_right = false;
    for chunk in file.chunks(1000).chain([&[][..]]) {
        assert!(!is_right);
        is_right = check.feed(chunk).expect("it is right");
    }
    assert!(is_right);
    let keys = values().len() as u64;
    assert_eq!(check.findings(), Findings { keys, expiring: 1, expired: 1, functions: 1 });
    assert_eq!(check.version(), Some((Dialect::Redis, 10)));
    assert_eq!(lines[0], "9 AUX FIELD redis-ver = '7.0.15'");
}

#[test]
fn a_large_collection_is_handed_over_in_pieces() {
    struct Largest(usize);
    impl Sink for Largest {
        fn take(&mut self, chunk: &mut Vec<u8>) -> bool {
            self.0 = self.0.max(chunk.len());
            chunk.clear();
            true
        }
    }
    let mut set = SortedSet::empty();
    for number in 0..100_000 {
        set.add(format!("member {number}").as_bytes(), f64::from(number), AddOptions::default(), LIMITS.sorted_set);
    }
    let mut largest = Largest(0);
    let mut writer = Writer::new(Version::Redis7_0, false, true, &mut largest);
    writer.entry(b"key", ValueRef::SortedSet(set.view()), Attributes::default());
    assert!(writer.finish());
    assert!(largest.0 < rdb_value::DRAIN_BYTES + 100, "{}", largest.0);
}
