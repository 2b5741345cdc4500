//! RDB files: their format, a reader and writers.
//!
//! ```text
//! magic      REDIS and a version of 4 digits, or VALKEY and one of 3
//! pieces     auxiliary fields, functions, databases with their entries
//! end        ff, then a CRC64 of all bytes before it (8 bytes, little-endian; 0: no checksum)
//! ```
//!
//! A piece starts with one byte, its opcode ([`opcode`]). An entry starts instead with the type
//! byte of its value ([`pantala_types::rdb_value::kind`]), followed by the key and the encoded
//! value.
//!
//! | file | contents |
//! | --- | --- |
//! | `reader` | bytes in, pieces out: [`Reader`] |
//! | `entry` | an entry, and its value decoded: [`Entry`] |
//! | `writer` | pieces in, bytes out: [`Writer`] |
//! | `dataset` | writes a whole keyspace, at once ([`write_dataset`]) or in parts ([`Head`]) |
//! | `check` | checks a file for `check-rdb`: [`Check`] |

mod check;
mod dataset;
mod entry;
mod error;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use check::{Check, Findings};
pub use dataset::{EntryForm, Head, HeadFields, Tail, append_select, write_dataset};
pub use entry::Entry;
pub use error::{Error, Fault};
pub use reader::{Next, Piece, Reader};
pub use writer::{Attributes, Sink, Version, Writer};

/// The first byte of a piece that isn't an entry.
pub mod opcode {
    /// State of a slot that a Valkey node is importing.
    pub const SLOT_IMPORT: u8 = 243;
    /// Size of a slot, as a hint.
    pub const SLOT_INFO: u8 = 244;
    /// A library of functions.
    pub const FUNCTION: u8 = 245;
    /// A library of functions, as release candidates of Redis 7.0 wrote it.
    pub const FUNCTION_PRE_GA: u8 = 246;
    /// Data of a module in addition to its values.
    pub const MODULE_AUX: u8 = 247;
    /// Idle time of the next entry, s.
    pub const IDLE: u8 = 248;
    /// The access counter of the next entry.
    pub const FREQUENCY: u8 = 249;
    /// An auxiliary field: two strings.
    pub const AUX: u8 = 250;
    /// Numbers of keys and of keys with an expiry in the database, as a hint.
    pub const RESIZE_DB: u8 = 251;
    /// Expiry of the next entry, Unix time in ms.
    pub const EXPIRE_MS: u8 = 252;
    /// Expiry of the next entry, Unix time in s.
    pub const EXPIRE_S: u8 = 253;
    /// The database of the entries that follow.
    pub const SELECT_DB: u8 = 254;
    /// The end of the pieces.
    pub const END: u8 = 255;
}

/// Returns the head of a file that has only a part of another file's keys, and no functions or
/// auxiliary fields. `head` is the head of that file, in Redis's format.
#[must_use]
pub fn head_of_part(head: &[u8]) -> Vec<u8> {
    head[..HEADER_BYTES].to_vec()
}

/// Magic of Redis's files. Four digits follow it.
const MAGIC_REDIS: &[u8] = b"REDIS";
/// Magic of Valkey's files. Three digits follow it.
const MAGIC_VALKEY: &[u8] = b"VALKEY";
/// Bytes of magic and version.
const HEADER_BYTES: usize = 9;
/// The only supported version of Valkey's files.
const VERSION_OF_VALKEY: u32 = 80;
/// The oldest version of Redis's files.
const VERSION_OLDEST: u32 = 1;
/// The lowest version of Redis's files that end with a checksum.
const VERSION_WITH_CHECKSUM: u32 = 5;
/// Bytes of the checksum.
const CHECKSUM_BYTES: usize = 8;
