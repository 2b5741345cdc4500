//! The commands of replication. They call the server's [`Replicator`], which manages the replicas.
//!
//! [`Replicator`]: pantala_engine::client::Replicator

use pantala_base::number::parse_i64;
use pantala_engine::client::{Acknowledged, Awaited, LocalContext};
use pantala_resp::{Args, Reply};

use crate::arguments::integer;

/// The error of `WAIT` on a replica.
const WAIT_ON_REPLICA: &str = "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to be writable (which is not the default) writes to replicas are just local and are not propagated.";

/// The error of `WAITAOF` on a replica.
const WAITAOF_ON_REPLICA: &str = "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just local and are not propagated.";

/// The error of a `WAITAOF` that waits for this server's append-only file while it is disabled.
pub const WAITAOF_NOT_APPENDING: &str = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";

/// `SYNC`: starts a full sync, which sends a snapshot and then the replication stream.
pub fn sync(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.replication().sync(context.session, None, reply);
}

/// `PSYNC replicationid offset`: sends the replication stream from `offset` if the server still has
/// this part of the stream (a partial resync). Otherwise does the same as [`sync`].
pub fn psync(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let args: Vec<&[u8]> = args.iter().skip(1).collect();
    context.host.replication().sync(context.session, Some(&args), reply);
}

/// `REPLCONF option value ...`: a replica sends this command to report its properties and to
/// acknowledge the replication stream.
pub fn replconf(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let options: Vec<&[u8]> = args.iter().skip(1).collect();
    context.host.replication().configure(context.session, &options, reply);
}

/// `ROLE`.
pub fn role(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.host.replication().role(reply);
}

/// `WAIT numreplicas timeout`: blocks until that many replicas have acknowledged the replication
/// stream up to the connection's last command. Doesn't block in a transaction.
pub fn wait(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if context.keyspace.tuning.is_replica() {
        return reply.error(WAIT_ON_REPLICA);
    }
    let Some(replicas) = integer(args.at(1), reply) else { return };
    let Some(timeout_ms) = timeout_of(args.at(2), reply) else { return };
    let stamp = context.session.stream_stamp;
    let acked = context.host.replication().acknowledged(stamp);
    let is_enough = replicas <= 0 || acked.is_some_and(|acked| acked as i64 >= replicas);
    if is_enough || context.session.in_exec {
        return reply.integer(acked.unwrap_or(0) as i64);
    }
    let durability = context.session.durability;
    let wait = Acknowledged { replicas: replicas as u64, local: None, stamp, timeout_ms, durability };
    context.session.awaits = Some(Awaited::Acknowledged(wait));
}

/// `WAITAOF numlocal numreplicas timeout`, from Redis 7.2: blocks until `numreplicas` replicas have
/// the effects of the connection's commands on disk. If `numlocal` is 1, this server must also have
/// them on disk.
pub fn waitaof(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(local) = integer(args.at(1), reply) else { return };
    if !(0..=1).contains(&local) {
        return reply.error("ERR value is out of range, value must between 0 and 1");
    }
    let Some(replicas) = integer(args.at(2), reply) else { return };
    if replicas < 0 {
        return reply.error("ERR value is out of range, must be positive");
    }
    let Some(timeout_ms) = timeout_of(args.at(3), reply) else { return };
    if context.keyspace.tuning.is_replica() {
        return reply.error(WAITAOF_ON_REPLICA);
    }
    let stamp = context.session.stream_stamp;
    let durability = context.session.durability;
    let on_disk = context.host.replication().on_disk(stamp, durability);
    if local == 1 && !on_disk.is_appending {
        return reply.error(WAITAOF_NOT_APPENDING);
    }
    let has_replicas = replicas == 0 || on_disk.replicas.is_some_and(|count| count as i64 >= replicas);
    // With `local`, a sync must confirm the effects: replies to earlier commands may have been sent
    // before replies waited for syncs.
    if (has_replicas && local == 0) || context.session.in_exec {
        reply.array(2);
        reply.integer(i64::from(on_disk.local));
        return reply.integer(on_disk.replicas.unwrap_or(0) as i64);
    }
    let (replicas, local) = (replicas as u64, Some(local == 1));
    context.session.awaits =
        Some(Awaited::Acknowledged(Acknowledged { replicas, local, stamp, timeout_ms, durability }));
}

/// Parses the timeout of `WAIT` and `WAITAOF` in ms. Replies with an error and returns `None` if it
/// is invalid.
fn timeout_of(text: &[u8], reply: &mut Reply<'_>) -> Option<i64> {
    match parse_i64(text) {
        None => reply.error("ERR timeout is not an integer or out of range"),
        Some(timeout_ms) if timeout_ms < 0 => reply.error("ERR timeout is negative"),
        Some(timeout_ms) => return Some(timeout_ms),
    }
    None
}
