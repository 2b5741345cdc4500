//! Errors of reading a file.

use std::fmt;

use pantala_types::rdb_value;

/// An error in a file, with its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Offset in bytes from the start of the file. It is the offset of the invalid item (a piece or
    /// a value). In a truncated file, it is the offset of the first missing byte.
    pub offset: u64,
    /// The kind of error.
    pub fault: Fault,
}

/// The kind of error in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file does not start with the magic of an RDB file.
    Signature,
    /// The version isn't supported, or isn't a number.
    Version(String),
    /// The file is truncated.
    Truncated,
    /// A length, a string or a number is invalid.
    Corrupt(&'static str),
    /// A byte is neither an opcode nor a type byte.
    UnknownKind(u8),
    /// The file has values or data of the module with this name.
    Module(String),
    /// A value is invalid.
    Value(rdb_value::Error),
    /// The number of a database exceeds the server's limit.
    Database(u64),
    /// A key occurs twice.
    Duplicate(Vec<u8>),
    /// A function library can't be loaded, for this reason.
    Function(String),
    /// The checksum is wrong. The fields are the computed checksum and the one in the file.
    Checksum(u64, u64),
    /// The allocator failed.
    OutOfMemory,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Signature => f.write_str("Wrong signature trying to load DB from file"),
            Fault::Version(version) => write!(f, "Can't handle RDB format version {version}"),
            Fault::Truncated => f.write_str("The file is truncated: it ends before its end marker"),
            Fault::Corrupt(what) => write!(f, "The file is corrupt: {what}"),
            Fault::UnknownKind(kind) => write!(f, "Unknown RDB encoding type {kind}"),
            Fault::Module(name) => {
                write!(f, "The RDB file contains module data I can't load: no matching module type '{name}'")
            }
            Fault::Value(error) => write!(f, "Corrupt value: {error}"),
            Fault::Database(number) => {
                write!(
                    f,
                    "Data file was created with a server configured to handle more databases: it has number {number}"
                )
            }
            Fault::Duplicate(key) => write!(f, "RDB has duplicated key '{}'", key.escape_ascii()),
            Fault::Function(why) => write!(f, "Failed loading library, {why}"),
            Fault::Checksum(content, file) => {
                write!(f, "Wrong RDB checksum: expected {file:x}, got {content:x}")
            }
            Fault::OutOfMemory => f.write_str("Out of memory"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at offset {})", self.fault, self.offset)
    }
}

impl std::error::Error for Error {}

impl From<rdb_value::Error> for Fault {
    fn from(error: rdb_value::Error) -> Self {
        match error {
            rdb_value::Error::Truncated => Fault::Truncated,
            rdb_value::Error::UnknownKind(kind) => Fault::UnknownKind(kind),
            rdb_value::Error::Corrupt(what) => Fault::Corrupt(what),
            rdb_value::Error::OutOfMemory => Fault::OutOfMemory,
            rdb_value::Error::Empty => Fault::Value(error),
        }
    }
}
