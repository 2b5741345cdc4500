//! The records of the stream commands.

use pantala_engine::command::{Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::{DEPENDS_ON_SUBCOMMAND, flags};
use crate::streams;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    XACK, XADD, XAUTOCLAIM, XCLAIM, XDEL, XGROUP, XINFO, XLEN, XPENDING, XRANGE, XREAD, XREADGROUP, XREVRANGE, XSETID,
    XTRIM,
];

/// Common fields of the stream commands: their keys determine the shards.
const STREAM: Command = Command { group: "stream", acl: Acl::STREAM, route: Route::Keys, ..Command::BLANK };

/// The option MAXLEN or MINID with its arguments.
const STRATEGY: Argument = Argument::one_of(
    "strategy",
    &[Argument::word("maxlen", "MAXLEN"), Argument::word("minid", "MINID").since("6.2.0")],
);
const OPERATOR: Argument =
    Argument::one_of("operator", &[Argument::word("equal", "="), Argument::word("approximately", "~")]).optional();
const TRIM: Argument = Argument::block(
    "trim",
    &[
        STRATEGY,
        OPERATOR,
        Argument::string("threshold"),
        Argument::integer("count").token("LIMIT").since("6.2.0").optional(),
    ],
);
/// The ID from which a group reads.
const START_ID: Argument = Argument::one_of("id", &[Argument::string("id"), Argument::word("new_id", "$")]);
/// Keys, followed by the same number of IDs.
const STREAMS: Argument =
    Argument::block("streams", &[Argument::key("key", 0).multiple(), Argument::string("id").multiple()])
        .token("STREAMS");
const TRIM_HISTORY: (&str, &str) = ("6.2.0", "Options `MINID`, `LIMIT`");

/// Returns the key specification of the keys after `STREAMS`. The keys are the first half of the
/// arguments that follow this word.
const fn streams_from(from: i32) -> KeySpec {
    KeySpec {
        notes: "",
        flags: &["RO", "access"],
        begin: BeginSearch::Keyword("STREAMS", from),
        find: FindKeys::Range { last: -1, step: 1, limit: 2 },
    }
}

pub(crate) const XACK: Command = Command {
    name: "xack",
    full_name: "xack",
    summary: "Acknowledges entries: removes them from the pending entries of a group",
    since: "5.0.0",
    complexity: "O(log N) per ID, N: number of pending entries",
    arity: -4,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[Argument::key("key", 0), Argument::string("group"), Argument::string("id").multiple()],
    handler: Handler::Keyed(streams::xack),
    ..STREAM
};

pub(crate) const XADD: Command = Command {
    name: "xadd",
    full_name: "xadd",
    summary: "Adds an entry to a stream, creating the key if it doesn't exist",
    since: "5.0.0",
    complexity: "O(1); trimming adds O(N), N: number of trimmed entries",
    history: &[
        ("6.2.0", "Options `NOMKSTREAM`, `MINID`, `LIMIT`"),
        ("7.0.0", "The sequence number of an ID can be automatic: `<ms>-*`"),
    ],
    arity: -5,
    flags: flags![WRITE, DENYOOM, FAST],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RW", "update"]).note("Inserts, and may trim")],
    arguments: &[
        Argument::key("key", 0),
        Argument::word("nomkstream", "NOMKSTREAM").since("6.2.0").optional(),
        TRIM.optional(),
        Argument::one_of("id_or_auto", &[Argument::word("auto_id", "*"), Argument::string("id")]),
        Argument::block("field_value", &[Argument::string("field"), Argument::string("value")]).multiple(),
    ],
    handler: Handler::Undetermined(streams::xadd),
    ..STREAM
};

pub(crate) const XAUTOCLAIM: Command = Command {
    name: "xautoclaim",
    full_name: "xautoclaim",
    summary: "Transfers idle pending entries to a consumer, iterating with a cursor",
    since: "6.2.0",
    complexity: "O(N), N: COUNT",
    history: &[("7.0.0", "Also returns the pending IDs whose entries were deleted")],
    arity: -6,
    flags: flags![WRITE, FAST],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("group"),
        Argument::string("consumer"),
        Argument::string("min-idle-time"),
        Argument::string("start"),
        Argument::integer("count").token("COUNT").optional(),
        Argument::word("justid", "JUSTID").optional(),
    ],
    handler: Handler::Undetermined(streams::xautoclaim),
    ..STREAM
};

pub(crate) const XCLAIM: Command = Command {
    name: "xclaim",
    full_name: "xclaim",
    summary: "Transfers pending entries to a consumer",
    since: "5.0.0",
    complexity: "O(log N) per ID, N: number of pending entries",
    arity: -6,
    flags: flags![WRITE, FAST],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("group"),
        Argument::string("consumer"),
        Argument::string("min-idle-time"),
        Argument::string("id").multiple(),
        Argument::integer("ms").token("IDLE").optional(),
        Argument::unix_time("unix-time-milliseconds").token("TIME").optional(),
        Argument::integer("count").token("RETRYCOUNT").optional(),
        Argument::word("force", "FORCE").optional(),
        Argument::word("justid", "JUSTID").optional(),
        Argument::string("id").token("LASTID").optional(),
    ],
    handler: Handler::Undetermined(streams::xclaim),
    ..STREAM
};

pub(crate) const XDEL: Command = Command {
    name: "xdel",
    full_name: "xdel",
    summary: "Deletes entries from a stream",
    since: "5.0.0",
    complexity: "O(log N) per ID, N: number of entries",
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::string("id").multiple()],
    handler: Handler::Keyed(streams::xdel),
    ..STREAM
};

pub(crate) const XGROUP: Command = Command {
    name: "xgroup",
    full_name: "xgroup",
    summary: "Manages consumer groups",
    since: "5.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    acl: Acl::empty(),
    subcommands: &[XGROUP_CREATE, XGROUP_CREATECONSUMER, XGROUP_DELCONSUMER, XGROUP_DESTROY, XGROUP_HELP, XGROUP_SETID],
    route: Route::None,
    ..STREAM
};

pub(crate) const XGROUP_CREATE: Command = Command {
    name: "create",
    full_name: "xgroup|create",
    summary: "Creates a consumer group",
    since: "5.0.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Option `ENTRIESREAD`")],
    arity: -5,
    flags: flags![WRITE, DENYOOM, PLAIN],
    key_specs: &[KeySpec::at(2, &["RW", "insert"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("groupname"),
        START_ID,
        Argument::word("mkstream", "MKSTREAM").optional(),
        Argument::integer("entries_read").token("ENTRIESREAD").optional(),
    ],
    handler: Handler::Keyed(streams::xgroup_create),
    ..STREAM
};

pub(crate) const XGROUP_CREATECONSUMER: Command = Command {
    name: "createconsumer",
    full_name: "xgroup|createconsumer",
    summary: "Creates a consumer in a group",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 5,
    flags: flags![WRITE, DENYOOM, PLAIN],
    key_specs: &[KeySpec::at(2, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("groupname"), Argument::string("consumername")],
    handler: Handler::Keyed(streams::xgroup_createconsumer),
    ..STREAM
};

pub(crate) const XGROUP_DELCONSUMER: Command = Command {
    name: "delconsumer",
    full_name: "xgroup|delconsumer",
    summary: "Deletes a consumer and its pending entries from a group",
    since: "5.0.0",
    complexity: "O(N), N: number of pending entries of the consumer",
    arity: 5,
    flags: flags![WRITE],
    key_specs: &[KeySpec::at(2, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::string("groupname"), Argument::string("consumername")],
    handler: Handler::Keyed(streams::xgroup_delconsumer),
    ..STREAM
};

pub(crate) const XGROUP_DESTROY: Command = Command {
    name: "destroy",
    full_name: "xgroup|destroy",
    summary: "Deletes a consumer group",
    since: "5.0.0",
    complexity: "O(N), N: number of pending entries",
    arity: 4,
    flags: flags![WRITE],
    key_specs: &[KeySpec::at(2, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::string("groupname")],
    handler: Handler::Keyed(streams::xgroup_destroy),
    ..STREAM
};

pub(crate) const XGROUP_HELP: Command = Command {
    name: "help",
    full_name: "xgroup|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    route: Route::None,
    handler: Handler::Local(streams::xgroup_help),
    ..STREAM
};

pub(crate) const XGROUP_SETID: Command = Command {
    name: "setid",
    full_name: "xgroup|setid",
    summary: "Sets the last delivered ID of a group",
    since: "5.0.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Option `ENTRIESREAD`")],
    arity: -5,
    flags: flags![WRITE, PLAIN],
    key_specs: &[KeySpec::at(2, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("groupname"),
        START_ID,
        Argument::integer("entries_read").token("ENTRIESREAD").optional(),
    ],
    handler: Handler::Keyed(streams::xgroup_setid),
    ..STREAM
};

pub(crate) const XINFO: Command = Command {
    name: "xinfo",
    full_name: "xinfo",
    summary: "Returns information about streams, their groups and consumers",
    since: "5.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    acl: Acl::empty(),
    subcommands: &[XINFO_CONSUMERS, XINFO_GROUPS, XINFO_HELP, XINFO_STREAM],
    route: Route::None,
    ..STREAM
};

pub(crate) const XINFO_CONSUMERS: Command = Command {
    name: "consumers",
    full_name: "xinfo|consumers",
    summary: "Returns the consumers of a group",
    since: "5.0.0",
    complexity: "O(N), N: number of consumers",
    arity: 4,
    flags: flags![READONLY],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(2, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("groupname")],
    handler: Handler::Keyed(streams::xinfo_consumers),
    ..STREAM
};

pub(crate) const XINFO_GROUPS: Command = Command {
    name: "groups",
    full_name: "xinfo|groups",
    summary: "Returns the groups of a stream",
    since: "5.0.0",
    complexity: "O(N), N: number of groups",
    history: &[("7.0.0", "Fields `entries-read` and `lag`")],
    arity: 3,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(2, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(streams::xinfo_groups),
    ..STREAM
};

pub(crate) const XINFO_HELP: Command = Command {
    name: "help",
    full_name: "xinfo|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    route: Route::None,
    handler: Handler::Local(streams::xinfo_help),
    ..STREAM
};

pub(crate) const XINFO_STREAM: Command = Command {
    name: "stream",
    full_name: "xinfo|stream",
    summary: "Returns information about a stream",
    since: "5.0.0",
    complexity: "O(N), N: number of nodes of the stream, each of about a hundred entries",
    history: &[
        ("6.0.0", "Option `FULL`"),
        (
            "7.0.0",
            "Fields `max-deleted-entry-id`, `entries-added`, `recorded-first-entry-id`, `entries-read` and `lag`",
        ),
    ],
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(2, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::block("full", &[Argument::integer("count").token("COUNT").optional()]).token("FULL").optional(),
    ],
    handler: Handler::Keyed(streams::xinfo_stream),
    ..STREAM
};

pub(crate) const XLEN: Command = Command {
    name: "xlen",
    full_name: "xlen",
    summary: "Returns the number of entries of a stream",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(streams::xlen),
    ..STREAM
};

pub(crate) const XPENDING: Command = Command {
    name: "xpending",
    full_name: "xpending",
    summary: "Returns the entries that a group has delivered but that haven't been acknowledged",
    since: "5.0.0",
    complexity: "O(N), N: number of visited entries; without a range, number of consumers",
    history: &[("6.2.0", "Option `IDLE`; exclusive ranges")],
    arity: -3,
    flags: flags![READONLY],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("group"),
        Argument::block(
            "filters",
            &[
                Argument::integer("min-idle-time").token("IDLE").since("6.2.0").optional(),
                Argument::string("start"),
                Argument::string("end"),
                Argument::integer("count"),
                Argument::string("consumer").optional(),
            ],
        )
        .optional(),
    ],
    handler: Handler::Keyed(streams::xpending),
    ..STREAM
};

pub(crate) const XRANGE: Command = Command {
    name: "xrange",
    full_name: "xrange",
    summary: "Returns the entries between two IDs",
    since: "5.0.0",
    complexity: "O(log N + M), N: number of entries, M: number of returned entries",
    history: &[("6.2.0", "Exclusive ranges")],
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("start"),
        Argument::string("end"),
        Argument::integer("count").token("COUNT").optional(),
    ],
    handler: Handler::Keyed(streams::xrange),
    ..STREAM
};

pub(crate) const XREAD: Command = Command {
    name: "xread",
    full_name: "xread",
    summary: "Returns the entries of streams after given IDs, optionally blocking until there are any",
    since: "5.0.0",
    complexity: "O(N), N: number of returned entries",
    arity: -4,
    flags: flags![READONLY, BLOCKING],
    key_specs: &[streams_from(1)],
    arguments: &[
        Argument::integer("count").token("COUNT").optional(),
        Argument::integer("milliseconds").token("BLOCK").optional(),
        STREAMS,
    ],
    route: Route::Custom(streams::read_shards),
    unnamed_keys: Some(streams::read_keys),
    handler: Handler::Keyed(streams::xread),
    ..STREAM
};

pub(crate) const XREADGROUP: Command = Command {
    name: "xreadgroup",
    full_name: "xreadgroup",
    summary: "Returns undelivered entries of streams to a consumer of a group, optionally blocking, or its pending entries",
    since: "5.0.0",
    complexity: "O(N), N: number of returned entries",
    arity: -7,
    flags: flags![WRITE, BLOCKING],
    key_specs: &[streams_from(4)],
    arguments: &[
        Argument::block("group_consumer", &[Argument::string("group"), Argument::string("consumer")]).token("GROUP"),
        Argument::integer("count").token("COUNT").optional(),
        Argument::integer("milliseconds").token("BLOCK").optional(),
        Argument::word("noack", "NOACK").optional(),
        STREAMS,
    ],
    route: Route::Custom(streams::readgroup_shards),
    unnamed_keys: Some(streams::readgroup_keys),
    handler: Handler::Undetermined(streams::xreadgroup),
    ..STREAM
};

pub(crate) const XREVRANGE: Command = Command {
    name: "xrevrange",
    full_name: "xrevrange",
    summary: "Returns the entries between two IDs in reverse order",
    since: "5.0.0",
    complexity: "O(log N + M), N: number of entries, M: number of returned entries",
    history: &[("6.2.0", "Exclusive ranges")],
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("end"),
        Argument::string("start"),
        Argument::integer("count").token("COUNT").optional(),
    ],
    handler: Handler::Keyed(streams::xrevrange),
    ..STREAM
};

pub(crate) const XSETID: Command = Command {
    name: "xsetid",
    full_name: "xsetid",
    summary: "Sets the last ID of a stream; for replication",
    since: "5.0.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Options `ENTRIESADDED` and `MAXDELETEDID`")],
    arity: -3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("last-id"),
        Argument::integer("entries_added").token("ENTRIESADDED").since("7.0.0").optional(),
        Argument::string("max_deleted_entry_id").token("MAXDELETEDID").since("7.0.0").optional(),
    ],
    handler: Handler::Keyed(streams::xsetid),
    ..STREAM
};

pub(crate) const XTRIM: Command = Command {
    name: "xtrim",
    full_name: "xtrim",
    summary: "Deletes the oldest entries of a stream, down to a length or an ID",
    since: "5.0.0",
    complexity: "O(N), N: number of trimmed entries; whole nodes of about a hundred entries cost as much as one entry",
    history: &[TRIM_HISTORY],
    arity: -4,
    flags: flags![WRITE],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), TRIM],
    handler: Handler::Undetermined(streams::xtrim),
    ..STREAM
};
