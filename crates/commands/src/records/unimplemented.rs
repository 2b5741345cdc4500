//! The commands of Redis 7.0 that Pantala does not implement yet. Their error reply says so,
//! instead of "unknown command".

use pantala_engine::acl::Absent;
use pantala_engine::command::{Acl, arity_accepts};

/// A command of Redis 7.0 that Pantala doesn't implement yet.
pub struct Unimplemented {
    /// Full name, such as `cluster|meet`.
    pub(super) full_name: &'static str,
    /// Number of arguments including the name. As in a record, a negative number is a minimum.
    arity: i32,
    /// Whether scripts may call the command.
    pub(super) in_scripts: bool,
}

impl Unimplemented {
    /// Returns the full name.
    pub fn full_name(&self) -> &'static str {
        self.full_name
    }

    /// Returns whether the arity allows this number of arguments. The number includes the names.
    pub(super) fn accepts(&self, arguments: usize) -> bool {
        arity_accepts(self.arity, arguments)
    }

    /// Returns whether the command has subcommands.
    pub(super) fn is_container(&self) -> bool {
        let container = |command: &Unimplemented| command.full_name.split_once('|').map(|(container, _)| container);
        UNIMPLEMENTED.iter().any(|command| container(command) == Some(self.full_name))
    }
}

/// Returns all unimplemented commands for the ACL catalog, so that ACL rules can name them.
pub fn absent() -> impl Iterator<Item = Absent> {
    UNIMPLEMENTED.iter().map(|command| Absent { full_name: command.full_name, categories: CATEGORIES })
}

/// The ACL categories of every command in this list.
const CATEGORIES: Acl = Acl::ADMIN.union(Acl::DANGEROUS).union(Acl::SLOW);

/// Returns the unimplemented command of Redis 7.0 with this full name, ignoring case.
pub fn unimplemented(name: &[u8]) -> Option<&'static Unimplemented> {
    let name = name.to_ascii_lowercase();
    let index = UNIMPLEMENTED.binary_search_by(|known| known.full_name.as_bytes().cmp(&name)).ok()?;
    Some(&UNIMPLEMENTED[index])
}

const fn anywhere(full_name: &'static str, arity: i32) -> Unimplemented {
    Unimplemented { full_name, arity, in_scripts: true }
}

const fn outside(full_name: &'static str, arity: i32) -> Unimplemented {
    Unimplemented { full_name, arity, in_scripts: false }
}

/// Commands and subcommands without a record, sorted bytewise. Remove a command from this list when
/// it is implemented.
pub(super) static UNIMPLEMENTED: &[Unimplemented] = &[
    anywhere("cluster|addslots", -3),
    anywhere("cluster|addslotsrange", -4),
    anywhere("cluster|bumpepoch", 2),
    anywhere("cluster|delslots", -3),
    anywhere("cluster|delslotsrange", -4),
    anywhere("cluster|failover", -2),
    anywhere("cluster|flushslots", 2),
    anywhere("cluster|forget", 3),
    anywhere("cluster|meet", -4),
    anywhere("cluster|replicate", 3),
    outside("cluster|reset", -2),
    anywhere("cluster|set-config-epoch", 3),
    anywhere("cluster|setslot", -4),
];
