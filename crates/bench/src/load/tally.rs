//! The counts that a thread makes during a run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

/// Maximum latency that histograms can record, in nanoseconds. A longer latency is recorded as this
/// maximum.
pub(crate) const LATENCY_MAX_NS: u64 = 100_000_000_000;
/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;
/// Maximum number of different error texts that are kept. Errors with further texts are only
/// counted.
const ERROR_TEXTS_MAX: usize = 16;
/// Maximum number of bytes of an error text that are kept.
const ERROR_TEXT_BYTES_MAX: usize = 120;

/// A histogram with [`DIGITS`] digits distinguishes all values below this power of two. From there
/// on, it distinguishes half as many values between each power of two and the next.
pub(crate) const SUB_BUCKETS: u64 = (2 * 10u64.pow(DIGITS as u32)).next_power_of_two();

/// Returns an empty histogram of latencies in nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    // The constants are within the range that the crate documents.
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS).expect("the bounds are valid")
}

/// The counts of one thread, or the sum of several threads' counts.
pub(crate) struct Tally {
    /// The latencies of each command since the last [`Tally::settle`].
    recent: Vec<Histogram<u64>>,
    /// The latencies of each command before the last [`Tally::settle`].
    pub(crate) latency_ns: Vec<Histogram<u64>>,
    pub(crate) hits: Vec<u64>,
    pub(crate) misses: Vec<u64>,
    /// Number of error replies, which don't count as operations.
    pub(crate) errors: u64,
    pub(crate) error_texts: BTreeMap<String, u64>,
    /// Number of requests that were sent again, to another node.
    pub(crate) redirections: u64,
    /// Number of requests that got no reply.
    pub(crate) unanswered: u64,
    pub(crate) connections_lost: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// Consecutive operations that aren't recorded yet: their command, their start time, and how
    /// many there are.
    run: (u16, u64, u64),
}

impl Tally {
    pub(crate) fn new(commands: usize) -> Self {
        Self {
            recent: vec![histogram(); commands],
            latency_ns: vec![histogram(); commands],
            hits: vec![0; commands],
            misses: vec![0; commands],
            errors: 0,
            error_texts: BTreeMap::new(),
            redirections: 0,
            unanswered: 0,
            connections_lost: 0,
            sent_bytes: 0,
            received_bytes: 0,
            run: (0, 0, 0),
        }
    }

    /// Records an operation that started at `since_ns` and whose reply arrived at `now_ns`.
    /// Consecutive operations with the same command, start and end become one record. This is
    /// common, because operations whose replies arrive in one read have the same end, and often the
    /// same start.
    #[inline]
    pub(crate) fn record(&mut self, command: u16, since_ns: u64, now_ns: u64) {
        if (self.run.0, self.run.1) == (command, since_ns) {
            self.run.2 += 1;
        } else {
            self.record_run(now_ns);
            self.run = (command, since_ns, 1);
        }
    }

    /// Records the operations in `run`. Must be called at the end of each read, because only
    /// operations whose replies arrive in one read have the same end.
    #[inline]
    pub(crate) fn record_run(&mut self, now_ns: u64) {
        let (command, since_ns, count) = self.run;
        if count > 0 {
            let latency_ns = now_ns.saturating_sub(since_ns).max(1);
            self.recent[usize::from(command)].saturating_record_n(latency_ns, count);
            self.run.2 = 0;
        }
    }

    /// Adds the recent latencies to the total and to `interval`, and clears the recent ones.
    /// Returns the number of recent latencies.
    pub(crate) fn settle(&mut self, interval: &mut Histogram<u64>) -> u64 {
        let mut moved = 0;
        for (recent, all) in self.recent.iter_mut().zip(&mut self.latency_ns) {
            moved += recent.len();
            // All histograms have the same bounds, so no value is out of range.
            *all += &*recent;
            *interval += &*recent;
            recent.reset();
        }
        moved
    }

    /// Counts an error. Keeps the texts of the first [`ERROR_TEXTS_MAX`] different errors.
    pub(crate) fn error(&mut self, text: &[u8]) {
        self.errors += 1;
        let text = String::from_utf8_lossy(&text[..text.len().min(ERROR_TEXT_BYTES_MAX)]);
        if let Some(count) = self.error_texts.get_mut(text.as_ref()) {
            *count += 1;
        } else if self.error_texts.len() < ERROR_TEXTS_MAX {
            self.error_texts.insert(text.into_owned(), 1);
        }
    }

    /// Counts a lost connection with `unanswered` requests in flight.
    pub(crate) fn lost(&mut self, why: &str, unanswered: u64) {
        self.connections_lost += 1;
        self.unanswered += unanswered;
        if self.error_texts.len() < ERROR_TEXTS_MAX || self.error_texts.contains_key(why) {
            *self.error_texts.entry(why.to_owned()).or_default() += 1;
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn add(&mut self, other: &Tally) {
        for command in 0..self.latency_ns.len() {
            self.latency_ns[command] += &other.latency_ns[command];
            self.hits[command] += other.hits[command];
            self.misses[command] += other.misses[command];
        }
        for (text, count) in &other.error_texts {
            *self.error_texts.entry(text.clone()).or_default() += count;
        }
        self.errors += other.errors;
        self.redirections += other.redirections;
        self.unanswered += other.unanswered;
        self.connections_lost += other.connections_lost;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_recorded_with_their_counts() {
        let mut tally = Tally::new(2);
        for (command, since_ns) in [(0, 100), (0, 100), (1, 100), (0, 400), (0, 400), (0, 400)] {
            tally.record(command, since_ns, 1_000);
        }
        tally.record_run(1_000);
        tally.record_run(9_000);
        let mut interval = histogram();
        assert_eq!(tally.settle(&mut interval), 6);
        assert_eq!((tally.latency_ns[0].len(), tally.latency_ns[1].len()), (5, 1));
        assert_eq!((tally.latency_ns[0].min(), tally.latency_ns[0].max()), (600, 900));
        assert_eq!(tally.latency_ns[0].count_at(600), 3);
        assert_eq!((interval.len(), tally.settle(&mut interval)), (6, 0));
    }

    #[test]
    fn percentiles_are_within_a_thousandth() {
        let mut tally = Tally::new(1);
        for latency_ns in 1..=100_000u64 {
            tally.record(0, 1_000_000 - latency_ns * 10, 1_000_000);
        }
        tally.record_run(1_000_000);
        tally.settle(&mut histogram());
        for (quantile, expected) in [(0.5, 500_000.0), (0.99, 990_000.0), (0.999, 999_000.0), (1.0, 1_000_000.0)] {
            let seen = tally.latency_ns[0].value_at_quantile(quantile) as f64;
            assert!((seen / expected - 1.0).abs() <= 0.001, "{quantile}: {seen}");
        }
    }

    #[test]
    fn latencies_beyond_the_bound_count_as_the_bound() {
        let mut tally = Tally::new(1);
        tally.record(0, 0, LATENCY_MAX_NS);
        tally.record_run(LATENCY_MAX_NS * 3);
        tally.settle(&mut histogram());
        let seen = tally.latency_ns[0].max() as f64 / LATENCY_MAX_NS as f64;
        assert!((seen - 1.0).abs() < 0.5 && tally.latency_ns[0].len() == 1, "{seen}");
    }

    #[test]
    fn error_texts_are_bounded() {
        let mut tally = Tally::new(1);
        for number in 0..100 {
            tally.error(format!("ERR {number}").as_bytes());
            tally.error(b"ERR 0");
        }
        assert_eq!((tally.errors, tally.error_texts.len(), tally.error_texts["ERR 0"]), (200, ERROR_TEXTS_MAX, 101));
    }

    #[test]
    fn threads_are_added_up() {
        let (mut sum, mut one) = (Tally::new(1), Tally::new(1));
        one.record(0, 1, 5);
        one.record_run(5);
        one.settle(&mut histogram());
        one.error(b"x");
        one.hits[0] = 3;
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.latency_ns[0].len(), sum.errors, sum.error_texts["x"], sum.hits[0]), (2, 2, 2, 6));
    }
}
