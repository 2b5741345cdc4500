//! The records of the commands on keys of any type.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec, Route};

use super::{DEPENDS_ON_SUBCOMMAND, acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    COPY,
    DEL,
    EXISTS,
    EXPIRE,
    EXPIREAT,
    EXPIRETIME,
    KEYS,
    MOVE,
    OBJECT,
    PERSIST,
    PEXPIRE,
    PEXPIREAT,
    PEXPIRETIME,
    PTTL,
    RANDOMKEY,
    RENAME,
    RENAMENX,
    SCAN,
    TOUCH,
    TTL,
    TYPE,
    UNLINK,
];

/// Common fields of the generic commands. A command without keys has its own route.
const GENERIC: Command = Command { group: "generic", acl: Acl::KEYSPACE, route: Route::Keys, ..Command::BLANK };

pub(crate) const COPY: Command = Command {
    name: "copy",
    full_name: "copy",
    summary: "Copies the value and expiry of a key to another key",
    since: "6.2.0",
    complexity: "O(N), N: number of elements; O(1) for a string",
    arity: -3,
    flags: flags![WRITE, DENYOOM, OTHER_DATABASES],
    key_specs: &[KeySpec::at(1, &["RO", "access"]), KeySpec::at(2, &["OW", "update"])],
    arguments: &[
        Argument::key("source", 0),
        Argument::key("destination", 1),
        Argument::integer("destination-db").token("DB").optional(),
        Argument::word("replace", "REPLACE").optional(),
    ],
    handler: Handler::Keyed(crate::generic::copy),
    ..GENERIC
};

pub(crate) const DEL: Command = Command {
    name: "del",
    full_name: "del",
    summary: "Deletes keys",
    since: "1.0.0",
    complexity: "O(N), N: number of keys; a key that isn't a string adds O(M), M: number of elements",
    arity: -2,
    flags: flags![WRITE],
    tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
    key_specs: &[KeySpec::all_from(1, 1, &["RM", "delete"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::generic::del),
    ..GENERIC
};

pub(crate) const EXISTS: Command = Command {
    name: "exists",
    full_name: "exists",
    summary: "Returns how many of the given keys exist",
    since: "1.0.0",
    complexity: "O(N), N: number of keys",
    history: &[("3.0.3", "Accepts several keys")],
    arity: -2,
    flags: flags![READONLY, FAST],
    tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
    key_specs: &[KeySpec::all_from(1, 1, &["RO"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::generic::exists),
    ..GENERIC
};

pub(crate) const EXPIRE: Command = Command {
    name: "expire",
    full_name: "expire",
    summary: "Sets the expiry of a key in seconds",
    since: "1.0.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`")],
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::integer("seconds"),
        Argument::one_of(
            "condition",
            &[
                Argument::word("nx", "NX"),
                Argument::word("xx", "XX"),
                Argument::word("gt", "GT"),
                Argument::word("lt", "LT"),
            ],
        )
        .since("7.0.0")
        .optional(),
    ],
    handler: Handler::Undetermined(crate::generic::expire),
    ..GENERIC
};

pub(crate) const EXPIREAT: Command = Command {
    name: "expireat",
    full_name: "expireat",
    summary: "Sets the expiry of a key to a Unix time in seconds",
    since: "1.2.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`")],
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::unix_time("unix-time-seconds"),
        Argument::one_of(
            "condition",
            &[
                Argument::word("nx", "NX"),
                Argument::word("xx", "XX"),
                Argument::word("gt", "GT"),
                Argument::word("lt", "LT"),
            ],
        )
        .since("7.0.0")
        .optional(),
    ],
    handler: Handler::Undetermined(crate::generic::expireat),
    ..GENERIC
};

pub(crate) const EXPIRETIME: Command = Command {
    name: "expiretime",
    full_name: "expiretime",
    summary: "Returns the expiry of a key as a Unix time in seconds",
    since: "7.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::generic::expiretime),
    ..GENERIC
};

pub(crate) const KEYS: Command = Command {
    name: "keys",
    full_name: "keys",
    summary: "Returns all keys that match a pattern",
    since: "1.0.0",
    complexity: "O(N), N: number of keys in the database",
    arity: 2,
    flags: flags![READONLY],
    acl: acl![KEYSPACE, DANGEROUS],
    tips: &["request_policy:all_shards", "nondeterministic_output_order"],
    arguments: &[Argument::pattern("pattern")],
    route: Route::All,
    handler: Handler::Keyed(crate::generic::keys),
    ..GENERIC
};

pub(crate) const MOVE: Command = Command {
    name: "move",
    full_name: "move",
    summary: "Moves a key to another database",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![WRITE, FAST, OTHER_DATABASES],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("db")],
    handler: Handler::Keyed(crate::generic::move_key),
    ..GENERIC
};

pub(crate) const OBJECT: Command = Command {
    name: "object",
    full_name: "object",
    summary: "Returns information about the representation of values",
    since: "2.2.3",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    acl: Acl::empty(),
    subcommands: &[OBJECT_ENCODING, OBJECT_FREQ, OBJECT_HELP, OBJECT_IDLETIME, OBJECT_REFCOUNT],
    route: Route::None,
    ..GENERIC
};

pub(crate) const OBJECT_ENCODING: Command = Command {
    name: "encoding",
    full_name: "object|encoding",
    summary: "Returns the encoding of the value of a key",
    since: "2.2.3",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, PLAIN],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(2, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::object::encoding),
    ..GENERIC
};

pub(crate) const OBJECT_FREQ: Command = Command {
    name: "freq",
    full_name: "object|freq",
    summary: "Returns the access frequency of a key, on the logarithmic scale of the LFU policies",
    since: "4.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, PLAIN],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(2, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::object::freq),
    ..GENERIC
};

pub(crate) const OBJECT_HELP: Command = Command {
    name: "help",
    full_name: "object|help",
    summary: "Returns help on the subcommands",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    route: Route::None,
    handler: Handler::Local(crate::object::help),
    ..GENERIC
};

pub(crate) const OBJECT_IDLETIME: Command = Command {
    name: "idletime",
    full_name: "object|idletime",
    summary: "Returns the seconds since the last access to a key",
    since: "2.2.3",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, PLAIN],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(2, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::object::idletime),
    ..GENERIC
};

pub(crate) const OBJECT_REFCOUNT: Command = Command {
    name: "refcount",
    full_name: "object|refcount",
    summary: "Returns the reference count of the value of a key",
    since: "2.2.3",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, PLAIN],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(2, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::object::refcount),
    ..GENERIC
};

pub(crate) const PERSIST: Command = Command {
    name: "persist",
    full_name: "persist",
    summary: "Removes the expiry of a key",
    since: "2.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::generic::persist),
    ..GENERIC
};

pub(crate) const PEXPIRE: Command = Command {
    name: "pexpire",
    full_name: "pexpire",
    summary: "Sets the expiry of a key in milliseconds",
    since: "2.6.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`")],
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::integer("milliseconds"),
        Argument::one_of(
            "condition",
            &[
                Argument::word("nx", "NX"),
                Argument::word("xx", "XX"),
                Argument::word("gt", "GT"),
                Argument::word("lt", "LT"),
            ],
        )
        .since("7.0.0")
        .optional(),
    ],
    handler: Handler::Undetermined(crate::generic::pexpire),
    ..GENERIC
};

pub(crate) const PEXPIREAT: Command = Command {
    name: "pexpireat",
    full_name: "pexpireat",
    summary: "Sets the expiry of a key to a Unix time in milliseconds",
    since: "2.6.0",
    complexity: "O(1)",
    history: &[("7.0.0", "Conditions `NX`, `XX`, `GT`, `LT`")],
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::unix_time("unix-time-milliseconds"),
        Argument::one_of(
            "condition",
            &[
                Argument::word("nx", "NX"),
                Argument::word("xx", "XX"),
                Argument::word("gt", "GT"),
                Argument::word("lt", "LT"),
            ],
        )
        .since("7.0.0")
        .optional(),
    ],
    handler: Handler::Undetermined(crate::generic::pexpireat),
    ..GENERIC
};

pub(crate) const PEXPIRETIME: Command = Command {
    name: "pexpiretime",
    full_name: "pexpiretime",
    summary: "Returns the expiry of a key as a Unix time in milliseconds",
    since: "7.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::generic::pexpiretime),
    ..GENERIC
};

pub(crate) const PTTL: Command = Command {
    name: "pttl",
    full_name: "pttl",
    summary: "Returns the TTL of a key in milliseconds",
    since: "2.6.0",
    complexity: "O(1)",
    history: &[("2.8.0", "-2 for a missing key")],
    arity: 2,
    flags: flags![READONLY, FAST],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::generic::pttl),
    ..GENERIC
};

pub(crate) const RANDOMKEY: Command = Command {
    name: "randomkey",
    full_name: "randomkey",
    summary: "Returns a random key of the database",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 1,
    flags: flags![READONLY],
    tips: &["request_policy:all_shards", "nondeterministic_output"],
    route: Route::Custom(crate::generic::randomkey_route),
    handler: Handler::Undetermined(crate::generic::randomkey),
    ..GENERIC
};

pub(crate) const RENAME: Command = Command {
    name: "rename",
    full_name: "rename",
    summary: "Renames a key, replacing a key with the new name",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![WRITE, PLAIN],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"]), KeySpec::at(2, &["OW", "update"])],
    arguments: &[Argument::key("key", 0), Argument::key("newkey", 1)],
    handler: Handler::Keyed(crate::generic::rename),
    ..GENERIC
};

pub(crate) const RENAMENX: Command = Command {
    name: "renamenx",
    full_name: "renamenx",
    summary: "Renames a key unless the new name exists",
    since: "1.0.0",
    complexity: "O(1)",
    history: &[("3.2.0", "Both names can be the same")],
    arity: 3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"]), KeySpec::at(2, &["OW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::key("newkey", 1)],
    handler: Handler::Keyed(crate::generic::renamenx),
    ..GENERIC
};

pub(crate) const SCAN: Command = Command {
    name: "scan",
    full_name: "scan",
    summary: "Iterates over the keys of the database with a cursor",
    since: "2.8.0",
    complexity: "O(1) per call, O(N) for a full iteration, N: number of keys in the database",
    history: &[("6.0.0", "Option `TYPE`")],
    arity: -2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output", "request_policy:special"],
    arguments: &[
        Argument::integer("cursor"),
        Argument::pattern("pattern").token("MATCH").optional(),
        Argument::integer("count").token("COUNT").optional(),
        Argument::string("type").token("TYPE").since("6.0.0").optional(),
    ],
    route: Route::Custom(crate::generic::scan_route),
    handler: Handler::Keyed(crate::generic::scan),
    ..GENERIC
};

pub(crate) const TOUCH: Command = Command {
    name: "touch",
    full_name: "touch",
    summary: "Updates the access time of keys and returns how many exist",
    since: "3.2.1",
    complexity: "O(N), N: number of keys",
    arity: -2,
    flags: flags![READONLY, FAST],
    tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
    key_specs: &[KeySpec::all_from(1, 1, &["RO"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::generic::touch),
    ..GENERIC
};

pub(crate) const TTL: Command = Command {
    name: "ttl",
    full_name: "ttl",
    summary: "Returns the TTL of a key in seconds",
    since: "1.0.0",
    complexity: "O(1)",
    history: &[("2.8.0", "-2 for a missing key")],
    arity: 2,
    flags: flags![READONLY, FAST],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::generic::ttl),
    ..GENERIC
};

pub(crate) const TYPE: Command = Command {
    name: "type",
    full_name: "type",
    summary: "Returns the type of the value of a key",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::generic::key_type),
    ..GENERIC
};

pub(crate) const UNLINK: Command = Command {
    name: "unlink",
    full_name: "unlink",
    summary: "Deletes keys and frees large values in the background",
    since: "4.0.0",
    complexity: "O(1) per key; freeing the memory in the background is O(N), N: number of allocations",
    arity: -2,
    flags: flags![WRITE, FAST],
    tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
    key_specs: &[KeySpec::all_from(1, 1, &["RM", "delete"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::generic::unlink),
    ..GENERIC
};
