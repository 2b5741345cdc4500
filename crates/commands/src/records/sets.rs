//! The records of the set commands.

use pantala_engine::command::{Acl, Argument, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    SADD,
    SCARD,
    SDIFF,
    SDIFFSTORE,
    SINTER,
    SINTERCARD,
    SINTERSTORE,
    SISMEMBER,
    SMEMBERS,
    SMISMEMBER,
    SMOVE,
    SPOP,
    SRANDMEMBER,
    SREM,
    SSCAN,
    SUNION,
    SUNIONSTORE,
];

/// Common fields of the set commands: their keys determine the shards.
const SET: Command = Command { group: "set", acl: Acl::SET, route: Route::Keys, ..Command::BLANK };

pub(crate) const SADD: Command = Command {
    name: "sadd",
    full_name: "sadd",
    summary: "Adds members to a set, creating the key if it doesn't exist",
    since: "1.0.0",
    complexity: "O(N), N: number of given members",
    history: &[("2.4.0", "Accepts several members")],
    arity: -3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("member").multiple()],
    handler: Handler::Keyed(crate::sets::sadd),
    ..SET
};

pub(crate) const SCARD: Command = Command {
    name: "scard",
    full_name: "scard",
    summary: "Returns the number of members of a set",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::sets::scard),
    ..SET
};

pub(crate) const SDIFF: Command = Command {
    name: "sdiff",
    full_name: "sdiff",
    summary: "Returns the members of the first set that are in none of the others",
    since: "1.0.0",
    complexity: "O(N), N: total size of all sets",
    arity: -2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output_order"],
    key_specs: &[KeySpec::all_from(1, 1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::sets::sdiff),
    ..SET
};

pub(crate) const SDIFFSTORE: Command = Command {
    name: "sdiffstore",
    full_name: "sdiffstore",
    summary: "Stores the members of the first set that are in none of the others",
    since: "1.0.0",
    complexity: "O(N), N: total size of all sets",
    arity: -3,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["OW", "update"]), KeySpec::all_from(2, 1, &["RO", "access"])],
    arguments: &[Argument::key("destination", 0), Argument::key("key", 1).multiple()],
    handler: Handler::Keyed(crate::sets::sdiffstore),
    ..SET
};

pub(crate) const SINTER: Command = Command {
    name: "sinter",
    full_name: "sinter",
    summary: "Returns the intersection of several sets",
    since: "1.0.0",
    complexity: "O(N*M), N: size of the smallest set, M: number of sets",
    arity: -2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output_order"],
    key_specs: &[KeySpec::all_from(1, 1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::sets::sinter),
    ..SET
};

pub(crate) const SINTERCARD: Command = Command {
    name: "sintercard",
    full_name: "sintercard",
    summary: "Returns the size of the intersection of several sets",
    since: "7.0.0",
    complexity: "O(N*M), N: size of the smallest set, M: number of sets",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec {
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
        ..KeySpec::at(1, &["RO", "access"])
    }],
    arguments: &[
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        Argument::integer("limit").token("LIMIT").optional(),
    ],
    handler: Handler::Keyed(crate::sets::sintercard),
    ..SET
};

pub(crate) const SINTERSTORE: Command = Command {
    name: "sinterstore",
    full_name: "sinterstore",
    summary: "Stores the intersection of several sets",
    since: "1.0.0",
    complexity: "O(N*M), N: size of the smallest set, M: number of sets",
    arity: -3,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["RW", "update"]), KeySpec::all_from(2, 1, &["RO", "access"])],
    arguments: &[Argument::key("destination", 0), Argument::key("key", 1).multiple()],
    handler: Handler::Keyed(crate::sets::sinterstore),
    ..SET
};

pub(crate) const SISMEMBER: Command = Command {
    name: "sismember",
    full_name: "sismember",
    summary: "Returns whether a value is a member of a set",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0), Argument::string("member")],
    handler: Handler::Keyed(crate::sets::sismember),
    ..SET
};

pub(crate) const SMEMBERS: Command = Command {
    name: "smembers",
    full_name: "smembers",
    summary: "Returns all members of a set",
    since: "1.0.0",
    complexity: "O(N), N: size of the set",
    arity: 2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output_order"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::sets::smembers),
    ..SET
};

pub(crate) const SMISMEMBER: Command = Command {
    name: "smismember",
    full_name: "smismember",
    summary: "Returns for each of several values whether it is a member of a set",
    since: "6.2.0",
    complexity: "O(N), N: number of given values",
    arity: -3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("member").multiple()],
    handler: Handler::Keyed(crate::sets::smismember),
    ..SET
};

pub(crate) const SMOVE: Command = Command {
    name: "smove",
    full_name: "smove",
    summary: "Moves a member from one set to another",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 4,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"]), KeySpec::at(2, &["RW", "insert"])],
    arguments: &[Argument::key("source", 0), Argument::key("destination", 1), Argument::string("member")],
    handler: Handler::Keyed(crate::sets::smove),
    ..SET
};

pub(crate) const SPOP: Command = Command {
    name: "spop",
    full_name: "spop",
    summary: "Removes random members from a set and returns them",
    since: "1.0.0",
    complexity: "O(N), N: number of requested members; O(1) without a count",
    history: &[("3.2.0", "Option `count`")],
    arity: -2,
    flags: flags![WRITE, FAST],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count").since("3.2.0").optional()],
    handler: Handler::Undetermined(crate::sets::spop),
    ..SET
};

pub(crate) const SRANDMEMBER: Command = Command {
    name: "srandmember",
    full_name: "srandmember",
    summary: "Returns random members of a set",
    since: "1.0.0",
    complexity: "O(N), N: number of requested members; O(1) without a count",
    history: &[("2.6.0", "Option `count`")],
    arity: -2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count").since("2.6.0").optional()],
    handler: Handler::Undetermined(crate::sets::srandmember),
    ..SET
};

pub(crate) const SREM: Command = Command {
    name: "srem",
    full_name: "srem",
    summary: "Removes members from a set, and the key with the last one",
    since: "1.0.0",
    complexity: "O(N), N: number of given members",
    history: &[("2.4.0", "Accepts several members")],
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::string("member").multiple()],
    handler: Handler::Keyed(crate::sets::srem),
    ..SET
};

pub(crate) const SSCAN: Command = Command {
    name: "sscan",
    full_name: "sscan",
    summary: "Iterates over the members of a set with a cursor",
    since: "2.8.0",
    complexity: "O(1) per call, O(N) for a full iteration, N: size of the set",
    arity: -3,
    flags: flags![READONLY],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::integer("cursor"),
        Argument::pattern("pattern").token("MATCH").optional(),
        Argument::integer("count").token("COUNT").optional(),
    ],
    handler: Handler::Keyed(crate::sets::sscan),
    ..SET
};

pub(crate) const SUNION: Command = Command {
    name: "sunion",
    full_name: "sunion",
    summary: "Returns the union of several sets",
    since: "1.0.0",
    complexity: "O(N), N: total size of all sets",
    arity: -2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output_order"],
    key_specs: &[KeySpec::all_from(1, 1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::sets::sunion),
    ..SET
};

pub(crate) const SUNIONSTORE: Command = Command {
    name: "sunionstore",
    full_name: "sunionstore",
    summary: "Stores the union of several sets",
    since: "1.0.0",
    complexity: "O(N), N: total size of all sets",
    arity: -3,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["OW", "update"]), KeySpec::all_from(2, 1, &["RO", "access"])],
    arguments: &[Argument::key("destination", 0), Argument::key("key", 1).multiple()],
    handler: Handler::Keyed(crate::sets::sunionstore),
    ..SET
};
