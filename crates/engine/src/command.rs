//! The declarative record of a command. The command table, `COMMAND`, ACL categories, key extraction and arity all
//! derive from it; a handler sits beside it.

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
    Handler, Handlers, Keyed, KeyedHandler, Local, LocalHandler, Route, ScriptForm, ScriptNamed, ShardChoice,
    TransactionPart,
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
        /// May grow memory: refused when out of memory.
        const DENYOOM = 1 << 2;
        /// Administrative.
        const ADMIN = 1 << 3;
        /// Publish/subscribe related.
        const PUBSUB = 1 << 4;
        /// Not allowed in scripts.
        const NOSCRIPT = 1 << 5;
        /// May block the client.
        const BLOCKING = 1 << 6;
        /// Allowed while the dataset is loading.
        const LOADING = 1 << 7;
        /// Allowed on a stale replica.
        const STALE = 1 << 8;
        /// Not shown to `MONITOR`.
        const SKIP_MONITOR = 1 << 9;
        /// Not recorded by `SLOWLOG`.
        const SKIP_SLOWLOG = 1 << 10;
        /// Implicit ASKING in a cluster.
        const ASKING = 1 << 11;
        /// O(1) or O(log N).
        const FAST = 1 << 12;
        /// Allowed before authentication.
        const NO_AUTH = 1 << 13;
        /// May replicate although it is no write.
        const MAY_REPLICATE = 1 << 14;
        /// May come without any key, and `COMMAND GETKEYS` then answers an empty array instead of an error.
        const NO_MANDATORY_KEYS = 1 << 15;
        /// Not allowed while the dataset is loading asynchronously.
        const NO_ASYNC_LOADING = 1 << 16;
        /// Not allowed in MULTI.
        const NO_MULTI = 1 << 17;
        /// Keys are not where first/last/step says. Never written in a record: [`Command::shown_flags`] derives it.
        const MOVABLEKEYS = 1 << 18;
        /// Allowed while a script is busy.
        const ALLOW_BUSY = 1 << 19;
        // None of the flags below is shown: Redis has no names for them.

        /// An error that it answers is what was asked for (`DEBUG ERROR`), and counts nowhere.
        const ANSWERS_ERRORS = 1 << 28;
        /// O(1) in what its keys hold, though Redis doesn't call it fast: see [`Command::is_plain`].
        const PLAIN = 1 << 29;
        /// Needs `enable-debug-command` or a like directive.
        const PROTECTED = 1 << 30;
        /// Of a container and its subcommands, which have records here but not in Redis (DEBUG): they aren't shown, and the
        /// container's own handler answers for a subcommand without a record, or with a number of arguments that doesn't fit.
        const OWN_SUBCOMMANDS = 1 << 31;
        /// Runs at once between `MULTI` and `EXEC`: it isn't queued.
        const UNQUEUED = 1 << 32;
        /// Ends a transaction without running it.
        const DISCARDS = 1 << 33;
        /// Allowed on a RESP2 connection that has subscriptions.
        const WHILE_SUBSCRIBED = 1 << 34;
        /// Ends subscriptions of its client, or `MONITOR`.
        const UNSUBSCRIBES = 1 << 35;
        /// What it answers counts as messages, which `CLIENT REPLY` doesn't suppress.
        const ANSWERS_MESSAGES = 1 << 36;
        /// Reports memory usage or sets its limits: shards measure themselves before it runs.
        const MEASURES = 1 << 37;
        /// Needs no shard by itself, but all of them within a transaction (`CLIENT PAUSE`).
        const ALL_SHARDS_QUEUED = 1 << 38;
        /// Changes keys of other databases than the selected one, although its route is that of its keys.
        const OTHER_DATABASES = 1 << 39;
        /// Blocks only where its option `BLOCK` says so, which scripts may not use.
        const BLOCK_OPTION = 1 << 40;
        /// Leaves `CLIENT CACHING` to the next command.
        const KEEPS_CACHING = 1 << 41;
        /// Part of `DEBUG`: `DEBUG SET-DISABLE-DENY-SCRIPTS` lets scripts run it.
        const DEBUGS = 1 << 42;
    }
}

impl Flags {
    /// Name of each flag that `COMMAND INFO` shows, in the order of its bits, which is the order Redis shows them in.
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

    /// The names of the flags that are set and shown, in Redis's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        // Redis hides that one.
        names_of_bits(self.difference(Self::MAY_REPLICATE).bits(), &Self::NAMES)
    }
}

/// Names of the set bits among the lowest `names.len()`.
fn names_of_bits(bits: u64, names: &'static [&'static str]) -> impl Iterator<Item = &'static str> + Clone {
    names.iter().enumerate().filter(move |(bit, _)| bits & (1 << bit) != 0).map(|(_, name)| *name)
}

bitflags! {
    /// ACL categories, by Redis's names. Those implied by [`Flags`] are added by [`Command::acl_categories`].
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
    /// Name of each category, in the order of its bits, which is the order Redis shows them in.
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

    /// The category of that name (without `@`, any case).
    pub fn by_name(name: &[u8]) -> Option<Self> {
        let bit = Self::NAMES.iter().position(|known| known.as_bytes().eq_ignore_ascii_case(name))?;
        Some(Self::from_bits_retain(1 << bit))
    }

    /// The names of the categories, without `@`, in Redis's order.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        names_of_bits(self.bits().into(), &Self::NAMES)
    }
}

/// Where the keys of a command begin (Redis's key specifications).
#[derive(Clone, Copy, Debug)]
pub enum BeginSearch {
    /// At an argument index.
    Index(i32),
    /// After a keyword, searched from an index (negative: from the end).
    Keyword(&'static str, i32),
    /// Can't be said.
    Unknown,
}

/// How the keys go on from where they begin.
#[derive(Clone, Copy, Debug)]
pub enum FindKeys {
    /// Last key (relative to the first; negative: from the end), step, limit.
    Range {
        /// Last key relative to the first; negative counts from the end of the arguments.
        last: i32,
        /// Arguments from one key to the next.
        step: i32,
        /// 0 or 1: none; n: stop after 1/n of the rest.
        limit: i32,
    },
    /// A count argument precedes the keys.
    KeyNum {
        /// Index of the count, relative to the beginning.
        keynum: i32,
        /// Index of the first key, relative to the beginning.
        first: i32,
        /// Arguments from one key to the next.
        step: i32,
    },
    /// Can't be said.
    Unknown,
}

/// One key specification.
#[derive(Clone, Copy, Debug)]
pub struct KeySpec {
    /// A remark on the specification, or "".
    pub notes: &'static str,
    /// Flags in Redis's order and spelling: `RW`, `RO`, `OW`, `RM`, `access`, `update`, `insert`, `delete`, …
    pub flags: &'static [&'static str],
    /// Where keys begin.
    pub begin: BeginSearch,
    /// How they go on.
    pub find: FindKeys,
}

impl KeySpec {
    /// One key at an argument index.
    pub const fn at(index: i32, flags: &'static [&'static str]) -> Self {
        Self {
            notes: "",
            flags,
            begin: BeginSearch::Index(index),
            find: FindKeys::Range { last: 0, step: 1, limit: 0 },
        }
    }

    /// Consecutive keys from an argument index to the one `last` after it.
    pub const fn range(index: i32, last: i32, flags: &'static [&'static str]) -> Self {
        Self { notes: "", flags, begin: BeginSearch::Index(index), find: FindKeys::Range { last, step: 1, limit: 0 } }
    }

    /// Keys from an argument index to the last argument, one every `step` arguments.
    pub const fn all_from(index: i32, step: i32, flags: &'static [&'static str]) -> Self {
        Self { notes: "", flags, begin: BeginSearch::Index(index), find: FindKeys::Range { last: -1, step, limit: 0 } }
    }

    /// With a remark.
    pub const fn note(mut self, notes: &'static str) -> Self {
        self.notes = notes;
        self
    }
}

/// Calls its second argument with the argument index of each key of a call and the number of its key specification.
pub type OwnKeys = fn(&Args<'_>, &mut dyn FnMut(usize, usize));

/// Whether the argument of a call at this index is a secret.
pub type Secrets = fn(&Args<'_>, usize) -> bool;

/// Arguments of a plain call at most: more of them may be more work.
const PLAIN_ARGUMENTS_MAX: usize = 8;

/// A command: everything that is known of it, in one place.
#[derive(Clone, Copy)]
pub struct Command {
    /// Lower-case name; of a subcommand, the part after the bar (`getname`).
    pub name: &'static str,
    /// Full lower-case name as Redis prints it (`client|getname`).
    pub full_name: &'static str,
    /// Number of arguments with the name; negative: at least that many.
    pub arity: i32,
    /// Flags.
    pub flags: Flags,
    /// ACL categories beyond those that the flags imply.
    pub acl: Acl,
    /// Key specifications.
    pub key_specs: &'static [KeySpec],
    /// Command tips.
    pub tips: &'static [&'static str],
    /// Group (`string`, `generic`, …).
    pub group: &'static str,
    /// First Redis version with it.
    pub since: &'static str,
    /// Time complexity.
    pub complexity: &'static str,
    /// What it does, in our words.
    pub summary: &'static str,
    /// (version, change) pairs.
    pub history: &'static [(&'static str, &'static str)],
    /// Version since when it is deprecated, and what replaces it.
    pub deprecated: Option<(&'static str, &'static str)>,
    /// `doc_flags` beyond `deprecated` (`syscmd`).
    pub doc_flags: &'static [&'static str],
    /// Declared syntax.
    pub arguments: &'static [Argument],
    /// Subcommands.
    pub subcommands: &'static [Command],
    /// Which shards it takes.
    pub route: Route,
    /// What runs it.
    pub handler: Handler,
    /// Finds its keys, where the key specifications can't say where they are.
    pub own_keys: Option<OwnKeys>,
    /// Finds keys that it uses and that, as in Redis, neither its key specifications nor
    /// [`Command::own_keys`] name. Permissions are checked for them too.
    pub unnamed_keys: Option<OwnKeys>,
    /// Which of its arguments are secrets that no log may show, if any is.
    pub secrets: Option<Secrets>,
    /// The flags of its key in one call, where a key specification says `variable_flags` (SET with and without GET).
    pub key_flags: Option<fn(&Args<'_>) -> &'static [&'static str]>,
}

/// Whether this many arguments (the name and a subcommand's name included) suit an arity: so many, or at least as many where it is negative.
#[inline]
pub fn arity_accepts(arity: i32, arguments: usize) -> bool {
    let wanted = arity.unsigned_abs() as usize;
    if arity >= 0 { arguments == wanted } else { arguments >= wanted }
}

impl Command {
    /// What a record starts from (`..Command::BLANK`): no flags, no keys, no shards, and only subcommands run.
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

    /// Whether this many arguments (the name and a subcommand's name included) suit its arity.
    #[inline]
    pub fn accepts(&self, arguments: usize) -> bool {
        arity_accepts(self.arity, arguments)
    }

    /// Whether a call with so many arguments takes about the same short time whatever it meets, but for the length of its arguments
    /// and its reply.
    #[inline]
    pub fn is_plain(&self, arguments: usize) -> bool {
        arguments <= PLAIN_ARGUMENTS_MAX && self.flags.intersects(Flags::FAST.union(Flags::PLAIN))
    }

    /// Whether a call with so many arguments that travels to its shard has its own time taken there: one that isn't plain, and one that may wait, which has
    /// no share in the time of a window.
    pub fn is_timed_on_its_way(&self, arguments: usize) -> bool {
        !self.is_plain(arguments) || self.flags.contains(Flags::BLOCKING)
    }

    /// The subcommand of that name, in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static Command> {
        // A dozen names at most, most of them told apart by their length: a hash would cost more than it saves.
        self.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The name that clients are shown: the container's, where subcommands are its own affair.
    pub fn shown_name(&self) -> &'static str {
        match self.full_name.split_once('|') {
            Some((container, _)) if self.flags.contains(Flags::OWN_SUBCOMMANDS) => container,
            _ => self.full_name,
        }
    }

    /// The subcommands that COMMAND shows.
    pub fn shown_subcommands(&self) -> &'static [Command] {
        if self.flags.contains(Flags::OWN_SUBCOMMANDS) { &[] } else { self.subcommands }
    }

    /// ACL categories: its own and those that its flags imply.
    pub fn acl_categories(&self) -> Acl {
        let mut acl = self.acl;
        if self.flags.contains(Flags::WRITE) {
            acl |= Acl::WRITE;
        }
        // Scripts that only read don't count as reads.
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

    /// The flags that COMMAND shows, by name and in Redis's order.
    pub fn shown_flags(&self) -> Flags {
        let mut flags = self.flags;
        flags.set(Flags::MOVABLEKEYS, self.legacy_range().movable);
        flags
    }
}
