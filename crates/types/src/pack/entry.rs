//! The encoding of a pack's entries.

use pantala_base::number::Decimal;

use super::{Direction, TwoWay};
use crate::parse_i64;

/// Maximum size of a [`Head`], in bytes.
const HEAD_BYTES_MAX: usize = 9;
/// Maximum size of the length at an entry's end, in bytes.
pub(super) const END_LENGTH_BYTES_MAX: usize = 5;

/// The value of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// A string that is the text of this integer.
    Int(i64),
    /// Any other string.
    Bytes(&'a [u8]),
}

impl<'a> Element<'a> {
    /// Returns the element of a string.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Self {
        match parse_i64(bytes) {
            Some(value) => Element::Int(value),
            None => Element::Bytes(bytes),
        }
    }

    /// Passes the string to `work`. The text of an integer exists only during the call.
    #[inline]
    pub fn with_bytes<R>(self, work: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Element::Int(value) => work(Decimal::new().format_i64(value)),
            Element::Bytes(bytes) => work(bytes),
        }
    }

    /// Returns a copy of the string.
    pub fn to_vec(self) -> Vec<u8> {
        self.with_bytes(<[u8]>::to_vec)
    }

    /// Returns the length of the string in bytes.
    pub fn len(self) -> usize {
        self.with_bytes(<[u8]>::len)
    }

    /// Returns whether the string is empty.
    pub fn is_empty(self) -> bool {
        matches!(self, Element::Bytes([]))
    }
}

/// The first part of an entry: the encoding and, for an integer, the value. The bytes of a string
/// follow the head.
pub(super) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: usize,
}

impl Head {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn of(element: Element<'_>) -> Self {
        match element {
            Element::Int(value) => Self::of_integer(value),
            Element::Bytes(bytes) => Self::of_length(bytes.len()),
        }
    }

    fn with(first: u8, rest: &[u8]) -> Self {
        let mut bytes = [0; HEAD_BYTES_MAX];
        bytes[0] = first;
        bytes[1..=rest.len()].copy_from_slice(rest);
        Head { bytes, len: 1 + rest.len() }
    }

    fn of_integer(value: i64) -> Self {
        let le = value.to_le_bytes();
        match value {
            0..=127 => Self::with(value as u8, &[]),
            -4096..=4095 => {
                let bits = value as u16 & 0x1fff;
                Self::with(0xc0 | (bits >> 8) as u8, &[bits as u8])
            }
            -32_768..=32_767 => Self::with(0xf1, &le[..2]),
            -8_388_608..=8_388_607 => Self::with(0xf2, &le[..3]),
            -2_147_483_648..=2_147_483_647 => Self::with(0xf3, &le[..4]),
            _ => Self::with(0xf4, &le),
        }
    }

    fn of_length(len: usize) -> Self {
        match len {
            0..=63 => Self::with(0x80 | len as u8, &[]),
            64..=4095 => Self::with(0xe0 | (len >> 8) as u8, &[len as u8]),
            _ => Self::with(0xf0, &(len as u32).to_le_bytes()),
        }
    }
}

/// Returns the size of the length `len` at an entry's end, in bytes. The thresholds are those of
/// Redis's listpack, in which 16,383 takes 3 bytes and 2,097,151 takes 4, although 2 and 3 bytes
/// would suffice.
pub(crate) fn end_length_bytes(len: usize) -> usize {
    match len {
        0..=127 => 1,
        128..=16_382 => 2,
        16_383..=2_097_150 => 3,
        2_097_151..=268_435_454 => 4,
        _ => 5,
    }
}

/// Writes a length that is read backwards: seven bits per byte, with the lowest bits in the last
/// byte. All bytes but the first have their top bit set. Returns the number of bytes.
pub(super) fn write_end_length(len: usize, out: &mut [u8; END_LENGTH_BYTES_MAX]) -> usize {
    let bytes = end_length_bytes(len);
    for (at, byte) in out[..bytes].iter_mut().enumerate() {
        let bits = (len >> (7 * (bytes - 1 - at))) as u8 & 0x7f;
        *byte = if at == 0 { bits } else { bits | 0x80 };
    }
    bytes
}

/// An encoded entry, which borrows the bytes of its string.
pub(crate) struct Encoded<'a> {
    head: Head,
    tail: &'a [u8],
    back: [u8; END_LENGTH_BYTES_MAX],
    end_len: usize,
}

impl<'a> Encoded<'a> {
    /// Encodes an element for a two-way pack.
    #[inline]
    pub(crate) fn of(element: Element<'a>) -> Self {
        Self::in_pack::<TwoWay>(element)
    }

    #[inline]
    fn in_pack<W: Direction>(element: Element<'a>) -> Self {
        let tail = match element {
            Element::Int(_) => &[][..],
            Element::Bytes(bytes) => bytes,
        };
        let head = Head::of(element);
        let mut back = [0; END_LENGTH_BYTES_MAX];
        let end_len = if W::HAS_LENGTHS { write_end_length(head.len + tail.len(), &mut back) } else { 0 };
        Encoded { head, tail, back, end_len }
    }

    /// Returns the size of the whole entry in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.head.len + self.tail.len() + self.end_len
    }

    /// Writes the entry to `room`, whose length must be [`Self::len`].
    #[inline]
    pub(crate) fn write(&self, room: &mut [u8]) {
        let (head, rest) = room.split_at_mut(self.head.len);
        head.copy_from_slice(self.head.as_bytes());
        let (tail, back) = rest.split_at_mut(self.tail.len());
        tail.copy_from_slice(self.tail);
        back.copy_from_slice(&self.back[..self.end_len]);
    }
}

/// Replaces the bytes between two positions with an entry, or removes them.
pub(crate) fn splice_entry<W: Direction>(bytes: &mut Vec<u8>, from: usize, to: usize, element: Option<Element<'_>>) {
    let Some(element) = element else {
        bytes.drain(from..to);
        return;
    };
    let entry = Encoded::in_pack::<W>(element);
    let (old, new) = (to - from, entry.len());
    let len = bytes.len();
    if new > old {
        // Reserves exactly the needed bytes, because there are many small packs, and the
        // allocator's size classes leave spare capacity anyway.
        bytes.reserve_exact(new - old);
        bytes.resize(len + new - old, 0);
        bytes.copy_within(to..len, from + new);
    } else if new < old {
        bytes.copy_within(to.., from + new);
        bytes.truncate(len + new - old);
    }
    entry.write(&mut bytes[from..from + new]);
}

/// Returns the size of an integer entry in a listpack, in bytes.
#[inline]
pub(crate) fn integer_entry_bytes(value: i64) -> usize {
    Head::of_integer(value).len + 1
}

/// Appends the encoding and data of an entry, without the length at the entry's end.
#[inline]
pub(crate) fn write_body(element: Element<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(Head::of(element).as_bytes());
    if let Element::Bytes(bytes) = element {
        out.extend_from_slice(bytes);
    }
}

/// Returns whether an entry ends with the length `body`, the size of its encoding and data.
pub(crate) fn ends_with_length(entry: &[u8], body: usize) -> bool {
    let mut back = [0; END_LENGTH_BYTES_MAX];
    let len = write_end_length(body, &mut back);
    entry.get(body..) == Some(&back[..len])
}

/// Appends a whole entry in the form of a listpack.
pub(crate) fn write_entry(element: Element<'_>, out: &mut Vec<u8>) {
    let entry = Encoded::of(element);
    let start = out.len();
    out.resize(start + entry.len(), 0);
    entry.write(&mut out[start..]);
}

/// Returns the data size of an integer entry with this first byte (`f1` to `f4`).
pub(super) fn integer_bytes(first: u8) -> usize {
    match first {
        0xf1 => 2,
        0xf2 => 3,
        0xf3 => 4,
        _ => 8,
    }
}

/// Returns the size of the encoding and data of the first entry, or `None` if this entry is invalid
/// or incomplete.
pub(super) fn checked_body_len(bytes: &[u8]) -> Option<usize> {
    let len = match *bytes {
        [0..=0x7f, ..] => 1,
        [first @ 0x80..=0xbf, ..] => 1 + usize::from(first & 0x3f),
        [0xc0..=0xdf, ..] => 2,
        [first @ 0xe0..=0xef, low, ..] => 2 + (usize::from(first & 0xf) << 8 | usize::from(low)),
        [0xf0, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize).checked_add(5)?,
        [first @ 0xf1..=0xf4, ..] => 1 + integer_bytes(first),
        _ => return None,
    };
    (len <= bytes.len()).then_some(len)
}
