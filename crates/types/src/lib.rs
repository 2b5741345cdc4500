//! Redis's data types: what a value is, how it is encoded, and the algorithms behind its commands.
//!
//! Everything here is bytes in and bytes out: no socket, no shard, no clock, no randomness. A command handler looks the
//! key up, calls one of these functions, and encodes what it returns. Time and random numbers are arguments.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | value | what a key holds. A small string lives inline in its dictionary entry; [`Value`] is what lives on the heap |
//! | encoding | the form of a value, by the name that `OBJECT ENCODING` shows: [`Encoding`] |
//! | raw | a string longer than [`EMBSTR_LEN_MAX`], or one that was changed in place (APPEND, SETRANGE), however short |
//! | access word | 24 bits per entry: when it was last read (LRU), or how often (LFU): [`access`] |
//!
//! # Who owns what
//!
//! A [`Value`] belongs to the dictionary entry that points at it, hence to the shard's holder: nothing here is shared and
//! nothing needs an atomic. The functions borrow their inputs and return plain structs.
//!
//! # What it costs
//!
//! | what | cost |
//! | --- | --- |
//! | [`RawString`] | 24 bytes, and [`RawString::allocated_bytes`] of buffer: exact after SET, up to twice its length (at most 1 MiB more) after APPEND |
//! | [`encode`] | one pass over at most 20 bytes; a longer string is not looked at |
//! | [`LongDouble`] | INCRBYFLOAT's usual numbers (up to 19 digits, 27 decimals) take no allocation beyond the reply; others go through big integers of at most 3 KiB |
//! | [`lcs`] | one step per 64 cells of Redis's table and 1 to 2 bits of memory per cell (Redis: a step and 32 bits per cell); rows are rounded up to 64 cells |
//!
//! # Not running out of memory
//!
//! A buffer whose size a client chooses is reserved fallibly and a refusal is [`OutOfMemory`], not an abort.
// Only the module of thin pieces of memory, and that of words that may be one, have any.
#![deny(unsafe_code)]

pub mod access;
pub mod bitmap;
mod chunked;
pub mod collection;
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
