//! Placement of workers (threads with an event loop) on a host with several NUMA nodes. The tests
//! run on the CPUs of this host, but present a topology with several nodes to the server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use pantala_tests::{Backend, Server, tool};

/// Environment variable with the folder that the server reads instead of `/sys/devices/system`.
const TOPOLOGY: &str = "PANTALA_TOPOLOGY";

/// Writes a topology with two nodes. Each node has one package, one cache and one CPU (0 or 1).
fn two_nodes(root: &Path) {
    let put = |path: String, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, format!("{text}\n")).expect("written");
    };
    put("node/online".to_owned(), "0-1");
    for cpu in ["0", "1"] {
        put(format!("node/node{cpu}/cpulist"), cpu);
        put(format!("cpu/cpu{cpu}/topology/physical_package_id"), cpu);
        put(format!("cpu/cpu{cpu}/topology/core_siblings_list"), cpu);
        put(format!("cpu/cpu{cpu}/topology/thread_siblings_list"), cpu);
        put(format!("cpu/cpu{cpu}/cache/index0/level"), "3");
        put(format!("cpu/cpu{cpu}/cache/index0/shared_cpu_list"), cpu);
    }
}

/// Starts a server on CPUs 0 and 1 of a host with two nodes. If the test may not use both CPUs,
/// prints a `SKIPPED:` line and returns `None`.
fn on_two_nodes(root: &Path, args: &[&str]) -> Option<Server> {
    two_nodes(root);
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("the CPUs").trim();
    if !allowed.starts_with("0-") {
        tool::skipped(format_args!("the test needs CPUs 0 and 1, and may use {allowed}"));
        return None;
    }
    let set = format!("{TOPOLOGY}={}", root.display());
    Some(Server::pantala_under(Path::new("/usr/bin/env"), &[&set, "taskset", "-c", "0,1"], args))
}

/// Returns the fields of each worker in `INFO workers`.
fn workers(server: &Server) -> Vec<BTreeMap<String, String>> {
    let text = server.connect().call("INFO workers").text();
    let fields = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        let number = name.strip_prefix("worker")?;
        number.parse::<u32>().ok()?;
        let pairs = fields.split(',').map(|field| field.split_once('=').expect("name and value"));
        Some(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    };
    text.lines().filter_map(fields).collect()
}

/// Returns a field of each worker.
fn each(server: &Server, field: &str) -> Vec<String> {
    workers(server).into_iter().map(|mut worker| worker.remove(field).expect("the field")).collect()
}

/// Returns the CPUs on which each worker's thread may run, in the order of the workers.
fn affinities(server: &Server) -> Vec<String> {
    let mut threads = BTreeMap::new();
    for thread in fs::read_dir(format!("/proc/{}/task", server.pid())).expect("threads").flatten() {
        let status = fs::read_to_string(thread.path().join("status")).expect("a status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect("the field").trim();
        // The kernel keeps only 15 bytes of a thread's name, so the worker's number is missing.
        // Workers are started in order, so the order of thread IDs is the order of the workers.
        if field("Name:").starts_with("pantala-worker") {
            threads.insert(field("Pid:").parse::<u32>().expect("a number"), field("Cpus_allowed_list:").to_owned());
        }
    }
    threads.into_values().collect()
}

#[test]
fn workers_are_placed_on_two_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = on_two_nodes(folder.path(), &["--workers", "4"]) else { return };
    let log = server.log();
    let found = "Topology: 2 packages, 2 NUMA nodes, 2 last-level caches, 2 cores, 2 CPUs";
    assert!(log.contains(found) && log.contains("each worker is bound to a CPU of its node, "), "{log}");
    assert_eq!(each(&server, "node"), ["0", "0", "1", "1"]);
    assert_eq!(each(&server, "cpus"), ["0", "0", "1", "1"]);
    assert_eq!(affinities(&server), ["0", "0", "1", "1"]);
    // The dataset is complete, whether or not the host lets the server place memory on both nodes.
    let mut client = server.connect();
    for key in 0..1000 {
        client.call(&format!("SET {key} {key}"));
    }
    assert_eq!(client.call("DBSIZE").integer(), 1000);
    assert_eq!(client.call("GET 999").text(), "999");
}

/// The number of connections of any two workers differs by at most one, on whichever node they
/// arrive.
#[test]
fn few_connections_are_spread_evenly() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = on_two_nodes(folder.path(), &["--workers", "4"]) else { return };
    let mut clients: Vec<_> = (0..15).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.call("PING").text(), "PONG"));
    assert_eq!(each(&server, "connections"), ["4"; 4]);
}

#[test]
fn io_and_shards_are_on_both_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--execution", "owner", "--workers", "2", "--io-threads", "2"];
    let Some(server) = on_two_nodes(folder.path(), &args) else { return };
    assert_eq!(each(&server, "node"), ["0", "1", "0", "1"]);
    assert_eq!(affinities(&server), ["0", "1", "0", "1"]);
}

#[test]
fn workers_run_anywhere_if_numa_is_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(server) = on_two_nodes(folder.path(), &["--numa", "off", "--workers", "2"]) else { return };
    let log = server.log();
    assert!(log.contains("2 NUMA nodes") && log.contains("workers are not placed: numa is off"), "{log}");
    assert_eq!((each(&server, "node"), each(&server, "cpus")), (vec!["-1".into(); 2], vec!["0-1".into(); 2]));
    assert_eq!(affinities(&server), ["0-1", "0-1"]);
}

#[test]
fn a_host_with_one_node_is_left_alone() {
    let one_node = !Path::new("/sys/devices/system/node/node1").exists();
    let server = Server::pantala(Backend::Epoll, &["--workers", "2"]);
    let log = server.log();
    assert!(log.contains("Topology: "), "{log}");
    if one_node {
        assert!(log.contains("workers are not placed: there is one node"), "{log}");
        assert_eq!(each(&server, "node"), ["0", "0"]);
    }
    assert_eq!(server.connect().call("CONFIG GET numa").elements()[1].text(), "auto");
}
