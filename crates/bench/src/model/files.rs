//! Predicts the throughput of workloads with an append-only file, and prints the predictions.

use std::io::{self, Write};

use super::append_only::{self, Disk};
use super::costs::{Costs, FileRow, Load};
use super::simulate::{self, Policy};
use super::{OPERATIONS, Options, load_scene};

/// Number of bytes that a SET adds to the file in addition to its value: the key and RESP.
const EFFECT_BYTES: f64 = 44.0;
/// Numbers of workers in the table of predictions.
const WORKERS: [u32; 5] = [1, 2, 16, 40, 64];
/// Number of rows of that table for each workload: with the disk of the costs, and with a disk that
/// is infinitely fast.
#[cfg(test)]
pub(super) const ROWS: usize = 2 * WORKERS.len();
/// Share of the time above which waiting for the file counts as the bottleneck.
const NOTABLE: f64 = 0.005;
/// Number of steps that approximate the throughput on shared CPUs. The throughput depends on the
/// CPU times of the file's threads, which depend on the throughput.
const STEPS: usize = 12;

/// Returns a disk with a bandwidth and the sync time of `costs`. A bandwidth of 0 is infinite.
fn disk(costs: &Costs, mb_per_s: f64) -> Disk {
    let ns_per_byte = if mb_per_s > 0.0 { 1000.0 / mb_per_s } else { 0.0 };
    Disk { ns_per_byte, sync_ns: costs.file.sync_ms.value * 1e6, pause_ns: 0.0 }
}

/// Simulates the file's threads for `workers` workers that together run `operations_per_s`
/// operations while no reply waits.
fn simulate_file(
    costs: &Costs,
    value_bytes: f64,
    workers: u32,
    operations_per_s: f64,
    disk: Disk,
) -> append_only::Outcome {
    let (file, effect_bytes) = (&costs.file, value_bytes + EFFECT_BYTES);
    append_only::simulate(&append_only::Scene {
        operations_per_s,
        effect_bytes,
        epoch_ns: file.epoch_ns.value,
        merge_ns: file.merge_ns(workers, effect_bytes),
        batch_ns: file.batch_ns.value,
        direct_ns_per_byte: file.direct_ns_per_byte.value,
        cached_ns_per_byte: file.cached_ns_per_byte.value,
        disk,
    })
}

/// Returns the CPU time of the workers per operation, in µs: `cpu_us`, which was measured with one
/// worker, without the CPU time of the journal's thread and the writer.
fn worker_us(costs: &Costs, load: &Load, cpu_us: f64) -> f64 {
    let outcome = simulate_file(costs, load.value_bytes, 1, 1e6 / cpu_us, disk(costs, costs.file.here_mb_per_s.value));
    (cpu_us - outcome.journal_us() - outcome.writer_us()).max(0.0)
}

/// Simulates a workload. If it writes an append-only file, the throughput is the one with the file,
/// and the second value describes the file's threads. `shares_disk` is false for a disk that is
/// infinitely fast.
pub(super) fn simulate_load(
    costs: &Costs,
    load: &Load,
    cpu_us: f64,
    disk_mb_per_s: f64,
    (workers, shards): (u32, u32),
    policy: Policy,
    seed: u64,
) -> (simulate::Outcome, Option<append_only::Outcome>) {
    let cpu_us = if load.appends { worker_us(costs, load, cpu_us) } else { cpu_us };
    let busy = workers.min(load.connections.unwrap_or(workers));
    let scene = load_scene(costs, load, cpu_us, costs.line.there_ns.value, busy, shards, policy);
    let mut outcome = simulate::simulate(&scene, OPERATIONS, seed);
    let file = load.appends.then(|| {
        let disk = disk(costs, disk_mb_per_s);
        simulate_file(costs, load.value_bytes, busy, outcome.operations_per_s, disk)
    });
    if let Some(file) = &file {
        outcome.operations_per_s = outcome.operations_per_s.min(file.operations_per_s);
    }
    (outcome, file)
}

/// Returns the bottleneck of the file's threads and the disk, if replies wait for them.
pub(super) fn bottleneck(file: &append_only::Outcome) -> Option<String> {
    let append_only::Outcome { journal, writer, disk, shut, .. } = *file;
    if shut < NOTABLE {
        return None;
    }
    if journal > writer + disk {
        return Some(format!("the journal's thread, busy {:.0}% of the time", journal * 100.0));
    }
    let (writer, disk) = (writer * 100.0, disk * 100.0);
    let cause = if disk > writer { "the disk" } else { "the writer" };
    Some(format!("{cause}; the writer runs {writer:.0}% of the time and waits for the disk {disk:.0}%"))
}

/// The prediction for a measured row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Predicted {
    pub(super) operations_per_s: f64,
    pub(super) workers_us: f64,
    pub(super) journal_us: f64,
    pub(super) writer_us: f64,
}

/// Predicts a measured row. The threads of the server share its CPUs. The workers run as many
/// operations as the CPUs allow, or as the file's threads allow if these are slower.
pub(super) fn predicted_file(costs: &Costs, row: &FileRow) -> Predicted {
    let workers_us = costs.file.worker_us(row.value_bytes);
    let disk = Disk { pause_ns: row.delay_ms * 1e6, ..disk(costs, costs.file.here_mb_per_s.value) };
    // Starts with a low throughput, because small batches need more CPU time of the writer, which
    // keeps batches small.
    let mut rate = 0.1e6 / workers_us;
    let mut file = append_only::Outcome::default();
    for _ in 0..STEPS {
        file = simulate_file(costs, row.value_bytes, row.workers, rate, disk);
        let shared_us = if row.shares_cpus { row.client_us } else { 0.0 };
        let each_us = workers_us + file.journal_us() + file.writer_us() + shared_us;
        let most = (row.cpus * 1e6 / each_us).min(f64::from(row.workers) * 1e6 / workers_us);
        let most = if row.shares_cpus { most } else { most.min(1e6 / row.client_us) };
        rate = f64::midpoint(rate, most);
    }
    Predicted {
        operations_per_s: file.operations_per_s,
        workers_us,
        journal_us: file.journal_us(),
        writer_us: file.writer_us(),
    }
}

/// Prints the measured rows and their predictions.
pub(super) fn print_errors(out: &mut impl Write, costs: &Costs) -> io::Result<()> {
    writeln!(
        out,
        "SETs with an append-only file, everysec, compared with the measurement (thousands of operations per second, us of CPU per operation):\n"
    )?;
    writeln!(
        out,
        "{:>7} {:>6} {:>8} {:>4} {:>8} {:>7} {:>7} {:>8} {:>6} {:>8} {:>6} {:>8} {:>6} {:>7}",
        "workers",
        "bytes",
        "delay ms",
        "CPUs",
        "measured",
        "model",
        "error",
        "workers",
        "model",
        "journal",
        "model",
        "writer",
        "model",
        "error"
    )?;
    let (mut sums, mut count) = ([0.0; 2], 0.0);
    for row in &costs.file.rows {
        let model = predicted_file(costs, row);
        let FileRow { workers, value_bytes, delay_ms, cpus, .. } = row;
        let errors = [
            model.operations_per_s / row.operations_per_s - 1.0,
            (model.workers_us + model.journal_us + model.writer_us) / (row.workers_us + row.journal_us + row.writer_us)
                - 1.0,
        ];
        if !row.fitted {
            count += 1.0;
            sums.iter_mut().zip(errors).for_each(|(sum, error)| *sum += error.abs());
        }
        writeln!(
            out,
            "{workers:>7} {value_bytes:>6} {delay_ms:>8} {cpus:>4.1} {:>8.1} {:>7.1} {:>6.1}% {:>8.2} {:>6.2} {:>8.2} {:>6.2} {:>8.2} {:>6.2} {:>6.1}%{}",
            row.operations_per_s / 1e3,
            model.operations_per_s / 1e3,
            100.0 * errors[0],
            row.workers_us,
            model.workers_us,
            row.journal_us,
            model.journal_us,
            row.writer_us,
            model.writer_us,
            100.0 * errors[1],
            if row.fitted { "  fitted to this row" } else { "" }
        )?;
    }
    let mean = sums.map(|sum| 100.0 * sum / f64::max(count, 1.0));
    writeln!(
        out,
        "mean error of the rows to which nothing was fitted: throughput {:.1}%, CPU time of the three kinds of threads {:.1}%\n",
        mean[0], mean[1]
    )
}

/// Prints the predictions for workloads with an append-only file, by number of workers.
pub(super) fn print(out: &mut impl Write, costs: &Costs, options: &Options) -> io::Result<()> {
    let (there, sync_ms) = (costs.file.there_mb_per_s.value, costs.file.sync_ms.value);
    writeln!(
        out,
        "Append-only file: the journal's thread and the writer have a core each besides; a sync takes {sync_ms} ms:\n"
    )?;
    writeln!(
        out,
        "{:<10} {:>7} {:>9} {:>8} {:>9} {:>8} {:>7} {:>7} {:>6} {:>6} {:>8}  bottleneck",
        "workload",
        "workers",
        "disk MB/s",
        "no file",
        "with file",
        "MB/s",
        "journal",
        "writer",
        "disk",
        "shut",
        "kept MB"
    )?;
    for load in costs.workloads.iter().filter(|load| load.appends) {
        let Some(cpu_us) = load.cpu_us else { continue };
        for disk_mb_per_s in [there, 0.0] {
            for workers in WORKERS {
                let shape = (workers, options.shards);
                let (all, file) =
                    simulate_load(costs, load, cpu_us, disk_mb_per_s, shape, Policy::Inline, options.seed);
                let file = file.unwrap_or_default();
                writeln!(
                    out,
                    "{:<10} {workers:>7} {:>9} {:>8.3} {:>9.3} {:>8.0} {:>6.0}% {:>6.0}% {:>5.0}% {:>5.0}% {:>8.0}  {}",
                    load.name,
                    if disk_mb_per_s > 0.0 { format!("{disk_mb_per_s:.0}") } else { "infinite".to_owned() },
                    file.offered_per_s / 1e6,
                    all.operations_per_s / 1e6,
                    all.operations_per_s * (load.value_bytes + EFFECT_BYTES) / 1e6,
                    100.0 * file.journal,
                    100.0 * file.writer,
                    100.0 * file.disk,
                    100.0 * file.shut,
                    file.unwritten_bytes / 1e6,
                    bottleneck(&file).unwrap_or_else(|| "the workers".to_owned())
                )?;
            }
        }
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_agrees_with_the_measurements() {
        let costs = Costs::built_in().unwrap();
        for row in &costs.file.rows {
            let model = predicted_file(&costs, row);
            let within = if row.fitted { 0.10 } else { 0.30 };
            let error = model.operations_per_s / row.operations_per_s - 1.0;
            assert!(error.abs() <= within, "{row:?}: {model:?}");
        }
        assert!(costs.file.rows.iter().any(|row| !row.fitted), "nothing is left to test the model with");
    }

    /// With many workers, a slow disk limits the throughput. With an infinitely fast disk, one of
    /// the two threads limits it. One worker is slower than all of these.
    #[test]
    fn the_disk_or_a_thread_limits_many_workers() {
        let mut costs = Costs::built_in().unwrap();
        let load = costs.load("aof").unwrap().clone();
        let run = |costs: &Costs, disk_mb_per_s, workers| {
            let shape = (workers, 40);
            let (outcome, file) =
                simulate_load(costs, &load, load.cpu_us.unwrap(), disk_mb_per_s, shape, Policy::Inline, 1);
            (outcome.operations_per_s * (load.value_bytes + EFFECT_BYTES), bottleneck(&file.unwrap()))
        };
        let (bytes_per_s, cause) = run(&costs, 100.0, 64);
        assert!((90e6..100e6).contains(&bytes_per_s), "{bytes_per_s}");
        assert!(cause.unwrap().starts_with("the disk; "));
        assert_eq!(run(&costs, 2000.0, 1).1, None);

        let merging =
            1e9 * (load.value_bytes + EFFECT_BYTES) / costs.file.merge_ns(50, load.value_bytes + EFFECT_BYTES);
        let (bytes_per_s, cause) = run(&costs, 0.0, 64);
        assert!((merging * 0.9..merging * 1.01).contains(&bytes_per_s), "{bytes_per_s} of {merging}");
        assert!(cause.unwrap().starts_with("the journal's thread, "));

        // Without the work of the journal's thread, only the writer is left.
        costs.file.doubling_ns_per_byte.value = 0.0;
        costs.file.merge_ns_per_byte.value = 0.0;
        let writing = 1e9 / costs.file.direct_ns_per_byte.value;
        let (bytes_per_s, cause) = run(&costs, 0.0, 64);
        assert!((writing * 0.9..writing * 1.01).contains(&bytes_per_s), "{bytes_per_s} of {writing}");
        assert!(cause.unwrap().starts_with("the writer; "));
    }

    #[test]
    fn no_more_workers_than_connections_have_work() {
        let costs = Costs::built_in().unwrap();
        let mut load = costs.load("aof").unwrap().clone();
        let mut offered = |connections| {
            load.connections = connections;
            let (_, file) = simulate_load(&costs, &load, 20.0, 0.0, (8, 1024), Policy::Inline, 1);
            file.unwrap().offered_per_s
        };
        let (four, all) = (offered(Some(4)), offered(None));
        assert!((0.48..0.52).contains(&(four / all)), "{four} of {all}");
    }
}
