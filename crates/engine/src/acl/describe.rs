//! The text form of rules, which can be parsed again (`ACL LIST`, `ACL GETUSER`, files).

use super::catalog::{Catalog, Entry};
use super::rules::{Rules, Sanitize};
use super::selector::{Allowed, KeyPattern, Selector};
use super::{Denied, KeyAccess};
use crate::command::Acl;

/// A selector as in the reply to `ACL GETUSER`.
pub struct SelectorText {
    /// Rules for commands, such as `+@all -get`.
    pub commands: Vec<u8>,
    /// Rules for keys, such as `~key:* %R~other`.
    pub keys: Vec<u8>,
    /// Rules for channels, such as `&channel`.
    pub channels: Vec<u8>,
}

impl Rules {
    /// Returns the user's flags, in Redis's order.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        if self.no_password {
            flags.push("nopass");
        }
        match self.sanitize {
            Sanitize::Unspecified => {}
            Sanitize::Yes => flags.push("sanitize-payload"),
            Sanitize::Skip => flags.push("skip-sanitize-payload"),
        }
        flags
    }

    /// Returns the hashes of the passwords, in hexadecimal digits.
    pub fn password_hashes(&self) -> impl ExactSizeIterator<Item = String> {
        self.passwords.iter().map(|hash| hash.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the selectors as text, the root selector first.
    pub fn selector_texts(&self) -> impl ExactSizeIterator<Item = SelectorText> {
        self.selectors.iter().map(Selector::text)
    }

    /// Returns the rules as text, as in a line of a file after the user's name.
    pub fn text(&self) -> Vec<u8> {
        let mut words: Vec<Vec<u8>> = self.flags().into_iter().map(|flag| flag.as_bytes().to_vec()).collect();
        words.extend(self.password_hashes().map(|hash| format!("#{hash}").into_bytes()));
        for (at, selector) in self.selectors.iter().enumerate() {
            let text = selector.whole_text();
            words.push(if at == 0 { text } else { [b"(", text.as_slice(), b")"].concat() });
        }
        words.join(&b' ')
    }
}

fn key_rule(known: &KeyPattern) -> Vec<u8> {
    let prefix: &[u8] = if known.access == KeyAccess::all() {
        b"~"
    } else if known.access == KeyAccess::READ {
        b"%R~"
    } else {
        b"%W~"
    };
    [prefix, known.pattern.text()].concat()
}

impl Selector {
    fn key_rules(&self) -> Vec<Vec<u8>> {
        if self.all_keys { vec![b"~*".to_vec()] } else { self.keys.iter().map(key_rule).collect() }
    }

    fn channel_rules(&self) -> Vec<Vec<u8>> {
        let rule = |text: &[u8]| [b"&", text].concat();
        if self.all_channels {
            vec![rule(b"*")]
        } else {
            self.channels.iter().map(|pattern| rule(pattern.text())).collect()
        }
    }

    fn text(&self) -> SelectorText {
        SelectorText {
            commands: self.command_rules().join(&b' '),
            keys: self.key_rules().join(&b' '),
            channels: self.channel_rules().join(&b' '),
        }
    }

    /// Returns the whole selector as one list of rules.
    fn whole_text(&self) -> Vec<u8> {
        let mut words = self.key_rules();
        if !self.all_channels {
            words.push(b"resetchannels".to_vec());
        }
        words.extend(self.channel_rules());
        words.extend(self.command_rules());
        words.join(&b' ')
    }

    /// Returns rules that allow exactly the commands that this selector allows. The first rule
    /// allows all commands or none. Then follow rules for categories, in the order in which
    /// [`best_category`] chooses them, and rules for single commands that no category covers.
    fn command_rules(&self) -> Vec<Vec<u8>> {
        let catalog = self.catalog();
        let is_additive = !self.allowed.has_future();
        let mut rules = vec![if is_additive { b"-@all".to_vec() } else { b"+@all".to_vec() }];
        // `made` is the selector that the rules so far produce. `left` says which commands still
        // need a rule ([`best_category`]). It starts as a copy of the selector's commands, and each
        // chosen category marks its commands there as done.
        let mut made = Selector::new(catalog, false);
        let mut left = self.clone();
        if !is_additive {
            made.apply_known(b"+@all");
        }
        let mut unused: Vec<Acl> = Acl::all().iter().collect();
        while let Some(at) = best_category(catalog, &left.allowed, is_additive, &unused) {
            let category = unused.remove(at);
            made.allow_category(category, is_additive);
            left.allow_category(category, !is_additive);
            let sign = if is_additive { '+' } else { '-' };
            rules.extend(category.names().map(|name| format!("{sign}@{name}").into_bytes()));
        }
        for (number, entry) in catalog.entries() {
            let is_allowed = self.allowed.contains(number);
            if is_allowed != made.allowed.contains(number) {
                made.allow(number, is_allowed);
                rules.push(format!("{}{}", if is_allowed { '+' } else { '-' }, entry.name).into_bytes());
            }
            // Applying a rule for a command removes all rules for first arguments of this command.
            // So the latter must come after the former.
            if !is_allowed && let Some((_, arguments)) = self.first_args.iter().find(|(known, _)| *known == number) {
                let name = entry.name.as_bytes();
                rules.extend(arguments.iter().map(|arg| [b"+", name, b"|", arg].concat()));
            }
        }
        debug_assert!(made.allowed == self.allowed, "the rules do not reproduce the selector");
        rules
    }

    fn apply_known(&mut self, rule: &[u8]) {
        let applied = self.apply(rule);
        debug_assert!(applied.is_ok(), "a generated rule is invalid");
    }
}

/// Returns the index of the unused category that is best for the next rule. With `is_additive`, the
/// commands in `left` need a rule. Without it, the commands missing from `left` need a rule. A
/// category qualifies if most of its commands need a rule. The best category has the fewest
/// commands that need no rule. If several have equally few, the best one has the most commands that
/// need a rule. Ignores commands that Redis 7.0 lacks, so that the same categories are chosen as in
/// Redis.
fn best_category(catalog: &Catalog, left: &Allowed, is_additive: bool, unused: &[Acl]) -> Option<usize> {
    let mut best: Option<(usize, usize, usize)> = None;
    for (at, category) in unused.iter().enumerate() {
        let (mut on, mut off) = (0, 0);
        let counted = |entry: &Entry| !entry.is_later && entry.categories.intersects(*category);
        for (number, _) in catalog.entries().filter(|(_, entry)| counted(entry)) {
            if left.contains(number) { on += 1 } else { off += 1 }
        }
        let (different, same) = if is_additive { (off, on) } else { (on, off) };
        let is_better = best.is_none_or(|(_, fewest, most)| different < fewest || different == fewest && same > most);
        if same > different && is_better {
            best = Some((at, different, same));
        }
    }
    best.map(|(at, ..)| at)
}

/// Returns the reason of a denial in the words of `ACL DRYRUN`. `argument` is the key or channel.
pub fn dry_run_text(denied: Denied, full_name: &str, argument: &[u8]) -> Vec<u8> {
    let (before, what, after): (&str, &[u8], &str) = match denied {
        Denied::Command => ("run the '", full_name.as_bytes(), "' command"),
        Denied::Key(_) => ("access the '", argument, "' key"),
        Denied::Channel(_) => ("access the '", argument, "' channel"),
    };
    [b"This user has no permissions to ", before.as_bytes(), what, after.as_bytes()].concat()
}
