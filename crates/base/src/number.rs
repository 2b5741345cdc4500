//! Decimal integers as Redis parses and prints them.
//!
//! Parsing is strict: a string value may have the `int` encoding only if printing the integer
//! results in the same bytes. Only a leading `-` is a valid sign; leading zeros, spaces and `-0`
//! are invalid.

/// Maximum length of an `i64` or `u64` in decimal, in bytes, sign included.
pub const INTEGER_LEN_MAX: usize = 20;

/// Parses a signed 64-bit integer in Redis's strict form (`string2ll`). Returns `None` for any
/// other text.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let magnitude = parse_u64(digits)?;
    if negative {
        // The only valid text of zero is `0`.
        if magnitude == 0 || magnitude > i64::MIN.unsigned_abs() {
            return None;
        }
        Some((magnitude as i64).wrapping_neg())
    } else {
        i64::try_from(magnitude).ok()
    }
}

/// Parses an unsigned 64-bit integer: digits without leading zeros, up to `u64::MAX`. Returns
/// `None` for any other text.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    // 19 digits can't overflow, so only the 20th needs a check.
    let (head, last) = match text.len() {
        0 => return None,
        1..INTEGER_LEN_MAX => (text, None),
        INTEGER_LEN_MAX => (&text[..INTEGER_LEN_MAX - 1], Some(text[INTEGER_LEN_MAX - 1])),
        _ => return None,
    };
    if head[0] == b'0' {
        return (text.len() == 1).then_some(0);
    }
    let mut value = 0u64;
    for &byte in head {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    let Some(last) = last else { return Some(value) };
    let digit = last.wrapping_sub(b'0');
    if digit > 9 {
        return None;
    }
    value.checked_mul(10)?.checked_add(u64::from(digit))
}

/// The pairs of digits `00` to `99`. Formatting with pairs needs half as many divisions.
static DIGIT_PAIRS: [[u8; 2]; 100] = {
    let mut table = [[0u8; 2]; 100];
    let mut i = 0;
    while i < 100 {
        table[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    table
};

/// Space for one decimal integer on the stack. Formatting fills the space from its end.
#[derive(Clone, Debug)]
pub struct Decimal {
    bytes: [u8; INTEGER_LEN_MAX],
}

impl Default for Decimal {
    fn default() -> Self {
        Self::new()
    }
}

impl Decimal {
    /// Returns an empty buffer.
    #[inline]
    pub const fn new() -> Self {
        Self { bytes: [0; INTEGER_LEN_MAX] }
    }

    /// Formats `value`: 1 to 20 bytes.
    #[inline]
    pub fn format_i64(&mut self, value: i64) -> &[u8] {
        let mut at = write_u64_before(&mut self.bytes, INTEGER_LEN_MAX, value.unsigned_abs());
        if value < 0 {
            at -= 1;
            self.bytes[at] = b'-';
        }
        &self.bytes[at..]
    }

    /// Formats `value`: 1 to 20 bytes.
    #[inline]
    pub fn format_u64(&mut self, value: u64) -> &[u8] {
        let at = write_u64_before(&mut self.bytes, INTEGER_LEN_MAX, value);
        &self.bytes[at..]
    }
}

/// Writes `value` in decimal so that its last digit is `room[end - 1]`. Returns the index of the
/// first digit.
///
/// # Panics
/// If `end` exceeds the length of `room`, or the digits don't fit before `end`.
#[inline]
pub fn write_u64_before(room: &mut [u8], end: usize, mut value: u64) -> usize {
    let mut at = end;
    while value >= 100 {
        let pair = DIGIT_PAIRS[(value % 100) as usize];
        value /= 100;
        at -= 2;
        room[at..at + 2].copy_from_slice(&pair);
    }
    if value >= 10 {
        at -= 2;
        room[at..at + 2].copy_from_slice(&DIGIT_PAIRS[value as usize]);
    } else {
        at -= 1;
        room[at] = b'0' + value as u8;
    }
    at
}

/// Returns the number of decimal digits of `value` (1 for zero).
#[inline]
pub fn digits_u64(value: u64) -> usize {
    value.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// The multiplier of each unit, in lower case. A unit ending in `b` is a power of 1024, a bare
/// letter a power of 1000.
const UNITS: [(&[u8], u64); 8] = [
    (b"", 1),
    (b"b", 1),
    (b"k", 1_000),
    (b"kb", 1 << 10),
    (b"m", 1_000_000),
    (b"mb", 1 << 20),
    (b"g", 1_000_000_000),
    (b"gb", 1 << 30),
];

/// Maximum number of digits before a unit, as in Redis.
const MEMORY_DIGITS_MAX: usize = 127;

/// Parses an amount of memory (`512`, `100mb`), in bytes: digits and an optional unit. As in Redis,
/// an amount without digits is zero. Returns `None` for any other text.
///
/// Amounts beyond 64 bits saturate. In Redis the multiplication by the unit wraps, which turns a
/// huge limit into a small one.
pub fn parse_memory(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > MEMORY_DIGITS_MAX {
        return None;
    }
    let unit = text[digits..].to_ascii_lowercase();
    let (_, multiplier) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let count =
        text[..digits].iter().fold(0u64, |count, byte| count.saturating_mul(10).saturating_add(u64::from(byte - b'0')));
    Some(count.saturating_mul(*multiplier))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn non_canonical_forms_are_rejected() {
        for text in [
            "",
            "-",
            "+1",
            "-0",
            "00",
            "01",
            "-01",
            " 1",
            "1 ",
            "1a",
            "a",
            "0x1",
            "1.0",
            "--1",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "99999999999999999999",
            "100000000000000000000",
            "1\0",
            "/1",
            ":1",
            "1/",
            "1:",
            "922337203685477580/",
            "1844674407370955161a",
        ] {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn extremes_are_parsed() {
        assert_eq!(parse_i64(b"0"), Some(0));
        assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
        assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"-1"), None);
    }

    #[test]
    fn round_trips() {
        let seed = 0x6e75_6d62;
        println!("seed {seed}");
        let mut random = Random::from_seed(seed);
        let mut room = Decimal::new();
        for _ in 0..200_000 {
            let value = (random.next_u64() >> random.below(64)) as i64;
            for value in [value, value.wrapping_neg()] {
                let expected = value.to_string();
                assert_eq!(room.format_i64(value), expected.as_bytes());
                assert_eq!(parse_i64(expected.as_bytes()), Some(value));
                let unsigned = value as u64;
                assert_eq!(room.format_u64(unsigned), unsigned.to_string().as_bytes());
                assert_eq!(parse_u64(unsigned.to_string().as_bytes()), Some(unsigned));
                assert_eq!(digits_u64(unsigned), unsigned.to_string().len());
            }
        }
        for value in [i64::MIN, i64::MAX, 0, -1, 9, 10, 99, 100] {
            assert_eq!(room.format_i64(value), value.to_string().as_bytes());
        }
    }

    #[test]
    fn memory_units() {
        for (text, bytes) in [
            ("", Some(0)),
            ("0", Some(0)),
            ("1b", Some(1)),
            ("1k", Some(1_000)),
            ("1KB", Some(1_024)),
            ("2m", Some(2_000_000)),
            ("2Mb", Some(2 << 20)),
            ("3g", Some(3_000_000_000)),
            ("3gB", Some(3 << 30)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", Some(u64::MAX)),
            ("99999999999gb", Some(u64::MAX)),
            ("1tb", None),
            ("-1", None),
            ("+1", None),
            ("1.5gb", None),
            ("1 kb", None),
            ("1kbx", None),
        ] {
            assert_eq!(parse_memory(text.as_bytes()), bytes, "{text}");
        }
        assert_eq!(parse_memory(&[b'0'; MEMORY_DIGITS_MAX]), Some(0));
        assert_eq!(parse_memory(&[b'0'; MEMORY_DIGITS_MAX + 1]), None);
    }
}
