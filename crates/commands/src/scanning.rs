//! Shared parts of `SCAN`, `HSCAN`, `SSCAN` and `ZSCAN`: cursors, options, pages.

use pantala_base::glob;
use pantala_base::number::parse_i64;
use pantala_resp::{Args, Reply};
use pantala_types::pack::Element;

use crate::arguments::{c_string, is_option};
use crate::errors;

/// Number of elements per page (the elements of one reply) if the command has no `COUNT`.
pub(crate) const COUNT_DEFAULT: u64 = 10;

/// Maximum number of buckets that a call visits per requested element, as in Redis. This bounds the
/// time of a call on a nearly empty table.
pub(crate) const BUCKETS_PER_ELEMENT_MAX: u64 = 10;

/// Parses a cursor as C's `strtoul` does: a sign is allowed, and an empty text is 0.
pub(crate) fn parse_cursor(text: &[u8]) -> Option<u64> {
    let text = c_string(text);
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    // A sign alone isn't a number.
    if digits.is_empty() && !text.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0u64, |value, byte| match byte {
        b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(byte - b'0')),
        _ => None,
    })?;
    Some(if negative { value.wrapping_neg() } else { value })
}

/// The options of `HSCAN`, `SSCAN` and `ZSCAN`.
pub(crate) struct ScanOptions<'a> {
    count: u64,
    pattern: Option<&'a [u8]>,
    /// `NOVALUES` (HSCAN, since 7.4).
    pub(crate) no_values: bool,
}

impl<'a> ScanOptions<'a> {
    /// Parses the options from `args[3]`. `takes_novalues` is true for HSCAN.
    pub(crate) fn parse(args: &Args<'a>, takes_novalues: bool) -> Result<Self, &'static str> {
        let mut options = ScanOptions { count: COUNT_DEFAULT, pattern: None, no_values: false };
        let mut index = 3;
        while let Some(option) = args.get(index) {
            if takes_novalues && is_option(option, "NOVALUES") {
                options.no_values = true;
                index += 1;
                continue;
            }
            let value = args.get(index + 1).ok_or(errors::SYNTAX)?;
            if is_option(option, "COUNT") {
                let count = parse_i64(value).ok_or(errors::NOT_AN_INTEGER)?;
                options.count = u64::try_from(count).ok().filter(|&count| count >= 1).ok_or(errors::SYNTAX)?;
            } else if is_option(option, "MATCH") {
                options.pattern = (value != b"*").then_some(value);
            } else {
                return Err(errors::SYNTAX);
            }
            index += 2;
        }
        Ok(options)
    }

    /// Returns whether an element matches the pattern.
    pub(crate) fn matches(&self, element: Element<'_>) -> bool {
        self.pattern.is_none_or(|pattern| element.with_bytes(|bytes| glob::matches(pattern, bytes, false)))
    }
}

/// Replies with a page: the next cursor and the output of `step`.
///
/// A call of `step` visits the elements at a cursor: one bucket of a table, or a whole small
/// collection. It returns the next cursor, the number of elements visited and the number of values
/// that it wrote to the reply.
pub(crate) fn reply_page(
    reply: &mut Reply<'_>,
    mut cursor: u64,
    options: &ScanOptions<'_>,
    mut step: impl FnMut(u64, &mut Reply<'_>) -> (u64, u64, usize),
) {
    // The cursor precedes the elements in the reply, but it is known only after the elements are
    // found. The elements are therefore written to a buffer first.
    let mut elements = Vec::new();
    let mut page = reply.part(&mut elements);
    let array = page.defer_array();
    let (mut seen, mut written) = (0, 0);
    let mut steps_left = options.count.saturating_mul(BUCKETS_PER_ELEMENT_MAX);
    loop {
        let (next, seen_here, written_here) = step(cursor, &mut page);
        (cursor, seen, written) = (next, seen + seen_here, written + written_here);
        steps_left -= 1;
        if page.is_aborted() {
            return reply.abort();
        }
        if cursor == 0 || seen >= options.count || steps_left == 0 {
            break;
        }
    }
    page.patch(array, written);
    reply.array(2);
    // Cursors are unsigned, as in Redis.
    reply.bulk(cursor.to_string().as_bytes());
    reply.raw(&elements);
}

/// Replies with the empty page of a missing key.
pub(crate) fn reply_empty_page(reply: &mut Reply<'_>) {
    reply.array(2);
    reply.bulk(b"0");
    reply.array(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_parse_as_by_strtoul() {
        assert_eq!((parse_cursor(b""), parse_cursor(b"+0"), parse_cursor(b"0\0x")), (Some(0), Some(0), Some(0)));
        assert_eq!(parse_cursor(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_cursor(b"-1"), Some(u64::MAX));
        for bad in ["18446744073709551616", "-", "+", " 1", "1 ", "1x", "x"] {
            assert_eq!(parse_cursor(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
