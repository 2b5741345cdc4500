//! The sorted set commands that join several sets into one.

use pantala_engine::command::{Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[ZDIFF, ZDIFFSTORE, ZINTER, ZINTERCARD, ZINTERSTORE, ZUNION, ZUNIONSTORE];

/// What these commands have in common: their keys choose the shards.
const SORTED_SET: Command = Command { group: "sorted-set", acl: Acl::SORTEDSET, route: Route::Keys, ..Command::BLANK };

pub(crate) const ZDIFF: Command = Command {
    name: "zdiff",
    full_name: "zdiff",
    summary: "Answers the members of the first sorted set that no other one has",
    since: "6.2.0",
    complexity: "O(L + (N - K) log N) at worst, L: members of all sets, N: of the first, K: of the result",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec {
        notes: "",
        flags: &["RO", "access"],
        begin: BeginSearch::Index(1),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
    }],
    arguments: &[
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        Argument::word("withscores", "WITHSCORES").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zdiff),
    ..SORTED_SET
};

pub(crate) const ZDIFFSTORE: Command = Command {
    name: "zdiffstore",
    full_name: "zdiffstore",
    summary: "Stores the members of the first sorted set that no other one has",
    since: "6.2.0",
    complexity: "O(L + (N - K) log N) at worst, L: members of all sets, N: of the first, K: of the result",
    arity: -4,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[
        KeySpec::at(1, &["OW", "update"]),
        KeySpec {
            notes: "",
            flags: &["RO", "access"],
            begin: BeginSearch::Index(2),
            find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
        },
    ],
    arguments: &[Argument::key("destination", 0), Argument::integer("numkeys"), Argument::key("key", 1).multiple()],
    handler: Handler::Keyed(crate::sorted_sets::zdiffstore),
    ..SORTED_SET
};

pub(crate) const ZINTER: Command = Command {
    name: "zinter",
    full_name: "zinter",
    summary: "Answers the members that all sorted sets have",
    since: "6.2.0",
    complexity: "O(N K + M log M) at worst, N: members of the smallest set, K: sets, M: members of the result",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec {
        notes: "",
        flags: &["RO", "access"],
        begin: BeginSearch::Index(1),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
    }],
    arguments: &[
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        Argument::integer("weight").token("WEIGHTS").optional().multiple(),
        Argument::one_of(
            "aggregate",
            &[Argument::word("sum", "SUM"), Argument::word("min", "MIN"), Argument::word("max", "MAX")],
        )
        .token("AGGREGATE")
        .optional(),
        Argument::word("withscores", "WITHSCORES").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zinter),
    ..SORTED_SET
};

pub(crate) const ZINTERCARD: Command = Command {
    name: "zintercard",
    full_name: "zintercard",
    summary: "Counts the members that all sorted sets have",
    since: "7.0.0",
    complexity: "O(N K) at worst, N: members of the smallest set, K: sets",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec {
        notes: "",
        flags: &["RO", "access"],
        begin: BeginSearch::Index(1),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
    }],
    arguments: &[
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        Argument::integer("limit").token("LIMIT").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zintercard),
    ..SORTED_SET
};

pub(crate) const ZINTERSTORE: Command = Command {
    name: "zinterstore",
    full_name: "zinterstore",
    summary: "Stores the members that all sorted sets have",
    since: "2.0.0",
    complexity: "O(N K + M log M) at worst, N: members of the smallest set, K: sets, M: members of the result",
    arity: -4,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[
        KeySpec::at(1, &["OW", "update"]),
        KeySpec {
            notes: "",
            flags: &["RO", "access"],
            begin: BeginSearch::Index(2),
            find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
        },
    ],
    arguments: &[
        Argument::key("destination", 0),
        Argument::integer("numkeys"),
        Argument::key("key", 1).multiple(),
        Argument::integer("weight").token("WEIGHTS").optional().multiple(),
        Argument::one_of(
            "aggregate",
            &[Argument::word("sum", "SUM"), Argument::word("min", "MIN"), Argument::word("max", "MAX")],
        )
        .token("AGGREGATE")
        .optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zinterstore),
    ..SORTED_SET
};

pub(crate) const ZUNION: Command = Command {
    name: "zunion",
    full_name: "zunion",
    summary: "Answers the members that any of the sorted sets has",
    since: "6.2.0",
    complexity: "O(N + M log M), N: members of all sets, M: of the result",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec {
        notes: "",
        flags: &["RO", "access"],
        begin: BeginSearch::Index(1),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
    }],
    arguments: &[
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        Argument::integer("weight").token("WEIGHTS").optional().multiple(),
        Argument::one_of(
            "aggregate",
            &[Argument::word("sum", "SUM"), Argument::word("min", "MIN"), Argument::word("max", "MAX")],
        )
        .token("AGGREGATE")
        .optional(),
        Argument::word("withscores", "WITHSCORES").optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zunion),
    ..SORTED_SET
};

pub(crate) const ZUNIONSTORE: Command = Command {
    name: "zunionstore",
    full_name: "zunionstore",
    summary: "Stores the members that any of the sorted sets has",
    since: "2.0.0",
    complexity: "O(N + M log M), N: members of all sets, M: of the result",
    arity: -4,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[
        KeySpec::at(1, &["OW", "update"]),
        KeySpec {
            notes: "",
            flags: &["RO", "access"],
            begin: BeginSearch::Index(2),
            find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
        },
    ],
    arguments: &[
        Argument::key("destination", 0),
        Argument::integer("numkeys"),
        Argument::key("key", 1).multiple(),
        Argument::integer("weight").token("WEIGHTS").optional().multiple(),
        Argument::one_of(
            "aggregate",
            &[Argument::word("sum", "SUM"), Argument::word("min", "MIN"), Argument::word("max", "MAX")],
        )
        .token("AGGREGATE")
        .optional(),
    ],
    handler: Handler::Keyed(crate::sorted_sets::zunionstore),
    ..SORTED_SET
};
