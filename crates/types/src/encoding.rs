//! The encodings of values that `OBJECT ENCODING` shows, and the choice of a string's encoding.

use std::fmt;

/// Maximum length of a string that Redis calls `embstr`, in bytes.
pub const EMBSTR_LEN_MAX: usize = 44;

/// Maximum length of an integer's text: `-9223372036854775808`.
const INTEGER_LEN_MAX: usize = 20;

/// Redis stores each of the integers `0..SHARED_INTEGERS` only once, as an object shared by all
/// keys, unless its eviction policy needs access statistics of each key.
pub const SHARED_INTEGERS: i64 = 10_000;

/// The `OBJECT REFCOUNT` of a shared integer.
pub const SHARED_INTEGER_REFCOUNT: i64 = 2_147_483_647;

/// The form of a value, named as in Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A string that is a 64-bit integer.
    Int,
    /// A short string, never changed in place.
    Embstr,
    /// Any other string.
    Raw,
    /// A packed hash or sorted set.
    Listpack,
    /// A packed hash with fields that may expire (since Redis 7.4).
    ListpackEx,
    /// A list.
    Quicklist,
    /// A set of integers.
    Intset,
    /// Any other set or hash.
    Hashtable,
    /// Any other sorted set.
    Skiplist,
    /// A stream.
    Stream,
}

impl Encoding {
    /// Returns the name that `OBJECT ENCODING` shows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Int => "int",
            Encoding::Embstr => "embstr",
            Encoding::Raw => "raw",
            Encoding::Listpack => "listpack",
            Encoding::ListpackEx => "listpackex",
            Encoding::Quicklist => "quicklist",
            Encoding::Intset => "intset",
            Encoding::Hashtable => "hashtable",
            Encoding::Skiplist => "skiplist",
            Encoding::Stream => "stream",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The stored form of a new string (SET, GETSET, MSET, and APPEND to a missing key).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// As an integer whose text equals the string.
    Int(i64),
    /// As the given bytes.
    Bytes,
}

/// Returns how to store a new string: as an integer if the integer's text equals the string.
///
/// INCRBYFLOAT, SETRANGE and APPEND to an existing string don't call this function. As in Redis,
/// the results of these commands stay bytes even if they look like an integer.
#[inline]
#[must_use]
pub fn encode(bytes: &[u8]) -> Encoded {
    match parse_i64(bytes) {
        Some(integer) => Encoded::Int(integer),
        None => Encoded::Bytes,
    }
}

/// Returns the encoding of a string stored as bytes. `changed_in_place` is whether the string is
/// the result of an APPEND or SETRANGE, which is raw in Redis.
#[inline]
#[must_use]
pub fn string_encoding(len: usize, changed_in_place: bool) -> Encoding {
    if changed_in_place || len > EMBSTR_LEN_MAX { Encoding::Raw } else { Encoding::Embstr }
}

/// Returns whether Redis has a shared object for this integer. The caller must also check that
/// Redis's eviction policy allows sharing: no `maxmemory`, or a policy that is neither LRU nor LFU.
#[inline]
#[must_use]
pub fn is_shared_integer(integer: i64) -> bool {
    (0..SHARED_INTEGERS).contains(&integer)
}

/// Parses an integer in strict form: without leading zeros, plus sign and spaces, and not `-0`.
/// Returns `None` for any other text, and for integers of more than 64 bits.
#[inline]
#[must_use]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    if text.len() > INTEGER_LEN_MAX {
        return None;
    }
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // 19 digits always fit in 64 bits. 20 digits may not.
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn integers_at_their_bounds_and_one_past() {
        for (text, expected) in [
            ("0", Some(0)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("18446744073709551615", None),
            ("18446744073709551616", None),
            ("99999999999999999999", None),
            ("100000000000000000000", None),
            ("-1", Some(-1)),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn only_the_canonical_text_is_an_integer() {
        for text in
            ["", "-", "-0", "00", "01", "-01", "+1", " 1", "1 ", "1.0", "1e3", "0x10", "1\0", "--1", "1-", "\u{661}"]
        {
            assert_eq!(encode(text.as_bytes()), Encoded::Bytes, "{text:?}");
        }
    }

    #[test]
    fn every_integer_round_trips() {
        let mut random = Random::with_printed_seed("encoding");
        for _ in 0..20_000 {
            let integer = (random.next() as i64) >> random.below(64);
            assert_eq!(encode(integer.to_string().as_bytes()), Encoded::Int(integer));
            let junk = random.text(b"0123456789-+. ", 0, 22);
            if let Some(parsed) = parse_i64(&junk) {
                assert_eq!(parsed.to_string().as_bytes(), junk);
            } else {
                let text = String::from_utf8(junk).unwrap();
                assert!(text.parse::<i64>().map_or(true, |value| value.to_string() != text), "{text}");
            }
        }
    }

    #[test]
    fn encoding_names() {
        assert_eq!(string_encoding(EMBSTR_LEN_MAX, false).name(), "embstr");
        assert_eq!(string_encoding(EMBSTR_LEN_MAX + 1, false).name(), "raw");
        assert_eq!(string_encoding(1, true).name(), "raw");
        assert_eq!(Encoding::Int.to_string(), "int");
    }

    #[test]
    fn shared_integers() {
        assert!(is_shared_integer(0) && is_shared_integer(9999));
        assert!(!is_shared_integer(-1) && !is_shared_integer(10_000));
    }
}
