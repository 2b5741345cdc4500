//! Seeded random numbers. The generator is implemented here and not by a library, because reports
//! and documents quote seeds. A quoted seed must always replay the same numbers.

use std::time::{SystemTime, UNIX_EPOCH};

/// A SplitMix64 generator. Every seed gives a different stream.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the stream of `seed`.
    #[must_use]
    pub fn from_seed(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns the seed in `PANTALA_SEED`, or a seed from the clock if the variable isn't set.
    /// Prints the seed on standard error, with the test's name.
    ///
    /// # Panics
    /// If `PANTALA_SEED` isn't a number.
    #[must_use]
    pub fn seed(test: &str) -> u64 {
        let seed = match std::env::var("PANTALA_SEED") {
            Ok(text) => text.trim().parse().expect("PANTALA_SEED must be an unsigned number"),
            Err(_) => {
                SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64 % 1_000_000_007)
            }
        };
        eprintln!("{test}: PANTALA_SEED={seed}");
        seed
    }

    /// Returns the seed of the run `name` of a test: a hash of that name and the `announced` seed.
    /// A test with several runs prints only the announced seed, which replays all runs. Each run
    /// still has its own stream.
    #[must_use]
    pub fn seed_of(announced: u64, name: &str) -> u64 {
        // FNV-1a, which never changes.
        let named = name
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Random(announced ^ named).next_u64()
    }

    /// Returns the next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number less than `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// Returns a number in `low..=high`.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as usize) as i64
    }

    /// Returns true with a probability of 1 in `n`.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// Returns one of `items`.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// Returns `len` arbitrary bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next_u64() as u8).collect()
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_bounds_hold() {
        let (mut one, mut two) = (Random::from_seed(7), Random::from_seed(7));
        let mut seen = [false; 5];
        for _ in 0..200 {
            let value = one.below(5);
            assert_eq!(value, two.below(5));
            seen[value] = true;
        }
        assert_eq!(seen, [true; 5]);
        assert!((0..100).all(|_| (-3..=3).contains(&one.between(-3, 3))));
    }

    #[test]
    fn runs_of_one_announced_seed_have_streams_of_their_own() {
        let names =
            ["one_shard on epoll", "one_shard on io_uring", "forty_shards on epoll", "forty_shards on io_uring"];
        let mut seeds: Vec<u64> =
            names.iter().flat_map(|name| [1, 2].map(|seed| Random::seed_of(seed, name))).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 2 * names.len());
        // Reports and documents quote seeds, so this function must never change.
        assert_eq!(Random::seed_of(9001, "a"), 0x4bdc_2ce1_c188_c3b5);
    }
}
