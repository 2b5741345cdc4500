//! The command table: one record per command, in one file per family of commands. This module
//! merges the families at compile time into one table, sorted by name.
//!
//! A record contains what Redis's own table says of a command (arity, flags, ACL categories, key
//! specifications, tips, declared syntax), and also the command's route and handler. `COMMAND`,
//! routing, arity checks and the test of COMPAT.md all read these records, so no property of a
//! command is stated twice.

use pantala_engine::command::{Argument, Command, Flags};

mod acl_users;
mod bitmap;
mod cluster;
mod connection;
mod debug;
mod dump;
mod generic;
mod geo;
mod hash_expiry;
mod hashes;
mod hyperloglog;
mod lists;
mod lookup;
mod modules;
mod pubsub;
mod replicaof;
mod replication;
mod resolve;
mod scripting;
mod secrets;
mod server;
mod sets;
mod sort;
mod sorted_set_algebra;
mod sorted_set_ranges;
mod sorted_sets;
mod streams;
pub(crate) mod strings;
#[cfg(test)]
mod tests;
mod transactions;
mod unimplemented;
mod watching;

pub use lookup::{lookup, lookup_full, lookup_sub};
pub use resolve::{NOT_IN_SCRIPTS, Unresolved, resolve, resolve_as};
pub use unimplemented::{absent, unimplemented};

/// Joins flags given by their short names. The operator `|` of bitflags isn't `const`.
macro_rules! flags {
    ($($flag:ident),+) => { Flags::empty()$(.union(Flags::$flag))+ };
}
/// Joins ACL categories given by their short names.
macro_rules! acl {
    ($($category:ident),+) => { Acl::empty()$(.union(Acl::$category))+ };
}
use {acl, flags};

/// The complexity of a container (a command with subcommands).
const DEPENDS_ON_SUBCOMMAND: &str = "That of the subcommand";

/// The options that set a deadline, followed by another option.
const fn deadline_or(other: Argument) -> [Argument; 5] {
    [
        Argument::integer("seconds").token("EX"),
        Argument::integer("milliseconds").token("PX"),
        Argument::unix_time("unix-time-seconds").token("EXAT"),
        Argument::unix_time("unix-time-milliseconds").token("PXAT"),
        other,
    ]
}

/// The commands of all families.
const FAMILIES: &[&[Command]] = &[
    acl_users::COMMANDS,
    bitmap::COMMANDS,
    cluster::COMMANDS,
    connection::COMMANDS,
    debug::COMMANDS,
    dump::COMMANDS,
    generic::COMMANDS,
    geo::COMMANDS,
    hash_expiry::COMMANDS,
    hashes::COMMANDS,
    hyperloglog::COMMANDS,
    lists::COMMANDS,
    modules::COMMANDS,
    pubsub::COMMANDS,
    replicaof::COMMANDS,
    replication::COMMANDS,
    scripting::COMMANDS,
    server::COMMANDS,
    sets::COMMANDS,
    sort::COMMANDS,
    sorted_set_algebra::COMMANDS,
    sorted_set_ranges::COMMANDS,
    sorted_sets::COMMANDS,
    streams::COMMANDS,
    strings::COMMANDS,
    transactions::COMMANDS,
    watching::COMMANDS,
];

const COUNT: usize = {
    let (mut count, mut family) = (0, 0);
    while family < FAMILIES.len() {
        count += FAMILIES[family].len();
        family += 1;
    }
    count
};

/// All commands, sorted by name.
pub static COMMANDS: &[Command] = &SORTED;

static SORTED: [Command; COUNT] = {
    let mut sorted = [Command::BLANK; COUNT];
    let (mut count, mut family) = (0, 0);
    while family < FAMILIES.len() {
        let mut index = 0;
        while index < FAMILIES[family].len() {
            sorted[count] = FAMILIES[family][index];
            // This is an insertion sort, because `sort` isn't `const`.
            let mut at = count;
            while at > 0 && is_before(sorted[at].name, sorted[at - 1].name) {
                sorted.swap(at, at - 1);
                at -= 1;
            }
            count += 1;
            index += 1;
        }
        family += 1;
    }
    sorted
};

/// Returns `one < other`. The operator `<` isn't `const`.
const fn is_before(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at < other.len() && (at == one.len() || one[at] < other[at])
}

/// Returns whether `COMMAND` hides the subcommands of a container. Only those of DEBUG are hidden.
fn hides_subcommands(command: &Command) -> bool {
    command.flags.contains(Flags::OWN_SUBCOMMANDS)
}
