//! The watches (`WATCH`) of one shard's keys. A change of a key *raises* the key's watches: the
//! `EXEC` of a client with a raised watch fails. The shard's published keys are here too
//! ([`super::published`]), so that a change checks for both by one load.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::clients::watch::Watch;
use crate::effect::published::{Published, PublishedCount, PublishedKeys};

/// Minimum number of entries at which [`Watches::add`] removes the entries of ended watches.
const SWEEP_FROM: usize = 64;

/// Minimum total length of key names in bytes at which [`Watches::add`] removes the entries of
/// ended watches.
const SWEEP_FROM_BYTES: usize = 64 * 1024;

/// One watch of a key.
struct Watcher {
    watch: Weak<Watch>,
    /// Whether the key existed when the watch started. An expired key counts as missing. So if the
    /// key had already expired, the later deletion of its entry does not raise the watch.
    existed: bool,
}

/// The watches of one database's keys.
type ByKey = HashMap<Box<[u8]>, Vec<Watcher>>;

/// The watches of a key whose former state a running script has recorded for a rollback. If the
/// script's changes are committed, the watches of a changed key are raised. If the changes are
/// rolled back, the watches are restored.
pub(crate) struct HeldWatches {
    held: Vec<Watcher>,
    /// The watches that replace the held ones in the shard until the script ends. A change of the
    /// key raises them. The first one stands for watches that started while the key was missing,
    /// the second one for watches that started while the key existed.
    instead: [Arc<Watch>; 2],
}

/// The watches of one shard's keys, and its published keys. The shard owns them.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Watches {
    /// Number of watches, including ended ones, and of published keys.
    entries: usize,
    by_database: HashMap<u32, ByKey>,
    /// Number of entries at which the next sweep starts.
    sweep_at: usize,
    /// Total length of the keys' names, bytes.
    name_bytes: usize,
    /// Total length of names in bytes at which the next sweep starts.
    sweep_at_bytes: usize,
    published: PublishedKeys,
}

impl Watches {
    /// Returns whether there are neither watches nor published keys.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Adds a watch of a key. `existed`: the key exists and has not expired.
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

    /// Raises the watches of a changed key. Removes them, because raising a watch once suffices.
    pub(crate) fn changed(&mut self, db: u32, key: &[u8]) {
        let Some(keys) = self.by_database.get_mut(&db) else { return };
        let Some(watches) = keys.remove(key) else { return };
        self.entries -= watches.len();
        self.name_bytes -= key.len();
        watches.iter().for_each(Watcher::raise);
    }

    /// Raises those watches of an expired key that started while the key existed.
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

    /// Replaces a key's watches by substitutes, because changes of the key may be rolled back.
    /// Returns the watches, for [`Watches::commit_held`] or [`Watches::restore`], or `None` if
    /// there are none.
    pub(crate) fn hold(&mut self, db: u32, key: &[u8]) -> Option<HeldWatches> {
        let watches = self.by_database.get_mut(&db)?.get_mut(key)?;
        let instead: [Arc<Watch>; 2] = Default::default();
        let substitute_for = |existed: bool| {
            let is_needed = watches.iter().any(|watcher| watcher.existed == existed);
            is_needed.then(|| Watcher { watch: Arc::downgrade(&instead[usize::from(existed)]), existed })
        };
        let those: Vec<Watcher> = [false, true].into_iter().filter_map(substitute_for).collect();
        self.entries += those.len();
        let held = std::mem::replace(watches, those);
        self.entries -= held.len();
        Some(HeldWatches { held, instead })
    }

    /// Commits the changes: raises the watches whose substitute was raised, and restores the other
    /// watches.
    pub(crate) fn commit_held(&mut self, db: u32, key: &[u8], watches: HeldWatches) {
        let HeldWatches { held, instead } = watches;
        let (raised, held): (Vec<Watcher>, Vec<Watcher>) =
            held.into_iter().partition(|watcher| instead[usize::from(watcher.existed)].is_changed());
        raised.iter().for_each(Watcher::raise);
        if !held.is_empty() {
            self.restore(db, key, HeldWatches { held, instead });
        }
    }

    /// Rolls back the changes: restores the watches.
    pub(crate) fn restore(&mut self, db: u32, key: &[u8], watches: HeldWatches) {
        self.entries += watches.held.len();
        match self.by_database.entry(db).or_default().insert(key.into(), watches.held) {
            Some(instead) => self.entries -= instead.len(),
            None => self.name_bytes += key.len(),
        }
    }

    /// Raises the watches of a database whose content is replaced. Excludes watches of keys that
    /// did not exist when the watch started and do not exist now (`is_there`).
    pub(crate) fn replaced(&mut self, db: u32, mut is_there: impl FnMut(&[u8]) -> bool) {
        let Some(keys) = self.by_database.get_mut(&db) else { return };
        for (key, watches) in keys {
            let is_there = is_there(key);
            watches.iter().filter(|watcher| is_there || watcher.existed).for_each(Watcher::raise);
        }
    }

    /// Returns the place for the published value of a key ([`PublishedKeys::place`]).
    pub(crate) fn publish(&mut self, count: &PublishedCount, db: u32, hash: u64, key: &[u8]) -> Option<Arc<Published>> {
        let before = self.published.len();
        let place = self.published.place(count, db, hash, key);
        self.entries = self.entries + self.published.len() - before;
        place
    }

    /// Returns the published keys.
    #[inline]
    pub(crate) fn published(&self) -> &PublishedKeys {
        &self.published
    }

    /// Removes published keys that no worker reads. Also removes ended watches if there are so few
    /// entries that [`Watches::add`] does not sweep them: a few entries in each of many shards
    /// would add up. Called about once a second.
    pub(crate) fn sweep_few(&mut self, published: &PublishedCount) {
        let before = self.published.len();
        if before > 0 {
            self.published.remove_unread(published);
            self.entries -= before - self.published.len();
        }
        if (1..SWEEP_FROM).contains(&self.entries) {
            self.sweep();
        }
    }

    /// Removes ended watches. Between two sweeps by [`Watches::add`], the number of entries or the
    /// length of names at least doubles. So the amortized cost per entry or byte is constant.
    fn sweep(&mut self) {
        (self.entries, self.name_bytes) = (self.published.len(), 0);
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
