//! Functions for tests of `REPLICAOF`: start replication, wait for it, and compare replica and
//! primary.

use crate::effects::{difference, digest};
use crate::waiting::eventually;
use crate::{Reply, Server};

/// Arguments of a redis-server that is a primary. With them, a full sync starts without a delay,
/// and `PING`s are sent every second.
pub const PRIMARY: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];

/// Maximum number of times that the digests of two servers are compared. The servers count as
/// different if every comparison fails. One comparison is not enough, because a key may expire
/// between its two digests.
const DIGESTS_MAX: usize = 3;

/// Returns a field of `INFO`, or an empty string.
#[must_use]
pub fn info(server: &Server, section: &str, field: &str) -> String {
    let text = server.connect().call(&format!("INFO {section}")).text();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_default().to_owned()
}

/// Makes a server follow another one, and waits until the link is up.
///
/// # Panics
/// If the link isn't up in time.
#[track_caller]
pub fn follow(replica: &Server, primary: &Server) {
    let reply = replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    assert_eq!(reply, Reply::ok());
    wait_for_link(replica);
}

/// Waits until the link to the primary is up.
///
/// # Panics
/// If the link isn't up in time.
#[track_caller]
pub fn wait_for_link(replica: &Server) {
    eventually("the link is up", || info(replica, "replication", "master_link_status") == "up");
}

/// Waits until a replica has applied the primary's whole stream.
///
/// # Panics
/// If the replica hasn't applied everything in time.
#[track_caller]
pub fn wait_until_applied(replica: &Server, primary: &Server) {
    eventually("the replica has applied the stream", || {
        let applied = info(replica, "replication", "slave_repl_offset");
        applied == info(primary, "replication", "master_repl_offset")
            && info(replica, "replication", "master_link_status") == "up"
    });
}

/// Waits until a replica has applied all effects, and checks that its dataset then equals its
/// primary's. No client may write meanwhile.
///
/// # Panics
/// If the datasets differ, or the replica couldn't apply a command.
#[track_caller]
pub fn assert_same(replica: &Server, primary: &Server) {
    wait_until_applied(replica, primary);
    let is_same = (0..DIGESTS_MAX).any(|_| {
        let right = digest(primary);
        wait_until_applied(replica, primary);
        replica.connect().call("DEBUG DIGEST").text() == right
    });
    assert!(is_same, "{}\n{}", difference(primary, replica, &[]), replica.log());
    // An error reply means that a command wasn't applied.
    assert_eq!(info(replica, "stats", "unexpected_error_replies"), "0", "{}", replica.log());
}
