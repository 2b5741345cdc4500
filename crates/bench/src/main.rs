//! `pantala-bench`: tools to hold a server against its host.
//!
//! | tool | what |
//! | --- | --- |
//! | `load` | drives a server, in memtier_benchmark's words, and tells throughput and latency |
//! | `compare` | starts servers on this host, drives them with the same load in turn, and writes a report |
//! | `model` | from measured costs to a machine with many cores, by simulation |
//! | `floor` | a responder that parses and answers but stores nothing, on the server's own event loops: what a server costs above it is the price of being a database |
//!
//! `docs/benchmarks.md` tells how what is measured, and what that leaves out.

#![forbid(unsafe_code)]

mod compare;
mod cpus;
mod floor;
mod load;
mod model;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Parser, Subcommand};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

/// Tools to hold a server against its host.
#[derive(Parser)]
#[command(name = "pantala-bench", version)]
struct Arguments {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Drives a server and tells throughput and latency.
    Load(Box<load::options::Options>),
    /// Starts servers on this host, drives them with the same load in turn, and writes a report.
    Compare(Box<compare::Options>),
    /// What a machine with many cores should do, simulated from measured costs.
    Model(model::Options),
    /// Answers GET with a fixed bulk and everything else with +OK, storing nothing; prints its CPU time per command at SIGTERM or SIGINT.
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
            // Nobody may be left to read it.
            let _ = writeln!(io::stderr(), "pantala-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Set by the first of `signals`: whatever runs ends in order. With `then_at_once` the second one ends the process at once; without, it
/// changes nothing, since servers that were started must be stopped.
fn stop_flag(signals: &[i32], then_at_once: bool) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for &signal in signals {
        // Who called `nohup` wants it to outlive the terminal.
        if signal == SIGHUP && is_ignored(signal) {
            continue;
        }
        if then_at_once {
            // In this order: while the flag is unset the first does nothing.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        }
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Whether this process was started with `signal` ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| (mask >> (signal - 1)) & 1 == 1)
}
