//! `rename-command`: renamed and removed commands.

use std::collections::HashMap;

use pantala_commands::{Unresolved, lookup, resolve, resolve_as};
use pantala_engine::command::Command;
use pantala_resp::Args;

use crate::config::load::Rename;

/// The renamed and removed commands. Almost always there are none, so lookups check for that case
/// first.
#[derive(Default)]
pub struct Renames {
    /// Commands by name in lower case. `None` means that no command has this name any more.
    by_name: HashMap<Vec<u8>, Option<&'static Command>>,
}

impl Renames {
    /// Applies the lines in order, as Redis does. The lines were already checked when the
    /// configuration was read.
    pub fn new(lines: &[Rename]) -> Self {
        let mut by_name: HashMap<Vec<u8>, Option<&'static Command>> = HashMap::new();
        for line in lines {
            let (from, to) = (line.from.to_ascii_lowercase(), line.to.to_ascii_lowercase());
            let command = by_name.get(&from).copied().unwrap_or_else(|| lookup(&from));
            by_name.insert(from, None);
            if !to.is_empty() {
                by_name.insert(to, command);
            }
        }
        Renames { by_name }
    }

    /// Returns the command with a name, in upper or lower case. Applies renames.
    pub fn command(&self, name: &[u8]) -> Option<&'static Command> {
        if self.by_name.is_empty() {
            return lookup(name);
        }
        self.by_name.get(&name.to_ascii_lowercase()).copied().unwrap_or_else(|| lookup(name))
    }

    /// Returns whether a command has no name left.
    pub fn is_removed(&self, command: &'static Command) -> bool {
        let has = |target: &Option<&'static Command>| target.is_some_and(|target| std::ptr::eq(target, command));
        self.by_name.get(command.name.as_bytes()).is_some_and(|target| !has(target)) && !self.by_name.values().any(has)
    }

    /// Resolves the command of a call.
    #[inline(always)]
    pub fn resolve(&self, args: &Args<'_>) -> Result<&'static Command, Unresolved> {
        if self.by_name.is_empty() {
            return resolve(args);
        }
        match self.by_name.get(&args.get(0).unwrap_or_default().to_ascii_lowercase()) {
            None => resolve(args),
            Some(None) => Err(Unresolved::Unknown),
            Some(Some(command)) => resolve_as(command, args),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pantala_resp::ArgRange;

    fn rename(from: &str, to: &str) -> Rename {
        Rename::new(from.as_bytes(), to.as_bytes())
    }

    fn name_of(renames: &Renames, name: &str) -> Option<&'static str> {
        let ranges = [ArgRange::new(0, name.len()), ArgRange::new(0, name.len())];
        renames.resolve(&Args::new(name.as_bytes(), &ranges)).ok().map(|command| command.name)
    }

    #[test]
    fn names_are_changed_removed_and_changed_again() {
        let renames = Renames::new(&[rename("GET", "fetch"), rename("strlen", ""), rename("fetch", "Grab")]);
        assert_eq!(name_of(&renames, "grab"), Some("get"));
        assert_eq!(name_of(&renames, "GET"), None);
        assert_eq!(name_of(&renames, "fetch"), None);
        assert_eq!(name_of(&renames, "STRLEN"), None);
        assert_eq!(name_of(&renames, "incr"), Some("incr"));
        assert_eq!(name_of(&Renames::default(), "get"), Some("get"));
        let removed = ["get", "strlen", "incr"].map(|name| renames.is_removed(lookup(name.as_bytes()).expect("known")));
        assert_eq!(removed, [false, true, false]);
        assert!(renames.command(b"GRAB").is_some_and(|command| command.name == "get"));
        assert!(renames.command(b"get").is_none() && renames.command(b"GETSET").is_some());
    }
}
