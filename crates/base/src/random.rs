//! A small, fast, seeded generator (xoshiro256++). Its output is statistically good, but not
//! suitable for secrets.
//!
//! Code in Pantala that needs randomness takes a [`Random`] from its caller. A test that prints its
//! seed can therefore be replayed.

use std::hash::{BuildHasher, Hasher};
use std::io::Read;

/// The generator: 32 bytes of state.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

/// Advances SplitMix64 by one step. SplitMix64 spreads a seed with few set bits over the whole
/// state.
fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// Returns a generator seeded with `seed`. Equal seeds give equal sequences on every platform.
    pub fn from_seed(seed: u64) -> Self {
        let mut mix = seed;
        // xoshiro256++ must not start with an all-zero state. SplitMix64 maps different counters to
        // different outputs, so four outputs in a row are never all zero.
        let state = std::array::from_fn(|_| splitmix64(&mut mix));
        Self { state }
    }

    /// Returns a generator seeded by the operating system, or by the standard library's hash keys
    /// and the clock if `/dev/urandom` can't be read.
    pub fn from_entropy() -> Self {
        let mut bytes = [0u8; 8];
        let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
        if read.is_ok() {
            return Self::from_seed(u64::from_ne_bytes(bytes));
        }
        let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        hasher.write_u128(since.as_nanos());
        Self::from_seed(hasher.finish())
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number in `0..bound`, without bias.
    ///
    /// # Panics
    /// If `bound` is zero.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound != 0, "an empty range has no random number");
        // Multiply-shift: the result is the high half of the product. The loop rejects the few
        // products whose low half would bias the result.
        let mut product = u128::from(self.next_u64()) * u128::from(bound);
        if (product as u64) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u64) < threshold {
                product = u128::from(self.next_u64()) * u128::from(bound);
            }
        }
        (product >> 64) as u64
    }

    /// Returns a number in `0.0..1.0`, a multiple of 2⁻⁵³.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let (mut a, mut b, mut c) = (Random::from_seed(7), Random::from_seed(7), Random::from_seed(8));
        let first: Vec<u64> = (0..100).map(|_| a.next_u64()).collect();
        assert!(first.iter().all(|&x| x == b.next_u64()));
        assert!(first.iter().any(|&x| x != c.next_u64()));
    }

    #[test]
    fn xoshiro_reference() {
        // The published sequence of xoshiro256++ for the state 1, 2, 3, 4.
        let mut random = Random { state: [1, 2, 3, 4] };
        let first: [u64; 4] = std::array::from_fn(|_| random.next_u64());
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn below_is_uniform_and_bounded() {
        let mut random = Random::from_seed(1);
        let mut counts = [0u32; 10];
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
        }
        // The bounds are ten standard deviations (95 each) around 10,000.
        assert!(counts.iter().all(|&n| (9_050..10_950).contains(&n)), "{counts:?}");
        assert_eq!(random.below(1), 0);
        assert!((0..1_000).all(|_| random.below(u64::MAX) < u64::MAX));
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&random.unit())));
    }

    #[test]
    #[should_panic(expected = "empty range")]
    fn below_zero_panics() {
        Random::from_seed(1).below(0);
    }

    #[test]
    fn fill_covers_odd_lengths() {
        for len in 0..40 {
            let mut bytes = vec![0u8; len];
            let mut seen = vec![0u8; len];
            let mut random = Random::from_seed(len as u64);
            for _ in 0..64 {
                random.fill(&mut bytes);
                seen.iter_mut().zip(&bytes).for_each(|(s, b)| *s |= b);
            }
            assert!(seen.iter().all(|&b| b == 0xff), "a byte of {len} was never written");
        }
    }

    #[test]
    fn entropy_differs() {
        assert_ne!(Random::from_entropy().next_u64(), Random::from_entropy().next_u64());
    }
}
