//! Transactions: the commands queued until `EXEC`, and the keys watched by `WATCH`. Both belong to
//! the session.
//!
//! `EXEC` takes the shards of all its keys and of the watched keys, in the order in which every
//! request takes shards ([`crate::shard::executor`]). One thread checks the watched keys, runs all
//! commands and releases the shards. No other thread holds any of these shards in between, so the
//! transaction is isolated. The shards and the commands determine this thread:
//!
//! - All shards are free: the thread is the connection's worker.
//! - Some shards are busy, and the shards of each command follow from its keys: the thread is the
//!   one that frees the last busy shard ([`crate::shard::exec`]).
//! - Some shards are busy, and some command needs no shard (`SELECT`, `PUBLISH`) or all shards: the
//!   shards are gathered for the connection's worker. Only that worker can run commands that need
//!   no shard.
//!
//! # Watching
//!
//! A watch is a flag ([`Watch`]) that the session owns. The shards of the watched keys point to the
//! flag, and a change of a watched key raises it. Emptying a database does not raise the flag. An
//! expired key raises the flag when a lookup deletes the key, but not when active expiry deletes
//! it. So `EXEC` also checks that each key that existed still exists. As in Redis, neither `WATCH`
//! nor this check deletes an expired key. A session that stops watching drops the flag, which needs
//! no shard. A shard removes its pointer to the flag when the key is changed, or in the shard's
//! next sweep.
//!
//! # What it costs
//!
//! In a shard without watches, commands have no additional cost, because the branch that checks for
//! blocked clients also covers watches. `EXEC` costs one acquisition of each shard, whatever the
//! number of its commands.

use std::ops::Range;
use std::sync::{Arc, Weak};

use hashbrown::HashTable;
use pantala_resp::{ArgRange, Args};

use crate::clients::watch::Watch;
use crate::command::{Command, Flags, Handler, Route, Slots, TransactionPart, for_each_key};
use crate::command::{Key, KeyPlace};
use crate::shard::access::Access;
use crate::shard::keyspace::Keyspace;

/// Returns the error of a rejected `EXEC`. `why` is the reason: an error with its code.
pub fn discarded(why: &[u8]) -> Vec<u8> {
    [b"EXECABORT Transaction discarded because of: ", why].concat()
}

/// Maximum memory in bytes that a client keeps for its next transaction.
const KEPT_BYTES_MAX: usize = 4096;

/// The shards that a queued command needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No shard.
    Nothing,
    /// The shards of the command's keys: a range in the list of the transaction's shards.
    Keys(Range<usize>),
    /// All shards, because the needed ones are not known before the preceding commands have run, or
    /// because the command must run alone.
    All,
}

/// A command queued for `EXEC`.
pub struct Queued {
    /// The command.
    pub command: &'static Command,
    /// The shards that the command needs.
    pub needs: Needs,
    /// Place of the command's only key, if it has one.
    pub first_key: Option<KeyPlace>,
    args: Range<usize>,
}

/// The commands that a client has queued since `MULTI`.
pub struct Transaction {
    queue: Vec<Queued>,
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
    shards: Vec<u32>,
    flags: Flags,
    /// The flags that all queued calls have.
    common_flags: Flags,
    /// Whether a command was rejected instead of queued. `EXEC` will then be rejected too.
    pub aborted: bool,
}

impl Default for Transaction {
    fn default() -> Self {
        Transaction {
            queue: Vec::new(),
            bytes: Vec::new(),
            ranges: Vec::new(),
            shards: Vec::new(),
            flags: Flags::empty(),
            common_flags: Flags::all(),
            aborted: false,
        }
    }
}

impl Transaction {
    /// Appends a call. `flags` are the command's flags, or those that a called script declares.
    /// `place` is the place of the call's only key, if it is known.
    pub fn push(
        &mut self,
        keyspace: &Keyspace,
        command: &'static Command,
        args: &Args<'_>,
        flags: Flags,
        place: Option<KeyPlace>,
    ) {
        let first = self.ranges.len();
        for arg in args.iter() {
            self.ranges.push(ArgRange::new(self.bytes.len(), arg.len()));
            self.bytes.extend_from_slice(arg);
        }
        let (needs, first_key) = self.needs(keyspace, command, args, place);
        self.flags |= flags;
        self.common_flags &= flags;
        self.queue.push(Queued { command, needs, first_key, args: first..self.ranges.len() });
    }

    fn needs(
        &mut self,
        keyspace: &Keyspace,
        command: &Command,
        args: &Args<'_>,
        place: Option<KeyPlace>,
    ) -> (Needs, Option<KeyPlace>) {
        match command.handler {
            Handler::Keyed(_) | Handler::Undetermined(_) => {}
            // In a transaction, a script cannot be rerun when it uses an undeclared key.
            Handler::Transaction(TransactionPart::Script(_)) => return (Needs::All, None),
            // Such a command must run alone, so the transaction takes all shards. If a script runs
            // for too long meanwhile, the whole transaction is rejected.
            Handler::Local(_) if command.flags.contains(Flags::ALL_SHARDS_QUEUED) => return (Needs::All, None),
            // A cut of the journal (a point at which a reader starts) is made while all shards are
            // held. The transaction holds all shards too, so its change of the function libraries
            // is entirely before or entirely after the cut.
            Handler::Local(_) if command.flags.contains(Flags::WRITE) => return (Needs::All, None),
            _ => return (Needs::Nothing, None),
        }
        if !matches!(command.route, Route::Keys) {
            return (Needs::All, None);
        }
        let first_key = place.or_else(|| command.single_key().map(|index| keyspace.place(args.at(index))));
        let begin = self.shards.len();
        match first_key {
            Some(place) => self.shards.push(place.shard),
            None => {
                let shards = &mut self.shards;
                let found = for_each_key(command, args, |index, _| shards.push(keyspace.place(args.at(index)).shard));
                if found.is_err() || self.shards.len() == begin {
                    // The arguments do not fit the key specification. The handler reports this
                    // error on any shard.
                    self.shards.truncate(begin);
                    self.shards.push(0);
                }
            }
        }
        (Needs::Keys(begin..self.shards.len()), first_key)
    }

    /// Clears the transaction and keeps its memory for the next transaction. Returns `false` if
    /// this memory is too large to keep.
    pub fn clear(&mut self) -> bool {
        let Transaction { queue, bytes, ranges, shards, flags, common_flags, aborted } = self;
        queue.clear();
        bytes.clear();
        ranges.clear();
        shards.clear();
        (*flags, *common_flags, *aborted) = (Flags::empty(), Flags::all(), false);
        self.memory_bytes() <= KEPT_BYTES_MAX
    }

    /// Returns the commands in order.
    pub fn queue(&self) -> &[Queued] {
        &self.queue
    }

    /// Returns the arguments of a command.
    pub fn args(&self, queued: &Queued) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[queued.args.clone()])
    }

    /// Replaces `shards` by the shards of a command's keys, sorted and without duplicates. Returns
    /// `false` and empties `shards` if the keys do not determine them.
    pub fn find_shards(&self, queued: &Queued, shards: &mut Vec<u32>) -> bool {
        shards.clear();
        let Needs::Keys(keys) = &queued.needs else { return false };
        shards.extend_from_slice(&self.shards[keys.clone()]);
        shards.sort_unstable();
        shards.dedup();
        true
    }

    /// Returns whether any thread can run the transaction ([`crate::shard::exec`]). This is the
    /// case if the shards of all commands follow from their keys, because then no command needs the
    /// session.
    pub fn can_travel(&self) -> bool {
        self.queue.iter().all(|queued| matches!(queued.needs, Needs::Keys(_)))
    }

    /// Returns the union of all commands' flags.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Returns the flags that all queued calls have; all flags if none is queued.
    pub fn common_flags(&self) -> Flags {
        self.common_flags
    }

    /// Returns the slots of all keys.
    pub fn slots(&self) -> Slots {
        let mut slots = Slots::None;
        for queued in &self.queue {
            slots.add(Slots::of(queued.command, &self.args(queued)));
        }
        slots
    }

    /// Returns the length of all arguments in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the memory usage in bytes. For short commands the result is many times the length of
    /// the arguments.
    pub fn memory_bytes(&self) -> usize {
        let Transaction { queue, bytes, ranges, shards, .. } = self;
        queue.capacity() * size_of::<Queued>()
            + bytes.capacity()
            + ranges.capacity() * size_of::<ArgRange>()
            + shards.capacity() * size_of::<u32>()
    }

    /// Adds the shards that the transaction needs to `shards`, in any order and possibly with
    /// duplicates.
    pub fn add_shards(&self, keyspace: &Keyspace, shards: &mut Vec<u32>) {
        if self.queue.iter().any(|queued| queued.needs == Needs::All) {
            shards.extend(0..keyspace.partition_count());
        } else {
            shards.extend_from_slice(&self.shards);
        }
    }
}

struct WatchedKey {
    db: u32,
    bytes: Box<[u8]>,
    place: KeyPlace,
    /// Whether the key existed when it was watched.
    existed: bool,
}

/// The keys that a session watches. Dropping this value ends the watch.
#[derive(Default)]
pub struct Watching {
    watch: Arc<Watch>,
    keys: Vec<WatchedKey>,
    /// Index in `keys` of each key. Without it, watching many keys would compare each with all
    /// others.
    by_hash: HashTable<usize>,
    /// Total length of the names, bytes.
    name_bytes: usize,
}

impl Watching {
    /// Returns the memory usage in bytes.
    pub fn bytes(&self) -> usize {
        self.keys.len() * (size_of::<WatchedKey>() + size_of::<usize>()) + self.name_bytes
    }

    /// Adds the shards of the keys, in any order and possibly with duplicates.
    pub fn add_shards(&self, shards: &mut Vec<u32>) {
        shards.extend(self.keys.iter().map(|key| key.place.shard));
    }

    /// Returns whether a key is known to have changed.
    pub fn is_changed(&self) -> bool {
        self.watch.is_changed()
    }

    /// Returns the flag that a change of a watched key raises.
    pub fn watch(&self) -> Weak<Watch> {
        Arc::downgrade(&self.watch)
    }

    /// Adds keys of the selected database. Their shards must be held.
    pub fn add(&mut self, access: &mut Access<'_>, keys: &[Box<[u8]>]) {
        let db = access.session().db;
        for bytes in keys {
            let place = access.keyspace().place(bytes);
            let is_known = |at: &usize| self.keys[*at].db == db && self.keys[*at].bytes == *bytes;
            if self.by_hash.find(place.hash, is_known).is_some() {
                continue;
            }
            let key = Key { bytes, place };
            let existed = access.db(&key).is_live(&key);
            access.shard(place.shard).observers.watches.add(db, bytes, &self.watch, existed);
            self.by_hash.insert_unique(place.hash, self.keys.len(), |at| self.keys[*at].place.hash);
            self.keys.push(WatchedKey { db, bytes: bytes.clone(), place, existed });
            self.name_bytes += bytes.len();
        }
    }

    /// Returns whether all keys are unchanged. Their shards must be held.
    pub fn is_intact(&self, access: &mut Access<'_>) -> bool {
        let all_there = self.keys.iter().all(|key| {
            let WatchedKey { db, bytes, place, existed } = key;
            let key = Key { bytes, place: *place };
            !existed || access.db_at(*db, &key).is_live(&key)
        });
        all_there && !self.is_changed()
    }
}
