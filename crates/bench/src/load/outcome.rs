//! What a load came to.

use std::collections::BTreeMap;
use std::io::{self, Write};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::Plan;
use super::tally::{Tally, histogram};

/// Steps of the percentile file between one half of the distance to 100% and the next.
const HDR_TICKS_PER_HALF: u32 = 5;
const NS_PER_MS: f64 = 1e6;

/// Latencies in microseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Latency {
    pub(crate) mean_us: f64,
    pub(crate) min_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p90_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p99_9_us: f64,
    pub(crate) max_us: f64,
}

impl Latency {
    fn of(latency_ns: &Histogram<u64>) -> Self {
        if latency_ns.is_empty() {
            return Self::default();
        }
        let at = |quantile| latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            mean_us: latency_ns.mean() / 1e3,
            min_us: latency_ns.min() as f64 / 1e3,
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            max_us: latency_ns.max() as f64 / 1e3,
        }
    }
}

/// Of one command.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CommandOutcome {
    pub(crate) name: String,
    pub(crate) operations: u64,
    pub(crate) operations_per_s: f64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) latency: Latency,
}

/// One second of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    pub(crate) operations_per_s: f64,
    pub(crate) p99_us: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// From the first request to the last answer.
    pub(crate) elapsed_s: f64,
    /// Answered without an error.
    pub(crate) operations: u64,
    pub(crate) operations_per_s: f64,
    pub(crate) latency: Latency,
    pub(crate) commands: Vec<CommandOutcome>,
    /// Error replies, redirections that were followed apart.
    pub(crate) errors: u64,
    /// Requests without an answer.
    pub(crate) unanswered: u64,
    pub(crate) connections_lost: u64,
    /// Some of the errors' texts, with their numbers.
    pub(crate) error_texts: BTreeMap<String, u64>,
    /// Requests sent again because of MOVED or ASK.
    pub(crate) redirections: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// CPU time of the generator's threads while they ran the load.
    pub(crate) generator_cpu_s: f64,
    /// How long they were ready to run and had no CPU.
    pub(crate) generator_wait_s: f64,
    /// Of the busiest of them, as a part of the elapsed time.
    pub(crate) generator_busy_max: f64,
    /// Stopped before its end.
    pub(crate) interrupted: bool,
    pub(crate) samples: Vec<Sample>,
    #[serde(skip)]
    pub(crate) latency_ns: Histogram<u64>,
}

/// Of one thread, beside its tally.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadCost {
    pub(super) cpu_s: f64,
    pub(super) wait_s: f64,
    pub(super) elapsed_s: f64,
}

impl Outcome {
    pub(super) fn new(
        plan: &Plan,
        tally: &Tally,
        costs: &[ThreadCost],
        interrupted: bool,
        samples: Vec<Sample>,
    ) -> Self {
        let elapsed_s = costs.iter().map(|cost| cost.elapsed_s).fold(1e-9, f64::max);
        let mut all = histogram();
        let commands = plan.commands.iter().zip(&tally.latency_ns).enumerate().map(|(index, (command, latency_ns))| {
            all += latency_ns;
            CommandOutcome {
                name: command.name.clone(),
                operations: latency_ns.len(),
                operations_per_s: latency_ns.len() as f64 / elapsed_s,
                hits: tally.hits[index],
                misses: tally.misses[index],
                latency: Latency::of(latency_ns),
            }
        });
        let commands = commands.collect();
        Self {
            elapsed_s,
            operations: all.len(),
            operations_per_s: all.len() as f64 / elapsed_s,
            latency: Latency::of(&all),
            commands,
            errors: tally.errors,
            unanswered: tally.unanswered,
            connections_lost: tally.connections_lost,
            error_texts: tally.error_texts.clone(),
            redirections: tally.redirections,
            sent_bytes: tally.sent_bytes,
            received_bytes: tally.received_bytes,
            generator_cpu_s: costs.iter().map(|cost| cost.cpu_s).sum(),
            generator_wait_s: costs.iter().map(|cost| cost.wait_s).sum(),
            generator_busy_max: costs.iter().map(|cost| cost.cpu_s / cost.elapsed_s.max(1e-9)).fold(0.0, f64::max),
            interrupted,
            samples,
            latency_ns: all,
        }
    }

    /// Of nothing.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        let plan = Plan {
            target: super::control::Target::Unix("/".into()),
            login: super::control::Login::default(),
            threads: 1,
            clients: 1,
            pipeline: 1,
            commands: Vec::new(),
            prefix: String::new(),
            range: super::keys::Range { minimum: 0, maximum: 0, median: 0.0, stddev: 1.0, zipf_exponent: 1.0 },
            sizes: super::data::Sizes { minimum: 0, maximum: 0 },
            random_data: false,
            expiry_seconds: (1, 1),
            amount: super::plan::Amount::AllKeys,
            rate_per_s: None,
            cluster: false,
            distinct_client_seed: false,
            seed: 0,
            cpus: Vec::new(),
            stall_max: std::time::Duration::from_secs(1),
        };
        Self::new(&plan, &Tally::new(0), &[], false, Vec::new())
    }

    /// Reads that found something, as a part of all reads.
    pub(crate) fn hit_rate(&self) -> Option<f64> {
        let (hits, misses) = self.commands.iter().fold((0, 0), |(hits, misses), c| (hits + c.hits, misses + c.misses));
        (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
    }

    /// What makes its figures worthless, in one line.
    pub(crate) fn trouble(&self) -> Option<String> {
        if self.errors + self.unanswered + self.connections_lost == 0 {
            return None;
        }
        let texts: Vec<String> = self.error_texts.iter().map(|(text, count)| format!("{count} × {text}")).collect();
        Some(format!(
            "{} error replies, {} requests unanswered, {} connections lost: {}",
            self.errors,
            self.unanswered,
            self.connections_lost,
            texts.join("; ")
        ))
    }

    /// CPU time of the generator per operation.
    pub(crate) fn generator_us_per_operation(&self) -> f64 {
        self.generator_cpu_s * 1e6 / self.operations.max(1) as f64
    }

    /// A table, as `load` prints it.
    pub(super) fn write_table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{:<10} {:>12} {:>12} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "command", "ops/s", "hits/s", "misses/s", "mean us", "p50 us", "p90 us", "p99 us", "p99.9 us", "max us"
        )?;
        for command in &self.commands {
            let rates = [command.operations, command.hits, command.misses].map(|n| n as f64 / self.elapsed_s);
            row(out, &command.name, rates, &command.latency)?;
        }
        if self.commands.len() > 1 {
            let sum =
                |of: fn(&CommandOutcome) -> u64| self.commands.iter().map(of).sum::<u64>() as f64 / self.elapsed_s;
            row(out, "all", [sum(|c| c.operations), sum(|c| c.hits), sum(|c| c.misses)], &self.latency)?;
        }
        writeln!(
            out,
            "{} operations in {:.3} s; {:.1} MB/s out, {:.1} MB/s in; generator {:.3} us of CPU per operation, busiest thread {:.0}% busy",
            self.operations,
            self.elapsed_s,
            self.sent_bytes as f64 / 1e6 / self.elapsed_s,
            self.received_bytes as f64 / 1e6 / self.elapsed_s,
            self.generator_us_per_operation(),
            self.generator_busy_max * 100.0
        )?;
        if let Some(rate) = self.hit_rate() {
            writeln!(out, "{:.2}% of the reads found a value", rate * 100.0)?;
        }
        if self.redirections > 0 {
            writeln!(out, "{} redirections followed", self.redirections)?;
        }
        if self.interrupted {
            writeln!(out, "interrupted before its end")?;
        }
        Ok(())
    }

    /// Percentiles in HdrHistogram's text format, in milliseconds.
    pub(super) fn write_percentiles(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
        let latency_ns = &self.latency_ns;
        for step in latency_ns.iter_quantiles(HDR_TICKS_PER_HALF) {
            let quantile = step.quantile();
            let value_ms = step.value_iterated_to() as f64 / NS_PER_MS;
            let count = latency_ns.count_between(0, step.value_iterated_to());
            write!(out, "{value_ms:>12.3} {quantile:>14.12} {count:>10}")?;
            if quantile < 1.0 { writeln!(out, " {:>14.2}", 1.0 / (1.0 - quantile))? } else { writeln!(out)? }
        }
        let (mean, deviation) = (latency_ns.mean() / NS_PER_MS, latency_ns.stdev() / NS_PER_MS);
        writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]")?;
        let maximum = latency_ns.max() as f64 / NS_PER_MS;
        writeln!(out, "#[Max     = {maximum:>12.3}, Total count    = {:>12}]", latency_ns.len())
    }
}

fn row(out: &mut impl Write, name: &str, rates: [f64; 3], latency: &Latency) -> io::Result<()> {
    let [operations, hits, misses] = rates;
    let Latency { mean_us, p50_us, p90_us, p99_us, p99_9_us, max_us, .. } = latency;
    writeln!(
        out,
        "{name:<10} {operations:>12.0} {hits:>12.0} {misses:>12.0} {mean_us:>9.1} {p50_us:>9.1} {p90_us:>9.1} {p99_us:>9.1} {p99_9_us:>9.1} {max_us:>9.1}"
    )
}
