//! The command table: one record per command, in a file per family, which lists its own. Here they
//! become one table, sorted by name, when the crate is compiled.
//!
//! A record says what Redis's own table says of the command (arity, flags, ACL categories, key specifications, tips,
//! declared syntax), plus which shards it takes and the function that runs it. `COMMAND`, routing, arity checks and
//! COMPAT.md's test all read these records; nothing about a command is said twice.

use pantala_engine::command::{Command, Flags};

mod bitmap;
mod cluster;
mod connection;
mod dump;
mod generic;
mod geo;
mod hash_expiry;
mod hashes;
mod hyperloglog;
mod lists;
mod lookup;
mod not_built;
mod pubsub;
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
mod watching;

pub use lookup::{lookup, lookup_full, lookup_sub};
pub use not_built::not_built;
pub use resolve::{NOT_IN_SCRIPTS, Unresolved, resolve, resolve_as};

/// Joins flags by their short names; `|` of bitflags isn't `const`.
macro_rules! flags {
    ($($flag:ident),+) => { Flags::empty()$(.union(Flags::$flag))+ };
}
/// Joins ACL categories by their short names.
macro_rules! acl {
    ($($category:ident),+) => { Acl::empty()$(.union(Acl::$category))+ };
}
use {acl, flags};

/// Complexity of a container: it has none of its own.
const DEPENDS_ON_SUBCOMMAND: &str = "That of the subcommand";

/// The families' commands.
const FAMILIES: &[&[Command]] = &[
    bitmap::COMMANDS,
    cluster::COMMANDS,
    connection::COMMANDS,
    dump::COMMANDS,
    generic::COMMANDS,
    geo::COMMANDS,
    hash_expiry::COMMANDS,
    hashes::COMMANDS,
    hyperloglog::COMMANDS,
    lists::COMMANDS,
    pubsub::COMMANDS,
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

/// Every command, sorted by name.
pub static COMMANDS: &[Command] = &SORTED;

static SORTED: [Command; COUNT] = {
    let mut sorted = [Command::BLANK; COUNT];
    let (mut count, mut family) = (0, 0);
    while family < FAMILIES.len() {
        let mut index = 0;
        while index < FAMILIES[family].len() {
            sorted[count] = FAMILIES[family][index];
            // Each goes forward to its place among those that are there.
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

/// As `one < other`, which isn't `const`.
const fn is_before(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at < other.len() && (at == one.len() || one[at] < other[at])
}

/// Whether a container's subcommands are its own affair (DEBUG): to `COMMAND` it is a command without subcommands.
fn hides_subcommands(command: &Command) -> bool {
    command.flags.contains(Flags::OWN_SUBCOMMANDS)
}
