//! The records of `CLUSTER` and related commands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, Route};

use super::{DEPENDS_ON_SUBCOMMAND, acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[ASKING, CLUSTER, READONLY, READWRITE];

/// Common fields of these commands.
const CLUSTERS: Command = Command { group: "cluster", since: "3.0.0", complexity: "O(1)", ..Command::BLANK };

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// Common fields of the commands that set a mode of the connection. The mode has no effect in a
/// cluster with a single node.
const CONNECTION_MODE: Command = Command {
    acl: acl![CONNECTION],
    arity: 1,
    flags: flags![LOADING, STALE, FAST],
    handler: Handler::Local(crate::cluster::acknowledge),
    ..CLUSTERS
};

pub(crate) const ASKING: Command = Command {
    name: "asking",
    full_name: "asking",
    summary: "Allows the next command to access a slot that is being imported",
    flags: flags![FAST],
    ..CONNECTION_MODE
};

pub(crate) const READONLY: Command = Command {
    name: "readonly",
    full_name: "readonly",
    summary: "Allows this connection to read from a replica",
    ..CONNECTION_MODE
};

pub(crate) const READWRITE: Command =
    Command { name: "readwrite", full_name: "readwrite", summary: "Reverts READONLY", ..CONNECTION_MODE };

pub(crate) const CLUSTER: Command = Command {
    name: "cluster",
    full_name: "cluster",
    summary: "Returns the state of the cluster as this node knows it",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[
        COUNT_FAILURE_REPORTS,
        COUNTKEYSINSLOT,
        GETKEYSINSLOT,
        HELP,
        INFO,
        KEYSLOT,
        LINKS,
        MYID,
        NODES,
        REPLICAS,
        SAVECONFIG,
        SHARDS,
        SLAVES,
        SLOTS,
    ],
    ..CLUSTERS
};

/// Common fields of the subcommands.
const SUB: Command = Command { arity: 2, flags: flags![STALE], ..CLUSTERS };

/// Common fields of the subcommands about one node.
const ABOUT_NODE: Command = Command {
    arity: 3,
    flags: flags![ADMIN, STALE],
    tips: NONDETERMINISTIC,
    arguments: &[Argument::string("node-id")],
    ..CLUSTERS
};

const COUNT_FAILURE_REPORTS: Command = Command {
    name: "count-failure-reports",
    full_name: "cluster|count-failure-reports",
    summary: "Returns the number of nodes that report a node as failing",
    complexity: "O(N), N: number of reports",
    handler: Handler::Local(crate::cluster::count_failure_reports),
    ..ABOUT_NODE
};

const COUNTKEYSINSLOT: Command = Command {
    name: "countkeysinslot",
    full_name: "cluster|countkeysinslot",
    summary: "Returns the number of keys in a slot",
    complexity: "O(N), N: number of keys in the slot's shard",
    arity: 3,
    arguments: &[Argument::integer("slot")],
    route: Route::Custom(crate::cluster::slot_route),
    handler: Handler::Keyed(crate::cluster::countkeysinslot),
    ..SUB
};

const GETKEYSINSLOT: Command = Command {
    name: "getkeysinslot",
    full_name: "cluster|getkeysinslot",
    summary: "Returns keys of a slot",
    complexity: "O(N), N: number of keys in the slot's shard",
    arity: 4,
    tips: NONDETERMINISTIC,
    arguments: &[Argument::integer("slot"), Argument::integer("count")],
    route: Route::Custom(crate::cluster::slot_route),
    handler: Handler::Keyed(crate::cluster::getkeysinslot),
    ..SUB
};

const HELP: Command = Command {
    name: "help",
    full_name: "cluster|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::cluster::help),
    ..SUB
};

const INFO: Command = Command {
    name: "info",
    full_name: "cluster|info",
    summary: "Returns the state of the cluster",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::info),
    ..SUB
};

const KEYSLOT: Command = Command {
    name: "keyslot",
    full_name: "cluster|keyslot",
    summary: "Returns the slot of a key",
    complexity: "O(N), N: length of the key",
    arity: 3,
    arguments: &[Argument::string("key")],
    handler: Handler::Local(crate::cluster::keyslot),
    ..SUB
};

const LINKS: Command = Command {
    name: "links",
    full_name: "cluster|links",
    summary: "Returns the links to other nodes",
    since: "7.0.0",
    complexity: "O(N), N: number of nodes",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::links),
    ..SUB
};

const MYID: Command = Command {
    name: "myid",
    full_name: "cluster|myid",
    summary: "Returns the ID of this node",
    handler: Handler::Local(crate::cluster::myid),
    ..SUB
};

const NODES: Command = Command {
    name: "nodes",
    full_name: "cluster|nodes",
    summary: "Returns the nodes that this one knows",
    complexity: "O(N), N: number of nodes",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::nodes),
    ..SUB
};

const REPLICAS: Command = Command {
    name: "replicas",
    full_name: "cluster|replicas",
    summary: "Returns the replicas of a node",
    since: "5.0.0",
    handler: Handler::Local(crate::cluster::replicas),
    ..ABOUT_NODE
};

const SAVECONFIG: Command = Command {
    name: "saveconfig",
    full_name: "cluster|saveconfig",
    summary: "Saves the state of the cluster; there is nothing to save yet",
    flags: flags![ADMIN, STALE, NO_ASYNC_LOADING],
    handler: Handler::Local(crate::cluster::acknowledge),
    ..SUB
};

const SHARDS: Command = Command {
    name: "shards",
    full_name: "cluster|shards",
    summary: "Returns the slot ranges and the nodes that serve them",
    since: "7.0.0",
    complexity: "O(N), N: number of nodes",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::shards),
    ..SUB
};

const SLAVES: Command = Command {
    name: "slaves",
    full_name: "cluster|slaves",
    summary: "Returns the replicas of a node",
    deprecated: Some(("5.0.0", "CLUSTER REPLICAS")),
    handler: Handler::Local(crate::cluster::replicas),
    ..ABOUT_NODE
};

const SLOTS: Command = Command {
    name: "slots",
    full_name: "cluster|slots",
    summary: "Returns the slot ranges and the nodes that serve them, in the format for older clients",
    complexity: "O(N), N: number of nodes",
    history: &[("4.0.0", "IDs of the nodes"), ("7.0.0", "Further addresses of a node")],
    deprecated: Some(("7.0.0", "CLUSTER SHARDS")),
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::slots),
    ..SUB
};
