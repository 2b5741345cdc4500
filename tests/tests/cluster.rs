//! Cluster mode: compares the replies of Pantala with those of a redis-server that is the only node
//! of its cluster and owns all slots.

use std::process::Command;
use std::time::{Duration, Instant};

use pantala_tests::transcript::assert_as;
use pantala_tests::{Backend, Client, Reply, Server, binary, tool};

/// Arguments of a cluster's node, with several shards (parts of the key space) per worker.
const CLUSTER_ARGS: [&str; 6] = ["--cluster-enabled", "yes", "--workers", "2", "--shards", "40"];

/// Maximum wait until redis-server reports that the cluster is up, which takes two seconds after
/// all slots have been assigned.
const STATE_OK_MAX: Duration = Duration::from_secs(20);

fn pantala(more: &[&str]) -> Server {
    Server::pantala(Backend::all()[0], &[&CLUSTER_ARGS[..], more].concat())
}

/// Starts a real cluster of one node.
fn reference(more: &[&str]) -> Option<Server> {
    let server = Server::redis(&[&["--cluster-enabled", "yes"], more].concat())?;
    let mut client = server.connect();
    assert_eq!(client.call("CLUSTER ADDSLOTSRANGE 0 16383"), Reply::ok());
    let begin = Instant::now();
    while !client.call("CLUSTER INFO").text().contains("cluster_state:ok") {
        assert!(begin.elapsed() < STATE_OK_MAX, "the real cluster doesn't come up");
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(server)
}

/// Returns the raw replies of a server. Values that differ between servers (node ID, ports) are
/// replaced by names. `MYID` in a command stands for the node's ID.
fn answers(server: &Server, version: u8, commands: &[Vec<String>]) -> Vec<String> {
    let mut client = server.connect();
    let id = client.call("CLUSTER MYID").text();
    assert!(id.len() == 40 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    if version == 3 {
        assert!(!client.call("HELLO 3").is_error());
    }
    let (port, bus_port) = (server.port().to_string(), (server.port() + 10_000).to_string());
    commands
        .iter()
        .map(|words| {
            let is_id = |at: usize| at > 1 && words[at] == "MYID";
            let sent: Vec<&str> = (0..words.len()).map(|at| if is_id(at) { &id } else { words[at].as_str() }).collect();
            client.send(&sent);
            let raw = client.receive_raw().1.escape_ascii().to_string();
            format!("{words:?}: {}", raw.replace(&id, "ID").replace(&bus_port, "BUS").replace(&port, "PORT"))
        })
        .collect()
}

fn words(lines: &[&str]) -> Vec<Vec<String>> {
    lines.iter().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

/// Commands whose replies contain the node's address.
const ANNOUNCEMENTS: &[&str] =
    &["CLUSTER MYID", "CLUSTER NODES", "CLUSTER SLOTS", "CLUSTER SHARDS", "CLUSTER LINKS", "CLUSTER INFO"];

const COMMANDS: &[&str] = &[
    // Arguments.
    "CLUSTER",
    "CLUSTER INFO x",
    "CLUSTER NOSUCH",
    "CLUSTER KEYSLOT",
    "CLUSTER KEYSLOT a",
    "CLUSTER KEYSLOT {a}b",
    "CLUSTER KEYSLOT {}a",
    "CLUSTER COUNTKEYSINSLOT 15495",
    "CLUSTER COUNTKEYSINSLOT -1",
    "CLUSTER COUNTKEYSINSLOT 16384",
    "CLUSTER COUNTKEYSINSLOT x",
    "CLUSTER GETKEYSINSLOT 15495 10",
    "CLUSTER GETKEYSINSLOT -1 10",
    "CLUSTER GETKEYSINSLOT 16384 10",
    "CLUSTER GETKEYSINSLOT 0 -1",
    "CLUSTER GETKEYSINSLOT x 1",
    "CLUSTER GETKEYSINSLOT 1 x",
    "CLUSTER REPLICAS",
    "CLUSTER REPLICAS nosuch",
    "CLUSTER REPLICAS MYID",
    "CLUSTER SLAVES 0000000000000000000000000000000000000000",
    "CLUSTER SLAVES MYID",
    "CLUSTER SLAVES MYID x",
    "CLUSTER COUNT-FAILURE-REPORTS nosuch",
    "CLUSTER COUNT-FAILURE-REPORTS MYID",
    "CLUSTER SAVECONFIG",
    "CLUSTER SAVECONFIG x",
    // Keys in one slot.
    "SET a 1",
    "CLUSTER COUNTKEYSINSLOT 15495",
    "CLUSTER GETKEYSINSLOT 15495 10",
    "CLUSTER GETKEYSINSLOT 15495 0",
    "MSET {a}1 x {a}2 y",
    "MGET {a}1 {a}2 a",
    "CLUSTER COUNTKEYSINSLOT 15495",
    "RENAME {a}1 {a}3",
    "SUNIONSTORE {a}s {a}t {a}u",
    // Keys in several slots.
    "MSET a 1 b 2",
    "MGET a b",
    "DEL a b",
    "UNLINK a a b",
    "EXISTS a b",
    "RENAME a b",
    "COPY a b",
    "LMOVE a b LEFT LEFT",
    "BLMOVE a b LEFT LEFT 0",
    "BLPOP a b 0",
    "SINTERSTORE a b c",
    "ZUNIONSTORE a 2 b c",
    "ZUNIONSTORE a x b c",
    "ZUNIONSTORE a 9 b c",
    "PFCOUNT a b",
    "PFMERGE a b",
    "BITOP AND a b c",
    "XREAD STREAMS a b 0 0",
    "XREAD COUNT 1 STREAMS a {a} 0 0",
    "SORT a STORE b",
    "GEOSEARCHSTORE a b FROMLONLAT 1 1 BYRADIUS 1 m",
    "OBJECT ENCODING a",
    "WATCH a b",
    "WATCH a {a}",
    "UNWATCH",
    "SSUBSCRIBE a b",
    "SPUBLISH a b",
    // Commands that a cluster rejects.
    "SELECT 0",
    "SELECT 1",
    "SELECT 99",
    "SELECT x",
    "MOVE a 1",
    "MOVE a x",
    "SWAPDB 0 1",
    "SWAPDB x y",
    "COPY a {a}c DB 1",
    "COPY a {a}c DB 0",
    "COPY a b DB 1",
    "SORT a BY w_*",
    "SORT a BY nosort",
    "SORT a GET #",
    "SORT_RO a BY w_* GET #",
    "READONLY",
    "READWRITE",
    "ASKING",
    "READONLY x",
    // Transactions.
    "MULTI",
    "SET a 1",
    "SET b 1",
    "EXEC",
    "EXEC",
    "MULTI",
    "SET a 1",
    "MSET a 1 b 2",
    "EXEC",
    "MULTI",
    "SET a 2",
    "SET b 2",
    "DEL a b",
    "EXEC",
    "MULTI",
    "GET a",
    "GET {a}",
    "PING",
    "EXEC",
    "MULTI",
    "WATCH a b",
    "EXEC",
    "GET a",
    "GET b",
    "CONFIG GET cluster-enabled",
    "CLUSTER KEYSLOT a",
    "FLUSHALL",
    "DBSIZE",
];

/// Scripts, each with the arguments of `EVAL` that follow it.
const SCRIPTS: &[(&str, &str)] = &[
    ("return redis.call('get', KEYS[1])", "1 a"),
    ("return redis.call('mget', KEYS[1], KEYS[2])", "2 a {a}b"),
    ("return 1", "2 a b"),
    ("#!lua flags=allow-cross-slot-keys\nreturn 1", "2 a b"),
    ("redis.call('set', 'x', 1) return redis.call('get', 'y')", "0"),
    ("redis.call('set', 'x', 1) return redis.call('get', 'y')", "1 a"),
    ("return redis.call('mget', 'x', 'y')", "0"),
    ("return redis.pcall('mget', 'x', 'y')", "0"),
    ("return redis.call('select', '1')", "0"),
    ("return redis.call('select', '0')", "0"),
    ("#!lua\nreturn redis.call('get', 'x')", "0"),
    ("#!lua\nreturn redis.call('get', 'x')", "1 a"),
    ("#!lua\nredis.call('set', 'x', 1) return redis.call('get', 'y')", "0"),
    ("#!lua\nredis.call('set', '{x}1', 1) return redis.call('get', 'x')", "1 x"),
    ("#!lua flags=allow-cross-slot-keys\nredis.call('set', 'x', 1) return redis.call('get', 'y')", "1 a"),
    ("#!lua flags=allow-cross-slot-keys\nreturn redis.call('mget', 'x', 'y')", "0"),
    ("#!lua flags=no-cluster\nreturn 1", "0"),
];

fn all_commands() -> Vec<Vec<String>> {
    let mut commands = words(ANNOUNCEMENTS);
    commands.extend(words(COMMANDS));
    for (script, rest) in SCRIPTS {
        let mut call = vec!["EVAL".to_owned(), (*script).to_owned()];
        call.extend(rest.split(' ').map(str::to_owned));
        commands.push(call);
    }
    commands
}

#[test]
fn a_cluster_of_one_node_replies_as_redis() {
    let Some(reference) = reference(&[]) else { return };
    assert_as(&reference, &CLUSTER_ARGS, |server, version| answers(server, version, &all_commands()));
}

#[test]
fn a_node_announces_its_configured_address() {
    for endpoint in ["ip", "hostname", "unknown-endpoint"] {
        for hostname in ["", "node.example.com"] {
            let args = [
                "--cluster-preferred-endpoint-type",
                endpoint,
                "--cluster-announce-hostname",
                hostname,
                "--cluster-announce-ip",
                "10.1.2.3",
            ];
            let Some(reference) = Server::redis(&[&["--cluster-enabled", "yes"], &args[..]].concat()) else { return };
            assert_eq!(reference.connect().call("CLUSTER ADDSLOTSRANGE 0 16383"), Reply::ok());
            let commands = words(&ANNOUNCEMENTS[..4]);
            for version in [2, 3] {
                let (given, right) =
                    (answers(&pantala(&args), version, &commands), answers(&reference, version, &commands));
                assert_eq!(given, right, "{endpoint} {hostname:?}, RESP{version}");
            }
        }
    }
    let server = pantala(&["--cluster-announce-port", "7", "--cluster-announce-bus-port", "8"]);
    let mut client = server.connect();
    assert!(client.call("CLUSTER NODES").text().contains(" :7@8 myself,master "));
    assert_eq!(client.call("CONFIG SET cluster-announce-port 9"), Reply::ok());
    assert!(client.call("CLUSTER NODES").text().contains(" :9@8 myself,master "));
}

#[test]
fn commands_report_that_cluster_support_is_disabled() {
    let Some(reference) = Server::redis(&[]) else { return };
    let server = Server::pantala(Backend::all()[0], &["--workers", "1"]);
    let (mut given, mut right) = (server.connect(), reference.connect());
    let lines = [
        "READONLY",
        "READWRITE",
        "ASKING",
        "CLUSTER",
        "CLUSTER NOSUCH",
        "CLUSTER KEYSLOT",
        "CLUSTER GETKEYSINSLOT x y",
    ];
    for line in lines.iter().chain(ANNOUNCEMENTS) {
        assert_eq!(given.call(line), right.call(line), "{line}");
    }
    assert_eq!(given.call("MSET a 1 b 2"), Reply::ok());
}

#[test]
fn info_reports_a_node_of_a_cluster() {
    let server = pantala(&[]);
    let mut client = server.connect();
    assert!(client.call("INFO cluster").text().contains("cluster_enabled:1"));
    assert!(client.call("INFO server").text().contains("redis_mode:cluster"));
    let rejected = "calls=0,usec=0,usec_per_call=0.00,rejected_calls=2,failed_calls=0";
    client.call("DEL a b");
    client.call("DEL a b c");
    assert!(client.call("INFO commandstats").text().contains(&format!("cmdstat_del:{rejected}")));
    assert!(client.call("INFO errorstats").text().contains("errorstat_CROSSSLOT:count=2"));
    // The reply to cluster commands that are not implemented yet.
    let answer = client.call("CLUSTER MEET 127.0.0.1 7000").text();
    assert_eq!(answer, "ERR Pantala doesn't have the command 'cluster|meet' yet");
}

#[test]
fn authentication_is_checked_before_slots() {
    let server = pantala(&["--requirepass", "secret"]);
    let mut client = server.connect();
    assert_eq!(client.call("DEL a b").text(), "NOAUTH Authentication required.");
    assert_eq!(client.call("AUTH secret"), Reply::ok());
    assert!(client.call("DEL a b").text().starts_with("CROSSSLOT"));
}

#[test]
fn a_port_without_room_for_the_bus_is_rejected() {
    // Several ports are tried, because another process may use any of them.
    let mut exits = (60_000..60_020).map(|port| {
        pantala_tests::server::run_to_exit(&["--port", &port.to_string(), "--cluster-enabled", "yes"], b"")
    });
    let exit = exits.find(|exit| !exit.output.contains("Address already in use")).expect("one of the ports is free");
    assert!(!exit.status.success() && exit.output.contains("too high for cluster mode"), "{}", exit.output);
}

#[test]
fn a_cluster_client_of_rust_works() {
    let server = pantala(&[]);
    let url = format!("redis://127.0.0.1:{}", server.port());
    let client = redis::cluster::ClusterClient::new(vec![url]).expect("a client");
    let mut connection = client.get_connection().expect("it connects");
    for number in 0..200 {
        let _: () = redis::cmd("SET").arg(format!("key:{number}")).arg(number).query(&mut connection).expect("SET");
    }
    for number in 0..200 {
        let value: i64 = redis::cmd("GET").arg(format!("key:{number}")).query(&mut connection).expect("GET");
        assert_eq!(value, number);
    }
    let values: Vec<Option<i64>> =
        redis::cmd("MGET").arg("key:{x}1").arg("key:{x}2").query(&mut connection).expect("MGET");
    assert_eq!(values, [None, None]);
    let count: i64 = redis::cmd("DBSIZE").query(&mut connection).expect("DBSIZE");
    assert_eq!(count, 200);
}

#[test]
fn redis_cli_works() {
    let Some(program) = tool::find("redis-cli") else { return };
    let server = pantala(&[]);
    let input = b"set a 1\nset b 2\nget a\nget b\nmget a b\nmget {a}1 a\n";
    let ran = tool::run(&program, server.port(), &["-c"], input, Duration::from_secs(20));
    let lines: Vec<&str> = ran.output.lines().filter(|line| !line.is_empty()).collect();
    let cross_slot = "CROSSSLOT Keys in request don't hash to the same slot";
    assert_eq!(lines, ["OK", "OK", "1", "2", cross_slot, "1"], "{}", ran.output);
}

#[test]
fn the_load_generator_follows_the_slots() {
    let server = pantala(&[]);
    let port = server.port().to_string();
    let arguments = ["-p", &port, "--cluster-mode", "-t", "1", "-c", "4", "--ratio", "1:1", "-d", "16"];
    let bounds = ["--key-maximum", "500", "--pipeline", "4", "--requests", "2000", "--distinct-client-seed"];
    let ran = Command::new(binary::pantala_bench()).arg("load").args(arguments).args(bounds).output().expect("it runs");
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{text}\n{}", String::from_utf8_lossy(&ran.stderr));
    let mut client = Client::tcp(server.port());
    assert!(client.call("DBSIZE").integer() > 400);
    assert!(client.call("INFO commandstats").text().contains("cmdstat_cluster|slots:calls="));
}
