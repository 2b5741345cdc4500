//! The hash function for keys. The server hashes a key once per command. It computes the key's hash
//! slot and shard with CRC16, not with this function.

/// A seed for tests with which every key has one of two hashes.
#[cfg(test)]
pub(crate) const COLLIDING_SEED: u64 = u64::MAX;

const SECRET_STEP: u64 = 0xb492_b66f_be98_f273;
const LENGTH_STEP: u64 = 0x9ddf_ea08_eb38_2d69;

/// Multiplies to 128 bits and combines the two halves by XOR.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

#[inline(always)]
fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[inline(always)]
fn half(bytes: &[u8], at: usize) -> u64 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u64::from(u32::from_le_bytes(half))
}

/// Returns the 64-bit hash of a key. All calls for one dictionary must use the same `seed`.
///
/// The seed must be random and secret. The seed masks both factors of every product, so a client
/// that doesn't know the seed can't choose keys that collide. Not a cryptographic hash.
#[inline(always)] // Every command calls it.
pub fn hash_key(seed: u64, key: &[u8]) -> u64 {
    #[cfg(test)]
    if seed == COLLIDING_SEED {
        return if key.len().is_multiple_of(2) { 0x1234_5678_9abc_def0 } else { 0xfedc_ba98_7654_3210 };
    }
    let len = key.len();
    let secret = fold(seed ^ LENGTH_STEP, SECRET_STEP);
    let mixed = if len <= 16 {
        let (a, b) = if len >= 8 {
            (word(key, 0), word(key, len - 8))
        } else if len >= 4 {
            (half(key, 0), half(key, len - 4))
        } else if len > 0 {
            (u64::from(key[0]) << 8 | u64::from(key[len - 1]), u64::from(key[len / 2]))
        } else {
            (0, 0)
        };
        fold(a ^ seed, b ^ secret)
    } else {
        long(seed, secret, key)
    };
    // The top bits of the hash choose the segment. After one product these bits would be too
    // regular, so a second product mixes them.
    fold(mixed ^ seed, (len as u64).wrapping_mul(LENGTH_STEP) ^ secret | 1)
}

/// Hashes a key of more than 16 bytes in two independent lanes of 16 bytes each. The last 16 bytes
/// may overlap bytes that were hashed before.
#[inline]
fn long(seed: u64, secret: u64, key: &[u8]) -> u64 {
    let len = key.len();
    let (mut a, mut b) = (seed, secret);
    let mut at = 0;
    while len - at > 32 {
        a = fold(word(key, at) ^ a, word(key, at + 8) ^ secret);
        b = fold(word(key, at + 16) ^ b, word(key, at + 24) ^ seed);
        at += 32;
    }
    let rest = len - at;
    if rest > 16 {
        a = fold(word(key, at) ^ a, word(key, at + 8) ^ secret);
    }
    // The key has more than 16 bytes, so `len - 16` can't underflow.
    b = fold(word(key, len - 16) ^ b, word(key, len - 8) ^ seed);
    a ^ b.rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, seed};

    #[test]
    fn every_byte_and_the_length_count() {
        let mut random = Random::new(seed("every_byte_and_the_length_count"));
        for len in 0..if cfg!(miri) { 40 } else { 200 } {
            let secret = random.next();
            let key: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            let h = hash_key(secret, &key);
            assert_eq!(h, hash_key(secret, &key));
            assert_ne!(h, hash_key(secret ^ 1, &key));
            for i in 0..len {
                let mut other = key.clone();
                other[i] ^= 1 << random.below(8);
                assert_ne!(h, hash_key(secret, &other), "byte {i} of {len}");
            }
            let same = vec![b'a'; len];
            assert_ne!(hash_key(secret, &same), hash_key(secret, &[&same[..], b"a"].concat()), "length {len}");
        }
    }

    /// The top 32 bits spread keys evenly: chi-squared over 1024 cells (10 bits) at four shifts,
    /// for keys that differ only in a decimal counter.
    #[test]
    #[cfg_attr(miri, ignore = "statistics need many keys")]
    fn bits_are_uniform() {
        const CELLS: usize = 1024;
        const KEYS: usize = 200_000;
        let secret = seed("bits_are_uniform");
        for format in [|i: usize| format!("key:{i}"), |i| format!("{i:016}"), |i| format!("user:{i:040}:name")] {
            for shift in [54, 48, 40, 32] {
                let mut cells = [0_f64; CELLS];
                for i in 0..KEYS {
                    cells[(hash_key(secret, format(i).as_bytes()) >> shift) as usize % CELLS] += 1.0;
                }
                let expected = KEYS as f64 / CELLS as f64;
                let chi: f64 = cells.iter().map(|c| (c - expected).powi(2) / expected).sum();
                // 1023 degrees of freedom: mean 1023, standard deviation 45. The bounds are six
                // deviations from the mean.
                assert!((753.0..1294.0).contains(&chi), "chi-squared {chi} at shift {shift} of {}", format(7));
            }
        }
    }
}
