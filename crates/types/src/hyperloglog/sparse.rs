//! The sparse form: runs of equal registers.
//!
//! | bytes | run |
//! | --- | --- |
//! | `00nnnnnn` | n + 1 zeros |
//! | `01nnnnnn nnnnnnnn` | n + 1 zeros |
//! | `1vvvvvnn` | n + 1 registers of the value v + 1 |
//!
//! To raise a register, [`raise`] splits the register's run into up to three runs. Then it merges
//! adjacent runs of equal value near the register. For the same elements in the same order, the
//! result equals Redis's byte for byte.

use super::registers::Histogram;
use super::{Corrupted, HEADER_BYTES, REGISTERS, Registers};
use crate::{OutOfMemory, RawString};
use std::fmt::Write;

/// All registers zero.
pub(super) const EMPTY: [u8; 2] = [0x7f, 0xff];
const ZEROS_LEN_MAX: usize = 64;
const VALUE_MAX: u8 = 32;
const VALUE_LEN_MAX: usize = 4;
/// Maximum number of runs around a change that are considered for merging.
const JOINED_RUNS_MAX: usize = 5;
/// Maximum size in bytes of the runs that replace a split run: a run of zeros of 2 bytes, a value
/// of 1 byte, and another run of zeros of 2 bytes.
const SPLIT_BYTES_MAX: usize = 5;

/// The result of raising a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raised {
    /// The register already had this value or a larger one. Nothing was changed.
    No,
    /// The register was raised.
    Yes,
    /// The sparse form can't represent the value, or would exceed the allowed size. Nothing was
    /// changed.
    NeedsDense,
}

/// A decoded run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    value: u8,
    /// Number of registers, 1 to 16,384.
    len: usize,
    /// Encoded size in bytes, 1 or 2.
    bytes: usize,
}

impl Run {
    /// Decodes the run at the start of `bytes`. Returns `None` if there is no complete run.
    #[inline]
    fn first(bytes: &[u8]) -> Option<Run> {
        match *bytes.first()? {
            first @ 0x80.. => Some(Run { value: (first >> 2 & 0x1f) + 1, len: usize::from(first & 3) + 1, bytes: 1 }),
            first @ 0x40.. => {
                let second = *bytes.get(1)?;
                let len = (usize::from(first & 0x3f) << 8 | usize::from(second)) + 1;
                Some(Run { value: 0, len, bytes: 2 })
            }
            first => Some(Run { value: 0, len: usize::from(first) + 1, bytes: 1 }),
        }
    }

    /// Returns the encoding of 1 to 4 registers with a value from 1 to 32.
    fn of_value(value: u8, len: usize) -> u8 {
        0x80 | (value - 1) << 2 | (len as u8 - 1)
    }
}

/// Calls `visit` for each run, with the index of the run's first register and the run.
fn walk(bytes: &[u8], mut visit: impl FnMut(usize, Run)) -> Result<(), Corrupted> {
    let (mut at, mut first) = (0, 0);
    while let Some(run) = Run::first(&bytes[at..]) {
        if first + run.len > REGISTERS {
            return Err(Corrupted);
        }
        visit(first, run);
        first += run.len;
        at += run.bytes;
    }
    if at == bytes.len() && first == REGISTERS { Ok(()) } else { Err(Corrupted) }
}

pub(super) fn histogram(bytes: &[u8]) -> Result<Histogram, Corrupted> {
    let mut histogram = [0; size_of::<Histogram>() / size_of::<u32>()];
    walk(bytes, |_, run| histogram[usize::from(run.value)] += run.len as u32)?;
    Ok(histogram)
}

pub(super) fn merge_into(bytes: &[u8], registers: &mut Registers) -> Result<(), Corrupted> {
    walk(bytes, |first, run| {
        if run.value > 0 {
            registers.raise(first, run.len, run.value);
        }
    })
}

/// Formats all complete runs.
pub(super) fn decode(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while let Some(run) = Run::first(bytes) {
        // Writing to a string doesn't fail.
        let _ = match (run.value, run.bytes) {
            (0, 1) => write!(text, "z:{} ", run.len),
            (0, _) => write!(text, "Z:{} ", run.len),
            (value, _) => write!(text, "v:{value},{} ", run.len),
        };
        bytes = &bytes[run.bytes..];
    }
    text.truncate(text.trim_end().len());
    text
}

/// The position of the run that contains a register.
struct Place {
    /// Offset of the run.
    at: usize,
    /// Offset of the preceding run, or of this run if it is the first.
    before: usize,
    /// Index of the run's first register.
    first: usize,
    run: Run,
}

fn find(bytes: &[u8], index: usize) -> Result<Place, Corrupted> {
    let mut place = Place { at: 0, before: 0, first: 0, run: Run::first(bytes).ok_or(Corrupted)? };
    while index >= place.first + place.run.len {
        place.before = place.at;
        place.first += place.run.len;
        place.at += place.run.bytes;
        place.run = Run::first(&bytes[place.at..]).ok_or(Corrupted)?;
    }
    Ok(place)
}

/// Raises a register of a sparse HyperLogLog.
pub(super) fn raise(
    string: &mut RawString,
    index: usize,
    value: u8,
    bytes_max: u64,
) -> Result<Raised, super::ChangeError> {
    if value > VALUE_MAX {
        return Ok(Raised::NeedsDense);
    }
    let place = find(&string.as_bytes()[HEADER_BYTES..], index)?;
    if place.run.value >= value {
        return Ok(Raised::No);
    }
    let mut split = Split::default();
    split.push(place.run.value, index - place.first);
    split.push(value, 1);
    split.push(place.run.value, place.first + place.run.len - 1 - index);
    let runs = split.as_bytes();
    let grown = runs.len().saturating_sub(place.run.bytes);
    if grown > 0 && (string.len() + grown) as u64 > bytes_max {
        return Ok(Raised::NeedsDense);
    }
    let start = HEADER_BYTES + place.at;
    string.try_splice(start..start + place.run.bytes, runs)?;
    join(string, HEADER_BYTES + place.before)?;
    Ok(Raised::Yes)
}

/// The runs that replace a split run.
#[derive(Default)]
struct Split {
    bytes: [u8; SPLIT_BYTES_MAX],
    len: usize,
}

impl Split {
    fn push(&mut self, value: u8, len: usize) {
        if len == 0 {
            return;
        }
        if value > 0 {
            self.push_byte(Run::of_value(value, len));
        } else if len <= ZEROS_LEN_MAX {
            self.push_byte(len as u8 - 1);
        } else {
            self.push_byte(0x40 | ((len - 1) >> 8) as u8);
            self.push_byte((len - 1) as u8);
        }
    }

    fn push_byte(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Merges adjacent runs of equal nonzero value among the [`JOINED_RUNS_MAX`] runs that start at an
/// offset.
fn join(string: &mut RawString, mut at: usize) -> Result<(), OutOfMemory> {
    for _ in 0..JOINED_RUNS_MAX {
        let bytes = string.as_bytes();
        let Some(run) = bytes.get(at..).and_then(Run::first) else { return Ok(()) };
        let next = Run::first(&bytes[at + run.bytes..]).filter(|_| run.value > 0);
        match next {
            Some(next) if next.value == run.value && run.len + next.len <= VALUE_LEN_MAX => {
                let joined = Run::of_value(run.value, run.len + next.len);
                // Doesn't advance `at`, because the merged run may merge with the next run.
                string.try_splice(at..at + 2, &[joined])?;
            }
            _ => at += run.bytes,
        }
    }
    Ok(())
}
