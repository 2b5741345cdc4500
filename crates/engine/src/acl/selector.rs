//! Selectors: sets of commands, keys and channels. One selector must allow a call as a whole.

use pantala_resp::Args;
use smallvec::SmallVec;

use super::catalog::{COMMANDS_MAX, Catalog, Channels, Number, hides_keys};
use super::pattern::Pattern;
use super::rules::RuleError;
use super::{Denied, KeyAccess, has_spaces};
use crate::command::{Acl, Command, Flags, KeySpec, for_each_key};

/// A bit for each command. The last bit allows unknown future commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allowed([u64; COMMANDS_MAX / 64]);

impl Allowed {
    const NONE: Self = Allowed([0; COMMANDS_MAX / 64]);
    const ALL: Self = Allowed([u64::MAX; COMMANDS_MAX / 64]);
    const FUTURE: Number = COMMANDS_MAX as Number - 1;

    #[inline]
    pub(super) fn contains(&self, number: Number) -> bool {
        self.0[number as usize / 64] & 1 << (number % 64) != 0
    }

    fn set(&mut self, number: Number, is_allowed: bool) {
        let (word, bit) = (&mut self.0[number as usize / 64], 1 << (number % 64));
        if is_allowed { *word |= bit } else { *word &= !bit }
    }

    /// Returns whether unknown future commands are allowed. This is the case after `+@all`, until
    /// `-@all` is applied.
    pub(super) fn has_future(&self) -> bool {
        self.contains(Self::FUTURE)
    }
}

/// A pattern of keys, and the accesses that it allows.
#[derive(Clone, Debug)]
pub(super) struct KeyPattern {
    pub(super) pattern: Pattern,
    pub(super) access: KeyAccess,
}

/// The argument indexes of a call's keys, with the access to each key. They are determined once per
/// call, and then checked against each selector of the user.
pub(super) type Keys = SmallVec<[(usize, KeyAccess); 4]>;

/// Returns the access to a key that the flags of its key specification describe.
fn access_of(flags: &[&str]) -> KeyAccess {
    flags.iter().fold(KeyAccess::empty(), |access, flag| match *flag {
        "access" => access | KeyAccess::READ,
        "insert" | "delete" | "update" => access | KeyAccess::WRITE,
        _ => access,
    })
}

/// Returns the keys of a call. If the arguments do not fit a key specification, returns the keys of
/// the preceding specifications. In that case Redis checks no keys at all: for example, not the
/// destination of a `PFMERGE` without sources, although the command writes it.
fn keys_of(command: &Command, args: &Args<'_>) -> Keys {
    let mut keys = Keys::new();
    if hides_keys(command) {
        return keys;
    }
    let _ = for_each_key(command, args, |index, spec: &KeySpec| {
        let flags = match command.key_flags {
            Some(of_call) if spec.flags.contains(&"variable_flags") => of_call(args),
            _ => spec.flags,
        };
        keys.push((index, access_of(flags)));
    });
    if let Some(unnamed) = command.unnamed_keys {
        unnamed(args, &mut |index, spec| keys.push((index, access_of(command.key_specs[spec].flags))));
    }
    keys
}

/// A selector. See the head of this module.
#[derive(Clone)]
pub(super) struct Selector {
    catalog: &'static Catalog,
    pub(super) all_commands: bool,
    pub(super) all_keys: bool,
    pub(super) all_channels: bool,
    pub(super) allowed: Allowed,
    /// Denied commands that are allowed with certain first arguments, and these arguments.
    pub(super) first_args: Vec<(Number, Vec<Box<[u8]>>)>,
    pub(super) keys: Vec<KeyPattern>,
    pub(super) channels: Vec<Pattern>,
}

impl Selector {
    /// Returns a selector that allows nothing, except all channels if `all_channels` is set.
    pub(super) fn new(catalog: &'static Catalog, all_channels: bool) -> Self {
        Selector {
            catalog,
            all_commands: false,
            all_keys: false,
            all_channels,
            allowed: Allowed::NONE,
            first_args: Vec::new(),
            keys: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// Returns a selector that allows everything.
    pub(super) fn unrestricted(catalog: &'static Catalog) -> Self {
        Selector {
            all_commands: true,
            all_keys: true,
            all_channels: true,
            allowed: Allowed::ALL,
            ..Self::new(catalog, true)
        }
    }

    pub(super) fn catalog(&self) -> &'static Catalog {
        self.catalog
    }

    /// Returns whether the selector allows everything, so that no call needs a check.
    pub(super) fn is_unrestricted(&self) -> bool {
        self.all_commands && self.all_keys && self.all_channels
    }

    /// Applies a rule.
    pub(super) fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if is("allkeys") || is("~*") {
            self.all_keys = true;
            self.keys.clear();
        } else if is("resetkeys") {
            self.all_keys = false;
            self.keys.clear();
        } else if is("allchannels") || is("&*") {
            self.all_channels = true;
            self.channels.clear();
        } else if is("resetchannels") {
            self.all_channels = false;
            self.channels.clear();
        } else if is("allcommands") || is("+@all") {
            self.all_commands = true;
            self.allowed = Allowed::ALL;
            self.first_args.clear();
        } else if is("nocommands") || is("-@all") {
            self.all_commands = false;
            self.allowed = Allowed::NONE;
            self.first_args.clear();
        } else {
            match rule {
                [b'~', pattern @ ..] => self.add_keys(KeyAccess::all(), pattern)?,
                [b'%', rest @ ..] => {
                    if self.all_keys {
                        return Err(RuleError::KeysAfterAll);
                    }
                    let (access, pattern) = limited_access(rest).ok_or(RuleError::Syntax)?;
                    self.add_keys(access, pattern)?;
                }
                [b'&', pattern @ ..] => self.add_channels(pattern)?,
                [sign @ (b'+' | b'-'), b'@', category @ ..] => {
                    let category = Acl::by_name(category).ok_or(RuleError::UnknownCommand)?;
                    self.allow_category(category, *sign == b'+');
                }
                [b'+', name @ ..] => self.allow_named(name)?,
                [b'-', name @ ..] => {
                    let number = self.catalog.find(name).ok_or(RuleError::UnknownCommand)?;
                    self.allow(number, false);
                }
                _ => return Err(RuleError::Syntax),
            }
        }
        Ok(())
    }

    fn add_keys(&mut self, access: KeyAccess, text: &[u8]) -> Result<(), RuleError> {
        if self.all_keys {
            return Err(RuleError::KeysAfterAll);
        }
        if has_spaces(text) {
            return Err(RuleError::Syntax);
        }
        match self.keys.iter_mut().find(|known| known.pattern.text() == text) {
            Some(known) => known.access |= access,
            None => self.keys.push(KeyPattern { pattern: Pattern::new(text), access }),
        }
        Ok(())
    }

    fn add_channels(&mut self, text: &[u8]) -> Result<(), RuleError> {
        if self.all_channels {
            return Err(RuleError::ChannelsAfterAll);
        }
        if has_spaces(text) {
            return Err(RuleError::Syntax);
        }
        if !self.channels.iter().any(|known| known.text() == text) {
            self.channels.push(Pattern::new(text));
        }
        Ok(())
    }

    /// Applies `+command`, `+container|subcommand`, or `+command|first-argument`.
    fn allow_named(&mut self, name: &[u8]) -> Result<(), RuleError> {
        let Some(bar) = name.iter().rposition(|byte| *byte == b'|') else {
            let number = self.catalog.find(name).ok_or(RuleError::UnknownCommand)?;
            self.allow(number, true);
            return Ok(());
        };
        let (command, argument) = (&name[..bar], &name[bar + 1..]);
        let number = self.catalog.find(command).ok_or(RuleError::UnknownCommand)?;
        let entry = self.catalog.entry(number);
        if entry.parent.is_some() {
            return Err(RuleError::FirstArgumentOfSubcommand);
        }
        // White space in the argument is rejected. Redis accepts it, but cannot parse the text of
        // such a rule again.
        if argument.is_empty() || has_spaces(argument) {
            return Err(RuleError::Syntax);
        }
        if !entry.subcommands.is_empty() {
            let number = self.catalog.find(name).ok_or(RuleError::UnknownCommand)?;
            self.allow(number, true);
            return Ok(());
        }
        let at = self.first_args.iter().position(|(known, _)| *known == number).unwrap_or_else(|| {
            self.first_args.push((number, Vec::new()));
            self.first_args.len() - 1
        });
        let arguments = &mut self.first_args[at].1;
        if !arguments.iter().any(|known| known.eq_ignore_ascii_case(argument)) {
            arguments.push(argument.into());
        }
        Ok(())
    }

    /// Allows or denies a command and its subcommands. Removes rules for first arguments of the
    /// command.
    pub(super) fn allow(&mut self, number: Number, is_allowed: bool) {
        self.first_args.retain(|(known, _)| *known != number);
        let subcommands = self.catalog.entry(number).subcommands.clone();
        for number in std::iter::once(number).chain(subcommands) {
            self.allowed.set(number, is_allowed);
        }
        self.all_commands &= is_allowed;
    }

    /// Allows or denies all commands of a category.
    pub(super) fn allow_category(&mut self, category: Acl, is_allowed: bool) {
        for (number, entry) in self.catalog.entries() {
            if entry.categories.intersects(category) {
                self.allow(number, is_allowed);
            }
        }
    }

    /// Checks whether the selector allows a call. `keys` caches the keys of the call for the next
    /// selector.
    pub(super) fn check(&self, command: &Command, args: &Args<'_>, keys: &mut Option<Keys>) -> Result<(), Denied> {
        if !self.all_commands && !command.flags.contains(Flags::NO_AUTH) {
            let number = self.catalog.number_of(command).ok_or(Denied::Command)?;
            if !self.allowed.contains(number) && !self.allows_first_argument(number, args) {
                return Err(Denied::Command);
            }
        }
        let has_keys = !command.key_specs.is_empty() || command.own_keys.is_some();
        if !self.all_keys && has_keys {
            for (index, access) in keys.get_or_insert_with(|| keys_of(command, args)) {
                let is_match =
                    |known: &KeyPattern| known.access.contains(*access) && known.pattern.matches(args.at(*index));
                if !self.keys.iter().any(is_match) {
                    return Err(Denied::Key(*index));
                }
            }
        }
        if !self.all_channels && command.flags.contains(Flags::PUBSUB) {
            self.check_channels(command, args)?;
        }
        Ok(())
    }

    /// Returns whether a command without a record is allowed. Such a command cannot run, so there
    /// are no arguments to check.
    pub(super) fn allows_number(&self, number: Number) -> bool {
        self.all_commands || self.allowed.contains(number)
    }

    fn allows_first_argument(&self, number: Number, args: &Args<'_>) -> bool {
        let Some((_, arguments)) = self.first_args.iter().find(|(known, _)| *known == number) else { return false };
        let at = if self.catalog.entry(number).parent.is_some() { 2 } else { 1 };
        args.get(at).is_some_and(|arg| arguments.iter().any(|known| known.eq_ignore_ascii_case(arg)))
    }

    fn check_channels(&self, command: &Command, args: &Args<'_>) -> Result<(), Denied> {
        let channels = match self.catalog.number_of(command) {
            Some(number) => self.catalog.entry(number).channels,
            None => return Err(Denied::Command),
        };
        let indexes = match channels {
            Channels::None => return Ok(()),
            Channels::First => 1..args.len().min(2),
            Channels::All | Channels::Patterns => 1..args.len(),
        };
        match indexes.into_iter().find(|index| !self.allows_channel(args.at(*index), channels == Channels::Patterns)) {
            Some(index) => Err(Denied::Channel(index)),
            None => Ok(()),
        }
    }

    /// Returns whether the selector allows the channel `name`. If `is_pattern` is set, `name` is a
    /// pattern to subscribe to. A pattern is allowed only if a rule contains the same text.
    pub(super) fn allows_channel(&self, name: &[u8], is_pattern: bool) -> bool {
        let is_match = |known: &Pattern| if is_pattern { known.text() == name } else { known.matches(name) };
        self.all_channels || self.channels.iter().any(is_match)
    }

    /// Returns whether every key may be read.
    pub(super) fn reads_all_keys(&self) -> bool {
        let is_any = |known: &KeyPattern| known.access.contains(KeyAccess::READ) && known.pattern.text() == b"*";
        self.all_keys || self.keys.iter().any(is_any)
    }
}

/// Splits the text after `%`: `R~pattern`, `W~pattern`, `RW~pattern`. As in Redis, the pattern may
/// be missing.
fn limited_access(rest: &[u8]) -> Option<(KeyAccess, &[u8])> {
    let mut access = KeyAccess::empty();
    for (at, byte) in rest.iter().enumerate() {
        let more = match byte.to_ascii_uppercase() {
            b'R' => KeyAccess::READ,
            b'W' => KeyAccess::WRITE,
            b'~' => return (!access.is_empty()).then_some((access, &rest[at + 1..])),
            _ => return None,
        };
        if access.contains(more) {
            return None;
        }
        access |= more;
    }
    (!access.is_empty()).then_some((access, &[]))
}
