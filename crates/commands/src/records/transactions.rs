//! The records of the transaction commands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec, TransactionPart};

use super::flags;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[DISCARD, EXEC, MULTI, UNWATCH, WATCH];

/// Common fields of these commands.
const TRANSACTIONS: Command = Command { group: "transactions", acl: Acl::TRANSACTION, ..Command::BLANK };

pub(crate) const DISCARD: Command = Command {
    name: "discard",
    full_name: "discard",
    summary: "Drops the queued commands",
    since: "2.0.0",
    complexity: "O(N), N: number of queued commands",
    arity: 1,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY, UNQUEUED, DISCARDS],
    handler: Handler::Local(crate::transactions::discard),
    ..TRANSACTIONS
};

pub(crate) const EXEC: Command = Command {
    name: "exec",
    full_name: "exec",
    summary: "Runs the queued commands atomically",
    since: "1.2.0",
    complexity: "The sum of the commands",
    arity: 1,
    flags: flags![NOSCRIPT, LOADING, STALE, SKIP_SLOWLOG, UNQUEUED],
    handler: Handler::Transaction(TransactionPart::Exec),
    ..TRANSACTIONS
};

pub(crate) const MULTI: Command = Command {
    name: "multi",
    full_name: "multi",
    summary: "Starts a transaction: the following commands are queued for EXEC",
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
    summary: "Unwatches all keys",
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
    summary: "Watches keys: the next EXEC aborts if any of them has changed",
    since: "2.2.0",
    complexity: "O(1) per key",
    arity: -2,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, ALLOW_BUSY, UNQUEUED],
    key_specs: &[KeySpec::all_from(1, 1, &["RO"])],
    arguments: &[Argument::key("key", 0).multiple()],
    handler: Handler::Transaction(TransactionPart::Watch),
    ..TRANSACTIONS
};
