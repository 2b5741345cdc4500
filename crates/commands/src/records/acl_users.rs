//! The records of `ACL` and its subcommands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler};

use super::{DEPENDS_ON_SUBCOMMAND, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[ACL];

/// Common fields of the commands that any user may run. They run on the worker, without a shard.
const FOR_ANY_USER: Command = Command {
    group: "server",
    since: "6.0.0",
    complexity: "O(1)",
    flags: flags![NOSCRIPT, LOADING, STALE],
    acl: Acl::empty(),
    ..Command::BLANK
};

/// Common fields of the commands that manage users.
const MANAGING: Command = Command { flags: flags![ADMIN, NOSCRIPT, LOADING, STALE], ..FOR_ANY_USER };

const OF_ALL_USERS: &str = "O(N), N: number of users";

pub(crate) const ACL: Command = Command {
    name: "acl",
    full_name: "acl",
    summary: "Manages users and their permissions",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    flags: Flags::empty(),
    subcommands: &[
        ACL_CAT,
        ACL_DELUSER,
        ACL_DRYRUN,
        ACL_GENPASS,
        ACL_GETUSER,
        ACL_HELP,
        ACL_LIST,
        ACL_LOAD,
        ACL_LOG,
        ACL_SAVE,
        ACL_SETUSER,
        ACL_USERS,
        ACL_WHOAMI,
    ],
    ..FOR_ANY_USER
};

pub(crate) const ACL_CAT: Command = Command {
    name: "cat",
    full_name: "acl|cat",
    summary: "Returns the command categories, or the commands of one category",
    complexity: "O(N), N: number of commands",
    arity: -2,
    arguments: &[Argument::string("categoryname").optional()],
    handler: Handler::Local(crate::acl::cat),
    ..FOR_ANY_USER
};

pub(crate) const ACL_DELUSER: Command = Command {
    name: "deluser",
    full_name: "acl|deluser",
    summary: "Deletes users and closes their connections",
    complexity: "O(N), N: number of clients",
    arity: -3,
    arguments: &[Argument::string("username").multiple()],
    handler: Handler::Local(crate::acl::deluser),
    ..MANAGING
};

pub(crate) const ACL_DRYRUN: Command = Command {
    name: "dryrun",
    full_name: "acl|dryrun",
    summary: "Returns whether a user may run a command, without running it",
    since: "7.0.0",
    arity: -4,
    arguments: &[
        Argument::string("username"),
        Argument::string("command"),
        Argument::string("arg").optional().multiple(),
    ],
    secrets: Some(super::secrets::acl_dryrun),
    handler: Handler::Local(crate::acl::dryrun),
    ..MANAGING
};

pub(crate) const ACL_GENPASS: Command = Command {
    name: "genpass",
    full_name: "acl|genpass",
    summary: "Generates a random password",
    arity: -2,
    arguments: &[Argument::integer("bits").optional()],
    handler: Handler::Local(crate::acl::genpass),
    ..FOR_ANY_USER
};

pub(crate) const ACL_GETUSER: Command = Command {
    name: "getuser",
    full_name: "acl|getuser",
    summary: "Returns the rules of a user",
    complexity: "O(N), N: number of the user's rules",
    history: &[
        ("6.2.0", "Channels too"),
        ("7.0.0", "Also returns selectors, and patterns of keys and channels as rules instead of a list"),
    ],
    arity: 3,
    arguments: &[Argument::string("username")],
    handler: Handler::Local(crate::acl::getuser),
    ..MANAGING
};

pub(crate) const ACL_HELP: Command = Command {
    name: "help",
    full_name: "acl|help",
    summary: "Returns help on the subcommands",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::acl::help),
    ..FOR_ANY_USER
};

pub(crate) const ACL_LIST: Command = Command {
    name: "list",
    full_name: "acl|list",
    summary: "Returns the users with their rules, in the format of an ACL file",
    complexity: OF_ALL_USERS,
    arity: 2,
    handler: Handler::Local(crate::acl::list),
    ..MANAGING
};

pub(crate) const ACL_LOAD: Command = Command {
    name: "load",
    full_name: "acl|load",
    summary: "Reloads the users from the ACL file",
    complexity: OF_ALL_USERS,
    arity: 2,
    handler: Handler::Local(crate::acl::load),
    ..MANAGING
};

pub(crate) const ACL_LOG: Command = Command {
    name: "log",
    full_name: "acl|log",
    summary: "Returns the latest denied calls and logins",
    complexity: "O(N), N: number of returned entries",
    arity: -2,
    arguments: &[
        Argument::one_of("operation", &[Argument::integer("count"), Argument::word("reset", "RESET")]).optional()
    ],
    handler: Handler::Local(crate::acl::log),
    ..MANAGING
};

pub(crate) const ACL_SAVE: Command = Command {
    name: "save",
    full_name: "acl|save",
    summary: "Writes the users to the ACL file",
    complexity: OF_ALL_USERS,
    arity: 2,
    handler: Handler::Local(crate::acl::save),
    ..MANAGING
};

pub(crate) const ACL_SETUSER: Command = Command {
    name: "setuser",
    full_name: "acl|setuser",
    summary: "Creates a user, or changes its rules",
    complexity: "O(N), N: number of rules",
    history: &[("6.2.0", "Channels too"), ("7.0.0", "Selectors too, and what may be done with keys")],
    arity: -3,
    arguments: &[Argument::string("username"), Argument::string("rule").optional().multiple()],
    secrets: Some(super::secrets::acl_setuser),
    handler: Handler::Local(crate::acl::setuser),
    ..MANAGING
};

pub(crate) const ACL_USERS: Command = Command {
    name: "users",
    full_name: "acl|users",
    summary: "Returns the names of the users",
    complexity: OF_ALL_USERS,
    arity: 2,
    handler: Handler::Local(crate::acl::users),
    ..MANAGING
};

pub(crate) const ACL_WHOAMI: Command = Command {
    name: "whoami",
    full_name: "acl|whoami",
    summary: "Returns the user of this connection",
    arity: 2,
    handler: Handler::Local(crate::acl::whoami),
    ..FOR_ANY_USER
};
