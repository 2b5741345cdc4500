//! The window: commands that a worker has parsed from its connections but not run yet.
//! [`crate::windows`] fills and runs the window.
//!
//! All commands of a window are parsed before the first of them runs, so that cache misses of
//! different commands overlap. The first stage hashes each key and prefetches its bucket in the
//! dictionary. The second stage, when the buckets have arrived, prefetches the entries. If commands
//! look up members or fields *inside* a set or hash, these are prefetched just before the commands
//! run (`windows::ahead`).
//!
//! Commands of one connection are in the window in the order in which the client sent them, and
//! they run in that order.

use pantala_commands::Unresolved;
use pantala_engine::access::KeyPlace;
use pantala_engine::command::{Command, Flags, Handler, Route, Slots, for_each_key};
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{ArgRange, Args, ProtocolError};
use pantala_session::{Parsed, Unrun};

use crate::renames::Renames;

/// Maximum number of commands in a window. Each command has about three cache lines in flight. The
/// L1 cache holds 512 lines, and the CPU has about a dozen line-fill buffers. With more commands,
/// prefetched lines would be evicted before they are used (`docs/decisions/0009-hot-path.md`).
pub const WINDOW_COMMANDS_MAX: usize = 64;

/// How to run a command of the window.
pub enum What {
    /// A command with one key, and the place (hash and shard) of the key.
    Single(&'static Command, KeyPlace),
    /// Any other command that runs on shards. The shards are determined when it runs.
    Keyed(&'static Command),
    /// A command that needs no shard, or determines its shards when it runs.
    Local(&'static Command),
    /// A command whose keys belong to several slots, in a cluster. It is rejected.
    CrossSlot(&'static Command),
    /// A command that could not be resolved.
    Unresolved(Unresolved),
    /// A protocol error. The connection is closed.
    Broken(ProtocolError),
    /// An HTTP request, perhaps a cross-protocol attack through a browser. The connection is closed
    /// without a reply.
    Browser,
    /// An empty line.
    Nothing,
}

/// A command in the window.
pub struct Entry {
    /// Index of the command's connection in the worker's table.
    pub connection: u32,
    /// Database that was selected when the command was parsed. Used only for prefetching.
    pub db: u32,
    /// Start of the command in the connection's input.
    pub begin: usize,
    /// End of the command in the connection's input.
    pub end: usize,
    /// Whether this is an inline command. Unquoting changes the bytes of an inline command in
    /// place.
    pub is_inline: bool,
    /// Index of the first argument in [`Window::ranges`].
    pub first_arg: u32,
    /// Number of arguments.
    pub args: u32,
    /// How to run the command.
    pub what: What,
}

/// The window described at the head of this module.
#[derive(Default)]
pub struct Window {
    /// The commands.
    pub entries: Vec<Entry>,
    /// Ranges of all arguments, each relative to the first byte of its command.
    pub ranges: Vec<ArgRange>,
    /// Recently resolved commands whose only key is their first argument.
    pub recent: Recent,
}

/// Capacity of [`Recent`]: a power of two.
const RECENT_MAX: usize = 8;

/// A cache of resolved commands. It contains only commands whose only key is their first argument,
/// as in nearly all calls. A command is found by its name, as the client spelled it. The cached
/// command applies only to calls with the same number of arguments. Subcommands are not cached,
/// because the first word alone does not determine the command.
#[derive(Default)]
pub struct Recent {
    known: [Option<Known>; RECENT_MAX],
}

#[derive(Clone, Copy)]
struct Known {
    /// The name, as [`Args::short_name`] returns it.
    name: u64,
    /// Number of arguments of the call.
    args: usize,
    command: &'static Command,
}

impl Recent {
    /// Index of the key in the arguments of each cached command.
    const KEY: usize = 1;

    /// Returns the index in `known` for a name.
    #[inline]
    fn place(name: u64) -> usize {
        // Any odd constant works: the upper bits of the product depend on all bits of the name.
        (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - RECENT_MAX.trailing_zeros())) as usize
    }

    /// Returns the command of a call if it is cached.
    #[inline]
    fn find(&self, args: &Args<'_>) -> Option<&'static Command> {
        let name = args.short_name()?;
        let known = self.known[Self::place(name)].as_ref()?;
        (known.name == name && known.args == args.len()).then_some(known.command)
    }

    /// Caches a resolved command if its key is its first argument. This excludes commands with
    /// subcommands, because their first argument is the subcommand's name.
    fn note(&mut self, args: &Args<'_>, command: &'static Command, key: usize) {
        if key == Self::KEY
            && let Some(name) = args.short_name()
        {
            self.known[Self::place(name)] = Some(Known { name, args: args.len(), command });
        }
    }
}

/// Maximum number of argument ranges whose memory an empty window keeps.
const RANGES_KEPT_MAX: usize = 64 * 1024;

impl Window {
    /// Returns whether the window is full.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= WINDOW_COMMANDS_MAX
    }

    /// Removes all commands.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.ranges.clear();
    }

    /// Frees the memory of the argument ranges if it is large. The window must be empty.
    #[inline]
    pub fn shrink(&mut self) {
        if self.ranges.capacity() > RANGES_KEPT_MAX {
            self.ranges = Vec::new();
        }
    }

    /// Returns the ranges of an entry's arguments.
    #[inline]
    pub fn ranges_of(&self, entry: &Entry) -> &[ArgRange] {
        &self.ranges[entry.first_arg as usize..(entry.first_arg + entry.args) as usize]
    }

    /// Iterates over the entries whose connection differs from that of the preceding entry, with
    /// their indexes. Most entries of a connection are adjacent, so most connections appear once. A
    /// connection whose entries aren't adjacent appears several times.
    #[inline]
    pub fn first_of_each(&self) -> impl Iterator<Item = (usize, &Entry)> {
        let mut last = None;
        let is_first = move |(_, entry): &(usize, &Entry)| last.replace(entry.connection) != Some(entry.connection);
        self.entries.iter().enumerate().filter(is_first)
    }

    /// Iterates over the commands of a connection from the entry at `from` on, except protocol
    /// errors.
    pub fn of_connection(&self, connection: u32, from: usize) -> impl Iterator<Item = Unrun<'_>> {
        let is_its = move |entry: &&Entry| entry.connection == connection && !matches!(entry.what, What::Broken(_));
        self.entries[from..].iter().filter(is_its).map(|entry| {
            let Entry { begin, end, is_inline, .. } = *entry;
            Unrun { parsed: Parsed { begin, end, is_inline }, ranges: self.ranges_of(entry) }
        })
    }

    /// Finds the commands' entries in the prefetched buckets by their tags (parts of the hashes),
    /// and prefetches these entries. This is the second stage.
    pub fn prefetch_entries(&self, keyspace: &Keyspace) {
        // A single command has no other cache miss to overlap with. Prefetching would only repeat
        // its lookup.
        if self.entries.len() < 2 {
            return;
        }
        for entry in &self.entries {
            if let What::Single(_, place) = entry.what {
                keyspace.hint(entry.db, place.shard).prefetch_entry(place.hash);
            }
        }
    }
}

/// Resolves a command and prefetches its bucket (first stage).
#[inline]
pub fn classify(keyspace: &Keyspace, renames: &Renames, recent: &mut Recent, db: u32, args: &Args<'_>) -> What {
    match recent.find(args) {
        Some(command) => single(keyspace, db, command, args.at(Recent::KEY)),
        None => classify_uncached(keyspace, renames, recent, db, args),
    }
}

/// Prefetches the bucket of a command's only key.
#[inline(always)]
fn single(keyspace: &Keyspace, db: u32, command: &'static Command, key: &[u8]) -> What {
    let place = keyspace.place(key);
    keyspace.hint(db, place.shard).prefetch_bucket(place.hash);
    What::Single(command, place)
}

/// Resolves a call that is not cached, and prefetches the buckets of its keys.
#[inline(never)]
fn classify_uncached(keyspace: &Keyspace, renames: &Renames, recent: &mut Recent, db: u32, args: &Args<'_>) -> What {
    if args.is_empty() {
        return What::Nothing;
    }
    let command = match renames.resolve(args) {
        Ok(command) => command,
        // As in Redis, HTTP requests are detected, because a web page can send a form to this port
        // with commands in its body. `POST` and `Host:` are first words of lines in such a request.
        Err(_) if [&b"post"[..], b"host:"].iter().any(|word| args.at(0).eq_ignore_ascii_case(word)) => {
            return What::Browser;
        }
        Err(why) => return What::Unresolved(why),
    };
    // This closure isn't called for a command with exactly one key, which always has one slot.
    let crosses_slots = || keyspace.is_cluster() && Slots::of(command, args) == Slots::Several;
    match (command.handler, command.route) {
        (Handler::Local(_) | Handler::Transaction(_), _) if crosses_slots() => What::CrossSlot(command),
        (Handler::Local(_) | Handler::Transaction(_), _) => What::Local(command),
        (Handler::Container, _) => What::Unresolved(Unresolved::WrongArity(command)),
        (Handler::Keyed(_) | Handler::Undetermined(_), Route::Keys) => match command.single_key() {
            // Protected commands are not cached, because each call needs a permission check.
            Some(index) if !command.flags.contains(Flags::PROTECTED) => {
                recent.note(args, command, index);
                single(keyspace, db, command, args.at(index))
            }
            _ if crosses_slots() => What::CrossSlot(command),
            _ => {
                // The keys are hashed again when the command runs, which costs less than a cache
                // miss per key.
                let _ = for_each_key(command, args, |index, _| {
                    let place = keyspace.place(args.at(index));
                    keyspace.hint(db, place.shard).prefetch_bucket(place.hash);
                });
                What::Keyed(command)
            }
        },
        (Handler::Keyed(_) | Handler::Undetermined(_), _) if crosses_slots() => What::CrossSlot(command),
        (Handler::Keyed(_) | Handler::Undetermined(_), _) => What::Keyed(command),
    }
}
