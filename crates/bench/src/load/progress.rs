//! Shows the progress of a run. On a terminal, updates one line. Otherwise prints a new line every
//! few seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};

use super::Watch;
use super::outcome::Sample;

/// Interval between lines if stderr isn't a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Progress {
    /// `Some` if stderr is a terminal.
    bar: Option<ProgressBar>,
    total: Option<u64>,
    begin: Instant,
    last_line: Instant,
}

impl Progress {
    /// Starts to show progress. `total` is the number of operations, if it is known.
    pub(super) fn new(total: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(indicatif::ProgressStyle::with_template("{msg}").expect("the template has one known part"));
            bar
        });
        let now = Instant::now();
        Self { bar, total, begin: now, last_line: now }
    }

    /// Formats a line of progress after `elapsed`.
    fn line(&self, sample: &Sample, operations: u64, elapsed: Duration) -> String {
        let average = operations as f64 / elapsed.as_secs_f64().max(1e-9);
        let part = self
            .total
            .map_or_else(String::new, |total| format!(" {:>3.0}%", operations as f64 * 100.0 / total.max(1) as f64));
        format!(
            "{:>5.0} s{part} {operations:>12} ops, now {:>9.0}/s, average {average:>9.0}/s, p99 {:>8.1} us",
            sample.at_s, sample.operations_per_s, sample.p99_us
        )
    }

    /// Returns whether a line is due at `now`. If so, schedules the next line.
    fn is_line_due(&mut self, now: Instant) -> bool {
        let due = now.duration_since(self.last_line) >= LINE_EVERY;
        if due {
            self.last_line = now;
        }
        due
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Progress {
    fn sample(&mut self, sample: &Sample, operations: u64) {
        let line = self.line(sample, operations, self.begin.elapsed());
        if let Some(bar) = &self.bar {
            bar.set_message(line);
        } else if self.is_line_due(Instant::now()) {
            // The error is ignored, because stderr may be closed.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(total: Option<u64>) -> Progress {
        let now = Instant::now();
        Progress { bar: None, total, begin: now, last_line: now }
    }

    #[test]
    fn a_line_has_rate_average_and_p99() {
        let sample = Sample { at_s: 4.0, operations_per_s: 1_500.4, p99_us: 812.34 };
        let line = |total| progress(total).line(&sample, 4_000, Duration::from_secs(4));
        assert_eq!(line(None), "    4 s         4000 ops, now      1500/s, average      1000/s, p99    812.3 us");
        assert_eq!(
            line(Some(16_000)),
            "    4 s  25%         4000 ops, now      1500/s, average      1000/s, p99    812.3 us"
        );
        assert!(line(Some(0)).contains('%'), "nothing to do is no division by nothing");
    }

    #[test]
    fn lines_that_stay_are_some_seconds_apart() {
        let mut progress = progress(None);
        let begin = progress.begin;
        let due: Vec<u64> =
            (0..=16).filter(|second| progress.is_line_due(begin + Duration::from_secs(*second))).collect();
        assert_eq!(due, [5, 10, 15]);
    }
}
