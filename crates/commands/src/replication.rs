//! The commands of replication. They call the server's [`Replicator`], which owns the replicas.
//!
//! [`Replicator`]: pantala_engine::client::Replicator

use pantala_base::number::parse_i64;
use pantala_engine::client::{Acknowledged, LocalContext};
use pantala_resp::{Args, Reply};

use crate::arguments::integer;

/// The error of `WAIT` on a replica.
const WAIT_ON_REPLICA: &str = "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.";

/// `SYNC`: sends a snapshot and then the replication stream.
pub fn sync(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.replication().sync(context.session, None, reply);
}

/// `PSYNC replicationid offset`: like [`sync`], or sends only the stream from an offset.
pub fn psync(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let args: Vec<&[u8]> = args.iter().skip(1).collect();
    context.host.replication().sync(context.session, Some(&args), reply);
}

/// `REPLCONF option value ...`: receives a replica's properties and acknowledgements.
pub fn replconf(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let options: Vec<&[u8]> = args.iter().skip(1).collect();
    context.host.replication().configure(context.session, &options, reply);
}

/// `ROLE`.
pub fn role(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.replication().role(reply);
}

/// `WAIT numreplicas timeout`: blocks until that many replicas have acknowledged the stream up to
/// the connection's last command. In a transaction it does not block.
pub fn wait(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if context.keyspace.tuning.is_replica() {
        return reply.error(WAIT_ON_REPLICA);
    }
    let Some(replicas) = integer(args.at(1), reply) else { return };
    let Some(timeout_ms) = parse_i64(args.at(2)) else {
        return reply.error("ERR timeout is not an integer or out of range");
    };
    if timeout_ms < 0 {
        return reply.error("ERR timeout is negative");
    }
    let stamp = context.session.stream_stamp;
    let acked = context.host.replication().acknowledged(stamp);
    let is_enough = replicas <= 0 || acked.is_some_and(|acked| acked as i64 >= replicas);
    if is_enough || context.session.in_exec {
        return reply.integer(acked.unwrap_or(0) as i64);
    }
    context.session.awaits = Some(Acknowledged { replicas: replicas as u64, stamp, timeout_ms });
}
