//! LZF, the compression of long strings in `DUMP` payloads and RDB files, and of list nodes.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | `000LLLLL` | L + 1 literal bytes follow |
//! | `LLLooooo oooooooo` | a match: copy L + 2 bytes (L from 1 to 6), starting o + 1 bytes back |
//! | `111ooooo LLLLLLLL oooooooo` | a match: copy L + 9 bytes, starting o + 1 bytes back |
//!
//! LZF has no header and no end mark. The surrounding format stores the lengths before and after
//! compression. Compression takes one step per byte and a table of 1 to 256 KiB. The table decides
//! which matches are found, so other implementations of LZF may produce other bytes.

use std::cell::Cell;

use crate::OutOfMemory;

/// Minimum length of a match.
const MATCH_LEN_MIN: usize = 3;
/// Maximum length of a match.
const MATCH_LEN_MAX: usize = 264;
/// The value of a match's 3-bit length field that marks the long form, in which one more byte
/// encodes the length. In the short form, the field is the length minus two and less than this
/// value, so the match has at most 8 bytes.
const SHORT_MATCH: usize = 7;
/// Maximum distance of a match.
const DISTANCE_MAX: usize = 1 << 13;
/// Maximum length of a run of literals.
const LITERALS_MAX: usize = 32;
/// Maximum length of an input: the table holds 32-bit positions.
const INPUT_BYTES_MAX: usize = u32::MAX as usize;
/// Number of index bits of the smallest and the largest table.
const TABLE_BITS: (u32, u32) = (8, 16);
/// Maximum expansion of a compressed byte: three bytes expand to at most [`MATCH_LEN_MAX`].
const EXPANSION_MAX: u64 = (MATCH_LEN_MAX / 3) as u64;

/// Number of index bits of the largest table that a thread keeps for its next input.
const KEPT_TABLE_BITS: u32 = 12;

thread_local! {
    /// The table of [`compress`], kept by the thread so that short inputs don't pay for an
    /// allocation.
    static TABLE: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

/// The input isn't valid LZF, or doesn't expand to the expected length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Appends the compressed form of `input` to `out`. Returns `false`, with `out` unchanged, if that
/// form exceeds `bytes_max` bytes or the input exceeds 4 GiB.
pub fn compress(input: &[u8], out: &mut Vec<u8>, bytes_max: usize) -> bool {
    let start = out.len();
    let bits = input.len().checked_ilog2().unwrap_or(0).clamp(TABLE_BITS.0, TABLE_BITS.1);
    let mut table = TABLE.take();
    table.clear();
    table.resize(1 << bits, 0);
    let fits = input.len() <= INPUT_BYTES_MAX && compress_into(input, out, start + bytes_max, &mut table);
    if bits <= KEPT_TABLE_BITS {
        TABLE.set(table);
    }
    if !fits {
        out.truncate(start);
    }
    fits
}

/// Appends the compressed form of `input`. Returns `false` if `out` would exceed `end_max` bytes.
///
/// The length of `table` is a power of two. All words of the table are 0 at first. For each hash of
/// three bytes, the table holds the last position at which three bytes with this hash start, plus
/// one. 0 means that there is no such position.
fn compress_into(input: &[u8], out: &mut Vec<u8>, end_max: usize, table: &mut [u32]) -> bool {
    let bits = table.len().ilog2();
    let (mut at, mut literals) = (0, 0);
    while at + MATCH_LEN_MIN <= input.len() {
        let slot = &mut table[hash(input, at, bits)];
        let seen = std::mem::replace(slot, at as u32 + 1) as usize;
        let len = if seen > 0 && at - (seen - 1) <= DISTANCE_MAX { match_len(input, seen - 1, at) } else { 0 };
        if len < MATCH_LEN_MIN {
            at += 1;
            if out.len() + (at - literals) > end_max {
                return false;
            }
            continue;
        }
        put_literals(&input[literals..at], out);
        put_match(len, at - seen, out);
        at += len;
        literals = at;
        // Further matches rarely start inside this match, so only its last positions are entered
        // into the table.
        for inside in at - 2..at {
            if inside + MATCH_LEN_MIN <= input.len() {
                table[hash(input, inside, bits)] = inside as u32 + 1;
            }
        }
    }
    put_literals(&input[literals..], out);
    out.len() <= end_max
}

/// Returns the index in the table for the three bytes at a position.
#[inline]
fn hash(input: &[u8], at: usize, bits: u32) -> usize {
    let bytes = u32::from(input[at]) | u32::from(input[at + 1]) << 8 | u32::from(input[at + 2]) << 16;
    (bytes.wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize
}

/// Returns the length of the match between two positions, at most [`MATCH_LEN_MAX`].
#[inline]
fn match_len(input: &[u8], back: usize, at: usize) -> usize {
    let most = (input.len() - at).min(MATCH_LEN_MAX);
    let (one, two) = (&input[back..back + most], &input[at..at + most]);
    let mut len = 0;
    for (one, two) in one.chunks_exact(8).zip(two.chunks_exact(8)) {
        if one != two {
            break;
        }
        len += 8;
    }
    len + one[len..].iter().zip(&two[len..]).take_while(|(one, two)| one == two).count()
}

fn put_literals(literals: &[u8], out: &mut Vec<u8>) {
    for run in literals.chunks(LITERALS_MAX) {
        out.push(run.len() as u8 - 1);
        out.extend_from_slice(run);
    }
}

/// Appends a match. A `distance` of 0 means the preceding byte.
fn put_match(len: usize, distance: usize, out: &mut Vec<u8>) {
    let (len, high, low) = (len - 2, (distance >> 8) as u8, distance as u8);
    if len < SHORT_MATCH {
        out.extend_from_slice(&[(len as u8) << 5 | high, low]);
    } else {
        out.extend_from_slice(&[0xe0 | high, (len - SHORT_MATCH) as u8, low]);
    }
}

/// Returns whether this many compressed bytes can expand to `len`. Callers check this before they
/// allocate memory for an untrusted length.
#[inline]
pub fn may_expand(compressed_len: u64, len: u64) -> bool {
    len <= compressed_len.saturating_mul(EXPANSION_MAX)
}

/// Decompresses `input`, which must expand to exactly `len` bytes.
///
/// # Errors
/// [`DecompressError`]: invalid bytes, or a failed allocation.
pub fn decompress(input: &[u8], len: usize) -> Result<Vec<u8>, DecompressError> {
    if !may_expand(input.len() as u64, len as u64) {
        return Err(Corrupt.into());
    }
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(OutOfMemory::from)?;
    let mut rest = input;
    while let [control, tail @ ..] = rest {
        let length = usize::from(control >> 5);
        if length == 0 {
            let (run, tail) = tail.split_at_checked(usize::from(*control) + 1).ok_or(Corrupt)?;
            if out.len() + run.len() > len {
                return Err(Corrupt.into());
            }
            out.extend_from_slice(run);
            rest = tail;
            continue;
        }
        let (length, tail) = match tail {
            [more, tail @ ..] if length == SHORT_MATCH => (length + usize::from(*more), tail),
            tail => (length, tail),
        };
        let [low, tail @ ..] = tail else { return Err(Corrupt.into()) };
        let distance = usize::from(control & 0x1f) << 8 | usize::from(*low);
        let from = out.len().checked_sub(distance + 1).ok_or(Corrupt)?;
        repeat(&mut out, from, length + 2, len)?;
        rest = tail;
    }
    if out.len() == len { Ok(out) } else { Err(Corrupt.into()) }
}

/// Appends a copy of `count` bytes of `out`, starting at `from`. The copied range may extend into
/// bytes that this call appends.
fn repeat(out: &mut Vec<u8>, from: usize, mut count: usize, len_max: usize) -> Result<(), Corrupt> {
    if out.len() + count > len_max {
        return Err(Corrupt);
    }
    while count > 0 {
        let piece = count.min(out.len() - from);
        out.extend_from_within(from..from + piece);
        count -= piece;
    }
    Ok(())
}

/// The reason why decompression failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecompressError {
    /// The bytes are invalid.
    Corrupt,
    /// The allocator failed.
    OutOfMemory,
}

impl From<Corrupt> for DecompressError {
    fn from(_: Corrupt) -> Self {
        DecompressError::Corrupt
    }
}

impl From<OutOfMemory> for DecompressError {
    fn from(_: OutOfMemory) -> Self {
        DecompressError::OutOfMemory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn round_trip(input: &[u8]) -> usize {
        let mut out = b"before".to_vec();
        assert!(compress(input, &mut out, input.len() + input.len() / LITERALS_MAX + 1));
        let compressed = &out[6..];
        assert_eq!(decompress(compressed, input.len()).as_deref(), Ok(input), "{}", input.escape_ascii());
        assert!(may_expand(compressed.len() as u64, input.len() as u64));
        compressed.len()
    }

    #[test]
    fn inputs_round_trip() {
        let mut random = Random::with_printed_seed("lzf");
        for alphabet in [&b"a"[..], b"ab", b"abcdefgh", b"0123456789abcdefghijklmnopqrstuvwxyz"] {
            for _ in 0..300 {
                let text = random.text(alphabet, 0, 3000);
                round_trip(&text);
            }
        }
        for _ in 0..100 {
            // Matches at distances around the maximum.
            let piece = random.bytes(3, 400);
            let between = random.bytes(DISTANCE_MAX - 500, DISTANCE_MAX + 100);
            round_trip(&[&piece[..], &between, &piece, &piece].concat());
        }
    }

    #[test]
    fn repetitions_compress() {
        for (len, most) in [(21, 10), (264, 10), (1000, 30), (100_000, 1200)] {
            let compressed = round_trip(&vec![b'a'; len]);
            assert!(compressed <= most, "{len}: {compressed}");
        }
    }

    #[test]
    fn output_stays_within_its_limit() {
        let input = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut out = vec![7];
        assert!(!compress(input, &mut out, input.len()));
        assert_eq!(out, [7]);
        assert!(compress(input, &mut out, input.len() + 2));
        assert_eq!(out.len(), 1 + input.len() + 2);
    }

    /// The output of redis-server 7.0.15 for `a` repeated a hundred times (from `DUMP`).
    #[test]
    fn output_of_redis_is_decompressed() {
        assert_eq!(decompress(&[1, b'a', b'a', 0xe0, 0x57, 0, 1, b'a', b'a'], 100).unwrap(), [b'a'; 100]);
    }

    #[test]
    fn corrupt_bytes_are_rejected() {
        for (bytes, len) in [
            (&[0x20, 0][..], 3),       // match before the output
            (&[0, b'a', 0x20, 1], 4),  // one byte too far back
            (&[0, b'a', 0x20, 0], 3),  // expands to more
            (&[0, b'a', 0x20, 0], 5),  // expands to less
            (&[0, b'a', 0x20], 4),     // truncated
            (&[0, b'a', 0xe0, 5], 15), // truncated
            (&[3, b'a', b'b'], 4),     // truncated
            (&[1, b'a', b'b'], 1),     // expands to more
            (&[0, b'a'], 1 << 40),     // an impossible length
            (&[], 1),
        ] {
            assert_eq!(decompress(bytes, len), Err(DecompressError::Corrupt), "{bytes:?}");
        }
        assert_eq!(decompress(&[], 0), Ok(Vec::new()));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = Random::with_printed_seed("lzf corrupt");
        for _ in 0..20_000 {
            let bytes = random.bytes(0, 40);
            let len = random.below(400) as usize;
            if let Ok(out) = decompress(&bytes, len) {
                assert_eq!(out.len(), len);
            }
        }
    }
}
