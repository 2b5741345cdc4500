//! An entry of a file: a key and its encoded value.

use pantala_types::rdb_value::{self, Dialect, Limits, Loaded, read_newer};

use super::{Error, Fault};

/// A key and its encoded value, which another thread may decode.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The entry's offset in the file, bytes. The entry starts with its first attribute (expiry,
    /// idle time or access counter) or, if it has none, with its type byte.
    pub offset: u64,
    /// The number of the key's database.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
    /// The value's type byte ([`pantala_types::rdb_value::kind`]).
    pub kind: u8,
    /// The dialect (Redis's or Valkey's) that defines the type byte.
    pub dialect: Dialect,
    /// The encoded value.
    pub body: &'a [u8],
    /// The offset of the encoded value in the file, bytes.
    pub body_offset: u64,
    /// The key's expiry, Unix time in ms.
    pub expire_at_ms: Option<i64>,
    /// The key's idle time, s.
    pub idle_s: Option<u64>,
    /// The key's access counter.
    pub frequency: Option<u8>,
}

impl<'a> Entry<'a> {
    /// Decodes the value. Returns `None` for an empty collection, and for a hash all of whose
    /// fields have expired at `now_ms`.
    ///
    /// # Errors
    /// The value is corrupt, or memory is exhausted.
    pub fn decode(&self, limits: &Limits, now_ms: i64) -> Result<Option<Loaded<'a>>, Error> {
        let mut reader = rdb_value::Reader::new(self.body, limits.string_bytes_max);
        let decoded = read_newer(self.kind, self.dialect, &mut reader, limits, now_ms);
        let failed = |fault, at: usize| Error { offset: self.body_offset + at as u64, fault };
        match decoded {
            Ok(loaded) if reader.remaining() == 0 => Ok(Some(loaded)),
            Ok(_) => Err(failed(Fault::Corrupt("a value is longer than its elements"), reader.position())),
            Err(rdb_value::Error::Empty) => Ok(None),
            Err(rdb_value::Error::OutOfMemory) => Err(failed(Fault::OutOfMemory, 0)),
            // All bytes of the value are present, so `Truncated` means that a length in it is
            // wrong.
            Err(error) => Err(failed(Fault::Value(error), reader.position())),
        }
    }
}
