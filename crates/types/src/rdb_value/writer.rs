//! Encodes lengths, strings and numbers, of which all values consist.

use pantala_base::number::Decimal;

use crate::{lzf, parse_i64};

/// First bits of a 14-bit length. The first bits of a 6-bit length are zeros.
pub(super) const LEN_14_BITS: u8 = 0x40;
/// The byte before a 32-bit length.
pub(super) const LEN_32_BITS: u8 = 0x80;
/// The byte before a 64-bit length.
pub(super) const LEN_64_BITS: u8 = 0x81;
/// First bits of a string that is encoded as an integer or by LZF.
const ENCODED: u8 = 0xc0;
/// A string encoded as an integer of one byte.
pub(super) const ENC_INT8: u8 = 0;
/// A string encoded as an integer of two bytes.
pub(super) const ENC_INT16: u8 = 1;
/// A string encoded as an integer of four bytes.
pub(super) const ENC_INT32: u8 = 2;
/// A string encoded by LZF.
pub(super) const ENC_LZF: u8 = 3;

/// Maximum length of the text of a 32-bit integer.
const INTEGER_LEN_MAX: usize = 11;
/// Strings up to this length are never compressed.
const UNCOMPRESSED_BYTES_MAX: usize = 20;
/// Minimum saving of a compressed string, in bytes.
const SAVED_BYTES_MIN: usize = 4;
/// Maximum initial capacity of a compressed string, in bytes.
const COMPRESSED_BYTES_RESERVED: usize = 1024;

/// Size at which a [`Writer`]'s buffer is drained, in bytes.
pub const DRAIN_BYTES: usize = 256 * 1024;

/// A function that consumes the bytes of a [`Writer`]'s buffer and empties the buffer.
pub type Drain<'a> = &'a mut dyn FnMut(&mut Vec<u8>);

/// A writer that appends to a vector.
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    compress: bool,
    drain: Option<Drain<'a>>,
}

impl<'a> Writer<'a> {
    /// Returns a writer that appends to `out`. With `compress` (`rdbcompression`), a long string is
    /// compressed if this saves at least 4 bytes.
    pub fn new(out: &'a mut Vec<u8>, compress: bool) -> Self {
        Writer { out, compress, drain: None }
    }

    /// Returns a writer like [`Writer::new`] that calls `drain` after a string if `out` then has at
    /// least [`DRAIN_BYTES`]. Writing a large collection thus takes bounded memory.
    pub fn draining(out: &'a mut Vec<u8>, compress: bool, drain: Drain<'a>) -> Self {
        Writer { out, compress, drain: Some(drain) }
    }

    /// Drains the buffer if it is full and the writer has a drain.
    #[inline]
    pub(super) fn drain_if_full(&mut self) {
        if self.out.len() >= DRAIN_BYTES
            && let Some(drain) = &mut self.drain
        {
            drain(self.out);
        }
    }

    /// Appends raw bytes.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends a length, or another number.
    #[inline]
    pub fn put_length(&mut self, length: u64) {
        match length {
            0..=0x3f => self.out.push(length as u8),
            0x40..=0x3fff => self.put(&[LEN_14_BITS | (length >> 8) as u8, length as u8]),
            0x4000..=0xffff_ffff => {
                self.out.push(LEN_32_BITS);
                self.put(&(length as u32).to_be_bytes());
            }
            _ => {
                self.out.push(LEN_64_BITS);
                self.put(&length.to_be_bytes());
            }
        }
    }

    /// Appends a string.
    #[inline]
    pub fn put_string(&mut self, bytes: &[u8]) {
        let is_integer =
            bytes.len() <= INTEGER_LEN_MAX && parse_i64(bytes).is_some_and(|value| self.short_integer(value));
        if !is_integer {
            self.bytes(bytes);
        }
        self.drain_if_full();
    }

    /// Appends the text of an integer as a string.
    #[inline]
    pub fn put_integer(&mut self, value: i64) {
        if !self.short_integer(value) {
            self.bytes(Decimal::new().format_i64(value));
        }
    }

    /// Appends a string that isn't an integer.
    fn bytes(&mut self, bytes: &[u8]) {
        if self.compress && bytes.len() > UNCOMPRESSED_BYTES_MAX && self.compressed(bytes) {
            return;
        }
        self.put_length(bytes.len() as u64);
        self.put(bytes);
    }

    /// Appends an integer of at most 32 bits in integer form. Returns `false`, with nothing
    /// appended, if the integer is larger.
    fn short_integer(&mut self, value: i64) -> bool {
        let le = value.to_le_bytes();
        let (encoding, size) = match value {
            -0x80..=0x7f => (ENC_INT8, 1),
            -0x8000..=0x7fff => (ENC_INT16, 2),
            -0x8000_0000..=0x7fff_ffff => (ENC_INT32, 4),
            _ => return false,
        };
        self.out.push(ENCODED | encoding);
        self.put(&le[..size]);
        true
    }

    fn compressed(&mut self, bytes: &[u8]) -> bool {
        let bytes_max = bytes.len() - SAVED_BYTES_MIN;
        // For a short string, reserves the maximum, because reallocations would cost more. For a
        // long string, which usually compresses well, reserves less.
        let mut compressed = Vec::with_capacity(bytes_max.min(COMPRESSED_BYTES_RESERVED));
        if !lzf::compress(bytes, &mut compressed, bytes_max) {
            return false;
        }
        self.out.push(ENCODED | ENC_LZF);
        self.put_length(compressed.len() as u64);
        self.put_length(bytes.len() as u64);
        self.put(&compressed);
        true
    }
}
