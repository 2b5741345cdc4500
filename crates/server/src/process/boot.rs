//! Prepares the process to serve: reads the configuration, starts the daemon, opens the log, raises
//! the limit on open files, opens the sockets and writes the pid file.
//! [`startup::main`](crate::startup::main) calls [`boot`].

use super::listen::{Listener, listen, remove_unix_socket};
use super::supervision::{self, supervise};
use super::syslog::{DEV_LOG, Syslog};
use super::title::show_title;
use super::{cpus, daemon, limits, log};
use crate::config::host::reason;
use crate::config::{Host, HostDefaults, LoadError, Loaded, Settings, Sources, Supervised, System, load};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A process that is ready to serve.
#[derive(Debug)]
pub struct Boot {
    /// The configuration. `maxclients` may be lower than configured, because of the limit on open
    /// files.
    pub loaded: Loaded,
    /// The listening sockets; never empty.
    pub listeners: Vec<Listener>,
    cleanup: Cleanup,
}

impl Boot {
    /// Returns the parts: the configuration, the sockets, and the files to remove at exit.
    pub fn into_parts(self) -> (Loaded, Vec<Listener>, Cleanup) {
        (self.loaded, self.listeners, self.cleanup)
    }
}

/// Work at exit: removes files, and sends the remaining messages to the supervisor.
#[derive(Debug)]
pub struct Cleanup {
    pidfile: Option<PathBuf>,
    settings: Settings,
}

impl Cleanup {
    /// Sends the pending messages to the supervisor, and removes the pid file and the Unix socket.
    pub fn run(self) {
        supervision::finish();
        if let Some(path) = &self.pidfile {
            daemon::remove_pidfile(path);
        }
        remove_unix_socket(&self.settings);
    }
}

/// Prepares the process until workers can start. `arguments` are those of the command line, and
/// `sources` are the sources of configuration that they name. `defaults` returns the default
/// settings for a number of workers. `is_command` returns whether a command exists, for
/// `rename-command`.
///
/// # Errors
///
/// Returns the exit code if the process must exit, because the daemon was started, or an error was
/// reported.
pub fn boot(
    arguments: &[OsString],
    sources: &Sources,
    defaults: fn(usize) -> HostDefaults,
    is_command: impl Fn(&[u8]) -> bool,
) -> Result<Boot, ExitCode> {
    log::init();
    let mut host = Recorder { start_dir: System.current_dir(), stdin: None };
    let mut loaded = read(sources, defaults, is_command, &mut host).map_err(|error| complain(&error))?;
    // A daemon has no supervisor: the parent process starts a daemon only if it finds no
    // supervisor.
    let is_supervised = !daemon::is_daemon() && is_supervised(&loaded.settings);
    if loaded.settings.daemonize && !is_supervised {
        if !daemon::is_daemon() {
            return Err(match daemon::spawn(&host.start_dir, arguments, host.stdin.as_deref()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&format!("Can't start the daemon: {error}")),
            });
        }
        daemon::detach().map_err(|error| fail(&format!("Can't detach from the terminal: {error}")))?;
    }
    configure_log(&loaded.settings);
    let file = loaded.file.as_ref().map_or(&b""[..], |path| path.as_os_str().as_bytes());
    show_title(&loaded.settings, file);
    for warning in &loaded.warnings {
        tracing::warn!("{}", warning.text);
    }
    let workers = loaded.settings.workers + loaded.settings.io_threads;
    let clients = limits::raise_open_files(loaded.settings.maxclients, workers).map_err(|text| fail(&text))?;
    loaded.limit_clients(clients);
    let listeners = listen(&loaded.settings).map_err(|text| fail(&text))?;
    let cleanup = cleanup_of(&loaded.settings);
    if let Some(path) = &cleanup.pidfile {
        daemon::create_pidfile(path);
    }
    Ok(Boot { loaded, listeners, cleanup })
}

fn read(
    sources: &Sources,
    defaults: fn(usize) -> HostDefaults,
    is_command: impl Fn(&[u8]) -> bool,
    host: &mut dyn Host,
) -> Result<Loaded, LoadError> {
    let loaded = load(sources, defaults(cpus::default_workers()), host)?;
    loaded.check_renames(is_command)?;
    Ok(loaded)
}

/// Reports the start to the supervisor that the settings name. Returns whether this supervisor
/// exists.
fn is_supervised(settings: &Settings) -> bool {
    if settings.process.supervised == Supervised::No {
        return false;
    }
    configure_log(settings);
    supervise(settings.process.supervised)
}

fn configure_log(settings: &Settings) {
    let file = settings.logfile.as_deref().map(|path| settings.dir.join(path));
    let syslog = settings.process.syslog.as_ref().map(|syslog| Syslog::new(syslog, Path::new(DEV_LOG)));
    let (syslog, failed) = match syslog.transpose() {
        Ok(syslog) => (syslog, None),
        Err(error) => (None, Some(error)),
    };
    log::configure(settings.loglevel, file, syslog);
    if let Some(error) = failed {
        tracing::warn!("Can't open the syslog socket: {}", reason(&error));
    }
}

/// Returns the files to remove at exit. Their paths are absolute, because `CONFIG SET dir` may have
/// changed the working directory by then.
fn cleanup_of(settings: &Settings) -> Cleanup {
    let absolute = |path: &Path| settings.dir.join(path);
    let mut settings = settings.clone();
    settings.unixsocket = settings.unixsocket.as_deref().map(absolute);
    let pidfile = settings.pidfile.as_deref().map(absolute);
    Cleanup { pidfile, settings }
}

/// Reports an error as Redis does: in the log if a file can't be opened, otherwise on standard
/// error.
fn complain(error: &LoadError) -> ExitCode {
    if matches!(error, LoadError::Open { .. }) {
        return fail(&error.to_string());
    }
    let _ = writeln!(io::stderr().lock(), "{error}");
    ExitCode::FAILURE
}

fn fail(text: &str) -> ExitCode {
    tracing::error!("{text}");
    ExitCode::FAILURE
}

/// A [`Host`] that uses the system. Records the standard input, so that the daemon can read it
/// again.
struct Recorder {
    start_dir: PathBuf,
    stdin: Option<Vec<u8>>,
}

impl Host for Recorder {
    fn read_file(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        System.read_file(path)
    }

    fn read_stdin(&mut self) -> io::Result<Vec<u8>> {
        tracing::warn!("Reading config from stdin");
        let text = System.read_stdin()?;
        self.stdin = Some(text.clone());
        Ok(text)
    }

    fn list_dir(&mut self, path: &Path) -> Vec<Vec<u8>> {
        System.list_dir(path)
    }

    fn change_dir(&mut self, path: &Path) -> io::Result<()> {
        System.change_dir(path)
    }

    fn current_dir(&mut self) -> PathBuf {
        System.current_dir()
    }

    fn try_append(&mut self, path: &Path) -> io::Result<()> {
        System.try_append(path)
    }
}
