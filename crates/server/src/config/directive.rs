//! The record of a directive: its name, type, default, and level of support.

/// The level of support for a directive of Redis 7.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Supported; `CONFIG SET` can change it at run time.
    Live,
    /// Supported, but fixed once the server has started. `CONFIG SET` then fails with "can't set
    /// immutable config".
    AtStart,
    /// Known but not supported, so the value is always the default. If the file has another value,
    /// there is a warning or, if [`Directive::unsafe_to_ignore`] is set, the server doesn't start.
    /// `CONFIG SET` of another value is an error.
    Known,
}

/// The type of a directive's value, with its range.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `yes` or `no`.
    Bool,
    /// Decimal integer within the range, which includes both ends.
    Integer(i128, i128),
    /// Octal integer within the range, which includes both ends (file permissions).
    Octal(i128, i128),
    /// Bytes with an optional unit, within the range.
    Memory(i128, i128),
    /// Bytes with an optional unit, or a percentage, which is stored as a negative number.
    MemoryOrPercent,
    /// Any bytes.
    Text,
    /// Text valid in host names, shorter than 256 bytes.
    HostName,
    /// A file name without a slash, or nothing. The field is the error text for a value with a
    /// slash.
    FileName(&'static str),
    /// A file name without a slash. The field is the error text for a value with a slash.
    RequiredFileName(&'static str),
    /// One of these names, whose case is ignored.
    Choice(&'static [&'static str]),
    /// `oom-score-adj`: a choice that also accepts `relative` for `yes`.
    OomScoreAdj,
    /// `oom-score-adj-values`: three numbers from -2000 to 2000.
    OomScores,
    /// `proc-title-template`: text that contains only known variables.
    TitleTemplate,
    /// `latency-tracking-info-percentiles`: any number of values from 0 to 100.
    Percentiles,
    /// `bind`: at most [`BIND_MAX`] addresses.
    Bind,
    /// `save`: pairs of seconds and changes. The pairs of several lines in a file are combined.
    Save,
    /// `client-output-buffer-limit`: groups of class, hard limit, soft limit and seconds. A class
    /// that is not named keeps its limits.
    OutputBufferLimit,
    /// `replicaof`: host and port, or `no one`.
    ReplicaOf,
    /// `shutdown-on-sigint` and `shutdown-on-sigterm`: options of `SHUTDOWN`.
    ShutdownOptions,
    /// `notify-keyspace-events`: letters of classes, stored as the bits of
    /// [`EventClasses`](pantala_engine::notify::EventClasses).
    KeyspaceEvents,
    /// `dir`: the process's working directory.
    Dir,
}

/// Maximum number of addresses in `bind`.
pub const BIND_MAX: usize = 16;

impl Kind {
    /// Returns whether a line of the file may have any number of words after the directive's name.
    pub fn is_multi_argument(self) -> bool {
        matches!(
            self,
            Kind::OomScores
                | Kind::Percentiles
                | Kind::Bind
                | Kind::Save
                | Kind::OutputBufferLimit
                | Kind::ReplicaOf
                | Kind::ShutdownOptions
        )
    }
}

/// The record of one directive.
#[derive(Clone, Copy, Debug)]
pub struct Directive {
    /// The name, in lower case.
    pub name: &'static str,
    /// Another name with the same meaning, if any.
    pub alias: Option<&'static str>,
    /// Type and range.
    pub kind: Kind,
    /// Default, as `CONFIG GET` shows it.
    pub default: &'static str,
    /// The level of support.
    pub state: State,
    /// Whether Redis fixes the directive at startup.
    pub immutable: bool,
    /// Whether `CONFIG SET` needs `enable-protected-configs`.
    pub protected: bool,
    /// Whether `CONFIG SET` fails with `-LOADING` while the dataset is being loaded.
    pub denied_while_loading: bool,
    /// Whether the directive is Pantala's own. Redis doesn't have such directives.
    pub own: bool,
    /// Whether `CONFIG GET` shows the directive only by its exact name.
    pub hidden: bool,
    /// The consequence of ignoring the directive, if it isn't supported and ignoring it is unsafe.
    /// If this is set, a value other than the default prevents startup.
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
            denied_while_loading: false,
            own: false,
            hidden: false,
            unsafe_to_ignore: None,
        }
    }

    /// Returns a directive that is supported and changed at run time.
    pub const fn live(name: &'static str, kind: Kind, default: &'static str) -> Self {
        Self::new(State::Live, name, kind, default)
    }

    /// Returns a directive that is supported and fixed at startup.
    pub const fn at_start(name: &'static str, kind: Kind, default: &'static str) -> Self {
        Self::new(State::AtStart, name, kind, default)
    }

    /// Returns a directive that is not supported.
    pub const fn known(name: &'static str, kind: Kind, default: &'static str) -> Self {
        Self::new(State::Known, name, kind, default)
    }

    /// Adds a second name.
    pub const fn alias(self, alias: &'static str) -> Self {
        Directive { alias: Some(alias), ..self }
    }

    /// Marks the directive as fixed at startup in Redis.
    pub const fn immutable(self) -> Self {
        Directive { immutable: true, ..self }
    }

    /// Marks the directive as protected: `CONFIG SET` needs `enable-protected-configs`.
    pub const fn protected(self) -> Self {
        Directive { protected: true, ..self }
    }

    /// Marks the directive as one that can't be changed while the dataset is being loaded.
    pub const fn denied_while_loading(self) -> Self {
        Directive { denied_while_loading: true, ..self }
    }

    /// Marks the directive as unsafe to ignore. `meaning` is a clause that states the consequence.
    pub const fn unsafe_to_ignore(self, meaning: &'static str) -> Self {
        Directive { unsafe_to_ignore: Some(meaning), ..self }
    }

    /// Marks the directive as Pantala's own.
    pub const fn own(self) -> Self {
        Directive { own: true, ..self }
    }

    /// Hides the directive from patterns of `CONFIG GET`.
    pub const fn hidden(self) -> Self {
        Directive { hidden: true, ..self }
    }
}
