//! The error of reading a value.

use std::fmt;

use crate::OutOfMemory;
use crate::lzf::DecompressError;

/// The reason why a value can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes end before the end of the value.
    Truncated,
    /// The bytes are invalid, for this reason.
    Corrupt(&'static str),
    /// The value is an empty collection, which older versions of Redis wrote. Loaders of files skip
    /// keys with such values.
    Empty,
    /// The type is unknown or belongs to a module.
    UnknownKind(u8),
    /// The allocator failed.
    OutOfMemory,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Truncated => f.write_str("the value is truncated"),
            Error::Corrupt(what) => write!(f, "the value is corrupt: {what}"),
            Error::Empty => f.write_str("the value is an empty collection"),
            Error::UnknownKind(kind @ 6..=7) => write!(f, "the value belongs to a module (type {kind})"),
            Error::UnknownKind(kind) => write!(f, "the value has the unknown type {kind}"),
            Error::OutOfMemory => OutOfMemory.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<OutOfMemory> for Error {
    fn from(_: OutOfMemory) -> Self {
        Error::OutOfMemory
    }
}

impl From<DecompressError> for Error {
    fn from(error: DecompressError) -> Self {
        match error {
            DecompressError::Corrupt => Error::Corrupt("compressed string"),
            DecompressError::OutOfMemory => Error::OutOfMemory,
        }
    }
}
