//! How far a run is: one line that changes on a terminal, a line every few seconds elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};

use super::Watch;
use super::outcome::Sample;

/// Between two lines where they stay.
const LINE_EVERY: Duration = Duration::from_secs(5);

pub(super) struct Progress {
    /// On a terminal.
    bar: Option<ProgressBar>,
    total: Option<u64>,
    begin: Instant,
    last_line: Instant,
}

impl Progress {
    /// Of `total` operations, where that is known.
    pub(super) fn new(total: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.set_style(indicatif::ProgressStyle::with_template("{msg}").expect("the template has one known part"));
            bar
        });
        let now = Instant::now();
        Self { bar, total, begin: now, last_line: now }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Progress {
    fn sample(&mut self, sample: &Sample, operations: u64) {
        let average = operations as f64 / self.begin.elapsed().as_secs_f64();
        let part = self
            .total
            .map_or_else(String::new, |total| format!(" {:>3.0}%", operations as f64 * 100.0 / total.max(1) as f64));
        let line = format!(
            "{:>5.0} s{part} {operations:>12} ops, now {:>9.0}/s, average {average:>9.0}/s, p99 {:>8.1} us",
            sample.at_s, sample.operations_per_s, sample.p99_us
        );
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                eprintln!("{line}");
            }
            None => {}
        }
    }
}
