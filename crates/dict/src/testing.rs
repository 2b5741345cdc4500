//! Seeded randomness for tests. The seed is printed, so that a failure can be replayed.

/// Returns the seed of a test, from `PANTALA_TEST_SEED` or the clock, and prints it.
pub(crate) fn seed(test: &str) -> u64 {
    let seed = match std::env::var("PANTALA_TEST_SEED") {
        Ok(text) => text.parse().expect("PANTALA_TEST_SEED is a number"),
        Err(_) if cfg!(miri) => 42,
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64),
    };
    println!("{test}: PANTALA_TEST_SEED={seed}");
    seed
}

/// A small generator (Weyl sequence through a multiply-xor mixer).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ x >> 32
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
