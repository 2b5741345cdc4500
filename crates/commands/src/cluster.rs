//! `CLUSTER` and related commands: the replies of a cluster with a single node, which owns all
//! slots.
//!
//! There is no cluster bus yet, so there are no other nodes. No index maps slots to keys:
//! `COUNTKEYSINSLOT` and `GETKEYSINSLOT` scan the shard of the slot.

use pantala_base::key_slot;
use pantala_base::limits::SLOTS;
use pantala_base::number::parse_i64;
use pantala_engine::access::{Access, SessionView};
use pantala_engine::client::{ClusterNode, LocalContext, PreferredEndpoint};
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, integer};
use crate::help;

/// The error of `CLUSTER` and related commands if cluster mode is off.
const DISABLED: &str = "ERR This instance has cluster support disabled";

/// Returns this node. Replies with an error and returns `None` if cluster mode is off.
fn node(context: &LocalContext<'_>, reply: &mut Reply<'_>) -> Option<ClusterNode> {
    if !context.keyspace.is_cluster() {
        reply.error(DISABLED);
        return None;
    }
    Some(context.host.cluster_node())
}

/// Returns whether the third argument is this node's ID. If it is another ID, or if cluster mode is
/// off, replies with an error and returns `false`.
fn is_own_id(context: &LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) -> bool {
    let Some(node) = node(context, reply) else { return false };
    let is_known = args.at(2) == node.id.as_bytes();
    if !is_known {
        reply.error_bytes(&[b"ERR Unknown node ", c_string(args.at(2))].concat());
    }
    is_known
}

/// `CLUSTER COUNT-FAILURE-REPORTS node-id`: always 0, because there is no other node that could
/// send a report.
pub fn count_failure_reports(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if is_own_id(context, args, reply) {
        reply.integer(0);
    }
}

/// `CLUSTER REPLICAS node-id` and `CLUSTER SLAVES node-id`: always an empty list, because there is
/// no other node that could be a replica.
pub fn replicas(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if is_own_id(context, args, reply) {
        reply.array(0);
    }
}

/// `READONLY`, `READWRITE` and `ASKING` do nothing, because no node has replicas and no slot
/// migrates. `CLUSTER SAVECONFIG` does nothing, because there is no configuration file: each start
/// chooses a new node ID.
pub fn acknowledge(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if node(context, reply).is_some() {
        reply.ok();
    }
}

/// `CLUSTER INFO`.
pub fn info(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if node(context, reply).is_none() {
        return;
    }
    let fields: [(&str, &str); 12] = [
        ("cluster_state", "ok"),
        ("cluster_slots_assigned", "16384"),
        ("cluster_slots_ok", "16384"),
        ("cluster_slots_pfail", "0"),
        ("cluster_slots_fail", "0"),
        ("cluster_known_nodes", "1"),
        ("cluster_size", "1"),
        ("cluster_current_epoch", "0"),
        ("cluster_my_epoch", "0"),
        ("cluster_stats_messages_sent", "0"),
        ("cluster_stats_messages_received", "0"),
        ("total_cluster_links_buffer_limit_exceeded", "0"),
    ];
    let text: String = fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
    reply.verbatim("txt", text.as_bytes());
}

/// `CLUSTER MYID`.
pub fn myid(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if let Some(node) = node(context, reply) {
        reply.bulk(node.id.as_bytes());
    }
}

/// `CLUSTER NODES`.
pub fn nodes(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(ClusterNode { id, ip, hostname, port, bus_port, .. }) = node(context, reply) else { return };
    let hostname = if hostname.is_empty() { hostname } else { format!(",{hostname}") };
    let last = SLOTS - 1;
    let line = format!("{id} {ip}:{port}@{bus_port}{hostname} myself,master - 0 0 0 connected 0-{last}\n");
    reply.verbatim("txt", line.as_bytes());
}

/// Replies with the address that clients should connect to.
fn endpoint(node: &ClusterNode, reply: &mut Reply<'_>) {
    match node.endpoint {
        PreferredEndpoint::Ip => reply.bulk(node.ip.as_bytes()),
        PreferredEndpoint::Hostname if node.hostname.is_empty() => reply.bulk(b"?"),
        PreferredEndpoint::Hostname => reply.bulk(node.hostname.as_bytes()),
        PreferredEndpoint::Unknown => reply.null(),
    }
}

/// `CLUSTER SLOTS`.
pub fn slots(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(node) = node(context, reply) else { return };
    reply.array(1);
    reply.array(3);
    reply.integer(0);
    reply.integer(SLOTS as i64 - 1);
    reply.array(4);
    endpoint(&node, reply);
    reply.integer(i64::from(node.port));
    reply.bulk(node.id.as_bytes());
    // Lists the node's IP address and host name, except the one already sent as the endpoint.
    let ip = (node.endpoint != PreferredEndpoint::Ip).then_some(("ip", node.ip.as_str()));
    let is_named = node.endpoint != PreferredEndpoint::Hostname && !node.hostname.is_empty();
    let hostname = is_named.then_some(("hostname", node.hostname.as_str()));
    let others = || ip.into_iter().chain(hostname);
    reply.map(others().count());
    for (name, value) in others() {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}

/// `CLUSTER SHARDS`.
pub fn shards(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(node) = node(context, reply) else { return };
    reply.array(1);
    reply.map(2);
    reply.bulk(b"slots");
    reply.array(2);
    reply.integer(0);
    reply.integer(SLOTS as i64 - 1);
    reply.bulk(b"nodes");
    reply.array(1);
    reply.map(7 + usize::from(!node.hostname.is_empty()));
    reply.bulk(b"id");
    reply.bulk(node.id.as_bytes());
    reply.bulk(b"port");
    reply.integer(i64::from(node.port));
    reply.bulk(b"ip");
    reply.bulk(node.ip.as_bytes());
    reply.bulk(b"endpoint");
    // As in Redis 7.0, the endpoint is empty where `CLUSTER SLOTS` replies null.
    match node.endpoint {
        PreferredEndpoint::Unknown => reply.bulk(b""),
        _ => endpoint(&node, reply),
    }
    if !node.hostname.is_empty() {
        reply.bulk(b"hostname");
        reply.bulk(node.hostname.as_bytes());
    }
    reply.bulk(b"role");
    reply.bulk(b"master");
    reply.bulk(b"replication-offset");
    reply.integer(0);
    reply.bulk(b"health");
    reply.bulk(b"online");
}

/// `CLUSTER LINKS`: the links to other nodes, of which there are none.
pub fn links(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if node(context, reply).is_some() {
        reply.array(0);
    }
}

/// `CLUSTER KEYSLOT key`.
pub fn keyslot(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if node(context, reply).is_some() {
        reply.integer(i64::from(key_slot(args.at(2))));
    }
}

/// Parses a slot.
fn slot_of(argument: &[u8]) -> Option<u16> {
    parse_i64(argument).and_then(|slot| u16::try_from(slot).ok()).filter(|&slot| usize::from(slot) < SLOTS)
}

/// Appends the route of `COUNTKEYSINSLOT` and `GETKEYSINSLOT`: the shard of the slot, or none if
/// the slot is invalid.
pub fn slot_route(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    shards.extend(slot_of(args.at(2)).map(|slot| keyspace.shard_of_slot(slot)));
}

/// Calls `visit` with each key of a slot, until `visit` returns `false`.
fn walk(access: &mut Access<'_>, slot: u16, visit: &mut dyn FnMut(&[u8]) -> bool) {
    const BUCKETS_PER_STEP: usize = 64;
    let (shard, selected) = (access.keyspace().shard_of_slot(slot), access.session().db);
    let db = access.db_in(selected, shard);
    let (mut cursor, mut more) = (0, true);
    loop {
        cursor = db.scan(cursor, BUCKETS_PER_STEP, &mut |entry| {
            more = more && (key_slot(entry.key()) != slot || visit(entry.key()));
        });
        if cursor == 0 || !more {
            return;
        }
    }
}

/// `CLUSTER COUNTKEYSINSLOT slot`.
pub fn countkeysinslot(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if !access.keyspace().is_cluster() {
        return reply.error(DISABLED);
    }
    if integer(args.at(2), reply).is_none() {
        return;
    }
    let Some(slot) = slot_of(args.at(2)) else { return reply.error("ERR Invalid slot") };
    let mut keys = 0;
    walk(access, slot, &mut |_| {
        keys += 1;
        true
    });
    reply.integer(keys);
}

/// `CLUSTER GETKEYSINSLOT slot count`.
pub fn getkeysinslot(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if !access.keyspace().is_cluster() {
        return reply.error(DISABLED);
    }
    if integer(args.at(2), reply).is_none() {
        return;
    }
    let Some(count) = integer(args.at(3), reply) else { return };
    let (Some(slot), Ok(count)) = (slot_of(args.at(2)), usize::try_from(count)) else {
        return reply.error("ERR Invalid slot or number of keys");
    };
    let array = reply.defer_array();
    let mut keys = 0;
    if count > 0 {
        walk(access, slot, &mut |key| {
            reply.bulk(key);
            keys += 1;
            keys < count
        });
    }
    reply.patch(array, keys);
}

/// `CLUSTER HELP`.
pub fn help(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if node(context, reply).is_none() {
        return;
    }
    let lines = [
        "COUNT-FAILURE-REPORTS <node-id>",
        "    Return the number of nodes that report a node as failing.",
        "COUNTKEYSINSLOT <slot>",
        "    Return the number of keys in a slot.",
        "GETKEYSINSLOT <slot> <count>",
        "    Return up to <count> keys of a slot.",
        "INFO",
        "    Return the state of the cluster.",
        "KEYSLOT <key>",
        "    Return the slot of a key.",
        "LINKS",
        "    Return the links to other nodes.",
        "MYID",
        "    Return the ID of this node.",
        "NODES",
        "    Return the nodes, one per line.",
        "REPLICAS <node-id>",
        "    Return the replicas of a node.",
        "SAVECONFIG",
        "    Save the state of the cluster. There is nothing to save yet.",
        "SHARDS",
        "    Return the slot ranges and the nodes that serve them.",
        "SLOTS",
        "    Return the same in the format for older clients.",
    ];
    help::write(reply, args, &lines);
}

#[cfg(test)]
mod tests;
