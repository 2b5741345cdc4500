//! Views of string values. Handlers read strings through a view, which hides how the string is
//! stored.

use pantala_base::number::{Decimal, parse_i64};
use pantala_engine::db::Held;
use pantala_resp::Reply;
use pantala_types::{LongDouble, Value};

/// The string value of a key.
#[derive(Clone, Copy)]
pub(crate) enum StringRef<'e> {
    /// Stored as an integer; the string is its decimal text.
    Int(i64),
    /// Stored as bytes.
    Bytes(&'e [u8]),
}

impl<'e> StringRef<'e> {
    /// Returns the string of an entry, or `None` if the value has another type.
    #[inline]
    pub(crate) fn of(held: Held<'e>) -> Option<Self> {
        match held {
            Held::Bytes(bytes) => Some(StringRef::Bytes(bytes)),
            Held::Int(value) => Some(StringRef::Int(value)),
            Held::Heap(Value::String(string)) => Some(StringRef::Bytes(string.as_bytes())),
            Held::Packed(..) | Held::Heap(_) => None,
        }
    }

    /// Replies with the string.
    #[inline]
    pub(crate) fn write(self, reply: &mut Reply<'_>) {
        match self {
            StringRef::Int(value) => reply.bulk_integer(value),
            StringRef::Bytes(bytes) => reply.bulk(bytes),
        }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(self) -> usize {
        self.with_bytes(<[u8]>::len)
    }

    /// Calls `work` with the bytes. The bytes of an integer exist only during the call.
    pub(crate) fn with_bytes<R>(self, work: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            StringRef::Int(value) => work(Decimal::new().format_i64(value)),
            StringRef::Bytes(bytes) => work(bytes),
        }
    }

    /// Returns the string as an integer, if it has the form of one.
    #[inline]
    pub(crate) fn integer(self) -> Option<i64> {
        match self {
            StringRef::Int(value) => Some(value),
            StringRef::Bytes(bytes) => parse_i64(bytes),
        }
    }

    /// Returns the string as a number, if it has the form of one.
    pub(crate) fn long_double(self) -> Option<LongDouble> {
        match self {
            StringRef::Int(value) => Some(LongDouble::from(value)),
            StringRef::Bytes(bytes) => LongDouble::parse(bytes),
        }
    }
}
