//! Drives `pantala-bench load` against servers that follow a script: late, in pieces, with errors, redirected, gone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// What a scripted server does with one command: bytes to send, in these pieces; `None` closes the connection.
type Script = dyn Fn(&[String], &Node) -> Option<Vec<Vec<u8>>> + Send + Sync;

/// A server on a port of its own. Its threads end with their connections.
struct Node {
    address: SocketAddr,
    /// Every command of every connection, in the order of their arrival.
    seen: Mutex<Vec<Vec<String>>>,
    /// Between two pieces.
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

/// The first command in `bytes`, and its length.
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
    // Again, now that all is there: the arguments themselves.
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

/// Runs the generator against `node`. The result as JSON, and the output.
fn load(node: &Node, arguments: &[&str]) -> (Value, Output) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pantala-bench"))
        .args(["load", "--port", &node.port(), "--threads", "1", "--json-out-file"])
        .arg(json.path())
        .args(arguments)
        .output()
        .unwrap();
    (serde_json::from_slice(&std::fs::read(json.path()).unwrap()).unwrap_or_default(), output)
}

#[test]
fn late_answers_in_pieces_of_a_byte() {
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
    // A SET's answer takes five pauses; at a pipeline of 3 it waits for others', too.
    assert!(result["latency"]["min_us"].as_f64().unwrap() >= 4_000.0, "{result:#}");
    assert_eq!(result["received_bytes"], 10 * 9 + 10 * 5);
}

#[test]
fn errors_are_no_operations() {
    let script = |words: &[String], node: &Node| match words[0].as_str() {
        "GET" if node.count("GET").is_multiple_of(2) => whole("-ERR no luck\r\n"),
        "GET" => whole("$-1\r\n"),
        _ => whole("+OK\r\n"),
    };
    let node = Node::start(Duration::ZERO, Arc::new(script));
    let (result, output) = load(&node, &["--clients", "1", "--requests", "20", "--ratio", "0:1"]);
    assert!(!output.status.success(), "error replies end it with 1");
    assert_eq!((&result["operations"], &result["errors"]), (&Value::from(10), &Value::from(10)));
    assert_eq!(result["error_texts"]["ERR no luck"], 10);
    assert_eq!((&result["commands"][0]["hits"], &result["commands"][0]["misses"]), (&Value::from(0), &Value::from(10)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("10 × ERR no luck"), "{output:?}");
}

#[test]
fn a_server_that_goes_or_never_answers() {
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
    assert!(result["error_texts"].to_string().contains("no answer for too long"), "{result:#}");
}

#[test]
fn a_rate_counts_from_when_an_operation_was_due() {
    // The first answer takes 300 ms; what was due meanwhile has waited, though it was sent late.
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
    // One is due every 10 ms: 30 of 60 within the pause, and they waited evenly from 0 to 300 ms.
    assert!(at("p90_us") >= 150_000.0, "{result:#}");
    assert!(result["elapsed_s"].as_f64().unwrap() >= 0.59, "{result:#}");
}

/// CLUSTER SLOTS: the lower half at one node, the upper half at the other.
fn slots(lower: u16, upper: u16) -> String {
    format!(
        "*2\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$9\r\n127.0.0.1\r\n:{lower}\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{upper}\r\n"
    )
}

#[test]
fn moved_and_ask_are_followed() {
    let ports: Arc<Mutex<(u16, u16)>> = Arc::default();
    let known = Arc::clone(&ports);
    // The lower half has moved to the second node, but for a slot that the first says to ASK the second for.
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
    // One ASKING before each that was to be asked, immediately.
    assert_eq!(second.count("ASKING"), first.count("GET") / 2);
    let seen = second.seen.lock().unwrap();
    assert!(seen.iter().zip(seen.iter().skip(1)).all(|(words, next)| words[0] != "ASKING" || next[0] == "GET"));
    assert_eq!(seen.iter().filter(|words| words[0] == "GET").count(), 100);
}
