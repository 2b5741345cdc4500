//! Runs a unit on a server.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::list::{Fate, Skipped, Unit};
use super::report::Report;
use crate::server::free_port;
use crate::{Server, tool};

/// Runs `unit` of the suite in `source` on `server`. Writes the suite's output to the file `log`,
/// and returns it in parsed form. Tests that `skipped` excludes don't run. A unit that exceeds its
/// limit is killed, and its report has `done` unset.
///
/// # Panics
/// If the suite can't be started.
#[must_use]
pub fn run(source: &Path, unit: &Unit, skipped: &Skipped, server: &Server, log: &Path) -> Report {
    run_with(source, unit, &skip_options(skipped), server, log)
}

/// Runs only the test with this name in `unit`.
///
/// # Panics
/// If the suite can't be started.
#[must_use]
pub fn run_only(source: &Path, unit: &Unit, test: &str, server: &Server, log: &Path) -> Report {
    run_with(source, unit, &["--only".into(), test.into()], server, log)
}

/// Runs `unit` on servers that the suite starts itself. `source` is the directory of
/// [`own_folder`](super::source::own_folder).
///
/// # Panics
/// If the suite can't be started.
#[must_use]
pub fn run_own(source: &Path, unit: &Unit, skipped: &Skipped, log: &Path) -> Report {
    run_in(source, unit, &skip_options(skipped), &source.join("tests/tmp"), log)
}

fn skip_options(skipped: &Skipped) -> Vec<String> {
    let not_run = skipped.tests.iter().filter(|(_, listed)| matches!(listed.fate, Fate::NotRun | Fate::OneWorker));
    let mut options: Vec<String> = not_run.flat_map(|(name, _)| ["--skiptest".into(), name.clone()]).collect();
    if !skipped.denied_tags.is_empty() {
        let denied: Vec<_> = skipped.denied_tags.iter().map(|tag| format!("-{tag}")).collect();
        options.extend(["--tags".into(), denied.join(" ")]);
    }
    options
}

fn run_with(source: &Path, unit: &Unit, options: &[String], server: &Server, log: &Path) -> Report {
    let address = ["--host", "127.0.0.1", "--port", &server.port().to_string()].map(str::to_owned);
    run_in(source, unit, &[&address[..], options].concat(), server.folder(), log)
}

fn run_in(source: &Path, unit: &Unit, options: &[String], home: &Path, log: &Path) -> Report {
    let output = File::create(log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
    let errors = output.try_clone().expect("the log opens twice");
    let tclsh = tool::find("tclsh").expect("the source is there only if tclsh is");
    let mut child = Command::new(tclsh)
        .arg("tests/test_helper.tcl")
        // The suite itself needs a port. It searches for a free one below this port.
        .args(["--baseport", &(u32::from(free_port()) + 32).to_string()])
        // An error in a test must not abort the unit.
        .args(["--durable", "--clients", "1", "--single", &unit.name])
        .args(options)
        .current_dir(source)
        // The output has no colours, and redis-cli writes no history file.
        .env("TERM", "dumb")
        .env("HOME", home)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // The suite starts other processes. All of them are in its process group, so they can be
        // killed together.
        .process_group(0)
        .spawn()
        .expect("tclsh starts");
    let deadline = Instant::now() + unit.limit;
    while child.try_wait().expect("a child can be waited for").is_none() {
        if Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // This is also done for a unit that has ended by itself, because processes that it started may
    // still run.
    match kill_process_group(Pid::from_child(&child), Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => (),
        Err(error) => panic!("the suite can't be killed: {}", io::Error::from(error)),
    }
    let _ = child.wait();
    Report::parse(&String::from_utf8_lossy(&fs::read(log).unwrap_or_default()))
}
