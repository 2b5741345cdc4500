//! The records of the commands that concern the server: introspection, configuration, whole
//! databases.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec, Route};

use super::{DEPENDS_ON_SUBCOMMAND, acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    BGREWRITEAOF,
    BGSAVE,
    COMMAND,
    CONFIG,
    DBSIZE,
    FLUSHALL,
    FLUSHDB,
    INFO,
    LASTSAVE,
    LOLWUT,
    MEMORY,
    SAVE,
    SHUTDOWN,
    SWAPDB,
    TIME,
];

/// Common fields of the server commands. A command without a route runs without a shard.
pub(super) const SERVER: Command = Command { group: "server", ..Command::BLANK };

pub(crate) const COMMAND: Command = Command {
    name: "command",
    full_name: "command",
    summary: "Returns details of all commands",
    since: "2.8.13",
    complexity: "O(N), N: number of commands",
    arity: -1,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    tips: &["nondeterministic_output_order"],
    subcommands: &[
        COMMAND_COUNT,
        COMMAND_DOCS,
        COMMAND_GETKEYS,
        COMMAND_GETKEYSANDFLAGS,
        COMMAND_HELP,
        COMMAND_INFO,
        COMMAND_LIST,
    ],
    handler: Handler::Local(crate::introspection::command),
    ..SERVER
};

pub(crate) const COMMAND_COUNT: Command = Command {
    name: "count",
    full_name: "command|count",
    summary: "Returns the number of commands",
    since: "2.8.13",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    handler: Handler::Local(crate::introspection::count),
    ..SERVER
};

pub(crate) const COMMAND_DOCS: Command = Command {
    name: "docs",
    full_name: "command|docs",
    summary: "Returns documentation of commands: purpose, version, arguments",
    since: "7.0.0",
    complexity: "O(N), N: number of names",
    arity: -2,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    tips: &["nondeterministic_output_order"],
    arguments: &[Argument::string("command-name").optional().multiple()],
    handler: Handler::Local(crate::introspection::docs),
    ..SERVER
};

pub(crate) const COMMAND_GETKEYS: Command = Command {
    name: "getkeys",
    full_name: "command|getkeys",
    summary: "Returns the keys of a full command",
    since: "2.8.13",
    complexity: "O(N), N: number of arguments",
    arity: -4,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    secrets: Some(super::secrets::command_getkeys),
    handler: Handler::Local(crate::introspection::getkeys),
    ..SERVER
};

pub(crate) const COMMAND_GETKEYSANDFLAGS: Command = Command {
    name: "getkeysandflags",
    full_name: "command|getkeysandflags",
    summary: "Returns the keys of a full command and its access flags for each",
    since: "7.0.0",
    complexity: "O(N), N: number of arguments",
    arity: -4,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    secrets: Some(super::secrets::command_getkeys),
    handler: Handler::Local(crate::introspection::getkeysandflags),
    ..SERVER
};

pub(crate) const COMMAND_HELP: Command = Command {
    name: "help",
    full_name: "command|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    handler: Handler::Local(crate::introspection::help),
    ..SERVER
};

pub(crate) const COMMAND_INFO: Command = Command {
    name: "info",
    full_name: "command|info",
    summary: "Returns details of commands: arity, flags, key positions",
    since: "2.8.13",
    complexity: "O(N), N: number of names",
    history: &[("7.0.0", "Without names, describes all commands")],
    arity: -2,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    tips: &["nondeterministic_output_order"],
    arguments: &[Argument::string("command-name").optional().multiple()],
    handler: Handler::Local(crate::introspection::info),
    ..SERVER
};

pub(crate) const COMMAND_LIST: Command = Command {
    name: "list",
    full_name: "command|list",
    summary: "Returns the names of commands",
    since: "7.0.0",
    complexity: "O(N), N: number of commands",
    arity: -2,
    flags: flags![LOADING, STALE],
    acl: acl![CONNECTION],
    tips: &["nondeterministic_output_order"],
    arguments: &[Argument::one_of(
        "filterby",
        &[
            Argument::string("module-name").token("MODULE"),
            Argument::string("category").token("ACLCAT"),
            Argument::pattern("pattern").token("PATTERN"),
        ],
    )
    .token("FILTERBY")
    .optional()],
    handler: Handler::Local(crate::introspection::list),
    ..SERVER
};

pub(crate) const CONFIG: Command = Command {
    name: "config",
    full_name: "config",
    summary: "Reads and changes the configuration",
    since: "2.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[CONFIG_GET, CONFIG_HELP, CONFIG_RESETSTAT, CONFIG_REWRITE, CONFIG_SET],
    ..SERVER
};

pub(crate) const CONFIG_GET: Command = Command {
    name: "get",
    full_name: "config|get",
    summary: "Returns the parameters whose names match a pattern",
    since: "2.0.0",
    complexity: "O(N), N: number of parameters",
    history: &[("7.0.0", "Accepts several patterns")],
    arity: -3,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE],
    arguments: &[Argument::block("parameter", &[Argument::string("parameter")]).multiple()],
    handler: Handler::Local(crate::config::get),
    ..SERVER
};

pub(crate) const CONFIG_HELP: Command = Command {
    name: "help",
    full_name: "config|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::config::help),
    ..SERVER
};

pub(crate) const CONFIG_RESETSTAT: Command = Command {
    name: "resetstat",
    full_name: "config|resetstat",
    summary: "Resets the statistics of INFO",
    since: "2.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE],
    handler: Handler::Local(crate::config::resetstat),
    ..SERVER
};

pub(crate) const CONFIG_REWRITE: Command = Command {
    name: "rewrite",
    full_name: "config|rewrite",
    summary: "Writes the current configuration to its file",
    since: "2.8.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE],
    handler: Handler::Local(crate::config::rewrite),
    ..SERVER
};

pub(crate) const CONFIG_SET: Command = Command {
    name: "set",
    full_name: "config|set",
    summary: "Changes parameters at runtime, all of them or none",
    since: "2.0.0",
    complexity: "O(N), N: number of parameters",
    history: &[("7.0.0", "Accepts several parameters")],
    arity: -4,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, MEASURES],
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    arguments: &[
        Argument::block("parameter_value", &[Argument::string("parameter"), Argument::string("value")]).multiple()
    ],
    secrets: Some(super::secrets::config_set),
    handler: Handler::Local(crate::config::set),
    ..SERVER
};

pub(crate) const DBSIZE: Command = Command {
    name: "dbsize",
    full_name: "dbsize",
    summary: "Returns the number of keys in the database",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 1,
    flags: flags![READONLY, FAST],
    acl: acl![KEYSPACE],
    tips: &["request_policy:all_shards", "response_policy:agg_sum"],
    handler: Handler::Local(crate::server::dbsize),
    ..SERVER
};

/// Common fields of FLUSHALL and FLUSHDB.
const FLUSHING: Command = Command {
    since: "1.0.0",
    history: &[("4.0.0", "Option `ASYNC`"), ("6.2.0", "Option `SYNC`")],
    arity: -1,
    flags: flags![WRITE],
    acl: acl![KEYSPACE, DANGEROUS],
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    arguments: &[Argument::one_of(
        "async",
        &[Argument::word("async", "ASYNC").since("4.0.0"), Argument::word("sync", "SYNC").since("6.2.0")],
    )
    .optional()],
    route: Route::All,
    ..SERVER
};

pub(crate) const FLUSHALL: Command = Command {
    name: "flushall",
    full_name: "flushall",
    summary: "Deletes all keys of all databases",
    complexity: "O(N), N: number of keys in all databases",
    handler: Handler::Keyed(crate::flush::flushall),
    ..FLUSHING
};

pub(crate) const FLUSHDB: Command = Command {
    name: "flushdb",
    full_name: "flushdb",
    summary: "Deletes all keys of the database",
    complexity: "O(N), N: number of keys in the database",
    handler: Handler::Keyed(crate::flush::flushdb),
    ..FLUSHING
};

pub(crate) const INFO: Command = Command {
    name: "info",
    full_name: "info",
    summary: "Returns information and statistics about the server",
    since: "1.0.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Accepts several sections")],
    arity: -1,
    flags: flags![LOADING, STALE, MEASURES],
    acl: acl![DANGEROUS],
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    arguments: &[Argument::string("section").optional().multiple()],
    handler: Handler::Local(crate::server::info),
    ..SERVER
};

pub(crate) const LOLWUT: Command = Command {
    name: "lolwut",
    full_name: "lolwut",
    summary: "Returns a picture and the version",
    since: "5.0.0",
    arity: -1,
    flags: flags![READONLY, FAST],
    arguments: &[Argument::integer("version").token("VERSION").optional()],
    handler: Handler::Local(crate::server::lolwut),
    ..SERVER
};

pub(crate) const MEMORY: Command = Command {
    name: "memory",
    full_name: "memory",
    summary: "Returns information about memory usage",
    since: "4.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[MEMORY_DOCTOR, MEMORY_HELP, MEMORY_MALLOC_STATS, MEMORY_PURGE, MEMORY_STATS, MEMORY_USAGE],
    ..SERVER
};

pub(crate) const MEMORY_DOCTOR: Command = Command {
    name: "doctor",
    full_name: "memory|doctor",
    summary: "Reports memory problems, with advice",
    since: "4.0.0",
    complexity: "O(1)",
    arity: 2,
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    flags: flags![MEASURES],
    handler: Handler::Local(crate::memory::doctor),
    ..SERVER
};

pub(crate) const MEMORY_HELP: Command = Command {
    name: "help",
    full_name: "memory|help",
    summary: "Returns help on the subcommands",
    since: "4.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::memory::help),
    ..SERVER
};

pub(crate) const MEMORY_MALLOC_STATS: Command = Command {
    name: "malloc-stats",
    full_name: "memory|malloc-stats",
    summary: "Returns statistics of the allocator",
    since: "4.0.0",
    complexity: "Depends on the memory usage; may be slow",
    arity: 2,
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    handler: Handler::Local(crate::memory::malloc_stats),
    ..SERVER
};

pub(crate) const MEMORY_PURGE: Command = Command {
    name: "purge",
    full_name: "memory|purge",
    summary: "Returns free memory to the system",
    since: "4.0.0",
    complexity: "Depends on the memory usage; may be slow",
    arity: 2,
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    handler: Handler::Local(crate::memory::purge),
    ..SERVER
};

pub(crate) const MEMORY_STATS: Command = Command {
    name: "stats",
    full_name: "memory|stats",
    summary: "Returns details of the memory usage",
    since: "4.0.0",
    complexity: "O(1)",
    arity: 2,
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    flags: flags![MEASURES],
    handler: Handler::Local(crate::memory::stats),
    ..SERVER
};

pub(crate) const MEMORY_USAGE: Command = Command {
    name: "usage",
    full_name: "memory|usage",
    summary: "Returns the memory usage of a key and its value in bytes",
    since: "4.0.0",
    complexity: "O(N), N: number of samples",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(2, &["RO"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count").token("SAMPLES").optional()],
    route: Route::Keys,
    handler: Handler::Keyed(crate::memory_usage::usage),
    ..SERVER
};

pub(crate) const LASTSAVE: Command = Command {
    name: "lastsave",
    full_name: "lastsave",
    summary: "Returns the Unix time of the last snapshot, in seconds",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 1,
    flags: flags![LOADING, STALE, FAST],
    acl: acl![ADMIN, DANGEROUS],
    tips: &["nondeterministic_output"],
    handler: Handler::Local(crate::server::lastsave),
    ..SERVER
};

pub(crate) const BGREWRITEAOF: Command = Command {
    name: "bgrewriteaof",
    full_name: "bgrewriteaof",
    summary: "Rewrites the append-only file in the background",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 1,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING],
    handler: Handler::Local(crate::server::bgrewriteaof),
    ..SERVER
};

pub(crate) const BGSAVE: Command = Command {
    name: "bgsave",
    full_name: "bgsave",
    summary: "Saves a snapshot of all databases in the background",
    since: "1.0.0",
    complexity: "O(1)",
    history: &[("3.2.2", "Option `SCHEDULE`")],
    arity: -1,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING],
    arguments: &[Argument::word("schedule", "SCHEDULE").since("3.2.2").optional()],
    route: Route::All,
    handler: Handler::Keyed(crate::server::bgsave),
    ..SERVER
};

pub(crate) const SAVE: Command = Command {
    name: "save",
    full_name: "save",
    summary: "Saves a snapshot of all databases and blocks access to them meanwhile",
    since: "1.0.0",
    complexity: "O(N), N: number of keys in all databases",
    arity: 1,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING, NO_MULTI],
    route: Route::All,
    handler: Handler::Keyed(crate::server::save),
    ..SERVER
};

pub(crate) const SHUTDOWN: Command = Command {
    name: "shutdown",
    full_name: "shutdown",
    summary: "Stops the server",
    since: "1.0.0",
    complexity: "O(N) if it saves, N: number of keys in all databases; otherwise O(1)",
    history: &[("7.0.0", "Options `NOW`, `FORCE`, `ABORT`")],
    arity: -1,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, NO_MULTI, ALLOW_BUSY],
    arguments: &[
        Argument::one_of("nosave_save", &[Argument::word("nosave", "NOSAVE"), Argument::word("save", "SAVE")])
            .optional(),
        Argument::word("now", "NOW").since("7.0.0").optional(),
        Argument::word("force", "FORCE").since("7.0.0").optional(),
        Argument::word("abort", "ABORT").since("7.0.0").optional(),
    ],
    handler: Handler::Local(crate::server::shutdown),
    ..SERVER
};

pub(crate) const SWAPDB: Command = Command {
    name: "swapdb",
    full_name: "swapdb",
    summary: "Swaps two databases",
    since: "4.0.0",
    complexity: "O(N), N: number of clients that watch keys or are blocked in the two databases",
    arity: 3,
    flags: flags![WRITE, FAST],
    acl: acl![KEYSPACE, DANGEROUS],
    arguments: &[Argument::integer("index1"), Argument::integer("index2")],
    route: Route::All,
    handler: Handler::Keyed(crate::flush::swapdb),
    ..SERVER
};

pub(crate) const TIME: Command = Command {
    name: "time",
    full_name: "time",
    summary: "Returns the server's time",
    since: "2.6.0",
    complexity: "O(1)",
    arity: 1,
    flags: flags![LOADING, STALE, FAST],
    tips: &["nondeterministic_output"],
    handler: Handler::Local(crate::server::time),
    ..SERVER
};
