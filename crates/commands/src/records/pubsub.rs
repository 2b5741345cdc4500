//! The records of the pub/sub commands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec};

use super::{DEPENDS_ON_SUBCOMMAND, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] =
    &[PSUBSCRIBE, PUBLISH, PUBSUB, PUNSUBSCRIBE, SPUBLISH, SSUBSCRIBE, SUBSCRIBE, SUNSUBSCRIBE, UNSUBSCRIBE];

/// Common fields of these commands.
const PUBSUB_GROUP: Command = Command { group: "pubsub", ..Command::BLANK };

pub(crate) const SUBSCRIBE: Command = Command {
    name: "subscribe",
    full_name: "subscribe",
    summary: "Subscribes the connection to channels",
    since: "2.0.0",
    complexity: "O(N), N: number of channels",
    arity: -2,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, ANSWERS_MESSAGES],
    arguments: &[Argument::string("channel").multiple()],
    handler: Handler::Local(crate::pubsub::subscribe),
    ..PUBSUB_GROUP
};

pub(crate) const UNSUBSCRIBE: Command = Command {
    name: "unsubscribe",
    full_name: "unsubscribe",
    summary: "Unsubscribes the connection from channels, or from all",
    since: "2.0.0",
    complexity: "O(N), N: number of subscribers of a channel",
    arity: -1,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, UNSUBSCRIBES, ANSWERS_MESSAGES],
    arguments: &[Argument::string("channel").optional().multiple()],
    handler: Handler::Local(crate::pubsub::unsubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const PSUBSCRIBE: Command = Command {
    name: "psubscribe",
    full_name: "psubscribe",
    summary: "Subscribes the connection to all channels that match patterns",
    since: "2.0.0",
    complexity: "O(N), N: number of patterns to which the client is subscribed",
    arity: -2,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, ANSWERS_MESSAGES],
    arguments: &[Argument::block("pattern", &[Argument::pattern("pattern")]).multiple()],
    handler: Handler::Local(crate::pubsub::psubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const PUNSUBSCRIBE: Command = Command {
    name: "punsubscribe",
    full_name: "punsubscribe",
    summary: "Unsubscribes the connection from patterns, or from all",
    since: "2.0.0",
    complexity: "O(N+M), N: number of patterns to which the client is subscribed, M: number of all patterns",
    arity: -1,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, UNSUBSCRIBES, ANSWERS_MESSAGES],
    arguments: &[Argument::pattern("pattern").optional().multiple()],
    handler: Handler::Local(crate::pubsub::punsubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const SSUBSCRIBE: Command = Command {
    name: "ssubscribe",
    full_name: "ssubscribe",
    summary: "Subscribes the connection to shard channels",
    since: "7.0.0",
    complexity: "O(N), N: number of shard channels",
    arity: -2,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, ANSWERS_MESSAGES],
    key_specs: &[KeySpec::all_from(1, 1, &["not_key"])],
    arguments: &[Argument::string("shardchannel").multiple()],
    handler: Handler::Local(crate::pubsub::ssubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const SUNSUBSCRIBE: Command = Command {
    name: "sunsubscribe",
    full_name: "sunsubscribe",
    summary: "Unsubscribes the connection from shard channels, or from all",
    since: "7.0.0",
    complexity: "O(N), N: number of subscribers of a shard channel",
    arity: -1,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, UNSUBSCRIBES, ANSWERS_MESSAGES],
    key_specs: &[KeySpec::all_from(1, 1, &["not_key"])],
    arguments: &[Argument::string("shardchannel").optional().multiple()],
    handler: Handler::Local(crate::pubsub::sunsubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const PUBLISH: Command = Command {
    name: "publish",
    full_name: "publish",
    summary: "Publishes a message to a channel",
    since: "2.0.0",
    complexity: "O(N+M), N: number of subscribers, M: number of patterns",
    arity: 3,
    flags: flags![PUBSUB, LOADING, STALE, FAST, MAY_REPLICATE],
    arguments: &[Argument::string("channel"), Argument::string("message")],
    handler: Handler::Local(crate::pubsub::publish),
    ..PUBSUB_GROUP
};

pub(crate) const SPUBLISH: Command = Command {
    name: "spublish",
    full_name: "spublish",
    summary: "Publishes a message to a shard channel",
    since: "7.0.0",
    complexity: "O(N), N: number of subscribers",
    arity: 3,
    flags: flags![PUBSUB, LOADING, STALE, FAST, MAY_REPLICATE],
    key_specs: &[KeySpec::at(1, &["not_key"])],
    arguments: &[Argument::string("shardchannel"), Argument::string("message")],
    handler: Handler::Local(crate::pubsub::spublish),
    ..PUBSUB_GROUP
};

pub(crate) const CHANNELS: Command = Command {
    name: "channels",
    full_name: "pubsub|channels",
    summary: "Returns the channels with subscribers",
    since: "2.8.0",
    complexity: "O(N), N: number of these channels",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::pattern("pattern").optional()],
    handler: Handler::Local(crate::pubsub::channels),
    ..PUBSUB_GROUP
};

pub(crate) const HELP: Command = Command {
    name: "help",
    full_name: "pubsub|help",
    summary: "Returns help on the subcommands",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::pubsub::help),
    ..PUBSUB_GROUP
};

pub(crate) const NUMPAT: Command = Command {
    name: "numpat",
    full_name: "pubsub|numpat",
    summary: "Returns the number of subscribed patterns",
    since: "2.8.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![PUBSUB, LOADING, STALE],
    handler: Handler::Local(crate::pubsub::numpat),
    ..PUBSUB_GROUP
};

pub(crate) const NUMSUB: Command = Command {
    name: "numsub",
    full_name: "pubsub|numsub",
    summary: "Returns the number of subscribers of channels",
    since: "2.8.0",
    complexity: "O(N), N: number of given channels",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::string("channel").optional().multiple()],
    handler: Handler::Local(crate::pubsub::numsub),
    ..PUBSUB_GROUP
};

pub(crate) const SHARDCHANNELS: Command = Command {
    name: "shardchannels",
    full_name: "pubsub|shardchannels",
    summary: "Returns the shard channels with subscribers",
    since: "7.0.0",
    complexity: "O(N), N: number of these channels",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::pattern("pattern").optional()],
    handler: Handler::Local(crate::pubsub::shard_channels),
    ..PUBSUB_GROUP
};

pub(crate) const SHARDNUMSUB: Command = Command {
    name: "shardnumsub",
    full_name: "pubsub|shardnumsub",
    summary: "Returns the number of subscribers of shard channels",
    since: "7.0.0",
    complexity: "O(N), N: number of given shard channels",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::string("shardchannel").optional().multiple()],
    handler: Handler::Local(crate::pubsub::shard_numsub),
    ..PUBSUB_GROUP
};

pub(crate) const PUBSUB: Command = Command {
    name: "pubsub",
    full_name: "pubsub",
    summary: "Returns information about subscriptions",
    since: "2.8.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    acl: Acl::empty(),
    subcommands: &[CHANNELS, HELP, NUMPAT, NUMSUB, SHARDCHANNELS, SHARDNUMSUB],
    ..PUBSUB_GROUP
};
