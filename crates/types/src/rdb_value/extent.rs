//! Finds the end of an encoded value from the lengths in it, without decoding the value. A loader
//! passes the bytes that it has read so far, learns how many are missing, reads them, and then
//! decodes the whole value.

use super::writer::{ENC_INT8, ENC_INT16, ENC_INT32, ENC_LZF, LEN_32_BITS, LEN_64_BITS};
use super::{Dialect, Error, kind};

/// Length bytes of a text score that denote NaN or an infinity. No text follows such a byte.
const TEXT_SCORES: std::ops::RangeInclusive<u8> = 253..=255;
/// Bytes of an id in a stream's pending entries.
const RAW_ID_BYTES: u64 = 16;
/// Bytes of a time, or of a score.
const WORD_BYTES: u64 = 8;

/// The result of [`extent()`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The value has this many bytes.
    Whole(usize),
    /// The value has at least this many bytes, more than were passed.
    AtLeast(u64),
}

/// Returns the length of the body of a value of `kind`. The body starts at the start of `bytes`,
/// which may end before the body does. Never allocates. Takes time in proportion to the number of
/// elements.
///
/// # Errors
/// [`Error::Corrupt`] if a length is invalid or a string is longer than `string_bytes_max`.
/// [`Error::UnknownKind`] if the kind is unknown or belongs to a module.
pub fn extent(kind: u8, dialect: Dialect, bytes: &[u8], string_bytes_max: u64) -> Result<Extent, Error> {
    let mut walk = Walk { bytes, at: 0, string_bytes_max };
    finish(walk.value(kind, dialect), walk.at)
}

/// Returns the length of the encoded string at the start of `bytes`, as [`extent()`] does for a
/// value.
///
/// # Errors
/// As [`extent()`].
pub fn string_extent(bytes: &[u8], string_bytes_max: u64) -> Result<Extent, Error> {
    let mut walk = Walk { bytes, at: 0, string_bytes_max };
    finish(walk.strings(1), walk.at)
}

fn finish(walked: Result<(), Stop>, at: u64) -> Result<Extent, Error> {
    match walked {
        // A walk never passes the end of `bytes`.
        Ok(()) => Ok(Extent::Whole(at as usize)),
        Err(Stop::Needs(least)) => Ok(Extent::AtLeast(least)),
        Err(Stop::Bad(error)) => Err(error),
    }
}

/// The reason why a walk stopped.
#[derive(Clone, Copy)]
enum Stop {
    /// At least this many bytes are needed.
    Needs(u64),
    Bad(Error),
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: u64,
    string_bytes_max: u64,
}

impl Walk<'_> {
    fn value(&mut self, kind: u8, dialect: Dialect) -> Result<(), Stop> {
        match (kind, dialect) {
            (
                kind::STRING
                | kind::HASH_ZIPMAP
                | kind::LIST_ZIPLIST
                | kind::SET_INTSET
                | kind::ZSET_ZIPLIST
                | kind::HASH_ZIPLIST
                | kind::HASH_LISTPACK
                | kind::ZSET_LISTPACK
                | kind::SET_LISTPACK,
                _,
            )
            | (kind::HASH_LISTPACK_EX_PRE_GA, Dialect::Redis) => self.strings(1),
            (kind::LIST | kind::SET | kind::LIST_QUICKLIST, _) => {
                let count = self.count(1)?;
                self.strings(count)
            }
            (kind::HASH, _) => {
                let count = self.count(2)?;
                self.strings(2 * count)
            }
            (kind::LIST_QUICKLIST_2, _) => self.each(2, |walk| {
                walk.length()?;
                walk.strings(1)
            }),
            (kind::ZSET, _) => self.each(2, |walk| {
                walk.strings(1)?;
                match walk.byte()? {
                    len if TEXT_SCORES.contains(&len) => Ok(()),
                    len => walk.skip(u64::from(len)),
                }
            }),
            (kind::ZSET_2, _) => self.each(1 + WORD_BYTES, |walk| {
                walk.strings(1)?;
                walk.skip(WORD_BYTES)
            }),
            (kind::STREAM_LISTPACKS, _) => self.stream(2, 0, WORD_BYTES),
            (kind::STREAM_LISTPACKS_2, _) => self.stream(7, 1, WORD_BYTES),
            (kind::STREAM_LISTPACKS_3, _) => self.stream(7, 1, 2 * WORD_BYTES),
            (kind::HASH_METADATA_PRE_GA, Dialect::Redis) => self.expiring_fields(),
            (kind::HASH_METADATA, Dialect::Redis) => {
                self.skip(WORD_BYTES)?;
                self.expiring_fields()
            }
            (kind::HASH_LISTPACK_EX, Dialect::Redis) => {
                self.skip(WORD_BYTES)?;
                self.strings(1)
            }
            (kind::HASH_METADATA_PRE_GA, Dialect::Valkey) => self.each(2 + WORD_BYTES, |walk| {
                walk.strings(2)?;
                walk.skip(WORD_BYTES)
            }),
            _ => Err(Stop::Bad(Error::UnknownKind(kind))),
        }
    }

    /// Walks over a stream. The arguments describe the version of the stream's form. `counters`
    /// numbers follow the length of the stream, and `group_numbers` numbers follow the last id of a
    /// group. A consumer has `times` bytes between its name and its pending entries.
    fn stream(&mut self, counters: u32, group_numbers: u32, times: u64) -> Result<(), Stop> {
        self.each(2, |walk| walk.strings(2))?;
        (0..1 + counters).try_for_each(|_| self.length().map(drop))?;
        self.each(5, |walk| {
            walk.strings(1)?;
            (0..2 + group_numbers).try_for_each(|_| walk.length().map(drop))?;
            walk.each(RAW_ID_BYTES + WORD_BYTES + 1, |walk| {
                walk.skip(RAW_ID_BYTES + WORD_BYTES)?;
                walk.length().map(drop)
            })?;
            walk.each(2 + times, |walk| {
                walk.strings(1)?;
                walk.skip(times)?;
                let pending = walk.count(RAW_ID_BYTES)?;
                walk.skip(pending * RAW_ID_BYTES)
            })
        })
    }

    fn expiring_fields(&mut self) -> Result<(), Stop> {
        self.each(3, |walk| {
            walk.length()?;
            walk.strings(2)
        })
    }

    /// Walks over a count and as many items. An item has at least `bytes_min` bytes.
    fn each(&mut self, bytes_min: u64, mut one: impl FnMut(&mut Self) -> Result<(), Stop>) -> Result<(), Stop> {
        (0..self.count(bytes_min)?).try_for_each(|_| one(self))
    }

    /// Reads a count of items, each of at least `bytes_min` bytes. Stops if the remaining bytes are
    /// too few for so many items.
    fn count(&mut self, bytes_min: u64) -> Result<u64, Stop> {
        let count = self.length()?;
        let least = self.at.saturating_add(count.saturating_mul(bytes_min));
        if least > self.bytes.len() as u64 { Err(Stop::Needs(least)) } else { Ok(count) }
    }

    fn strings(&mut self, count: u64) -> Result<(), Stop> {
        for _ in 0..count {
            let first = self.byte()?;
            let len = match (first >> 6, first & 0x3f) {
                (3, ENC_INT8) => 1,
                (3, ENC_INT16) => 2,
                (3, ENC_INT32) => 4,
                (3, ENC_LZF) => {
                    let len = self.length()?;
                    let claimed = self.length()?;
                    self.check(claimed)?;
                    len
                }
                (3, _) => return Err(Stop::Bad(Error::Corrupt("encoding of a string"))),
                _ => self.length_from(first)?,
            };
            self.check(len)?;
            self.skip(len)?;
        }
        Ok(())
    }

    fn check(&self, len: u64) -> Result<(), Stop> {
        if len > self.string_bytes_max { Err(Stop::Bad(Error::Corrupt("string too long"))) } else { Ok(()) }
    }

    fn length(&mut self) -> Result<u64, Stop> {
        let first = self.byte()?;
        self.length_from(first)
    }

    fn length_from(&mut self, first: u8) -> Result<u64, Stop> {
        let low = u64::from(first & 0x3f);
        match first >> 6 {
            // If Redis finds the marker byte of an encoded string (top bits 3) in place of a
            // length, Redis takes the byte's lower six bits as the length.
            0 | 3 => Ok(low),
            1 => Ok(low << 8 | u64::from(self.byte()?)),
            _ if first == LEN_32_BITS => self.number(4),
            _ if first == LEN_64_BITS => self.number(8),
            _ => Err(Stop::Bad(Error::Corrupt("length"))),
        }
    }

    /// Reads a big-endian number of this many bytes.
    fn number(&mut self, bytes: u32) -> Result<u64, Stop> {
        let mut number = 0;
        for _ in 0..bytes {
            number = number << 8 | u64::from(self.byte()?);
        }
        Ok(number)
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        let byte = *self.bytes.get(self.at as usize).ok_or(Stop::Needs(self.at + 1))?;
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, len: u64) -> Result<(), Stop> {
        let end = self.at.saturating_add(len);
        if end > self.bytes.len() as u64 {
            return Err(Stop::Needs(end));
        }
        self.at = end;
        Ok(())
    }
}
