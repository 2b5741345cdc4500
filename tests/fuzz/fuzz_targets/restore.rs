//! Values of `RESTORE` under arbitrary bytes: an error, or a value that is written again and then reads the same; never a panic, never
//! memory for what isn't there. LZF: what is compressed comes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pantala_types::list::NodeLimit;
use pantala_types::rdb_value::{Limits, Loaded, Reader, ValueRef, Writer, read, write};
use pantala_types::sorted_set::PackLimits;
use pantala_types::{Collection, HashLimits, lzf};

/// Low enough that a few bytes of LZF meet it.
const STRING_BYTES_MAX: u64 = 1 << 16;

const LIMITS: Limits = Limits {
    string_bytes_max: STRING_BYTES_MAX,
    list_node: NodeLimit { bytes: 256, entries: 16, alone_bytes: 200, plain_depth: 1 },
    hash: HashLimits { entries_max: 8, value_bytes_max: 16 },
    set_intset_entries_max: 8,
    sorted_set: PackLimits { entries: 8, value_bytes: 16 },
};

fn dump(loaded: &Loaded<'_>, compress: bool) -> Vec<u8> {
    let value = match loaded {
        Loaded::String(bytes) => ValueRef::String(bytes),
        Loaded::List(list) => ValueRef::List(list.view()),
        Loaded::Hash(hash) => ValueRef::Hash(hash.view()),
        Loaded::Set(set) => ValueRef::Set(set.view()),
        Loaded::SortedSet(set) => ValueRef::SortedSet(set.view()),
        Loaded::Stream(stream) => ValueRef::Stream(stream),
    };
    let mut out = Vec::new();
    write(value, &mut Writer::new(&mut out, compress));
    out
}

fuzz_target!(|data: &[u8]| {
    let mut compressed = Vec::new();
    if lzf::compress(data, &mut compressed, data.len()) {
        assert_eq!(lzf::decompress(&compressed, data.len()).as_deref(), Ok(data));
    }
    let Ok(loaded) = read(&mut Reader::new(data, STRING_BYTES_MAX), &LIMITS) else { return };
    let bytes = dump(&loaded, data.len() % 2 == 0);
    // A list's or a stream's nodes together may be longer than a string may be; nothing else grows.
    let mut reader = Reader::new(&bytes, u64::from(u32::MAX));
    let again = read(&mut reader, &LIMITS).expect("what was written is read");
    assert_eq!(reader.remaining(), 0);
    match (&loaded, &again) {
        // Whether a small one is packed depends on how it came.
        (Loaded::Hash(one), Loaded::Hash(two)) => assert_eq!(one.view().len(), two.view().len()),
        (Loaded::Set(one), Loaded::Set(two)) => assert_eq!(one.view().len(), two.view().len()),
        (Loaded::SortedSet(one), Loaded::SortedSet(two)) => assert_eq!(one.view().len(), two.view().len()),
        (one, two) => assert_eq!(one, two),
    }
});
