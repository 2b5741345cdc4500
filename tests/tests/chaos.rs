//! Replication under faults. Clients use three servers. Meanwhile servers stop, die and restart,
//! links break, replicas of replicas change their primary, and another server becomes the primary.
//! In a network namespace, connections between servers are also slowed down, and cut in one or both
//! directions without notice to either side. Afterwards all servers must have the same dataset, no
//! write that `WAIT` confirmed may be lost, and no client may have seen half of a transaction.
//!
//! The seed of a scenario determines everything but the timing of its threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::namespace::{Network, V4, is_run_inside};
use pantala_tests::server::free_port;
use pantala_tests::{Backend, Client, Random, Reply, Server};
use rustix::process::Signal;
use tempfile::TempDir;

/// Number of servers of a scenario: a primary and two replicas.
const NODES: usize = 3;

/// Number of clients that write during a scenario.
const WRITERS: usize = 3;

/// Default number of scenarios of the long run. `PANTALA_CHAOS_SCENES` overrides it.
const LONG_RUN_SCENES: usize = 2000;

/// Maximum wait for each step of the recovery from a fault: until a port becomes free, a failover
/// ends, or the datasets of the servers are equal.
const SETTLES_WITHIN: Duration = Duration::from_secs(40);

/// Maximum duration of one scenario in a namespace.
const NETWORK_SCENE_MAX: Duration = Duration::from_secs(60);

/// The addresses of servers that share the loopback interface of this host.
const LOCAL: [&str; NODES] = ["127.0.0.1"; NODES];

/// Maximum wait for a reply of a server that may be stopped. A stopped server does not reply.
const REPLY_MAX: Duration = Duration::from_secs(5);

/// Sends a command on a new connection. Returns the reply, or `None` if the server isn't running or
/// closes the connection.
fn ask(port: u16, words: &[&str]) -> Option<Reply> {
    let mut client = Client::try_tcp(port).ok()?;
    client.set_read_timeout(REPLY_MAX);
    try_call(&mut client, words)
}

fn try_call(client: &mut Client, words: &[&str]) -> Option<Reply> {
    client.try_send_raw(&encode(words)).ok()?;
    client.try_receive().ok().map(|(reply, _)| reply)
}

/// Returns a field of `INFO replication`, or an empty string.
fn replication(port: u16, field: &str) -> String {
    let text = ask(port, &["INFO", "replication"]).map_or_else(String::new, |reply| reply.text());
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned));
    value.unwrap_or_default()
}

/// A server that keeps its port and its data when it restarts.
struct Node {
    server: Option<Server>,
    /// The address that other servers use. Clients use 127.0.0.1.
    host: &'static str,
    port: u16,
    backend: Backend,
    args: Vec<String>,
    _data: TempDir,
}

impl Node {
    fn start(backend: Backend, host: &'static str, extra: &[&str]) -> Node {
        let data = tempfile::tempdir().expect("a folder for the data");
        let mut args: Vec<String> =
            ["--workers", "2", "--enable-debug-command", "yes", "--dir"].map(String::from).into();
        args.push(data.path().display().to_string());
        args.extend(extra.iter().map(ToString::to_string));
        args.extend(["--bind-source-addr", host, "--protected-mode", "no"].map(String::from));
        let mut node = Node { server: None, host, port: 0, backend, args, _data: data };
        while node.server.is_none() {
            node.port = free_port();
            node.restart();
        }
        node
    }

    /// Starts the server if its port is free.
    fn restart(&mut self) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        match Server::pantala_at(self.port, self.backend, &args) {
            Ok(server) => self.server = Some(server),
            Err(why) => assert!(why.contains("Address already in use"), "{why}"),
        }
    }

    fn server(&mut self) -> &mut Server {
        self.server.as_mut().expect("it runs")
    }
}

/// State shared by the clients of a scenario.
struct Shared {
    is_over: AtomicBool,
    primary: AtomicU16,
    ports: Vec<u16>,
    /// For each writer, the largest value of its counter that both replicas have acknowledged.
    confirmed: Vec<Mutex<i64>>,
}

/// Writes commands of many kinds to the primary until the scenario ends.
fn write(shared: &Shared, number: usize, mut random: Random) {
    let keys = ["a", "l", "c", "s"].map(|name| format!("{{{number}}}{name}"));
    let [a, list, count, set] = keys.each_ref().map(String::as_str);
    let (b, waited, stream) = (format!("b{number}"), format!("w{number}"), format!("x{number}"));
    while !shared.is_over.load(Relaxed) {
        let Ok(mut client) = Client::try_tcp(shared.primary.load(Relaxed)) else { continue };
        client.set_read_timeout(REPLY_MAX);
        // Reconnects after twenty batches, because the primary may have changed.
        for _ in 0..20 {
            let text = "x".repeat(random.below(2000));
            let key = format!("k{}", random.below(200));
            let id = random.below(1000).to_string();
            let script = "redis.call('INCR', KEYS[1]) return redis.call('SADD', KEYS[2], ARGV[1])";
            let commands: Vec<Vec<&str>> = match random.below(7) {
                // The transaction increments two keys in different shards, so that their numbers
                // stay equal.
                0 | 1 => {
                    vec![vec!["MULTI"], vec!["INCR", a], vec!["RPUSH", list, &text], vec!["INCR", &b], vec!["EXEC"]]
                }
                2 => vec![vec!["SET", &key, &text, "PX", *random.pick(&["20", "200", "100000"])]],
                3 => vec![vec!["EVAL", script, "2", count, set, &id]],
                4 => vec![vec!["DEL", &key]],
                5 => vec![vec!["XADD", &stream, "MAXLEN", "~", "100", "*", "field", &text]; 10],
                _ => vec![vec!["INCR", &waited], vec!["WAIT", "2", "300"]],
            };
            let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
            if client.try_send_raw(&bytes).is_err() {
                break;
            }
            let replies: Vec<Reply> =
                commands.iter().map_while(|_| client.try_receive().ok().map(|(reply, _)| reply)).collect();
            if replies.len() < commands.len() {
                break;
            }
            if let [Reply::Integer(value), Reply::Integer(2)] = replies[..] {
                let mut confirmed = shared.confirmed[number].lock().expect("no writer panics");
                *confirmed = value.max(*confirmed);
            }
        }
    }
}

/// Reads both keys of a writer's transactions, on random servers, until the scenario ends.
///
/// # Panics
/// If their numbers differ.
fn read(shared: &Shared, mut random: Random) {
    while !shared.is_over.load(Relaxed) {
        let Ok(mut client) = Client::try_tcp(*random.pick(&shared.ports)) else { continue };
        client.set_read_timeout(REPLY_MAX);
        for _ in 0..20 {
            let number = random.below(WRITERS);
            let reply = try_call(&mut client, &["MGET", &format!("{{{number}}}a"), &format!("b{number}")]);
            let Some(Reply::Array(pair)) = reply else { break };
            assert_eq!(pair[0], pair[1], "half of a transaction is visible");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A fault, or a change of roles.
#[derive(Clone, Copy, Debug)]
enum Event {
    Stop,
    Kill,
    CutReplicas,
    CutPrimary,
    Chain,
    Failover,
    Promote,
    Save,
    Restart,
    /// Kills the primary and promotes the replica that has applied the most of the stream.
    KillPrimary,
    /// Cuts the connections between two servers.
    Cut,
    /// Drops all packets that one server sends to another.
    HalfOpen,
    /// Cuts the connections between the primary and the other servers, and promotes a replica
    /// meanwhile.
    Isolate,
    /// Delays and drops packets of all connections.
    Slow,
}

const EVENTS: [Event; 10] = [
    Event::KillPrimary,
    Event::Stop,
    Event::Kill,
    Event::CutReplicas,
    Event::CutPrimary,
    Event::Chain,
    Event::Failover,
    Event::Promote,
    Event::Save,
    Event::Restart,
];

/// Events of a scenario in a namespace.
const NETWORK_EVENTS: [Event; 12] = [
    Event::Cut,
    Event::Cut,
    Event::HalfOpen,
    Event::HalfOpen,
    Event::Isolate,
    Event::Slow,
    Event::KillPrimary,
    Event::Stop,
    Event::Kill,
    Event::Chain,
    Event::Failover,
    Event::Restart,
];

struct Scene {
    /// The network between the servers, if the scenario is in a namespace.
    network: Option<Network>,
    nodes: Vec<Node>,
    primary: usize,
    random: Random,
    /// Events so far, for the failure message.
    report: Vec<String>,
}

impl Scene {
    fn follow(&self, replica: usize, primary: usize) {
        let Node { host, port, .. } = &self.nodes[primary];
        let _ = ask(self.nodes[replica].port, &["REPLICAOF", host, &port.to_string()]);
    }

    /// Returns a server that is not the primary.
    fn replica(&mut self) -> usize {
        (self.primary + 1 + self.random.below(NODES - 1)) % NODES
    }

    fn pause(&mut self, ms_max: usize) {
        std::thread::sleep(Duration::from_millis(self.random.below(ms_max) as u64));
    }

    fn play(&mut self, event: Event, shared: &Shared) {
        let replica = self.replica();
        let other = NODES - self.primary - replica;
        self.report.push(format!("{event:?}: primary {}, replica {replica}", self.primary));
        match event {
            Event::Stop => {
                self.nodes[replica].server().signal(Signal::STOP);
                self.pause(1000);
                self.nodes[replica].server().signal(Signal::CONT);
            }
            Event::Kill => {
                self.nodes[replica].server.take().expect("it runs").kill();
                self.restart_and_follow(replica);
            }
            Event::CutReplicas => _ = ask(self.nodes[self.primary].port, &["CLIENT", "KILL", "TYPE", "replica"]),
            Event::CutPrimary => _ = ask(self.nodes[replica].port, &["CLIENT", "KILL", "TYPE", "master"]),
            Event::Chain => {
                let of = if self.random.below(2) == 0 { self.primary } else { replica };
                self.follow(replica, self.primary);
                self.follow(other, of);
            }
            Event::Failover => self.fail_over(replica),
            Event::Promote => self.promote(replica, shared),
            Event::KillPrimary => {
                let candidates = self.linked();
                if candidates.is_empty() {
                    return;
                }
                let dead = self.primary;
                self.nodes[dead].server.take().expect("it runs").kill();
                self.promote(self.most_advanced(candidates), shared);
                self.restart_and_follow(dead);
            }
            Event::Cut | Event::HalfOpen => {
                let (mut from, mut to) = (self.nodes[self.primary].host, self.nodes[replica].host);
                if self.random.below(2) == 0 {
                    (from, to) = (to, from);
                }
                self.network().cut(from, to);
                if matches!(event, Event::Cut) {
                    self.network().cut(to, from);
                }
                self.pause(2500);
                self.network().heal();
            }
            Event::Isolate => self.isolate_primary(shared),
            Event::Slow => {
                let way = self.network().slow_down();
                self.report.push(format!("  {way:?}"));
                self.pause(2500);
                self.network().heal();
            }
            Event::Save => _ = ask(self.nodes[self.random.below(NODES)].port, &["BGSAVE"]),
            Event::Restart => {
                let node = self.random.below(NODES);
                self.report.push(format!("  of {node}"));
                let _ = ask(self.nodes[node].port, &["SHUTDOWN"]);
                self.nodes[node].server().wait_exit(Duration::from_secs(30));
                self.nodes[node].server = None;
                self.restart_and_follow(node);
            }
        }
        shared.primary.store(self.nodes[self.primary].port, Relaxed);
    }

    fn network(&self) -> &Network {
        self.network.as_ref().expect("the scenario is in a namespace")
    }

    /// Cuts the primary off, and promotes a replica, if one is linked. Clients still reach all
    /// servers.
    fn isolate_primary(&mut self, shared: &Shared) {
        let candidates = self.linked();
        let primary = self.nodes[self.primary].host;
        for node in self.nodes.iter().filter(|node| node.host != primary) {
            self.network().cut(node.host, primary);
            self.network().cut(primary, node.host);
        }
        self.pause(1500);
        if !candidates.is_empty() {
            self.promote(self.most_advanced(candidates), shared);
            self.pause(1000);
        }
        self.network().heal();
    }

    /// Returns the replicas whose link is up. Only such a replica certainly has all data that it
    /// has acknowledged.
    fn linked(&self) -> Vec<usize> {
        let is_linked = |&node: &usize| replication(self.nodes[node].port, "master_link_status") == "up";
        (0..NODES).filter(|&node| node != self.primary).filter(is_linked).collect()
    }

    /// Returns the server that has applied the most of the stream.
    fn most_advanced(&self, candidates: Vec<usize>) -> usize {
        let offset = |&node: &usize| replication(self.nodes[node].port, "slave_repl_offset").parse::<u64>().ok();
        candidates.into_iter().max_by_key(offset).expect("there is a candidate")
    }

    /// Makes a replica the primary. The other running servers follow the new primary.
    fn promote(&mut self, replica: usize, shared: &Shared) {
        self.report.push(format!("  {replica} is promoted"));
        let _ = ask(self.nodes[replica].port, &["REPLICAOF", "NO", "ONE"]);
        self.primary = replica;
        shared.primary.store(self.nodes[replica].port, Relaxed);
        self.pause(200);
        let others = (0..NODES).filter(|&node| node != replica && self.nodes[node].server.is_some());
        others.for_each(|node| self.follow(node, replica));
    }

    /// Restarts a server and makes it follow the current primary, because a restarted server has
    /// forgotten its primary.
    fn restart_and_follow(&mut self, node: usize) {
        let began = Instant::now();
        while self.nodes[node].server.is_none() {
            assert!(began.elapsed() < SETTLES_WITHIN, "the port stays in use");
            self.nodes[node].restart();
        }
        if node != self.primary {
            self.follow(node, self.primary);
        }
    }

    fn fail_over(&mut self, to: usize) {
        let (from, port) = (self.nodes[self.primary].port, self.nodes[to].port.to_string());
        let reply = ask(from, &["FAILOVER", "TO", self.nodes[to].host, &port, "TIMEOUT", "1000"]);
        self.report.push(format!("  {reply:?}"));
        if reply == Some(Reply::ok()) {
            let began = Instant::now();
            while replication(from, "master_failover_state") != "no-failover" {
                assert!(began.elapsed() < SETTLES_WITHIN, "the failover does not end");
                std::thread::sleep(Duration::from_millis(5));
            }
            if replication(from, "role") == "slave" {
                self.primary = to;
            }
        }
    }

    /// Makes all servers follow one primary, and waits until they are equal.
    fn settle(&mut self) {
        let primary = self.nodes[self.primary].port;
        for node in (0..NODES).filter(|&node| node != self.primary) {
            self.follow(node, self.primary);
        }
        let began = Instant::now();
        loop {
            let _ = ask(primary, &["INCR", "last"]);
            std::thread::sleep(Duration::from_millis(50));
            let ports = self.nodes.iter().map(|node| node.port);
            let states: Vec<_> =
                ports.map(|port| (replication(port, "master_repl_offset"), ask(port, &["DEBUG", "DIGEST"]))).collect();
            if states.iter().all(|state| *state == states[0]) {
                break;
            }
            assert!(began.elapsed() < SETTLES_WITHIN, "the servers differ: {states:?}");
        }
    }
}

/// Runs one scenario, and returns `network`.
///
/// # Panics
/// If an invariant is violated. The message lists the scenario's events.
fn play(seed: u64, network: Option<Network>) -> Option<Network> {
    let mut random = Random::from_seed(seed);
    let backlog = *random.pick(&["16384", "65536", "1048576"]);
    let ping = *random.pick(&["1", "3600"]);
    let common =
        ["--repl-backlog-size", backlog, "--repl-ping-replica-period", ping, "--repl-diskless-sync-delay", "0"];
    let more = *random.pick(&[
        &["--save", "3600 1"][..],
        &["--save", "3600 1", "--repl-diskless-sync", "no"],
        &["--save", "3600 1", "--repl-diskless-load", "on-empty-db"],
        &["--save", "3600 1", "--repl-diskless-load", "swapdb"],
        &["--save", "", "--appendonly", "yes", "--appendfsync", "always"],
    ]);
    // A server detects a cut link only after the timeout.
    let timeout: &[&str] = if network.is_some() { &["--repl-timeout", "3"] } else { &[] };
    let args = [&common[..], more, timeout].concat();
    let (hosts, events) = if network.is_some() { (V4, &NETWORK_EVENTS[..]) } else { (LOCAL, &EVENTS[..]) };
    let nodes: Vec<Node> =
        hosts.into_iter().map(|host| Node::start(*random.pick(Backend::all()), host, &args)).collect();
    let mut scene = Scene { network, nodes, primary: 0, random, report: vec![format!("{args:?}")] };
    scene.follow(1, 0);
    let of = scene.random.below(2);
    scene.follow(2, of);
    let ports: Vec<u16> = scene.nodes.iter().map(|node| node.port).collect();
    let shared = Shared {
        is_over: AtomicBool::new(false),
        primary: AtomicU16::new(ports[0]),
        ports,
        confirmed: (0..WRITERS).map(|_| Mutex::new(0)).collect(),
    };
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        std::thread::scope(|scope| {
            let shared = &shared;
            for number in 0..WRITERS {
                let random = Random::from_seed(scene.random.next_u64());
                scope.spawn(move || write(shared, number, random));
            }
            let random = Random::from_seed(scene.random.next_u64());
            scope.spawn(move || read(shared, random));
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..3 + scene.random.below(5) {
                    scene.pause(500);
                    let event = *scene.random.pick(events);
                    scene.play(event, shared);
                }
                scene.pause(200);
            }));
            shared.is_over.store(true, Relaxed);
            scene.network.iter().for_each(Network::heal);
            played.unwrap_or_else(|cause| std::panic::resume_unwind(cause));
        });
        scene.settle();
        for (number, confirmed) in shared.confirmed.iter().enumerate() {
            let confirmed = *confirmed.lock().expect("no writer panics");
            let reply = ask(scene.nodes[scene.primary].port, &["GET", &format!("w{number}")]);
            let value = reply.map_or(0, |reply| reply.text().parse().unwrap_or(0));
            assert!(value >= confirmed, "writer {number}: {confirmed} was confirmed, {value} is left");
        }
        scene.nodes.iter_mut().for_each(|node| node.server().assert_sound());
    }));
    if let Err(cause) = outcome {
        eprintln!("scene with seed {seed}:\n{}", scene.report.join("\n"));
        for node in &scene.nodes {
            let log = node.server.as_ref().map_or_else(String::new, Server::log);
            let from = log.lines().count().saturating_sub(40);
            eprintln!("port {}:\n{}", node.port, log.lines().skip(from).collect::<Vec<_>>().join("\n"));
        }
        std::panic::resume_unwind(cause);
    }
    scene.network.take()
}

#[test]
fn servers_agree_after_faults() {
    let seed = Random::seed("servers_agree_after_faults");
    for number in 0..4 {
        play(Random::seed_of(seed, &number.to_string()), None);
    }
}

/// Runs scenarios in this namespace. Does nothing if the kernel can't cut connections.
fn play_in_namespace(test: &str, scenes: usize) {
    let seed = Random::seed(test);
    let mut network = Network::new();
    for number in 0..scenes {
        if network.is_none() {
            return;
        }
        network = play(Random::seed_of(seed, &number.to_string()), network);
        if number % 50 == 49 {
            println!("{} scenes", number + 1);
        }
    }
}

#[test]
fn servers_agree_after_faults_of_the_network() {
    let test = "servers_agree_after_faults_of_the_network";
    if !is_run_inside(&format!("chaos::{test}"), 4 * NETWORK_SCENE_MAX) {
        play_in_namespace(test, 3);
    }
}

#[test]
#[ignore = "takes two hours: run by .ci/nightly"]
fn servers_agree_after_faults_of_the_network_for_long() {
    let test = "servers_agree_after_faults_of_the_network_for_long";
    let scenes = long_run_scenes() / 4;
    let limit = NETWORK_SCENE_MAX * u32::try_from(scenes + 1).expect("fewer scenes");
    if !is_run_inside(&format!("chaos::{test}"), limit) {
        play_in_namespace(test, scenes);
    }
}

/// Returns the number of scenarios of a long run.
fn long_run_scenes() -> usize {
    std::env::var("PANTALA_CHAOS_SCENES").map_or(LONG_RUN_SCENES, |text| text.parse().expect("a number"))
}

#[test]
#[ignore = "takes an hour and a half: run by .ci/nightly"]
fn servers_agree_after_faults_for_long() {
    let scenes = long_run_scenes();
    let seed = Random::seed("servers_agree_after_faults_for_long");
    for number in 0..scenes {
        play(Random::seed_of(seed, &number.to_string()), None);
        if number % 50 == 49 {
            println!("{} scenes", number + 1);
        }
    }
}
