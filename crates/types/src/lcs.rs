//! The longest common subsequence of two strings. If there are several, the result is the one that
//! Redis chooses.
//!
//! # Redis's choice
//!
//! Let L(i, j) be the length of the longest common subsequence of the first i bytes of `a` and the
//! first j bytes of `b`. Redis fills the table of all L(i, j) and then walks back from its last
//! cell. At each cell, Redis compares byte i of `a` with byte j of `b`. Equal bytes match. If the
//! bytes differ, Redis drops the byte of `a` if L(i-1, j) > L(i, j-1), and the byte of `b`
//! otherwise. Redis therefore finds the matches from the last to the first, and replies in this
//! order.
//!
//! # Algorithm
//!
//! Adjacent cells of a row differ by 0 or 1, so the row is stored as a vector with one bit per
//! cell. One addition computes a whole word of the vector from the row above (the bit-parallel
//! method of Crochemore et al., 2001). The walk back needs exactly these bits. If the bytes differ,
//! L(i, j) is the larger of L(i-1, j) and L(i, j-1). So L(i-1, j) > L(i, j-1) exactly when `L(i, j)
//! = L(i, j-1) + 1`.
//!
//! This algorithm takes 1 bit per cell instead of 32, and one step per 64 cells. Redis's limit on
//! the size of its table still applies, so that this module rejects the same inputs as Redis.

use std::fmt;

use crate::OutOfMemory;

/// Strings must be shorter than this, as in Redis.
pub const LCS_STRING_LEN_MAX: u64 = u32::MAX as u64 - 1;

/// The reason why no common subsequence was computed. The displayed texts are Redis's, without
/// `ERR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LcsError {
    /// A string of [`LCS_STRING_LEN_MAX`] bytes or more.
    StringTooLong,
    /// The table of Redis's algorithm, 4 bytes × (length of a + 1) × (length of b + 1), would
    /// exceed `proto-max-bulk-len`.
    TransientMemory,
    /// The allocator failed.
    OutOfMemory,
}

impl fmt::Display for LcsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LcsError::StringTooLong => "String too long for LCS",
            LcsError::TransientMemory => "Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len",
            LcsError::OutOfMemory => "Insufficient memory, failed allocating transient memory for LCS",
        })
    }
}

impl std::error::Error for LcsError {}

impl From<OutOfMemory> for LcsError {
    fn from(_: OutOfMemory) -> Self {
        LcsError::OutOfMemory
    }
}

/// A range of bytes of the first string that equals a range of the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Match {
    /// Index of the range's first byte in the first string.
    pub a_start: usize,
    /// Index of the range's first byte in the second string.
    pub b_start: usize,
    /// Length of the range in bytes, at least 1.
    pub len: usize,
}

impl Match {
    /// Returns the index of the range's last byte in the first string.
    #[must_use]
    pub fn a_end(&self) -> usize {
        self.a_start + self.len - 1
    }

    /// Returns the index of the range's last byte in the second string.
    #[must_use]
    pub fn b_end(&self) -> usize {
        self.b_start + self.len - 1
    }
}

/// The result of `LCS … IDX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matches {
    /// The matches of at least the minimum length, from the last to the first.
    pub matches: Vec<Match>,
    /// Length of the whole subsequence, including matches below the minimum length.
    pub len: usize,
}

/// Returns the length of the longest common subsequence (`LCS a b LEN`). `table_bytes_max` is
/// `proto-max-bulk-len`.
///
/// # Errors
/// See [`LcsError`].
pub fn lcs_len(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<usize, LcsError> {
    check_table(a, b, table_bytes_max)?;
    let masks = Masks::new(a, b)?;
    let mut row = words(masks.words)?;
    row.fill(u64::MAX);
    for &byte in a {
        step(&mut row, masks.of(byte));
    }
    Ok(increments_of(&row))
}

/// Returns the longest common subsequence (`LCS a b`). `table_bytes_max` is `proto-max-bulk-len`.
///
/// # Errors
/// See [`LcsError`].
pub fn lcs_string(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<Vec<u8>, LcsError> {
    let table = Table::new(a, b, table_bytes_max)?;
    let mut string = Vec::new();
    string.try_reserve_exact(table.len).map_err(OutOfMemory::from)?;
    // Matches arrive from the last to the first, so their bytes are collected in reverse order.
    table.walk(|found| {
        string.extend(a[found.a_start..=found.a_end()].iter().rev());
        Ok(())
    })?;
    string.reverse();
    Ok(string)
}

/// Returns the matches of the longest common subsequence (`LCS a b IDX MINMATCHLEN match_len_min`).
/// `table_bytes_max` is `proto-max-bulk-len`.
///
/// # Errors
/// See [`LcsError`].
pub fn lcs_matches(a: &[u8], b: &[u8], match_len_min: usize, table_bytes_max: u64) -> Result<Matches, LcsError> {
    let table = Table::new(a, b, table_bytes_max)?;
    let mut matches = Vec::new();
    table.walk(|found| {
        if found.len >= match_len_min {
            matches.try_reserve(1).map_err(OutOfMemory::from)?;
            matches.push(found);
        }
        Ok(())
    })?;
    Ok(Matches { matches, len: table.len })
}

/// Rejects inputs for which Redis doesn't allocate its table.
fn check_table(a: &[u8], b: &[u8], table_bytes_max: u64) -> Result<(), LcsError> {
    let (a_len, b_len) = (a.len() as u64, b.len() as u64);
    if a_len >= LCS_STRING_LEN_MAX || b_len >= LCS_STRING_LEN_MAX {
        return Err(LcsError::StringTooLong);
    }
    let table_bytes = u128::from(a_len + 1) * u128::from(b_len + 1) * size_of::<u32>() as u128;
    if table_bytes > u128::from(table_bytes_max) { Err(LcsError::TransientMemory) } else { Ok(()) }
}

/// Returns `count` zeroed words, allocated fallibly.
fn words(count: usize) -> Result<Vec<u64>, LcsError> {
    let mut words = Vec::new();
    words.try_reserve_exact(count).map_err(OutOfMemory::from)?;
    words.resize(count, 0);
    Ok(words)
}

/// For each byte value that occurs in `a`, a mask of its positions in `b`: one bit per position.
struct Masks {
    /// Words per mask: one bit for each byte of `b`.
    words: usize,
    /// Index of each byte's mask. Not used for bytes that don't occur in `a`.
    mask_of: [u8; 256],
    masks: Vec<u64>,
}

impl Masks {
    fn new(a: &[u8], b: &[u8]) -> Result<Masks, LcsError> {
        let words_per_mask = b.len().div_ceil(64);
        let mut present = [false; 256];
        for &byte in a {
            present[usize::from(byte)] = true;
        }
        let mut mask_of = [0u8; 256];
        let mut count = 0usize;
        for (byte, mask) in mask_of.iter_mut().enumerate() {
            if present[byte] {
                *mask = count as u8; // At most 255: there are at most 256 masks.
                count += 1;
            }
        }
        // This doesn't overflow: `check_table` bounds words × count by the size of Redis's table.
        let mut masks = words(words_per_mask * count)?;
        for (j, &byte) in b.iter().enumerate() {
            if present[usize::from(byte)] {
                masks[usize::from(mask_of[usize::from(byte)]) * words_per_mask + j / 64] |= 1 << (j % 64);
            }
        }
        Ok(Masks { words: words_per_mask, mask_of, masks })
    }

    fn of(&self, byte: u8) -> &[u64] {
        let start = usize::from(self.mask_of[usize::from(byte)]) * self.words;
        &self.masks[start..start + self.words]
    }
}

/// Replaces a row of the table by the next row. Bit j of row i is 0 if L(i, j+1) = L(i, j) + 1, and
/// 1 otherwise. `mask` marks the positions in `b` of the byte of `a` to which the next row belongs.
fn step(row: &mut [u64], mask: &[u64]) {
    let mut carry = false;
    for (word, &mask) in row.iter_mut().zip(mask) {
        let matching = *word & mask;
        let (sum, carry_a) = word.overflowing_add(matching);
        let (sum, carry_b) = sum.overflowing_add(u64::from(carry));
        carry = carry_a | carry_b;
        *word = sum | (*word & !mask);
    }
}

/// Returns the last value of L in a row. It is the number of zero bits in the row, because each
/// zero bit marks an increment by 1. Bits after the end of `b` are never 0, because no mask has
/// these bits set.
fn increments_of(row: &[u64]) -> usize {
    row.iter().map(|word| word.count_zeros() as usize).sum()
}

/// All rows of the table of L(i, j), in the form described at [`step`].
struct Table<'a> {
    a: &'a [u8],
    b: &'a [u8],
    words: usize,
    rows: Vec<u64>,
    len: usize,
}

impl<'a> Table<'a> {
    fn new(a: &'a [u8], b: &'a [u8], table_bytes_max: u64) -> Result<Table<'a>, LcsError> {
        check_table(a, b, table_bytes_max)?;
        let masks = Masks::new(a, b)?;
        let width = masks.words;
        let mut rows = words(width * a.len())?;
        for (i, &byte) in a.iter().enumerate() {
            let (above, row) = rows.split_at_mut(i * width);
            let row = &mut row[..width];
            match i {
                0 => row.fill(u64::MAX),
                _ => row.copy_from_slice(&above[(i - 1) * width..]),
            }
            step(row, masks.of(byte));
        }
        let len = rows.len().checked_sub(width).map_or(0, |last| increments_of(&rows[last..]));
        Ok(Table { a, b, words: width, rows, len })
    }

    /// Returns whether L(i, j) = L(i, j-1) + 1.
    fn increments(&self, i: usize, j: usize) -> bool {
        self.rows[(i - 1) * self.words + (j - 1) / 64] >> ((j - 1) % 64) & 1 == 0
    }

    /// Walks back from the end and passes each match to `found`.
    fn walk(&self, mut found: impl FnMut(Match) -> Result<(), LcsError>) -> Result<(), LcsError> {
        let (mut i, mut j, mut len) = (self.a.len(), self.b.len(), 0);
        while i > 0 && j > 0 {
            if self.a[i - 1] == self.b[j - 1] {
                i -= 1;
                j -= 1;
                len += 1;
                continue;
            }
            if len > 0 {
                found(Match { a_start: i, b_start: j, len })?;
                len = 0;
            }
            if self.increments(i, j) {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        if len > 0 { found(Match { a_start: i, b_start: j, len }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const LIMIT: u64 = 512 * 1024 * 1024;

    /// Computes the table cell by cell, from the definition.
    fn naive(a: &[u8], b: &[u8]) -> Matches {
        let mut table = vec![vec![0usize; b.len() + 1]; a.len() + 1];
        for i in 1..=a.len() {
            for j in 1..=b.len() {
                table[i][j] =
                    if a[i - 1] == b[j - 1] { table[i - 1][j - 1] + 1 } else { table[i - 1][j].max(table[i][j - 1]) };
            }
        }
        let (mut i, mut j) = (a.len(), b.len());
        let mut matches: Vec<Match> = Vec::new();
        while i > 0 && j > 0 {
            if a[i - 1] == b[j - 1] {
                i -= 1;
                j -= 1;
                match matches.last_mut() {
                    Some(last) if last.a_start == i + 1 && last.b_start == j + 1 => {
                        *last = Match { a_start: i, b_start: j, len: last.len + 1 };
                    }
                    _ => matches.push(Match { a_start: i, b_start: j, len: 1 }),
                }
            } else if table[i - 1][j] > table[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        Matches { matches, len: table[a.len()][b.len()] }
    }

    #[test]
    fn the_documented_example() {
        let found = lcs_matches(b"ohmytext", b"mynewtext", 0, LIMIT).unwrap();
        let expected = [Match { a_start: 4, b_start: 5, len: 4 }, Match { a_start: 2, b_start: 0, len: 2 }];
        assert_eq!(found, Matches { matches: expected.to_vec(), len: 6 });
        assert_eq!((found.matches[0].a_end(), found.matches[0].b_end()), (7, 8));
        assert_eq!(lcs_string(b"ohmytext", b"mynewtext", LIMIT).unwrap(), b"mytext");
        assert_eq!(lcs_matches(b"ohmytext", b"mynewtext", 4, LIMIT).unwrap().matches, expected[..1]);
        assert_eq!(lcs_matches(b"ohmytext", b"mynewtext", 5, LIMIT).unwrap(), Matches { matches: vec![], len: 6 });
    }

    #[test]
    fn empty_strings_have_nothing_in_common() {
        for (a, b) in [(&b""[..], &b""[..]), (b"", b"x"), (b"x", b"")] {
            assert_eq!(lcs_len(a, b, LIMIT), Ok(0));
            assert_eq!(lcs_string(a, b, LIMIT), Ok(vec![]));
            assert_eq!(lcs_matches(a, b, 0, LIMIT), Ok(Matches { matches: vec![], len: 0 }));
        }
    }

    #[test]
    fn the_table_at_its_limit_and_one_past() {
        let (a, b) = ([b'a'; 99], [b'a'; 199]);
        assert_eq!(lcs_len(&a, &b, 100 * 200 * 4), Ok(99));
        assert_eq!(lcs_len(&a, &b, 100 * 200 * 4 - 1), Err(LcsError::TransientMemory));
        assert_eq!(lcs_string(&a, &b, 100 * 200 * 4 - 1), Err(LcsError::TransientMemory));
        assert_eq!(lcs_matches(&a, &b, 0, 100 * 200 * 4 - 1), Err(LcsError::TransientMemory));
    }

    /// The row of `c` has an increment in its last column. The match in the row of `a` adds an
    /// increment and removes the one in the last column, 126 columns further right. So the carry
    /// crosses a whole word.
    #[test]
    fn a_carry_crosses_a_word_without_matches() {
        let b = [b"-----a", &[b'-'; 125][..], b"c"].concat();
        assert_eq!(lcs_len(b"ca", &b, LIMIT), Ok(1));
        assert_eq!(lcs_matches(b"ca", &b, 0, LIMIT).unwrap(), naive(b"ca", &b));
    }

    #[test]
    fn random_strings_agree_with_the_definition() {
        let mut random = Random::with_printed_seed("lcs");
        for round in 0..3_000 {
            let len_max = [6, 70, 200][round % 3];
            let alphabet = &b"abcdefgh\0\xff"[..1 + random.below(10) as usize];
            let a = random.text(alphabet, 0, len_max);
            let mut b = random.text(alphabet, 0, len_max);
            if round % 4 == 0 {
                // A range without any match, for carries that cross whole words.
                let at = random.below(b.len() as u64 + 1) as usize;
                b.splice(at..at, vec![b'-'; random.below(200) as usize]);
            }
            let expected = naive(&a, &b);
            assert_eq!(lcs_matches(&a, &b, 0, LIMIT).unwrap(), expected, "{a:?} {b:?}");
            assert_eq!(lcs_len(&a, &b, LIMIT), Ok(expected.len));
            let mut string: Vec<u8> = Vec::new();
            for found in expected.matches.iter().rev() {
                string.extend(&b[found.b_start..=found.b_end()]);
            }
            assert_eq!(lcs_string(&a, &b, LIMIT).unwrap(), string);
        }
    }
}
