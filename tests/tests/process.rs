//! The process and its host: supervisors, syslog, the process title, `oom_score_adj`, and the
//! source address of the link to a primary.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use pantala_tests::server::READY_MAX;
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, binary};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A server on a Unix socket, with its own environment. It is killed when dropped.
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

    /// Returns the title that `ps` shows.
    fn title(&self) -> String {
        let line = std::fs::read(format!("/proc/{}/cmdline", self.child.id())).expect("it runs");
        String::from_utf8_lossy(line.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Waits until the server is ready, and connects.
    fn connect(&self) -> Client {
        eventually("the server is ready", || self.log().contains("Ready to accept connections"));
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

/// systemd receives the same lines as from redis-server, but with Pantala's name. The socket of
/// systemd may have a path or an abstract name. A supervised server stays in the foreground.
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

/// With `supervised upstart`, the process suspends itself (SIGSTOP) once it has started. Upstart
/// notices this and resumes the process (SIGCONT).
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

/// The lines that syslog receives are tested in the server's crate, because this test can't replace
/// the host's `/dev/log`.
#[test]
fn syslog_is_configured() {
    let args = ["--syslog-enabled", "yes", "--syslog-ident", "x", "--syslog-facility", "local3"];
    let server = Process::start(&args, &[]);
    let values = server.connect().command(&["CONFIG", "GET", "syslog*"]);
    let values: Vec<String> = values.elements().iter().map(pantala_tests::Reply::text).collect();
    assert_eq!(values, ["syslog-enabled", "yes", "syslog-ident", "x", "syslog-facility", "local3"]);
    assert!(!server.log().contains("isn't served"), "{}", server.log());
}

#[test]
fn the_title_follows_its_template() {
    let program = binary::pantala().to_str().expect("text");
    let server = Process::start(&["--loglevel", "notice"], &[]);
    let mut client = server.connect();
    assert_eq!(server.title(), format!("{program} unixsocket:s"));
    let mut set = |template: &str| client.command(&["CONFIG", "SET", "proc-title-template", template]).text();
    assert_eq!(set("a {title} {port} {config-file} z"), "OK");
    assert_eq!(server.title(), format!("a {program} 0 - z"));
    assert_eq!(set("x"), "OK");
    assert_eq!(server.title(), "x");
    assert!(set("{nope}").contains("template format is invalid or contains unknown variables"));
    assert_eq!(server.title(), "x");
    // A long title overwrites not only the memory of the process's arguments but also that of its
    // environment.
    let long = "y".repeat(400);
    assert_eq!(set(&long), "OK");
    assert!(long.starts_with(&server.title()) && server.title().len() > 100, "{}", server.title());
    // The server starts even if its environment has a variable that Rust's standard library can't
    // set, such as `=a`.
    let server = Process::start(&["--proc-title-template", &long], &[("TZ", "UTC+5"), ("=a", "b")]);
    server.connect();
    assert!(long.starts_with(&server.title()), "{}", server.title());
    let server = Process::start(&["--set-proc-title", "no"], &[]);
    server.connect();
    assert_eq!(server.title(), program);
}

/// Returns the `oom_score_adj` of a process.
fn oom_score(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs").trim().to_owned()
}

/// Replies and `oom_score_adj` equal those of redis-server after each step.
#[test]
fn oom_score_and_title_are_set_as_in_redis() {
    const STEPS: &[&[&str]] = &[
        &["oom-score-adj", "yes"],
        &["oom-score-adj-values", "0 200"],
        &["oom-score-adj-values", "0 200 x"],
        &["oom-score-adj-values", "0 200 2001"],
        &["oom-score-adj-values", "-2001 200 2000"],
        &["oom-score-adj-values", "100 50 2000"],
        &["oom-score-adj-values", " 200 300 2000"],
        &["oom-score-adj-values", "+200 300 2000"],
        &["oom-score-adj-values", "0x10 300 2000"],
        &["oom-score-adj-values", "2000 2000 2000"],
        &["oom-score-adj", "absolute"],
        &["oom-score-adj-values", "0300 400 500"],
        &["oom-score-adj", "no"],
        &["oom-score-adj", "relative"],
        &["oom-score-adj", "foo"],
        // The last value is rejected, so the values before it are rolled back.
        &["oom-score-adj", "absolute", "oom-score-adj-values", "7 8 9", "maxclients", "20000000"],
        &["oom-score-adj", "yes", "hz", "x"],
        &["oom-score-adj", "relative", "oom-score-adj-values", "1 2 3"],
        &["oom-score-adj", "no", "oom-score-adj-values", "0 200 800"],
        &["proc-title-template", "{nope}"],
        &["proc-title-template", "{title"],
        &["proc-title-template", "title}"],
        &["proc-title-template", "{title}"],
        &["proc-title-template", ""],
        &["proc-title-template", "  "],
        &["proc-title-template", "{}"],
        &["set-proc-title", "no"],
        &["bind-source-addr", "127.0.0.5"],
        &["bind-source-addr", "nonsense"],
        &["bind-source-addr", ""],
    ];
    let Some(reference) = Server::redis(&[]) else { return };
    let server = Server::pantala(Backend::all()[0], &[]);
    let (mut ours, mut theirs) = (server.connect(), reference.connect());
    for step in STEPS {
        let set = [&["CONFIG", "SET"], *step].concat();
        let (given, right) = (ours.command(&set), theirs.command(&set));
        // The reply about `maxclients` contains the limit of open files, in which the servers
        // differ.
        if !step.contains(&"maxclients") {
            assert_eq!(given, right, "{step:?}");
        }
        assert_eq!(oom_score(server.pid()), oom_score(reference.pid()), "{step:?}");
        let get = ["CONFIG", "GET", "oom-score-adj*"];
        let sorted = |reply: pantala_tests::Reply| {
            let mut words: Vec<String> = reply.elements().iter().map(pantala_tests::Reply::text).collect();
            words.sort();
            words
        };
        assert_eq!(sorted(ours.command(&get)), sorted(theirs.command(&get)), "{step:?}");
    }
    for client in [&mut ours, &mut theirs] {
        client.command(&["CONFIG", "SET", "oom-score-adj", "yes", "oom-score-adj-values", "10 20 30"]);
        client.call("REPLICAOF 127.0.0.1 1");
    }
    assert_eq!(oom_score(server.pid()), oom_score(reference.pid()), "of a replica");
    for client in [&mut ours, &mut theirs] {
        client.call("REPLICAOF NO ONE");
    }
    assert_eq!(oom_score(server.pid()), oom_score(reference.pid()), "of a primary");
}

#[test]
fn oom_score_adj_is_set_at_the_start() {
    let server = Process::start(&["--oom-score-adj", "absolute", "--oom-score-adj-values", "321 400 500"], &[]);
    server.connect();
    eventually("oom_score_adj is set", || oom_score(server.child.id()) == "321");
}

/// The link to a primary has the configured source address. If the host doesn't have that address,
/// the link is made without it, as in Redis.
#[test]
fn replicas_connect_from_the_source_address() {
    let primary = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
    let port = primary.local_addr().expect("bound").port().to_string();
    let server = Process::start(&["--bind-source-addr", "127.0.0.5", "--replicaof", "127.0.0.1", &port], &[]);
    let from = |expected: [u8; 4]| {
        let (_, peer) = primary.accept().expect("the link");
        assert_eq!(peer.ip(), IpAddr::from(expected));
    };
    from([127, 0, 0, 5]);
    server.connect().command(&["CONFIG", "SET", "bind-source-addr", "203.0.113.5"]);
    // The check is repeated, because the first connections may be older than the change of the
    // setting.
    eventually("no address", || primary.accept().expect("the link").1.ip() == Ipv4Addr::LOCALHOST);
}

/// A script can see heap addresses. The addresses differ from run to run, so they reveal nothing
/// about the next run or about another server.
#[test]
fn heap_addresses_differ_from_run_to_run() {
    let address = || {
        let server = Process::start(&[], &[]);
        server.connect().command(&["EVAL", "return tostring(_G)", "0"]).text()
    };
    let (one, other) = (address(), address());
    assert!(one.starts_with("table: 0x"), "{one}");
    assert_ne!(one, other);
}

/// `shutdown-on-sigint` and `shutdown-on-sigterm`, set at the start and at run time.
#[test]
fn signals_shut_down_as_configured() {
    const POINTS: &str = "3600 1";
    for (at_start, at_run_time, save, signal, is_saved) in [
        ("", "", POINTS, Signal::TERM, true),
        ("", "", "", Signal::TERM, false),
        ("shutdown-on-sigterm nosave", "", POINTS, Signal::TERM, false),
        ("shutdown-on-sigterm nosave", "", POINTS, Signal::INT, true),
        ("shutdown-on-sigint save", "", "", Signal::INT, true),
        ("shutdown-on-sigint save", "", "", Signal::TERM, false),
        ("shutdown-on-sigint save", "shutdown-on-sigint default", "", Signal::INT, false),
        ("", "shutdown-on-sigterm nosave now force", POINTS, Signal::TERM, false),
    ] {
        let what = format!("{at_start:?}, {at_run_time:?}, save {save:?}, {signal:?}");
        let mut args = vec!["--save", save];
        let directive = at_start.split_once(' ').map(|(name, value)| (format!("--{name}"), value));
        args.extend(directive.iter().flat_map(|(name, value)| [name.as_str(), *value]));
        let mut server = Server::pantala(Backend::Epoll, &args);
        let mut client = server.connect();
        assert_eq!(client.call("SET key value"), Reply::ok());
        if let Some((name, value)) = at_run_time.split_once(' ') {
            assert_eq!(client.command(&["CONFIG", "SET", name, value]), Reply::ok(), "{what}");
        }
        server.signal(signal);
        let status = server.wait_exit(READY_MAX);
        assert_eq!(status.code(), Some(0), "{what}: {}", server.log());
        assert_eq!(server.folder().join("dump.rdb").exists(), is_saved, "{what}");
    }
}

/// Redis uses SIGALRM for its watchdog, and survives a SIGALRM from outside. Both servers ignore
/// SIGHUP and SIGPIPE.
#[test]
fn signals_without_effect_do_not_end_the_server() {
    let servers = Backend::all().iter().map(|&backend| Server::pantala(backend, &["--save", "3600 1"]));
    for mut server in servers.chain(Server::redis(&["--save", "3600 1"])) {
        let mut client = server.connect();
        for signal in [Signal::ALARM, Signal::HUP, Signal::PIPE, Signal::ALARM] {
            server.signal(signal);
            assert_eq!(client.call("SET key value"), Reply::ok());
        }
        server.signal(Signal::TERM);
        let status = server.wait_exit(READY_MAX);
        assert_eq!(status.code(), Some(0), "{}", server.log());
        assert!(server.folder().join("dump.rdb").exists(), "{}", server.log());
        let lines = server.log().matches("Received SIGALRM, which has no effect").count();
        assert!(lines <= 2, "{}", server.log());
    }
}
