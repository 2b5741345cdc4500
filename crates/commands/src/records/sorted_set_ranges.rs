//! The records of the sorted set commands on ranges of ranks, scores or members.

use pantala_engine::command::{Acl, Argument, ArgumentKind, Command, Flags, Handler, KeySpec, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    ZCOUNT,
    ZLEXCOUNT,
    ZRANGE,
    ZRANGEBYLEX,
    ZRANGEBYSCORE,
    ZRANGESTORE,
    ZREMRANGEBYLEX,
    ZREMRANGEBYRANK,
    ZREMRANGEBYSCORE,
    ZREVRANGE,
    ZREVRANGEBYLEX,
    ZREVRANGEBYSCORE,
];

/// Common fields of these commands: their keys determine the shards.
const SORTED_SET: Command = Command { group: "sorted-set", acl: Acl::SORTEDSET, route: Route::Keys, ..Command::BLANK };

pub(crate) const ZCOUNT: Command = Command {
    name: "zcount",
    full_name: "zcount",
    summary: "Counts the members of a sorted set within a range of scores",
    since: "2.0.0",
    complexity: "O(log N), N: size of the set",
    arity: 4,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::new("min", ArgumentKind::Double),
        Argument::new("max", ArgumentKind::Double),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zcount),
    ..SORTED_SET
};

pub(crate) const ZLEXCOUNT: Command = Command {
    name: "zlexcount",
    full_name: "zlexcount",
    summary: "Counts the members of a sorted set within a lexicographical range; all scores must be equal",
    since: "2.8.9",
    complexity: "O(log N), N: size of the set",
    arity: 4,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("min"), Argument::string("max")],
    handler: Handler::Keyed(crate::sorted_sets::zlexcount),
    ..SORTED_SET
};

pub(crate) const ZRANGE: Command = Command {
    name: "zrange",
    full_name: "zrange",
    summary: "Returns a range of a sorted set by rank, by score or lexicographically",
    since: "1.2.0",
    complexity: "O(log N + M), N: size of the set, M: number of returned members",
    history: &[("6.2.0", "Options `REV`, `BYSCORE`, `BYLEX`, `LIMIT`")],
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("start"),
        Argument::string("stop"),
        Argument::one_of("sortby", &[Argument::word("byscore", "BYSCORE"), Argument::word("bylex", "BYLEX")])
            .since("6.2.0")
            .optional(),
        Argument::word("rev", "REV").since("6.2.0").optional(),
        Argument::block("offset_count", &[Argument::integer("offset"), Argument::integer("count")])
            .token("LIMIT")
            .since("6.2.0")
            .optional(),
        Argument::word("withscores", "WITHSCORES").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrange),
    ..SORTED_SET
};

pub(crate) const ZRANGEBYLEX: Command = Command {
    name: "zrangebylex",
    full_name: "zrangebylex",
    summary: "Returns the members of a sorted set within a lexicographical range; all scores must be equal",
    since: "2.8.9",
    complexity: "O(log N + M), N: size of the set, M: number of returned members",
    deprecated: Some(("6.2.0", "`ZRANGE` with `BYLEX`")),
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("min"),
        Argument::string("max"),
        Argument::block("offset_count", &[Argument::integer("offset"), Argument::integer("count")])
            .token("LIMIT")
            .optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrangebylex),
    ..SORTED_SET
};

pub(crate) const ZRANGEBYSCORE: Command = Command {
    name: "zrangebyscore",
    full_name: "zrangebyscore",
    summary: "Returns the members of a sorted set within a range of scores",
    since: "1.0.5",
    complexity: "O(log N + M), N: size of the set, M: number of returned members",
    history: &[("2.0.0", "Option `WITHSCORES`")],
    deprecated: Some(("6.2.0", "`ZRANGE` with `BYSCORE`")),
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::new("min", ArgumentKind::Double),
        Argument::new("max", ArgumentKind::Double),
        Argument::word("withscores", "WITHSCORES").since("2.0.0").optional(),
        Argument::block("offset_count", &[Argument::integer("offset"), Argument::integer("count")])
            .token("LIMIT")
            .optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrangebyscore),
    ..SORTED_SET
};

pub(crate) const ZRANGESTORE: Command = Command {
    name: "zrangestore",
    full_name: "zrangestore",
    summary: "Stores a range of a sorted set in another key",
    since: "6.2.0",
    complexity: "O(log N + M), N: size of the set, M: number of stored members",
    arity: -5,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["OW", "update"]), KeySpec::at(2, &["RO", "access"])],
    arguments: &[
        Argument::key("dst", 0),
        Argument::key("src", 1),
        Argument::string("min"),
        Argument::string("max"),
        Argument::one_of("sortby", &[Argument::word("byscore", "BYSCORE"), Argument::word("bylex", "BYLEX")])
            .optional(),
        Argument::word("rev", "REV").optional(),
        Argument::block("offset_count", &[Argument::integer("offset"), Argument::integer("count")])
            .token("LIMIT")
            .optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrangestore),
    ..SORTED_SET
};

pub(crate) const ZREMRANGEBYLEX: Command = Command {
    name: "zremrangebylex",
    full_name: "zremrangebylex",
    summary: "Removes the members of a sorted set within a lexicographical range; all scores must be equal",
    since: "2.8.9",
    complexity: "O(M log N), N: size of the set, M: number of removed members",
    arity: 4,
    flags: flags![WRITE],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::string("min"), Argument::string("max")],
    handler: Handler::Keyed(crate::sorted_sets::zremrangebylex),
    ..SORTED_SET
};

pub(crate) const ZREMRANGEBYRANK: Command = Command {
    name: "zremrangebyrank",
    full_name: "zremrangebyrank",
    summary: "Removes the members of a sorted set within a range of ranks",
    since: "2.0.0",
    complexity: "O(M log N), N: size of the set, M: number of removed members",
    arity: 4,
    flags: flags![WRITE],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("start"), Argument::integer("stop")],
    handler: Handler::Keyed(crate::sorted_sets::zremrangebyrank),
    ..SORTED_SET
};

pub(crate) const ZREMRANGEBYSCORE: Command = Command {
    name: "zremrangebyscore",
    full_name: "zremrangebyscore",
    summary: "Removes the members of a sorted set within a range of scores",
    since: "1.2.0",
    complexity: "O(M log N), N: size of the set, M: number of removed members",
    arity: 4,
    flags: flags![WRITE],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::new("min", ArgumentKind::Double),
        Argument::new("max", ArgumentKind::Double),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zremrangebyscore),
    ..SORTED_SET
};

pub(crate) const ZREVRANGE: Command = Command {
    name: "zrevrange",
    full_name: "zrevrange",
    summary: "Returns the members of a sorted set within a range of ranks, highest score first",
    since: "1.2.0",
    complexity: "O(log N + M), N: size of the set, M: number of returned members",
    deprecated: Some(("6.2.0", "`ZRANGE` with `REV`")),
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::integer("start"),
        Argument::integer("stop"),
        Argument::word("withscores", "WITHSCORES").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrevrange),
    ..SORTED_SET
};

pub(crate) const ZREVRANGEBYLEX: Command = Command {
    name: "zrevrangebylex",
    full_name: "zrevrangebylex",
    summary: "Returns the members of a sorted set within a lexicographical range in reverse order; all scores must be equal",
    since: "2.8.9",
    complexity: "O(log N + M), N: size of the set, M: number of returned members",
    deprecated: Some(("6.2.0", "`ZRANGE` with `REV` and `BYLEX`")),
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("max"),
        Argument::string("min"),
        Argument::block("offset_count", &[Argument::integer("offset"), Argument::integer("count")])
            .token("LIMIT")
            .optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrevrangebylex),
    ..SORTED_SET
};

pub(crate) const ZREVRANGEBYSCORE: Command = Command {
    name: "zrevrangebyscore",
    full_name: "zrevrangebyscore",
    summary: "Returns the members of a sorted set within a range of scores, highest score first",
    since: "2.2.0",
    complexity: "O(log N + M), N: size of the set, M: number of returned members",
    history: &[("2.1.6", "`min` and `max` can be exclusive")],
    deprecated: Some(("6.2.0", "`ZRANGE` with `REV` and `BYSCORE`")),
    arity: -4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::new("max", ArgumentKind::Double),
        Argument::new("min", ArgumentKind::Double),
        Argument::word("withscores", "WITHSCORES").optional(),
        Argument::block("offset_count", &[Argument::integer("offset"), Argument::integer("count")])
            .token("LIMIT")
            .optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrevrangebyscore),
    ..SORTED_SET
};
