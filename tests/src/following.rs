//! Servers that follow others: how far they have come, and whether they hold the same.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use crate::effects::{difference, digest};
use crate::waiting::eventually;
use crate::{Reply, Server};

/// Arguments of a redis-server that is followed: a snapshot starts at once.
pub const PRIMARY: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

/// How often two servers' digests are compared before they count as different.
const DIGESTS_MAX: usize = 3;

/// Returns a field of `INFO`, or an empty text.
#[must_use]
pub fn info(server: &Server, section: &str, field: &str) -> String {
    let text = server.connect().call(&format!("INFO {section}")).text();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().to_owned()
}

/// Makes a server follow another one, and waits for the link.
///
/// # Panics
/// If there is none in time.
#[track_caller]
pub fn follow(replica: &Server, primary: &Server) {
    let reply = replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    assert_eq!(reply, Reply::ok());
    wait_for_link(replica);
}

/// Waits until the link to the primary is up.
///
/// # Panics
/// If it is not in time.
#[track_caller]
pub fn wait_for_link(replica: &Server) {
    eventually("the link is up", || info(replica, "replication", "master_link_status") == "up");
}

/// Waits until a replica has applied all that its primary has sent.
///
/// # Panics
/// If it has not in time.
#[track_caller]
pub fn wait_until_applied(replica: &Server, primary: &Server) {
    eventually("the replica has applied the stream", || {
        let applied = info(replica, "replication", "slave_repl_offset");
        applied == info(primary, "replication", "master_repl_offset")
            && info(replica, "replication", "master_link_status") == "up"
    });
}

/// Checks that a replica that has caught up holds what its primary holds. No client may write.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn assert_same(replica: &Server, primary: &Server) {
    wait_until_applied(replica, primary);
    let is_same = (0..DIGESTS_MAX).any(|_| {
        let right = digest(primary);
        wait_until_applied(replica, primary);
        replica.connect().call("DEBUG DIGEST").text() == right
    });
    assert!(is_same, "{}\n{}", difference(primary, replica, &[]), replica.log());
    // An error would be a command that was not applied.
    assert_eq!(info(replica, "stats", "unexpected_error_replies"), "0", "{}", replica.log());
}

/// A primary that answers as a test says.
pub struct FakePrimary {
    port: u16,
    thread: JoinHandle<Vec<String>>,
}

impl FakePrimary {
    /// Accepts one connection after the other, and answers each with these bytes after the
    /// handshake. `until` ends it, with what has been received.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start(answers: Vec<Vec<u8>>) -> FakePrimary {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            for answer in answers {
                let Ok((mut socket, _)) = listener.accept() else { break };
                let mut received = String::new();
                let mut chunk = [0; 4096];
                while let Ok(len @ 1..) = socket.read(&mut chunk) {
                    let part = String::from_utf8_lossy(&chunk[..len]).into_owned();
                    received += &part;
                    // One reply to each command so far: `*` starts one, and nothing else has it.
                    let commands = part.matches('*').count();
                    let is_last = received.contains("PSYNC");
                    let replies = "+OK\r\n".repeat(commands - usize::from(is_last));
                    if socket.write_all(replies.as_bytes()).is_err() {
                        break;
                    }
                    if is_last {
                        // The replica may close before it has read everything.
                        let _ = socket.write_all(&answer);
                        let _ = socket.shutdown(std::net::Shutdown::Write);
                        let _ = socket.read_to_end(&mut Vec::new());
                        break;
                    }
                }
                all.push(received);
            }
            all
        });
        FakePrimary { port, thread }
    }

    /// Returns its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for its last connection. Returns what was received on each.
    ///
    /// # Panics
    /// If its thread has panicked.
    #[must_use]
    pub fn finish(self) -> Vec<String> {
        self.thread.join().expect("the fake primary does not panic")
    }
}
