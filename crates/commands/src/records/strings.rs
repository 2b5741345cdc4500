//! The records of the string commands.

use pantala_engine::command::{Acl, Argument, ArgumentKind, Command, Flags, Handler, KeySpec, Route};
use pantala_resp::Args;

use super::{deadline_or, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    APPEND,
    DECR,
    DECRBY,
    GET,
    GETDEL,
    GETEX,
    GETRANGE,
    GETSET,
    INCR,
    INCRBY,
    INCRBYFLOAT,
    LCS,
    MGET,
    MSET,
    MSETNX,
    PSETEX,
    SET,
    SETEX,
    SETNX,
    SETRANGE,
    STRLEN,
    SUBSTR,
];

/// Common fields of the string commands: their keys determine the shards.
const STRING: Command = Command { group: "string", acl: Acl::STRING, route: Route::Keys, ..Command::BLANK };

pub(crate) const APPEND: Command = Command {
    name: "append",
    full_name: "append",
    summary: "Appends bytes to a string, creating the key if it doesn't exist",
    since: "2.0.0",
    complexity: "O(1) amortized, for a short value",
    arity: 3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("value")],
    handler: Handler::Keyed(crate::strings::append),
    ..STRING
};

pub(crate) const DECR: Command = Command {
    name: "decr",
    full_name: "decr",
    summary: "Decrements the integer value of a key by one",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::strings::decr),
    ..STRING
};

pub(crate) const DECRBY: Command = Command {
    name: "decrby",
    full_name: "decrby",
    summary: "Decrements the integer value of a key by a given amount",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("decrement")],
    handler: Handler::Keyed(crate::strings::decrby),
    ..STRING
};

pub(crate) const GET: Command = Command {
    name: "get",
    full_name: "get",
    summary: "Returns the string value of a key",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST, PUBLISHES],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::strings::get),
    ..STRING
};

pub(crate) const GETDEL: Command = Command {
    name: "getdel",
    full_name: "getdel",
    summary: "Returns the string value of a key and deletes the key",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::strings::getdel),
    ..STRING
};

pub(crate) const GETEX: Command = Command {
    name: "getex",
    full_name: "getex",
    summary: "Returns the string value of a key and sets or removes its expiry",
    since: "6.2.0",
    complexity: "O(1)",
    arity: -2,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"]).note("Writes only the expiry")],
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of("expiration", &deadline_or(Argument::word("persist", "PERSIST"))).optional(),
    ],
    handler: Handler::Undetermined(crate::strings::getex),
    ..STRING
};

pub(crate) const GETRANGE: Command = Command {
    name: "getrange",
    full_name: "getrange",
    summary: "Returns the bytes of a string between two offsets",
    since: "2.4.0",
    complexity: "O(N), N: length of the range; O(1) for a short one",
    arity: 4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::integer("start"), Argument::integer("end")],
    handler: Handler::Keyed(crate::strings::getrange),
    ..STRING
};

pub(crate) const GETSET: Command = Command {
    name: "getset",
    full_name: "getset",
    summary: "Sets the string value of a key and returns the previous value",
    since: "1.0.0",
    complexity: "O(1)",
    deprecated: Some(("6.2.0", "`SET` with `GET`")),
    arity: 3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::string("value")],
    handler: Handler::Keyed(crate::strings::getset),
    ..STRING
};

pub(crate) const INCR: Command = Command {
    name: "incr",
    full_name: "incr",
    summary: "Increments the integer value of a key by one",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::strings::incr),
    ..STRING
};

pub(crate) const INCRBY: Command = Command {
    name: "incrby",
    full_name: "incrby",
    summary: "Increments the integer value of a key by a given amount",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("increment")],
    handler: Handler::Keyed(crate::strings::incrby),
    ..STRING
};

pub(crate) const INCRBYFLOAT: Command = Command {
    name: "incrbyfloat",
    full_name: "incrbyfloat",
    summary: "Increments the numeric value of a key by a given decimal amount",
    since: "2.6.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::new("increment", ArgumentKind::Double)],
    handler: Handler::Undetermined(crate::strings::incrbyfloat),
    ..STRING
};

pub(crate) const LCS: Command = Command {
    name: "lcs",
    full_name: "lcs",
    summary: "Returns the longest common subsequence of two strings",
    since: "7.0.0",
    complexity: "O(N*M), N and M: lengths of the two strings",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec::range(1, 1, &["RO", "access"])],
    arguments: &[
        Argument::key("key1", 0),
        Argument::key("key2", 0),
        Argument::word("len", "LEN").optional(),
        Argument::word("idx", "IDX").optional(),
        Argument::integer("len").token("MINMATCHLEN").optional(),
        Argument::word("withmatchlen", "WITHMATCHLEN").optional(),
    ],
    handler: Handler::Keyed(crate::strings::lcs),
    ..STRING
};

pub(crate) const MGET: Command = Command {
    name: "mget",
    full_name: "mget",
    summary: "Returns the string values of several keys",
    since: "1.0.0",
    complexity: "O(N), N: number of keys",
    arity: -2,
    flags: flags![READONLY, FAST],
    tips: &["request_policy:multi_shard"],
    key_specs: &[KeySpec::all_from(1, 1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Keyed(crate::strings::mget),
    ..STRING
};

pub(crate) const MSET: Command = Command {
    name: "mset",
    full_name: "mset",
    summary: "Sets several keys atomically",
    since: "1.0.1",
    complexity: "O(N), N: number of keys",
    arity: -3,
    flags: flags![WRITE, DENYOOM],
    tips: &["request_policy:multi_shard", "response_policy:all_succeeded"],
    key_specs: &[KeySpec::all_from(1, 2, &["OW", "update"])],
    arguments: &[Argument::block("key_value", &[Argument::key("key", 0), Argument::string("value")]).multiple()],
    handler: Handler::Keyed(crate::strings::mset),
    ..STRING
};

pub(crate) const MSETNX: Command = Command {
    name: "msetnx",
    full_name: "msetnx",
    summary: "Sets several keys atomically, or none if any of them exists",
    since: "1.0.1",
    complexity: "O(N), N: number of keys",
    arity: -3,
    flags: flags![WRITE, DENYOOM],
    tips: &["request_policy:multi_shard", "response_policy:agg_min"],
    key_specs: &[KeySpec::all_from(1, 2, &["OW", "insert"])],
    arguments: &[Argument::block("key_value", &[Argument::key("key", 0), Argument::string("value")]).multiple()],
    handler: Handler::Keyed(crate::strings::msetnx),
    ..STRING
};

pub(crate) const PSETEX: Command = Command {
    name: "psetex",
    full_name: "psetex",
    summary: "Sets the string value of a key with an expiry in milliseconds",
    since: "2.6.0",
    complexity: "O(1)",
    arity: 4,
    flags: flags![WRITE, DENYOOM, PLAIN],
    key_specs: &[KeySpec::at(1, &["OW", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("milliseconds"), Argument::string("value")],
    handler: Handler::Undetermined(crate::strings::psetex),
    ..STRING
};

pub(crate) const SET: Command = Command {
    name: "set",
    full_name: "set",
    summary: "Sets the string value of a key, optionally with a condition and an expiry",
    since: "1.0.0",
    complexity: "O(1)",
    history: &[
        ("2.6.12", "Options `EX`, `PX`, `NX`, `XX`"),
        ("6.0.0", "Option `KEEPTTL`"),
        ("6.2.0", "Options `GET`, `EXAT`, `PXAT`"),
        ("7.0.0", "`NX` and `GET` can be combined"),
    ],
    arity: -3,
    flags: flags![WRITE, DENYOOM, PLAIN],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update", "variable_flags"])
        .note("Reads the old value only with `GET`; otherwise only writes")],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("value"),
        Argument::one_of("condition", &[Argument::word("nx", "NX"), Argument::word("xx", "XX")])
            .since("2.6.12")
            .optional(),
        Argument::word("get", "GET").since("6.2.0").optional(),
        Argument::one_of(
            "expiration",
            &[
                Argument::integer("seconds").token("EX").since("2.6.12"),
                Argument::integer("milliseconds").token("PX").since("2.6.12"),
                Argument::unix_time("unix-time-seconds").token("EXAT").since("6.2.0"),
                Argument::unix_time("unix-time-milliseconds").token("PXAT").since("6.2.0"),
                Argument::word("keepttl", "KEEPTTL").since("6.0.0"),
            ],
        )
        .optional(),
    ],
    handler: Handler::Keyed(crate::strings::set),
    key_flags: Some(set_key_flags),
    ..STRING
};

pub(crate) const SETEX: Command = Command {
    name: "setex",
    full_name: "setex",
    summary: "Sets the string value of a key with an expiry in seconds",
    since: "2.0.0",
    complexity: "O(1)",
    arity: 4,
    flags: flags![WRITE, DENYOOM, PLAIN],
    key_specs: &[KeySpec::at(1, &["OW", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("seconds"), Argument::string("value")],
    handler: Handler::Undetermined(crate::strings::setex),
    ..STRING
};

pub(crate) const SETNX: Command = Command {
    name: "setnx",
    full_name: "setnx",
    summary: "Sets the string value of a key unless the key exists",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["OW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("value")],
    handler: Handler::Keyed(crate::strings::setnx),
    ..STRING
};

pub(crate) const SETRANGE: Command = Command {
    name: "setrange",
    full_name: "setrange",
    summary: "Overwrites part of a string from an offset, padding with zero bytes",
    since: "2.2.0",
    complexity: "O(1) for a short value, otherwise O(M), M: length of the value",
    arity: 4,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("offset"), Argument::string("value")],
    handler: Handler::Keyed(crate::strings::setrange),
    ..STRING
};

pub(crate) const STRLEN: Command = Command {
    name: "strlen",
    full_name: "strlen",
    summary: "Returns the length of a string in bytes",
    since: "2.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::strings::strlen),
    ..STRING
};

pub(crate) const SUBSTR: Command = Command {
    name: "substr",
    full_name: "substr",
    summary: "Returns the bytes of a string between two offsets",
    since: "1.0.0",
    complexity: "O(N), N: length of the range; O(1) for a short one",
    deprecated: Some(("2.0.0", "`GETRANGE`")),
    arity: 4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::integer("start"), Argument::integer("end")],
    handler: Handler::Keyed(crate::strings::substr),
    ..STRING
};

/// Returns the key flags of a SET call. Only the option `GET` reads the old value. Without `GET`, a
/// user who may only write the key may call SET.
fn set_key_flags(args: &Args<'_>) -> &'static [&'static str] {
    let reads = args.iter().skip(3).any(|option| option.eq_ignore_ascii_case(b"get"));
    if reads { &["RW", "access", "update"] } else { &["OW", "update"] }
}
