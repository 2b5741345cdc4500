//! `math.random` as in Redis: the generator of `drand48`. Scripts therefore draw the same numbers
//! on every machine.

/// Multiplier of the sequence (POSIX).
const MULTIPLIER: u64 = 0x5_DEEC_E66D;
/// Increment of the sequence.
const INCREMENT: u64 = 0xB;
/// The modulus of the sequence minus 1.
const MASK: u64 = (1 << 48) - 1;
/// The low 16 bits of the state after seeding. The higher bits contain the seed.
const SEED_TAIL: u64 = 0x330E;

/// Maximum number that [`Random::draw`] returns.
pub(crate) const DRAW_MAX: u32 = i32::MAX as u32;

pub(crate) struct Random {
    state: u64,
}

/// Seed of a new Lua state, the same as Redis's.
const FIRST_SEED: i32 = 0x1234_ABCD;

impl Default for Random {
    fn default() -> Self {
        Random::new(FIRST_SEED)
    }
}

impl Random {
    pub(crate) fn new(seed: i32) -> Self {
        Random { state: u64::from(seed as u32) << 16 | SEED_TAIL }
    }

    /// Advances the sequence. Returns the highest 31 bits of the new state.
    pub(crate) fn draw(&mut self) -> u32 {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK;
        (self.state >> 17) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_equal_lrand48() {
        // Expected values from glibc: srand48(0), then lrand48() three times.
        let mut random = Random::new(0);
        assert_eq!([random.draw(), random.draw(), random.draw()], [366_850_414, 1_610_402_240, 206_956_554]);
    }
}
