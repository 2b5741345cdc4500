//! The watches of one shard's keys (`WATCH`): which transactions a change of a key fails.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::clients::watch::Watch;

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

    /// Adds a watch of a key, which is there or not.
    pub(crate) fn add(&mut self, db: u32, key: &[u8], watch: &Arc<Watch>, existed: bool) {
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
            watch.raise();
        }
    }
}
