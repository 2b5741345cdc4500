//! Counts the system calls and wake-ups of servers with the kernel's tracepoints and `perf`.
//!
//! Counting needs `perf`, the file system of tracepoints, and the rights of root. Many hosts don't
//! provide all of these. A tracepoint takes CPU time at every event, so loads whose events are
//! counted are not timed.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde::Serialize;
use tempfile::NamedTempFile;

/// The tracepoint that fires when a thread enters a system call.
const SYSTEM_CALLS: &str = "raw_syscalls:sys_enter";
/// The tracepoint that fires when a thread is woken. Its field `pid` is the ID of the woken thread.
const WAKE_UPS: &str = "sched:sched_wakeup";
/// Maximum length of a filter in bytes. The kernel accepts at most a page.
const FILTER_BYTES_MAX: usize = 4_000;
/// Maximum length in bytes of the part of an error message of `perf` that is shown.
const COMPLAINT_BYTES_MAX: usize = 200;

/// The path of a `perf` that can count events on this host.
#[derive(Debug)]
pub(super) struct Tracer {
    perf: PathBuf,
}

/// The numbers of events during one load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) system_calls: u64,
    pub(super) wake_ups: u64,
    /// Number of operations while the other two were counted.
    pub(super) operations: u64,
}

/// A count that is in progress. Dropping the value closes the input of `cat`, the command that
/// `perf` runs. `cat` then ends, and so does `perf`.
pub(super) struct Tracing {
    perf: Child,
    input: ChildStdin,
    output: NamedTempFile,
}

impl Tracer {
    /// Checks that `perf` can count this process's own system calls. If it can't, returns the
    /// reason.
    pub(super) fn new(perf: Option<PathBuf>) -> Result<Self, String> {
        let tracer = Self { perf: perf.ok_or("perf is not installed")? };
        let own = [std::process::id()];
        match tracer.start(&own).and_then(Tracing::end) {
            Ok(Counts { system_calls: 0, .. }) => Err("perf doesn't see this process: a container?".to_owned()),
            Ok(_) => Ok(tracer),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Starts to count the events of `threads`. Returns after the counting has started.
    pub(super) fn start(&self, threads: &[u32]) -> io::Result<Tracing> {
        let (calls, wake_ups) = (filter("common_pid", threads)?, filter("pid", threads)?);
        let output = NamedTempFile::new()?;
        let mut perf = Command::new(&self.perf);
        perf.args(["stat", "-a", "-x", ",", "-o"]).arg(output.path());
        perf.args(["-e", SYSTEM_CALLS, "--filter", &calls, "-e", WAKE_UPS, "--filter", &wake_ups, "--", "cat"]);
        // A separate process group ensures that Ctrl-C reaches only pantala-bench.
        perf.env("LC_ALL", "C").process_group(0);
        let mut perf = perf.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (Some(mut input), Some(mut echo)) = (perf.stdin.take(), perf.stdout.take()) else {
            return Err(io::Error::other("perf has no input and output"));
        };
        // `perf` first starts to count and then starts `cat`, which echoes this line. If `perf`
        // fails, there is no echo.
        let mut byte = [0];
        let answered = input.write_all(b"\n").and_then(|()| echo.read(&mut byte));
        if !matches!(answered, Ok(1)) {
            drop(input);
            let output = perf.wait_with_output()?;
            return Err(io::Error::other(complaint(&String::from_utf8_lossy(&output.stderr))));
        }
        Ok(Tracing { perf, input, output })
    }
}

impl Tracing {
    /// Stops counting and returns the counts. `operations` is 0, and the caller sets it.
    pub(super) fn end(self) -> io::Result<Counts> {
        let Self { perf, input, output } = self;
        drop(input);
        let ended = perf.wait_with_output()?;
        if !ended.status.success() {
            return Err(io::Error::other(complaint(&String::from_utf8_lossy(&ended.stderr))));
        }
        parse(&fs::read_to_string(output.path())?).map_err(io::Error::other)
    }
}

/// Returns a filter for a tracepoint. The filter accepts events whose `field` is one of `threads`.
fn filter(field: &str, threads: &[u32]) -> io::Result<String> {
    let terms: Vec<String> = threads.iter().map(|thread| format!("{field}=={thread}")).collect();
    let filter = terms.join("||");
    if filter.len() > FILTER_BYTES_MAX {
        return Err(io::Error::other(format!("{} threads are too many for a filter of perf", threads.len())));
    }
    Ok(filter)
}

/// Returns the first line with an error in the output of `perf`. If there is none, returns the
/// first line.
fn complaint(errors: &str) -> String {
    let lines = || errors.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().find_map(|line| line.strip_prefix("Error:")).or_else(|| lines().next());
    let line: String = line.unwrap_or("it said nothing").trim().chars().take(COMPLAINT_BYTES_MAX).collect();
    format!("perf failed: {line}")
}

/// Parses the output of `perf stat -x ,`. Each line contains a value, a unit, an event and more
/// fields.
fn parse(text: &str) -> Result<Counts, String> {
    let count = |event: &str| {
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let line = lines.find(|fields| fields.get(2) == Some(&event));
        let value = line.ok_or_else(|| format!("perf says nothing of {event}"))?[0].to_owned();
        value.parse::<u64>().map_err(|_| format!("perf says of {event}: {value}"))
    };
    Ok(Counts { system_calls: count(SYSTEM_CALLS)?, wake_ups: count(WAKE_UPS)?, operations: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const RECORDED: &str = "# started on Thu Nov 26 02:55:13 2026\n\n\
        29,,raw_syscalls:sys_enter,1085911669,100.00,,\n7,,sched:sched_wakeup,1085909313,100.00,,\n";

    #[test]
    fn output_of_perf_is_parsed() {
        assert_eq!(parse(RECORDED), Ok(Counts { system_calls: 29, wake_ups: 7, operations: 0 }));
        let refused = RECORDED.replace("29,", "<not supported>,");
        assert_eq!(parse(&refused), Err("perf says of raw_syscalls:sys_enter: <not supported>".to_owned()));
        assert!(parse("").unwrap_err().contains("nothing of raw_syscalls"));
    }

    #[test]
    fn complaints_are_one_line() {
        let errors =
            "event syntax error: 'a:b'\n   \\___ unknown tracepoint\n\nError:\tFile /sys/x not found.\nHint:\tx";
        assert_eq!(complaint(errors), "perf failed: File /sys/x not found.");
        assert_eq!(complaint("\n Problems finding threads\n Usage"), "perf failed: Problems finding threads");
        assert_eq!(complaint(""), "perf failed: it said nothing");
    }

    #[test]
    fn filters_have_a_bound() {
        assert_eq!(filter("pid", &[1, 20]).unwrap(), "pid==1||pid==20");
        assert!(filter("pid", &vec![12_345; FILTER_BYTES_MAX / 12 + 1]).is_err());
    }

    /// Creates a program that runs `script` in place of `perf`, and returns its path.
    fn stand_in(folder: &std::path::Path, script: &str) -> PathBuf {
        let path = folder.join("perf");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn counts_end_with_the_input() {
        let folder = tempfile::tempdir().unwrap();
        // The arguments are: stat -a -x , -o FILE …
        let recorded = folder.path().join("recorded");
        fs::write(&recorded, RECORDED).unwrap();
        let perf = stand_in(folder.path(), &format!("cat; cat {} > \"$6\"", recorded.display()));
        let tracer = Tracer::new(Some(perf)).unwrap();
        let counts = tracer.start(&[1]).and_then(Tracing::end).unwrap();
        assert_eq!((counts.system_calls, counts.wake_ups), (29, 7));
    }

    #[test]
    fn a_host_without_tracepoints_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let error_with = |perf| Tracer::new(perf).unwrap_err();
        assert_eq!(error_with(None), "perf is not installed");
        assert!(error_with(Some(folder.path().join("none"))).contains("No such file"));
        let perf = stand_in(folder.path(), "echo 'Error: no permission' >&2; exit 1");
        assert_eq!(error_with(Some(perf)), "perf failed: no permission");
    }
}
