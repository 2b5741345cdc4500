//! Finds and runs programs of this host, such as redis-server and redis-cli.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the path of `program` on the search path. If it isn't installed, prints a `SKIPPED:`
/// line and returns `None`.
///
/// # Panics
/// If `program` isn't installed and `CI=true`, because CI must not skip tests.
#[must_use]
pub fn find(program: &str) -> Option<PathBuf> {
    let found = on_path(program);
    if found.is_none() {
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "{program} is not installed, and with CI=true its tests must not be skipped");
        skipped(format_args!("{program} is not installed"));
    }
    found
}

/// Returns the path of `program` on the search path.
#[must_use]
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// The result of running a program.
#[derive(Debug)]
pub struct Ran {
    /// Whether it exited with 0.
    pub success: bool,
    /// Its standard output, with carriage returns converted to line ends.
    pub output: String,
    /// Its standard error, converted like `output`.
    pub errors: String,
}

/// Runs `program` on the server at `port` (`-p`), with `args` and `input`, until it ends.
///
/// # Panics
/// If `program` can't be started, or still runs after `limit`.
#[must_use]
pub fn run(program: &Path, port: u16, args: &[&str], input: &[u8], limit: Duration) -> Ran {
    run_to_end(Command::new(program).args(["-p", &port.to_string()]).args(args), input, limit)
}

/// Runs a command line with `input` until it ends.
///
/// # Panics
/// If the command can't be started, or still runs after `limit`. The panic message contains the
/// command's output.
#[must_use]
pub fn run_to_end(command: &mut Command, input: &[u8], limit: Duration) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} doesn't start: {error}"));
    let mut pipe = child.stdin.take().expect("standard input is piped");
    let (mut output, mut errors) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    std::thread::scope(|scope| {
        // A program that ends early doesn't read all its input, so the write may fail.
        scope.spawn(move || pipe.write_all(input));
        let output = scope.spawn(move || read_text(&mut output));
        let errors = scope.spawn(move || read_text(&mut errors));
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                let printed = [output, errors].map(|thread| thread.join().expect("it is read"));
                panic!("{command:?} still ran after {limit:?}; it printed:\n{}", printed.join("\n"));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Ran {
            success: status.success(),
            output: output.join().expect("it is read"),
            errors: errors.join().expect("it is read"),
        }
    })
}

fn read_text(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    // Bytes read before an error are still useful output.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).replace('\r', "\n")
}

/// Prints on standard error that something isn't tested, and why. Doesn't use `eprintln!`, because
/// the test runner hides the output of `eprintln!` if the test passes.
pub fn skipped(why: impl std::fmt::Display) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}
