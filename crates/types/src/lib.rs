//! Redis's data types: their values, encodings, and the algorithms behind their commands.
//!
//! Bytes in, bytes out: no sockets, shards, clocks or randomness. A command handler looks up the
//! key, calls one of these functions, and encodes the result. Times and random numbers are
//! arguments.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | value | the contents of a key: in its dictionary entry if small, otherwise a [`Value`] |
//! | encoding | the form of a value, as named by `OBJECT ENCODING`: [`Encoding`] |
//! | packed | a small collection as one string of bytes: [`Collection`] |
//! | cut | the elements of a large collection at one instant, read in pieces: [`CutState`] |
//! | raw | a string longer than [`EMBSTR_LEN_MAX`], or one changed in place (APPEND) |
//!
//! # Ownership
//!
//! A [`Value`] belongs to the dictionary entry that points to it, and thus to the holder of the
//! shard. Values are never shared between threads, so they need no atomics. The functions borrow
//! their inputs and return plain structs.
//!
//! # Cost
//!
//! - [`RawString`]: 24 bytes, plus [`RawString::allocated_bytes`] of buffer. The buffer has the
//!   exact size after SET, and up to twice the length (at most 1 MiB more) after APPEND.
//! - [`encode`]: one pass over at most 20 bytes; a longer string isn't read.
//! - [`LongDouble`]: the usual numbers of INCRBYFLOAT (up to 19 digits, 27 decimals) allocate only
//!   the reply; others take big integers of at most 3 KiB.
//! - [`lcs`]: one step per 64 cells of Redis's table, and one bit of memory per cell, with rows
//!   rounded up to 64 cells. (Redis takes a step and 32 bits per cell.)
//!
//! # Out of memory
//!
//! The buffers of strings, stream entries, LCS tables, decompressed strings and loaded packs are
//! reserved fallibly: a failure returns [`OutOfMemory`]. The elements and tables of other
//! collections are not: if their allocation fails, the process aborts.
// Only two modules allow unsafe code: `thin` (heap blocks behind a thin pointer) and `member`
// (words that may be such a pointer).
#![deny(unsafe_code)]

pub mod access;
pub mod bitmap;
mod chunked;
pub mod collection;
mod cut;
pub mod double;
mod encoding;
pub mod geo;
pub mod hash;
pub mod hyperloglog;
pub mod lcs;
pub mod list;
pub mod longdouble;
pub mod lzf;
pub mod member;
pub mod pack;
pub mod pair;
mod range;
mod raw_string;
pub mod rdb_value;
pub mod set;
pub mod sorted_set;
pub mod sorting;
pub mod stream;
pub mod table;
#[cfg(test)]
mod testing;
mod thin;
mod value;

pub use collection::{Collection, INLINE_PACKED_BYTES_MAX, PackedForm};
pub use cut::{CutId, CutState, PieceMax};
pub use encoding::{
    EMBSTR_LEN_MAX, Encoded, Encoding, SHARED_INTEGER_REFCOUNT, SHARED_INTEGERS, encode, is_shared_integer, parse_i64,
    string_encoding,
};
pub use hash::{Hash, HashLimits, HashView};
pub use list::List;
pub use longdouble::LongDouble;
pub use range::{StringTooLong, check_string_length, getrange};
pub use raw_string::{OutOfMemory, PREALLOCATION_BYTES_MAX, RawString};
pub use set::{Set, SetView};
pub use sorted_set::SortedSet;
pub use stream::Stream;
pub use table::Table;
pub use thin::ThinBytes;
pub use value::Value;
