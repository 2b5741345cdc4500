//! `model`: what a machine with many cores should do, from what this one was measured to cost.
//!
//! | file | what |
//! | --- | --- |
//! | `costs` | measured and assumed figures (`costs.json`), and the cache lines that a command writes |
//! | `simulate` | workers and shards with gates, event by event |
//! | `law` | the universal scalability law, fitted to what the simulation gives |
//!
//! `docs/scaling.md` tells what it says, and how far it can be believed.

mod costs;
mod law;
mod simulate;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use costs::{Costs, Engine, LINES, Load, Ratio};
use law::Law;
use simulate::{Outcome, Policy, Scene, simulate};

/// Operations of a simulation.
const OPERATIONS: u64 = 400_000;
/// Most workers and shards.
const WORKERS_MAX: i64 = 1024;
const SHARDS_MAX: i64 = pantala_base::limits::SHARDS_MAX as i64;
/// Numbers of workers whose capacities the law is fitted to.
const FITTED: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// A gate that is held this much of the time is what bounds the rest.
const FULL: f64 = 0.9;
/// Parts of the workers' time below this are no bottleneck.
const NOTABLE: f64 = 0.02;

/// Of the model.
#[derive(Args)]
pub(crate) struct Options {
    /// Workers, a core each
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    workers: u32,
    /// Shards
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=SHARDS_MAX))]
    shards: u32,
    /// JSON with the costs [default: those measured, docs/scaling.md]
    #[arg(long)]
    costs: Option<PathBuf>,
    /// results.json of `compare`, run on the host in question with one worker: the CPU time per operation of its peer `pantala`
    #[arg(long)]
    report: Option<PathBuf>,
    /// Nanoseconds that a cache line takes from core to core on the machine in question [default: that of the costs]
    #[arg(long)]
    line_ns: Option<f64>,
    /// Seed of the simulation
    #[arg(long, default_value_t = 12345)]
    seed: u64,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let mut costs = match &options.costs {
        Some(path) => Costs::read(path)?,
        None => Costs::built_in()?,
    };
    if let Some(line_ns) = options.line_ns {
        if !(line_ns >= 0.0 && line_ns.is_finite()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "--line-ns: not below 0"));
        }
        costs.line.there_ns = line_ns;
    }
    let mut out = io::stdout().lock();
    if let Some(path) = &options.report {
        writeln!(out, "taken from {}: {}\n", path.display(), costs.take_report(path)?.join(", "))?;
    }
    print_lines(&mut out)?;
    print_errors(&mut out, &costs, options.seed)?;
    print_workloads(&mut out, &costs, options)?;
    print_assumptions(&mut out, &costs)
}

fn print_lines(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "Cache lines that a command writes and another worker may have written last:\n")?;
    for (command, lines, which) in LINES {
        writeln!(out, "{command:<40} {lines:>2}  {which}")?;
    }
    writeln!(out)
}

/// The engine without sockets, as it was measured.
fn engine_scene(costs: &Costs, row: &Ratio, workers: u32) -> Scene {
    let Engine { operation_ns, held_ns, .. } = costs.engine;
    Scene {
        workers,
        shards: row.shards,
        policy: Policy::Inline,
        keys: 1_000_000,
        zipf: row.exponent(),
        keys_per_operation: 1,
        outside_ns: operation_ns - held_ns,
        held_ns,
        line_ns: costs.line.here_ns,
        hidden: costs.line.hidden,
        spin_ns: costs.spin_ns,
        request_ns: costs.message.request_ns,
        request_lines: costs.message.lines,
    }
}

/// A workload on the machine that is asked about.
fn load_scene(costs: &Costs, load: &Load, workers: u32, shards: u32, policy: Policy) -> Scene {
    let held_ns = costs.engine.held_ns;
    // What a key costs with its shard held is the engine's; the rest of the measured time is outside.
    let outside_ns = (load.cpu_us * 1000.0 - held_ns * f64::from(load.keys_per_operation)).max(0.0);
    Scene {
        workers,
        shards,
        policy,
        keys: load.keys,
        zipf: load.zipf,
        keys_per_operation: load.keys_per_operation,
        outside_ns,
        held_ns,
        line_ns: costs.line.there_ns,
        hidden: costs.line.hidden,
        spin_ns: costs.spin_ns,
        request_ns: costs.message.request_ns,
        request_lines: costs.message.lines,
    }
}

/// Two workers' throughput to one's, as the model has it.
fn predicted(costs: &Costs, row: &Ratio, seed: u64) -> f64 {
    let rate = |workers| simulate(&engine_scene(costs, row, workers), OPERATIONS, seed).operations_per_s;
    rate(2) / rate(1)
}

fn print_errors(out: &mut impl Write, costs: &Costs, seed: u64) -> io::Result<()> {
    writeln!(out, "Two workers to one, the engine without sockets, against what was measured:\n")?;
    writeln!(out, "{:<12} {:>6} {:>9} {:>6} {:>7}", "keys", "shards", "measured", "model", "error")?;
    let (mut sum, mut count) = (0.0, 0.0);
    for row in &costs.engine.ratios {
        let model = predicted(costs, row, seed);
        let error = model / row.ratio - 1.0;
        let fitted = if row.fitted { "  fitted to this row" } else { "" };
        let Ratio { keys, shards, ratio, .. } = row;
        writeln!(out, "{keys:<12} {shards:>6} {ratio:>9.2} {model:>6.2} {:>6.1}%{fitted}", error * 100.0)?;
        if !row.fitted {
            (sum, count) = (sum + error.abs(), count + 1.0);
        }
    }
    writeln!(out, "mean error of the rows that nothing was fitted to: {:.1}%\n", 100.0 * sum / f64::max(count, 1.0))
}

/// What takes most from a linear growth.
fn bottleneck(outcome: &Outcome) -> String {
    if outcome.hottest >= FULL {
        return format!("the gate of the hottest shard, held {:.0}% of the time", outcome.hottest * 100.0);
    }
    let causes = [
        (outcome.waiting, "waiting for shards that are held"),
        (outcome.requests, "requests left for holders"),
        (outcome.lines, "cache lines from other cores"),
    ];
    let (part, cause) = causes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, ""));
    if part < NOTABLE {
        return "none in the server: the cores, and what sends to them".to_owned();
    }
    format!("{cause}, {:.0}% of the time", part * 100.0)
}

fn print_workloads(out: &mut impl Write, costs: &Costs, options: &Options) -> io::Result<()> {
    let Options { workers, shards, seed, .. } = *options;
    let line_ns = costs.line.there_ns;
    writeln!(out, "{shards} shards, {workers} workers, a core each; a line from core to core {line_ns:.0} ns:\n")?;
    writeln!(
        out,
        "{:<16} {:>8} {:>10} {:>10} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>8}  first bottleneck",
        "workload",
        "1 worker",
        "all",
        "owner",
        "law",
        "of ideal",
        "Gbit/s",
        "moved",
        "parked",
        "lines",
        "waits",
        "sigma",
        "kappa"
    )?;
    for load in &costs.workloads {
        let run = |workers, policy| simulate(&load_scene(costs, load, workers, shards, policy), OPERATIONS, seed);
        let one = run(1, Policy::Inline).operations_per_s;
        let all = run(workers, Policy::Inline);
        // The simulation has a home work on its own shards only, one after the other.
        let owner = match load.keys_per_operation {
            1 => format!("{:.2}", run(workers, Policy::Owner).operations_per_s / 1e6),
            _ => "-".to_owned(),
        };
        let points = FITTED.map(|count| (count, run(count, Policy::Inline).operations_per_s / one));
        let law = Law::fit(&points);
        let peak = law.peak().filter(|peak| *peak < f64::from(workers));
        writeln!(
            out,
            "{:<16} {:>8.3} {:>10.2} {:>10} {:>8.2} {:>7.0}% {:>7.0} {:>6.0}% {:>6.1}% {:>6.1}% {:>6.1}% {:>8.4} {:>8.5}  {}{}",
            load.name,
            one / 1e6,
            all.operations_per_s / 1e6,
            owner,
            law.capacity(workers) * one / 1e6,
            100.0 * all.operations_per_s / (one * f64::from(workers)),
            all.operations_per_s * load.bytes * 8.0 / 1e9,
            100.0 * all.moved,
            100.0 * all.parked,
            100.0 * all.lines,
            100.0 * all.waiting,
            law.contention,
            law.coherence,
            bottleneck(&all),
            peak.map_or(String::new(), |peak| format!("; most at {peak:.0} workers"))
        )?;
    }
    writeln!(
        out,
        "\nmillions of operations per second; `owner` with --execution owner, `law` as sigma and kappa have it.\n"
    )
}

fn print_assumptions(out: &mut impl Write, costs: &Costs) -> io::Result<()> {
    let Costs { host, engine, line, message, spin_ns, workloads, .. } = costs;
    writeln!(out, "Measured on: {host}")?;
    for load in workloads {
        writeln!(out, "  {:<16} {:>7.2} us of CPU per operation: {}", load.name, load.cpu_us, load.source)?;
    }
    writeln!(out, "Assumed:")?;
    writeln!(
        out,
        "- an operation of the engine takes {:.0} ns, {:.0} of them with its shard held",
        engine.operation_ns, engine.held_ns
    )?;
    writeln!(out, "- a line: {}; a prefetch hides {:.0}% of its way", line.source, line.hidden * 100.0)?;
    writeln!(
        out,
        "- a request at a held shard costs {:.0} ns and {:.0} lines on each side; a worker spins for {spin_ns:.0} ns before it leaves one",
        message.request_ns, message.lines
    )?;
    writeln!(
        out,
        "- a command of several keys reserves all its shards from its first one on: a lower bound for mset10 and transactions"
    )?;
    writeln!(out, "- the kernel's network path, memory and network card grow with the cores; nobody sleeps")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows that the constants were fitted to must agree, or `costs.json` is not what it says; those of other numbers of shards are the test.
    #[test]
    fn the_model_agrees_with_what_was_measured() {
        let costs = Costs::built_in().unwrap();
        for row in &costs.engine.ratios {
            let error = (predicted(&costs, row, 1) / row.ratio - 1.0).abs();
            let within = if row.fitted { 0.05 } else { 0.30 };
            assert!(error <= within, "{row:?}: {error:.3}");
        }
    }

    #[test]
    fn bottlenecks_are_named() {
        let none = Outcome::default();
        assert!(bottleneck(&none).starts_with("none"));
        assert!(bottleneck(&Outcome { hottest: 0.95, waiting: 0.5, ..none }).contains("hottest shard, held 95%"));
        assert!(bottleneck(&Outcome { lines: 0.1, waiting: 0.05, ..none }).starts_with("cache lines"));
        assert!(bottleneck(&Outcome { waiting: 0.1, lines: 0.05, ..none }).starts_with("waiting"));
    }

    #[test]
    fn it_prints_every_workload() {
        let options = Options { workers: 4, shards: 8, costs: None, report: None, line_ns: None, seed: 1 };
        let costs = Costs::built_in().unwrap();
        let mut text = Vec::new();
        print_lines(&mut text).unwrap();
        print_workloads(&mut text, &costs, &options).unwrap();
        print_assumptions(&mut text, &costs).unwrap();
        let text = String::from_utf8(text).unwrap();
        for load in &costs.workloads {
            let rows = text.lines().filter(|line| line.split_whitespace().next() == Some(load.name.as_str())).count();
            assert_eq!(rows, 2, "{}:\n{text}", load.name);
        }
        assert!(text.contains("8 shards, 4 workers"));
    }
}
