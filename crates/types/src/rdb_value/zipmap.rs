//! Zipmaps, the form of small hashes before Redis 2.6:
//!
//! ```text
//! count     1 byte: number of fields, or 254 if they must be counted
//! field     length (1 byte if below 254, otherwise fe and 4 bytes), bytes
//! value     length, number of unused bytes at the end (1 byte), bytes, unused bytes
//! end       ff
//! ```

use super::Error;

/// First byte of a length that takes 5 bytes. In place of the number of fields, this byte means
/// that the fields must be counted.
const LONG: u8 = 254;
/// The end mark.
const END: u8 = 0xff;

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Returns the fields and values of a zipmap.
pub(super) fn read(bytes: &[u8]) -> Result<Pairs<'_>, Error> {
    read_pairs(bytes).ok_or(Error::Corrupt("zipmap"))
}

fn read_pairs(bytes: &[u8]) -> Option<Pairs<'_>> {
    let (&said, rest) = bytes.split_first()?;
    let (&END, mut rest) = rest.split_last()? else { return None };
    let mut pairs = Vec::new();
    while !rest.is_empty() {
        let field_len = length(&mut rest)?;
        let field = take(&mut rest, field_len)?;
        let value_len = length(&mut rest)?;
        let unused = take(&mut rest, 1)?[0];
        let value = take(&mut rest, value_len)?;
        take(&mut rest, usize::from(unused))?;
        pairs.push((field, value));
    }
    let is_counted = said == LONG || usize::from(said) == pairs.len();
    (is_counted && !pairs.is_empty()).then_some(pairs)
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(len)?;
    *rest = left;
    Some(taken)
}

/// Reads a length, which must be in its shortest form.
fn length(rest: &mut &[u8]) -> Option<usize> {
    let (&first, tail) = rest.split_first()?;
    if first < LONG {
        *rest = tail;
        return Some(usize::from(first));
    }
    let (word, tail) = tail.split_first_chunk()?;
    *rest = tail;
    Some(u32::from_le_bytes(*word) as usize).filter(|&len| len >= usize::from(LONG))
}
