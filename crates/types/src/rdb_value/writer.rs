//! Lengths, strings and numbers into bytes.

use pantala_base::number::Decimal;

use crate::{lzf, parse_i64};

/// First bits of a length of 14 bits. (One of 6 bits begins with zeros.)
pub(super) const LEN_14_BITS: u8 = 0x40;
/// Before a length of 32 bits.
pub(super) const LEN_32_BITS: u8 = 0x80;
/// Before a length of 64 bits.
pub(super) const LEN_64_BITS: u8 = 0x81;
/// First bits of a string that isn't a length and bytes.
const ENCODED: u8 = 0xc0;
/// An integer of a byte.
pub(super) const ENC_INT8: u8 = 0;
/// An integer of two bytes.
pub(super) const ENC_INT16: u8 = 1;
/// An integer of four bytes.
pub(super) const ENC_INT32: u8 = 2;
/// Compressed bytes.
pub(super) const ENC_LZF: u8 = 3;

/// Longest text that may be an integer of 32 bits.
const INTEGER_LEN_MAX: usize = 11;
/// Strings up to this length are never compressed.
const UNCOMPRESSED_BYTES_MAX: usize = 20;
/// Compression must save so many bytes.
const SAVED_BYTES_MIN: usize = 4;

/// Adds to a vector.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
    compress: bool,
}

impl<'a> Writer<'a> {
    /// A writer that adds to `out`. `compress`: long strings are compressed where it saves something (`rdbcompression`).
    pub fn new(out: &'a mut Vec<u8>, compress: bool) -> Self {
        Writer { out, compress }
    }

    /// Bytes as they are.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// A length, or another number.
    #[inline]
    pub fn length(&mut self, length: u64) {
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

    /// A string.
    #[inline]
    pub fn string(&mut self, bytes: &[u8]) {
        if bytes.len() <= INTEGER_LEN_MAX
            && let Some(value) = parse_i64(bytes)
            && self.short_integer(value)
        {
            return;
        }
        self.bytes(bytes);
    }

    /// A string that is the text of an integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        if !self.short_integer(value) {
            self.bytes(Decimal::new().format_i64(value));
        }
    }

    /// A string that isn't an integer.
    fn bytes(&mut self, bytes: &[u8]) {
        if self.compress && bytes.len() > UNCOMPRESSED_BYTES_MAX && self.compressed(bytes) {
            return;
        }
        self.length(bytes.len() as u64);
        self.put(bytes);
    }

    /// As an integer of up to 32 bits. `false`: it has more.
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
        let mut compressed = Vec::new();
        if !lzf::compress(bytes, &mut compressed, bytes.len() - SAVED_BYTES_MIN) {
            return false;
        }
        self.out.push(ENCODED | ENC_LZF);
        self.length(compressed.len() as u64);
        self.length(bytes.len() as u64);
        self.put(&compressed);
        true
    }
}
