//! Head-to-head runs: servers on this host, driven with the same load in turn.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | peer | a server that is compared: one process, or the processes of a cluster ([`peers`]) |
//! | workload | commands, keys, sizes and clients by a name ([`workloads`]) |
//! | round | every peer is measured once, in turn. A ratio is taken between two peers *within* a round |
//! | invalid | a row whose server answered errors, lost connections or died: it has no figures |
//! | skipped | a row whose server can't do what the workload needs |
//!
//! For each workload all peers are started anew, loaded with the same keys, driven for a second unmeasured, and then measured; or what was loaded is weighed
//! ([`resident`]). Who waits
//! for its turn is stopped (SIGSTOP), so that forty idle processes cost the others nothing. CPU time is what the kernel counted for all
//! threads of all processes of a peer, and of what these started, between the first request and the last answer.
//!
//! Everything started is a [`process::Process`], which ends it when dropped: at the end, at an error, and after the first signal that asks for it; a
//! panic kills it. Only when this process is killed itself (SIGKILL) its servers stay.

mod cluster;
mod host;
mod measure;
mod options;
mod peers;
mod process;
mod report;
mod resident;
mod results;
mod steps;
mod workloads;

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pantala_base::Random;

use self::measure::Course;
pub(crate) use self::options::Options;
use self::peers::Ports;
use self::results::{Results, WorkloadResult};

/// Every workload, and why the model of bigger machines says nothing of it, where it doesn't.
pub(crate) fn modelled_workloads() -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    workloads::ALL.iter().map(|workload| (workload.name, workload.unmodelled()))
}

/// `pantala-bench compare`. Ends with an error when a row is invalid, or when it was interrupted.
pub(crate) fn main(options: &Options, stop: &Arc<AtomicBool>) -> io::Result<()> {
    if options.lists() {
        return list(&mut io::stdout().lock());
    }
    let setup = options.setup().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    // First of all: a folder that can't be written is told before the run, not after it.
    report::prepare(&setup.out)?;
    process::kill_at_panic();
    let mut ports = Ports::new(options.port, &mut Random::from_entropy());
    let mut results = Results {
        host: host::look(),
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        server_cpus: setup.server_cpus.clone(),
        client_cpus: setup.client_cpus.clone(),
        client_threads: setup.threads,
        seconds: options.test_time,
        rounds: setup.rounds,
        workloads_planned: setup.workloads.len(),
        workloads: Vec::new(),
        interrupted: false,
    };
    let course = Course { setup: &setup, seconds: options.test_time, seed: options.seed, stop };
    for workload in &setup.workloads {
        if !stop.load(Ordering::Relaxed) {
            let result = course.run(workload, &mut ports);
            // The report counts: that nobody reads the table any more is no reason to end.
            let _ = report::print(&result, &mut io::stdout().lock());
            results.workloads.push(result);
        }
        results.interrupted = stop.load(Ordering::Relaxed);
        results.host.load_after = host::load();
        // Each time: what was measured for hours shall be there whatever happens next.
        report::write(&results, &setup.out)?;
    }
    let _ = writeln!(io::stdout(), "report in {}", setup.out.display());
    if results.interrupted {
        return Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "interrupted: the report holds what was measured until then",
        ));
    }
    match invalid_rows(&results.workloads) {
        0 => Ok(()),
        rows => Err(io::Error::other(format!("{rows} rows are invalid"))),
    }
}

/// Tells who watches, if anybody does: a terminal that is gone is no reason to end.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn invalid_rows(workloads: &[WorkloadResult]) -> usize {
    workloads.iter().flat_map(|workload| &workload.peers).filter(|peer| peer.invalid.is_some()).count()
}

/// Tells all workloads.
fn list(out: &mut impl Write) -> io::Result<()> {
    for workload in workloads::ALL {
        writeln!(
            out,
            "{:<20} {}. {}{}",
            workload.name,
            workload.shape(),
            if workload.source.is_empty() { String::new() } else { format!("Source: {}. ", workload.source) },
            if workload.source.is_empty() {
                format!("Ours: {}", workload.ours)
            } else {
                format!("Ours in it: {}", workload.ours)
            },
        )?;
    }
    Ok(())
}
