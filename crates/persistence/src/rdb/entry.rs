//! An entry of a file.

use pantala_types::rdb_value::{self, Dialect, Limits, Loaded, read_newer};

use super::{Error, Fault};

/// A key and its value, which is not decoded yet: that may be done by another thread.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Where it begins in the file (its expiry or, without one, its kind), bytes.
    pub offset: u64,
    /// Number of its database.
    pub db: u32,
    /// The key.
    pub key: &'a [u8],
    /// How the value is written ([`pantala_types::rdb_value::kind`]).
    pub kind: u8,
    /// What the numbers of kinds mean.
    pub dialect: Dialect,
    /// The value as it is written.
    pub body: &'a [u8],
    /// Where that begins in the file, bytes.
    pub body_offset: u64,
    /// When it expires, unix time in ms.
    pub expire_at_ms: Option<i64>,
    /// Since when it is idle, seconds.
    pub idle_s: Option<u64>,
    /// Its access counter.
    pub frequency: Option<u8>,
}

impl<'a> Entry<'a> {
    /// Decodes the value. `None`: it is a collection of nothing, or a hash whose fields have all expired at `now_ms`.
    ///
    /// # Errors
    /// The value is corrupt, or there is no memory for it.
    pub fn decode(&self, limits: &Limits, now_ms: i64) -> Result<Option<Loaded<'a>>, Error> {
        let mut reader = rdb_value::Reader::new(self.body, limits.string_bytes_max);
        let decoded = read_newer(self.kind, self.dialect, &mut reader, limits, now_ms);
        let failed = |fault, at: usize| Error { offset: self.body_offset + at as u64, fault };
        match decoded {
            Ok(loaded) if reader.remaining() == 0 => Ok(Some(loaded)),
            Ok(_) => Err(failed(Fault::Corrupt("a value is longer than its elements"), reader.position())),
            Err(rdb_value::Error::Empty) => Ok(None),
            // It was measured before: within it nothing ends too early but what is wrong.
            Err(rdb_value::Error::OutOfMemory) => Err(failed(Fault::OutOfMemory, 0)),
            Err(error) => Err(failed(Fault::Value(error), reader.position())),
        }
    }
}
