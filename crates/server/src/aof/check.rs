//! `pantala check-aof`: checks an append-only file, and truncates it at the first error if
//! requested. The texts and exit codes are those of redis-check-aof.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pantala_persistence::aof::{Analysis, Check, Listed, Manifest, Outcome, RDB_MAGIC_BYTES, is_rdb};

use crate::snapshot;

const USAGE: &str = "Usage: pantala check-aof [--fix|--truncate-to-timestamp $timestamp] <file.manifest|file.aof>";

/// Bytes per read.
const INPUT_BYTES: usize = 1024 * 1024;

/// The treatment of an invalid file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Leave it as it is, and only report errors.
    Nothing,
    /// Truncate the file after its last complete command, if the user confirms.
    Fix,
    /// Truncate the file before the first command that was written later than this Unix time in s.
    Until(i64),
}

/// The request of the command-line arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments {
    /// Check this file or manifest.
    Check(Repair, PathBuf),
    /// Report that the timestamp argument is not a number.
    InvalidTimestamp,
    /// Print the usage.
    Usage,
}

impl Arguments {
    /// Parses the arguments without the program's name. Returns `None` if the first argument is not
    /// `check-aof`.
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let (first, rest) = arguments.split_first()?;
        if first != "check-aof" {
            return None;
        }
        Some(match rest {
            [file] if !file.is_empty() && !file.as_bytes().starts_with(b"--") => {
                Arguments::Check(Repair::Nothing, file.into())
            }
            [option, file] if option == "--fix" => Arguments::Check(Repair::Fix, file.into()),
            [option, time, file] if option == "--truncate-to-timestamp" => {
                let time_s = time.to_str().and_then(|text| text.parse().ok());
                match time_s {
                    Some(time_s) => Arguments::Check(Repair::Until(time_s), file.into()),
                    None => Arguments::InvalidTimestamp,
                }
            }
            _ => Arguments::Usage,
        })
    }
}

/// Runs the check. Returns exit code 0 if all files are valid or were repaired, and 1 otherwise.
pub fn check_aof(arguments: &Arguments) -> ExitCode {
    let mut report = Report(io::stdout().lock());
    let checked = match arguments {
        Arguments::Usage => Err(Stopped(USAGE.to_owned())),
        Arguments::InvalidTimestamp => Err(Stopped("Invalid timestamp, aborting...".to_owned())),
        Arguments::Check(repair, path) => check_path(&mut report, *repair, path),
    };
    match checked {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stopped(why)) => {
            report.line(&why);
            ExitCode::FAILURE
        }
    }
}

/// The reason why the check stopped before the end of the files.
struct Stopped(String);

/// Writes the report to standard output. Ignores errors, because standard output may be closed.
struct Report<'o>(io::StdoutLock<'o>);

impl Report<'_> {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.0, "{line}");
    }

    fn ask(&mut self, question: &str) -> bool {
        let _ = write!(self.0, "{question}");
        let _ = self.0.flush();
        let mut answer = String::new();
        let _ = io::stdin().lock().read_line(&mut answer);
        answer.starts_with(['y', 'Y'])
    }
}

fn check_path(report: &mut Report<'_>, repair: Repair, path: &Path) -> Result<(), Stopped> {
    let mut file =
        File::open(path).map_err(|error| Stopped(format!("Cannot open file {}: {error}", path.display())))?;
    if is_manifest(path, &mut file) {
        return check_parts(report, repair, path);
    }
    report.line("Start checking Old-Style AOF");
    let name = path.display().to_string();
    let result = check_single(report, &Part { name: &name, path, is_last: true, has_preamble: has_rdb(path) }, repair)?;
    report.line(&result.text("AOF", &name, repair));
    Ok(())
}

/// Returns whether a file is a manifest. A file whose name ends with `.manifest` is one. For any
/// other file, the first line that isn't a comment decides. If this line starts with `file`, the
/// file is a manifest. If it starts with `*`, as commands do, the file is not. Otherwise the line
/// is damaged, and the file is a manifest if a later line starts with `file `. A manifest must not
/// be mistaken for a file of commands and truncated, because it would then no longer list files
/// that must be loaded.
fn is_manifest(path: &Path, file: &mut File) -> bool {
    if path.extension().is_some_and(|extension| extension == "manifest") {
        return true;
    }
    let mut start = Vec::new();
    if file.take(INPUT_BYTES as u64).read_to_end(&mut start).is_err() || is_rdb(&start) {
        return false;
    }
    let mut lines = start.split(|byte| *byte == b'\n').skip_while(|line| line.starts_with(b"#"));
    match lines.next() {
        Some(first) if first.starts_with(b"file") => true,
        Some([b'*', ..]) | None => false,
        Some(_) => lines.any(|line| line.starts_with(b"file ")),
    }
}

fn has_rdb(path: &Path) -> bool {
    let mut start = [0; RDB_MAGIC_BYTES];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && is_rdb(&start)
}

/// Checks the files that a manifest lists.
fn check_parts(report: &mut Report<'_>, repair: Repair, path: &Path) -> Result<(), Stopped> {
    report.line("Start checking Multi Part AOF");
    let text = std::fs::read(path).map_err(|error| Stopped(format!("Cannot open file {}: {error}", path.display())))?;
    let manifest =
        Manifest::parse(&text).map_err(|error| Stopped(format!("\n*** FATAL AOF MANIFEST FILE ERROR ***\n{error}")))?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = |listed: &Listed| {
        let name = OsString::from_vec(listed.name.clone());
        (name.display().to_string(), dir.join(name))
    };
    if let Some(base) = manifest.base() {
        let (name, path) = place(base);
        let has_preamble = has_rdb(&path);
        report.line(&format!("Start to check BASE AOF ({} format).", if has_preamble { "RDB" } else { "RESP" }));
        let part = Part { name: &name, path: &path, is_last: manifest.increments().is_empty(), has_preamble };
        let result = check_single(report, &part, repair)?;
        report.line(&result.text("BASE AOF", &name, repair));
    }
    if !manifest.increments().is_empty() {
        report.line("Start to check INCR files.");
    }
    for (index, increment) in manifest.increments().iter().enumerate() {
        let (name, path) = place(increment);
        // A file may be truncated if all later files are empty. The server follows the same rule
        // when it loads the files.
        let size = |later: &Listed| std::fs::metadata(place(later).1).map_or(0, |metadata| metadata.len());
        let is_last = manifest.increments()[index + 1..].iter().all(|later| size(later) == 0);
        let part = Part { name: &name, path: &path, is_last, has_preamble: false };
        let result = check_single(report, &part, repair)?;
        report.line(&result.text("INCR AOF", &name, repair));
    }
    report.line("All AOF files and manifest are valid");
    Ok(())
}

/// A file to check.
struct Part<'a> {
    name: &'a str,
    path: &'a Path,
    /// Whether the file may be truncated, because all later files are empty.
    is_last: bool,
    /// Whether the file starts with RDB data.
    has_preamble: bool,
}

/// The result for one file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Checked {
    Right,
    Empty,
    Cut,
    CutToTime,
}

impl Checked {
    fn text(self, what: &str, name: &str, repair: Repair) -> String {
        match (self, repair) {
            (Checked::Right, _) => format!("{what} {name} is valid"),
            (Checked::Empty, _) => format!("{what} {name} is empty"),
            (Checked::CutToTime, Repair::Until(time_s)) => {
                format!("Successfully truncated AOF {name} to timestamp {time_s}")
            }
            (Checked::Cut | Checked::CutToTime, _) => format!("Successfully truncated AOF {name}"),
        }
    }
}

fn check_single(report: &mut Report<'_>, part: &Part<'_>, repair: Repair) -> Result<Checked, Stopped> {
    let Part { name, path, .. } = part;
    let cannot = |error: io::Error| Stopped(format!("Cannot open file {}: {error}, aborting...", path.display()));
    let mut file = OpenOptions::new().read(true).write(repair != Repair::Nothing).open(path).map_err(cannot)?;
    let size = file.metadata().map_err(cannot)?.len();
    if size == 0 {
        return Ok(Checked::Empty);
    }
    let offset = if part.has_preamble { check_preamble(report, path)? } else { 0 };
    let until_s = if let Repair::Until(time_s) = repair { Some(time_s) } else { None };
    let unread = |_| Stopped(format!("Failed to read from AOF {name}, aborting..."));
    file.seek(SeekFrom::Start(offset)).map_err(unread)?;
    let mut check = Check::new(offset, path.display().to_string(), until_s);
    let mut input = vec![0; INPUT_BYTES];
    let outcome = loop {
        let len = match file.read(&mut input) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(unread(error)),
        };
        if let Some(outcome) = check.feed(&input[..len]) {
            break outcome;
        }
    };
    match outcome {
        Outcome::InvalidTimestamp => Err(Stopped("Invalid timestamp annotation".to_owned())),
        Outcome::Later(at) => cut_to_time(&file, part, at, until_s.unwrap_or_default()),
        Outcome::Read(analysis) => settle(report, &file, part, size, &analysis, repair),
    }
}

/// Checks the RDB data at the start of a file. Returns the offset of the first byte after this
/// data.
fn check_preamble(report: &mut Report<'_>, path: &Path) -> Result<u64, Stopped> {
    let (checked, text) = snapshot::check_start(path);
    let _ = report.0.write_all(text.as_bytes());
    match checked {
        Some(end) => {
            report.line("RDB preamble is OK, proceeding with AOF tail...");
            Ok(end)
        }
        None => Err(Stopped("RDB preamble of AOF file is not sane, aborting.".to_owned())),
    }
}

fn cut_to_time(file: &File, part: &Part<'_>, at: u64, time_s: i64) -> Result<Checked, Stopped> {
    let path = part.path.display();
    if at == 0 {
        return Err(Stopped(format!("AOF {path} has nothing before timestamp {time_s}, aborting...")));
    }
    if !part.is_last {
        return Err(Stopped(format!(
            "Failed to truncate AOF {path} to timestamp {time_s} to offset {at} because it is not the last file.\n\
             If you insist, please delete all files after this file according to the manifest file and delete the \
             corresponding records in manifest file manually. Then re-run redis-check-aof."
        )));
    }
    match file.set_len(at).and_then(|()| file.sync_all()) {
        Ok(()) => Ok(Checked::CutToTime),
        Err(_) => Err(Stopped(format!("Failed to truncate AOF {path} to timestamp {time_s}"))),
    }
}

/// Reports how far a file is valid. If requested, truncates the file there.
fn settle(
    report: &mut Report<'_>,
    file: &File,
    part: &Part<'_>,
    size: u64,
    analysis: &Analysis,
    repair: Repair,
) -> Result<Checked, Stopped> {
    let (name, Analysis { error, is_format_error, ok_up_to, line }) = (part.name, analysis);
    if *is_format_error {
        report.line(&format!("AOF {name} format error"));
    }
    if let Some(error) = error {
        report.line(error);
    }
    let diff = size - ok_up_to;
    if let (0, Repair::Until(time_s)) = (diff, repair) {
        report.line(&format!("Truncate nothing in AOF {name} to timestamp {time_s}"));
        return Ok(Checked::Right);
    }
    let mut text = String::new();
    let _ = write!(
        text,
        "AOF analyzed: filename={name}, size={size}, ok_up_to={ok_up_to}, ok_up_to_line={line}, diff={diff}"
    );
    report.line(&text);
    if diff == 0 {
        return Ok(Checked::Right);
    }
    if repair != Repair::Fix {
        return Err(Stopped(format!("AOF {name} is not valid. Use the --fix option to try fixing it.")));
    }
    if !part.is_last {
        return Err(Stopped(format!("Failed to truncate AOF {name} because it is not the last file")));
    }
    report.line(&format!("This will shrink the AOF {name} from {size} bytes, with {diff} bytes, to {ok_up_to} bytes"));
    if !report.ask("Continue? [y/N]: ") {
        return Err(Stopped("Aborting...".to_owned()));
    }
    match file.set_len(*ok_up_to).and_then(|()| file.sync_all()) {
        Ok(()) => Ok(Checked::Cut),
        Err(_) => Err(Stopped(format!("Failed to truncate AOF {name}"))),
    }
}
