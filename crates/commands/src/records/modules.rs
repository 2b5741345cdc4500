//! The records of `MODULE` and its subcommands. Pantala can't load modules.

use pantala_engine::command::{Argument, Command, Flags, Handler};

use super::server::SERVER;
use super::{DEPENDS_ON_SUBCOMMAND, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[MODULE];

pub(crate) const MODULE: Command = Command {
    name: "module",
    full_name: "module",
    summary: "Returns information about modules",
    since: "4.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[MODULE_HELP, MODULE_LIST, MODULE_LOAD, MODULE_LOADEX, MODULE_UNLOAD],
    ..SERVER
};

pub(crate) const MODULE_HELP: Command = Command {
    name: "help",
    full_name: "module|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::modules::help),
    ..SERVER
};

pub(crate) const MODULE_LIST: Command = Command {
    name: "list",
    full_name: "module|list",
    summary: "Returns the loaded modules",
    since: "4.0.0",
    complexity: "O(N), N: number of loaded modules",
    arity: 2,
    flags: flags![ADMIN, NOSCRIPT],
    tips: &["nondeterministic_output_order"],
    handler: Handler::Local(crate::modules::list),
    ..SERVER
};

pub(crate) const MODULE_LOAD: Command = Command {
    name: "load",
    full_name: "module|load",
    summary: "Replies with the error of a module that can't be loaded",
    since: "4.0.0",
    complexity: "O(1)",
    arity: -3,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING, PROTECTED],
    arguments: &[Argument::string("path"), Argument::string("arg").optional().multiple()],
    handler: Handler::Local(crate::modules::load),
    ..SERVER
};

pub(crate) const MODULE_LOADEX: Command = Command {
    name: "loadex",
    full_name: "module|loadex",
    summary: "Replies with the error of a module that can't be loaded",
    since: "7.0.0",
    complexity: "O(1)",
    arity: -3,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING, PROTECTED],
    arguments: &[
        Argument::string("path"),
        Argument::block("configs", &[Argument::string("name"), Argument::string("value")])
            .token("CONFIG")
            .optional()
            .multiple()
            .multiple_token(),
        Argument::block("args", &[Argument::string("arg")]).token("ARGS").optional().multiple(),
    ],
    handler: Handler::Local(crate::modules::loadex),
    ..SERVER
};

pub(crate) const MODULE_UNLOAD: Command = Command {
    name: "unload",
    full_name: "module|unload",
    summary: "Replies with the error of a module that isn't loaded",
    since: "4.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![ADMIN, NOSCRIPT, NO_ASYNC_LOADING, PROTECTED],
    arguments: &[Argument::string("name")],
    handler: Handler::Local(crate::modules::unload),
    ..SERVER
};
