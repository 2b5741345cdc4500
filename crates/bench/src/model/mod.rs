//! `model` predicts the throughput of a machine with many cores from costs measured on this host.
//!
//! | file | what |
//! | --- | --- |
//! | `costs` | measured, fitted and assumed costs (`costs.json`), each with its source |
//! | `lines` | the cache lines that a command writes (`lines.txt`) |
//! | `report` | reads CPU times per operation from the results of `compare` |
//! | `simulate` | simulates workers and shards with gates, event by event |
//! | `append_only` | simulates the journal's thread, the writer of the append-only file and the disk |
//! | `files` | predicts workloads with an append-only file, and prints them |
//! | `law` | the universal scalability law, fitted to the simulation |
//! | `tables` | prints the results |
//!
//! `docs/scaling.md` contains the results and the known errors.

mod append_only;
mod costs;
mod files;
mod law;
mod lines;
mod report;
mod simulate;
mod tables;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use costs::{Costs, Load, OwnerRow, Ratio};
use simulate::{Policy, Scene, simulate};

/// Number of operations in one simulation.
const OPERATIONS: u64 = if cfg!(test) { 50_000 } else { 400_000 };
/// Maximum number of workers.
const WORKERS_MAX: i64 = simulate::WORKERS_MAX as i64;
/// Maximum number of shards.
const SHARDS_MAX: i64 = pantala_base::limits::SHARDS_MAX as i64;

/// Options of the model.
#[derive(Args)]
pub(crate) struct Options {
    /// Number of workers, each with its own core
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    workers: u32,
    /// Number of shards
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=SHARDS_MAX))]
    shards: u32,
    /// JSON file with the costs [default: the measured costs, see docs/scaling.md]
    #[arg(long)]
    costs: Option<PathBuf>,
    /// results.json of a run of `compare` with `--workers 1` on this host. The CPU time per
    /// operation of the peer `pantala` is read from this file
    #[arg(long)]
    report: Option<PathBuf>,
    /// File to which the costs are written, including those from --report, for use with --costs
    #[arg(long)]
    write_costs: Option<PathBuf>,
    /// Time to transfer a cache line from core to core on the modelled machine, in nanoseconds
    /// [default: the value in the costs]
    #[arg(long)]
    line_ns: Option<f64>,
    /// Bandwidth of the modelled machine's disk, in MB/s, for workloads with an append-only file
    /// [default: the value in the costs]
    #[arg(long)]
    disk_mb_per_s: Option<f64>,
    /// Time of a sync of the append-only file, in milliseconds [default: the value in the costs]
    #[arg(long)]
    sync_ms: Option<f64>,
    /// Seed of the simulation
    #[arg(long, default_value_t = 12345)]
    seed: u64,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let mut costs = match &options.costs {
        Some(path) => Costs::read(path)?,
        None => Costs::built_in()?,
    };
    let replaced = [
        (options.line_ns, &mut costs.line.there_ns, "--line-ns"),
        (options.disk_mb_per_s, &mut costs.file.there_mb_per_s, "--disk-mb-per-s"),
        (options.sync_ms, &mut costs.file.sync_ms, "--sync-ms"),
    ];
    for (value, input, name) in replaced {
        let Some(value) = value else { continue };
        if !(value >= 0.0 && value.is_finite()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} must be at least 0")));
        }
        *input = costs::Input { value, source: format!("assumed: {name}") };
    }
    let mut out = io::stdout().lock();
    if let Some(path) = &options.report {
        let taken = costs.take_report(path)?;
        writeln!(out, "taken from {}: {}", path.display(), taken.modelled.join(", "))?;
        taken.unmodelled.iter().try_for_each(|why| writeln!(out, "not modelled, {why}"))?;
        writeln!(out)?;
    }
    if let Some(path) = &options.write_costs {
        costs.write(path)?;
    }
    tables::print(&mut out, &costs, options)
}

/// Returns the scene (the parameters of a simulation) of the measured engine without sockets. Its
/// commands are alternately GET and SET, with small values.
fn engine_scene(costs: &Costs, row: &Ratio, workers: u32) -> Scene {
    const VALUE_BYTES: f64 = 64.0;
    const KEYS: u64 = 1_000_000;
    let (operation_ns, held_ns) = (costs.engine.operation_ns.value, costs.engine.held_ns.value);
    let entry = lines::of_entry(VALUE_BYTES);
    Scene {
        workers,
        shards: row.shards,
        policy: Policy::Inline,
        keys: KEYS,
        zipf: row.exponent(),
        keys_per_operation: 1,
        outside_ns: operation_ns - held_ns,
        held_ns,
        written: costs::Written { shard: 1.0, writes: 0.5, entry },
        kept_operations: kept_operations(costs, VALUE_BYTES),
        line_ns: costs.line.here_ns.value,
        hidden: costs.line.hidden.value,
        spin_ns: costs.spin_ns.value,
        request_ns: costs.message.request_ns.value,
        request_lines: costs.message.lines.value,
    }
}

/// Returns the number of operations on other keys after which an entry has left a worker's cache.
fn kept_operations(costs: &Costs, value_bytes: f64) -> f64 {
    const LINE_BYTES: f64 = 64.0;
    // Each operation loads an entry, a bucket of one line, a request and a reply. Together, the
    // request and the reply are assumed to be as large as the entry.
    let each_bytes = (2.0 * lines::of_entry(value_bytes) + 1.0) * LINE_BYTES;
    costs.line.own_cache_bytes.value / each_bytes
}

/// Returns the scene for a workload, with the given CPU time per operation and line transfer time.
fn load_scene(
    costs: &Costs,
    load: &Load,
    cpu_us: f64,
    line_ns: f64,
    workers: u32,
    shards: u32,
    policy: Policy,
) -> Scene {
    let held_ns = load.held_ns(costs);
    // A worker holds the shard during the engine's time and the copy. It spends the rest of the
    // measured time outside the shard.
    let outside_ns = (cpu_us * 1000.0 - held_ns * f64::from(load.keys_per_operation)).max(0.0);
    Scene {
        workers,
        shards,
        policy,
        keys: load.keys,
        zipf: load.zipf,
        keys_per_operation: load.keys_per_operation,
        outside_ns,
        held_ns,
        written: load.written(&lines::rows()),
        kept_operations: kept_operations(costs, load.value_bytes),
        line_ns,
        hidden: costs.line.hidden.value,
        spin_ns: costs.spin_ns.value,
        request_ns: costs.message.request_ns.value,
        request_lines: costs.message.lines.value,
    }
}

/// Returns the predicted throughput of two workers divided by that of one worker.
fn predicted(costs: &Costs, row: &Ratio, seed: u64) -> f64 {
    let rate = |workers| simulate(&engine_scene(costs, row, workers), OPERATIONS, seed).operations_per_s;
    rate(2) / rate(1)
}

/// Returns the predicted ratios of `owner` to `inline`: of the CPU times per operation, and of the
/// throughputs if the clients share the servers' cores. Returns `None` if there is no such
/// workload.
fn predicted_owner(costs: &Costs, row: &OwnerRow, seed: u64) -> Option<(f64, f64)> {
    let load = costs.load(&row.workload)?;
    let (cpu_us, line_ns) = (row.inline_us, costs.line.here_ns.value);
    let costs::Owner { workers, shards, .. } = costs.owner;
    // All workers are always busy. The CPU time per operation is therefore the number of workers
    // divided by the rate.
    let each_us = |policy| {
        let scene = load_scene(costs, load, cpu_us, line_ns, workers, shards, policy);
        f64::from(workers) * 1e6 / simulate(&scene, OPERATIONS, seed).operations_per_s
    };
    let (inline_us, owner_us) = (each_us(Policy::Inline), each_us(Policy::Owner));
    Some((owner_us / inline_us, (inline_us + row.client_us) / (owner_us + row.client_us)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The model must agree with the rows to which its constants were fitted. If it doesn't,
    /// `costs.json` is wrong. The other rows test the model.
    #[test]
    fn the_model_agrees_with_the_measurements() {
        let costs = Costs::built_in().unwrap();
        for row in &costs.engine.ratios {
            let error = (predicted(&costs, row, 1) / row.ratio - 1.0).abs();
            let within = if row.fitted { 0.05 } else { 0.30 };
            assert!(error <= within, "{row:?}: {error:.3}");
        }
        for row in &costs.owner.rows {
            let (cpu, rate) = predicted_owner(&costs, row, 1).unwrap();
            let within = if row.fitted { 0.05 } else { 0.30 };
            assert!((cpu / row.cpu - 1.0).abs() <= within, "{row:?}: {cpu:.3}");
            assert!((rate / row.rate - 1.0).abs() <= 0.30, "{row:?}: {rate:.3}");
        }
    }

    /// If messages cost nothing, `owner` is as fast as `inline`. The difference between the two is
    /// therefore the cost of messages.
    #[test]
    fn messages_are_the_cost_of_owner_execution() {
        let mut costs = Costs::built_in().unwrap();
        (costs.message.request_ns.value, costs.message.lines.value) = (0.0, 0.0);
        let row = costs.owner.rows.iter().find(|row| row.fitted).unwrap();
        let (cpu, rate) = predicted_owner(&costs, row, 1).unwrap();
        assert!(cpu < 1.05 && rate > 0.95, "{cpu:.3} {rate:.3}");
    }
}
