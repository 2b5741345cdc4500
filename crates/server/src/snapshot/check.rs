//! `pantala check-rdb FILE`: reads a file value by value, and reports the first error and its
//! offset.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pantala_base::limits::DATABASES_MAX;
use pantala_base::{Clock, SystemClock};
use pantala_engine::tuning::Tuning;
use pantala_persistence::rdb::{Check, Reader};
use pantala_types::rdb_value::Dialect;

use crate::cli::version;

/// The request of the arguments of `check-rdb`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// Check this file.
    Check(PathBuf),
    /// Print the version of the program.
    Version,
    /// Print the usage, because the arguments are `--help` or invalid.
    Usage,
}

impl Arguments {
    /// Parses the arguments without the program's name. Returns `None` if the first argument is not
    /// `check-rdb`.
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let (first, rest) = arguments.split_first()?;
        if first != "check-rdb" {
            return None;
        }
        match rest {
            [option] if option == "-v" || option == "--version" => Some(Arguments::Version),
            [file] if !file.is_empty() && file != "--help" => Some(Arguments::Check(file.into())),
            _ => Some(Arguments::Usage),
        }
    }
}

const USAGE: &str = "Usage: pantala check-rdb <rdb-file-name>";
/// Bytes per read.
const INPUT_BYTES: usize = 1024 * 1024;

/// Checks a file, or prints the version or the usage. Returns exit code 1 if the file is invalid or
/// the usage was printed, 0 otherwise.
pub fn check_rdb(arguments: &Arguments) -> ExitCode {
    // Errors are ignored, because standard output and standard error may be closed.
    let (is_right, text) = match arguments {
        Arguments::Check(path) => check(path),
        Arguments::Version => (true, version()),
        Arguments::Usage => {
            let _ = writeln!(io::stderr().lock(), "{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let _ = io::stdout().lock().write_all(text.as_bytes());
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns whether the file is valid, and the text of the report.
fn check(path: &Path) -> (bool, String) {
    let (end, report) = check_start(path);
    (end.is_some(), report)
}

/// Checks the RDB data at the start of a file. Returns the offset of the data's end (`None` if the
/// data is invalid), and the text of the report.
pub fn check_start(path: &Path) -> (Option<u64>, String) {
    let mut lines = String::new();
    let mut report = |offset: u64, line: &str| lines += &format!("[offset {offset}] {line}\n");
    report(0, &format!("Checking RDB file {}", path.display()));
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            report(0, &format!("Cannot open file {}: {error}", path.display()));
            return (None, lines);
        }
    };
    let limits = super::load::load_limits(Tuning::new().rdb_limits());
    let file_bytes = file.metadata().ok().map(|metadata| metadata.len());
    let reader = Reader::new(file_bytes, DATABASES_MAX as u32, limits.string_bytes_max, true);
    let mut check = Check::new(reader, limits, SystemClock::new().now_us() / 1000, &mut report);
    let mut input = vec![0; INPUT_BYTES];
    let mut read = 0;
    let ended = loop {
        let len = match file.read(&mut input) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => break Err((read, error.to_string())),
        };
        read += len as u64;
        match check.feed(&input[..len]) {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err((error.offset, error.fault.to_string())),
        }
    };
    let (findings, version, end) = (check.findings(), check.version(), check.offset());
    let is_right = ended.is_ok();
    match ended {
        Ok(()) => lines += &format!("[offset {end}] \\o/ RDB looks OK! \\o/\n"),
        Err((offset, why)) => lines += &format!("--- RDB ERROR DETECTED ---\n[offset {offset}] {why}\n"),
    }
    if let Some((dialect, version)) = version {
        let name = if dialect == Dialect::Valkey { "VALKEY" } else { "REDIS" };
        lines += &format!("[info] RDB version: {name} {version}\n");
    }
    lines += &format!(
        "[info] {} keys read\n[info] {} expires\n[info] {} already expired\n[info] {} function libraries\n",
        findings.keys, findings.expiring, findings.expired, findings.functions
    );
    (is_right.then_some(end), lines)
}
