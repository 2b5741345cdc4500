//! `pantala-bench`: tools to hold the server against its host.
//!
//! `floor` is a responder that parses and answers but stores nothing, on the server's own event loops: what is left of a server's
//! cost above it is the price of being a database. `benches/cpu_per_op.py` runs both in turn and prints ratios.

#![forbid(unsafe_code)]

mod floor;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tools to hold a server against its host.
#[derive(Parser)]
#[command(name = "pantala-bench", version)]
struct Arguments {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Answers GET with a fixed bulk and everything else with +OK, storing nothing; prints its CPU time per command at SIGTERM or SIGINT.
    Floor(floor::Options),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().tool {
        Tool::Floor(options) => floor::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pantala-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
