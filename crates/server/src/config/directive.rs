//! What a directive is: its name, type, default and how far Pantala serves it.

/// How far Pantala serves a directive of Redis 7.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Served, and changed while running by `CONFIG SET`.
    Live,
    /// Served, but fixed once the server has started: `CONFIG SET` answers "can't set immutable config".
    AtStart,
    /// Known to Redis 7.0, not served. Its value is always the default; another one in the file
    /// makes a warning, or prevents the start ([`Directive::unsafe_to_ignore`]), and by
    /// `CONFIG SET` is an error.
    Known,
}

/// Type of a directive's value, with its range.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    /// Decimal integer within the range, both ends included.
    Integer(i128, i128),
    /// Octal integer within the range, both ends included (file permissions).
    Octal(i128, i128),
    /// Bytes with an optional unit, within the range.
    Memory(i128, i128),
    /// Bytes with an optional unit, or a share in percent (kept as its negative).
    MemoryOrPercent,
    /// Any bytes.
    Text,
    /// Text of which host names are made; shorter than 256 bytes.
    HostName,
    /// A name without a slash; else this is what is wrong.
    FileName(&'static str),
    /// One of these names, whatever its case.
    Choice(&'static [&'static str]),
    /// `oom-score-adj`: like a choice, with `relative` as another word for `yes`.
    OomScoreAdj,
    /// Any number of words, joined by a space.
    Words,
    /// `latency-tracking-info-percentiles`: any number of numbers from 0 to 100.
    Percentiles,
    /// `bind`: up to [`BIND_MAX`] addresses.
    Bind,
    /// `save`: pairs of seconds and changes; lines of a file add up.
    Save,
    /// `client-output-buffer-limit`: groups of class, hard limit, soft limit and seconds. Classes not named keep theirs.
    OutputBufferLimit,
    /// `replicaof`: host and port, or `no one`.
    ReplicaOf,
    /// `shutdown-on-sigint` and `shutdown-on-sigterm`: options of `SHUTDOWN`.
    ShutdownOptions,
    /// `notify-keyspace-events`: letters of classes, kept as the bits of [`EventClasses`](pantala_engine::notify::EventClasses).
    KeyspaceEvents,
    /// `dir`: the process's working directory.
    Dir,
}

/// Most addresses that `bind` takes.
pub const BIND_MAX: usize = 16;

impl Kind {
    /// Whether a line of the file may have any number of arguments.
    pub fn is_multi_argument(self) -> bool {
        matches!(
            self,
            Kind::Words
                | Kind::Percentiles
                | Kind::Bind
                | Kind::Save
                | Kind::OutputBufferLimit
                | Kind::ReplicaOf
                | Kind::ShutdownOptions
        )
    }
}

/// One directive.
#[derive(Clone, Copy, Debug)]
pub struct Directive {
    /// Its name, in lower case.
    pub name: &'static str,
    /// Another name that means the same, if any.
    pub alias: Option<&'static str>,
    /// Type and range.
    pub kind: Kind,
    /// Default, as `CONFIG GET` answers it.
    pub default: &'static str,
    /// How far it is served.
    pub state: State,
    /// Redis itself fixes it at the start.
    pub immutable: bool,
    /// `CONFIG SET` needs `enable-protected-configs`.
    pub protected: bool,
    /// Redis doesn't have it.
    pub own: bool,
    /// Answers `CONFIG GET` only to its exact name.
    pub hidden: bool,
    /// Of a directive that isn't served: what ignoring it would mean, where that is unsafe. Another
    /// value than the default then prevents the start.
    pub unsafe_to_ignore: Option<&'static str>,
}

impl Directive {
    const fn new(state: State, name: &'static str, kind: Kind, default: &'static str) -> Self {
        Directive {
            name,
            alias: None,
            kind,
            default,
            state,
            immutable: matches!(state, State::AtStart),
            protected: false,
            own: false,
            hidden: false,
            unsafe_to_ignore: None,
        }
    }

    /// Served and changed while running.
    pub const fn live(name: &'static str, kind: Kind, default: &'static str) -> Self {
        Self::new(State::Live, name, kind, default)
    }

    /// Served, fixed at the start.
    pub const fn at_start(name: &'static str, kind: Kind, default: &'static str) -> Self {
        Self::new(State::AtStart, name, kind, default)
    }

    /// Not served.
    pub const fn known(name: &'static str, kind: Kind, default: &'static str) -> Self {
        Self::new(State::Known, name, kind, default)
    }

    /// With a second name.
    pub const fn alias(self, alias: &'static str) -> Self {
        Directive { alias: Some(alias), ..self }
    }

    /// Fixed at the start in Redis too.
    pub const fn immutable(self) -> Self {
        Directive { immutable: true, ..self }
    }

    /// Changed only where `enable-protected-configs` allows.
    pub const fn protected(self) -> Self {
        Directive { protected: true, ..self }
    }

    /// Not served, and unsafe to ignore: `meaning` says why, as a clause.
    pub const fn unsafe_to_ignore(self, meaning: &'static str) -> Self {
        Directive { unsafe_to_ignore: Some(meaning), ..self }
    }

    /// Pantala's own.
    pub const fn own(self) -> Self {
        Directive { own: true, ..self }
    }

    /// Left out of `CONFIG GET` patterns.
    pub const fn hidden(self) -> Self {
        Directive { hidden: true, ..self }
    }
}
