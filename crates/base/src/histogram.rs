//! A histogram of durations with one writer and any number of readers. It counts in the same ranges
//! as HdrHistogram with two significant digits. A *chunk* is an array of 128 counters.
//!
//! ```text
//! value, ns      chunk            counter in the chunk
//! 0 to 127       0                value                 exact
//! 128 to 255     1                value - 128           exact
//! 256 to 511     2                value / 2 - 128       2 ns wide
//! …              …                value / 2^k - 128     2^k wide: less than 1 % of the value
//! ```
//!
//! Redis stores its latencies in the same structure, and Redis's replies show the highest value of
//! a counter's range. A chunk takes 2 KiB and is allocated when the first value falls into it. The
//! latencies of one command rarely span more than six chunks.

use std::sync::OnceLock;

use crate::Counter;

/// Counters per chunk.
const CHUNK: usize = 128;
/// Number of chunks. The last one ends at the first power of two greater than [`VALUE_MAX`].
const CHUNKS: usize = 24;
/// The highest recorded value, in ns: a second, as in Redis. Longer durations count as a second.
pub const VALUE_MAX: u64 = 1_000_000_000;

/// The histogram described at the head of this module. Values are in nanoseconds.
#[derive(Debug, Default)]
pub struct Histogram {
    chunks: [OnceLock<Box<[Counter]>>; CHUNKS],
}

/// Returns the chunk and the counter of a value of at most [`VALUE_MAX`].
#[inline]
fn place(value: u64) -> (usize, usize) {
    if value < CHUNK as u64 {
        return (0, value as usize);
    }
    let shift = (u64::BITS - 1 - value.leading_zeros()) as usize - CHUNK.trailing_zeros() as usize;
    (shift + 1, (value >> shift) as usize - CHUNK)
}

/// Returns the lowest value that the given counter of the given chunk counts.
fn lowest(chunk: usize, counter: usize) -> u64 {
    if chunk == 0 { counter as u64 } else { ((CHUNK + counter) as u64) << (chunk - 1) }
}

/// Returns the highest value that the given counter of the given chunk counts.
fn highest(chunk: usize, counter: usize) -> u64 {
    if chunk == 0 {
        return counter as u64;
    }
    let shift = chunk - 1;
    (((CHUNK + counter) as u64 + 1) << shift) - 1
}

impl Histogram {
    /// Counts `value` `n` times. Only the owner may call it.
    #[inline]
    pub fn record(&self, value: u64, n: u64) {
        let (chunk, counter) = place(value.min(VALUE_MAX));
        let counters = self.chunks[chunk].get_or_init(|| (0..CHUNK).map(|_| Counter::new()).collect());
        counters[counter].add(n);
    }

    /// Resets all counts. Any thread may call it.
    pub fn reset(&self) {
        self.chunks.iter().filter_map(OnceLock::get).flat_map(|chunk| chunk.iter()).for_each(Counter::reset);
    }
}

/// The summed counts of several histograms at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// A pair for each counter: the highest value in the counter's range, and the counter's count.
    /// The pairs ascend by value. Counters with a count of 0 are omitted.
    counts: Vec<(u64, u64)>,
}

impl Distribution {
    /// Sums the counts of `histograms`.
    pub fn of<'h>(histograms: impl IntoIterator<Item = &'h Histogram>) -> Self {
        let mut all = std::collections::BTreeMap::new();
        for histogram in histograms {
            for (chunk, counters) in histogram.chunks.iter().enumerate() {
                for (counter, count) in counters.get().into_iter().flat_map(|counters| counters.iter()).enumerate() {
                    let count = count.get();
                    if count > 0 {
                        *all.entry(highest(chunk, counter)).or_default() += count;
                    }
                }
            }
        }
        Distribution { counts: all.into_iter().collect() }
    }

    /// Returns the number of values.
    pub fn len(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// Returns whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns a percentile: about `percent` % of the values are at most the result. The result is
    /// the highest value in the range of a counter. For 0 %, returns the lowest value in the range
    /// of the first counter that isn't empty. Returns 0 if there are no values.
    pub fn percentile(&self, percent: f64) -> u64 {
        if percent == 0.0 {
            return self.counts.first().map_or(0, |(value, _)| {
                let (chunk, counter) = place(*value);
                lowest(chunk, counter)
            });
        }
        let wanted = ((percent / 100.0 * self.len() as f64 + 0.5) as u64).max(1);
        let mut seen = 0;
        let found = self.counts.iter().find(|(_, count)| {
            seen += count;
            seen >= wanted
        });
        found.or(self.counts.last()).map_or(0, |(value, _)| *value)
    }

    /// Returns cumulative counts at the levels `first`, `2 * first`, `4 * first` and so on, until
    /// all values are counted. Each level gives a pair: the highest value in the range that
    /// contains the level, and the number of values up to this highest value. Omits levels that add
    /// no values.
    pub fn by_powers_of_two(&self, first: u64) -> Vec<(u64, u64)> {
        let (mut levels, mut level, mut before) = (Vec::new(), first, 0);
        let total = self.len();
        while before < total {
            let (chunk, counter) = place(level);
            let end = highest(chunk, counter);
            let count = self.counts.iter().take_while(|(value, _)| *value <= end).map(|(_, count)| count).sum();
            if count > before {
                levels.push((end, count));
            }
            before = count;
            level *= 2;
        }
        levels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_up_by_at_most_a_hundredth() {
        let mut last = None;
        let values =
            (0..5000).chain((12..30).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 7])).chain([VALUE_MAX]);
        for value in values.filter(|&value| value <= VALUE_MAX) {
            let (chunk, counter) = place(value);
            assert!(chunk < CHUNKS && counter < CHUNK, "{value}");
            let end = highest(chunk, counter);
            assert!(end >= value && end - value <= value / 100, "{value} {end}");
            assert_eq!(place(end), (chunk, counter), "{value}");
            if let Some((before, place_before)) = last
                && value > before
            {
                assert!((chunk, counter) >= place_before, "{value}");
            }
            last = Some((value, (chunk, counter)));
        }
    }

    #[test]
    fn percentiles_equal_those_of_redis() {
        let histogram = Histogram::default();
        for (value, n) in [(8_000, 1), (9_000, 2), (17_000, 1)] {
            histogram.record(value, n);
        }
        let distribution = Distribution::of([&histogram]);
        assert_eq!(distribution.by_powers_of_two(1024), [(8_255, 1), (16_511, 3), (33_023, 4)]);
        let percentiles = [0.0, 50.0, 99.0, 100.0].map(|percent| distribution.percentile(percent));
        assert_eq!(percentiles, [8_000, 9_023, 17_023, 17_023]);
        histogram.record(u64::MAX, 1);
        assert_eq!(Distribution::of([&histogram, &histogram]).len(), 10);
        histogram.reset();
        let nothing = Distribution::of([&histogram]);
        assert!(nothing.is_empty() && nothing.by_powers_of_two(1024).is_empty());
        assert_eq!(nothing.percentile(50.0), 0);
    }
}
