//! The stream commands.

use pantala_engine::command::{Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::{DEPENDS_ON_SUBCOMMAND, flags};
use crate::streams;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    XACK, XADD, XAUTOCLAIM, XCLAIM, XDEL, XGROUP, XINFO, XLEN, XPENDING, XRANGE, XREAD, XREADGROUP, XREVRANGE, XSETID,
    XTRIM,
];

/// What the stream commands have in common: their keys choose the shards.
const STREAM: Command = Command { group: "stream", acl: Acl::STREAM, route: Route::Keys, ..Command::BLANK };

/// MAXLEN or MINID, and how strictly.
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
/// Where a group begins.
const START_ID: Argument = Argument::one_of("id", &[Argument::string("id"), Argument::word("new_id", "$")]);
/// Keys, then as many ids.
const STREAMS: Argument =
    Argument::block("streams", &[Argument::key("key", 0).multiple(), Argument::string("id").multiple()])
        .token("STREAMS");
const TRIM_HISTORY: (&str, &str) = ("6.2.0", "Trims by `MINID` too; option `LIMIT`");

/// Keys after the word STREAMS, in the first half of what follows it.
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
    summary: "Takes entries that were processed off a group's pending ones",
    since: "5.0.0",
    complexity: "O(log N) for each id, N: number of pending entries",
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
    summary: "Adds an entry to a stream, creating the key when it is missing",
    since: "5.0.0",
    complexity: "O(1); trimming adds O(N), N: number of entries trimmed",
    history: &[
        ("6.2.0", "Option `NOMKSTREAM`; trims by `MINID` too; option `LIMIT`"),
        ("7.0.0", "An id may leave its number open: `<ms>-*`"),
    ],
    arity: -5,
    flags: flags![WRITE, DENYOOM, FAST],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RW", "update"]).note("It inserts, but it may trim as well")],
    arguments: &[
        Argument::key("key", 0),
        Argument::word("nomkstream", "NOMKSTREAM").since("6.2.0").optional(),
        TRIM.optional(),
        Argument::one_of("id_or_auto", &[Argument::word("auto_id", "*"), Argument::string("id")]),
        Argument::block("field_value", &[Argument::string("field"), Argument::string("value")]).multiple(),
    ],
    handler: Handler::Keyed(streams::xadd),
    ..STREAM
};

pub(crate) const XAUTOCLAIM: Command = Command {
    name: "xautoclaim",
    full_name: "xautoclaim",
    summary: "Gives pending entries that have been idle to a consumer, going through them page by page",
    since: "6.2.0",
    complexity: "O(N), N: COUNT",
    history: &[("7.0.0", "Answers the ids that were pending but are deleted too")],
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
    handler: Handler::Keyed(streams::xautoclaim),
    ..STREAM
};

pub(crate) const XCLAIM: Command = Command {
    name: "xclaim",
    full_name: "xclaim",
    summary: "Gives pending entries to a consumer",
    since: "5.0.0",
    complexity: "O(log N) for each id, N: number of pending entries",
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
    handler: Handler::Keyed(streams::xclaim),
    ..STREAM
};

pub(crate) const XDEL: Command = Command {
    name: "xdel",
    full_name: "xdel",
    summary: "Deletes entries from a stream",
    since: "5.0.0",
    complexity: "O(log N) for each id, N: number of entries",
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
    summary: "Adds a group to a stream",
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
    summary: "Adds a consumer to a group",
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
    summary: "Removes a consumer from a group, and the entries pending with it",
    since: "5.0.0",
    complexity: "O(N), N: number of entries pending with it",
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
    summary: "Removes a group from a stream",
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
    summary: "Lists the subcommands",
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
    summary: "Sets the id up to which a group has read",
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
    summary: "Tells of streams, their groups and consumers",
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
    summary: "Lists the consumers of a group",
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
    summary: "Lists the groups of a stream",
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
    summary: "Lists the subcommands",
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
    summary: "Tells of a stream, in full if wanted",
    since: "5.0.0",
    complexity: "O(N), N: number of the stream's nodes, of about a hundred entries each",
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
    summary: "Counts the entries of a stream",
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
    summary: "Tells of the entries that a group has delivered and that nobody has acknowledged",
    since: "5.0.0",
    complexity: "O(N), N: number of entries looked at; without a range, number of consumers",
    history: &[("6.2.0", "Option `IDLE`; a range may leave its ends out")],
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
    summary: "Reads the entries between two ids",
    since: "5.0.0",
    complexity: "O(log N + M), N: number of entries, M: number of those read",
    history: &[("6.2.0", "A range may leave its ends out")],
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
    summary: "Reads what comes after given ids in streams, waiting for it if wanted",
    since: "5.0.0",
    complexity: "O(N), N: number of entries read",
    arity: -4,
    flags: flags![READONLY, BLOCKING, BLOCK_OPTION],
    key_specs: &[streams_from(1)],
    arguments: &[
        Argument::integer("count").token("COUNT").optional(),
        Argument::integer("milliseconds").token("BLOCK").optional(),
        STREAMS,
    ],
    route: Route::Custom(streams::read_shards),
    handler: Handler::Keyed(streams::xread),
    ..STREAM
};

pub(crate) const XREADGROUP: Command = Command {
    name: "xreadgroup",
    full_name: "xreadgroup",
    summary: "Reads what a group has not read yet as one of its consumers, waiting for it if wanted, or what is pending with that",
    since: "5.0.0",
    complexity: "O(N), N: number of entries read",
    arity: -7,
    flags: flags![WRITE, BLOCKING, BLOCK_OPTION],
    key_specs: &[streams_from(4)],
    arguments: &[
        Argument::block("group_consumer", &[Argument::string("group"), Argument::string("consumer")]).token("GROUP"),
        Argument::integer("count").token("COUNT").optional(),
        Argument::integer("milliseconds").token("BLOCK").optional(),
        Argument::word("noack", "NOACK").optional(),
        STREAMS,
    ],
    route: Route::Custom(streams::readgroup_shards),
    handler: Handler::Keyed(streams::xreadgroup),
    ..STREAM
};

pub(crate) const XREVRANGE: Command = Command {
    name: "xrevrange",
    full_name: "xrevrange",
    summary: "Reads the entries between two ids, the last first",
    since: "5.0.0",
    complexity: "O(log N + M), N: number of entries, M: number of those read",
    history: &[("6.2.0", "A range may leave its ends out")],
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
    summary: "Sets a stream's last id, for replicas",
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
    summary: "Removes the oldest entries of a stream, down to a length or an id",
    since: "5.0.0",
    complexity: "O(N), N: number of entries trimmed; a hundred at a time cost as much as one",
    history: &[TRIM_HISTORY],
    arity: -4,
    flags: flags![WRITE],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), TRIM],
    handler: Handler::Keyed(streams::xtrim),
    ..STREAM
};
