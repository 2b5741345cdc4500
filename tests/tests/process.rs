//! The process and its host: supervisors, the host's log.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use pantala_tests::server::READY_MAX;
use pantala_tests::waiting::eventually;
use pantala_tests::{Client, binary};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A server on a Unix socket, with its own environment. Dropping it kills it.
struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    /// Starts a server without waiting for it.
    fn start(args: &[&str], environment: &[(&str, &str)]) -> Process {
        let folder = tempfile::tempdir().expect("a folder");
        let child = Command::new(binary::pantala())
            .args(["--port", "0", "--unixsocket", "s", "--logfile", "log", "--save", ""])
            .args(args)
            .envs(environment.iter().copied())
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .spawn()
            .expect("the server starts");
        Process { child, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until it is ready, and connects.
    fn connect(&self) -> Client {
        eventually("ready", || self.log().contains("Ready to accept connections"));
        Client::unix(&self.path("s"))
    }

    fn field(&self, section: &str, field: &str) -> String {
        let text = self.connect().command(&["INFO", section]).text();
        let line = text.lines().find(|line| line.starts_with(&format!("{field}:"))).expect("the field");
        line[field.len() + 1..].to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn received(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 1000];
    let len = socket.recv(&mut bytes).expect("a datagram in time");
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// The lines that redis-server sends, at sockets with a path and with an abstract name. A
/// supervised server stays in the foreground.
#[test]
fn systemd_receives_status_readiness_and_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notify").to_str().expect("text").to_owned();
    let name = format!("pantala-test-notify-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let sockets = [
        (UnixDatagram::bind(&path).expect("bound"), path, "systemd"),
        (UnixDatagram::bind_addr(&address).expect("bound"), format!("@{name}"), "auto"),
    ];
    for (socket, address, mode) in sockets {
        socket.set_read_timeout(Some(READY_MAX)).expect("set");
        let args = ["--supervised", mode, "--daemonize", "yes", "--pidfile", "pid"];
        let mut server = Process::start(&args, &[("NOTIFY_SOCKET", &address)]);
        assert_eq!(received(&socket), "STATUS=Pantala is loading...\n");
        assert_eq!(received(&socket), "STATUS=Ready to accept connections\n");
        assert_eq!(received(&socket), "READY=1\n");
        assert_eq!(server.field("server", "process_supervised"), "systemd");
        assert_eq!(server.field("server", "process_id"), server.child.id().to_string());
        server.connect().send(&["SHUTDOWN", "SAVE"]);
        assert_eq!(received(&socket), "STATUS=Saving the final RDB snapshot\n");
        assert_eq!(received(&socket), "STOPPING=1\n");
        assert_eq!(server.child.wait().expect("waited for").code(), Some(0));
        assert!(!server.path("pid").exists());
    }
}

#[test]
fn a_missing_supervisor_is_logged() {
    for (mode, environment, line) in [
        ("systemd", &[][..], "systemd supervision error: NOTIFY_SOCKET not found!"),
        ("systemd", &[("NOTIFY_SOCKET", "/nosuch/socket")], "systemd supervision error: sd_notify: No such file"),
        ("upstart", &[], "upstart supervision requested, but UPSTART_JOB not found!"),
    ] {
        let server = Process::start(&["--supervised", mode], environment);
        assert_eq!(server.field("server", "process_supervised"), "no");
        assert!(server.log().contains(line), "{}", server.log());
    }
    let server = Process::start(&["--supervised", "auto"], &[]);
    assert_eq!(server.field("server", "process_supervised"), "no");
    assert!(!server.log().contains("supervis"), "{}", server.log());
}

/// upstart learns from SIGSTOP that the process has started, and continues it.
#[test]
fn upstart_continues_the_process() {
    let server = Process::start(&["--supervised", "auto"], &[("UPSTART_JOB", "pantala")]);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.child.id())).expect("it runs");
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next())
    };
    eventually("stopped", || state() == Some('T'));
    assert!(server.log().contains("supervised by upstart, will stop to signal readiness."), "{}", server.log());
    let pid = Pid::from_raw(i32::try_from(server.child.id()).expect("a pid")).expect("not zero");
    kill_process(pid, Signal::CONT).expect("continued");
    assert_eq!(server.field("server", "process_supervised"), "upstart");
}

/// What arrives there is tested in the server's crate: a host's log can't be replaced.
#[test]
fn the_hosts_log_is_configured() {
    let args = ["--syslog-enabled", "yes", "--syslog-ident", "x", "--syslog-facility", "local3"];
    let server = Process::start(&args, &[]);
    let values = server.connect().command(&["CONFIG", "GET", "syslog*"]);
    let values: Vec<String> = values.elements().iter().map(pantala_tests::Reply::text).collect();
    assert_eq!(values, ["syslog-enabled", "yes", "syslog-ident", "x", "syslog-facility", "local3"]);
    assert!(!server.log().contains("isn't served"), "{}", server.log());
}
