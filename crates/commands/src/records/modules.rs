//! `MODULE`: there are none to load.

use pantala_engine::command::{Command, Flags, Handler};

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
    subcommands: &[MODULE_HELP, MODULE_LIST],
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
