//! Starts peers (the compared servers) and waits until they are ready.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pantala_base::Random;
use pantala_resp::value::Value;
use tempfile::TempDir;

use super::cluster;
use super::process::{Process, Spent, Usage, resident_bytes, threads_of};
use super::workloads::{Clients, Measured, Needs, Workload};
use crate::load::control::{Control, Login, Target};

/// Maximum time until a server is ready.
const READY_MAX: Duration = Duration::from_secs(60);
/// Interval between checks whether a server replies.
pub(super) const READY_CHECK: Duration = Duration::from_millis(20);
/// Distance between the port of a Redis cluster node and the port of its bus.
const BUS_OFFSET: u16 = 10_000;
/// The lowest port with which a comparison may start. It is so low that all ports of a comparison,
/// including those of cluster buses, are below the kernel's ephemeral range, which starts at 32768.
const PORT_FIRST: u16 = 20_001;
/// Number of ports with which a comparison may start. One of them is drawn at random.
const PORT_BASES: u64 = 1_200;
/// Number of connections that a server must accept besides those of a workload.
const CONNECTIONS_SPARE: u32 = 100;

/// A peer as an option describes it.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Pantala {
        program: PathBuf,
        shards: u64,
    },
    Redis {
        program: PathBuf,
    },
    RedisCluster {
        program: PathBuf,
        nodes: u64,
    },
    Floor {
        threads: usize,
    },
    /// A command line that contains `{port}` and may contain `{dir}`.
    Command(Vec<String>),
}

/// Chooses ports for servers.
///
/// Two comparisons on one host could both find the same port free and choose it. Each comparison
/// therefore claims its ports until it ends.
#[derive(Debug)]
pub(super) struct Ports {
    next: u16,
    /// Whether the user chose the first port. If true, a port in use is an error. If false, ports
    /// in use are skipped.
    given: bool,
    claims: Vec<UnixListener>,
}

impl Ports {
    pub(super) fn new(given: Option<u16>, random: &mut Random) -> Self {
        let next = given.unwrap_or_else(|| PORT_FIRST + random.below(PORT_BASES) as u16);
        Self { next, given: given.is_some(), claims: Vec::new() }
    }

    /// Returns a port that nothing listens on. With `with_bus`, nothing listens on the port of the
    /// cluster bus either.
    pub(super) fn take(&mut self, with_bus: bool) -> io::Result<u16> {
        loop {
            let port = self.next;
            self.next = port.checked_add(1).filter(|next| next.checked_add(BUS_OFFSET).is_some()).ok_or_else(|| {
                io::Error::new(io::ErrorKind::AddrInUse, "no free port is left: choose the first port with --port")
            })?;
            let bus = with_bus.then(|| port + BUS_OFFSET);
            let claim = claim(port)?;
            let used = std::iter::once(port).chain(bus).find(|port| !is_free(*port));
            match used.or(claim.is_none().then_some(port)) {
                None => {
                    self.claims.extend(claim);
                    return Ok(port);
                }
                Some(used) if self.given => {
                    return Err(io::Error::new(
                        io::ErrorKind::AddrInUse,
                        format!("port {used} is in use: choose another first port with --port, or omit --port"),
                    ));
                }
                Some(_) => {}
            }
        }
    }
}

/// Claims `port` for this comparison. Returns `None` if another comparison on this host has claimed
/// the port.
///
/// The claim is an abstract Unix socket. Like a port, such a socket belongs to a network namespace.
/// The kernel releases the claim when the process ends.
fn claim(port: u16) -> io::Result<Option<UnixListener>> {
    let name = UnixAddress::from_abstract_name(format!("pantala-bench-port-{port}"))?;
    match UnixListener::bind_addr(&name) {
        Ok(claim) => Ok(Some(claim)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A running peer. Dropping the value ends all processes of the peer.
pub(super) struct Peer {
    /// Command line of the first process.
    pub(super) command: Vec<String>,
    /// Address of each process.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) version: String,
    /// Whether the load generator drives the peer in cluster mode.
    pub(super) cluster_mode: bool,
    pub(super) nodes: u32,
    pub(super) notes: Vec<String>,
    processes: Vec<Process>,
    /// Declared after `processes`, so that the folder is removed after the processes have ended.
    dir: TempDir,
}

/// The reason why a peer takes no part in a workload.
#[derive(Debug)]
pub(super) enum Absent {
    /// The peer cannot run the workload.
    Skipped(String),
    Failed(io::Error),
}

impl From<io::Error> for Absent {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// The parameters of a start that are the same for all peers.
pub(super) struct StartParameters<'a> {
    pub(super) dir: &'a Path,
    pub(super) cpus: &'a [usize],
    pub(super) stop: &'a AtomicBool,
}

impl Peer {
    /// Starts `spec` for `workload` and waits until it is ready.
    pub(super) fn start(
        spec: &Spec,
        workload: &Workload,
        ports: &mut Ports,
        parameters: &StartParameters<'_>,
    ) -> Result<Self, Absent> {
        let stores = matches!(workload.measured, Measured::Saves | Measured::Loads);
        let nodes = match spec.kind {
            Kind::RedisCluster { .. } if stores => {
                return Err(Absent::Skipped("the files of one process are measured".into()));
            }
            Kind::RedisCluster { .. } if matches!(workload.measured, Measured::Resident(..)) => {
                return Err(Absent::Skipped("the memory of one process is measured".into()));
            }
            Kind::RedisCluster { .. } if workload.needs == Needs::SeveralSlots => {
                return Err(Absent::Skipped("a Redis cluster rejects commands on keys of several slots".into()));
            }
            Kind::RedisCluster { .. } if workload.needs == Needs::OneKey => {
                return Err(Absent::Skipped(
                    "all commands use one key, so only one process of a Redis cluster would have work".into(),
                ));
            }
            Kind::Floor { .. }
                if matches!(workload.needs, Needs::AppendOnlyFile(_)) || workload.is_counted() || stores =>
            {
                return Err(Absent::Skipped("stores nothing".into()));
            }
            Kind::RedisCluster { nodes, .. } => nodes as u32,
            _ => 1,
        };
        let in_cluster = matches!(spec.kind, Kind::RedisCluster { .. });
        let dir = tempfile::Builder::new().prefix("pantala-compare-").tempdir_in(parameters.dir).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no folder for a server's files in {}: {error}", parameters.dir.display()),
            )
        })?;
        let mut processes = Vec::new();
        let mut addresses = Vec::new();
        let mut command = Vec::new();
        for node in 0..nodes {
            let home = dir.path().join(node.to_string());
            std::fs::create_dir(&home)?;
            let port = ports.take(in_cluster)?;
            let words = spec.words(workload, port, &home)?;
            processes.push(Process::start(&words, &home, parameters.cpus)?);
            addresses.push(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
            if command.is_empty() {
                command = words;
            }
        }
        for (process, address) in processes.iter_mut().zip(&addresses) {
            until_ready(process, *address, parameters.stop)?;
        }
        if in_cluster {
            cluster::form(&addresses, parameters.stop)?;
        }
        let mut peer = Self {
            command,
            version: version(addresses[0]),
            addresses,
            cluster_mode: in_cluster,
            nodes,
            notes: Vec::new(),
            processes,
            dir,
        };
        peer.suit(workload)?;
        Ok(peer)
    }

    /// Checks that the peer supports the features that `workload` needs. Sets whether the load
    /// generator drives the peer in cluster mode.
    fn suit(&mut self, workload: &Workload) -> Result<(), Absent> {
        let mut control = Control::open(&Target::Tcp(self.addresses[0]), &Login::default())?;
        match workload.needs {
            Needs::ClusterMode if !self.cluster_mode => {
                let answer = control.ask(&["CLUSTER", "SLOTS"])?;
                self.cluster_mode = matches!(&answer, Value::Array(ranges) if !ranges.is_empty());
                if !self.cluster_mode {
                    self.notes.push("no reply to CLUSTER SLOTS: driven without cluster mode".into());
                }
            }
            Needs::AppendOnlyFile(_) => {
                let answer = control.ask(&["CONFIG", "GET", "appendonly"])?;
                let yes = matches!(&answer, Value::Array(pair) if pair.get(1) == Some(&Value::Bulk(b"yes".to_vec())));
                if !yes {
                    return Err(Absent::Skipped("keeps no append-only file: CONFIG GET appendonly isn't yes".into()));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Starts a shell that runs `script` in `dir` and serves no clients.
    #[cfg(test)]
    pub(super) fn of_shell(script: &str, dir: &Path) -> Self {
        let words = ["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        Self {
            processes: vec![Process::start(&words, dir, &[]).unwrap()],
            command: words.to_vec(),
            addresses: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
            version: String::new(),
            cluster_mode: false,
            nodes: 1,
            notes: Vec::new(),
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Suspends or resumes all processes. A peer that is not being measured is suspended, so that
    /// it uses no CPU time.
    pub(super) fn pause(&self, pause: bool) {
        self.processes.iter().for_each(|process| process.pause(pause));
    }

    /// Returns how a process of the peer ended, with its last output. Returns `None` if all
    /// processes run.
    pub(super) fn death(&mut self) -> Option<String> {
        self.processes.iter_mut().find_map(|process| {
            let status = process.ended()?;
            Some(format!("a process ended ({status}): {}", process.last_output()))
        })
    }

    fn ids(&self) -> Vec<u32> {
        self.processes.iter().map(Process::id).collect()
    }

    /// Returns the IDs of all threads of the peer.
    pub(super) fn threads(&self) -> Vec<u32> {
        threads_of(&self.ids())
    }

    pub(super) fn usage(&self) -> Usage {
        Usage::now(&self.ids())
    }

    pub(super) fn spent_since(&self, before: &Usage) -> Spent {
        self.usage().since(before)
    }

    /// Returns the current resident memory of all processes, and the sum of their peaks, in bytes.
    pub(super) fn resident_bytes(&self) -> (u64, u64) {
        resident_bytes(&self.ids())
    }

    /// Stops the first process and starts a new one with the same files. Returns the seconds from
    /// the start of the new process to its reply to PING, and the resources that the new process
    /// used in this time.
    pub(super) fn restart(&mut self, parameters: &StartParameters<'_>) -> io::Result<(f64, Spent)> {
        self.processes[0].terminate();
        self.processes[0].finish();
        let begin = Instant::now();
        self.processes[0] = Process::start(&self.command, &self.dir.path().join("0"), parameters.cpus)?;
        until_ready(&mut self.processes[0], self.addresses[0], parameters.stop)?;
        Ok((begin.elapsed().as_secs_f64(), self.spent_since(&Usage::default())))
    }

    /// Ends all processes: first signals all of them, then waits for all of them.
    pub(super) fn stop(mut self) {
        self.processes.iter_mut().for_each(Process::terminate);
        self.processes.iter_mut().for_each(Process::finish);
    }
}

impl Spec {
    /// Returns the command line of one process.
    fn words(&self, workload: &Workload, port: u16, home: &Path) -> io::Result<Vec<String>> {
        let port = port.to_string();
        let home = home.display().to_string();
        let redis = |program: &Path, more: &[&str]| {
            let program = program.display().to_string();
            let mut words: Vec<String> =
                [program.as_str(), "--port", &port, "--bind", "127.0.0.1", "--dir", &home, "--save", ""]
                    .map(str::to_owned)
                    .to_vec();
            words.extend(more.iter().map(ToString::to_string));
            if let Needs::AppendOnlyFile(sync) = workload.needs {
                words.extend(["--appendonly", "yes", "--appendfsync", sync.word()].map(str::to_owned));
                if workload.measured == Measured::Loads {
                    // A rewrite would replace the commands in the append-only file by a snapshot,
                    // so it is turned off.
                    words.extend(["--auto-aof-rewrite-percentage", "0"].map(str::to_owned));
                }
            }
            if let Clients::Connections(connections) = workload.clients {
                words.extend(["--maxclients".to_owned(), (connections + CONNECTIONS_SPARE).to_string()]);
            }
            words
        };
        Ok(match &self.kind {
            Kind::Pantala { program, shards } => {
                let mut words = redis(program, &["--shards", &shards.to_string()]);
                if workload.needs == Needs::ClusterMode {
                    words.extend(["--cluster-enabled", "yes"].map(str::to_owned));
                }
                words
            }
            Kind::Redis { program } => redis(program, &[]),
            Kind::RedisCluster { program, .. } => redis(program, cluster::OPTIONS),
            Kind::Floor { threads } => {
                let bench = std::env::current_exe()?.display().to_string();
                let words: [&str; 8] = [
                    &bench,
                    "floor",
                    "--port",
                    &port,
                    "--threads",
                    &threads.to_string(),
                    "--reply-size",
                    &workload.data_bytes.to_string(),
                ];
                words.map(str::to_owned).to_vec()
            }
            Kind::Command(words) => {
                words.iter().map(|word| word.replace("{port}", &port).replace("{dir}", &home)).collect()
            }
        })
    }
}

/// Fails if `stop` is set.
pub(super) fn check_interrupted(stop: &AtomicBool) -> io::Result<()> {
    if stop.load(Ordering::Relaxed) {
        return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
    }
    Ok(())
}

/// Waits until the server replies to PING without a `-LOADING` error.
fn until_ready(process: &mut Process, address: SocketAddr, stop: &AtomicBool) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        check_interrupted(stop)?;
        let answer =
            Control::open(&Target::Tcp(address), &Login::default()).and_then(|mut control| control.ask(&["PING"]));
        // The process is checked after the reply, because another server may have replied on this
        // port. In that case, the process that was started has ended.
        if let Some(status) = process.ended() {
            return Err(io::Error::other(format!("ended at its start ({status}): {}", process.last_output())));
        }
        match answer {
            Ok(Value::Error(text)) if text.starts_with(b"LOADING") => {}
            Ok(Value::Error(text)) => {
                return Err(io::Error::other(format!("replied '{}' to PING", text.escape_ascii())));
            }
            Ok(_) => return Ok(()),
            Err(_) => {}
        }
        if begin.elapsed() > READY_MAX {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("didn't reply for {} s: {}", READY_MAX.as_secs(), process.last_output()),
            ));
        }
        thread::sleep(READY_CHECK);
    }
}

/// Returns the version that INFO reports, or an empty string.
fn version(address: SocketAddr) -> String {
    let answer = Control::open(&Target::Tcp(address), &Login::default())
        .and_then(|mut control| control.ask(&["INFO", "server"]));
    let Ok(Value::Bulk(text)) = answer else { return String::new() };
    let text = String::from_utf8_lossy(&text).into_owned();
    let of = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(format!("{} {line}", name.trim_end_matches("_version")))
    };
    ["pantala_version", "dragonfly_version", "valkey_version", "redis_version"]
        .into_iter()
        .find_map(of)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_port_is_skipped_or_reported() {
        let holder = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = holder.local_addr().unwrap().port();
        let ports = |next, given| Ports { next, given, claims: Vec::new() };
        let error = ports(port, true).take(false).unwrap_err();
        assert!(error.to_string().contains(&format!("port {port} is in use")), "{error}");
        assert_ne!(ports(port, false).take(false).unwrap(), port);
        let mut bus = ports(port.saturating_sub(BUS_OFFSET), true);
        if port > BUS_OFFSET + 1024 {
            assert!(bus.take(true).unwrap_err().to_string().contains("in use"));
        }
        assert!(ports(u16::MAX - BUS_OFFSET, false).take(false).is_err());
    }

    #[test]
    fn two_comparisons_never_choose_the_same_port() {
        // After `first` is dropped, another process may bind the port. So the test claims the port
        // instead of binding it.
        let mut first = Ports { next: PORT_FIRST, given: false, claims: Vec::new() };
        let port = first.take(false).unwrap();
        let mut second = Ports { next: port, given: false, claims: Vec::new() };
        assert_ne!(second.take(false).unwrap(), port);
        assert!(claim(port).unwrap().is_none());
        drop(first);
        let deadline = Instant::now() + Duration::from_secs(10);
        while claim(port).unwrap().is_none() {
            assert!(Instant::now() < deadline, "the claim of port {port} is not released");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn commands_get_their_port_and_folder() {
        let spec =
            Spec { name: "x".into(), kind: Kind::Command(vec!["s".into(), "-p={port}".into(), "{dir}/a".into()]) };
        let words = spec.words(&super::super::workloads::ALL[0], 7000, Path::new("/tmp/h")).unwrap();
        assert_eq!(words, ["s", "-p=7000", "/tmp/h/a"]);
        let aof = Workload::named("aof").unwrap();
        let redis = Spec { name: "redis".into(), kind: Kind::Redis { program: "r".into() } };
        let pantala = Spec { name: "pantala".into(), kind: Kind::Pantala { program: "p".into(), shards: 7 } };
        let pantala =
            |workload| pantala.words(Workload::named(workload).unwrap(), 1, Path::new("/")).unwrap().join(" ");
        assert!(pantala("enterprise").ends_with("--shards 7 --cluster-enabled yes"));
        assert!(pantala("flash").ends_with("--shards 7"));
        assert!(redis.words(aof, 1, Path::new("/")).unwrap().join(" ").contains("--appendonly yes"));
    }
}
