//! The records of the hash commands.

use pantala_engine::command::{Acl, Argument, ArgumentKind, Command, Flags, Handler, KeySpec, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    HDEL,
    HEXISTS,
    HGET,
    HGETALL,
    HINCRBY,
    HINCRBYFLOAT,
    HKEYS,
    HLEN,
    HMGET,
    HMSET,
    HRANDFIELD,
    HSCAN,
    HSET,
    HSETNX,
    HSTRLEN,
    HVALS,
];

/// Common fields of the hash commands. A command's key determines its shard.
const HASH: Command = Command { group: "hash", acl: Acl::HASH, route: Route::Keys, ..Command::BLANK };

pub(crate) const HDEL: Command = Command {
    name: "hdel",
    full_name: "hdel",
    summary: "Deletes fields of a hash; deletes the key if no field remains",
    since: "2.0.0",
    complexity: "O(N), N: number of given fields",
    history: &[("2.4.0", "Accepts several fields")],
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::string("field").multiple()],
    handler: Handler::Keyed(crate::hashes::hdel),
    ..HASH
};

pub(crate) const HEXISTS: Command = Command {
    name: "hexists",
    full_name: "hexists",
    summary: "Returns whether a field exists in a hash",
    since: "2.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0), Argument::string("field")],
    handler: Handler::Keyed(crate::hashes::hexists),
    ..HASH
};

pub(crate) const HGET: Command = Command {
    name: "hget",
    full_name: "hget",
    summary: "Returns the value of a field of a hash",
    since: "2.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("field")],
    handler: Handler::Keyed(crate::hashes::hget),
    ..HASH
};

pub(crate) const HGETALL: Command = Command {
    name: "hgetall",
    full_name: "hgetall",
    summary: "Returns all fields and values of a hash",
    since: "2.0.0",
    complexity: "O(N), N: size of the hash",
    arity: 2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output_order"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::hashes::hgetall),
    ..HASH
};

pub(crate) const HINCRBY: Command = Command {
    name: "hincrby",
    full_name: "hincrby",
    summary: "Increments the integer value of a field of a hash",
    since: "2.0.0",
    complexity: "O(1)",
    arity: 4,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::string("field"), Argument::integer("increment")],
    handler: Handler::Keyed(crate::hashes::hincrby),
    ..HASH
};

pub(crate) const HINCRBYFLOAT: Command = Command {
    name: "hincrbyfloat",
    full_name: "hincrbyfloat",
    summary: "Increments the numeric value of a field of a hash by a given decimal amount",
    since: "2.6.0",
    complexity: "O(1)",
    arity: 4,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::string("field"), Argument::new("increment", ArgumentKind::Double)],
    handler: Handler::Undetermined(crate::hashes::hincrbyfloat),
    ..HASH
};

pub(crate) const HKEYS: Command = Command {
    name: "hkeys",
    full_name: "hkeys",
    summary: "Returns all fields of a hash",
    since: "2.0.0",
    complexity: "O(N), N: size of the hash",
    arity: 2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output_order"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::hashes::hkeys),
    ..HASH
};

pub(crate) const HLEN: Command = Command {
    name: "hlen",
    full_name: "hlen",
    summary: "Returns the number of fields of a hash",
    since: "2.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::hashes::hlen),
    ..HASH
};

pub(crate) const HMGET: Command = Command {
    name: "hmget",
    full_name: "hmget",
    summary: "Returns the values of several fields of a hash",
    since: "2.0.0",
    complexity: "O(N), N: number of given fields",
    arity: -3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("field").multiple()],
    handler: Handler::Keyed(crate::hashes::hmget),
    ..HASH
};

pub(crate) const HMSET: Command = Command {
    name: "hmset",
    full_name: "hmset",
    summary: "Sets fields of a hash, creating the key if it doesn't exist",
    since: "2.0.0",
    complexity: "O(N), N: number of given fields",
    deprecated: Some(("4.0.0", "`HSET`")),
    arity: -4,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::block("field_value", &[Argument::string("field"), Argument::string("value")]).multiple(),
    ],
    handler: Handler::Keyed(crate::hashes::hmset),
    ..HASH
};

pub(crate) const HRANDFIELD: Command = Command {
    name: "hrandfield",
    full_name: "hrandfield",
    summary: "Returns random fields of a hash",
    since: "6.2.0",
    complexity: "O(N), N: number of returned fields; O(N+M) for a listpack, M: number of its fields",
    arity: -2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::block(
            "options",
            &[Argument::integer("count"), Argument::word("withvalues", "WITHVALUES").optional()],
        )
        .optional(),
    ],
    handler: Handler::Undetermined(crate::hashes::hrandfield),
    ..HASH
};

pub(crate) const HSCAN: Command = Command {
    name: "hscan",
    full_name: "hscan",
    summary: "Iterates over the fields of a hash with a cursor",
    since: "2.8.0",
    complexity: "O(1) per call, O(N) for a full iteration, N: size of the hash",
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
    handler: Handler::Keyed(crate::hashes::hscan),
    ..HASH
};

pub(crate) const HSET: Command = Command {
    name: "hset",
    full_name: "hset",
    summary: "Sets fields of a hash, creating the key if it doesn't exist",
    since: "2.0.0",
    complexity: "O(N), N: number of given fields",
    history: &[("4.0.0", "Accepts several fields and values")],
    arity: -4,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::block("field_value", &[Argument::string("field"), Argument::string("value")]).multiple(),
    ],
    handler: Handler::Keyed(crate::hashes::hset),
    ..HASH
};

pub(crate) const HSETNX: Command = Command {
    name: "hsetnx",
    full_name: "hsetnx",
    summary: "Sets a field of a hash unless the field exists",
    since: "2.0.0",
    complexity: "O(1)",
    arity: 4,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("field"), Argument::string("value")],
    handler: Handler::Keyed(crate::hashes::hsetnx),
    ..HASH
};

pub(crate) const HSTRLEN: Command = Command {
    name: "hstrlen",
    full_name: "hstrlen",
    summary: "Returns the length of the value of a field of a hash, in bytes",
    since: "3.2.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0), Argument::string("field")],
    handler: Handler::Keyed(crate::hashes::hstrlen),
    ..HASH
};

pub(crate) const HVALS: Command = Command {
    name: "hvals",
    full_name: "hvals",
    summary: "Returns all values of a hash",
    since: "2.0.0",
    complexity: "O(N), N: size of the hash",
    arity: 2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output_order"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::hashes::hvals),
    ..HASH
};
