//! The records of the sorted set commands for members, scores, ranks, pops and scans.

use pantala_engine::command::{
    Acl, Argument, ArgumentKind, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route,
};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    BZMPOP,
    BZPOPMAX,
    BZPOPMIN,
    ZADD,
    ZCARD,
    ZINCRBY,
    ZMPOP,
    ZMSCORE,
    ZPOPMAX,
    ZPOPMIN,
    ZRANDMEMBER,
    ZRANK,
    ZREM,
    ZREVRANK,
    ZSCAN,
    ZSCORE,
];

/// Common fields of these commands: their keys determine the shards.
const SORTED_SET: Command = Command { group: "sorted-set", acl: Acl::SORTEDSET, route: Route::Keys, ..Command::BLANK };

pub(crate) const BZMPOP: Command = Command {
    name: "bzmpop",
    full_name: "bzmpop",
    summary: "Pops members like ZMPOP, and blocks until there are any",
    since: "7.0.0",
    complexity: "O(K) + O(M log N), K: number of given keys, M: number of popped members, N: size of the set",
    arity: -5,
    flags: flags![WRITE, BLOCKING],
    key_specs: &[KeySpec {
        notes: "",
        flags: &["RW", "access", "delete"],
        begin: BeginSearch::Index(2),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
    }],
    arguments: &[
        Argument::new("timeout", ArgumentKind::Double),
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        Argument::one_of("where", &[Argument::word("min", "MIN"), Argument::word("max", "MAX")]),
        Argument::integer("count").token("COUNT").optional(),
    ],
    handler: Handler::Undetermined(crate::sorted_sets::bzmpop),
    ..SORTED_SET
};

pub(crate) const BZPOPMAX: Command = Command {
    name: "bzpopmax",
    full_name: "bzpopmax",
    summary: "Pops the member with the highest score from the first nonempty sorted set, and blocks until there is one",
    since: "5.0.0",
    complexity: "O(log N), N: size of the set",
    history: &[("6.0.0", "The timeout can have a fraction")],
    arity: -3,
    flags: flags![WRITE, NOSCRIPT, FAST, BLOCKING],
    key_specs: &[KeySpec::range(1, -2, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0).multiple(), Argument::new("timeout", ArgumentKind::Double)],
    handler: Handler::Undetermined(crate::sorted_sets::bzpopmax),
    ..SORTED_SET
};

pub(crate) const BZPOPMIN: Command = Command {
    name: "bzpopmin",
    full_name: "bzpopmin",
    summary: "Pops the member with the lowest score from the first nonempty sorted set, and blocks until there is one",
    since: "5.0.0",
    complexity: "O(log N), N: size of the set",
    history: &[("6.0.0", "The timeout can have a fraction")],
    arity: -3,
    flags: flags![WRITE, NOSCRIPT, FAST, BLOCKING],
    key_specs: &[KeySpec::range(1, -2, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0).multiple(), Argument::new("timeout", ArgumentKind::Double)],
    handler: Handler::Undetermined(crate::sorted_sets::bzpopmin),
    ..SORTED_SET
};

pub(crate) const ZADD: Command = Command {
    name: "zadd",
    full_name: "zadd",
    summary: "Adds members to a sorted set, or updates their scores",
    since: "1.2.0",
    complexity: "O(log N) per member, N: size of the set",
    history: &[
        ("2.4.0", "Accepts several members"),
        ("3.0.2", "Options `XX`, `NX`, `CH`, `INCR`"),
        ("6.2.0", "Options `GT`, `LT`"),
    ],
    arity: -4,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of("condition", &[Argument::word("nx", "NX"), Argument::word("xx", "XX")])
            .since("3.0.2")
            .optional(),
        Argument::one_of("comparison", &[Argument::word("gt", "GT"), Argument::word("lt", "LT")])
            .since("6.2.0")
            .optional(),
        Argument::word("change", "CH").since("3.0.2").optional(),
        Argument::word("increment", "INCR").since("3.0.2").optional(),
        Argument::block("score_member", &[Argument::new("score", ArgumentKind::Double), Argument::string("member")])
            .multiple(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zadd),
    ..SORTED_SET
};

pub(crate) const ZCARD: Command = Command {
    name: "zcard",
    full_name: "zcard",
    summary: "Returns the number of members of a sorted set",
    since: "1.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::sorted_sets::zcard),
    ..SORTED_SET
};

pub(crate) const ZINCRBY: Command = Command {
    name: "zincrby",
    full_name: "zincrby",
    summary: "Increments the score of a member of a sorted set",
    since: "1.2.0",
    complexity: "O(log N), N: size of the set",
    arity: 4,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("increment"), Argument::string("member")],
    handler: Handler::Keyed(crate::sorted_sets::zincrby),
    ..SORTED_SET
};

pub(crate) const ZMPOP: Command = Command {
    name: "zmpop",
    full_name: "zmpop",
    summary: "Pops the members with the lowest or highest scores from the first nonempty sorted set",
    since: "7.0.0",
    complexity: "O(K) + O(M log N), K: number of given keys, M: number of popped members, N: size of the set",
    arity: -4,
    flags: flags![WRITE],
    key_specs: &[KeySpec {
        notes: "",
        flags: &["RW", "access", "delete"],
        begin: BeginSearch::Index(1),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
    }],
    arguments: &[
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        Argument::one_of("where", &[Argument::word("min", "MIN"), Argument::word("max", "MAX")]),
        Argument::integer("count").token("COUNT").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zmpop),
    ..SORTED_SET
};

pub(crate) const ZMSCORE: Command = Command {
    name: "zmscore",
    full_name: "zmscore",
    summary: "Returns the scores of several members of a sorted set",
    since: "6.2.0",
    complexity: "O(N), N: number of given members",
    arity: -3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("member").multiple()],
    handler: Handler::Keyed(crate::sorted_sets::zmscore),
    ..SORTED_SET
};

pub(crate) const ZPOPMAX: Command = Command {
    name: "zpopmax",
    full_name: "zpopmax",
    summary: "Pops the members with the highest scores from a sorted set",
    since: "5.0.0",
    complexity: "O(M log N), M: number of popped members, N: size of the set",
    arity: -2,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count").optional()],
    handler: Handler::Keyed(crate::sorted_sets::zpopmax),
    ..SORTED_SET
};

pub(crate) const ZPOPMIN: Command = Command {
    name: "zpopmin",
    full_name: "zpopmin",
    summary: "Pops the members with the lowest scores from a sorted set",
    since: "5.0.0",
    complexity: "O(M log N), M: number of popped members, N: size of the set",
    arity: -2,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count").optional()],
    handler: Handler::Keyed(crate::sorted_sets::zpopmin),
    ..SORTED_SET
};

pub(crate) const ZRANDMEMBER: Command = Command {
    name: "zrandmember",
    full_name: "zrandmember",
    summary: "Returns random members of a sorted set",
    since: "6.2.0",
    complexity: "O(M log N), M: number of returned members, N: size of the set",
    arity: -2,
    flags: flags![READONLY],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::block(
            "options",
            &[Argument::integer("count"), Argument::word("withscores", "WITHSCORES").optional()],
        )
        .optional(),
    ],
    handler: Handler::Undetermined(crate::sorted_sets::zrandmember),
    ..SORTED_SET
};

pub(crate) const ZRANK: Command = Command {
    name: "zrank",
    full_name: "zrank",
    summary: "Returns the rank of a member of a sorted set, lowest score first",
    since: "2.0.0",
    complexity: "O(log N), N: size of the set",
    history: &[("7.2.0", "Option `WITHSCORE`")],
    arity: -3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("member"),
        Argument::word("withscore", "WITHSCORE").since("7.2.0").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrank),
    ..SORTED_SET
};

pub(crate) const ZREM: Command = Command {
    name: "zrem",
    full_name: "zrem",
    summary: "Removes members from a sorted set",
    since: "1.2.0",
    complexity: "O(M log N), M: number of given members, N: size of the set",
    history: &[("2.4.0", "Accepts several members")],
    arity: -3,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::string("member").multiple()],
    handler: Handler::Keyed(crate::sorted_sets::zrem),
    ..SORTED_SET
};

pub(crate) const ZREVRANK: Command = Command {
    name: "zrevrank",
    full_name: "zrevrank",
    summary: "Returns the rank of a member of a sorted set, highest score first",
    since: "2.0.0",
    complexity: "O(log N), N: size of the set",
    history: &[("7.2.0", "Option `WITHSCORE`")],
    arity: -3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("member"),
        Argument::word("withscore", "WITHSCORE").since("7.2.0").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zrevrank),
    ..SORTED_SET
};

pub(crate) const ZSCAN: Command = Command {
    name: "zscan",
    full_name: "zscan",
    summary: "Iterates over the members of a sorted set with a cursor",
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
    handler: Handler::Keyed(crate::sorted_sets::zscan),
    ..SORTED_SET
};

pub(crate) const ZSCORE: Command = Command {
    name: "zscore",
    full_name: "zscore",
    summary: "Returns the score of a member of a sorted set",
    since: "1.2.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("member")],
    handler: Handler::Keyed(crate::sorted_sets::zscore),
    ..SORTED_SET
};
