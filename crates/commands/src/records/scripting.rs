//! Commands about scripts and functions.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler};

use super::{DEPENDS_ON_SUBCOMMAND, acl, flags};

const SCRIPTING: Command = Command { group: "scripting", ..Command::BLANK };

pub(crate) const FUNCTION: Command = Command {
    name: "function",
    full_name: "function",
    summary: "Manages the library of functions",
    since: "7.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[FUNCTION_FLUSH, FUNCTION_HELP],
    ..SCRIPTING
};

pub(crate) const FUNCTION_FLUSH: Command = Command {
    name: "flush",
    full_name: "function|flush",
    summary: "Removes all functions",
    since: "7.0.0",
    complexity: "O(N), N: number of functions",
    arity: -2,
    flags: flags![WRITE, NOSCRIPT],
    acl: acl![SCRIPTING],
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    arguments: &[
        Argument::one_of("async", &[Argument::word("async", "ASYNC"), Argument::word("sync", "SYNC")]).optional()
    ],
    handler: Handler::Local(crate::functions::flush),
    ..SCRIPTING
};

pub(crate) const FUNCTION_HELP: Command = Command {
    name: "help",
    full_name: "function|help",
    summary: "Lists the subcommands",
    since: "7.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    acl: acl![SCRIPTING],
    handler: Handler::Local(crate::functions::help),
    ..SCRIPTING
};
