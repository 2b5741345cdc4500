//! LZF: the compression of long strings in `DUMP` payloads and RDB files.
//!
//! | bytes | meaning |
//! | --- | --- |
//! | `000LLLLL` | L + 1 bytes follow as they are |
//! | `LLLooooo oooooooo` | L + 2 bytes (L from 1 to 6) again, those that stand o + 1 bytes back |
//! | `111ooooo LLLLLLLL oooooooo` | L + 9 bytes again |
//!
//! There is no header and no end: lengths stand beside the compressed bytes. Compressing takes one step per byte and a table of 1
//! to 256 KiB; the table, not the format, decides which matches are found, so another compressor's bytes may differ.

use crate::OutOfMemory;

/// Shortest match.
const MATCH_LEN_MIN: usize = 3;
/// Longest match.
const MATCH_LEN_MAX: usize = 264;
/// Match lengths of the short form are below this, less two.
const SHORT_MATCH: usize = 7;
/// How far back a match may be.
const DISTANCE_MAX: usize = 1 << 13;
/// Most bytes of a run that is not compressed.
const LITERALS_MAX: usize = 32;
/// Longest input that is compressed: the table holds 32 bits.
const INPUT_BYTES_MAX: usize = u32::MAX as usize;
/// Bits of the smallest and the largest table.
const TABLE_BITS: (u32, u32) = (8, 16);
/// Three compressed bytes give at most [`MATCH_LEN_MAX`].
const EXPANSION_MAX: u64 = (MATCH_LEN_MAX / 3) as u64;

/// What was to be decompressed isn't LZF, or not of that length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Adds the compressed form of `input` to `out`. `false`: it takes more than `bytes_max` bytes, and `out` is as before.
pub fn compress(input: &[u8], out: &mut Vec<u8>, bytes_max: usize) -> bool {
    let start = out.len();
    let fits = input.len() <= INPUT_BYTES_MAX && compress_into(input, out, start + bytes_max);
    if !fits {
        out.truncate(start);
    }
    fits
}

fn compress_into(input: &[u8], out: &mut Vec<u8>, end_max: usize) -> bool {
    let bits = input.len().checked_ilog2().unwrap_or(0).clamp(TABLE_BITS.0, TABLE_BITS.1);
    // Where bytes of that hash were last seen, plus one.
    let mut table = vec![0u32; 1 << bits];
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
        // What stands inside a match is rarely worth looking for: only its last bytes are noted.
        for inside in at - 2..at {
            if inside + MATCH_LEN_MIN <= input.len() {
                table[hash(input, inside, bits)] = inside as u32 + 1;
            }
        }
    }
    put_literals(&input[literals..], out);
    out.len() <= end_max
}

/// The slot of the three bytes at a position.
#[inline]
fn hash(input: &[u8], at: usize, bits: u32) -> usize {
    let bytes = u32::from(input[at]) | u32::from(input[at + 1]) << 8 | u32::from(input[at + 2]) << 16;
    (bytes.wrapping_mul(0x9e37_79b1) >> (32 - bits)) as usize
}

/// How many bytes from two positions on are the same, up to the longest match.
#[inline]
fn match_len(input: &[u8], back: usize, at: usize) -> usize {
    let most = (input.len() - at).min(MATCH_LEN_MAX);
    input[back..].iter().zip(&input[at..at + most]).take_while(|(one, two)| one == two).count()
}

fn put_literals(literals: &[u8], out: &mut Vec<u8>) {
    for run in literals.chunks(LITERALS_MAX) {
        out.push(run.len() as u8 - 1);
        out.extend_from_slice(run);
    }
}

/// `distance`: 0 for the byte just before.
fn put_match(len: usize, distance: usize, out: &mut Vec<u8>) {
    let (len, high, low) = (len - 2, (distance >> 8) as u8, distance as u8);
    if len < SHORT_MATCH {
        out.extend_from_slice(&[(len as u8) << 5 | high, low]);
    } else {
        out.extend_from_slice(&[0xe0 | high, (len - SHORT_MATCH) as u8, low]);
    }
}

/// Whether so many compressed bytes can give so many: to be asked before memory is taken for what a length claims.
#[inline]
pub fn may_expand(compressed_len: u64, len: u64) -> bool {
    len <= compressed_len.saturating_mul(EXPANSION_MAX)
}

/// Decompresses `input`, which must give exactly `len` bytes.
///
/// # Errors
/// [`DecompressError`] says whether the bytes are wrong or memory was refused.
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

/// Adds `count` bytes that begin at `from`, and may go on into what is added.
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

/// Why nothing was decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecompressError {
    /// The bytes are wrong.
    Corrupt,
    /// The allocator refused.
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
    fn anything_comes_back() {
        let mut random = Random::announced("lzf");
        for alphabet in [&b"a"[..], b"ab", b"abcdefgh", b"0123456789abcdefghijklmnopqrstuvwxyz"] {
            for _ in 0..300 {
                let text = random.text(alphabet, 0, 3000);
                round_trip(&text);
            }
        }
        for _ in 0..100 {
            // Matches from far away, at and beyond the longest distance.
            let piece = random.bytes(3, 400);
            let between = random.bytes(DISTANCE_MAX - 500, DISTANCE_MAX + 100);
            round_trip(&[&piece[..], &between, &piece, &piece].concat());
        }
    }

    #[test]
    fn what_repeats_becomes_short() {
        for (len, most) in [(21, 10), (264, 10), (1000, 30), (100_000, 1200)] {
            let compressed = round_trip(&vec![b'a'; len]);
            assert!(compressed <= most, "{len}: {compressed}");
        }
    }

    #[test]
    fn no_more_than_is_allowed() {
        let input = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut out = vec![7];
        assert!(!compress(input, &mut out, input.len()));
        assert_eq!(out, [7]);
        assert!(compress(input, &mut out, input.len() + 2));
        assert_eq!(out.len(), 1 + input.len() + 2);
    }

    /// Bytes as redis-server 7.0.15 compresses `a` a hundred times (`DUMP` shows them).
    #[test]
    fn redis_s_bytes_are_read() {
        assert_eq!(decompress(&[1, b'a', b'a', 0xe0, 0x57, 0, 1, b'a', b'a'], 100).unwrap(), [b'a'; 100]);
    }

    #[test]
    fn corrupt_bytes_are_refused() {
        for (bytes, len) in [
            (&[0x20, 0][..], 3),       // refers to before the beginning
            (&[0, b'a', 0x20, 1], 4),  // one too far back
            (&[0, b'a', 0x20, 0], 3),  // gives more
            (&[0, b'a', 0x20, 0], 5),  // gives less
            (&[0, b'a', 0x20], 4),     // cut off
            (&[0, b'a', 0xe0, 5], 15), // cut off
            (&[3, b'a', b'b'], 4),     // cut off
            (&[1, b'a', b'b'], 1),     // gives more
            (&[0, b'a'], 1 << 40),     // claims what it can't give
            (&[], 1),
        ] {
            assert_eq!(decompress(bytes, len), Err(DecompressError::Corrupt), "{bytes:?}");
        }
        assert_eq!(decompress(&[], 0), Ok(Vec::new()));
    }

    #[test]
    fn random_bytes_never_panic() {
        let mut random = Random::announced("lzf corrupt");
        for _ in 0..20_000 {
            let bytes = random.bytes(0, 40);
            let len = random.below(400) as usize;
            if let Ok(out) = decompress(&bytes, len) {
                assert_eq!(out.len(), len);
            }
        }
    }
}
