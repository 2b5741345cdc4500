//! Decodes lengths, strings and numbers, of which all values consist.

use std::borrow::Cow;

use pantala_base::number::Decimal;

use super::Error;
use super::writer::{ENC_INT8, ENC_INT16, ENC_INT32, ENC_LZF, LEN_14_BITS, LEN_32_BITS, LEN_64_BITS};
use crate::lzf;

/// A reader of bytes in memory. After an error, the position of the reader is unspecified.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    string_bytes_max: u64,
}

/// The head of a string: its length, or its encoding.
enum Head {
    Len(u64),
    Encoded(u8),
}

impl<'a> Reader<'a> {
    /// Returns a reader at the start of `bytes`. Strings longer than `string_bytes_max` are
    /// rejected.
    pub fn new(bytes: &'a [u8], string_bytes_max: u64) -> Self {
        Reader { bytes, at: 0, string_bytes_max }
    }

    /// Returns the number of bytes read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Returns the number of bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Reads the next `len` bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer bytes are left.
    #[inline]
    pub fn take(&mut self, len: u64) -> Result<&'a [u8], Error> {
        let rest = &self.bytes[self.at..];
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len)).ok_or(Error::Truncated)?;
        self.at += taken.len();
        Ok(taken)
    }

    /// Reads the next `N` bytes.
    ///
    /// # Errors
    /// [`Error::Truncated`] if fewer bytes are left.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let bytes = self.bytes[self.at..].first_chunk::<N>().ok_or(Error::Truncated)?;
        self.at += N;
        Ok(*bytes)
    }

    /// Reads the next byte.
    ///
    /// # Errors
    /// [`Error::Truncated`] if no byte is left.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn head(&mut self) -> Result<Head, Error> {
        let first = self.byte()?;
        let low = first & 0x3f;
        Ok(match first >> 6 {
            0 => Head::Len(u64::from(low)),
            1 => Head::Len(u64::from(low) << 8 | u64::from(self.byte()?)),
            3 => Head::Encoded(low),
            _ if first == LEN_32_BITS => Head::Len(u64::from(u32::from_be_bytes(self.array()?))),
            _ if first == LEN_64_BITS => Head::Len(u64::from_be_bytes(self.array()?)),
            _ => return Err(Error::Corrupt("length")),
        })
    }

    /// Reads a length. In place of a length, accepts the marker byte of an encoded string and
    /// returns the byte's lower six bits, as Redis does.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the bytes end, or [`Error::Corrupt`] if they aren't a length.
    #[inline]
    pub fn length(&mut self) -> Result<u64, Error> {
        match self.head()? {
            // This length is rejected, because Redis mistakes it for its own error value.
            Head::Len(u64::MAX) => Err(Error::Corrupt("length")),
            Head::Len(len) => Ok(len),
            Head::Encoded(low) => Ok(u64::from(low)),
        }
    }

    /// Reads a 64-bit number that is encoded like a length.
    ///
    /// # Errors
    /// As [`Self::length`], except that every number is valid.
    pub fn number(&mut self) -> Result<u64, Error> {
        match self.head()? {
            Head::Len(number) => Ok(number),
            Head::Encoded(low) => Ok(u64::from(low)),
        }
    }

    /// Reads a count of items, each of at least `bytes_min` bytes.
    ///
    /// # Errors
    /// As [`Self::length`]. Also [`Error::Truncated`] if the remaining bytes are too few for this
    /// number of items, so that the caller doesn't reserve space for them.
    pub fn count(&mut self, bytes_min: usize) -> Result<usize, Error> {
        let count = usize::try_from(self.length()?).map_err(|_| Error::Truncated)?;
        if count > self.remaining() / bytes_min { Err(Error::Truncated) } else { Ok(count) }
    }

    /// Reads a string.
    ///
    /// # Errors
    /// [`Error`]: truncated, corrupt, too long, or out of memory.
    #[inline]
    pub fn string(&mut self) -> Result<Cow<'a, [u8]>, Error> {
        match self.head()? {
            Head::Len(len) => {
                let bytes = self.take(len)?;
                self.check_len(len)?;
                Ok(Cow::Borrowed(bytes))
            }
            Head::Encoded(ENC_INT8) => Ok(integer(i64::from(i8::from_le_bytes(self.array()?)))),
            Head::Encoded(ENC_INT16) => Ok(integer(i64::from(i16::from_le_bytes(self.array()?)))),
            Head::Encoded(ENC_INT32) => Ok(integer(i64::from(i32::from_le_bytes(self.array()?)))),
            Head::Encoded(ENC_LZF) => self.compressed().map(Cow::Owned),
            Head::Encoded(_) => Err(Error::Corrupt("encoding of a string")),
        }
    }

    #[cold]
    fn compressed(&mut self) -> Result<Vec<u8>, Error> {
        let (compressed_len, len) = (self.length()?, self.length()?);
        let compressed = self.take(compressed_len)?;
        if len == 0 {
            // Redis's decompression returns the length 0 if it fails. If the expected length is 0
            // too, Redis doesn't notice the failure, and the result is an empty string.
            return Ok(Vec::new());
        }
        self.check_len(len)?;
        let len = usize::try_from(len).map_err(|_| Error::Corrupt("compressed string"))?;
        Ok(lzf::decompress(compressed, len)?)
    }

    fn check_len(&self, len: u64) -> Result<(), Error> {
        if len > self.string_bytes_max { Err(Error::Corrupt("string too long")) } else { Ok(()) }
    }
}

fn integer(value: i64) -> Cow<'static, [u8]> {
    Cow::Owned(Decimal::new().format_i64(value).to_vec())
}

const _: () = assert!(LEN_14_BITS >> 6 == 1);
