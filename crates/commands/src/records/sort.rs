//! The records of `SORT` and `SORT_RO`.

use pantala_engine::command::{Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::{acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[SORT, SORT_RO];

/// Returns the key specification of keys that no fixed rule locates.
const fn unknown(flags: &'static [&'static str], notes: &'static str) -> KeySpec {
    KeySpec { notes, flags, begin: BeginSearch::Unknown, find: FindKeys::Unknown }
}

const KEY: KeySpec = KeySpec::at(1, &["RO", "access"]);
const PATTERNS: KeySpec = unknown(&["RO", "access"], "The keys of BY and GET, which depend on the elements");
const DESTINATION: KeySpec = unknown(&["OW", "update"], "The destination of STORE, anywhere after the key");

const KEY_ARGUMENT: Argument = Argument::key("key", 0);
const BY: Argument = Argument::pattern("pattern").of_keys(1).token("BY").optional();
const LIMIT: Argument = Argument::block("offset_count", &[Argument::integer("offset"), Argument::integer("count")])
    .token("LIMIT")
    .optional();
const GET: Argument = Argument::pattern("pattern").of_keys(1).token("GET").optional().multiple().multiple_token();
const ORDER: Argument =
    Argument::one_of("order", &[Argument::word("asc", "ASC"), Argument::word("desc", "DESC")]).optional();
const ALPHA: Argument = Argument::word("sorting", "ALPHA").optional();

pub(crate) const SORT: Command = Command {
    name: "sort",
    full_name: "sort",
    summary: "Sorts the elements of a list, set or sorted set; returns or stores them, or the values that they refer to",
    since: "1.0.0",
    complexity: "O(N+M*log(M)), N: number of elements, M: number of returned elements; O(N) without sorting",
    group: "generic",
    arity: -2,
    acl: acl![SET, SORTEDSET, LIST, DANGEROUS],
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KEY, PATTERNS, DESTINATION],
    arguments: &[KEY_ARGUMENT, BY, LIMIT, GET, ORDER, ALPHA, Argument::key("destination", 2).token("STORE").optional()],
    own_keys: Some(crate::sort::sort_keys),
    route: Route::Custom(crate::sort::sort_route),
    handler: Handler::Keyed(crate::sort::sort),
    ..Command::BLANK
};

pub(crate) const SORT_RO: Command = Command {
    name: "sort_ro",
    full_name: "sort_ro",
    summary: "Sorts the elements of a list, set or sorted set; returns them, or the values that they refer to",
    since: "7.0.0",
    flags: flags![READONLY],
    key_specs: &[KEY, PATTERNS],
    arguments: &[KEY_ARGUMENT, BY, LIMIT, GET, ORDER, ALPHA],
    own_keys: Some(crate::sort::sort_ro_keys),
    route: Route::Custom(crate::sort::sort_ro_route),
    handler: Handler::Keyed(crate::sort::sort_ro),
    ..SORT
};
