//! Runs the real floor responder on both event loops, io_uring and epoll.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

struct Floor {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
    port: u16,
}

impl Floor {
    /// Starts a floor responder on a free port. If another process takes the port first, retries
    /// with another port.
    fn start(backend: &str) -> Self {
        const TRIES: usize = 10;
        (0..TRIES).find_map(|_| Self::try_start(backend)).expect("a free port")
    }

    fn try_start(backend: &str) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut process = Command::new(env!("CARGO_BIN_EXE_pantala-bench"))
            .args(["floor", "--reply-size", "5", "--threads", "2"])
            .args(["--io-backend", backend, "--port", &port.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        if line.is_empty() {
            assert!(!process.wait().unwrap().success());
            return None;
        }
        assert!(line.contains(backend), "{line}");
        Some(Floor { process, output, port })
    }

    fn terminate(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.process.wait().unwrap().success());
        rest
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        // Ends the process if the test failed before `terminate`.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn answers_and_reports(backend: &str) {
    let floor = Floor::start(backend);
    let client = redis::Client::open(("127.0.0.1", floor.port)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let pong: String = redis::cmd("PING").query(&mut connection).unwrap();
    assert_eq!(pong, "PONG");
    let stored: String = redis::cmd("SET").arg("k").arg(vec![b'v'; 100_000]).query(&mut connection).unwrap();
    assert_eq!(stored, "OK");
    let mut pipeline = redis::pipe();
    for _ in 0..1000 {
        pipeline.cmd("GET").arg("k");
    }
    let values: Vec<String> = pipeline.query(&mut connection).unwrap();
    assert_eq!(values, vec!["xxxxx"; 1000]);
    let report = floor.terminate();
    let commands: u64 = report.split(' ').next().unwrap().parse().unwrap();
    assert!(commands >= 1002, "{report}");
    assert!(report.contains("us of CPU per command"), "{report}");
}

#[test]
fn answers_and_reports_on_epoll() {
    answers_and_reports("epoll");
}

#[test]
fn answers_and_reports_on_io_uring() {
    answers_and_reports("io_uring");
}
