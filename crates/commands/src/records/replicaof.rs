//! The records of the commands that set the server's primary, or make a replica the primary.

use pantala_engine::command::{Argument, Command, Flags, Handler};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[FAILOVER, REPLICAOF, SLAVEOF];

pub(crate) const REPLICAOF: Command = Command {
    name: "replicaof",
    full_name: "replicaof",
    group: "server",
    summary: "Makes the server a replica of a primary, or a primary itself",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![ADMIN, NOSCRIPT, STALE, NO_ASYNC_LOADING],
    arguments: &[Argument::one_of(
        "args",
        &[
            Argument::block("host-port", &[Argument::string("host"), Argument::integer("port")]),
            Argument::block("no-one", &[Argument::word("no", "NO"), Argument::word("one", "ONE")]),
        ],
    )],
    handler: Handler::Local(crate::replicaof::replicaof),
    ..Command::BLANK
};

const FAILOVER: Command = Command {
    name: "failover",
    full_name: "failover",
    group: "server",
    summary: "Makes a replica of the server its primary, without losing a write",
    since: "6.2.0",
    complexity: "O(1)",
    arity: -1,
    flags: flags![ADMIN, NOSCRIPT, STALE],
    arguments: &[
        Argument::block(
            "target",
            &[Argument::string("host"), Argument::integer("port"), Argument::word("force", "FORCE").optional()],
        )
        .token("TO")
        .optional(),
        Argument::word("abort", "ABORT").optional(),
        Argument::integer("milliseconds").token("TIMEOUT").optional(),
    ],
    handler: Handler::Local(crate::failover::failover),
    ..Command::BLANK
};

const SLAVEOF: Command = Command {
    name: "slaveof",
    full_name: "slaveof",
    since: "1.0.0",
    deprecated: Some(("5.0.0", "`REPLICAOF`")),
    ..REPLICAOF
};
