//! Draws the numbers of keys by the patterns of memtier_benchmark. `Template` turns a number into a
//! key.

use std::fmt;
use std::str::FromStr;

use pantala_base::Random;

/// The order or distribution of the keys of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// All keys are equally likely.
    Uniform,
    /// Ascending. Each client uses the whole range.
    Sequential,
    /// Ascending. Each client uses its own part of the range.
    Parallel,
    /// A normal distribution around the median.
    Gaussian,
    /// Zipf's law, in which the lowest key is the most popular.
    Zipf,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "R" | "r" => Ok(Self::Uniform),
            "S" | "s" => Ok(Self::Sequential),
            "P" | "p" => Ok(Self::Parallel),
            "G" | "g" => Ok(Self::Gaussian),
            "Z" | "z" => Ok(Self::Zipf),
            _ => Err(format!("'{text}' is no key pattern: R, S, P, G or Z")),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uniform => "R",
            Self::Sequential => "S",
            Self::Parallel => "P",
            Self::Gaussian => "G",
            Self::Zipf => "Z",
        })
    }
}

/// Maximum standard deviation of the Gaussian pattern, as a multiple of the length of the range.
/// With this value the pattern is nearly uniform. A larger value would only increase the number of
/// draws outside the range, which are repeated.
pub(crate) const STDDEV_RANGES_MAX: f64 = 10.0;

/// The keys that a run may use, and the parameters of the patterns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) minimum: u64,
    /// Highest key, inclusive. It is at least `minimum`.
    pub(crate) maximum: u64,
    /// Median of the Gaussian pattern. It is within the range.
    pub(crate) median: f64,
    /// Standard deviation of the Gaussian pattern. It is above zero and at most
    /// [`STDDEV_RANGES_MAX`] times the number of keys.
    pub(crate) stddev: f64,
    /// Exponent of the Zipf pattern. It is above zero.
    pub(crate) zipf_exponent: f64,
}

impl Range {
    /// Returns the number of keys in the range.
    pub(crate) fn count(&self) -> u64 {
        self.maximum - self.minimum + 1
    }

    /// Returns the first and last key of the part `index`, if the range is divided into `parts`
    /// parts. The last part includes the remainder. If there are more parts than keys, each surplus
    /// part consists of the last key.
    pub(crate) fn part(&self, index: u64, parts: u64) -> (u64, u64) {
        let each = (self.count() / parts).max(1);
        let first = self.minimum.saturating_add(index.saturating_mul(each)).min(self.maximum);
        let last = if index + 1 == parts { self.maximum } else { (first + (each - 1)).min(self.maximum) };
        (first, last)
    }
}

/// Draws keys by one pattern. The state has only a few words, so every client can have its own.
#[derive(Clone, Debug)]
pub(crate) enum Keys {
    Uniform { minimum: u64, count: u64 },
    Walk { first: u64, last: u64, next: u64 },
    Gaussian { range: Range, spare: Option<f64> },
    Zipf { minimum: u64, law: Zipf },
}

impl Keys {
    /// Creates the keys of the client `client`, one of `clients` clients.
    pub(crate) fn new(pattern: Pattern, range: &Range, client: u64, clients: u64) -> Self {
        match pattern {
            Pattern::Uniform => Self::Uniform { minimum: range.minimum, count: range.count() },
            Pattern::Sequential => Self::Walk { first: range.minimum, last: range.maximum, next: range.minimum },
            Pattern::Parallel => {
                let (first, last) = range.part(client, clients);
                Self::Walk { first, last, next: first }
            }
            Pattern::Gaussian => Self::Gaussian { range: *range, spare: None },
            Pattern::Zipf => Self::Zipf { minimum: range.minimum, law: Zipf::new(range.count(), range.zipf_exponent) },
        }
    }

    /// Returns the next key, which is within the range.
    #[inline]
    pub(crate) fn draw(&mut self, random: &mut Random) -> u64 {
        match self {
            Self::Uniform { minimum, count } => *minimum + random.below(*count),
            Self::Walk { first, last, next } => {
                let key = *next;
                *next = if key == *last { *first } else { key + 1 };
                key
            }
            Self::Gaussian { range, spare } => loop {
                let deviation = spare.take().unwrap_or_else(|| {
                    let (now, later) = normal_pair(random);
                    *spare = Some(later);
                    now
                });
                let key = (range.median + deviation * range.stddev).round();
                // Draw again if the number is outside the range: clamping would favour the two
                // ends. Even if the deviation is `STDDEV_RANGES_MAX` and the median is at one end,
                // at least one draw in fifty is inside the range.
                if key >= range.minimum as f64 && key <= range.maximum as f64 {
                    // Above 2^53, the ends of the range are rounded in the conversion to `f64`. The
                    // key may therefore still be outside the range.
                    return (key as u64).clamp(range.minimum, range.maximum);
                }
            },
            Self::Zipf { minimum, law } => *minimum + (law.rank(random) - 1),
        }
    }
}

/// Returns two independent standard normal numbers, by Marsaglia's polar method.
fn normal_pair(random: &mut Random) -> (f64, f64) {
    loop {
        let (x, y) = (2.0 * random.unit() - 1.0, 2.0 * random.unit() - 1.0);
        let square = x * x + y * y;
        if square > 0.0 && square < 1.0 {
            let factor = (-2.0 * square.ln() / square).sqrt();
            return (x * factor, y * factor);
        }
    }
}

/// Draws ranks `1..=count` with a probability proportional to `rank^-exponent`. A draw takes
/// constant time and needs no table, for any number of keys.
///
/// The method is rejection-inversion (Hörmann and Derflinger, 1996). It draws a point under the hat
/// function `x^-exponent`, and accepts or rejects the nearest rank.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    count: f64,
    exponent: f64,
    /// Integral of the hat function up to the last rank plus one half.
    area_end: f64,
    /// Integral of the hat function up to the end of the first rank's column, minus this column's
    /// area.
    area_begin: f64,
    /// A point that is at most this far below a rank is accepted without a further check.
    sure: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        let mut law = Self { count: count as f64, exponent, area_end: 0.0, area_begin: 0.0, sure: 0.0 };
        law.area_end = law.integral(law.count + 0.5);
        law.area_begin = law.integral(1.5) - 1.0;
        law.sure = 2.0 - law.integral_inverse(law.integral(2.5) - law.height(2.0));
        law
    }

    fn height(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// Returns the antiderivative of `x^-exponent` that is zero at 1. The computation is
    /// numerically stable for exponents near 1.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        log * if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 }
    }

    fn integral_inverse(&self, area: f64) -> f64 {
        let t = (area * (1.0 - self.exponent)).max(-1.0);
        (area * if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 }).exp()
    }

    fn rank(&self, random: &mut Random) -> u64 {
        loop {
            let area = self.area_end + random.unit() * (self.area_begin - self.area_end);
            let x = self.integral_inverse(area);
            let rank = x.round().clamp(1.0, self.count);
            if rank - x <= self.sure || area >= self.integral(rank + 0.5) - self.height(rank) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(minimum: u64, maximum: u64) -> Range {
        Range {
            minimum,
            maximum,
            median: (minimum + maximum) as f64 / 2.0,
            stddev: (maximum - minimum) as f64 / 6.0,
            zipf_exponent: 1.0,
        }
    }

    fn counts(pattern: Pattern, range: &Range, draws: u64) -> Vec<u64> {
        let mut keys = Keys::new(pattern, range, 0, 1);
        let mut random = Random::from_seed(7);
        let mut counts = vec![0u64; range.count() as usize];
        for _ in 0..draws {
            let key = keys.draw(&mut random);
            assert!((range.minimum..=range.maximum).contains(&key), "{key}");
            counts[(key - range.minimum) as usize] += 1;
        }
        counts
    }

    #[test]
    fn patterns_have_names() {
        for name in ["R", "S", "P", "G", "Z"] {
            assert_eq!(name.parse::<Pattern>().unwrap().to_string(), name);
        }
        assert!("X".parse::<Pattern>().unwrap_err().contains("'X'"));
    }

    #[test]
    fn uniform_is_even() {
        // Each of the 100 keys is expected 10,000 times. The bounds are at six standard deviations
        // of 100.
        assert!(counts(Pattern::Uniform, &range(5, 104), 1_000_000).iter().all(|&n| (9_400..10_600).contains(&n)));
    }

    #[test]
    fn sequential_wraps_around() {
        let mut keys = Keys::new(Pattern::Sequential, &range(3, 5), 1, 4);
        let mut random = Random::from_seed(1);
        let drawn: Vec<u64> = (0..7).map(|_| keys.draw(&mut random)).collect();
        assert_eq!(drawn, [3, 4, 5, 3, 4, 5, 3]);
    }

    #[test]
    fn parallel_parts_cover_the_range_once() {
        for (minimum, maximum, parts) in [(0, 999, 7), (1, 10, 10), (1, 3, 1), (0, 16_383, 40)] {
            let range = range(minimum, maximum);
            let mut covered = Vec::new();
            for index in 0..parts {
                let (first, last) = range.part(index, parts);
                covered.extend(first..=last);
            }
            assert_eq!(covered, (minimum..=maximum).collect::<Vec<_>>(), "{parts} parts");
        }
        // Even with more clients than keys, every part stays within the range.
        assert!((0..9).all(|index| range(1, 4).part(index, 9) <= (4, 4)));
    }

    #[test]
    fn gaussian_has_its_median_and_deviation() {
        let mut range = range(1, 100_000);
        range.median = 30_000.0;
        range.stddev = 5_000.0;
        let mut keys = Keys::new(Pattern::Gaussian, &range, 0, 1);
        let mut random = Random::from_seed(3);
        let drawn: Vec<f64> = (0..200_000).map(|_| keys.draw(&mut random) as f64).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let variance = drawn.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / drawn.len() as f64;
        assert!((mean - 30_000.0).abs() < 60.0, "{mean}");
        assert!((variance.sqrt() - 5_000.0).abs() < 50.0, "{}", variance.sqrt());
        let within = drawn.iter().filter(|x| (**x - 30_000.0).abs() <= 5_000.0).count() as f64 / drawn.len() as f64;
        assert!((within - 0.6827).abs() < 0.01, "{within}");
    }

    #[test]
    fn gaussian_stays_inside_where_its_median_is_an_end() {
        let mut range = range(10, 20);
        range.median = 10.0;
        range.stddev = 50.0;
        assert!(counts(Pattern::Gaussian, &range, 10_000).iter().all(|&n| n > 0));
    }

    #[test]
    fn the_widest_deviation_ends() {
        for (minimum, maximum) in [(0, 0), (0, 1), (5, 1_004)] {
            let mut range = range(minimum, maximum);
            range.median = minimum as f64;
            range.stddev = range.count() as f64 * STDDEV_RANGES_MAX;
            let counts = counts(Pattern::Gaussian, &range, 50_000);
            assert!(counts.iter().all(|&n| n > 0), "{minimum} to {maximum}: {counts:?}");
        }
        // Adjacent floating-point numbers in this range differ by more than one.
        let range = Range { minimum: u64::MAX - 1_000, maximum: u64::MAX - 1, median: 2f64.powi(64), ..range(0, 999) };
        let mut keys = Keys::new(Pattern::Gaussian, &range, 0, 1);
        let mut random = Random::from_seed(1);
        assert!((0..1_000).all(|_| (range.minimum..=range.maximum).contains(&keys.draw(&mut random))));
    }

    #[test]
    fn zipf_follows_its_law() {
        for exponent in [0.5, 1.0, 1.2, 2.5] {
            let mut range = range(1, 1_000);
            range.zipf_exponent = exponent;
            let draws = 1_000_000u64;
            let counts = counts(Pattern::Zipf, &range, draws);
            let total: f64 = (1..=1_000).map(|rank| f64::from(rank).powf(-exponent)).sum();
            for rank in [1usize, 2, 3, 10, 100, 1_000] {
                let expected = (rank as f64).powf(-exponent) / total * draws as f64;
                let tolerance = 6.0 * expected.sqrt() + 3.0;
                let seen = counts[rank - 1] as f64;
                assert!((seen - expected).abs() < tolerance, "exponent {exponent}, rank {rank}: {seen} of {expected}");
            }
        }
    }

    #[test]
    fn zipf_of_one_key() {
        assert_eq!(counts(Pattern::Zipf, &range(9, 9), 100), [100]);
    }

    #[test]
    fn zipf_of_extreme_exponents_ends() {
        let mut range = range(1, 1_000);
        range.zipf_exponent = f64::MIN_POSITIVE;
        assert!(counts(Pattern::Zipf, &range, 100_000).iter().all(|&n| n > 0), "nearly uniform");
        range.zipf_exponent = f64::MAX;
        assert_eq!(counts(Pattern::Zipf, &range, 1_000)[0], 1_000, "the first key only");
    }
}
