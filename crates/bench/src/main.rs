//! `pantala-bench`: a load generator for Redis servers, and tools based on it.
//!
//! | tool | what |
//! | --- | --- |
//! | `load` | drives a server and prints throughput and latency; has memtier_benchmark's options |
//! | `compare` | drives servers on this host with the same load in turn, and writes a report |
//! | `model` | predicts the performance of a machine with many cores from measured costs |
//! | `floor` | parses and replies with the server's event loops, but stores nothing |
//!
//! The cost of a server minus the cost of `floor` is the cost of storing data. `docs/benchmarks.md`
//! explains how each number is measured and what it excludes.

#![forbid(unsafe_code)]

mod compare;
mod floor;
mod load;
mod model;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Load generator for Redis protocol servers, and comparisons of servers on this host.
#[derive(Parser)]
#[command(name = "pantala-bench", version)]
struct Arguments {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Drives a server and prints throughput and latency.
    #[command(after_help = load::options::RESULTS)]
    Load(Box<load::options::Options>),
    /// Starts servers on this host, drives each with the same load in turn, and writes a report.
    Compare(Box<compare::Options>),
    /// Predicts the performance of a machine with many cores from measured costs, by simulation.
    Model(model::Options),
    /// Replies to GET with a fixed value and to everything else with +OK, and stores nothing.
    /// Prints its CPU time per command at SIGTERM or SIGINT.
    Floor(floor::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().tool {
        Tool::Load(options) => stop_flag(&[SIGINT, SIGTERM], true).and_then(|stop| load::main(&options, &stop)),
        Tool::Compare(options) => {
            stop_flag(&[SIGINT, SIGTERM, SIGQUIT, SIGHUP], false).and_then(|stop| compare::main(&options, &stop))
        }
        Tool::Model(options) => model::run(&options),
        Tool::Floor(options) => floor::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The error is ignored, because stderr may be closed.
            let _ = writeln!(io::stderr(), "pantala-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns a flag that the first of `signals` sets, so that the run ends in an orderly way. With
/// `then_at_once`, the second signal ends the process immediately. Without it, further signals have
/// no effect, because the process must still stop the servers that it started.
fn stop_flag(signals: &[i32], then_at_once: bool) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        // A process started by `nohup` should outlive the terminal.
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        if then_at_once {
            // Handlers run in the order of registration. This handler ends the process if the flag
            // is set. It is registered before the handler that sets the flag, so it acts only on
            // the second signal.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        }
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Returns whether this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| (mask >> (signal - 1)) & 1 == 1)
}
