//! The declarative record of a command. The command table, `COMMAND`, ACL categories, key
//! extraction and arity checks all use the record. The record also contains the command's handler.

use bitflags::bitflags;

use pantala_resp::Args;

mod argument;
mod call;
mod handler;
mod keys;
mod slots;

pub use argument::{Argument, ArgumentFlags, ArgumentKind};
pub use call::{Key, KeyPlace, Permit, SessionView};
pub use handler::{
    Chance, Drawn, Handler, Handlers, Keyed, KeyedHandler, Local, LocalHandler, Omission, Propagated, Route,
    ScriptForm, ScriptReference, ShardChoice, TransactionPart, UndeterminedHandler,
};
pub use keys::{InvalidKeys, LegacyRange, for_each_key, keys_of};
pub use slots::Slots;

bitflags! {
    /// Command flags, by Redis's names (`COMMAND INFO`, third field).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u64 {
        /// May modify the dataset.
        const WRITE = 1 << 0;
        /// Only reads the dataset.
        const READONLY = 1 << 1;
        /// May allocate memory for data: rejected when memory is above the limit.
        const DENYOOM = 1 << 2;
        /// Administrative.
        const ADMIN = 1 << 3;
        /// Related to publish/subscribe.
        const PUBSUB = 1 << 4;
        /// Not allowed in scripts.
        const NOSCRIPT = 1 << 5;
        /// May block the client.
        const BLOCKING = 1 << 6;
        /// Allowed while the dataset is loading.
        const LOADING = 1 << 7;
        /// Allowed on a stale replica.
        const STALE = 1 << 8;
        /// `MONITOR` does not show the command.
        const SKIP_MONITOR = 1 << 9;
        /// Not recorded by `SLOWLOG`.
        const SKIP_SLOWLOG = 1 << 10;
        /// Runs as if the client had sent `ASKING` before it (in a cluster).
        const ASKING = 1 << 11;
        /// O(1) or O(log N).
        const FAST = 1 << 12;
        /// Allowed before authentication.
        const NO_AUTH = 1 << 13;
        /// May replicate although it is not a write.
        const MAY_REPLICATE = 1 << 14;
        /// May have no key. `COMMAND GETKEYS` then replies with an empty array instead of an error.
        const NO_MANDATORY_KEYS = 1 << 15;
        /// Not allowed while the dataset is loading asynchronously.
        const NO_ASYNC_LOADING = 1 << 16;
        /// Not allowed in MULTI.
        const NO_MULTI = 1 << 17;
        /// Key positions cannot be described by first/last/step. No record sets this flag:
        /// [`Command::shown_flags`] derives it.
        const MOVABLEKEYS = 1 << 18;
        /// Allowed while a script is busy.
        const ALLOW_BUSY = 1 << 19;
        // The flags below are not shown, because Redis has no names for them.

        /// The error reply is the requested result (`DEBUG ERROR`), so error statistics do not
        /// count it.
        const ANSWERS_ERRORS = 1 << 28;
        /// O(1) in the size of the keys' values, although it is not `FAST` in Redis: see
        /// [`Command::is_plain`].
        const PLAIN = 1 << 29;
        /// Requires the setting `enable-debug-command` if [`Flags::DEBUGS`] is set, otherwise
        /// `enable-module-command`.
        const PROTECTED = 1 << 30;
        /// A container (a command with subcommands) whose subcommands have records here but not in
        /// Redis (`DEBUG`), or one of these subcommands. `COMMAND` does not show these subcommands.
        /// If a subcommand has no record or a wrong number of arguments, the container's own
        /// handler replies.
        const OWN_SUBCOMMANDS = 1 << 31;
        /// Runs immediately between `MULTI` and `EXEC` instead of being queued.
        const UNQUEUED = 1 << 32;
        /// Ends a transaction without running it.
        const DISCARDS = 1 << 33;
        /// Allowed on a RESP2 connection that has subscriptions.
        const WHILE_SUBSCRIBED = 1 << 34;
        /// Ends subscriptions of its client, or the client's `MONITOR`, or suppresses its lines.
        const UNSUBSCRIBES = 1 << 35;
        /// Its replies, except errors, count as messages. `CLIENT REPLY` does not suppress
        /// messages.
        const ANSWERS_MESSAGES = 1 << 36;
        /// Reports memory usage or sets its limits. Before the command runs, its worker adds to the
        /// global counter the memory usage of shards that no thread holds.
        const MEASURES = 1 << 37;
        /// Needs no shard outside of a transaction, but all shards within one (`CLIENT PAUSE`).
        const ALL_SHARDS_QUEUED = 1 << 38;
        /// May change a key in a database other than the selected one (`COPY`, `MOVE`). Its route
        /// contains only the shards of its keys, because a key has the same shard in all databases.
        const OTHER_DATABASES = 1 << 39;
        /// Is ignored by `CLIENT CACHING`, which applies to the next command without this flag.
        const KEEPS_CACHING = 1 << 40;
        /// Part of `DEBUG`: `DEBUG SET-DISABLE-DENY-SCRIPTS` lets scripts run it.
        const DEBUGS = 1 << 41;
        /// Rejected like a write while writes cannot be persisted. Set for `PING`, so that health
        /// checks notice the failure.
        const NEEDS_DISK = 1 << 42;
        /// Replies with the string value of its only key and does nothing else. For a key for which
        /// workers contend, they can therefore publish the value and reply without holding the
        /// key's shard.
        const PUBLISHES = 1 << 43;
    }
}

impl Flags {
    /// The flags' names in Redis, in the order of the bits, which is Redis's order.
    pub const NAMES: [&'static str; 20] = [
        "write",
        "readonly",
        "denyoom",
        "admin",
        "pubsub",
        "noscript",
        "blocking",
        "loading",
        "stale",
        "skip_monitor",
        "skip_slowlog",
        "asking",
        "fast",
        "no_auth",
        "may_replicate",
        "no_mandatory_keys",
        "no_async_loading",
        "no_multi",
        "movablekeys",
        "allow_busy",
    ];

    /// Returns the names of the flags that are set and shown, in Redis's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        // Redis does not show `may_replicate`.
        names_of_bits(self.difference(Self::MAY_REPLICATE).bits(), &Self::NAMES)
    }
}

/// Returns the names of the set bits among the first `names.len()` bits.
fn names_of_bits(bits: u64, names: &'static [&'static str]) -> impl Iterator<Item = &'static str> + Clone {
    names.iter().enumerate().filter(move |(bit, _)| bits & (1 << bit) != 0).map(|(_, name)| *name)
}

bitflags! {
    /// ACL categories by Redis's names. [`Command::acl_categories`] adds the categories that
    /// [`Flags`] imply.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Acl: u32 {
        #[allow(missing_docs)] const KEYSPACE = 1 << 0;
        #[allow(missing_docs)] const READ = 1 << 1;
        #[allow(missing_docs)] const WRITE = 1 << 2;
        #[allow(missing_docs)] const SET = 1 << 3;
        #[allow(missing_docs)] const SORTEDSET = 1 << 4;
        #[allow(missing_docs)] const LIST = 1 << 5;
        #[allow(missing_docs)] const HASH = 1 << 6;
        #[allow(missing_docs)] const STRING = 1 << 7;
        #[allow(missing_docs)] const BITMAP = 1 << 8;
        #[allow(missing_docs)] const HYPERLOGLOG = 1 << 9;
        #[allow(missing_docs)] const GEO = 1 << 10;
        #[allow(missing_docs)] const STREAM = 1 << 11;
        #[allow(missing_docs)] const PUBSUB = 1 << 12;
        #[allow(missing_docs)] const ADMIN = 1 << 13;
        #[allow(missing_docs)] const FAST = 1 << 14;
        #[allow(missing_docs)] const SLOW = 1 << 15;
        #[allow(missing_docs)] const BLOCKING = 1 << 16;
        #[allow(missing_docs)] const DANGEROUS = 1 << 17;
        #[allow(missing_docs)] const CONNECTION = 1 << 18;
        #[allow(missing_docs)] const TRANSACTION = 1 << 19;
        #[allow(missing_docs)] const SCRIPTING = 1 << 20;
    }
}

impl Acl {
    /// The names of the categories, in the order of their bits, which is Redis's order.
    pub const NAMES: [&'static str; 21] = [
        "keyspace",
        "read",
        "write",
        "set",
        "sortedset",
        "list",
        "hash",
        "string",
        "bitmap",
        "hyperloglog",
        "geo",
        "stream",
        "pubsub",
        "admin",
        "fast",
        "slow",
        "blocking",
        "dangerous",
        "connection",
        "transaction",
        "scripting",
    ];

    /// Returns the category with a name (without `@`, case-insensitive).
    pub fn by_name(name: &[u8]) -> Option<Self> {
        let bit = Self::NAMES.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(name))?;
        Some(Self::from_bits_retain(1 << bit))
    }

    /// Returns the names of the categories, without `@`, in Redis's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        names_of_bits(self.bits().into(), &Self::NAMES)
    }
}

/// Start of a command's keys (Redis's key specifications).
#[derive(Clone, Copy, Debug)]
pub enum BeginSearch {
    /// At an argument index.
    Index(i32),
    /// After a keyword. The number is the argument index at which the search for the keyword
    /// starts. A negative index counts from the end, and the search continues towards the start.
    Keyword(&'static str, i32),
    /// The start cannot be described.
    Unknown,
}

/// Extent of the keys, given their start.
#[derive(Clone, Copy, Debug)]
pub enum FindKeys {
    /// A range of arguments.
    Range {
        /// Last key relative to the first. A negative number counts from the end of the arguments.
        last: i32,
        /// Distance from one key to the next.
        step: i32,
        /// 0 or 1: no limit. n > 1: the keys are the first 1/n of the arguments from the first key
        /// on. Used only if `last` is negative.
        limit: i32,
    },
    /// A number of keys. The number is itself an argument, before the keys.
    KeyNum {
        /// Index of the count, relative to the start.
        keynum: i32,
        /// Index of the first key, relative to the start.
        first: i32,
        /// Distance from one key to the next.
        step: i32,
    },
    /// The extent cannot be described.
    Unknown,
}

/// One key specification.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    /// A remark on the specification, or an empty string.
    pub notes: &'static str,
    /// Flags in Redis's order and spelling: `RW`, `RO`, `OW`, `RM`, `access`, `update`, `insert`,
    /// `delete`, …
    pub flags: &'static [&'static str],
    /// The start of the keys.
    pub begin: BeginSearch,
    /// Extent of the keys.
    pub find: FindKeys,
}

impl KeySpec {
    /// Returns the specification of a single key at an argument index.
    pub const fn at(index: i32, flags: &'static [&'static str]) -> Self {
        Self {
            notes: "",
            flags,
            begin: BeginSearch::Index(index),
            find: FindKeys::Range { last: 0, step: 1, limit: 0 },
        }
    }

    /// Returns the specification of consecutive keys, from an argument index to the argument `last`
    /// places after it.
    pub const fn range(index: i32, last: i32, flags: &'static [&'static str]) -> Self {
        Self { notes: "", flags, begin: BeginSearch::Index(index), find: FindKeys::Range { last, step: 1, limit: 0 } }
    }

    /// Returns the specification of keys from an argument index to the end, at every `step`th
    /// argument.
    pub const fn all_from(index: i32, step: i32, flags: &'static [&'static str]) -> Self {
        Self { notes: "", flags, begin: BeginSearch::Index(index), find: FindKeys::Range { last: -1, step, limit: 0 } }
    }

    /// Adds a remark.
    pub const fn note(mut self, notes: &'static str) -> Self {
        self.notes = notes;
        self
    }
}

/// Finds the keys of a call. Calls the function in the second argument for each key, with the key's
/// argument index and the index of its specification in [`Command::key_specs`].
pub type OwnKeys = fn(&Args<'_>, &mut dyn FnMut(usize, usize));

/// Returns whether the argument of a call at an index is a secret.
pub type Secrets = fn(&Args<'_>, usize) -> bool;

/// Maximum number of arguments of a plain call ([`Command::is_plain`]). Calls with more arguments
/// may take long.
const PLAIN_ARGUMENTS_MAX: usize = 8;

/// The record of a command: all its properties.
#[derive(Clone, Copy)]
pub struct Command {
    /// Lower-case name. For a subcommand the part after the bar (`getname`).
    pub name: &'static str,
    /// Full lower-case name as Redis prints it (`client|getname`).
    pub full_name: &'static str,
    /// Number of arguments including the name. Negative: at least that many.
    pub arity: i32,
    /// Flags.
    pub flags: Flags,
    /// ACL categories in addition to those that the flags imply.
    pub acl: Acl,
    /// Key specifications.
    pub key_specs: &'static [KeySpec],
    /// Command tips, which `COMMAND INFO` shows.
    pub tips: &'static [&'static str],
    /// Group (`string`, `generic`, …).
    pub group: &'static str,
    /// First version with the command: of Redis, or of Pantala (`0.`) if Redis does not have the
    /// command.
    pub since: &'static str,
    /// Time complexity.
    pub complexity: &'static str,
    /// A description of the command, not copied from Redis.
    pub summary: &'static str,
    /// Changes of the command: pairs of a Redis version and its change.
    pub history: &'static [(&'static str, &'static str)],
    /// Version that deprecated the command, and its replacement.
    pub deprecated: Option<(&'static str, &'static str)>,
    /// Flags that `COMMAND DOCS` shows as `doc_flags`, in addition to `deprecated`: `syscmd`.
    pub doc_flags: &'static [&'static str],
    /// Declared syntax.
    pub arguments: &'static [Argument],
    /// Subcommands.
    pub subcommands: &'static [Command],
    /// The shards that the command takes.
    pub route: Route,
    /// The command's handler.
    pub handler: Handler,
    /// Finds the keys of a call, if key specifications cannot describe them.
    pub own_keys: Option<OwnKeys>,
    /// Finds keys that the command uses, but that the key specifications and [`Command::own_keys`]
    /// omit, because Redis omits them. Permissions are checked for these keys too.
    pub unnamed_keys: Option<OwnKeys>,
    /// Returns whether an argument is a secret. No log may show secrets.
    pub secrets: Option<Secrets>,
    /// Returns the flags that apply to the key in this call. Used if the key specification has the
    /// flag `variable_flags` (SET, with and without the option GET).
    pub key_flags: Option<fn(&Args<'_>) -> &'static [&'static str]>,
}

/// Returns whether a number of arguments fits an arity. The names of command and subcommand count
/// as arguments. A positive arity is the exact number, a negative one is a minimum.
#[inline]
pub fn arity_accepts(arity: i32, arguments: usize) -> bool {
    let wanted = arity.unsigned_abs() as usize;
    if arity >= 0 { arguments == wanted } else { arguments >= wanted }
}

impl Command {
    /// The base of a record (`..Command::BLANK`): no flags, no keys, no shards, and the handler of
    /// a container.
    pub const BLANK: Self = Self {
        name: "",
        full_name: "",
        arity: 0,
        flags: Flags::empty(),
        acl: Acl::empty(),
        key_specs: &[],
        tips: &[],
        group: "",
        since: "",
        complexity: "",
        summary: "",
        history: &[],
        deprecated: None,
        doc_flags: &[],
        arguments: &[],
        subcommands: &[],
        route: Route::None,
        handler: Handler::Container,
        own_keys: None,
        unnamed_keys: None,
        secrets: None,
        key_flags: None,
    };

    /// Returns whether a number of arguments fits the arity. The names of command and subcommand
    /// count as arguments.
    #[inline]
    pub fn accepts(&self, arguments: usize) -> bool {
        arity_accepts(self.arity, arguments)
    }

    /// Returns whether calls with this number of arguments take a short time that depends only on
    /// the lengths of their arguments and replies.
    #[inline]
    pub fn is_plain(&self, arguments: usize) -> bool {
        arguments <= PLAIN_ARGUMENTS_MAX && self.flags.intersects(Flags::FAST.union(Flags::PLAIN))
    }

    /// Returns whether a call with this number of arguments is timed individually when it runs as a
    /// queued request and not directly. This is the case if the command may block or is not plain
    /// ([`Command::is_plain`]). The other calls share the time measured for their window (the
    /// commands that a worker runs together).
    pub fn is_timed_individually(&self, arguments: usize) -> bool {
        !self.is_plain(arguments) || self.flags.contains(Flags::BLOCKING)
    }

    /// Returns the subcommand with a name (case-insensitive).
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        // A linear search, because there are at most a few dozen names, mostly of distinct lengths.
        // A hash table would not be faster.
        self.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Returns the name shown to clients. For a subcommand that is not shown, because Redis has no
    /// record for it, returns the container's name.
    pub fn shown_name(&self) -> &'static str {
        match self.full_name.split_once('|') {
            Some((container, _)) if self.flags.contains(Flags::OWN_SUBCOMMANDS) => container,
            _ => self.full_name,
        }
    }

    /// Returns the subcommands that COMMAND shows.
    pub fn shown_subcommands(&self) -> &'static [Command] {
        if self.flags.contains(Flags::OWN_SUBCOMMANDS) { &[] } else { self.subcommands }
    }

    /// Returns the ACL categories, including those that the flags imply.
    pub fn acl_categories(&self) -> Acl {
        let mut acl = self.acl;
        if self.flags.contains(Flags::WRITE) {
            acl |= Acl::WRITE;
        }
        // Commands for read-only scripts (`EVAL_RO`) have the flag `readonly`, but are not in the
        // category `read`.
        if self.flags.contains(Flags::READONLY) && !self.acl.contains(Acl::SCRIPTING) {
            acl |= Acl::READ;
        }
        if self.flags.contains(Flags::ADMIN) {
            acl |= Acl::ADMIN | Acl::DANGEROUS;
        }
        if self.flags.contains(Flags::PUBSUB) {
            acl |= Acl::PUBSUB;
        }
        if self.flags.contains(Flags::BLOCKING) {
            acl |= Acl::BLOCKING;
        }
        acl | if self.flags.contains(Flags::FAST) { Acl::FAST } else { Acl::SLOW }
    }

    /// Returns the flags that COMMAND shows.
    pub fn shown_flags(&self) -> Flags {
        let mut flags = self.flags;
        flags.set(Flags::MOVABLEKEYS, self.legacy_range().movable);
        flags
    }
}
