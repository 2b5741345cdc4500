//! The commands that rules may name. The number of a command is the index of its bit in a
//! selector's bitmap.

use std::ops::Range;

use hashbrown::HashMap;

use crate::command::{Acl, Command, Flags};

/// Number of bits of a selector's bitmap. Each command and subcommand has one bit. The last bit
/// stands for unknown future commands.
pub(super) const COMMANDS_MAX: usize = 1024;

/// Prefixes of [`Command::since`] of the commands that Redis 7.0 does not have. `0.` is the prefix
/// of Pantala's own commands.
const LATER_VERSIONS: [&str; 4] = ["0.", "7.2", "7.4", "8."];

/// The number of a command or subcommand.
pub(super) type Number = u16;

/// A command of Redis 7.0 without a record. Rules may name the command, so that the ACL file of a
/// redis-server can be read.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// Full name (`save`, `cluster|meet`).
    pub full_name: &'static str,
    /// Categories of the command.
    pub categories: Acl,
}

/// The arguments of a command that are channels to publish or subscribe to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channels {
    /// None.
    None,
    /// The first argument.
    First,
    /// All arguments.
    All,
    /// All arguments, which are patterns.
    Patterns,
}

impl Channels {
    fn of(full_name: &str) -> Self {
        match full_name {
            "publish" | "spublish" => Channels::First,
            "subscribe" | "ssubscribe" => Channels::All,
            "psubscribe" => Channels::Patterns,
            _ => Channels::None,
        }
    }
}

/// A command or subcommand.
pub(super) struct Entry {
    pub(super) name: &'static str,
    pub(super) categories: Acl,
    /// Container of a subcommand.
    pub(super) parent: Option<Number>,
    /// Subcommands of a container.
    pub(super) subcommands: Range<Number>,
    /// Whether Redis 7.0 does not have the command. `describe` ignores such commands when it
    /// chooses categories for the text of rules.
    pub(super) is_later: bool,
    pub(super) channels: Channels,
}

/// The commands by number. See the head of this module.
pub struct Catalog {
    entries: Vec<Entry>,
    by_name: HashMap<&'static str, Number>,
    /// Numbers by the address of the record. Records live as long as the process.
    by_record: HashMap<usize, Number>,
}

fn address(command: &Command) -> usize {
    std::ptr::from_ref(command).addr()
}

impl Catalog {
    /// Returns a catalog of `commands`, which have records, and of `absent` commands, which have
    /// none.
    ///
    /// # Panics
    /// If there are more than [`COMMANDS_MAX`] - 1 commands.
    pub fn new(commands: &'static [Command], absent: impl Iterator<Item = Absent>) -> Self {
        let is_later = |command: &Command| LATER_VERSIONS.iter().any(|version| command.since.starts_with(version));
        let entry = |name, categories, is_later| Entry {
            name,
            categories,
            parent: None,
            subcommands: 0..0,
            is_later,
            channels: Channels::of(name),
        };
        let mut entries = Vec::new();
        for command in commands {
            entries.push(entry(command.full_name, command.acl_categories(), is_later(command)));
            let shown = command.shown_subcommands().iter();
            entries.extend(shown.map(|sub| entry(sub.full_name, sub.acl_categories(), is_later(sub))));
        }
        entries.extend(absent.map(|absent| entry(absent.full_name, absent.categories, false)));
        // Subcommands directly follow their container.
        let order = |entry: &Entry| entry.name.split_once('|').unwrap_or((entry.name, ""));
        entries.sort_by(|one, other| order(one).cmp(&order(other)));
        assert!(entries.len() < COMMANDS_MAX, "more commands than bits in a selector's bitmap");
        let mut container = 0;
        for at in 0..entries.len() {
            if entries[at].name.contains('|') {
                entries[at].parent = Some(container as Number);
                entries[container].subcommands.end = at as Number + 1;
            } else {
                container = at;
                entries[at].subcommands = at as Number + 1..at as Number + 1;
            }
        }
        let by_name: HashMap<_, _> =
            entries.iter().enumerate().map(|(number, entry)| (entry.name, number as Number)).collect();
        let mut by_record = HashMap::new();
        for command in commands {
            let number = by_name[command.full_name];
            by_record.insert(address(command), number);
            for sub in command.subcommands {
                // Subcommands of `DEBUG` have the number of `DEBUG`, because rules treat the name
                // of such a subcommand as the first argument of `DEBUG`.
                by_record.insert(address(sub), by_name.get(sub.full_name).copied().unwrap_or(number));
            }
        }
        Catalog { entries, by_name, by_record }
    }

    /// Returns a catalog without commands, for a keyspace that serves no clients.
    pub fn empty() -> Self {
        Self::new(&[], std::iter::empty())
    }

    /// Returns the number of the command with this record, or `None` if the catalog does not
    /// contain the command.
    #[inline]
    pub(super) fn number_of(&self, command: &Command) -> Option<Number> {
        self.by_record.get(&address(command)).copied()
    }

    /// Returns the number of a command by its full name (case-insensitive).
    pub(super) fn find(&self, full_name: &[u8]) -> Option<Number> {
        let name = str::from_utf8(full_name).ok()?.to_ascii_lowercase();
        self.by_name.get(name.as_str()).copied()
    }

    pub(super) fn entry(&self, number: Number) -> &Entry {
        &self.entries[number as usize]
    }

    /// Returns all commands, sorted by name.
    pub(super) fn entries(&self) -> impl Iterator<Item = (Number, &Entry)> {
        self.entries.iter().enumerate().map(|(number, entry)| (number as Number, entry))
    }

    /// Returns the full names of all commands of a category (`ACL CAT`).
    pub fn names_in(&self, category: Acl) -> impl Iterator<Item = &'static str> {
        self.entries.iter().filter(move |entry| entry.categories.intersects(category)).map(|entry| entry.name)
    }
}

/// Returns whether rules treat the name of a command's subcommand as an argument (`DEBUG`). As in
/// Redis, the keys of such a command are not checked.
pub(super) fn hides_keys(command: &Command) -> bool {
    command.flags.contains(Flags::OWN_SUBCOMMANDS)
}
