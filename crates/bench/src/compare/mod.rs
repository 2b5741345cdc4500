//! Compares servers on this host by driving each server with the same load in turn.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | peer | a compared server: one process, or the processes of a cluster ([`peers`]) |
//! | workload | commands, keys, sizes and clients under one name ([`workloads`]) |
//! | round | a measurement of each peer, in turn. A ratio compares two peers within one round |
//! | sweep | rounds at fixed rates, up to the peak throughput of each peer ([`sweep`]) |
//! | preset | a published set-up: peers, workloads, sizes, CPUs, checks of the host ([`presets`]) |
//! | row | the results of one peer in one workload |
//! | invalid | a row without results, because of error replies, lost connections or a dead server |
//! | skipped | a row without measurements: the server lacks a feature, or the run was interrupted |
//!
//! For each workload, all peers are started, filled with the same keys, driven for a second without
//! measurement, and then measured in rounds. In some workloads a round writes a snapshot or
//! restarts the server instead of driving it ([`persistence`]). Memory workloads have no rounds:
//! they measure the memory usage of the keys ([`resident`]).
//!
//! While one peer is measured, the others are suspended (SIGSTOP). Even forty idle processes then
//! use no CPU time. A peer's CPU time is the kernel's count for all threads of the peer's processes
//! and their children, between the first request and the last reply.
//!
//! Every started process is a [`process::Process`] value. Dropping the value kills the process: at
//! the end of the run, after an error, or after the first signal. A panic kills the processes, too.
//! SIGKILL of `pantala-bench` leaves the servers running.

mod cluster;
mod host;
mod measure;
mod options;
mod peers;
mod persistence;
mod preflight;
mod presets;
mod process;
mod report;
mod resident;
mod results;
mod steps;
mod sweep;
mod topology;
mod trace;
mod workloads;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pantala_base::Random;

use self::measure::Comparison;
pub(crate) use self::options::Options;
use self::options::Rate;
use self::peers::Ports;
use self::results::{PresetReport, Results, WorkloadResult};
use self::trace::Tracer;

/// Iterates over all workloads. Yields the name of each workload, and the reason why `pantala-bench
/// model` does not predict its performance. If `model` predicts the performance, the reason is
/// `None`.
pub(crate) fn modelled_workloads() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    workloads::ALL.iter().map(|workload| (workload.name, workload.unmodelled()))
}

/// Runs `pantala-bench compare`. Fails if a row is invalid or the run was interrupted.
pub(crate) fn main(options: &Options, stop: &Arc<AtomicBool>) -> io::Result<()> {
    if options.lists() {
        return list(&mut io::stdout().lock());
    }
    let setup = options.setup().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    // Prepare the folder first, so that a run fails at its start if it can't write its report.
    report::prepare(&setup.out)?;
    process::kill_at_panic();
    let mut ports = Ports::new(options.port, &mut Random::from_entropy());
    let preset = setup.preset.map(|preset| preset.report(&setup));
    preset.iter().for_each(say_preset);
    let tracer = match setup.rate {
        Rate::Sweep => Tracer::new(Options::perf()),
        _ => Err("only a sweep counts them".to_owned()),
    };
    let mut results = Results {
        host: host::look(),
        preset,
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        server_cpus: setup.server_cpus.clone(),
        client_cpus: setup.client_cpus.clone(),
        client_threads: setup.threads,
        seconds: setup.seconds,
        rounds: setup.rounds,
        workloads_planned: setup.workloads.len(),
        workloads: Vec::new(),
        interrupted: false,
    };
    let comparison = Comparison { setup: &setup, seed: options.seed, tracer: &tracer, stop };
    for workload in &setup.workloads {
        if !stop.load(Ordering::Relaxed) {
            let result = comparison.run(workload, &mut ports);
            // A closed stdout does not end the run, because the report is also written to files.
            let _ = report::print(&result, &mut io::stdout().lock());
            results.workloads.push(result);
        }
        results.interrupted = stop.load(Ordering::Relaxed);
        results.host.load_after = host::load();
        // Write the report after each workload, so that a later failure does not lose hours of
        // measurements.
        report::write(&results, &setup.out)?;
    }
    let _ = writeln!(io::stdout(), "report in {}", setup.out.display());
    if results.interrupted {
        return Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "interrupted: the report contains the measurements until then",
        ));
    }
    match invalid_rows(&results.workloads) {
        0 => Ok(()),
        rows => Err(io::Error::other(format!("{rows} rows are invalid"))),
    }
}

/// Prints a line of progress. Ignores a closed stderr.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints how this run differs from the preset's publication. Called before the measurements,
/// because they may take hours.
fn say_preset(preset: &PresetReport) {
    say(&format!("{}: {}", preset.name, preset.source));
    for line in preset.scaled_down.iter().chain(&preset.placement) {
        say(&format!("  {line}"));
    }
    for finding in &preset.findings {
        let advice = finding.advice.as_ref().map_or_else(String::new, |advice| format!(" -> {advice}"));
        say(&format!("  {}: {}{advice}", finding.what, finding.found));
    }
}

fn invalid_rows(workloads: &[WorkloadResult]) -> usize {
    workloads.iter().flat_map(|workload| &workload.peers).filter(|peer| peer.invalid.is_some()).count()
}

/// Prints a list of all workloads.
fn list(out: &mut impl Write) -> io::Result<()> {
    for workload in workloads::ALL.iter().chain(workloads::PUBLISHED) {
        writeln!(
            out,
            "{:<20} {}. {}{}",
            workload.name,
            workload.shape(),
            if workload.source.is_empty() { String::new() } else { format!("Source: {}. ", workload.source) },
            if workload.source.is_empty() {
                format!("Our own: {}", workload.ours)
            } else {
                format!("Our choices: {}", workload.ours)
            },
        )?;
    }
    Ok(())
}
