//! The records of the list commands.

use pantala_engine::command::{Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    BLMOVE, BLMPOP, BLPOP, BRPOP, BRPOPLPUSH, LINDEX, LINSERT, LLEN, LMOVE, LMPOP, LPOP, LPOS, LPUSH, LPUSHX, LRANGE,
    LREM, LSET, LTRIM, RPOP, RPOPLPUSH, RPUSH, RPUSHX,
];

/// Common fields of the list commands: their keys determine the shards.
const LIST: Command = Command { group: "list", acl: Acl::LIST, route: Route::Keys, ..Command::BLANK };

const ENDS: &[Argument] = &[Argument::word("left", "LEFT"), Argument::word("right", "RIGHT")];
const WHERE: Argument = Argument::one_of("where", ENDS);
const FROM: Argument = Argument::one_of("wherefrom", ENDS);
const TO: Argument = Argument::one_of("whereto", ENDS);

pub(crate) const BLMOVE: Command = Command {
    name: "blmove",
    full_name: "blmove",
    summary: "Moves an element like LMOVE, and blocks until there is one",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 6,
    flags: flags![WRITE, DENYOOM, NOSCRIPT, BLOCKING, PLAIN],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"]), KeySpec::at(2, &["RW", "insert"])],
    arguments: &[Argument::key("source", 0), Argument::key("destination", 1), FROM, TO, Argument::double("timeout")],
    handler: Handler::Undetermined(crate::lists::blmove),
    ..LIST
};

pub(crate) const BLMPOP: Command = Command {
    name: "blmpop",
    full_name: "blmpop",
    summary: "Pops elements like LMPOP, and blocks until there are any",
    since: "7.0.0",
    complexity: "O(N+M), N: number of keys, M: number of popped elements",
    arity: -5,
    flags: flags![WRITE, BLOCKING],
    key_specs: &[KeySpec {
        begin: BeginSearch::Index(2),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
        ..KeySpec::at(2, &["RW", "access", "delete"])
    }],
    arguments: &[
        Argument::double("timeout"),
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        WHERE,
        Argument::integer("count").token("COUNT").optional(),
    ],
    handler: Handler::Undetermined(crate::lists::blmpop),
    ..LIST
};

pub(crate) const BLPOP: Command = Command {
    name: "blpop",
    full_name: "blpop",
    summary: "Pops the first element of the first nonempty list, and blocks until there is one",
    since: "2.0.0",
    complexity: "O(N), N: number of keys",
    history: &[("6.0.0", "The timeout can have a fraction")],
    arity: -3,
    flags: flags![WRITE, NOSCRIPT, BLOCKING],
    key_specs: &[KeySpec::range(1, -2, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0).multiple(), Argument::double("timeout")],
    handler: Handler::Undetermined(crate::lists::blpop),
    ..LIST
};

pub(crate) const BRPOP: Command = Command {
    name: "brpop",
    full_name: "brpop",
    summary: "Pops the last element of the first nonempty list, and blocks until there is one",
    since: "2.0.0",
    complexity: "O(N), N: number of keys",
    history: &[("6.0.0", "The timeout can have a fraction")],
    arity: -3,
    flags: flags![WRITE, NOSCRIPT, BLOCKING],
    key_specs: &[KeySpec::range(1, -2, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0).multiple(), Argument::double("timeout")],
    handler: Handler::Undetermined(crate::lists::brpop),
    ..LIST
};

pub(crate) const BRPOPLPUSH: Command = Command {
    name: "brpoplpush",
    full_name: "brpoplpush",
    summary: "Moves an element like RPOPLPUSH, and blocks until there is one",
    since: "2.2.0",
    complexity: "O(1)",
    history: &[("6.0.0", "The timeout can have a fraction")],
    deprecated: Some(("6.2.0", "`BLMOVE` from `RIGHT` to `LEFT`")),
    arity: 4,
    flags: flags![WRITE, DENYOOM, NOSCRIPT, BLOCKING, PLAIN],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"]), KeySpec::at(2, &["RW", "insert"])],
    arguments: &[Argument::key("source", 0), Argument::key("destination", 1), Argument::double("timeout")],
    handler: Handler::Undetermined(crate::lists::brpoplpush),
    ..LIST
};

pub(crate) const LINDEX: Command = Command {
    name: "lindex",
    full_name: "lindex",
    summary: "Returns the element at an index",
    since: "1.0.0",
    complexity: "O(N), N: number of elements between it and the nearer end",
    arity: 3,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::integer("index")],
    handler: Handler::Keyed(crate::lists::lindex),
    ..LIST
};

pub(crate) const LINSERT: Command = Command {
    name: "linsert",
    full_name: "linsert",
    summary: "Inserts an element before or after another one",
    since: "2.2.0",
    complexity: "O(N), N: number of elements before the other one",
    arity: 5,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of("where", &[Argument::word("before", "BEFORE"), Argument::word("after", "AFTER")]),
        Argument::string("pivot"),
        Argument::string("element"),
    ],
    handler: Handler::Keyed(crate::lists::linsert),
    ..LIST
};

pub(crate) const LLEN: Command = Command {
    name: "llen",
    full_name: "llen",
    summary: "Returns the length of a list",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO"])],
    arguments: &[Argument::key("key", 0)],
    handler: Handler::Keyed(crate::lists::llen),
    ..LIST
};

pub(crate) const LMOVE: Command = Command {
    name: "lmove",
    full_name: "lmove",
    summary: "Moves an element from either end of a list to either end of another",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 5,
    flags: flags![WRITE, DENYOOM, PLAIN],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"]), KeySpec::at(2, &["RW", "insert"])],
    arguments: &[Argument::key("source", 0), Argument::key("destination", 1), FROM, TO],
    handler: Handler::Keyed(crate::lists::lmove),
    ..LIST
};

pub(crate) const LMPOP: Command = Command {
    name: "lmpop",
    full_name: "lmpop",
    summary: "Pops elements from the first nonempty list",
    since: "7.0.0",
    complexity: "O(N+M), N: number of keys, M: number of popped elements",
    arity: -4,
    flags: flags![WRITE],
    key_specs: &[KeySpec {
        begin: BeginSearch::Index(1),
        find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
        ..KeySpec::at(1, &["RW", "access", "delete"])
    }],
    arguments: &[
        Argument::integer("numkeys"),
        Argument::key("key", 0).multiple(),
        WHERE,
        Argument::integer("count").token("COUNT").optional(),
    ],
    handler: Handler::Keyed(crate::lists::lmpop),
    ..LIST
};

pub(crate) const LPOP: Command = Command {
    name: "lpop",
    full_name: "lpop",
    summary: "Pops elements from the head of a list",
    since: "1.0.0",
    complexity: "O(N), N: number of popped elements",
    history: &[("6.2.0", "Option `count`")],
    arity: -2,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count").since("6.2.0").optional()],
    handler: Handler::Keyed(crate::lists::lpop),
    ..LIST
};

pub(crate) const LPOS: Command = Command {
    name: "lpos",
    full_name: "lpos",
    summary: "Returns the indexes of the elements that equal a value",
    since: "6.0.6",
    complexity: "O(N), N: number of compared elements",
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::string("element"),
        Argument::integer("rank").token("RANK").optional(),
        Argument::integer("num-matches").token("COUNT").optional(),
        Argument::integer("len").token("MAXLEN").optional(),
    ],
    handler: Handler::Keyed(crate::lists::lpos),
    ..LIST
};

pub(crate) const LPUSH: Command = Command {
    name: "lpush",
    full_name: "lpush",
    summary: "Prepends elements to a list, creating the key if it doesn't exist",
    since: "1.0.0",
    complexity: "O(1) per element",
    history: &[("2.4.0", "Accepts several elements")],
    arity: -3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("element").multiple()],
    handler: Handler::Keyed(crate::lists::lpush),
    ..LIST
};

pub(crate) const LPUSHX: Command = Command {
    name: "lpushx",
    full_name: "lpushx",
    summary: "Prepends elements to a list if it exists",
    since: "2.2.0",
    complexity: "O(1) per element",
    history: &[("4.0.0", "Accepts several elements")],
    arity: -3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("element").multiple()],
    handler: Handler::Keyed(crate::lists::lpushx),
    ..LIST
};

pub(crate) const LRANGE: Command = Command {
    name: "lrange",
    full_name: "lrange",
    summary: "Returns the elements between two indexes",
    since: "1.0.0",
    complexity: "O(S+N), S: distance of the first from the nearer end, N: number of returned elements",
    arity: 4,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::integer("start"), Argument::integer("stop")],
    handler: Handler::Keyed(crate::lists::lrange),
    ..LIST
};

pub(crate) const LREM: Command = Command {
    name: "lrem",
    full_name: "lrem",
    summary: "Removes the elements that equal a value",
    since: "1.0.0",
    complexity: "O(N+M), N: length of the list, M: number of removed elements",
    arity: 4,
    flags: flags![WRITE],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count"), Argument::string("element")],
    handler: Handler::Keyed(crate::lists::lrem),
    ..LIST
};

pub(crate) const LSET: Command = Command {
    name: "lset",
    full_name: "lset",
    summary: "Replaces the element at an index",
    since: "1.0.0",
    complexity: "O(N), N: number of elements between it and the nearer end",
    arity: 4,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["RW", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("index"), Argument::string("element")],
    handler: Handler::Keyed(crate::lists::lset),
    ..LIST
};

pub(crate) const LTRIM: Command = Command {
    name: "ltrim",
    full_name: "ltrim",
    summary: "Removes all elements outside a range of indexes",
    since: "1.0.0",
    complexity: "O(N), N: number of removed elements",
    arity: 4,
    flags: flags![WRITE],
    key_specs: &[KeySpec::at(1, &["RW", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("start"), Argument::integer("stop")],
    handler: Handler::Keyed(crate::lists::ltrim),
    ..LIST
};

pub(crate) const RPOP: Command = Command {
    name: "rpop",
    full_name: "rpop",
    summary: "Pops elements from the tail of a list",
    since: "1.0.0",
    complexity: "O(N), N: number of popped elements",
    history: &[("6.2.0", "Option `count`")],
    arity: -2,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"])],
    arguments: &[Argument::key("key", 0), Argument::integer("count").since("6.2.0").optional()],
    handler: Handler::Keyed(crate::lists::rpop),
    ..LIST
};

pub(crate) const RPOPLPUSH: Command = Command {
    name: "rpoplpush",
    full_name: "rpoplpush",
    summary: "Moves the last element of a list to the head of another",
    since: "1.2.0",
    complexity: "O(1)",
    deprecated: Some(("6.2.0", "`LMOVE` from `RIGHT` to `LEFT`")),
    arity: 3,
    flags: flags![WRITE, DENYOOM, PLAIN],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"]), KeySpec::at(2, &["RW", "insert"])],
    arguments: &[Argument::key("source", 0), Argument::key("destination", 1)],
    handler: Handler::Keyed(crate::lists::rpoplpush),
    ..LIST
};

pub(crate) const RPUSH: Command = Command {
    name: "rpush",
    full_name: "rpush",
    summary: "Appends elements to a list, creating the key if it doesn't exist",
    since: "1.0.0",
    complexity: "O(1) per element",
    history: &[("2.4.0", "Accepts several elements")],
    arity: -3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("element").multiple()],
    handler: Handler::Keyed(crate::lists::rpush),
    ..LIST
};

pub(crate) const RPUSHX: Command = Command {
    name: "rpushx",
    full_name: "rpushx",
    summary: "Appends elements to a list if it exists",
    since: "2.2.0",
    complexity: "O(1) per element",
    history: &[("4.0.0", "Accepts several elements")],
    arity: -3,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "insert"])],
    arguments: &[Argument::key("key", 0), Argument::string("element").multiple()],
    handler: Handler::Keyed(crate::lists::rpushx),
    ..LIST
};
