//! Runs servers as child processes: Pantala and the real redis-server.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::waiting::eventually;
use crate::{Backend, Client, Random, binary, tool};

/// Maximum wait until a server is ready. A debug build is slow while a compiler runs.
pub const READY_MAX: Duration = Duration::from_secs(30);
/// Number of ports tried before startup fails. One port is not enough, because another process may
/// take a free port before the server binds it.
const PORT_TRIES: usize = 20;

/// Arguments that distribute even the first connections over all workers, and prevent connections
/// from moving. A few clients are then enough to test several workers.
const SPREAD: [&str; 4] = ["--packed-connections", "0", "--move-connections", "no"];

/// Returns arguments that make servers use flows, so that all tests of replication can run with
/// flows. `PANTALA_REPL_FLOWS` has the number of flows, or this number, a colon and a compression.
/// Returns nothing if the variable is not set.
fn flows() -> Vec<&'static str> {
    static FLOWS: OnceLock<Option<String>> = OnceLock::new();
    let flows = FLOWS.get_or_init(|| std::env::var("PANTALA_REPL_FLOWS").ok());
    match flows.as_deref().map(|flows| flows.split_once(':').unwrap_or((flows, "no"))) {
        Some((count, compression)) => vec!["--repl-flows", count, "--repl-flows-compression", compression],
        None => Vec::new(),
    }
}

/// A running server, which is killed when dropped.
pub struct Server {
    child: Child,
    port: u16,
    folder: TempDir,
    exited: Option<ExitStatus>,
}

/// Exit status and output of a server that didn't start.
#[derive(Debug)]
pub struct Exit {
    /// The exit status.
    pub status: ExitStatus,
    /// The whole output.
    pub output: String,
}

impl Server {
    /// Starts Pantala on `backend` and a free port, with `DEBUG` allowed and with further `args`
    /// (redis-server's form: `--directive value`).
    ///
    /// # Panics
    /// If Pantala doesn't start. The message contains its log.
    #[must_use]
    pub fn pantala(backend: Backend, args: &[&str]) -> Server {
        let mut all = vec!["--io-backend", backend.name(), "--enable-debug-command", "yes"];
        all.extend_from_slice(&SPREAD);
        all.extend(flows());
        all.extend_from_slice(args);
        Server::start(binary::pantala(), &[], &all, None)
    }

    /// Starts Pantala on `backend` at exactly this port, with further `args`.
    ///
    /// # Errors
    /// If Pantala doesn't start. The error contains the reason and the output.
    pub fn pantala_at(port: u16, backend: Backend, args: &[&str]) -> Result<Server, String> {
        let port_text = port.to_string();
        let mut all = vec!["--port", &port_text, "--io-backend", backend.name()];
        all.extend_from_slice(&SPREAD);
        all.extend(flows());
        all.extend_from_slice(args);
        let all: Vec<OsString> = all.into_iter().map(Into::into).collect();
        let mut server = Server::spawn(binary::pantala(), &all, None, port);
        match server.wait_ready() {
            Ok(()) => Ok(server),
            Err(why) => Err(format!("{why}; it printed:\n{}", server.log())),
        }
    }

    /// Runs `tool` with its arguments `words`, followed by the command line of Pantala. The backend
    /// is epoll, because valgrind doesn't support io_uring.
    ///
    /// # Panics
    /// If Pantala doesn't start. The message contains its log.
    #[must_use]
    pub fn pantala_under(tool: &Path, words: &[&str], args: &[&str]) -> Server {
        let mut before: Vec<OsString> = words.iter().map(Into::into).collect();
        before.push(binary::pantala().into());
        let mut all = vec!["--io-backend", Backend::Epoll.name()];
        all.extend_from_slice(&SPREAD);
        all.extend(flows());
        all.extend_from_slice(args);
        Server::start(tool, &before, &all, None)
    }

    /// Starts redis-server without persistence and with `DEBUG` allowed. Returns `None` if
    /// redis-server isn't installed (see [`tool::find`]).
    #[must_use]
    pub fn redis(args: &[&str]) -> Option<Server> {
        let program = tool::find("redis-server")?;
        let mut all = vec!["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"];
        all.extend_from_slice(args);
        Some(Server::start(&program, &[], &all, None))
    }

    /// Starts another server program, with further `args`.
    ///
    /// # Panics
    /// If the program doesn't start. The message contains its log.
    #[must_use]
    pub fn other(program: &Path, args: &[&str]) -> Server {
        Server::start(program, &[], args, None)
    }

    /// Starts Pantala like [`Server::pantala`], but does not allow `DEBUG`. Waits only for the
    /// first reply, so the server may still be loading its dataset.
    ///
    /// # Panics
    /// If Pantala doesn't start. The message contains its log.
    #[must_use]
    pub fn pantala_loading(backend: Backend, args: &[&str]) -> Server {
        let all = [&["--io-backend", backend.name()], &SPREAD[..], &flows(), args].concat();
        Server::start_loading(binary::pantala(), &all)
    }

    /// Starts redis-server as [`Server::pantala_loading`] starts Pantala. Returns `None` if
    /// redis-server isn't installed.
    #[must_use]
    pub fn redis_loading(args: &[&str]) -> Option<Server> {
        let program = tool::find("redis-server")?;
        Some(Server::start_loading(&program, args))
    }

    fn start_loading(program: &Path, args: &[&str]) -> Server {
        for _ in 0..PORT_TRIES {
            let port = free_port();
            let mut all: Vec<OsString> = vec!["--port".into(), port.to_string().into()];
            all.extend(args.iter().map(Into::into));
            let mut server = Server::spawn(program, &all, None, port);
            let deadline = Instant::now() + READY_MAX;
            while server.try_exit().is_none() {
                assert!(Instant::now() < deadline, "no reply; it printed:\n{}", server.log());
                let replies =
                    |mut client: Client| client.try_send_raw(b"PING\r\n").is_ok() && client.try_receive().is_ok();
                if Client::try_tcp(port).is_ok_and(replies) {
                    return server;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(server.log().contains("Address already in use"), "it exited immediately:\n{}", server.log());
        }
        panic!("no free port in {PORT_TRIES} tries");
    }

    /// Starts `program` on a free port. The command line has `before` before the port and `args`
    /// after it. `input` is the standard input.
    fn start(program: &Path, before: &[OsString], args: &[&str], input: Option<&[u8]>) -> Server {
        for _ in 0..PORT_TRIES {
            let port = free_port();
            let mut all = before.to_vec();
            all.extend(["--port".into(), port.to_string().into()]);
            all.extend(args.iter().map(Into::into));
            let mut server = Server::spawn(program, &all, input, port);
            match server.wait_ready() {
                Ok(()) => return server,
                Err(why) if server.log().contains("Address already in use") => {
                    eprintln!("port {port} was taken ({why}), trying another");
                }
                Err(why) => panic!("{} {all:?} {why}; it printed:\n{}", program.display(), server.log()),
            }
        }
        panic!("no free port in {PORT_TRIES} tries");
    }

    fn spawn(program: &Path, args: &[OsString], input: Option<&[u8]>, port: u16) -> Server {
        let folder = tempfile::Builder::new().prefix("pantala-test-").tempdir().expect("a folder for the server");
        let log = File::create(folder.path().join("log")).expect("the log opens");
        let mut child = Command::new(program)
            .args(args)
            .current_dir(folder.path())
            .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(log.try_clone().expect("the log opens twice"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{} doesn't start: {error}", program.display()));
        if let (Some(input), Some(mut pipe)) = (input, child.stdin.take()) {
            pipe.write_all(input).expect("the server reads its standard input");
        }
        Server { child, port, folder, exited: None }
    }

    fn wait_ready(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + READY_MAX;
        loop {
            if let Some(status) = self.try_exit() {
                return Err(format!("exited immediately: {status}"));
            }
            if self.log().to_lowercase().contains("ready to accept connections") {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("was not ready after {READY_MAX:?}"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the server's TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's working directory, which is deleted with the server.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the server's process ID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of the server's threads with a name.
    ///
    /// # Panics
    /// If the server has ended.
    #[must_use]
    pub fn threads(&self, name: &str) -> usize {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the server runs");
        // A thread may end meanwhile.
        let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.filter(|of| of.trim_end() == name).count()
    }

    /// Returns the CPU time of all threads of the server. Unlike wall time, it doesn't depend on
    /// other load on the machine.
    ///
    /// # Panics
    /// If the server no longer runs.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the server runs");
        let spent_ns = |task: std::io::Result<std::fs::DirEntry>| -> u64 {
            let text = std::fs::read_to_string(task.expect("a task").path().join("schedstat")).unwrap_or_default();
            text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
        };
        Duration::from_nanos(tasks.map(spent_ns).sum())
    }

    /// Returns the server's output so far.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Connects to the server.
    ///
    /// # Panics
    /// If the connection is refused.
    #[must_use]
    pub fn connect(&self) -> Client {
        Client::tcp(self.port)
    }

    /// Kills the server (`SIGKILL`) and waits until it has exited.
    ///
    /// # Panics
    /// If the server has already exited.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.wait_exit(READY_MAX);
    }

    /// Sends the server a signal.
    ///
    /// # Panics
    /// If the server has already ended.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the server runs");
        if signal == Signal::STOP {
            eventually("all threads are stopped", || self.is_stopped());
        }
    }

    /// Returns whether all threads are stopped. A thread handles SIGSTOP for all of them. Until it
    /// runs, which takes time on a busy host, the others continue.
    fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("the server runs");
        let states = threads.flatten().map(|thread| std::fs::read_to_string(thread.path().join("stat")));
        // The state follows the name, which is in parentheses and may contain any characters.
        states.flatten().all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    }

    /// Returns the server's exit status if it has ended.
    pub fn try_exit(&mut self) -> Option<ExitStatus> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().expect("a child can be waited for");
        }
        self.exited
    }

    /// Waits until the server ends by itself.
    ///
    /// # Panics
    /// If the server still runs after `limit`.
    pub fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.try_exit() {
                return status;
            }
            assert!(Instant::now() < deadline, "the server still runs after {limit:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the server's resident memory in bytes, as counted by the kernel.
    ///
    /// # Panics
    /// If the process has ended.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        self.memory_bytes("VmRSS:")
    }

    /// Returns the resident memory that the server has allocated, in bytes. It excludes the pages
    /// of the executable, as `used_memory` does.
    ///
    /// # Panics
    /// If the process has ended.
    #[must_use]
    pub fn allocated_resident_bytes(&self) -> u64 {
        self.memory_bytes("RssAnon:") + self.memory_bytes("RssShmem:")
    }

    /// Returns the server's peak resident memory in bytes.
    ///
    /// # Panics
    /// If the process has ended.
    #[must_use]
    pub fn peak_resident_bytes(&self) -> u64 {
        self.memory_bytes("VmHWM:")
    }

    fn memory_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the server runs");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a running process has it");
        let kib: u64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("it is a number");
        kib * 1024
    }

    /// Checks that the server still runs and that its log contains no panic.
    ///
    /// # Panics
    /// If the server has exited, or its log contains a panic.
    pub fn assert_sound(&mut self) {
        let log = self.log();
        let exited = self.try_exit();
        assert!(exited.is_none(), "the server died: {exited:?}\n{log}");
        assert!(!log.contains("panicked at"), "the server panicked:\n{log}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let crashed = self.try_exit().filter(|_| std::thread::panicking());
        if let Some(status) = crashed {
            eprintln!("the server had ended ({status}); it printed:\n{}", self.log());
        }
        // An error means that the server has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs `pantala` with exactly `args` and `stdin` until it exits. It is for tests in which startup
/// must fail.
///
/// # Panics
/// If `pantala` still runs after [`READY_MAX`].
#[must_use]
pub fn run_to_exit(args: &[&str], stdin: &[u8]) -> Exit {
    let folder = tempfile::tempdir().expect("a folder for the server");
    let path = folder.path().join("log");
    let log = File::create(&path).expect("the log opens");
    let mut child = Command::new(binary::pantala())
        .args(args)
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(log.try_clone().expect("the log opens twice"))
        .stderr(log)
        .spawn()
        .expect("pantala starts");
    let mut input = child.stdin.take().expect("standard input is piped");
    // The error is ignored: the write fails if the program closes its input without reading it.
    let _ = input.write_all(stdin);
    drop(input);
    let deadline = Instant::now() + READY_MAX;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("pantala {args:?} still ran:\n{}", std::fs::read_to_string(&path).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let output = std::fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    Exit { status, output }
}

/// Starts `pantala` on a free port, with a configuration file of the given text followed by `args`.
/// The returned directory contains the file, and is deleted when dropped.
///
/// # Panics
/// If the server doesn't start.
#[must_use]
pub fn pantala_with_file(text: &str, args: &[&str]) -> (Server, TempDir) {
    let folder = tempfile::tempdir().expect("a folder for the configuration");
    let file = folder.path().join("pantala.conf");
    std::fs::write(&file, text).expect("the configuration is written");
    (pantala_configured(file.into(), None, args), folder)
}

/// Starts `pantala` on a free port, with its configuration from standard input followed by `args`.
///
/// # Panics
/// If the server doesn't start.
#[must_use]
pub fn pantala_with_input(text: &str, args: &[&str]) -> Server {
    pantala_configured("-".into(), Some(text), args)
}

fn pantala_configured(file: OsString, input: Option<&str>, args: &[&str]) -> Server {
    Server::start(binary::pantala(), &[file], args, input.map(str::as_bytes))
}

/// Returns a port on loopback on which no process listens now. The port is below the kernel's range
/// for outgoing connections, so no client's socket gets this port. Each call in this process
/// returns a different port.
///
/// # Panics
/// If there is no free port.
#[must_use]
pub fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(u32::MAX);
    if NEXT.load(Ordering::Relaxed) == u32::MAX {
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let mut random = Random::from_seed(now as u64 ^ u64::from(std::process::id()) << 40);
        let start = random.below(COUNT as usize) as u32;
        // If several threads get here at the same time, only the first of them sets `NEXT`.
        let _ = NEXT.compare_exchange(u32::MAX, start, Ordering::Relaxed, Ordering::Relaxed);
    }
    for _ in 0..COUNT {
        let port = (FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) as u16;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT);
}
