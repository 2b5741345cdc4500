//! Runs `pantala-bench load` against scripted servers. They delay replies, send them in pieces,
//! reply with errors or redirections, or close connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Maximum time of a run in these tests. A run normally takes at most a second.
const RUN_MAX: Duration = Duration::from_secs(60);

/// A scripted server's reply to one command, as the pieces to send. `None` closes the connection.
type Script = dyn Fn(&[String], &Node) -> Option<Vec<Vec<u8>>> + Send + Sync;

/// A scripted server with its own port. Its threads end with their connections.
struct Node {
    address: SocketAddr,
    /// Every command of every connection, in order of arrival.
    seen: Mutex<Vec<Vec<String>>>,
    /// Pause between two pieces of a reply.
    pause: Duration,
}

impl Node {
    fn start(pause: Duration, script: Arc<Script>) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let node = Arc::new(Self { address, seen: Mutex::default(), pause });
        let served = Arc::clone(&node);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (node, script) = (Arc::clone(&served), Arc::clone(&script));
                thread::spawn(move || node.serve(stream.unwrap(), &*script));
            }
        });
        node
    }

    fn serve(&self, mut stream: TcpStream, script: &Script) {
        stream.set_nodelay(true).unwrap();
        let (mut received, mut room) = (Vec::new(), [0; 4096]);
        loop {
            while let Some((words, len)) = command(&received) {
                received.drain(..len);
                self.seen.lock().unwrap().push(words.clone());
                let Some(pieces) = script(&words, self) else { return };
                for piece in pieces {
                    if stream.write_all(&piece).is_err() {
                        return;
                    }
                    thread::sleep(self.pause);
                }
            }
            match stream.read(&mut room) {
                Ok(0) | Err(_) => return,
                Ok(len) => received.extend_from_slice(&room[..len]),
            }
        }
    }

    fn port(&self) -> String {
        self.address.port().to_string()
    }

    fn count(&self, name: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|words| words[0] == name).count()
    }
}

/// Returns the first command in `bytes`, and its length.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut line = |kind: u8| -> Option<usize> {
        let end = at + bytes.get(at..)?.iter().position(|byte| *byte == b'\n')?;
        assert_eq!(bytes[at], kind, "no request: {}", bytes.escape_ascii());
        let number = std::str::from_utf8(&bytes[at + 1..end - 1]).unwrap().parse().unwrap();
        at = end + 1;
        if kind == b'$' {
            at += number + 2;
        }
        Some(number)
    };
    let count = line(b'*')?;
    let mut words = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..count {
        let len = line(b'$')?;
        ends.push(len);
    }
    if at > bytes.len() {
        return None;
    }
    // All bytes of the command have arrived, so a second pass reads the arguments.
    let mut rest = &bytes[..at];
    rest = &rest[rest.iter().position(|byte| *byte == b'\n').unwrap() + 1..];
    for len in ends {
        rest = &rest[rest.iter().position(|byte| *byte == b'\n').unwrap() + 1..];
        words.push(String::from_utf8_lossy(&rest[..len]).into_owned());
        rest = &rest[len + 2..];
    }
    Some((words, at))
}

fn whole(text: &str) -> Option<Vec<Vec<u8>>> {
    Some(vec![text.as_bytes().to_vec()])
}

/// Returns a command that drives `node` with one thread and writes the result to `json`.
fn load_command(node: &Node, json: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pantala-bench"));
    command.args(["load", "--port", &node.port(), "--threads", "1", "--json-out-file"]).arg(json).args(arguments);
    command
}

/// Drives `node`. Returns the result as JSON, and the output of the command.
fn load(node: &Node, arguments: &[&str]) -> (Value, Output) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let mut command = load_command(node, json.path(), arguments);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > RUN_MAX {
            let _ = child.kill();
            panic!("still running: {arguments:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    (serde_json::from_slice(&std::fs::read(json.path()).unwrap()).unwrap_or_default(), output)
}

#[test]
fn late_replies_arrive_byte_by_byte() {
    let script = |words: &[String], _: &Node| {
        let reply = if words[0] == "GET" { "$3\r\nabc\r\n" } else { "+OK\r\n" };
        Some(reply.bytes().map(|byte| vec![byte]).collect())
    };
    let node = Node::start(Duration::from_millis(1), Arc::new(script));
    let (result, output) = load(&node, &["--clients", "2", "--requests", "10", "--ratio", "1:1", "--pipeline", "3"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((&result["operations"], &result["errors"]), (&Value::from(20), &Value::from(0)));
    assert_eq!((node.count("GET"), node.count("SET")), (10, 10));
    assert_eq!(result["commands"][1]["hits"], 10);
    // The five bytes of a SET's reply are sent one by one, with pauses of 1 ms. In a pipeline of 3,
    // the reply also waits for the replies to earlier requests.
    assert!(result["latency"]["min_us"].as_f64().unwrap() >= 4_000.0, "{result:#}");
    assert_eq!(result["received_bytes"], 10 * 9 + 10 * 5);
}

#[test]
fn errors_do_not_count_as_operations() {
    let script = |words: &[String], node: &Node| match words[0].as_str() {
        "GET" if node.count("GET").is_multiple_of(2) => whole("-ERR no luck\r\n"),
        "GET" => whole("$-1\r\n"),
        _ => whole("+OK\r\n"),
    };
    let node = Node::start(Duration::ZERO, Arc::new(script));
    let (result, output) = load(&node, &["--clients", "1", "--requests", "20", "--ratio", "0:1"]);
    assert!(!output.status.success(), "error replies make it exit with 1");
    assert_eq!((&result["operations"], &result["errors"]), (&Value::from(10), &Value::from(10)));
    assert_eq!(result["error_texts"]["ERR no luck"], 10);
    assert_eq!((&result["commands"][0]["hits"], &result["commands"][0]["misses"]), (&Value::from(0), &Value::from(10)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("10 × ERR no luck"), "{output:?}");
}

#[test]
fn a_server_that_disconnects_or_never_replies() {
    let closes = |words: &[String], node: &Node| {
        if words[0] == "GET" && node.count("GET") > 5 { None } else { whole("$1\r\nx\r\n") }
    };
    let node = Node::start(Duration::ZERO, Arc::new(closes));
    let (result, output) = load(&node, &["--clients", "1", "--requests", "100", "--ratio", "0:1"]);
    assert!(!output.status.success());
    assert_eq!(
        (&result["operations"], &result["unanswered"], &result["connections_lost"]),
        (&5.into(), &1.into(), &1.into())
    );
    let silent = |_: &[String], _: &Node| Some(Vec::new());
    let node = Node::start(Duration::ZERO, Arc::new(silent));
    let (result, output) = load(&node, &["--clients", "2", "--requests", "9", "--stall-time", "1", "--pipeline", "4"]);
    assert!(!output.status.success());
    assert_eq!((&result["operations"], &result["unanswered"]), (&0.into(), &8.into()));
    assert!(result["error_texts"].to_string().contains("no reply for too long"), "{result:#}");
}

#[test]
fn latencies_at_a_rate_count_from_the_due_time() {
    // The first reply takes 300 ms. Operations that become due in this time are sent later, but
    // their latency counts from the due time.
    let script = |_: &[String], node: &Node| {
        if node.count("GET") == 1 {
            thread::sleep(Duration::from_millis(300));
        }
        whole("$1\r\nx\r\n")
    };
    let node = Node::start(Duration::ZERO, Arc::new(script));
    let (result, output) =
        load(&node, &["--clients", "1", "--requests", "60", "--ratio", "0:1", "--rate-limiting", "100"]);
    assert!(output.status.success(), "{output:?}");
    let at = |name: &str| result["latency"][name].as_f64().unwrap();
    assert!(at("max_us") >= 300_000.0, "{result:#}");
    // An operation is due every 10 ms. Therefore 30 of the 60 operations are due during the pause,
    // and they wait between 0 and 300 ms.
    assert!(at("p90_us") >= 150_000.0, "{result:#}");
    assert!(result["elapsed_s"].as_f64().unwrap() >= 0.59, "{result:#}");
}

/// Returns a reply to CLUSTER SLOTS. The lower half of the slots is at one node, and the upper half
/// is at another.
fn slots(lower: u16, upper: u16) -> String {
    format!(
        "*2\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$9\r\n127.0.0.1\r\n:{lower}\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{upper}\r\n"
    )
}

#[test]
fn moved_and_ask_redirects_are_followed() {
    let ports: Arc<Mutex<(u16, u16)>> = Arc::default();
    let known = Arc::clone(&ports);
    // The lower half of the slots has moved to the second node, except one slot, which the first
    // node redirects with ASK.
    let first = Node::start(
        Duration::ZERO,
        Arc::new(move |words: &[String], node: &Node| {
            let (lower, upper) = *known.lock().unwrap();
            match words[0].as_str() {
                "CLUSTER" => whole(&slots(lower, upper)),
                _ if node.count("GET") % 2 == 1 => whole(&format!("-MOVED 1 127.0.0.1:{upper}\r\n")),
                _ => whole(&format!("-ASK 2 127.0.0.1:{upper}\r\n")),
            }
        }),
    );
    let second = Node::start(
        Duration::ZERO,
        Arc::new(|words: &[String], _: &Node| whole(if words[0] == "GET" { "$1\r\nx\r\n" } else { "+OK\r\n" })),
    );
    *ports.lock().unwrap() = (first.address.port(), second.address.port());
    let (result, output) =
        load(&first, &["--clients", "1", "--requests", "100", "--ratio", "0:1", "--cluster-mode", "--pipeline", "2"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((&result["operations"], &result["errors"]), (&Value::from(100), &Value::from(0)));
    let redirections = result["redirections"].as_u64().unwrap();
    assert_eq!(first.count("GET") as u64, redirections);
    assert!(redirections > 10, "about half of the keys are in the lower half: {redirections}");
    // An ASKING precedes each request that ASK has redirected.
    assert_eq!(second.count("ASKING"), first.count("GET") / 2);
    let seen = second.seen.lock().unwrap();
    assert!(seen.iter().zip(seen.iter().skip(1)).all(|(words, next)| words[0] != "ASKING" || next[0] == "GET"));
    assert_eq!(seen.iter().filter(|words| words[0] == "GET").count(), 100);
}

#[test]
fn endless_redirects_are_abandoned() {
    let ports: Arc<Mutex<(u16, u16)>> = Arc::default();
    let script = |known: Arc<Mutex<(u16, u16)>>| {
        move |words: &[String], node: &Node| {
            let (lower, upper) = *known.lock().unwrap();
            let other = if node.address.port() == lower { upper } else { lower };
            match words[0].as_str() {
                "CLUSTER" => whole(&slots(lower, upper)),
                "ASKING" => whole("+OK\r\n"),
                // Every second redirection is an ASK.
                _ if other == lower => whole(&format!("-ASK 1 127.0.0.1:{other}\r\n")),
                _ => whole(&format!("-MOVED 1 127.0.0.1:{other}\r\n")),
            }
        }
    };
    let first = Node::start(Duration::ZERO, Arc::new(script(Arc::clone(&ports))));
    let second = Node::start(Duration::ZERO, Arc::new(script(Arc::clone(&ports))));
    *ports.lock().unwrap() = (first.address.port(), second.address.port());
    let (result, output) = load(&first, &["--clients", "1", "--requests", "3", "--ratio", "0:1", "--cluster-mode"]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!((&result["operations"], &result["errors"], &result["unanswered"]), (&0.into(), &3.into(), &0.into()));
    assert_eq!(result["redirections"], 3 * 16);
    assert_eq!(first.count("GET") + second.count("GET"), 3 * 17);
    assert!(result["error_texts"].to_string().contains("redirected more than 16 times"), "{result:#}");
}

#[test]
fn a_node_that_refuses_connections_loses_only_its_operations() {
    // This port is bound but has no listener.
    let closed = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    closed.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let closed_port = closed.local_addr().unwrap().as_socket().unwrap().port();
    for moved in [true, false] {
        let other: Arc<Mutex<u16>> = Arc::default();
        let known = Arc::clone(&other);
        // At first this node has all slots. It redirects the tenth request. If `moved` is true, the
        // redirection names the node that refuses connections. If it is false, the redirection
        // names a node that serves, and the new slot table assigns the upper half of the slots to
        // the refusing node.
        let first = Node::start(
            Duration::ZERO,
            Arc::new(move |words: &[String], node: &Node| {
                let (own, other) = (node.address.port(), *known.lock().unwrap());
                match words[0].as_str() {
                    "CLUSTER" if node.count("CLUSTER") == 1 => whole(&slots(own, own)),
                    "CLUSTER" => whole(&slots(own, closed_port)),
                    _ if node.count("GET") == 10 => whole(&format!("-MOVED 1 127.0.0.1:{other}\r\n")),
                    _ => whole("$1\r\nx\r\n"),
                }
            }),
        );
        let second = Node::start(Duration::ZERO, Arc::new(|_: &[String], _: &Node| whole("$1\r\nx\r\n")));
        *other.lock().unwrap() = if moved { closed_port } else { second.address.port() };
        let (result, output) =
            load(&first, &["--clients", "1", "--requests", "1000", "--ratio", "0:1", "--cluster-mode"]);
        assert!(!output.status.success(), "{moved}");
        assert!(result["operations"].as_u64().unwrap_or(0) >= 9, "{moved}: {result:#}");
        // The request to the refusing node gets no reply. If `moved` is false, the redirected
        // request also gets no reply, because it had not been sent again.
        let unanswered = if moved { 1 } else { 2 };
        let lost = (&result["connections_lost"], &result["unanswered"]);
        assert_eq!(lost, (&1.into(), &unanswered.into()), "{moved}: {result:#}");
        assert!(result["error_texts"].to_string().contains("no connection to 127.0.0.1"), "{moved}: {result:#}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("operations in "), "{moved}: {output:?}");
    }
}

#[test]
fn cluster_shards_replaces_an_unknown_cluster_slots() {
    let ports: Arc<Mutex<(u16, u16)>> = Arc::default();
    let known = Arc::clone(&ports);
    let shard = |first: u16, last: u16, port: u16| {
        let nodes = format!(
            "*1\r\n*6\r\n$4\r\nport\r\n:{port}\r\n$2\r\nip\r\n$9\r\n127.0.0.1\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
        );
        format!("*4\r\n$5\r\nslots\r\n*2\r\n:{first}\r\n:{last}\r\n$5\r\nnodes\r\n{nodes}")
    };
    let serve = |words: &[String], shards: String| match (words[0].as_str(), words.get(1).map(String::as_str)) {
        ("CLUSTER", Some("SHARDS")) => whole(&shards),
        ("CLUSTER", _) => whole("-ERR unknown subcommand 'SLOTS'\r\n"),
        _ => whole("$1\r\nx\r\n"),
    };
    let first = Node::start(
        Duration::ZERO,
        Arc::new(move |words: &[String], _: &Node| {
            let (lower, upper) = *known.lock().unwrap();
            serve(words, format!("*2\r\n{}{}", shard(0, 8191, lower), shard(8192, 16383, upper)))
        }),
    );
    let second = Node::start(Duration::ZERO, Arc::new(move |words: &[String], _: &Node| serve(words, String::new())));
    *ports.lock().unwrap() = (first.address.port(), second.address.port());
    let (result, output) = load(&first, &["--clients", "1", "--requests", "200", "--ratio", "0:1", "--cluster-mode"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((&result["operations"], &result["redirections"]), (&200.into(), &0.into()));
    let counts = (first.count("GET"), second.count("GET"));
    assert!(
        counts.0 + counts.1 == 200 && counts.0 > 50 && counts.1 > 50,
        "both halves of the slots get requests: {counts:?}"
    );
}

#[test]
fn an_interruption_ends_a_run_with_its_result_and_an_error() {
    for signal in [Signal::INT, Signal::TERM] {
        let node = Node::start(Duration::ZERO, Arc::new(|_: &[String], _: &Node| whole("$1\r\nx\r\n")));
        let json = tempfile::NamedTempFile::new().unwrap();
        let arguments = ["--clients", "1", "--test-time", "60", "--ratio", "0:1"];
        let mut command = load_command(&node, json.path(), &arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begin = Instant::now();
        while node.count("GET") < 10 {
            assert!(begin.elapsed() < Duration::from_secs(30) && child.try_wait().unwrap().is_none(), "{signal:?}");
            thread::sleep(Duration::from_millis(5));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(40), "{signal:?}: it continued");
        assert_eq!(output.status.code(), Some(1), "{signal:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted before the end"), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("operations in "), "{output:?}");
        let result: Value = serde_json::from_slice(&std::fs::read(json.path()).unwrap()).unwrap();
        assert_eq!(
            (&result["interrupted"], &result["errors"], &result["unanswered"]),
            (&true.into(), &0.into(), &0.into())
        );
        assert!(result["operations"].as_u64().unwrap() >= 10, "{result:#}");
    }
}

#[test]
fn results_record_their_parameters() {
    let node = Node::start(Duration::ZERO, Arc::new(|_: &[String], _: &Node| whole("+OK\r\n")));
    let hdr = tempfile::NamedTempFile::new().unwrap();
    let arguments =
        ["--clients", "2", "--requests", "5", "--ratio", "1:0", "--key-pattern", "Z:R", "--zipf-exp", "1.5"];
    let path = hdr.path().display().to_string();
    let more = ["-a", "user:secret", "--select-db", "3", "--hdr-file", path.as_str()];
    let (result, output) = load(&node, &[arguments.as_slice(), &more].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(!result.to_string().contains("secret"), "{result:#}");
    let words: Vec<&str> = result["command"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    assert!(words.windows(4).any(|words| words == ["--zipf-exp", "1.5", "-a", "***"]), "{words:?}");
    let load = &result["load"];
    assert_eq!((&load["clients"], &load["requests_of_each"], &load["database"]), (&2.into(), &5.into(), &3.into()));
    assert_eq!((&load["target"], &load["seed"]), (&node.address.to_string().into(), &12345.into()));
    let set = &load["commands"][0];
    assert_eq!((&set["key_pattern"], &set["words"][0], &set["ratio"]), (&"Z".into(), &"SET".into(), &1.into()));
    let text = std::fs::read_to_string(hdr.path()).unwrap();
    assert!(text.contains("Total count    =           10]\n#[Buckets = "), "{text}");
}
