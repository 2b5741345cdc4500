//! The sorted set commands: members, their scores and ranks, pops and scans.

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

/// What these commands have in common: their keys choose the shards.
const SORTED_SET: Command = Command { group: "sorted-set", acl: Acl::SORTEDSET, route: Route::Keys, ..Command::BLANK };

pub(crate) const BZMPOP: Command = Command {
    name: "bzmpop",
    full_name: "bzmpop",
    summary: "As ZMPOP, waiting for members where there are none",
    since: "7.0.0",
    complexity: "O(K) + O(M log N), K: keys given, M: members taken, N: members of the set",
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
    handler: Handler::Keyed(crate::sorted_sets::bzmpop),
    ..SORTED_SET
};

pub(crate) const BZPOPMAX: Command = Command {
    name: "bzpopmax",
    full_name: "bzpopmax",
    summary: "Takes the member of the highest score out of the first sorted set that has any, waiting for one where none has",
    since: "5.0.0",
    complexity: "O(log N), N: members of the set",
    history: &[("6.0.0", "A timeout may have a fraction")],
    arity: -3,
    flags: flags![WRITE, NOSCRIPT, FAST, BLOCKING],
    key_specs: &[KeySpec::range(1, -2, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0).multiple(), Argument::new("timeout", ArgumentKind::Double)],
    handler: Handler::Keyed(crate::sorted_sets::bzpopmax),
    ..SORTED_SET
};

pub(crate) const BZPOPMIN: Command = Command {
    name: "bzpopmin",
    full_name: "bzpopmin",
    summary: "Takes the member of the lowest score out of the first sorted set that has any, waiting for one where none has",
    since: "5.0.0",
    complexity: "O(log N), N: members of the set",
    history: &[("6.0.0", "A timeout may have a fraction")],
    arity: -3,
    flags: flags![WRITE, NOSCRIPT, FAST, BLOCKING],
    key_specs: &[KeySpec::range(1, -2, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0).multiple(), Argument::new("timeout", ArgumentKind::Double)],
    handler: Handler::Keyed(crate::sorted_sets::bzpopmin),
    ..SORTED_SET
};

pub(crate) const ZADD: Command = Command {
    name: "zadd",
    full_name: "zadd",
    summary: "Adds members with scores to a sorted set, or gives them new scores",
    since: "1.2.0",
    complexity: "O(log N) for each member, N: members of the set",
    history: &[
        ("2.4.0", "Takes several members."),
        ("3.0.2", "`XX`, `NX`, `CH` and `INCR`."),
        ("6.2.0", "`GT` and `LT`."),
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
    summary: "Counts the members of a sorted set",
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
    summary: "Adds to the score of a member of a sorted set",
    since: "1.2.0",
    complexity: "O(log N), N: members of the set",
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
    summary: "Takes the first or last members out of the first sorted set that has any",
    since: "7.0.0",
    complexity: "O(K) + O(M log N), K: keys given, M: members taken, N: members of the set",
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
    summary: "Reads the scores of several members of a sorted set",
    since: "6.2.0",
    complexity: "O(N), N: members asked for",
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
    summary: "Takes the members with the highest scores out of a sorted set",
    since: "5.0.0",
    complexity: "O(M log N), M: members taken, N: members of the set",
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
    summary: "Takes the members with the lowest scores out of a sorted set",
    since: "5.0.0",
    complexity: "O(M log N), M: members taken, N: members of the set",
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
    summary: "Picks members of a sorted set at random",
    since: "6.2.0",
    complexity: "O(M log N), M: members picked, N: members of the set",
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
    handler: Handler::Keyed(crate::sorted_sets::zrandmember),
    ..SORTED_SET
};

pub(crate) const ZRANK: Command = Command {
    name: "zrank",
    full_name: "zrank",
    summary: "Tells how many members of a sorted set come before one of them",
    since: "2.0.0",
    complexity: "O(log N), N: members of the set",
    history: &[("7.2.0", "`WITHSCORE`.")],
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
    complexity: "O(M log N), M: members given, N: members of the set",
    history: &[("2.4.0", "Takes several members.")],
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
    summary: "Tells how many members of a sorted set come after one of them",
    since: "2.0.0",
    complexity: "O(log N), N: members of the set",
    history: &[("7.2.0", "`WITHSCORE`.")],
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
    summary: "Goes through a sorted set page by page",
    since: "2.8.0",
    complexity: "O(1) a call, O(N) for all of a set of N members",
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
    summary: "Reads the score of a member of a sorted set",
    since: "1.2.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::string("member")],
    handler: Handler::Keyed(crate::sorted_sets::zscore),
    ..SORTED_SET
};
