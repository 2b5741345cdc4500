//! The permissions of a user: the result of applying the user's rules in order.

use pantala_resp::{Args, words_of};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use super::Denied;
use super::catalog::Catalog;
use super::selector::{Keys, Selector};
use crate::command::Command;

/// Length of a password's hash, bytes.
pub(super) const HASH_BYTES: usize = 32;

/// The reason why a rule cannot be applied. The texts are Redis's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleError {
    /// No such command, subcommand or category.
    UnknownCommand,
    /// Not a valid rule, or a pattern with white space.
    Syntax,
    /// A key pattern, although all keys are already allowed.
    KeysAfterAll,
    /// A channel pattern, although all channels are already allowed.
    ChannelsAfterAll,
    /// The user does not have the password to be removed.
    NoSuchPassword,
    /// A password hash that is not a SHA-256 in lower-case hexadecimal digits.
    BadHash,
    /// A first argument for a subcommand: `+container|subcommand|argument`.
    FirstArgumentOfSubcommand,
}

impl std::fmt::Display for RuleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            RuleError::UnknownCommand => "Unknown command or category name in ACL",
            RuleError::Syntax => "Syntax error",
            RuleError::KeysAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
                 effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            RuleError::ChannelsAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            RuleError::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            RuleError::BadHash => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            RuleError::FirstArgumentOfSubcommand => "Allowing first-arg of a subcommand is not supported",
        })
    }
}

impl std::error::Error for RuleError {}

/// Whether rules request checks of `RESTORE` payloads. Affects only the text of the rules, because
/// Pantala checks all payloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sanitize {
    /// Not specified.
    Unspecified,
    /// `sanitize-payload`.
    Yes,
    /// `skip-sanitize-payload`.
    Skip,
}

type Hash = [u8; HASH_BYTES];

/// The rules of a user. See the head of this module.
#[derive(Clone)]
pub struct Rules {
    pub(super) is_on: bool,
    pub(super) no_password: bool,
    pub(super) sanitize: Sanitize,
    pub(super) passwords: Vec<Hash>,
    /// The selectors. The first one is the root selector, which always exists.
    pub(super) selectors: Vec<Selector>,
    /// Whether new selectors allow all channels (`acl-pubsub-default`).
    channels_by_default: bool,
}

impl Rules {
    /// Returns the rules of a new user: off, without a password, and nothing allowed. If
    /// `channels_by_default` is set (`acl-pubsub-default`), all channels are allowed.
    pub fn new(catalog: &'static Catalog, channels_by_default: bool) -> Self {
        Rules {
            is_on: false,
            no_password: false,
            sanitize: Sanitize::Unspecified,
            passwords: Vec::new(),
            selectors: vec![Selector::new(catalog, channels_by_default)],
            channels_by_default,
        }
    }

    /// Returns the initial rules of the default user: on, no password, everything allowed.
    pub fn of_default_user(catalog: &'static Catalog) -> Self {
        Rules {
            is_on: true,
            no_password: true,
            selectors: vec![Selector::unrestricted(catalog)],
            ..Self::new(catalog, false)
        }
    }

    fn root(&self) -> &Selector {
        &self.selectors[0]
    }

    /// Sets whether new selectors allow all channels.
    pub fn set_channels_by_default(&mut self, channels_by_default: bool) {
        self.channels_by_default = channels_by_default;
    }

    /// Applies a rule. An empty rule changes nothing.
    ///
    /// # Errors
    /// The text is not a rule or cannot be applied. The rules are then unchanged.
    pub fn apply(&mut self, rule: &[u8]) -> Result<(), RuleError> {
        let is = |word: &str| rule.eq_ignore_ascii_case(word.as_bytes());
        if rule.is_empty() {
        } else if is("on") {
            self.is_on = true;
        } else if is("off") {
            self.is_on = false;
        } else if is("skip-sanitize-payload") {
            self.sanitize = Sanitize::Skip;
        } else if is("sanitize-payload") {
            self.sanitize = Sanitize::Yes;
        } else if is("nopass") {
            self.no_password = true;
            self.passwords.clear();
        } else if is("resetpass") {
            self.no_password = false;
            self.passwords.clear();
        } else if is("clearselectors") {
            self.selectors.truncate(1);
        } else if is("reset") {
            *self = Rules { sanitize: Sanitize::Yes, ..Self::new(self.root().catalog(), self.channels_by_default) };
        } else {
            match rule {
                [b'>', password @ ..] => self.add_password(hash_of(password)),
                [b'#', hash @ ..] => self.add_password(parse_hash(hash).ok_or(RuleError::BadHash)?),
                [b'<', password @ ..] => self.remove_password(&hash_of(password))?,
                [b'!', hash @ ..] => self.remove_password(&parse_hash(hash).ok_or(RuleError::BadHash)?)?,
                [b'(', rules @ .., b')'] => {
                    let mut selector = Selector::new(self.root().catalog(), self.channels_by_default);
                    // As in Redis, a selector with unbalanced quotes is empty.
                    for rule in words_of(rules).unwrap_or_default() {
                        selector.apply(&rule)?;
                    }
                    self.selectors.push(selector);
                }
                _ => self.selectors[0].apply(rule)?,
            }
        }
        Ok(())
    }

    fn add_password(&mut self, hash: Hash) {
        if !self.passwords.contains(&hash) {
            self.passwords.push(hash);
        }
        self.no_password = false;
    }

    fn remove_password(&mut self, hash: &Hash) -> Result<(), RuleError> {
        let at = self.passwords.iter().position(|known| known == hash).ok_or(RuleError::NoSuchPassword)?;
        self.passwords.remove(at);
        Ok(())
    }

    /// Replaces all passwords by this one. `None`: any password is accepted (`requirepass`).
    pub fn set_password(&mut self, password: Option<&[u8]>) {
        self.passwords.clear();
        self.passwords.extend(password.map(hash_of));
        self.no_password = password.is_none();
    }

    /// Returns whether a client may log in with this password. Takes the same time for all wrong
    /// passwords of the same length.
    pub fn accepts(&self, password: &[u8]) -> bool {
        if !self.is_on || self.no_password {
            return self.is_on;
        }
        let hash = hash_of(password);
        let found = self.passwords.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&hash));
        found.into()
    }

    /// Returns whether any password is accepted.
    pub fn needs_no_password(&self) -> bool {
        self.no_password
    }

    /// Returns whether clients may log in at all.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns whether no call needs a check, because one selector allows everything.
    pub fn is_unrestricted(&self) -> bool {
        self.selectors.iter().any(Selector::is_unrestricted)
    }

    /// Checks whether one selector allows a call as a whole.
    ///
    /// # Errors
    /// The reason for the denial. If the selectors have different reasons, it is the reason that
    /// Redis reports.
    pub fn check(&self, command: &Command, args: &Args<'_>) -> Result<(), Denied> {
        let mut keys: Option<Keys> = None;
        let mut why = Denied::Command;
        for selector in &self.selectors {
            match selector.check(command, args, &mut keys) {
                Ok(()) => return Ok(()),
                Err(denied) if denied.rank() > why.rank() => why = denied,
                Err(_) => {}
            }
        }
        Err(why)
    }

    /// Returns whether a command of Redis 7.0 that Pantala does not have is allowed, or `None` if
    /// Redis has no command with this name either (case-insensitive).
    pub fn allows_absent(&self, full_name: &[u8]) -> Option<bool> {
        let number = self.root().catalog().find(full_name)?;
        Some(self.selectors.iter().any(|selector| selector.allows_number(number)))
    }

    /// Returns whether one selector allows both this call and reading every key. `SORT` needs this
    /// for `BY` and `GET`, whose keys are not among the arguments.
    pub fn reads_all_keys(&self, command: &Command, args: &Args<'_>) -> bool {
        let mut keys: Option<Keys> = None;
        let fits = |selector: &Selector| selector.check(command, args, &mut keys).is_ok() && selector.reads_all_keys();
        self.selectors.iter().any(fits)
    }

    /// Returns whether a client may use the channel `name`. If `is_pattern` is set, `name` is a
    /// pattern, and the result is whether a client may subscribe to it.
    pub fn allows_channel(&self, name: &[u8], is_pattern: bool) -> bool {
        self.selectors.iter().any(|selector| selector.allows_channel(name, is_pattern))
    }

    /// Returns whether every channel that `old` allows is still allowed. Compares only the texts of
    /// patterns, so the result may be `false` although new patterns match the same channels.
    pub(super) fn keeps_channels_of(&self, old: &Rules) -> bool {
        let has = |text: &[u8]| {
            self.selectors.iter().any(|selector| selector.channels.iter().any(|known| known.text() == text))
        };
        self.selectors.iter().any(|selector| selector.all_channels)
            || old
                .selectors
                .iter()
                .all(|selector| !selector.all_channels && selector.channels.iter().all(|pattern| has(pattern.text())))
    }
}

fn hash_of(password: &[u8]) -> Hash {
    Sha256::digest(password).into()
}

/// Parses a hash of 64 lower-case hexadecimal digits.
fn parse_hash(text: &[u8]) -> Option<Hash> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut hash = [0; HASH_BYTES];
    if text.len() != 2 * HASH_BYTES {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(hash)
}
