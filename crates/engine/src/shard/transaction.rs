//! Transactions: the commands that wait for `EXEC`, and the keys that `WATCH` watches.
//!
//! `EXEC` takes the shards of all its keys, those of the watched keys included, in the order that every request takes them
//! ([`crate::shard::executor`]). Who has them all looks whether the watched keys are what they were, runs everything,
//! and gives the shards back. Nobody else has any of them in between: that is all the isolation there is to it.
//!
//! Where all shards are free that is the connection's worker. Where some are not and each command's keys tell its shards, it is whoever
//! frees the last of them ([`crate::shard::exec`]); otherwise the shards are brought to the connection's worker, which alone can run the commands that
//! need no shard (`SELECT`, `PUBLISH`).
//!
//! # Watching
//!
//! A watch is a flag that the session owns and the shards of its keys point to. Whoever changes a watched key raises it. What no
//! change shows, since nothing happens when time goes by or a database is emptied, is looked at by `EXEC`: a key that was
//! there must still be. A session that watches no more drops the flag; the shards find out when they next meet the key, or when
//! they sweep, so that ending a watch needs no shard.
//!
//! # What it costs
//!
//! Where nobody watches in a shard: nothing beyond the branch that waiters cost already. `EXEC` costs one acquisition of each
//! shard, whatever the number of its commands.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use hashbrown::HashTable;
use pantala_resp::{ArgRange, Args};

use crate::command::{Command, Flags, Handler, Route, Slots, TransactionPart, for_each_key};
use crate::shard::access::{Access, Key, KeyPlace};
use crate::shard::keyspace::Keyspace;

/// The error of an `EXEC` that is refused, which ends its transaction. `why` is an error itself, code included.
pub fn discarded(why: &[u8]) -> Vec<u8> {
    [b"EXECABORT Transaction discarded because of: ", why].concat()
}

/// Most memory that a client's next transaction finds from the one before, bytes.
const KEPT_BYTES_MAX: usize = 4096;

/// Which shards a queued command needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// None.
    Nothing,
    /// Those of its keys: where they stand in the list of the transaction's shards.
    Keys(Range<usize>),
    /// All, as far as is known before the commands in front of it have run.
    All,
}

/// A command that waits for `EXEC`.
pub struct Queued {
    /// What to run.
    pub command: &'static Command,
    /// The shards it needs.
    pub needs: Needs,
    /// Where its only key lives, when it has one.
    pub first_key: Option<KeyPlace>,
    args: Range<usize>,
}

/// What a client has sent since `MULTI`.
pub struct Transaction {
    queue: Vec<Queued>,
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
    shards: Vec<u32>,
    flags: Flags,
    /// A command could not be queued: `EXEC` will refuse.
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
            aborted: false,
        }
    }
}

impl Transaction {
    /// Puts a call at the end. Its flags may be others than its command's (a script's); the place of its only key, if it is known already, is
    /// not looked for again.
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
            Handler::Keyed(_) => {}
            // In a transaction it can't be run again when it meets a key that it hasn't declared.
            Handler::Transaction(TransactionPart::Script(_)) => return (Needs::All, None),
            // It is answered when nothing else runs, and refused with the whole transaction while a script is busy.
            Handler::Local(_) if command.flags.contains(Flags::ALL_SHARDS_QUEUED) => return (Needs::All, None),
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
                    // The arguments don't fit the key specification: any shard will do for the handler to say so.
                    self.shards.truncate(begin);
                    self.shards.push(0);
                }
            }
        }
        (Needs::Keys(begin..self.shards.len()), first_key)
    }

    /// Empties it, for the next one to use its memory. `false`: it has more than it should keep.
    pub fn clear(&mut self) -> bool {
        let Transaction { queue, bytes, ranges, shards, flags, aborted } = self;
        queue.clear();
        bytes.clear();
        ranges.clear();
        shards.clear();
        (*flags, *aborted) = (Flags::empty(), false);
        let kept_bytes = queue.capacity() * size_of::<Queued>()
            + bytes.capacity()
            + ranges.capacity() * size_of::<ArgRange>()
            + shards.capacity() * size_of::<u32>();
        kept_bytes <= KEPT_BYTES_MAX
    }

    /// The commands, in order.
    pub fn queue(&self) -> &[Queued] {
        &self.queue
    }

    /// The arguments of a command.
    pub fn args(&self, queued: &Queued) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[queued.args.clone()])
    }

    /// Puts the shards of a command's keys into `shards`, instead of what is there: each once, in the order in which they are taken. `false`, and
    /// none: its keys don't tell.
    pub fn find_shards(&self, queued: &Queued, shards: &mut Vec<u32>) -> bool {
        shards.clear();
        let Needs::Keys(keys) = &queued.needs else { return false };
        shards.extend_from_slice(&self.shards[keys.clone()]);
        shards.sort_unstable();
        shards.dedup();
        true
    }

    /// Whether any thread can run it ([`crate::shard::exec`]): all its commands have their shards from their keys, so none needs the session.
    pub fn can_travel(&self) -> bool {
        self.queue.iter().all(|queued| matches!(queued.needs, Needs::Keys(_)))
    }

    /// The flags of all commands together.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// The slots of all keys.
    pub fn slots(&self) -> Slots {
        let mut slots = Slots::None;
        for queued in &self.queue {
            slots.add(Slots::of(queued.command, &self.args(queued)));
        }
        slots
    }

    /// Bytes of the arguments.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Adds the shards that it needs (any order, with repeats).
    pub fn add_shards(&self, keyspace: &Keyspace, shards: &mut Vec<u32>) {
        if self.queue.iter().any(|queued| queued.needs == Needs::All) {
            shards.extend(0..keyspace.partition_count());
        } else {
            shards.extend_from_slice(&self.shards);
        }
    }
}

/// Raised when a watched key is changed.
#[derive(Default)]
pub struct Watch {
    changed: AtomicBool,
}

impl Watch {
    /// Whether it is known already that a key was changed.
    pub fn is_changed(&self) -> bool {
        // The shards that are held carry the order; before that, it is only a hint.
        self.changed.load(Relaxed)
    }
}

struct WatchedKey {
    db: u32,
    bytes: Box<[u8]>,
    place: KeyPlace,
    /// Whether it was there.
    existed: bool,
}

/// What a session watches. Dropping it ends the watch.
#[derive(Default)]
pub struct Watching {
    watch: Arc<Watch>,
    keys: Vec<WatchedKey>,
    /// Where in `keys` each is: who watches very many doesn't compare each with each.
    by_hash: HashTable<usize>,
    /// Of their names.
    name_bytes: usize,
}

impl Watching {
    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.keys.len() * (size_of::<WatchedKey>() + size_of::<usize>()) + self.name_bytes
    }

    /// Adds the shards of the keys (any order, with repeats).
    pub fn add_shards(&self, shards: &mut Vec<u32>) {
        shards.extend(self.keys.iter().map(|key| key.place.shard));
    }

    /// Whether it is known already that a key was changed.
    pub fn is_changed(&self) -> bool {
        self.watch.is_changed()
    }

    /// What is raised when a key is changed, for as long as the watch lasts.
    pub(crate) fn watch(&self) -> Weak<Watch> {
        Arc::downgrade(&self.watch)
    }

    /// Begins to watch keys of the selected database, whose shards are held.
    pub fn add(&mut self, access: &mut Access<'_>, keys: &[Box<[u8]>]) {
        let db = access.session().db;
        for bytes in keys {
            let place = access.keyspace().place(bytes);
            let is_known = |at: &usize| self.keys[*at].db == db && self.keys[*at].bytes == *bytes;
            if self.by_hash.find(place.hash, is_known).is_some() {
                continue;
            }
            let key = Key { bytes, place };
            let existed = access.db(&key).exists(&key);
            access.shard(place.shard).waiters.watches.add(db, bytes, &self.watch, existed);
            self.by_hash.insert_unique(place.hash, self.keys.len(), |at| self.keys[*at].place.hash);
            self.keys.push(WatchedKey { db, bytes: bytes.clone(), place, existed });
            self.name_bytes += bytes.len();
        }
    }

    /// Whether all keys, whose shards are held, are what they were.
    pub fn is_intact(&self, access: &mut Access<'_>) -> bool {
        let all_there = self.keys.iter().all(|key| {
            let WatchedKey { db, bytes, place, existed } = key;
            let key = Key { bytes, place: *place };
            // What has expired is removed by being looked for, and the watch raised; a paused server only doesn't find it.
            !existed || access.db_at(*db, &key).exists(&key)
        });
        all_there && !self.is_changed()
    }
}

/// How many entries a shard has before it looks for those whose session watches no more.
const SWEEP_FROM: usize = 64;

/// How long, bytes, the names of the keys are before it does so.
const SWEEP_FROM_BYTES: usize = 64 * 1024;

/// Who watches a key.
struct Watcher {
    watch: Weak<Watch>,
    /// The key was there when the watch began. As long as it wasn't and hasn't been changed since, it is of no account that what lies in its place is removed because its
    /// time is over.
    existed: bool,
}

/// The watches of one database's keys.
type ByKey = HashMap<Box<[u8]>, Vec<Watcher>>;

/// The watches of a key that are held back.
pub(crate) struct HeldWatches {
    held: Vec<Watcher>,
    /// What is told instead of those to whom the key wasn't there, and of those to whom it was.
    instead: [Arc<Watch>; 2],
}

/// The watches of one shard's keys. Belongs to the shard.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Watches {
    /// Entries, those of ended watches included.
    entries: usize,
    by_database: HashMap<u32, ByKey>,
    /// With how many the next sweep begins.
    sweep_at: usize,
    /// Of the keys' names.
    name_bytes: usize,
    /// With how many of those.
    sweep_at_bytes: usize,
}

impl Watches {
    /// Whether nobody watches.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    fn add(&mut self, db: u32, key: &[u8], watch: &Arc<Watch>, existed: bool) {
        if self.entries >= self.sweep_at.max(SWEEP_FROM) || self.name_bytes >= self.sweep_at_bytes.max(SWEEP_FROM_BYTES)
        {
            self.sweep();
        }
        let keys = self.by_database.entry(db).or_default();
        let watcher = Watcher { watch: Arc::downgrade(watch), existed };
        match keys.get_mut(key) {
            Some(watches) => watches.push(watcher),
            None => {
                keys.insert(key.into(), vec![watcher]);
                self.name_bytes += key.len();
            }
        }
        self.entries += 1;
    }

    /// A key was changed: tells who watches it. They need not be told twice.
    pub(crate) fn changed(&mut self, db: u32, key: &[u8]) {
        let Some(keys) = self.by_database.get_mut(&db) else { return };
        let Some(watches) = keys.remove(key) else { return };
        self.entries -= watches.len();
        self.name_bytes -= key.len();
        watches.iter().for_each(Watcher::raise);
    }

    /// A key was removed whose time was over: tells those to whom it was there.
    pub(crate) fn expired(&mut self, db: u32, key: &[u8]) {
        let Some(keys) = self.by_database.get_mut(&db) else { return };
        let Some(watches) = keys.get_mut(key) else { return };
        let before = watches.len();
        watches.retain(|watcher| {
            if watcher.existed {
                watcher.raise();
            }
            !watcher.existed
        });
        self.entries -= before - watches.len();
        if watches.is_empty() {
            keys.remove(key);
            self.name_bytes -= key.len();
        }
    }

    /// Has who watches a key not told of its changes until [`Watches::let_go`]: what changes it may be put back. `None`: nobody watches it.
    pub(crate) fn hold(&mut self, db: u32, key: &[u8]) -> Option<HeldWatches> {
        let watches = self.by_database.get_mut(&db)?.get_mut(key)?;
        let instead: [Arc<Watch>; 2] = Default::default();
        let told_instead = |existed: bool| {
            let is_needed = watches.iter().any(|watcher| watcher.existed == existed);
            is_needed.then(|| Watcher { watch: Arc::downgrade(&instead[usize::from(existed)]), existed })
        };
        let those: Vec<Watcher> = [false, true].into_iter().filter_map(told_instead).collect();
        self.entries += those.len();
        let held = std::mem::replace(watches, those);
        self.entries -= held.len();
        Some(HeldWatches { held, instead })
    }

    /// The changes stand: who watches the key is told, if there were any.
    pub(crate) fn let_go(&mut self, db: u32, key: &[u8], watches: HeldWatches) {
        let HeldWatches { held, instead } = watches;
        let (told, held): (Vec<Watcher>, Vec<Watcher>) =
            held.into_iter().partition(|watcher| instead[usize::from(watcher.existed)].is_changed());
        told.iter().for_each(Watcher::raise);
        if !held.is_empty() {
            self.put_back(db, key, HeldWatches { held, instead });
        }
    }

    /// The changes were put back: nobody hears of them.
    pub(crate) fn put_back(&mut self, db: u32, key: &[u8], watches: HeldWatches) {
        self.entries += watches.held.len();
        match self.by_database.entry(db).or_default().insert(key.into(), watches.held) {
            Some(instead) => self.entries -= instead.len(),
            None => self.name_bytes += key.len(),
        }
    }

    /// A database gets another content, in which a key is there if `is_there`: tells who watches one that is there, or was.
    pub(crate) fn replaced(&mut self, db: u32, mut is_there: impl FnMut(&[u8]) -> bool) {
        let Some(keys) = self.by_database.get_mut(&db) else { return };
        for (key, watches) in keys {
            let is_there = is_there(key);
            watches.iter().filter(|watcher| is_there || watcher.existed).for_each(Watcher::raise);
        }
    }

    /// Forgets the watches that have ended where there are so few that no command looks for them: of many shards those
    /// few are much together. Called about once a second.
    pub(crate) fn sweep_few(&mut self) {
        if (1..SWEEP_FROM).contains(&self.entries) {
            self.sweep();
        }
    }

    /// Forgets the watches that have ended. Their number, or the length of their names, doubles at least between two sweeps: constant work for each entry or byte.
    fn sweep(&mut self) {
        (self.entries, self.name_bytes) = (0, 0);
        for keys in self.by_database.values_mut() {
            keys.retain(|key, watches| {
                watches.retain(|watcher| watcher.watch.strong_count() > 0);
                self.entries += watches.len();
                self.name_bytes += if watches.is_empty() { 0 } else { key.len() };
                !watches.is_empty()
            });
        }
        self.by_database.retain(|_, keys| !keys.is_empty());
        (self.sweep_at, self.sweep_at_bytes) = (self.entries * 2, self.name_bytes * 2);
    }
}

impl Watcher {
    fn raise(&self) {
        if let Some(watch) = self.watch.upgrade() {
            watch.changed.store(true, Relaxed);
        }
    }
}
