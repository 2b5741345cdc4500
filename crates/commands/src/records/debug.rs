//! The records of `DEBUG` and its subcommands.

use pantala_engine::command::{Argument, ArgumentKind, Command, Flags, Handler, KeySpec, Route};

use super::server::SERVER;
use super::{DEPENDS_ON_SUBCOMMAND, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[DEBUG];

pub(crate) const DEBUG: Command = Command {
    name: "debug",
    full_name: "debug",
    summary: "Provides tools for testing the server",
    since: "1.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    doc_flags: &["syscmd"],
    arity: -2,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, PROTECTED, DEBUGS, OWN_SUBCOMMANDS],
    subcommands: &[
        DEBUG_DIGEST,
        DEBUG_DIGEST_VALUE,
        DEBUG_ERROR,
        DEBUG_HELP,
        DEBUG_HTSTATS,
        DEBUG_LOADAOF,
        DEBUG_OBJECT,
        DEBUG_PAUSE_CRON,
        DEBUG_POPULATE,
        DEBUG_QUICKLIST_PACKED_THRESHOLD,
        DEBUG_RELOAD,
        DEBUG_SET_ACTIVE_EXPIRE,
        DEBUG_SET_DISABLE_DENY_SCRIPTS,
        DEBUG_SLEEP,
    ],
    handler: Handler::Local(crate::debug::debug),
    ..SERVER
};

/// Common fields of the subcommands.
const DEBUGGING: Command = Command {
    since: "1.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, PROTECTED, DEBUGS, OWN_SUBCOMMANDS],
    ..SERVER
};

pub(crate) const DEBUG_DIGEST: Command = Command {
    name: "digest",
    full_name: "debug|digest",
    summary: "Returns a digest of all databases",
    complexity: "O(N), N: total size of all values",
    arity: 2,
    route: Route::All,
    handler: Handler::Keyed(crate::digest::digest),
    ..DEBUGGING
};

pub(crate) const DEBUG_DIGEST_VALUE: Command = Command {
    name: "digest-value",
    full_name: "debug|digest-value",
    summary: "Returns digests of values",
    since: "5.0.0",
    complexity: "O(N), N: total size of the values",
    arity: -2,
    key_specs: &[KeySpec::all_from(2, 1, &["RO"])],
    arguments: &[Argument::key("key", 0).optional().multiple()],
    route: Route::Keys,
    handler: Handler::Keyed(crate::digest::digest_value),
    ..DEBUGGING
};

pub(crate) const DEBUG_ERROR: Command = Command {
    name: "error",
    full_name: "debug|error",
    summary: "Replies with an error",
    flags: DEBUGGING.flags.union(Flags::ANSWERS_ERRORS),
    arguments: &[Argument::new("error", ArgumentKind::String)],
    handler: Handler::Local(crate::debug::error),
    ..DEBUGGING
};

pub(crate) const DEBUG_HELP: Command = Command {
    name: "help",
    full_name: "debug|help",
    summary: "Returns help on the subcommands",
    arity: 2,
    handler: Handler::Local(crate::debug::help),
    ..DEBUGGING
};

pub(crate) const DEBUG_HTSTATS: Command = Command {
    name: "htstats",
    full_name: "debug|htstats",
    summary: "Returns statistics of the hash tables of a database",
    complexity: "O(N), N: number of buckets",
    arguments: &[Argument::integer("dbid")],
    route: Route::All,
    handler: Handler::Keyed(crate::debug::hash_table_statistics),
    ..DEBUGGING
};

pub(crate) const DEBUG_LOADAOF: Command = Command {
    name: "loadaof",
    full_name: "debug|loadaof",
    summary: "Empties the dataset and loads the append-only file",
    complexity: "O(N), N: size of the file",
    arity: 2,
    flags: DEBUGGING.flags.union(Flags::NO_MULTI),
    handler: Handler::Local(crate::debug::load_aof),
    ..DEBUGGING
};

pub(crate) const DEBUG_OBJECT: Command = Command {
    name: "object",
    full_name: "debug|object",
    summary: "Returns internals of a value",
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, PROTECTED, DEBUGS, PLAIN, OWN_SUBCOMMANDS],
    key_specs: &[KeySpec::at(2, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    route: Route::Keys,
    handler: Handler::Keyed(crate::debug::object),
    ..DEBUGGING
};

pub(crate) const DEBUG_PAUSE_CRON: Command = Command {
    name: "pause-cron",
    full_name: "debug|pause-cron",
    summary: "Pauses or resumes the periodic work",
    since: "7.0.0",
    arguments: &[Argument::integer("enabled")],
    handler: Handler::Local(crate::debug::pause_cron),
    ..DEBUGGING
};

pub(crate) const DEBUG_POPULATE: Command = Command {
    name: "populate",
    full_name: "debug|populate",
    summary: "Fills the database with test keys",
    complexity: "O(N), N: number of keys",
    arity: -3,
    arguments: &[
        Argument::integer("count"),
        Argument::string("prefix").optional(),
        Argument::integer("size").optional(),
    ],
    route: Route::All,
    handler: Handler::Keyed(crate::debug::populate),
    ..DEBUGGING
};

pub(crate) const DEBUG_QUICKLIST_PACKED_THRESHOLD: Command = Command {
    name: "quicklist-packed-threshold",
    full_name: "debug|quicklist-packed-threshold",
    summary: "Sets the size at which an element of a list gets its own node",
    since: "7.0.0",
    arguments: &[Argument::string("size")],
    handler: Handler::Local(crate::debug::quicklist_packed_threshold),
    ..DEBUGGING
};

pub(crate) const DEBUG_RELOAD: Command = Command {
    name: "reload",
    full_name: "debug|reload",
    summary: "Saves the dataset, flushes it, and loads it again",
    complexity: "O(N), N: number of keys in all databases",
    arity: -2,
    arguments: &[Argument::string("option").optional().multiple()],
    route: Route::All,
    handler: Handler::Keyed(crate::debug::reload),
    ..DEBUGGING
};

pub(crate) const DEBUG_SET_ACTIVE_EXPIRE: Command = Command {
    name: "set-active-expire",
    full_name: "debug|set-active-expire",
    summary: "Enables or disables the deletion of expired keys in the background",
    arguments: &[Argument::integer("enabled")],
    handler: Handler::Local(crate::debug::set_active_expire),
    ..DEBUGGING
};

pub(crate) const DEBUG_SET_DISABLE_DENY_SCRIPTS: Command = Command {
    name: "set-disable-deny-scripts",
    full_name: "debug|set-disable-deny-scripts",
    summary: "Allows or forbids scripts to run DEBUG",
    since: "7.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, PROTECTED, DEBUGS, OWN_SUBCOMMANDS],
    arguments: &[Argument::integer("enabled")],
    handler: Handler::Local(crate::debug::set_disable_deny_scripts),
    ..SERVER
};

pub(crate) const DEBUG_SLEEP: Command = Command {
    name: "sleep",
    full_name: "debug|sleep",
    summary: "Stops the server for some seconds",
    arguments: &[Argument::new("seconds", ArgumentKind::Double)],
    route: Route::All,
    handler: Handler::Keyed(crate::debug::sleep),
    ..DEBUGGING
};
