//! Ziplists, which Redis used before listpacks:
//!
//! ```text
//! total size      4 bytes
//! last            4 bytes: position of the last entry
//! count           2 bytes: number of entries, or 65,535 if they must be counted
//! entry           size of the preceding entry (1 byte if below 254, otherwise fe and 4 bytes),
//!                 encoding, data
//! end             ff
//! ```
//!
//! | encoding | data |
//! | --- | --- |
//! | `00xxxxxx` | string of x bytes |
//! | `01xxxxxx` and 1 byte | string of x bytes (14 bits, big-endian) |
//! | `10------` and 4 bytes | string; its length is in the 4 bytes, big-endian |
//! | `c0` `d0` `e0` `f0` `fe` | integer of 2, 4, 8, 3, 1 bytes |
//! | `f1` to `fd` | integer 0 to 12 |

use super::Error;
use crate::pack::{Element, Pack};

/// Size of the header, in bytes.
const HEADER_BYTES: usize = 10;
/// The end mark.
const END: u8 = 0xff;
/// The stored number of entries of a ziplist whose entries must be counted.
const COUNT_UNKNOWN: u16 = u16::MAX;
/// The size of the preceding entry takes 1 byte if it is less than this. Otherwise it takes 5
/// bytes, of which the first has this value.
const LONG_LENGTH: u8 = 254;

/// Returns a pack with the entries of a ziplist, which may be empty.
pub(super) fn read(bytes: &[u8]) -> Result<Pack, Error> {
    // This capacity nearly always suffices: entries rarely take more bytes in a pack.
    let mut pack = Pack::try_with_capacity(bytes.len())?;
    read_into(&mut pack, bytes).ok_or(Error::Corrupt("ziplist"))?;
    pack.shrink();
    Ok(pack)
}

fn read_into(pack: &mut Pack, bytes: &[u8]) -> Option<()> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let (&END, mut rest) = rest.split_last()? else { return None };
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
    let (total, last) = (word(0), word(4));
    if total != bytes.len() || last >= bytes.len() {
        return None;
    }
    let (mut count, mut before) = (0, None);
    while !rest.is_empty() {
        let entry = Entry::read(rest)?;
        let before_len = before.map_or(0, |(_, len)| len);
        if entry.before != before_len {
            return None;
        }
        before = Some((bytes.len() - 1 - rest.len(), entry.len));
        match entry.element {
            // Text that is an integer becomes an integer.
            Element::Bytes(text) => pack.push_back(text),
            element => pack.push_back_element(element),
        }
        count += 1;
        rest = &rest[entry.len..];
    }
    let said = u16::from_le_bytes([header[8], header[9]]);
    let is_counted = said == COUNT_UNKNOWN || usize::from(said) == count;
    let is_last = before.is_none_or(|(at, _)| at == last);
    (is_counted && is_last).then_some(())
}

struct Entry<'a> {
    /// Size of the preceding entry, in bytes.
    before: usize,
    element: Element<'a>,
    /// Size of this entry, in bytes.
    len: usize,
}

impl<'a> Entry<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (before, head) = match *bytes {
            [first, ..] if first < LONG_LENGTH => (usize::from(first), 1),
            [LONG_LENGTH, a, b, c, d, ..] => (u32::from_le_bytes([a, b, c, d]) as usize, 5),
            _ => return None,
        };
        let (element, len) = element(&bytes[head..])?;
        Some(Entry { before, element, len: head + len })
    }
}

/// Reads the element at the start of `bytes`. Returns the element and its size, including the
/// encoding.
fn element(bytes: &[u8]) -> Option<(Element<'_>, usize)> {
    let (&encoding, rest) = bytes.split_first()?;
    let string = |head: usize, len: usize| {
        let data = bytes.get(head..head.checked_add(len)?)?;
        Some((Element::Bytes(data), head + len))
    };
    let integer = |size: usize| {
        let data = rest.get(..size)?;
        let mut wide = [0; 8];
        wide[8 - size..].copy_from_slice(data);
        Some((Element::Int(i64::from_le_bytes(wide) >> (64 - 8 * size)), 1 + size))
    };
    let low = usize::from(encoding & 0x3f);
    match encoding {
        0x00..=0x3f => string(1, low),
        0x40..=0x7f => string(2, low << 8 | usize::from(*rest.first()?)),
        0x80..=0xbf => string(5, u32::from_be_bytes(*rest.first_chunk()?) as usize),
        0xc0 => integer(2),
        0xd0 => integer(4),
        0xe0 => integer(8),
        0xf0 => integer(3),
        0xfe => integer(1),
        0xf1..=0xfd => Some((Element::Int(i64::from(encoding & 0xf) - 1), 1)),
        _ => None,
    }
}
