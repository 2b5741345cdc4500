//! The records of the commands for unions, intersections and differences of sorted sets.

use pantala_engine::command::{Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[ZDIFF, ZDIFFSTORE, ZINTER, ZINTERCARD, ZINTERSTORE, ZUNION, ZUNIONSTORE];

/// Common fields of these commands: their keys determine the shards.
const SORTED_SET: Command = Command { group: "sorted-set", acl: Acl::SORTEDSET, route: Route::Keys, ..Command::BLANK };

pub(crate) const ZDIFF: Command = Command {
    name: "zdiff",
    full_name: "zdiff",
    summary: "Returns the members of the first sorted set that are in none of the others",
    since: "6.2.0",
    complexity: "O(L + (N - K) log N) at worst, L: total size of all sets, N: size of the first, K: size of the result",
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
    summary: "Stores the members of the first sorted set that are in none of the others",
    since: "6.2.0",
    complexity: "O(L + (N - K) log N) at worst, L: total size of all sets, N: size of the first, K: size of the result",
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
    summary: "Returns the intersection of several sorted sets",
    since: "6.2.0",
    complexity: "O(N K + M log M) at worst, N: size of the smallest set, K: number of sets, M: size of the result",
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
    summary: "Returns the size of the intersection of several sorted sets",
    since: "7.0.0",
    complexity: "O(N K) at worst, N: size of the smallest set, K: number of sets",
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
    summary: "Stores the intersection of several sorted sets",
    since: "2.0.0",
    complexity: "O(N K + M log M) at worst, N: size of the smallest set, K: number of sets, M: size of the result",
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
    summary: "Returns the union of several sorted sets",
    since: "6.2.0",
    complexity: "O(N + M log M), N: total size of all sets, M: size of the result",
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
    summary: "Stores the union of several sorted sets",
    since: "2.0.0",
    complexity: "O(N + M log M), N: total size of all sets, M: size of the result",
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
