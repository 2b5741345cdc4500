//! Forms a Redis cluster of running processes. The slots are divided evenly, and every node knows
//! all other nodes.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use pantala_base::limits::SLOTS;
use pantala_resp::value::Value;

use super::peers::{READY_CHECK, check_interrupted};
use crate::load::control::{Control, Login, Target};

/// Maximum time until the nodes agree on the cluster's state.
const AGREED_MAX: Duration = Duration::from_secs(120);

/// Options of every node. The node timeout (in milliseconds) is short, so that nodes gossip often
/// and soon discover each other.
pub(super) const OPTIONS: &[&str] =
    &["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "5000"];
/// Node timeout after the nodes agree, in milliseconds. It is long, because the nodes are suspended
/// while other peers are measured, and a suspended node must not count as failed. A long timeout
/// also makes the nodes gossip less, which favours the cluster in a comparison.
const NODE_TIMEOUT_MS: &str = "3600000";

/// Forms one cluster of the nodes at `addresses`. Waits until every node reports
/// `cluster_state:ok`.
pub(super) fn form(addresses: &[SocketAddr], stop: &AtomicBool) -> io::Result<()> {
    let mut nodes = Vec::new();
    for address in addresses {
        nodes.push(Control::open(&Target::Tcp(*address), &Login::default())?);
    }
    for (index, node) in nodes.iter_mut().enumerate() {
        let (first, last) = slots_of(index, addresses.len());
        node.order(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
        // Like redis-cli, assigns distinct epochs, so that the nodes don't have to resolve
        // conflicts between equal epochs.
        node.order(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
    }
    for address in &addresses[1..] {
        nodes[0].order(&["CLUSTER", "MEET", &address.ip().to_string(), &address.port().to_string()])?;
    }
    let begin = Instant::now();
    for (node, address) in nodes.iter_mut().zip(addresses) {
        loop {
            check_interrupted(stop)?;
            let info = info(node)?;
            if is_agreed(&info, addresses.len()) {
                break;
            }
            if begin.elapsed() > AGREED_MAX {
                let state = info.lines().take(7).collect::<Vec<_>>().join(" ");
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the cluster doesn't agree after {} s; {address} says {state}", AGREED_MAX.as_secs()),
                ));
            }
            thread::sleep(READY_CHECK);
        }
    }
    for node in &mut nodes {
        node.order(&["CONFIG", "SET", "cluster-node-timeout", NODE_TIMEOUT_MS])?;
    }
    Ok(())
}

fn info(node: &mut Control) -> io::Result<String> {
    match node.order(&["CLUSTER", "INFO"])? {
        Value::Bulk(text) => Ok(String::from_utf8_lossy(&text).into_owned()),
        _ => Err(io::Error::other("the reply to CLUSTER INFO is not a string")),
    }
}

/// Returns whether a node considers all slots served and knows that the cluster has `nodes` nodes.
fn is_agreed(info: &str, nodes: usize) -> bool {
    let says = |line: &str| info.lines().any(|other| other == line);
    says("cluster_state:ok")
        && says(&format!("cluster_slots_ok:{SLOTS}"))
        && says(&format!("cluster_known_nodes:{nodes}"))
        && says(&format!("cluster_size:{nodes}"))
}

/// Returns the first and last slot of the node `index` in a cluster of `nodes` nodes.
fn slots_of(index: usize, nodes: usize) -> (usize, usize) {
    (index * SLOTS / nodes, (index + 1) * SLOTS / nodes - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_shared_out() {
        for nodes in [1, 2, 3, 40, 1024] {
            let mut next = 0;
            for index in 0..nodes {
                let (first, last) = slots_of(index, nodes);
                assert!(first == next && last >= first, "{index} of {nodes}");
                next = last + 1;
            }
            assert_eq!(next, SLOTS);
        }
    }

    #[test]
    fn all_nodes_must_agree() {
        let info = "cluster_state:ok\r\ncluster_slots_ok:16384\r\ncluster_known_nodes:40\r\ncluster_size:40\r\n";
        assert!(is_agreed(info, 40) && !is_agreed(info, 41) && !is_agreed(&info.replace("ok", "fail"), 40));
    }
}
