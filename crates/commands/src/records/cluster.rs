//! `CLUSTER` and what belongs to it.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, Route};

use super::{DEPENDS_ON_SUBCOMMAND, acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[ASKING, CLUSTER, READONLY, READWRITE];

/// What these commands have in common.
const CLUSTERS: Command = Command { group: "cluster", since: "3.0.0", complexity: "O(1)", ..Command::BLANK };

const NONDETERMINISTIC: &[&str] = &["nondeterministic_output"];

/// What those have in common that say something of the connection which is so anyway, while there is one node.
const AGREEING: Command = Command {
    acl: acl![CONNECTION],
    arity: 1,
    flags: flags![LOADING, STALE, FAST],
    handler: Handler::Local(crate::cluster::acknowledge),
    ..CLUSTERS
};

pub(crate) const ASKING: Command = Command {
    name: "asking",
    full_name: "asking",
    summary: "Has the next command reach a slot that is on its way to this node",
    flags: flags![FAST],
    ..AGREEING
};

pub(crate) const READONLY: Command = Command {
    name: "readonly",
    full_name: "readonly",
    summary: "Lets this connection read from a replica",
    ..AGREEING
};

pub(crate) const READWRITE: Command =
    Command { name: "readwrite", full_name: "readwrite", summary: "Takes READONLY back", ..AGREEING };

pub(crate) const CLUSTER: Command = Command {
    name: "cluster",
    full_name: "cluster",
    summary: "The cluster as this node knows it",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[COUNTKEYSINSLOT, GETKEYSINSLOT, HELP, INFO, KEYSLOT, LINKS, MYID, NODES, SHARDS, SLOTS],
    ..CLUSTERS
};

/// What `CLUSTER`'s subcommands have in common.
const SUB: Command = Command { arity: 2, flags: flags![STALE], ..CLUSTERS };

const COUNTKEYSINSLOT: Command = Command {
    name: "countkeysinslot",
    full_name: "cluster|countkeysinslot",
    summary: "Counts the keys of a slot",
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
    summary: "Names some keys of a slot",
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
    summary: "Lists the subcommands",
    since: "5.0.0",
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::cluster::help),
    ..SUB
};

const INFO: Command = Command {
    name: "info",
    full_name: "cluster|info",
    summary: "How the cluster is",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::info),
    ..SUB
};

const KEYSLOT: Command = Command {
    name: "keyslot",
    full_name: "cluster|keyslot",
    summary: "The slot of a key",
    complexity: "O(N), N: bytes of the key",
    arity: 3,
    arguments: &[Argument::string("key")],
    handler: Handler::Local(crate::cluster::keyslot),
    ..SUB
};

const LINKS: Command = Command {
    name: "links",
    full_name: "cluster|links",
    summary: "The connections to other nodes",
    since: "7.0.0",
    complexity: "O(N), N: number of nodes",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::links),
    ..SUB
};

const MYID: Command = Command {
    name: "myid",
    full_name: "cluster|myid",
    summary: "The id of this node",
    handler: Handler::Local(crate::cluster::myid),
    ..SUB
};

const NODES: Command = Command {
    name: "nodes",
    full_name: "cluster|nodes",
    summary: "All nodes, as this one keeps them",
    complexity: "O(N), N: number of nodes",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::nodes),
    ..SUB
};

const SHARDS: Command = Command {
    name: "shards",
    full_name: "cluster|shards",
    summary: "The ranges of slots, and the nodes that serve each",
    since: "7.0.0",
    complexity: "O(N), N: number of nodes",
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::shards),
    ..SUB
};

const SLOTS: Command = Command {
    name: "slots",
    full_name: "cluster|slots",
    summary: "The ranges of slots, and the nodes that serve each, as older clients read it",
    complexity: "O(N), N: number of nodes",
    history: &[("4.0.0", "Ids of the nodes"), ("7.0.0", "Further ways to reach a node")],
    deprecated: Some(("7.0.0", "CLUSTER SHARDS")),
    tips: NONDETERMINISTIC,
    handler: Handler::Local(crate::cluster::slots),
    ..SUB
};
