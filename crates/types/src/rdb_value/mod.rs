//! Values as RDB files and `DUMP` payloads hold them: version 10, that of Redis 7.0.
//!
//! A value is a byte that says how it is written ([`kind`]) and then its bytes; [`write`] and [`read`] are for the two together.
//! Written is what Redis 7.0 writes for the encoding that it would have. Read are all forms that Redis 7.0 reads, those of
//! versions back to 2.2 too, but for modules.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | length | 1, 2, 5 or 9 bytes, by its size; also what a count or an id is written as |
//! | string | a length and bytes; or an integer of 1, 2 or 4 bytes; or LZF: two lengths and compressed bytes |
//! | listpack, ziplist, zipmap, intset | several elements in one string |
//! | payload | what `DUMP` answers: a value, the version (2 bytes), a CRC64 of all before it: [`payload`] |
//!
//! # What comes from outside is not believed
//!
//! Everything that is read is checked before it becomes a value: every entry of every listpack, order and duplicates where
//! the type has none, every length against the bytes that are there. Memory is taken only for bytes that are there; what LZF
//! claims to expand to, only as far as it can, and up to [`Limits::string_bytes_max`]. Entries that Redis would have encoded
//! otherwise (an integer as text) are encoded anew, for equal values must have equal bytes here.

mod error;
mod listpack;
pub mod payload;
mod read;
mod read_sorted_set;
mod read_stream;
mod reader;
#[cfg(test)]
mod tests;
mod write;
mod writer;
mod ziplist;
mod zipmap;

use std::borrow::Cow;

use crate::list::{List, ListView, NodeLimit};
use crate::sorted_set::{PackLimits, SortedSetView};
use crate::{Hash, HashLimits, HashView, Set, SetView, SortedSet, Stream};

pub use error::Error;
pub use read::read;
pub use reader::Reader;
pub use write::write;
pub use writer::Writer;

/// The version that is written, and the newest that is read.
pub const VERSION: u16 = 10;

/// The byte in front of a value.
pub mod kind {
    /// A string.
    pub const STRING: u8 = 0;
    /// A list, element by element.
    pub const LIST: u8 = 1;
    /// A set, member by member.
    pub const SET: u8 = 2;
    /// A sorted set, member by member, scores as text.
    pub const ZSET: u8 = 3;
    /// A hash, field by field.
    pub const HASH: u8 = 4;
    /// A sorted set, member by member.
    pub const ZSET_2: u8 = 5;
    /// A hash in a zipmap.
    pub const HASH_ZIPMAP: u8 = 9;
    /// A list in a ziplist.
    pub const LIST_ZIPLIST: u8 = 10;
    /// A set in an intset.
    pub const SET_INTSET: u8 = 11;
    /// A sorted set in a ziplist.
    pub const ZSET_ZIPLIST: u8 = 12;
    /// A hash in a ziplist.
    pub const HASH_ZIPLIST: u8 = 13;
    /// A list in several ziplists.
    pub const LIST_QUICKLIST: u8 = 14;
    /// A stream as Redis 5.0 and 6 wrote it: without what 7.0 counts.
    pub const STREAM_LISTPACKS: u8 = 15;
    /// A hash in a listpack.
    pub const HASH_LISTPACK: u8 = 16;
    /// A sorted set in a listpack.
    pub const ZSET_LISTPACK: u8 = 17;
    /// A list in several listpacks and large elements.
    pub const LIST_QUICKLIST_2: u8 = 18;
    /// A stream.
    pub const STREAM_LISTPACKS_2: u8 = 19;
}

/// How a node of a list is written: one large element.
const NODE_PLAIN: u64 = 1;
/// How a node of a list is written: a listpack.
const NODE_PACKED: u64 = 2;

/// Longest listpack that Redis makes, bytes.
const LISTPACK_BYTES_MAX: usize = 1 << 30;

/// A value, to be written.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// A string kept as an integer.
    Int(i64),
    /// Any other string.
    String(&'a [u8]),
    /// A list.
    List(ListView<'a>),
    /// A hash.
    Hash(HashView<'a>),
    /// Of a hash what is there at a time, unix time in ms: fields whose time has come are left out.
    HashAt(HashView<'a>, i64),
    /// A set.
    Set(SetView<'a>),
    /// A sorted set.
    SortedSet(SortedSetView<'a>),
    /// A stream.
    Stream(&'a Stream),
}

/// A value that was read. Collections aren't empty, but for a stream.
#[derive(Debug, PartialEq)]
pub enum Loaded<'a> {
    /// A string.
    String(Cow<'a, [u8]>),
    /// A list.
    List(List),
    /// A hash.
    Hash(Hash),
    /// A set.
    Set(Set),
    /// A sorted set.
    SortedSet(SortedSet),
    /// A stream, which may have no entries.
    Stream(Box<Stream>),
}

/// What a value that is read may be, by the settings: they choose its encoding, too.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest string, bytes (`proto-max-bulk-len`): what is longer after decompression is refused.
    pub string_bytes_max: u64,
    /// Of a list's nodes.
    pub list_node: NodeLimit,
    /// Of packed hashes.
    pub hash: HashLimits,
    /// `set-max-intset-entries`.
    pub set_intset_entries_max: usize,
    /// Of packed sorted sets.
    pub sorted_set: PackLimits,
}
