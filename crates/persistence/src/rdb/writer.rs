//! The writer of RDB files: pieces in, bytes out.

use pantala_base::crc64::crc64;
use pantala_types::rdb_value::{self, ValueRef, kind_of, write_body};

use super::{MAGIC_REDIS, opcode};

/// Receives the bytes of a file.
pub trait Sink {
    /// Takes a chunk and leaves it empty. Returns `false` if writing has failed and no more chunks
    /// are wanted.
    fn take(&mut self, chunk: &mut Vec<u8>) -> bool;
}

/// The version of a written file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 10, as Redis 7.0 writes it.
    Redis7_0,
    /// Version 12, as Redis 7.4 and 8.0 write it. Hash fields may have an expiry.
    Redis7_4,
}

impl Version {
    /// Returns the version's number.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Version::Redis7_0 => rdb_value::VERSION,
            Version::Redis7_4 => rdb_value::VERSION_NEWEST,
        }
    }
}

/// Attributes of an entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// The entry's expiry, Unix time in ms.
    pub expire_at_ms: Option<i64>,
    /// The entry's idle time, s.
    pub idle_s: Option<u64>,
    /// The entry's access counter.
    pub frequency: Option<u8>,
}

/// Writes a file to a [`Sink`].
pub struct Writer<'s> {
    out: Vec<u8>,
    checksum: Option<u64>,
    compresses: bool,
    is_wanted: bool,
    sink: &'s mut dyn Sink,
}

impl<'s> Writer<'s> {
    /// Starts a file of this version. With `compresses`, long strings are compressed if that saves
    /// enough space (`rdbcompression`); with `checks`, the file ends with a checksum
    /// (`rdbchecksum`).
    pub fn new(version: Version, compresses: bool, checks: bool, sink: &'s mut dyn Sink) -> Self {
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC_REDIS);
        out.extend_from_slice(format!("{:04}", version.number()).as_bytes());
        Writer::after_head(out, compresses, checks, sink)
    }

    /// Continues a file after its head.
    pub fn after_head(head: Vec<u8>, compresses: bool, checks: bool, sink: &'s mut dyn Sink) -> Self {
        Writer { out: head, checksum: checks.then_some(0), compresses, is_wanted: true, sink }
    }

    /// Returns whether the sink accepts more bytes.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Writes an auxiliary field.
    pub fn aux(&mut self, name: &[u8], value: &[u8]) {
        self.write(|writer| {
            writer.put(&[opcode::AUX]);
            writer.put_string(name);
            writer.put_string(value);
        });
    }

    /// Writes a function library.
    pub fn function(&mut self, text: &[u8]) {
        self.write(|writer| {
            writer.put(&[opcode::FUNCTION]);
            writer.put_string(text);
        });
    }

    /// Starts a database with `keys` keys, `expiring` of which have an expiry.
    pub fn database(&mut self, number: u32, keys: u64, expiring: u64) {
        self.write(|writer| {
            writer.put(&[opcode::SELECT_DB]);
            writer.put_length(number.into());
            writer.put(&[opcode::RESIZE_DB]);
            writer.put_length(keys);
            writer.put_length(expiring);
        });
    }

    /// Selects the database of the entries that follow.
    pub fn select(&mut self, number: u32) {
        self.write(|writer| {
            writer.put(&[opcode::SELECT_DB]);
            writer.put_length(number.into());
        });
    }

    /// Writes a key and its value.
    pub fn entry(&mut self, key: &[u8], value: ValueRef<'_>, attributes: Attributes) {
        self.write(|writer| append_entry(writer, key, value, attributes));
    }

    /// Ends the file. Returns whether the sink has taken all bytes.
    pub fn finish(mut self) -> bool {
        self.out.push(opcode::END);
        let checksum = self.checksum.map_or(0, |checksum| crc64(checksum, &self.out));
        self.out.extend_from_slice(&checksum.to_le_bytes());
        self.is_wanted && self.sink.take(&mut self.out)
    }

    fn write(&mut self, piece: impl FnOnce(&mut rdb_value::Writer<'_>)) {
        let Writer { out, checksum, compresses, is_wanted, sink } = self;
        let mut drain = |chunk: &mut Vec<u8>| {
            if let Some(checksum) = checksum {
                *checksum = crc64(*checksum, chunk);
            }
            *is_wanted = *is_wanted && sink.take(chunk);
            chunk.clear();
        };
        piece(&mut rdb_value::Writer::draining(out, *compresses, &mut drain));
    }
}

/// Appends a key and its value.
pub(super) fn append_entry(
    writer: &mut rdb_value::Writer<'_>,
    key: &[u8],
    value: ValueRef<'_>,
    attributes: Attributes,
) {
    append_head(writer, key, value, attributes);
    write_body(value, writer);
}

/// Appends the bytes that precede a value's body.
pub(super) fn append_head(writer: &mut rdb_value::Writer<'_>, key: &[u8], value: ValueRef<'_>, attributes: Attributes) {
    if let Some(at_ms) = attributes.expire_at_ms {
        writer.put(&[opcode::EXPIRE_MS]);
        writer.put(&at_ms.to_le_bytes());
    }
    if let Some(idle_s) = attributes.idle_s {
        writer.put(&[opcode::IDLE]);
        writer.put_length(idle_s);
    }
    if let Some(frequency) = attributes.frequency {
        writer.put(&[opcode::FREQUENCY, frequency]);
    }
    writer.put(&[kind_of(value)]);
    writer.put_string(key);
}
