//! Strings as bitmaps: reads, writes, counts and finds bits, and combines several strings bitwise.
//!
//! Bit 0 is the highest bit of the first byte, as in Redis. Whole strings are processed in 64-bit
//! words and in blocks that the compiler vectorizes. Only the result of a [`Combination`]
//! allocates.
//!
//! | function | cost |
//! | --- | --- |
//! | [`count_ones`] | a tree of carry-save adders: about 6 operations per word instead of 12 |
//! | [`find_bit`] | one comparison per word |
//! | [`Combination`] | each source is read once, the result written to memory once |
//!
//! | contents (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 100,000 bits | string | 0.125 |

mod field;
#[cfg(test)]
mod tests;

pub use field::{Field, FieldChange, Overflow};

use crate::{OutOfMemory, RawString};
use std::ops::RangeInclusive;

/// Size of the blocks in which a bitwise operation computes its result, in bytes. All sources are
/// combined into one block before the next block starts, so that a block stays in the L1 cache.
const BLOCK_BYTES: usize = 16 * 1024;

/// Returns the bit at an offset. Bits after the end of the string are 0.
#[inline]
#[must_use]
pub fn bit_at(bytes: &[u8], offset: u64) -> bool {
    let byte = usize::try_from(offset >> 3).ok().and_then(|at| bytes.get(at));
    byte.is_some_and(|byte| byte & mask_of(offset) != 0)
}

/// Sets or clears a bit and returns its former value. Returns `None`, with nothing changed, if the
/// offset is after the end of the string.
#[inline]
pub fn set_bit(bytes: &mut [u8], offset: u64, on: bool) -> Option<bool> {
    let byte = bytes.get_mut(usize::try_from(offset >> 3).ok()?)?;
    let mask = mask_of(offset);
    let was = *byte & mask != 0;
    *byte = if on { *byte | mask } else { *byte & !mask };
    Some(was)
}

#[inline]
fn mask_of(offset: u64) -> u8 {
    0x80 >> (offset & 7)
}

/// Number of words that [`count_ones`] adds per step in each lane.
const ADDED_WORDS: usize = 8;
/// Number of independent lanes of [`count_ones`]: the words of two 128-bit vectors.
const LANES: usize = 4;

/// Returns the number of set bits.
///
/// For every eight words, carry-save adders update the words `ones`, `twos` and `fours` and yield a
/// carry word, `eights`. Only the set bits of `eights` are counted for every eight words. All lanes
/// perform the same operations, so the compiler vectorizes them, and the function is fast even
/// without a popcount instruction.
#[must_use]
pub fn count_ones(bytes: &[u8]) -> u64 {
    let mut total = 0;
    let (mut ones, mut twos, mut fours) = ([0u64; LANES], [0u64; LANES], [0u64; LANES]);
    let (blocks, rest) = bytes.as_chunks::<{ ADDED_WORDS * LANES * 8 }>();
    for block in blocks {
        let word = |index: usize| -> [u64; LANES] {
            std::array::from_fn(|lane| {
                let at = (index * LANES + lane) * 8;
                u64::from_le_bytes(std::array::from_fn(|byte| block[at + byte]))
            })
        };
        let (sum, twos_a) = add(ones, word(0), word(1));
        let (sum, twos_b) = add(sum, word(2), word(3));
        let (twos_sum, fours_a) = add(twos, twos_a, twos_b);
        let (sum, twos_a) = add(sum, word(4), word(5));
        let (sum, twos_b) = add(sum, word(6), word(7));
        ones = sum;
        let (twos_sum, fours_b) = add(twos_sum, twos_a, twos_b);
        twos = twos_sum;
        let (fours_sum, eights) = add(fours, fours_a, fours_b);
        fours = fours_sum;
        total += 8 * count_lanes(eights);
    }
    total += count_lanes(ones) + 2 * count_lanes(twos) + 4 * count_lanes(fours);
    let (words, tail) = rest.as_chunks::<8>();
    total += words.iter().map(|word| u64::from(u64::from_le_bytes(*word).count_ones())).sum::<u64>();
    total + tail.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>()
}

/// Returns the sum and the carry of three words. Each bit has its own full adder.
#[inline]
fn add(a: [u64; LANES], b: [u64; LANES], c: [u64; LANES]) -> ([u64; LANES], [u64; LANES]) {
    let half: [u64; LANES] = std::array::from_fn(|lane| a[lane] ^ b[lane]);
    let sum = std::array::from_fn(|lane| half[lane] ^ c[lane]);
    let carry = std::array::from_fn(|lane| a[lane] & b[lane] | half[lane] & c[lane]);
    (sum, carry)
}

#[inline]
fn count_lanes(lanes: [u64; LANES]) -> u64 {
    lanes.iter().map(|lane| u64::from(lane.count_ones())).sum()
}

/// Returns the number of set bits in a range. Both ends must lie within the string.
#[must_use]
pub fn count_ones_between(bytes: &[u8], bits: &RangeInclusive<u64>) -> u64 {
    if bits.is_empty() {
        return 0;
    }
    let (first, last) = ((bits.start() >> 3) as usize, (bits.end() >> 3) as usize);
    let outside = |byte: usize, mask: u8| u64::from((bytes[byte] & mask).count_ones());
    count_ones(&bytes[first..=last])
        - outside(first, !(0xff >> (bits.start() & 7)))
        - outside(last, (0xff_u16 >> ((bits.end() & 7) + 1)) as u8)
}

/// Returns the first bit equal to `on` in a range. Both ends must lie within the string.
#[must_use]
pub fn find_bit(bytes: &[u8], on: bool, bits: &RangeInclusive<u64>) -> Option<u64> {
    if bits.is_empty() {
        return None;
    }
    let (first, last) = ((bits.start() >> 3) as usize, (bits.end() >> 3) as usize);
    let head = if on { bytes[first] } else { !bytes[first] } & (0xff >> (bits.start() & 7));
    let found = if head != 0 {
        Some((first as u64) << 3 | u64::from(head.leading_zeros()))
    } else {
        find_in(&bytes[first + 1..=last], on).map(|at| ((first as u64 + 1) << 3) + at)
    };
    found.filter(|at| at <= bits.end())
}

/// Returns the first bit equal to `on`.
fn find_in(bytes: &[u8], on: bool) -> Option<u64> {
    let skipped = if on { 0 } else { u64::MAX };
    let (words, tail) = bytes.as_chunks::<8>();
    if let Some(at) = words.iter().position(|word| u64::from_ne_bytes(*word) != skipped) {
        let odd = u64::from_be_bytes(words[at]) ^ skipped;
        return Some((at as u64) << 6 | u64::from(odd.leading_zeros()));
    }
    let at = tail.iter().position(|byte| *byte != skipped as u8)?;
    Some((words.len() as u64) << 6 | (at as u64) << 3 | u64::from((tail[at] ^ skipped as u8).leading_zeros()))
}

/// An operation of `BITOP`. Each variant says which bits of the result are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Bits set in all sources.
    And,
    /// Bits set in any source.
    Or,
    /// Bits set in an odd number of sources.
    Xor,
    /// Bits not set in the only source.
    Not,
}

/// A bitwise operation in progress. For each block ([`Combination::next_block`]) the caller passes
/// every source to [`Combination::add`]. The sources needn't be borrowed at the same time (their
/// keys may live in different shards), and each byte is read once.
///
/// The result is as long as the longest source. Shorter sources are padded with zeros.
#[derive(Debug)]
pub struct Combination {
    operation: Operation,
    result: Vec<u8>,
    len_bytes: usize,
    block_start: usize,
    is_first: bool,
}

impl Combination {
    /// Starts an operation whose longest source has `len_bytes`.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the result can't be allocated.
    pub fn try_new(operation: Operation, len_bytes: usize) -> Result<Self, OutOfMemory> {
        let mut result = Vec::new();
        result.try_reserve_exact(len_bytes)?;
        Ok(Combination { operation, result, len_bytes, block_start: 0, is_first: true })
    }

    /// Advances to the next block. Returns `false` if the result is complete.
    pub fn next_block(&mut self) -> bool {
        self.block_start = self.result.len();
        self.is_first = true;
        self.block_start < self.len_bytes
    }

    /// Combines a source into the current block. `source` is the whole string.
    pub fn add(&mut self, source: &[u8]) {
        let end = self.len_bytes.min(self.block_start + BLOCK_BYTES);
        let part = &source[self.block_start.min(source.len())..end.min(source.len())];
        if self.is_first {
            self.is_first = false;
            self.result.extend_from_slice(part);
            self.result.resize(end, 0);
            if self.operation == Operation::Not {
                self.result[self.block_start..].iter_mut().for_each(|byte| *byte = !*byte);
            }
            return;
        }
        let (common, beyond) = self.result[self.block_start..].split_at_mut(part.len());
        let pairs = common.iter_mut().zip(part);
        match self.operation {
            Operation::And => {
                pairs.for_each(|(mine, other)| *mine &= other);
                beyond.fill(0);
            }
            Operation::Or => pairs.for_each(|(mine, other)| *mine |= other),
            Operation::Xor => pairs.for_each(|(mine, other)| *mine ^= other),
            // Not reached: NOT has a single source, which the code above has handled.
            Operation::Not => {}
        }
    }

    /// Returns the result.
    #[must_use]
    pub fn finish(self) -> RawString {
        RawString::from(self.result)
    }
}
