//! The supervisor: systemd or upstart, if one of them has started the server and waits for it to be
//! ready.
//!
//! The server sends datagrams to systemd's socket, which `$NOTIFY_SOCKET` names (`sd_notify`). A
//! separate thread sends them, so that no worker waits for a slow systemd.

use crate::config::Supervised;
use crate::config::host::reason;
use rustix::process::{Signal, getpid, kill_process};
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Maximum time for which the sending thread waits for room in systemd's queue.
const SEND_MAX: Duration = Duration::from_secs(5);

/// The supervisor of this process, set by the first successful call of [`supervise`].
static SUPERVISOR: OnceLock<Supervisor> = OnceLock::new();

enum Supervisor {
    /// Upstart. It gets no messages after the SIGSTOP by which this process has reported its start.
    Upstart,
    /// Systemd, and how lines are sent to it.
    Systemd(Mutex<Way>),
}

/// How lines are sent to systemd.
enum Way {
    /// The socket. The sending thread has not been started, because the process may still need to
    /// be single-threaded.
    Socket(Notifier),
    /// The sending thread.
    Thread(Sender<String>, JoinHandle<()>),
    /// Lines are no longer sent, because the process is ending or the thread could not be started.
    Closed,
}

/// Reports the start of the server to the supervisor that `wanted` names. With upstart, this stops
/// the process until upstart resumes it. Returns whether the supervisor exists; if so, the server
/// stays in the foreground.
pub fn supervise(wanted: Supervised) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let supervisor = match wanted {
        Supervised::Auto if is_set("UPSTART_JOB") => {
            tracing::debug!("Upstart supervision detected.");
            upstart()
        }
        Supervised::Auto if is_set("NOTIFY_SOCKET") => {
            tracing::debug!("Systemd supervision detected.");
            systemd()
        }
        Supervised::Upstart => upstart(),
        Supervised::Systemd => systemd(),
        Supervised::Auto | Supervised::No => None,
    };
    supervisor.is_some_and(|supervisor| SUPERVISOR.set(supervisor).is_ok())
}

/// Returns the name of the supervisor for `INFO`, or `no`.
pub fn supervisor_name() -> &'static str {
    match SUPERVISOR.get() {
        None => "no",
        Some(Supervisor::Upstart) => "upstart",
        Some(Supervisor::Systemd(_)) => "systemd",
    }
}

/// Sends a line of `sd_notify`, such as `READY=1`, if systemd supervises the server. Doesn't block.
pub fn notify(line: &str) {
    let Some(Supervisor::Systemd(way)) = SUPERVISOR.get() else { return };
    let mut way = way.lock().unwrap_or_else(PoisonError::into_inner);
    if let Way::Socket(_) = *way
        && let Way::Socket(notifier) = std::mem::replace(&mut *way, Way::Closed)
    {
        *way = start_thread(notifier);
    }
    if let Way::Thread(lines, _) = &*way {
        // Can't fail: the thread receives lines until `finish`.
        let _ = lines.send(format!("{line}\n"));
    }
}

fn start_thread(notifier: Notifier) -> Way {
    let (sender, lines) = channel::<String>();
    let run = move || {
        for line in lines {
            // A failure is only logged: the server continues even if systemd can't be reached.
            let _ = notifier.send(&line).inspect_err(log_failure);
        }
    };
    let thread = Builder::new().name("pantala-notify".into()).spawn(run).inspect_err(log_failure);
    thread.map_or(Way::Closed, |thread| Way::Thread(sender, thread))
}

fn log_failure(error: &io::Error) {
    tracing::warn!("systemd supervision error: sd_notify: {}", reason(error));
}

/// Waits until all lines have been sent. Called at the end of the process.
pub fn finish() {
    if let Some(Supervisor::Systemd(way)) = SUPERVISOR.get() {
        let ended = std::mem::replace(&mut *way.lock().unwrap_or_else(PoisonError::into_inner), Way::Closed);
        if let Way::Thread(lines, thread) = ended {
            drop(lines);
            let _ = thread.join();
        }
    }
}

fn upstart() -> Option<Supervisor> {
    if std::env::var_os("UPSTART_JOB").is_none() {
        tracing::warn!("upstart supervision requested, but UPSTART_JOB not found!");
        return None;
    }
    tracing::info!("supervised by upstart, will stop to signal readiness.");
    let stopped = kill_process(getpid(), Signal::STOP);
    stopped.is_ok().then_some(Supervisor::Upstart)
}

fn systemd() -> Option<Supervisor> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else {
        tracing::warn!("systemd supervision error: NOTIFY_SOCKET not found!");
        return None;
    };
    let notifier = Notifier::new(&path).inspect_err(log_failure).ok()?;
    notifier.send("STATUS=Pantala is loading...\n").inspect_err(log_failure).ok()?;
    tracing::info!(
        "Supervised by systemd. Please make sure you set appropriate values for TimeoutStartSec and TimeoutStopSec in your \
         service unit."
    );
    Some(Supervisor::Systemd(Mutex::new(Way::Socket(notifier))))
}

/// A socket, and the address of systemd's socket.
struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notifier {
    /// Creates a notifier from the value of `$NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    fn new(path: &OsStr) -> io::Result<Notifier> {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(path)?,
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(SEND_MAX))?;
        Ok(Notifier { socket, address })
    }

    fn send(&self, line: &str) -> io::Result<()> {
        self.socket.send_to_addr(line.as_bytes(), &self.address).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 100];
        let len = socket.recv(&mut bytes).expect("a datagram");
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }

    #[test]
    fn sockets_have_paths_or_abstract_names() {
        let path = std::env::temp_dir().join(format!("pantala-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).expect("bound");
        Notifier::new(path.as_os_str()).expect("a path").send("a").expect("sent");
        assert_eq!(received(&socket), "a");
        std::fs::remove_file(&path).expect("removed");
        assert!(Notifier::new(path.as_os_str()).expect("a path").send("a").is_err());

        let name = format!("pantala-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("bound");
        Notifier::new(OsStr::new(&format!("@{name}"))).expect("a name").send("b").expect("sent");
        assert_eq!(received(&socket), "b");

        for wrong in ["relative", "vsock:2:1234", Path::new(&"/".repeat(200)).to_str().expect("text")] {
            assert!(Notifier::new(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
