//! Values in RDB files and `DUMP` payloads, in RDB version 10, the version of Redis 7.0.
//!
//! A value is a type byte ([`kind`]) and a body. [`write()`] produces the same form as Redis 7.0.
//! [`read()`] accepts all forms that Redis 7.0 reads, including those of versions back to 2.2,
//! except modules. `read_newer` also accepts the forms of Redis up to 8.0 and of Valkey. Files may
//! contain these newer forms, while `RESTORE` rejects them. [`extent()`] finds the end of a value
//! without decoding the value.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | length | 1, 2, 5 or 9 bytes, depending on the value; counts and ids have the same form |
//! | string | length and bytes; integer of 1, 2 or 4 bytes; or LZF: two lengths and bytes |
//! | listpack, ziplist, zipmap, intset | several elements in one string |
//! | payload | a value, the RDB version (2 bytes), and a CRC64 of value and version: [`payload`] |
//!
//! # Untrusted input
//!
//! All input is checked before it becomes a value:
//!
//! - every entry of every listpack,
//! - the order of elements and the absence of duplicates, where the type requires them,
//! - every length, which must not exceed the available bytes.
//!
//! Memory is only allocated for bytes that exist. For LZF, memory is only allocated up to the
//! possible expansion of the compressed bytes and up to [`Limits::string_bytes_max`]. If an entry
//! of a listpack has an encoding that Redis wouldn't use (an integer as text), it is encoded again,
//! because equal values must have equal bytes in a pack.

#[cfg(test)]
mod cut_tests;
mod error;
mod extent;
mod listpack;
pub mod payload;
mod read;
mod read_newer;
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
pub use extent::{Extent, extent, string_extent};
pub use read::{read, read_body};
pub use read_newer::read_newer;
pub use reader::Reader;
pub use write::{begin_cut, cut_id, end_cut, kind_of, write, write_body, write_cut};
pub use writer::{DRAIN_BYTES, Drain, Writer};

/// The RDB version of written values, and the newest version that `RESTORE` accepts.
pub const VERSION: u16 = 10;

/// The newest RDB version of Redis whose values are read from files ([`mod@read_newer`]). Files
/// with expiry times of hash fields have this version.
pub const VERSION_NEWEST: u16 = 12;

/// The server that wrote a file. The type bytes 22 and above mean different forms in Redis and in
/// Valkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Redis.
    Redis,
    /// Valkey, from RDB version 80.
    Valkey,
}

/// The type byte in front of a value.
pub mod kind {
    /// A string.
    pub const STRING: u8 = 0;
    /// A list, element by element.
    pub const LIST: u8 = 1;
    /// A set, member by member.
    pub const SET: u8 = 2;
    /// A sorted set, member by member, with scores as text.
    pub const ZSET: u8 = 3;
    /// A hash, field by field.
    pub const HASH: u8 = 4;
    /// A sorted set, member by member, with scores as doubles.
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
    /// A stream as written by Redis 5.0 and 6: without the counters of 7.0.
    pub const STREAM_LISTPACKS: u8 = 15;
    /// A hash in a listpack.
    pub const HASH_LISTPACK: u8 = 16;
    /// A sorted set in a listpack.
    pub const ZSET_LISTPACK: u8 = 17;
    /// A list of nodes, each a listpack or a single large element.
    pub const LIST_QUICKLIST_2: u8 = 18;
    /// A stream.
    pub const STREAM_LISTPACKS_2: u8 = 19;
    /// A set in a listpack, of Redis 7.2.
    pub const SET_LISTPACK: u8 = 20;
    /// A stream of Redis 7.2, which also stores when a consumer was last active.
    pub const STREAM_LISTPACKS_3: u8 = 21;
    /// A hash with fields that expire, in the form of the release candidates of Redis 7.4, with
    /// absolute times. In a file of Valkey, this byte denotes Valkey's form of such a hash.
    pub const HASH_METADATA_PRE_GA: u8 = 22;
    /// A hash like [`HASH_METADATA_PRE_GA`], but in a listpack.
    pub const HASH_LISTPACK_EX_PRE_GA: u8 = 23;
    /// A hash with fields that expire, of Redis 7.4.
    pub const HASH_METADATA: u8 = 24;
    /// A hash like [`HASH_METADATA`], but in a listpack.
    pub const HASH_LISTPACK_EX: u8 = 25;
    /// A value of a module of a release candidate of Redis 4.0.
    pub const MODULE_PRE_GA: u8 = 6;
    /// A value of a module.
    pub const MODULE: u8 = 7;
}

/// Form of a list node that is one large element.
const NODE_PLAIN: u64 = 1;
/// Form of a list node that is a listpack.
const NODE_PACKED: u64 = 2;

/// Maximum size of a listpack in Redis, in bytes.
const LISTPACK_BYTES_MAX: usize = 1 << 30;

/// A value to write.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// A string stored as an integer.
    Int(i64),
    /// Any other string.
    String(&'a [u8]),
    /// A list.
    List(ListView<'a>),
    /// A hash.
    Hash(HashView<'a>),
    /// A hash and a Unix time in milliseconds. Fields that are expired at this time are omitted.
    HashAt(HashView<'a>, i64),
    /// Like [`ValueRef::HashAt`], but written with the expiry times of the fields, in the form of
    /// Redis 7.4 (RDB version 12).
    ExpiringHash(HashView<'a>, i64),
    /// A set.
    Set(SetView<'a>),
    /// A sorted set.
    SortedSet(SortedSetView<'a>),
    /// A stream.
    Stream(&'a Stream),
}

/// A value that was read. Of the collections, only a stream may be empty.
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

/// The settings that limit a value and determine its encoding.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a string after decompression, in bytes (`proto-max-bulk-len`).
    pub string_bytes_max: u64,
    /// The limits of list nodes.
    pub list_node: NodeLimit,
    /// The limits of packed hashes.
    pub hash: HashLimits,
    /// `set-max-intset-entries`.
    pub set_intset_entries_max: usize,
    /// The limits of packed sorted sets.
    pub sorted_set: PackLimits,
}
