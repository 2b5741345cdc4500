//! Redis's data types: their values, encodings, and the algorithms behind their commands.
//!
//! The crate has no sockets, shards, clocks or random number generators. Times and random numbers
//! are arguments. A command handler looks up the key, calls a function of this crate, and encodes
//! the result.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | value | the contents of a key: inside the dictionary entry if small, otherwise a [`Value`] |
//! | encoding | the form of a value that `OBJECT ENCODING` shows: [`Encoding`] |
//! | packed | said of a small collection that is stored as one byte string: [`Collection`] |
//! | cut | the elements of a large collection at one instant, read in pieces: [`CutState`] |
//! | raw | said of a string longer than [`EMBSTR_LEN_MAX`] or changed by APPEND or SETRANGE |
//!
//! # Ownership
//!
//! A [`Value`] belongs to the dictionary entry that points to it, and so to the thread that holds
//! the shard. Values are never shared between threads, so they need no atomics. The functions of
//! this crate borrow their inputs and return plain structs.
//!
//! # Cost
//!
//! - [`RawString`]: 24 bytes, plus [`RawString::allocated_bytes`] of buffer. The buffer has the
//!   exact size after SET, and up to twice the length (at most 1 MiB more) after APPEND.
//! - [`encode`]: one pass over a string of at most 20 bytes. Longer strings aren't read.
//! - [`LongDouble`]: a usual number of INCRBYFLOAT (at most 19 digits and 27 decimals) allocates
//!   only the reply. Any other number takes big integers of at most 3 KiB.
//! - [`lcs`]: Redis fills a table with one cell per pair of bytes, and takes one step and 32 bits
//!   per cell. This crate takes one step per 64 cells and 1 bit per cell, with rows rounded up to
//!   64 cells.
//!
//! # Out of memory
//!
//! If the buffer of a string, a stream entry, an LCS table, a decompressed string or a loaded pack
//! can't be allocated, the function returns [`OutOfMemory`]. If the allocation of another
//! collection's elements or tables fails, the process aborts.
// Only two modules allow unsafe code: `thin` (heap blocks behind a one-word pointer) and `member`
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
