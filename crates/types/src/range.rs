//! Ranges of substrings (`GETRANGE`), and the length limit of growing strings (`APPEND`,
//! `SETRANGE`).

use std::fmt;
use std::ops::Range;

/// The string would exceed `proto-max-bulk-len`. The displayed text is Redis's, without `ERR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringTooLong;

impl fmt::Display for StringTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("string exceeds maximum allowed size (proto-max-bulk-len)")
    }
}

impl std::error::Error for StringTooLong {}

/// Returns the length of a string of `len_bytes` after adding `added_bytes`. For SETRANGE,
/// `len_bytes` is the offset and `added_bytes` is the length of the patch. `len_bytes_max` is
/// `proto-max-bulk-len`.
///
/// # Errors
/// [`StringTooLong`] if the length exceeds `len_bytes_max` or overflows.
#[inline]
pub fn check_string_length(len_bytes: u64, added_bytes: u64, len_bytes_max: u64) -> Result<u64, StringTooLong> {
    len_bytes.checked_add(added_bytes).filter(|&total| total <= len_bytes_max).ok_or(StringTooLong)
}

/// Returns the range of `GETRANGE key start end` for a string of `len` bytes. `start` and `end` are
/// inclusive, and a negative index counts from the end of the string. The range is clamped to the
/// string. An empty range is `0..0`.
///
/// As in Redis, an index before the first byte means the first byte. But if both indexes are
/// negative and `start` is greater than `end`, the range is empty.
#[inline]
#[must_use]
pub fn getrange(len: usize, start: i64, end: i64) -> Range<usize> {
    if len == 0 || (start < 0 && end < 0 && start > end) {
        return 0..0;
    }
    // No string has 2^63 bytes, so neither the cast nor adding a negative index overflows.
    let len = len as i64;
    let clamp = |index: i64| {
        if index < 0 { (index + len).max(0) } else { index }
    };
    let start = clamp(start);
    let end = clamp(end).min(len - 1);
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn getrange_as_redis_answers() {
        let text = "This is a string";
        for (start, end, expected) in [
            (0, 3, "This"),
            (-3, -1, "ing"),
            (0, -1, text),
            (10, 100, "string"),
            (0, -100, "T"),
            (-100, -100, "T"),
            (-100, 2, "Thi"),
            (-1, -3, ""),
            (-17, -100, ""),
            (5, 3, ""),
            (15, 15, "g"),
            (16, 16, ""),
            (16, 100, ""),
            (i64::MIN, i64::MAX, text),
            (i64::MAX, i64::MIN, ""),
            (i64::MAX, i64::MAX, ""),
            (i64::MIN, i64::MIN, "T"),
        ] {
            assert_eq!(&text[getrange(text.len(), start, end)], expected, "{start} {end}");
        }
        assert_eq!(getrange(0, 0, -1), 0..0);
    }

    #[test]
    fn string_length_at_the_limit_and_one_past() {
        const LIMIT: u64 = 512 * 1024 * 1024;
        assert_eq!(check_string_length(LIMIT - 1, 1, LIMIT), Ok(LIMIT));
        assert_eq!(check_string_length(LIMIT, 1, LIMIT), Err(StringTooLong));
        assert_eq!(check_string_length(u64::MAX, 1, LIMIT), Err(StringTooLong));
    }
}
