//! Generates values, TTLs and random numbers.

use pantala_base::Random;

use super::template::write_number;

/// The pool of random bytes is longer than the longest value by this many bytes. Values are cut
/// from the pool at random positions. The number is much larger than a cache line, and much smaller
/// than a cache.
const POOL_EXTRA_BYTES: usize = 64 * 1024;

/// The range of the lengths of values. Lengths are uniformly distributed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) minimum: u64,
    /// Maximum length, inclusive.
    pub(crate) maximum: u64,
}

/// Generates values. All clients of a thread share one instance.
#[derive(Debug)]
pub(crate) struct Data {
    sizes: Sizes,
    expiry_seconds: (u64, u64),
    /// Minimum and maximum of the numbers that replace `__random__`.
    numbers: (u64, u64),
    /// The bytes from which values are cut: all `x`, or random.
    pool: Vec<u8>,
    random: bool,
    /// The complete encoded argument, if all values are equal. Writing it takes a single copy.
    whole: Option<Vec<u8>>,
}

impl Data {
    pub(crate) fn new(sizes: Sizes, expiry_seconds: (u64, u64), numbers: (u64, u64), random: bool, seed: u64) -> Self {
        let longest = sizes.maximum as usize;
        let mut pool = vec![b'x'; longest + if random { POOL_EXTRA_BYTES } else { 0 }];
        if random {
            Random::from_seed(seed).fill(&mut pool);
        }
        let whole = (!random && sizes.minimum == sizes.maximum)
            .then(|| [format!("${longest}\r\n").as_bytes(), &pool, b"\r\n"].concat());
        Self { sizes, expiry_seconds, numbers, pool, random, whole }
    }

    /// Appends an argument that consists of `before`, a value and `after`.
    #[inline]
    pub(super) fn write(&self, out: &mut Vec<u8>, before: &[u8], after: &[u8], random: &mut Random) {
        if let Some(whole) = self.whole.as_ref().filter(|_| before.is_empty() && after.is_empty()) {
            out.extend_from_slice(whole);
            return;
        }
        let len = between(self.sizes.minimum, self.sizes.maximum, random) as usize;
        let at = if self.random { random.below((self.pool.len() - len) as u64 + 1) as usize } else { 0 };
        out.push(b'$');
        write_number(out, (before.len() + len + after.len()) as u64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(before);
        out.extend_from_slice(&self.pool[at..at + len]);
        out.extend_from_slice(after);
        out.extend_from_slice(b"\r\n");
    }

    /// Returns a TTL in seconds.
    pub(super) fn expiry(&self, random: &mut Random) -> u64 {
        between(self.expiry_seconds.0, self.expiry_seconds.1, random)
    }

    /// Returns a random number.
    pub(super) fn number(&self, random: &mut Random) -> u64 {
        between(self.numbers.0, self.numbers.1, random)
    }
}

fn between(minimum: u64, maximum: u64, random: &mut Random) -> u64 {
    if minimum == maximum { minimum } else { minimum + random.below(maximum - minimum + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(sizes: Sizes, random: bool) -> Vec<Vec<u8>> {
        let data = Data::new(sizes, (1, 9), (0, 0), random, 5);
        let mut generator = Random::from_seed(2);
        (0..1_000)
            .map(|_| {
                let mut out = Vec::new();
                data.write(&mut out, b"", b"", &mut generator);
                let line = out.iter().position(|byte| *byte == b'\n').unwrap();
                let len: usize = std::str::from_utf8(&out[1..line - 1]).unwrap().parse().unwrap();
                assert_eq!(out.len(), line + 1 + len + 2);
                out[line + 1..line + 1 + len].to_vec()
            })
            .collect()
    }

    #[test]
    fn lengths_fill_their_range() {
        let values = lengths(Sizes { minimum: 2, maximum: 4 }, false);
        assert!([2, 3, 4].iter().all(|len| values.iter().filter(|value| value.len() == *len).count() > 200));
        assert!(values.iter().all(|value| value.iter().all(|byte| *byte == b'x')));
    }

    #[test]
    fn random_values_differ() {
        let mut values = lengths(Sizes { minimum: 32, maximum: 32 }, true);
        values.sort();
        values.dedup();
        assert!(values.len() > 980, "{}", values.len());
    }

    #[test]
    fn values_may_be_empty() {
        assert!(lengths(Sizes { minimum: 0, maximum: 0 }, false).iter().all(Vec::is_empty));
    }

    #[test]
    fn numbers_fill_their_range() {
        let data = Data::new(Sizes { minimum: 1, maximum: 1 }, (3, 5), (6, 8), false, 1);
        let mut random = Random::from_seed(1);
        for (drawn, first) in [(Data::expiry as fn(&Data, &mut Random) -> u64, 3), (Data::number, 6)] {
            let mut seen = [0u32; 9];
            (0..3_000).for_each(|_| seen[drawn(&data, &mut random) as usize] += 1);
            assert!(seen[first..first + 3].iter().all(|count| *count > 800), "{seen:?}");
        }
    }
}
