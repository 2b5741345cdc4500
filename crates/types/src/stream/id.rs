//! The id of an entry: a time and a sequence number.

use pantala_base::number::{INTEGER_LEN_MAX, parse_i64, write_u64_before};

/// Maximum length of an id's text: two numbers and a dash.
pub const ID_LEN_MAX: usize = 2 * INTEGER_LEN_MAX + 1;
/// Maximum length of a text that is parsed. Longer texts are rejected.
const PARSED_BYTES_MAX: usize = 127;

/// The id of a stream entry, ordered by time, then sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId {
    /// Usually Unix time in milliseconds, but any number is valid.
    pub ms: u64,
    /// Sequence number among the ids of this time.
    pub seq: u64,
}

/// The id argument of `XADD`, which may leave parts of the id to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewId {
    /// `*`: the server chooses the whole id.
    Auto,
    /// `ms-*`: the server chooses the sequence number.
    AutoSeq(u64),
    /// A complete id.
    Given(StreamId),
}

/// A buffer for the text of an id.
#[derive(Clone, Debug)]
pub struct IdText {
    bytes: [u8; ID_LEN_MAX],
}

impl StreamId {
    /// `0-0`, which no entry has.
    pub const MIN: StreamId = StreamId { ms: 0, seq: 0 };
    /// The largest id.
    pub const MAX: StreamId = StreamId { ms: u64::MAX, seq: u64::MAX };

    /// Returns the next id, or `None` for the largest id.
    #[must_use]
    #[inline]
    pub fn next(self) -> Option<StreamId> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(StreamId { ms: self.ms, seq }),
            None => Some(StreamId { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// Returns the previous id, or `None` for `0-0`.
    #[must_use]
    #[inline]
    pub fn previous(self) -> Option<StreamId> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(StreamId { ms: self.ms, seq }),
            None => Some(StreamId { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// Parses `ms-seq`, or `ms` alone with the sequence number `missing_seq`. Callers parse `-` and
    /// `+` themselves.
    #[must_use]
    pub fn parse(text: &[u8], missing_seq: u64) -> Option<StreamId> {
        if text.len() > PARSED_BYTES_MAX {
            return None;
        }
        let text = c_string(text);
        match split_at_dash(text) {
            (ms, None) => Some(StreamId { ms: parse_part(ms)?, seq: missing_seq }),
            (ms, Some(seq)) => Some(StreamId { ms: parse_part(ms)?, seq: parse_part(seq)? }),
        }
    }

    /// Formats the id.
    #[inline]
    pub fn write(self, room: &mut IdText) -> &[u8] {
        let at = write_u64_before(&mut room.bytes, ID_LEN_MAX, self.seq) - 1;
        room.bytes[at] = b'-';
        let at = write_u64_before(&mut room.bytes, at, self.ms);
        &room.bytes[at..]
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl NewId {
    /// Parses the id argument of `XADD`.
    #[must_use]
    #[inline]
    pub fn parse(text: &[u8]) -> Option<NewId> {
        if text.len() > PARSED_BYTES_MAX {
            return None;
        }
        let text = c_string(text);
        if text == b"*" {
            return Some(NewId::Auto);
        }
        match split_at_dash(text) {
            (ms, Some(b"*")) => Some(NewId::AutoSeq(parse_part(ms)?)),
            _ => StreamId::parse(text, 0).map(NewId::Given),
        }
    }
}

impl Default for IdText {
    fn default() -> Self {
        Self::new()
    }
}

impl IdText {
    /// Returns an empty buffer.
    #[inline]
    pub const fn new() -> Self {
        IdText { bytes: [0; ID_LEN_MAX] }
    }
}

/// Returns the text before the first zero byte, because Redis reads ids as C strings.
fn c_string(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn split_at_dash(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|&byte| byte == b'-') {
        Some(dash) => (&text[..dash], Some(&text[dash + 1..])),
        None => (text, None),
    }
}

/// Parses a 64-bit number as Redis does. A number in canonical form must not be negative. Any other
/// text is parsed like C's `strtoull`, which accepts leading blanks, leading zeros and a sign. A
/// minus negates the number modulo 2^64.
#[inline]
fn parse_part(text: &[u8]) -> Option<u64> {
    match parse_i64(text) {
        Some(value) => u64::try_from(value).ok(),
        None => parse_loosely(text),
    }
}

#[cold]
fn parse_loosely(text: &[u8]) -> Option<u64> {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (negative, digits) = match &text[blanks..] {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() {
        return None;
    }
    let value = digits.iter().try_fold(0u64, |value, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })?;
    Some(if negative { value.wrapping_neg() } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64, seq: u64) -> StreamId {
        StreamId { ms, seq }
    }

    #[test]
    fn texts_of_ids() {
        for (text, expected) in [
            ("1-2", Some(id(1, 2))),
            ("1", Some(id(1, 7))),
            ("18446744073709551615-18446744073709551615", Some(StreamId::MAX)),
            ("18446744073709551616-0", None),
            ("0-0", Some(StreamId::MIN)),
            ("007-01", Some(id(7, 1))),
            (" +5-1", Some(id(5, 1))),
            // redis-server 7.0.15 parses this part with `strtoull`, which negates the number modulo
            // 2^64.
            ("1--03", Some(id(1, u64::MAX - 2))),
            ("1--3", None),
            ("-1-1", None),
            ("1-", None),
            ("-", None),
            ("", None),
            ("1-1-1", None),
            ("1-*", None),
            ("x", None),
            ("5\0junk", Some(id(5, 7))),
        ] {
            assert_eq!(StreamId::parse(text.as_bytes(), 7), expected, "{text:?}");
        }
        let padded = |len: usize| [vec![b'0'; len - 1], vec![b'1']].concat();
        assert_eq!(StreamId::parse(&padded(PARSED_BYTES_MAX), 0), Some(id(1, 0)));
        assert_eq!(StreamId::parse(&padded(PARSED_BYTES_MAX + 1), 0), None);
    }

    #[test]
    fn texts_of_new_ids() {
        assert_eq!(NewId::parse(b"*"), Some(NewId::Auto));
        assert_eq!(NewId::parse(b"5-*"), Some(NewId::AutoSeq(5)));
        assert_eq!(NewId::parse(b"5"), Some(NewId::Given(id(5, 0))));
        assert_eq!(NewId::parse(b"5-*x"), None);
        assert_eq!(NewId::parse(b"**"), None);
        assert_eq!(NewId::parse(b"*-1"), None);
    }

    #[test]
    fn next_and_previous() {
        assert_eq!(id(1, u64::MAX).next(), Some(id(2, 0)));
        assert_eq!(id(2, 0).previous(), Some(id(1, u64::MAX)));
        assert_eq!(StreamId::MAX.next(), None);
        assert_eq!(StreamId::MIN.previous(), None);
    }

    #[test]
    fn ids_round_trip() {
        let mut room = IdText::new();
        for id in [StreamId::MIN, StreamId::MAX, id(1_700_000_000_000, 12)] {
            assert_eq!(id.write(&mut room), id.to_string().as_bytes());
            assert_eq!(StreamId::parse(id.to_string().as_bytes(), 0), Some(id));
        }
    }
}
