//! Listpacks. A listpack consists of the total size (4 bytes), the number of entries (2 bytes), the
//! entries of a pack, and an end mark.

use std::collections::HashSet;

use super::Error;
use crate::pack::{Pack, PackRef, check_entries};

/// Size of the header, in bytes.
const HEADER_BYTES: usize = 6;
/// The end mark.
const END: u8 = 0xff;
/// The stored number of entries of a listpack whose entries must be counted.
const COUNT_UNKNOWN: u16 = u16::MAX;
/// Maximum number of fields that are compared pairwise.
const COMPARED_MAX: usize = 16;

/// Size of a listpack without its entries, in bytes.
pub(super) const FRAME_BYTES: usize = HEADER_BYTES + 1;

const CORRUPT: Error = Error::Corrupt("listpack");

/// Returns a pack with the entries of a listpack, which may be empty.
pub(super) fn read(bytes: &[u8]) -> Result<Pack, Error> {
    let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(CORRUPT)?;
    let Some((&END, entries)) = rest.split_last() else { return Err(CORRUPT) };
    let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    if total as usize != bytes.len() {
        return Err(CORRUPT);
    }
    let checked = check_entries(entries).ok_or(CORRUPT)?;
    let said = u16::from_le_bytes([header[4], header[5]]);
    if said != COUNT_UNKNOWN && usize::from(said) != checked.count() {
        return Err(CORRUPT);
    }
    Ok(checked.into_pack()?)
}

/// Returns a listpack of `count` entries of a pack.
pub(super) fn of(entries: &[u8], count: usize) -> Vec<u8> {
    let total = entries.len() + FRAME_BYTES;
    let mut bytes = Vec::with_capacity(total);
    bytes.extend_from_slice(&(total as u32).to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(count).unwrap_or(COUNT_UNKNOWN).to_le_bytes());
    bytes.extend_from_slice(entries);
    bytes.push(END);
    bytes
}

/// Returns whether the entries are pairs with distinct first elements.
pub(super) fn has_distinct_keys(pack: PackRef<'_>) -> bool {
    let len = pack.len();
    if !len.is_multiple_of(2) {
        return false;
    }
    // The bytes of the entries are compared, because equal values have equal bytes in a pack.
    let mut at = pack.first();
    let firsts = std::iter::from_fn(|| {
        let from = at;
        (from < pack.end()).then(|| {
            let value = pack.next(from);
            at = pack.next(value);
            &pack.as_bytes()[from..value]
        })
    });
    if len / 2 <= COMPARED_MAX {
        let firsts: Vec<&[u8]> = firsts.collect();
        return firsts.iter().enumerate().all(|(at, first)| !firsts[..at].contains(first));
    }
    let mut seen = HashSet::with_capacity(len / 2);
    firsts.into_iter().all(|first| seen.insert(first))
}
