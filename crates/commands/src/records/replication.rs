//! The records of the commands of replication.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler};

use super::{acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[PSYNC, REPLCONF, ROLE, SYNC, WAIT, WAITAOF];

/// Common fields of these commands.
const REPLICATION: Command = Command { group: "server", ..Command::BLANK };

pub(crate) const PSYNC: Command = Command {
    name: "psync",
    full_name: "psync",
    summary: "Sends the stream of changes from an offset on, or after a snapshot",
    since: "2.8.0",
    arity: -3,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING, NO_MULTI],
    arguments: &[Argument::string("replicationid"), Argument::integer("offset")],
    handler: Handler::Local(crate::replication::psync),
    ..REPLICATION
};

pub(crate) const REPLCONF: Command = Command {
    name: "replconf",
    full_name: "replconf",
    summary: "Describes a replica to its primary, and acknowledges offsets",
    since: "3.0.0",
    complexity: "O(1)",
    arity: -1,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, ALLOW_BUSY],
    doc_flags: &["syscmd"],
    handler: Handler::Local(crate::replication::replconf),
    ..REPLICATION
};

pub(crate) const ROLE: Command = Command {
    name: "role",
    full_name: "role",
    summary: "Returns the role of the server in replication",
    since: "2.8.12",
    complexity: "O(1)",
    arity: 1,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST],
    acl: acl![ADMIN, DANGEROUS],
    handler: Handler::Local(crate::replication::role),
    ..REPLICATION
};

pub(crate) const SYNC: Command = Command {
    name: "sync",
    full_name: "sync",
    summary: "Sends a snapshot and then the stream of changes",
    since: "1.0.0",
    arity: 1,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING, NO_MULTI],
    handler: Handler::Local(crate::replication::sync),
    ..REPLICATION
};

pub(crate) const WAIT: Command = Command {
    name: "wait",
    full_name: "wait",
    summary: "Waits until replicas have acknowledged this connection's writes",
    since: "3.0.0",
    group: "generic",
    complexity: "O(1)",
    arity: 3,
    flags: flags![NOSCRIPT],
    acl: acl![CONNECTION],
    tips: &["request_policy:all_shards", "response_policy:agg_min"],
    arguments: &[Argument::integer("numreplicas"), Argument::integer("timeout")],
    handler: Handler::Local(crate::replication::wait),
    ..REPLICATION
};

pub(crate) const WAITAOF: Command = Command {
    name: "waitaof",
    full_name: "waitaof",
    summary: "Waits until this connection's writes are on disk, here and on replicas",
    since: "7.2.0",
    group: "generic",
    complexity: "O(1)",
    arity: 4,
    flags: flags![NOSCRIPT],
    acl: acl![CONNECTION],
    tips: &["request_policy:all_shards", "response_policy:agg_min"],
    arguments: &[Argument::integer("numlocal"), Argument::integer("numreplicas"), Argument::integer("timeout")],
    handler: Handler::Local(crate::replication::waitaof),
    ..REPLICATION
};
