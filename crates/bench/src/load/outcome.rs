//! The result of a load.

use std::collections::BTreeMap;
use std::io::{self, Write};

use hdrhistogram::Histogram;
use serde::Serialize;

use super::plan::Plan;
use super::tally::{SUB_BUCKETS, Tally, histogram};

/// Number of lines in the percentile file for each halving of the distance to 100%.
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

/// The result of one command.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct CommandOutcome {
    pub(crate) name: String,
    pub(crate) operations: u64,
    pub(crate) operations_per_s: f64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) latency: Latency,
}

/// The result of one second of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    pub(crate) operations_per_s: f64,
    pub(crate) p99_us: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    /// Seconds from the first request to the last reply.
    pub(crate) elapsed_s: f64,
    /// Number of operations whose replies were not errors.
    pub(crate) operations: u64,
    pub(crate) operations_per_s: f64,
    pub(crate) latency: Latency,
    pub(crate) commands: Vec<CommandOutcome>,
    /// Number of error replies, excluding redirections that were followed.
    pub(crate) errors: u64,
    /// Number of requests without a reply.
    pub(crate) unanswered: u64,
    pub(crate) connections_lost: u64,
    /// Texts of some errors, with their counts.
    pub(crate) error_texts: BTreeMap<String, u64>,
    /// Number of requests that were sent again because of MOVED or ASK.
    pub(crate) redirections: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// CPU time of the generator's threads during the load.
    pub(crate) generator_cpu_s: f64,
    /// Time that the generator's threads spent in the run queue.
    pub(crate) generator_wait_s: f64,
    /// CPU time of the generator's busiest thread, as a share of the elapsed time.
    pub(crate) generator_busy_max: f64,
    /// Time on a CPU plus time in the run queue, as a share of the elapsed time, of the generator's
    /// thread for which this share is highest.
    pub(crate) generator_wanting_max: f64,
    /// Whether the run was interrupted before its end.
    pub(crate) interrupted: bool,
    pub(crate) samples: Vec<Sample>,
    #[serde(skip)]
    pub(crate) latency_ns: Histogram<u64>,
}

/// Time that one thread spent on a CPU and in the run queue.
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
        let most = |of: fn(&ThreadCost) -> f64| {
            costs.iter().map(|cost| of(cost) / cost.elapsed_s.max(1e-9)).fold(0.0, f64::max)
        };
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
            generator_busy_max: most(|cost| cost.cpu_s),
            generator_wanting_max: most(|cost| cost.cpu_s + cost.wait_s),
            interrupted,
            samples,
            latency_ns: all,
        }
    }

    /// Returns the result of a round without a load generator, such as a snapshot or a restart. The
    /// round counts as `operations` operations, all of which ended after `elapsed_s` seconds.
    pub(crate) fn of_all_at_once(operations: u64, elapsed_s: f64) -> Self {
        let mut latency_ns = histogram();
        // The histogram records a longer time as its maximum.
        latency_ns.saturating_record((elapsed_s * 1e9) as u64);
        Self {
            elapsed_s,
            operations,
            operations_per_s: operations as f64 / elapsed_s,
            latency: Latency::of(&latency_ns),
            commands: Vec::new(),
            errors: 0,
            unanswered: 0,
            connections_lost: 0,
            error_texts: BTreeMap::new(),
            redirections: 0,
            sent_bytes: 0,
            received_bytes: 0,
            generator_cpu_s: 0.0,
            generator_wait_s: 0.0,
            generator_busy_max: 0.0,
            generator_wanting_max: 0.0,
            interrupted: false,
            samples: Vec::new(),
            latency_ns,
        }
    }

    /// Returns the result of an empty load.
    #[cfg(test)]
    pub(crate) fn empty() -> Self {
        Self::new(&tests::plan(&[]), &Tally::new(0), &[], false, Vec::new())
    }

    /// Returns the share of the reads that found a value. Returns `None` if there were no reads.
    pub(crate) fn hit_rate(&self) -> Option<f64> {
        let (hits, misses) = self.commands.iter().fold((0, 0), |(hits, misses), c| (hits + c.hits, misses + c.misses));
        (hits + misses > 0).then(|| hits as f64 / (hits + misses) as f64)
    }

    /// Describes the failed requests in one line. Returns `None` if no request failed. If any
    /// request failed, the result is invalid.
    pub(crate) fn trouble(&self) -> Option<String> {
        if self.errors + self.unanswered + self.connections_lost == 0 {
            return None;
        }
        let texts: Vec<String> = self.error_texts.iter().map(|(text, count)| format!("{count} × {text}")).collect();
        Some(format!(
            "{} error replies, {} requests without a reply, {} connections lost: {}",
            self.errors,
            self.unanswered,
            self.connections_lost,
            texts.join("; ")
        ))
    }

    /// Returns the CPU time of the generator per operation, in microseconds.
    pub(crate) fn generator_us_per_operation(&self) -> f64 {
        self.generator_cpu_s * 1e6 / self.operations.max(1) as f64
    }

    /// Writes the table that `load` prints.
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
            "{} operations in {:.3} s; {:.1} MB/s out, {:.1} MB/s in; generator: {:.3} us of CPU per operation, busiest thread {:.0}% busy ({:.0}% with waits for a CPU)",
            self.operations,
            self.elapsed_s,
            self.sent_bytes as f64 / 1e6 / self.elapsed_s,
            self.received_bytes as f64 / 1e6 / self.elapsed_s,
            self.generator_us_per_operation(),
            self.generator_busy_max * 100.0,
            self.generator_wanting_max * 100.0
        )?;
        if let Some(rate) = self.hit_rate() {
            writeln!(out, "{:.2}% of the reads found a value", rate * 100.0)?;
        }
        if self.redirections > 0 {
            writeln!(out, "{} redirections followed", self.redirections)?;
        }
        if self.operations == 0 {
            writeln!(out, "no request succeeded: the zeros above are not measurements")?;
        }
        if self.interrupted {
            writeln!(out, "interrupted before the end")?;
        }
        Ok(())
    }

    /// Writes percentiles in HdrHistogram's text format, in milliseconds.
    pub(super) fn write_percentiles(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{:>12} {:>14} {:>10} {:>14}\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")?;
        let latency_ns = &self.latency_ns;
        for step in latency_ns.iter_quantiles(HDR_TICKS_PER_HALF) {
            let quantile = step.quantile_iterated_to();
            let value_ms = step.value_iterated_to() as f64 / NS_PER_MS;
            let count = latency_ns.count_between(0, step.value_iterated_to());
            write!(out, "{value_ms:>12.3} {quantile:>14.12} {count:>10}")?;
            if quantile < 1.0 { writeln!(out, " {:>14.2}", 1.0 / (1.0 - quantile))? } else { writeln!(out)? }
        }
        let (mean, deviation) = (latency_ns.mean() / NS_PER_MS, latency_ns.stdev() / NS_PER_MS);
        writeln!(out, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]")?;
        let maximum = latency_ns.max() as f64 / NS_PER_MS;
        writeln!(out, "#[Max     = {maximum:>12.3}, Total count    = {:>12}]", latency_ns.len())?;
        writeln!(out, "#[Buckets = {:>12}, SubBuckets     = {SUB_BUCKETS:>12}]", latency_ns.buckets())
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

#[cfg(test)]
pub(super) mod tests {
    use super::super::control::{Login, Target};
    use super::super::data::Sizes;
    use super::super::keys::{Pattern, Range};
    use super::super::plan::{Amount, CommandPlan};
    use super::*;
    use std::time::Duration;

    pub(crate) fn plan(commands: &[&str]) -> Plan {
        Plan {
            target: Target::Unix("/".into()),
            login: Login::default(),
            threads: 1,
            clients: 1,
            pipeline: 1,
            commands: commands.iter().map(|text| CommandPlan::new(text, text, Pattern::Uniform, 1)).collect(),
            hand_over: false,
            prefix: String::new(),
            range: Range { minimum: 0, maximum: 0, median: 0.0, stddev: 1.0, zipf_exponent: 1.0 },
            sizes: Sizes { minimum: 0, maximum: 0 },
            random_data: false,
            expiry_seconds: (1, 1),
            amount: Amount::AllKeys,
            rate_per_s: None,
            cluster: false,
            distinct_client_seed: false,
            seed: 0,
            cpus: Vec::new(),
            stall_max: Duration::from_secs(1),
        }
    }

    /// Returns a tally with the given latencies of each command, in milliseconds.
    fn tally(latencies_ms: &[&[u64]]) -> Tally {
        let mut tally = Tally::new(latencies_ms.len());
        for (command, latencies) in latencies_ms.iter().enumerate() {
            for latency_ms in *latencies {
                tally.record(command as u16, 0, latency_ms * 1_000_000);
                tally.record_run(latency_ms * 1_000_000);
            }
        }
        tally.settle(&mut histogram());
        tally
    }

    #[test]
    fn rates_are_of_the_longest_thread() {
        let mut tally = tally(&[&[1, 2, 3], &[10]]);
        (tally.hits, tally.misses) = (vec![0, 3], vec![0, 1]);
        let cost = |cpu_s, wait_s, elapsed_s| ThreadCost { cpu_s, wait_s, elapsed_s };
        let costs = [cost(0.5, 0.1, 2.0), cost(0.6, 0.9, 1.5), cost(0.0, 0.0, 0.0)];
        let outcome = Outcome::new(&plan(&["SET", "GET"]), &tally, &costs, false, Vec::new());
        assert_eq!((outcome.elapsed_s, outcome.operations, outcome.operations_per_s), (2.0, 4, 2.0));
        assert_eq!((outcome.commands[0].operations, outcome.commands[0].operations_per_s), (3, 1.5));
        assert_eq!((outcome.commands[1].operations, outcome.commands[1].operations_per_s), (1, 0.5));
        assert_eq!(outcome.hit_rate(), Some(0.75));
        let near = |seen: f64, expected: f64| assert!((seen / expected - 1.0).abs() < 0.001, "{seen}, not {expected}");
        near(outcome.generator_cpu_s, 1.1);
        near(outcome.generator_wait_s, 1.0);
        near(outcome.generator_us_per_operation(), 275_000.0);
        // These are the values of the second thread. In 1.5 s it spent 0.6 s on a CPU and 0.9 s in
        // the run queue.
        near(outcome.generator_busy_max, 0.4);
        near(outcome.generator_wanting_max, 1.0);
        near(outcome.latency.mean_us, 4_000.0);
        near(outcome.latency.p50_us, 2_000.0);
        near(outcome.latency.max_us, 10_000.0);
        near(outcome.commands[0].latency.max_us, 3_000.0);
        let mut table = Vec::new();
        outcome.write_table(&mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        let row = table.lines().find(|line| line.starts_with("all ")).unwrap();
        let rates: Vec<&str> = row.split_whitespace().skip(1).take(3).collect();
        assert_eq!(rates, ["2", "2", "0"], "{table}");
        assert!(table.contains("75.00% of the reads"), "{table}");
    }

    #[test]
    fn an_empty_outcome_is_all_zeros() {
        let outcome = Outcome::empty();
        assert_eq!((outcome.operations_per_s, outcome.hit_rate(), outcome.trouble()), (0.0, None, None));
        assert_eq!((outcome.latency.max_us, outcome.generator_us_per_operation()), (0.0, 0.0));
    }

    #[test]
    fn each_kind_of_trouble_is_reported() {
        let trouble_after = |spoil: fn(&mut Tally)| {
            let mut tally = tally(&[&[1]]);
            spoil(&mut tally);
            Outcome::new(&plan(&["GET"]), &tally, &[], false, Vec::new()).trouble()
        };
        assert_eq!(trouble_after(|tally| tally.redirections = 3), None, "redirections are followed");
        assert_eq!(trouble_after(|tally| tally.misses[0] = 3), None);
        let text = trouble_after(|tally| tally.error(b"ERR no")).unwrap();
        assert_eq!(text, "1 error replies, 0 requests without a reply, 0 connections lost: 1 × ERR no");
        assert!(trouble_after(|tally| tally.unanswered = 2).unwrap().contains("2 requests without a reply"));
        assert!(trouble_after(|tally| tally.lost("gone", 0)).unwrap().ends_with("1 connections lost: 1 × gone"));
    }

    #[test]
    fn percentiles_are_in_hdr_histograms_format() {
        let latencies: Vec<u64> = (1..=1_000).collect();
        let outcome = Outcome::new(&plan(&["GET"]), &tally(&[&latencies]), &[], false, Vec::new());
        let mut text = Vec::new();
        outcome.write_percentiles(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let [head, empty, rows @ .., mean, max, buckets] = lines.as_slice() else { panic!("{text}") };
        assert_eq!((*head, *empty), ("       Value     Percentile TotalCount 1/(1-Percentile)", ""));
        let numbers = |row: &str| -> Vec<f64> { row.split_whitespace().map(|word| word.parse().unwrap()).collect() };
        let rows: Vec<Vec<f64>> = rows.iter().map(|row| numbers(row)).collect();
        let (last, others) = rows.split_last().unwrap();
        for row in others {
            let [value_ms, part, count, inverse] = row[..] else { panic!("{text}") };
            // Of the thousand operations, the nth took n ms.
            assert!((value_ms - count).abs() <= count * 0.001 + 0.001, "{row:?}");
            assert!(count >= part * 1_000.0 && (1.0 / (1.0 - part) - inverse).abs() <= 0.01 * inverse, "{row:?}");
        }
        assert!(rows.windows(2).all(|pair| pair[0][1] < pair[1][1] && pair[0][2] <= pair[1][2]), "{text}");
        assert!(last.len() == 3 && (last[1], last[2]) == (1.0, 1_000.0), "{last:?}");
        assert!(mean.starts_with("#[Mean    =      500.") && mean.contains(", StdDeviation   =      288."), "{mean}");
        assert!(max.starts_with("#[Max     =     1000.") && max.ends_with(", Total count    =         1000]"), "{max}");
        // With three digits, a histogram from 1 ns to 100 s has 2048 values below 2^11. It has half
        // as many between each power of two and the next, up to 2^37.
        assert_eq!(*buckets, "#[Buckets =           27, SubBuckets     =         2048]");
    }
}
