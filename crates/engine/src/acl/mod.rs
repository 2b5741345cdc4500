//! Users and their permissions (`ACL`).
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | rule | one word of `ACL SETUSER`: `on`, `+get`, `~key:*`, `(…)` ([`Rules::apply`]) |
//! | rules | the result of applying a user's rules in order: an immutable snapshot ([`Rules`]) |
//! | selector | a set of commands, keys and channels: one selector must allow a call as a whole |
//! | user | a name and its current rules ([`User`]), shared by its connections |
//! | record | the static description of a command ([`Command`](crate::command::Command)) |
//! | catalog | the commands that rules may name, each with its number ([`Catalog`]) |
//! | absent | a command of Redis 7.0 that has no record, but that rules may name ([`Absent`]) |
//! | unrestricted | a user whose calls need no check, because one selector allows everything |
//! | epoch | a number that every change of any user increments ([`Users::epoch`]) |
//! | permit | the epoch in which a command was allowed ([`Permit`](crate::command::Permit)) |
//!
//! # Permission checks
//!
//! The connection's worker checks a command before the command runs or is queued. The session
//! caches the user's rules, and the epoch in which it fetched them. Before each check, the session
//! compares this epoch with the current one, and fetches the rules again if the epochs differ. So a
//! change of rules applies to the next command on every worker. `EXEC` checks each queued command
//! again, and a script checks each call.
//!
//! An allowed command may still wait for its shards, for a key, or for the end of a pause. The
//! command carries its permit. The thread that runs the command compares the permit's epoch with
//! the current one, and repeats the check if the epochs differ (`Keyspace::refuses`). So a command
//! does not run if its permission was revoked while it waited.
//!
//! # What it costs
//!
//! For an unrestricted user, each command costs one comparison of epochs. The epoch of a client
//! that has not authenticated never equals the current one, so the same comparison also checks for
//! authentication. For other users, each command also costs a lookup of its number, a bit test, and
//! a comparison of each key with the patterns.

use bitflags::bitflags;

mod catalog;
mod describe;
mod file;
mod log;
mod pattern;
mod rules;
mod selector;
#[cfg(test)]
mod tests;
mod users;

pub use catalog::{Absent, Catalog};
pub use describe::{SelectorText, dry_run_text};
pub use file::{Line, Words, check_line};
pub use log::{Context, LogEntry, Reason};
pub use rules::{RuleError, Rules};
pub use users::{DEFAULT_USER, Revoked, User, Users};

bitflags! {
    /// The access of a command to a key, or the accesses that a key pattern allows.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyAccess: u8 {
        /// Returns or copies the key's value.
        const READ = 1 << 0;
        /// Changes, adds or deletes the key's value.
        const WRITE = 1 << 1;
    }
}

/// The reason why a call is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied {
    /// The command, or its first argument.
    Command,
    /// The key at this argument index.
    Key(usize),
    /// The channel at this argument index.
    Channel(usize),
}

impl Denied {
    /// Returns the index of the denied argument, or `None` if the command itself is denied.
    pub fn argument(self) -> Option<usize> {
        match self {
            Denied::Command => None,
            Denied::Key(index) | Denied::Channel(index) => Some(index),
        }
    }

    /// Returns the rank in Redis's order of errors. If several selectors deny a call, the client
    /// receives the error with the highest rank.
    pub(crate) fn rank(self) -> (u8, usize) {
        match self {
            Denied::Command => (0, 0),
            Denied::Key(index) => (1, index),
            Denied::Channel(index) => (2, index),
        }
    }

    /// Returns the error for a command that a client sent, including the error code.
    pub fn message(self, full_name: &str) -> String {
        match self {
            Denied::Command => format!("NOPERM this user has no permissions to run the '{full_name}' command"),
            Denied::Key(_) => {
                "NOPERM this user has no permissions to access one of the keys used as arguments".to_owned()
            }
            Denied::Channel(_) => {
                "NOPERM this user has no permissions to access one of the channels used as arguments".to_owned()
            }
        }
    }

    /// Returns the error for a queued command that `EXEC` does not run, including the error code.
    pub fn message_in_exec(self) -> String {
        let reason = match self {
            Denied::Command => "no permission to execute the command or subcommand",
            Denied::Key(_) => "no permission to touch the specified keys",
            Denied::Channel(_) => "no permission to access one of the channels used as arguments",
        };
        format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. \
             This command is no longer allowed for the following reason: {reason}"
        )
    }

    /// Returns the error for a script's call, including the error code.
    pub fn message_in_script(self) -> &'static str {
        match self {
            Denied::Command => "ERR The user executing the script can't run this command or subcommand",
            Denied::Key(_) => {
                "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments"
            }
            Denied::Channel(_) => {
                "ERR The user executing the script can't publish to the channel mentioned in the command"
            }
        }
    }
}

/// Returns whether a name or pattern contains white space or NUL. In a list of rules, these bytes
/// would end the name or pattern.
pub(crate) fn has_spaces(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | 0))
}

/// Returns whether a user may have this name.
pub fn is_user_name(name: &[u8]) -> bool {
    !has_spaces(name)
}
