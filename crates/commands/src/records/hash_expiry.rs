//! The records of the commands for the expiry of hash fields, from Redis 7.4 and 8.0.

use pantala_engine::command::{
    Acl, Argument, Command, Flags, Handler, KeySpec, KeyedHandler, Route, UndeterminedHandler,
};

use super::{deadline_or, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[
    HEXPIRE,
    HEXPIREAT,
    HEXPIRETIME,
    HGETDEL,
    HGETEX,
    HPERSIST,
    HPEXPIRE,
    HPEXPIREAT,
    HPEXPIRETIME,
    HPTTL,
    HSETEX,
    HTTL,
];

const HASH: Command = Command {
    group: "hash",
    acl: Acl::HASH,
    route: Route::Keys,
    since: "7.4.0",
    complexity: "O(N), N: number of given fields",
    ..Command::BLANK
};

const FIELDS: Argument =
    Argument::block("fields", &[Argument::integer("numfields"), Argument::string("field").multiple()]).token("FIELDS");

const CONDITION: Argument = Argument::one_of(
    "condition",
    &[Argument::word("nx", "NX"), Argument::word("xx", "XX"), Argument::word("gt", "GT"), Argument::word("lt", "LT")],
)
.optional();

const CHANGED_KEY: &[KeySpec] = &[KeySpec::at(1, &["RW", "update"])];
const READ_KEY: &[KeySpec] = &[KeySpec::at(1, &["RO", "access"])];
const KEY_AND_FIELDS: &[Argument] = &[Argument::key("key", 0), FIELDS];

/// Returns the record of a command that sets expiries.
const fn setter(
    name: &'static str,
    summary: &'static str,
    arguments: &'static [Argument],
    handler: UndeterminedHandler,
) -> Command {
    Command {
        name,
        full_name: name,
        summary,
        arity: -6,
        flags: flags![WRITE, DENYOOM, FAST],
        key_specs: CHANGED_KEY,
        arguments,
        handler: Handler::Undetermined(handler),
        ..HASH
    }
}

/// Returns the record of a command that returns expiries.
const fn getter(
    name: &'static str,
    summary: &'static str,
    tips: &'static [&'static str],
    handler: KeyedHandler,
) -> Command {
    Command {
        name,
        full_name: name,
        summary,
        arity: -5,
        flags: flags![READONLY, FAST],
        tips,
        key_specs: READ_KEY,
        arguments: KEY_AND_FIELDS,
        handler: Handler::Keyed(handler),
        ..HASH
    }
}

/// Tips of the commands that reply with relative times, which differ from call to call.
const CHANGING: &[&str] = &["nondeterministic_output"];

pub(crate) const HEXPIRE: Command = setter(
    "hexpire",
    "Sets the expiry of hash fields in seconds",
    &[Argument::key("key", 0), Argument::integer("seconds"), CONDITION, FIELDS],
    crate::hashes::hexpire,
);

pub(crate) const HEXPIREAT: Command = setter(
    "hexpireat",
    "Sets the expiry of hash fields to a Unix time in seconds",
    &[Argument::key("key", 0), Argument::unix_time("unix-time-seconds"), CONDITION, FIELDS],
    crate::hashes::hexpireat,
);

pub(crate) const HEXPIRETIME: Command = getter(
    "hexpiretime",
    "Returns the expiry of hash fields as a Unix time in seconds",
    &[],
    crate::hashes::hexpiretime,
);

pub(crate) const HGETDEL: Command = Command {
    name: "hgetdel",
    full_name: "hgetdel",
    summary: "Returns and removes hash fields",
    since: "8.0.0",
    arity: -5,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "delete"])],
    arguments: KEY_AND_FIELDS,
    handler: Handler::Keyed(crate::hashes::hgetdel),
    ..HASH
};

pub(crate) const HGETEX: Command = Command {
    name: "hgetex",
    full_name: "hgetex",
    summary: "Returns hash fields and sets or removes their expiry",
    since: "8.0.0",
    arity: -5,
    flags: flags![WRITE, FAST],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"]).note("Writes only the expiry")],
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of("expiration", &deadline_or(Argument::word("persist", "PERSIST"))).optional(),
        FIELDS,
    ],
    handler: Handler::Undetermined(crate::hashes::hgetex),
    ..HASH
};

pub(crate) const HSETEX: Command = Command {
    name: "hsetex",
    full_name: "hsetex",
    summary: "Sets hash fields and their expiry",
    since: "8.0.0",
    arity: -6,
    flags: flags![WRITE, DENYOOM, FAST],
    key_specs: CHANGED_KEY,
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of("condition", &[Argument::word("fnx", "FNX"), Argument::word("fxx", "FXX")]).optional(),
        Argument::one_of("expiration", &deadline_or(Argument::word("keepttl", "KEEPTTL"))).optional(),
        Argument::block(
            "fields",
            &[
                Argument::integer("numfields"),
                Argument::block("data", &[Argument::string("field"), Argument::string("value")]).multiple(),
            ],
        )
        .token("FIELDS"),
    ],
    handler: Handler::Undetermined(crate::hashes::hsetex),
    ..HASH
};

pub(crate) const HPERSIST: Command = Command {
    name: "hpersist",
    full_name: "hpersist",
    summary: "Removes the expiry of hash fields",
    arity: -5,
    flags: flags![WRITE, FAST],
    key_specs: CHANGED_KEY,
    arguments: KEY_AND_FIELDS,
    handler: Handler::Keyed(crate::hashes::hpersist),
    ..HASH
};

pub(crate) const HPEXPIRE: Command = setter(
    "hpexpire",
    "Sets the expiry of hash fields in milliseconds",
    &[Argument::key("key", 0), Argument::integer("milliseconds"), CONDITION, FIELDS],
    crate::hashes::hpexpire,
);

pub(crate) const HPEXPIREAT: Command = setter(
    "hpexpireat",
    "Sets the expiry of hash fields to a Unix time in milliseconds",
    &[Argument::key("key", 0), Argument::unix_time("unix-time-milliseconds"), CONDITION, FIELDS],
    crate::hashes::hpexpireat,
);

pub(crate) const HPEXPIRETIME: Command = getter(
    "hpexpiretime",
    "Returns the expiry of hash fields as a Unix time in milliseconds",
    &[],
    crate::hashes::hpexpiretime,
);

pub(crate) const HPTTL: Command =
    getter("hpttl", "Returns the TTL of hash fields in milliseconds", CHANGING, crate::hashes::hpttl);

pub(crate) const HTTL: Command =
    getter("httl", "Returns the TTL of hash fields in seconds", CHANGING, crate::hashes::httl);
