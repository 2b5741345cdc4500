//! The publish/subscribe commands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec};

use super::{DEPENDS_ON_SUBCOMMAND, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] =
    &[PSUBSCRIBE, PUBLISH, PUBSUB, PUNSUBSCRIBE, SPUBLISH, SSUBSCRIBE, SUBSCRIBE, SUNSUBSCRIBE, UNSUBSCRIBE];

/// What these commands have in common.
const PUBSUB_GROUP: Command = Command { group: "pubsub", ..Command::BLANK };

pub(crate) const SUBSCRIBE: Command = Command {
    name: "subscribe",
    full_name: "subscribe",
    summary: "Hears what is published on channels",
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
    summary: "Hears no more of channels, or of any",
    since: "2.0.0",
    complexity: "O(N), N: number of clients that listen to a channel",
    arity: -1,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, UNSUBSCRIBES, ANSWERS_MESSAGES],
    arguments: &[Argument::string("channel").optional().multiple()],
    handler: Handler::Local(crate::pubsub::unsubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const PSUBSCRIBE: Command = Command {
    name: "psubscribe",
    full_name: "psubscribe",
    summary: "Hears what is published on all channels that match a pattern",
    since: "2.0.0",
    complexity: "O(N), N: number of patterns the client listens to",
    arity: -2,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, ANSWERS_MESSAGES],
    arguments: &[Argument::block("pattern", &[Argument::pattern("pattern")]).multiple()],
    handler: Handler::Local(crate::pubsub::psubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const PUNSUBSCRIBE: Command = Command {
    name: "punsubscribe",
    full_name: "punsubscribe",
    summary: "Hears no more by patterns, or by any",
    since: "2.0.0",
    complexity: "O(N+M), N: number of patterns the client listens to, M: of all patterns",
    arity: -1,
    flags: flags![PUBSUB, NOSCRIPT, LOADING, STALE, WHILE_SUBSCRIBED, UNSUBSCRIBES, ANSWERS_MESSAGES],
    arguments: &[Argument::pattern("pattern").optional().multiple()],
    handler: Handler::Local(crate::pubsub::punsubscribe),
    ..PUBSUB_GROUP
};

pub(crate) const SSUBSCRIBE: Command = Command {
    name: "ssubscribe",
    full_name: "ssubscribe",
    summary: "Hears what is published on shard channels",
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
    summary: "Hears no more of shard channels, or of any",
    since: "7.0.0",
    complexity: "O(N), N: number of clients that listen to a shard channel",
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
    summary: "Sends a message to all who listen to a channel",
    since: "2.0.0",
    complexity: "O(N+M), N: number of listeners, M: number of patterns",
    arity: 3,
    flags: flags![PUBSUB, LOADING, STALE, FAST, MAY_REPLICATE],
    arguments: &[Argument::string("channel"), Argument::string("message")],
    handler: Handler::Local(crate::pubsub::publish),
    ..PUBSUB_GROUP
};

pub(crate) const SPUBLISH: Command = Command {
    name: "spublish",
    full_name: "spublish",
    summary: "Sends a message to all who listen to a shard channel",
    since: "7.0.0",
    complexity: "O(N), N: number of listeners",
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
    summary: "Lists channels that somebody listens to",
    since: "2.8.0",
    complexity: "O(N), N: number of such channels",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::pattern("pattern").optional()],
    handler: Handler::Local(crate::pubsub::channels),
    ..PUBSUB_GROUP
};

pub(crate) const HELP: Command = Command {
    name: "help",
    full_name: "pubsub|help",
    summary: "Explains the subcommands",
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
    summary: "Counts the patterns that are listened to",
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
    summary: "Counts the listeners of channels",
    since: "2.8.0",
    complexity: "O(N), N: number of channels asked for",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::string("channel").optional().multiple()],
    handler: Handler::Local(crate::pubsub::numsub),
    ..PUBSUB_GROUP
};

pub(crate) const SHARDCHANNELS: Command = Command {
    name: "shardchannels",
    full_name: "pubsub|shardchannels",
    summary: "Lists shard channels that somebody listens to",
    since: "7.0.0",
    complexity: "O(N), N: number of such channels",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::pattern("pattern").optional()],
    handler: Handler::Local(crate::pubsub::shard_channels),
    ..PUBSUB_GROUP
};

pub(crate) const SHARDNUMSUB: Command = Command {
    name: "shardnumsub",
    full_name: "pubsub|shardnumsub",
    summary: "Counts the listeners of shard channels",
    since: "7.0.0",
    complexity: "O(N), N: number of shard channels asked for",
    arity: -2,
    flags: flags![PUBSUB, LOADING, STALE],
    arguments: &[Argument::string("shardchannel").optional().multiple()],
    handler: Handler::Local(crate::pubsub::shard_numsub),
    ..PUBSUB_GROUP
};

pub(crate) const PUBSUB: Command = Command {
    name: "pubsub",
    full_name: "pubsub",
    summary: "Contains the commands that tell who listens",
    since: "2.8.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    acl: Acl::empty(),
    subcommands: &[CHANNELS, HELP, NUMPAT, NUMSUB, SHARDCHANNELS, SHARDNUMSUB],
    ..PUBSUB_GROUP
};
