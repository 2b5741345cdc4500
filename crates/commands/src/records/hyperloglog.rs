//! The records of the HyperLogLog commands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[PFADD, PFCOUNT, PFDEBUG, PFMERGE, PFSELFTEST];

/// Common fields of the HyperLogLog commands: their keys determine the shards.
const HYPERLOGLOG: Command =
    Command { group: "hyperloglog", acl: Acl::HYPERLOGLOG, route: Route::Keys, ..Command::BLANK };

pub(crate) const PFADD: Command = Command {
    name: "pfadd",
    full_name: "pfadd",
    summary: "Adds elements to a HyperLogLog, creating the key if it doesn't exist",
    since: "2.8.9",
    complexity: "O(1) per element",
    arity: -2,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("element").optional().multiple()],
    handler: Handler::Keyed(crate::hyperloglog::pfadd),
    ..HYPERLOGLOG
};

pub(crate) const PFCOUNT: Command = Command {
    name: "pfcount",
    full_name: "pfcount",
    summary: "Estimates the number of distinct elements in one or several HyperLogLogs",
    since: "2.8.9",
    complexity: "O(1) for one key, whose count is cached; O(N) with a large constant for N keys",
    arity: -2,
    flags: flags![READONLY, MAY_REPLICATE],
    key_specs: &[KeySpec::all_from(1, 1, &["RW", "access"]).note("Writes, because the count is cached in the string")],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::hyperloglog::pfcount),
    ..HYPERLOGLOG
};

pub(crate) const PFDEBUG: Command = Command {
    name: "pfdebug",
    full_name: "pfdebug",
    summary: "Shows the internals of a HyperLogLog",
    since: "2.8.9",
    complexity: "O(1): proportional to the number of registers",
    doc_flags: &["syscmd"],
    arity: 3,
    flags: flags![WRITE, DENYOOM, ADMIN],
    key_specs: &[KeySpec::at(2, &["RW", "access"])],
    arguments: &[Argument::string("subcommand"), Argument::key("key", 0)],
    handler: Handler::Keyed(crate::hyperloglog::pfdebug),
    ..HYPERLOGLOG
};

pub(crate) const PFMERGE: Command = Command {
    name: "pfmerge",
    full_name: "pfmerge",
    summary: "Merges HyperLogLogs into the first one",
    since: "2.8.9",
    complexity: "O(N) with a large constant, N: number of keys",
    arity: -2,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["RW", "access", "insert"]), KeySpec::all_from(2, 1, &["RO", "access"])],
    arguments: &[Argument::key("destkey", 0), Argument::key("sourcekey", 1).multiple()],
    // A custom route is needed, because the key specification can't express that sources are
    // optional.
    route: Route::Custom(crate::hyperloglog::pfmerge_route),
    handler: Handler::Keyed(crate::hyperloglog::pfmerge),
    ..HYPERLOGLOG
};

pub(crate) const PFSELFTEST: Command = Command {
    name: "pfselftest",
    full_name: "pfselftest",
    summary: "Tests the HyperLogLog code",
    since: "2.8.9",
    complexity: "O(1): adds a million elements",
    doc_flags: &["syscmd"],
    arity: 1,
    flags: flags![ADMIN],
    route: Route::None,
    handler: Handler::Local(crate::hyperloglog::pfselftest),
    ..HYPERLOGLOG
};
