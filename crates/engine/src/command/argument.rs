//! The declared syntax of a command, which `COMMAND DOCS` shows under "arguments".

use bitflags::bitflags;

use super::names_of_bits;

/// The type of an argument, by Redis's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ArgumentKind {
    String,
    Integer,
    Double,
    Key,
    Pattern,
    UnixTime,
    PureToken,
    OneOf,
    Block,
}

bitflags! {
    /// Flags of an argument.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ArgumentFlags: u8 {
        #[allow(missing_docs)] const OPTIONAL = 1;
        #[allow(missing_docs)] const MULTIPLE = 2;
        #[allow(missing_docs)] const MULTIPLE_TOKEN = 4;
    }
}

impl ArgumentKind {
    /// Returns the name that `COMMAND DOCS` shows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Double => "double",
            Self::Key => "key",
            Self::Pattern => "pattern",
            Self::UnixTime => "unix-time",
            Self::PureToken => "pure-token",
            Self::OneOf => "oneof",
            Self::Block => "block",
        }
    }
}

impl ArgumentFlags {
    /// Returns the names of the flags, in Redis's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        names_of_bits(u64::from(self.bits()), &["optional", "multiple", "multiple_token"])
    }
}

/// One argument in a command's declared syntax (`COMMAND DOCS`, "arguments").
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    /// Name of the argument.
    pub name: &'static str,
    /// Type of the argument.
    pub kind: ArgumentKind,
    /// Index of the argument's key specification in
    /// [`Command::key_specs`](super::Command::key_specs), if the argument is a key or a pattern of
    /// keys.
    pub key_spec: Option<u8>,
    /// Literal word before the argument. For a `PureToken`, the argument itself.
    pub token: Option<&'static str>,
    /// Version that added the argument, if it is later than that of the command.
    pub since: Option<&'static str>,
    /// Version that deprecated the argument.
    pub deprecated_since: Option<&'static str>,
    /// Whether the argument is optional, and whether and how it may be repeated.
    pub flags: ArgumentFlags,
    /// Parts of a `OneOf` or a `Block`.
    pub arguments: &'static [Argument],
}

/// Builders, with which a record reads like the command's synopsis.
impl Argument {
    /// Returns an argument of a kind.
    pub const fn new(name: &'static str, kind: ArgumentKind) -> Self {
        Self {
            name,
            kind,
            key_spec: None,
            token: None,
            since: None,
            deprecated_since: None,
            flags: ArgumentFlags::empty(),
            arguments: &[],
        }
    }

    /// Returns a key that belongs to the command's key specification number `key_spec`.
    pub const fn key(name: &'static str, key_spec: u8) -> Self {
        let mut argument = Self::new(name, ArgumentKind::Key);
        argument.key_spec = Some(key_spec);
        argument
    }

    /// Returns an argument of any bytes.
    pub const fn string(name: &'static str) -> Self {
        Self::new(name, ArgumentKind::String)
    }

    /// Returns an integer.
    pub const fn integer(name: &'static str) -> Self {
        Self::new(name, ArgumentKind::Integer)
    }

    /// Returns a floating-point number.
    pub const fn double(name: &'static str) -> Self {
        Self::new(name, ArgumentKind::Double)
    }

    /// Returns a Unix time.
    pub const fn unix_time(name: &'static str) -> Self {
        Self::new(name, ArgumentKind::UnixTime)
    }

    /// Returns a glob pattern.
    pub const fn pattern(name: &'static str) -> Self {
        Self::new(name, ArgumentKind::Pattern)
    }

    /// Returns a literal word.
    pub const fn word(name: &'static str, token: &'static str) -> Self {
        Self::new(name, ArgumentKind::PureToken).token(token)
    }

    /// Returns a choice of one of `arguments`.
    pub const fn one_of(name: &'static str, arguments: &'static [Argument]) -> Self {
        let mut argument = Self::new(name, ArgumentKind::OneOf);
        argument.arguments = arguments;
        argument
    }

    /// Returns a sequence of all `arguments`.
    pub const fn block(name: &'static str, arguments: &'static [Argument]) -> Self {
        let mut argument = Self::new(name, ArgumentKind::Block);
        argument.arguments = arguments;
        argument
    }

    /// Adds a literal word before the argument.
    pub const fn token(mut self, token: &'static str) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets the version that added the argument, if it is later than that of the command.
    pub const fn since(mut self, version: &'static str) -> Self {
        self.since = Some(version);
        self
    }

    /// Sets the version that deprecated the argument.
    pub const fn deprecated_since(mut self, version: &'static str) -> Self {
        self.deprecated_since = Some(version);
        self
    }

    /// Assigns a pattern of keys to the command's key specification number `key_spec`.
    pub const fn of_keys(mut self, key_spec: u8) -> Self {
        self.key_spec = Some(key_spec);
        self
    }

    /// Makes the argument optional.
    pub const fn optional(mut self) -> Self {
        self.flags = self.flags.union(ArgumentFlags::OPTIONAL);
        self
    }

    /// Allows the argument several times.
    pub const fn multiple(mut self) -> Self {
        self.flags = self.flags.union(ArgumentFlags::MULTIPLE);
        self
    }

    /// Allows the argument several times, each time with its literal word.
    pub const fn multiple_token(mut self) -> Self {
        self.flags = self.flags.union(ArgumentFlags::MULTIPLE).union(ArgumentFlags::MULTIPLE_TOKEN);
        self
    }
}
