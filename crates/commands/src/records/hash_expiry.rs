//! The commands of 7.4 about the expiry of a hash's fields.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec, KeyedHandler, Route};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] =
    &[HEXPIRE, HEXPIREAT, HEXPIRETIME, HPERSIST, HPEXPIRE, HPEXPIREAT, HPEXPIRETIME, HPTTL, HTTL];

const HASH: Command = Command {
    group: "hash",
    acl: Acl::HASH,
    route: Route::Keys,
    since: "7.4.0",
    complexity: "O(N), N: fields given",
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

/// A command that sets times.
const fn setting(
    name: &'static str,
    summary: &'static str,
    arguments: &'static [Argument],
    handler: KeyedHandler,
) -> Command {
    Command {
        name,
        full_name: name,
        summary,
        arity: -6,
        flags: flags![WRITE, DENYOOM, FAST],
        key_specs: CHANGED_KEY,
        arguments,
        handler: Handler::Keyed(handler),
        ..HASH
    }
}

/// A command that tells times.
const fn telling(
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

/// Times that are counted from now differ between two answers.
const CHANGING: &[&str] = &["nondeterministic_output"];

pub(crate) const HEXPIRE: Command = setting(
    "hexpire",
    "Lets fields of a hash expire after some seconds",
    &[Argument::key("key", 0), Argument::integer("seconds"), CONDITION, FIELDS],
    crate::hashes::hexpire,
);

pub(crate) const HEXPIREAT: Command = setting(
    "hexpireat",
    "Lets fields of a hash expire at a time in seconds",
    &[Argument::key("key", 0), Argument::unix_time("unix-time-seconds"), CONDITION, FIELDS],
    crate::hashes::hexpireat,
);

pub(crate) const HEXPIRETIME: Command =
    telling("hexpiretime", "Tells at which time in seconds fields of a hash expire", &[], crate::hashes::hexpiretime);

pub(crate) const HPERSIST: Command = Command {
    name: "hpersist",
    full_name: "hpersist",
    summary: "Lets fields of a hash stay that would have expired",
    arity: -5,
    flags: flags![WRITE, FAST],
    key_specs: CHANGED_KEY,
    arguments: KEY_AND_FIELDS,
    handler: Handler::Keyed(crate::hashes::hpersist),
    ..HASH
};

pub(crate) const HPEXPIRE: Command = setting(
    "hpexpire",
    "Lets fields of a hash expire after some milliseconds",
    &[Argument::key("key", 0), Argument::integer("milliseconds"), CONDITION, FIELDS],
    crate::hashes::hpexpire,
);

pub(crate) const HPEXPIREAT: Command = setting(
    "hpexpireat",
    "Lets fields of a hash expire at a time in milliseconds",
    &[Argument::key("key", 0), Argument::unix_time("unix-time-milliseconds"), CONDITION, FIELDS],
    crate::hashes::hpexpireat,
);

pub(crate) const HPEXPIRETIME: Command = telling(
    "hpexpiretime",
    "Tells at which time in milliseconds fields of a hash expire",
    &[],
    crate::hashes::hpexpiretime,
);

pub(crate) const HPTTL: Command =
    telling("hpttl", "Tells in how many milliseconds fields of a hash expire", CHANGING, crate::hashes::hpttl);

pub(crate) const HTTL: Command =
    telling("httl", "Tells in how many seconds fields of a hash expire", CHANGING, crate::hashes::httl);
