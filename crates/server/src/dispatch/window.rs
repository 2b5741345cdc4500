//! The window: commands that a worker has parsed from its connections and not run yet.
//!
//! All of it is parsed before any of it runs, so that while one command's bucket is on its way from memory, the next ones' are
//! too: stage one hashes each key and prefetches its bucket, stage two (when those have arrived) its entry. Commands of
//! different connections and shards overlap. What commands of one key look for *inside* its set or hash is fetched as they are about to
//! run (`look_ahead` in `run`). Order: a connection's commands stand in the window in the order it sent them,
//! and run in it.

use pantala_commands::Unresolved;
use pantala_engine::access::KeyPlace;
use pantala_engine::command::{Command, Flags, Handler, Route, Slots, for_each_key};
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{ArgRange, Args, ProtocolError};
use pantala_session::{Parsed, Unrun};

use crate::renames::Renames;

/// Commands in a window at most. Each has about three cache lines on their way; the first-level cache holds 512 and the
/// line-fill buffers about a dozen, so more would only push out what was fetched. Figures in docs/decisions.
pub const WINDOW_COMMANDS_MAX: usize = 64;

/// What there is to do for a command.
pub enum What {
    /// A command of one key: the shard is known.
    Single(&'static Command, KeyPlace),
    /// A command that needs other shards: found when it runs.
    Keyed(&'static Command),
    /// A command that needs none, or finds them out when it runs.
    Local(&'static Command),
    /// A command whose keys have several slots, in a cluster: it doesn't run.
    CrossSlot(&'static Command),
    /// None that can run.
    Unresolved(Unresolved),
    /// The bytes were no command: the connection closes.
    Broken(ProtocolError),
    /// A web browser that was lured here: the connection closes without a word.
    Browser,
    /// An empty line.
    Nothing,
}

/// A command in the window.
pub struct Entry {
    /// Index of its connection in the worker's table.
    pub connection: u32,
    /// Database that was selected when it was parsed: for prefetching only.
    pub db: u32,
    /// Where it begins in its connection's input.
    pub begin: usize,
    /// Where it ends.
    pub end: usize,
    /// It came as a line: its bytes were changed where quotes were taken off.
    pub is_inline: bool,
    /// Where its arguments stand in [`Window::ranges`].
    pub first_arg: u32,
    /// How many there are.
    pub args: u32,
    /// What to do.
    pub what: What,
}

/// See the head of this module.
#[derive(Default)]
pub struct Window {
    /// The commands.
    pub entries: Vec<Entry>,
    /// Arguments of all of them, each relative to its command's first byte.
    pub ranges: Vec<ArgRange>,
    /// The commands last resolved whose one key is their first argument.
    pub recent: Recent,
}

/// How many commands [`Recent`] knows at most: a power of two.
const RECENT_MAX: usize = 8;

/// A cache of resolved commands, by name as the client wrote it and number of arguments: of commands whose one key is their
/// first argument, nearly all calls. It holds no subcommand, whose name isn't all that decides which command is called.
#[derive(Default)]
pub struct Recent {
    known: [Option<Known>; RECENT_MAX],
}

#[derive(Clone, Copy)]
struct Known {
    /// [`Args::short_name`].
    name: u64,
    /// How many arguments the call had.
    args: usize,
    command: &'static Command,
}

impl Recent {
    /// The index of the key of each cached command.
    const KEY: usize = 1;

    /// Returns the index in `known` of a name.
    #[inline]
    fn place(name: u64) -> usize {
        // Any odd constant: the upper bits of the product depend on all bits of the name.
        (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - RECENT_MAX.trailing_zeros())) as usize
    }

    /// Returns the command of a call, if an equal one was resolved lately.
    #[inline]
    fn find(&self, args: &Args<'_>) -> Option<&'static Command> {
        let name = args.short_name()?;
        let known = self.known[Self::place(name)].as_ref()?;
        (known.name == name && known.args == args.len()).then_some(known.command)
    }

    /// Caches a resolved command of one key, unless the argument behind the name may select a subcommand: then its key isn't
    /// the first argument.
    fn note(&mut self, args: &Args<'_>, command: &'static Command, key: usize) {
        if key == Self::KEY
            && let Some(name) = args.short_name()
        {
            self.known[Self::place(name)] = Some(Known { name, args: args.len(), command });
        }
    }
}

impl Window {
    /// Whether it takes no more.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= WINDOW_COMMANDS_MAX
    }

    /// Forgets all commands.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.ranges.clear();
    }

    /// Where the arguments of an entry stand.
    #[inline]
    pub fn ranges_of(&self, entry: &Entry) -> &[ArgRange] {
        &self.ranges[entry.first_arg as usize..(entry.first_arg + entry.args) as usize]
    }

    /// The first entry of each connection, with its index: neighbours are of one connection mostly,
    /// so the others are passed over cheaply. One that isn't among neighbours comes again.
    #[inline]
    pub fn first_of_each(&self) -> impl Iterator<Item = (usize, &Entry)> {
        let mut last = None;
        let is_first = move |(_, entry): &(usize, &Entry)| last.replace(entry.connection) != Some(entry.connection);
        self.entries.iter().enumerate().filter(is_first)
    }

    /// The commands of a connection from the entry at `from` on: those that are any.
    pub fn of_connection(&self, connection: u32, from: usize) -> impl Iterator<Item = Unrun<'_>> {
        let is_its = move |entry: &&Entry| entry.connection == connection && !matches!(entry.what, What::Broken(_));
        self.entries[from..].iter().filter(is_its).map(|entry| {
            let Entry { begin, end, is_inline, .. } = *entry;
            Unrun { parsed: Parsed { begin, end, is_inline }, ranges: self.ranges_of(entry) }
        })
    }

    /// Second stage: the buckets are on their way; compares tags and prefetches entries.
    pub fn prefetch_entries(&self, keyspace: &Keyspace) {
        // One command has nothing to overlap with: it would only do the work twice.
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

/// Finds out what to do for a command, and prefetches its bucket: the first stage.
#[inline]
pub fn classify(keyspace: &Keyspace, renames: &Renames, recent: &mut Recent, db: u32, args: &Args<'_>) -> What {
    match recent.find(args) {
        Some(command) => single(keyspace, db, command, args.at(Recent::KEY)),
        None => classify_anew(keyspace, renames, recent, db, args),
    }
}

/// A command of one key.
#[inline(always)]
fn single(keyspace: &Keyspace, db: u32, command: &'static Command, key: &[u8]) -> What {
    let place = keyspace.place(key);
    keyspace.hint(db, place.shard).prefetch_bucket(place.hash);
    What::Single(command, place)
}

/// As [`classify`], for a call that is not in `recent`.
#[inline(never)]
fn classify_anew(keyspace: &Keyspace, renames: &Renames, recent: &mut Recent, db: u32, args: &Args<'_>) -> What {
    if args.is_empty() {
        return What::Nothing;
    }
    let command = match renames.resolve(args) {
        Ok(command) => command,
        // The first words of a form that a page sends to this port, with commands in its body: Redis's own defence.
        Err(_) if [&b"post"[..], b"host:"].iter().any(|word| args.at(0).eq_ignore_ascii_case(word)) => {
            return What::Browser;
        }
        Err(why) => return What::Unresolved(why),
    };
    // Asked of commands that haven't exactly one key: the others have one slot, and no cost.
    let crosses_slots = || keyspace.is_cluster() && Slots::of(command, args) == Slots::Several;
    match (command.handler, command.route) {
        (Handler::Local(_) | Handler::Transaction(_), _) if crosses_slots() => What::CrossSlot(command),
        (Handler::Local(_) | Handler::Transaction(_), _) => What::Local(command),
        (Handler::Container, _) => What::Unresolved(Unresolved::WrongArity(command)),
        (Handler::Keyed(_), Route::Keys) => match command.single_key() {
            // Whether a protected command may run is looked at as it runs, one by one.
            Some(index) if !command.flags.contains(Flags::PROTECTED) => {
                recent.note(args, command, index);
                single(keyspace, db, command, args.at(index))
            }
            _ if crosses_slots() => What::CrossSlot(command),
            _ => {
                // Its keys are hashed once more when it runs: cheaper than a miss each.
                let _ = for_each_key(command, args, |index, _| {
                    let place = keyspace.place(args.at(index));
                    keyspace.hint(db, place.shard).prefetch_bucket(place.hash);
                });
                What::Keyed(command)
            }
        },
        (Handler::Keyed(_), _) if crosses_slots() => What::CrossSlot(command),
        (Handler::Keyed(_), _) => What::Keyed(command),
    }
}
