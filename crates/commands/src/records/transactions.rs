//! The transaction commands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec, TransactionPart};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[DISCARD, EXEC, MULTI, UNWATCH, WATCH];

/// What these commands have in common.
const TRANSACTIONS: Command = Command { group: "transactions", acl: Acl::TRANSACTION, ..Command::BLANK };

pub(crate) const DISCARD: Command = Command {
    name: "discard",
    full_name: "discard",
    summary: "Forgets the commands that wait for EXEC",
    since: "2.0.0",
    complexity: "O(N), N: number of commands that wait",
    arity: 1,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY, UNQUEUED, DISCARDS],
    handler: Handler::Local(crate::transactions::discard),
    ..TRANSACTIONS
};

pub(crate) const EXEC: Command = Command {
    name: "exec",
    full_name: "exec",
    summary: "Runs the commands that wait since MULTI, with nothing in between",
    since: "1.2.0",
    complexity: "That of the commands",
    arity: 1,
    flags: flags![NOSCRIPT, LOADING, STALE, SKIP_SLOWLOG, UNQUEUED],
    handler: Handler::Transaction(TransactionPart::Exec),
    ..TRANSACTIONS
};

pub(crate) const MULTI: Command = Command {
    name: "multi",
    full_name: "multi",
    summary: "Has the commands that follow wait for EXEC",
    since: "1.2.0",
    complexity: "O(1)",
    arity: 1,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY, UNQUEUED],
    handler: Handler::Local(crate::transactions::multi),
    ..TRANSACTIONS
};

pub(crate) const UNWATCH: Command = Command {
    name: "unwatch",
    full_name: "unwatch",
    summary: "Watches no key any more",
    since: "2.2.0",
    complexity: "O(1)",
    arity: 1,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY],
    handler: Handler::Local(crate::transactions::unwatch),
    ..TRANSACTIONS
};

pub(crate) const WATCH: Command = Command {
    name: "watch",
    full_name: "watch",
    summary: "Has the next EXEC run only if keys are what they are now",
    since: "2.2.0",
    complexity: "O(1) for each key",
    arity: -2,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY, UNQUEUED],
    key_specs: &[KeySpec::all_from(1, 1, &["RO"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Transaction(TransactionPart::Watch),
    ..TRANSACTIONS
};
