//! Runs the server in the background, and writes the pid file.
//!
//! The daemon is a second process of the same program, in a new session and with `/dev/null` as its
//! three standard streams. The first process starts the daemon by `exec`, because `fork` alone
//! would need `unsafe`. Both processes read the same configuration. So if the configuration has an
//! error, the parent reports the error on the terminal and starts no daemon. If the parent has read
//! configuration from its standard input, it passes that text on to the daemon.

use crate::config::host::reason;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The environment variable that marks the second process as the daemon.
const MARK: &str = "PANTALA_DAEMON";

/// Returns whether this process was started by [`spawn`].
pub fn is_daemon() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts this program again as a daemon, in directory `dir` and with `arguments`. The daemon reads
/// `stdin` as its standard input.
///
/// # Errors
///
/// The system's error.
pub fn spawn(dir: &Path, arguments: &[OsString], stdin: Option<&[u8]>) -> io::Result<()> {
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    let input = if stdin.is_some() { Stdio::piped() } else { Stdio::null() };
    command.args(arguments).current_dir(dir).env(MARK, "1").stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    if let (Some(mut pipe), Some(text)) = (child.stdin.take(), stdin) {
        pipe.write_all(text)?;
    }
    // This process doesn't wait for the child, which continues after this process has exited.
    Ok(())
}

/// Detaches from the terminal: starts a new session, and makes `/dev/null` the standard input.
///
/// # Errors
///
/// The system's error.
pub fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(())
}

/// Writes the process ID to `path`. A failure is only logged, as in Redis.
pub fn create_pidfile(path: &Path) {
    if let Err(error) = std::fs::write(path, format!("{}\n", std::process::id())) {
        tracing::warn!("Failed to write PID file: {}", reason(&error));
    }
}

/// Removes the pid file at exit.
pub fn remove_pidfile(path: &Path) {
    tracing::info!("Removing the pid file.");
    // An error is ignored, because the file may have been removed already.
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pidfile_is_created_and_removed() {
        let path = std::env::temp_dir().join(format!("pantala-pid-{}", std::process::id()));
        create_pidfile(&path);
        assert_eq!(std::fs::read_to_string(&path).expect("text"), format!("{}\n", std::process::id()));
        remove_pidfile(&path);
        assert!(!path.exists());
        remove_pidfile(&path);
        create_pidfile(Path::new("/nonexist/x.pid"));
    }

    #[test]
    fn tests_are_no_daemon() {
        assert!(!is_daemon());
    }
}
