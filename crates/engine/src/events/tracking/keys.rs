//! The tracked keys of one shard, each with its *readers*: clients that may have cached the key.
//! Only the shard's owner accesses them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use pantala_base::Random;
use pantala_types::table::{Item, Table, has_room};

use super::{Changer, KeyName, NOBODY, Reader};

/// Maximum number of readers of one key that are searched linearly.
const FEW_READERS_MAX: usize = 16;

/// The readers of a key.
#[derive(Clone)]
enum Readers {
    One(Arc<Reader>),
    Few(Vec<Arc<Reader>>),
    /// Readers by the address of their `Arc`. The second field is a threshold: when the number of
    /// readers reaches it, readers that are no longer live are removed.
    Many(HashMap<usize, Arc<Reader>>, usize),
}

impl Readers {
    /// Adds a reader unless it is known. Before the memory grows, removes readers that are no
    /// longer live.
    fn add(&mut self, reader: &Arc<Reader>) {
        let has = |readers: &[Arc<Reader>]| readers.iter().any(|known| Arc::ptr_eq(known, reader));
        match self {
            Readers::One(known) if Arc::ptr_eq(known, reader) => {}
            Readers::One(known) if !known.is_live() => *known = Arc::clone(reader),
            Readers::One(known) => *self = Readers::Few(vec![Arc::clone(known), Arc::clone(reader)]),
            Readers::Few(readers) if has(readers) => {}
            Readers::Few(readers) => {
                if readers.len() == readers.capacity() {
                    readers.retain(|known| known.is_live());
                }
                readers.push(Arc::clone(reader));
                if readers.len() > FEW_READERS_MAX {
                    let many = std::mem::take(readers).into_iter().map(|reader| (address(&reader), reader));
                    *self = Readers::Many(many.collect(), 4 * FEW_READERS_MAX);
                }
            }
            Readers::Many(readers, sweep_at) => {
                if readers.len() >= *sweep_at && !readers.contains_key(&address(reader)) {
                    readers.retain(|_, known| known.is_live());
                    *sweep_at = (readers.len() * 2).max(4 * FEW_READERS_MAX);
                }
                readers.entry(address(reader)).or_insert_with(|| Arc::clone(reader));
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Readers::One(_) => 1,
            Readers::Few(readers) => readers.len(),
            Readers::Many(readers, _) => readers.len(),
        }
    }

    /// Calls `each` with every reader.
    fn for_each(self, mut each: impl FnMut(Arc<Reader>)) {
        match self {
            Readers::One(reader) => each(reader),
            Readers::Few(readers) => readers.into_iter().for_each(each),
            Readers::Many(readers, _) => readers.into_values().for_each(each),
        }
    }
}

fn address(reader: &Arc<Reader>) -> usize {
    Arc::as_ptr(reader).addr()
}

/// A key and its readers.
#[derive(Clone)]
struct Tracked {
    name: KeyName,
    readers: Readers,
}

impl Item for Tracked {
    fn allocated_bytes(&self) -> usize {
        // Required by the trait, but never called for the table of tracked keys.
        0
    }
}

/// A key that is no longer tracked, and the readers to which its invalidation must be sent.
pub(crate) struct Invalidated {
    pub(crate) name: KeyName,
    readers: Readers,
    /// The client whose command changed the key or found it expired; `NOBODY` for an evicted key.
    pub(crate) client: u64,
}

impl Invalidated {
    /// Calls `each` with every reader.
    pub(crate) fn for_each_reader(self, each: impl FnMut(Arc<Reader>)) {
        self.readers.for_each(each);
    }
}

/// The tracking state of a key before changes that may be rolled back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldTracking {
    is_tracked: bool,
    /// The client that has last changed the key, if an invalidation for clients that track prefixes
    /// was pending.
    changed: Option<u64>,
    /// Number of invalidations that were pending before the changes.
    invalidated: usize,
}

/// Invalidations in a shard that have not been sent yet.
#[derive(Default)]
pub(crate) struct Pending {
    /// Keys that were tracked until they were changed, expired or evicted from the table.
    pub(crate) invalidated: Vec<Invalidated>,
    /// Changed keys for clients that track prefixes (`BCAST`), each with the client that last
    /// changed it, or `NOBODY` for a script or an expiry.
    pub(crate) changed: BTreeMap<KeyName, u64>,
    /// Number of times that databases were emptied. `FLUSHALL` and `FLUSHDB` hold all shards, so
    /// every shard counts the same number.
    pub(crate) flushes: u32,
}

/// The tracked keys of a shard.
#[derive(Default)]
#[repr(C)]
pub(crate) struct TrackedKeys {
    pending: Option<Box<Pending>>,
    keys: Option<Table<Tracked>>,
    /// Sum of the numbers of readers of all keys.
    readers: usize,
    /// The client whose command is running.
    pub(crate) changer: Changer,
}

impl TrackedKeys {
    /// Returns whether no key is tracked.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_none()
    }

    /// Returns whether invalidations are pending.
    #[inline]
    pub(crate) fn has_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns the number of keys.
    pub(crate) fn len(&self) -> usize {
        self.keys.as_ref().map_or(0, Table::len)
    }

    /// Returns the sum of the numbers of readers of all keys.
    pub(crate) fn readers(&self) -> usize {
        self.readers
    }

    /// Takes the pending invalidations.
    pub(crate) fn take_pending(&mut self) -> Option<Box<Pending>> {
        self.pending.take()
    }

    /// Tracks a key for a reader. Returns whether the key was added to the table. Returns `false`
    /// if the key was tracked before, or if the table is full.
    pub(crate) fn read(&mut self, hash: u64, name: &[u8], reader: &Arc<Reader>) -> bool {
        let keys = self.keys.get_or_insert_with(|| Table::with_capacity(1));
        if let Some(at) = keys.find(hash as u32, |tracked| *tracked.name == *name) {
            let (before, after) = keys.change(at, |tracked| {
                let before = tracked.readers.len();
                tracked.readers.add(reader);
                (before, tracked.readers.len())
            });
            // The sum may decrease, because `Readers::add` removes readers that are no longer live.
            self.readers = self.readers - before + after;
            return false;
        }
        if !has_room(keys.len(), 1) {
            // The table is full, so the key is not tracked.
            return false;
        }
        keys.insert(hash as u32, Tracked { name: name.into(), readers: Readers::One(Arc::clone(reader)) });
        self.readers += 1;
        true
    }

    /// Stops tracking a changed key and invalidates it for its readers. If `broadcasts` is set,
    /// also records the key for the clients that track prefixes (`BCAST`).
    pub(crate) fn changed(&mut self, hash: u64, name: &[u8], broadcasts: bool) {
        self.invalidate(hash, name, broadcasts.then_some(self.changer.to_prefixes()));
    }

    /// Invalidates an expired key, like [`TrackedKeys::changed`]. For clients that track prefixes,
    /// an expiry counts as a change by no client, so `NOLOOP` excludes none of them.
    pub(crate) fn expired(&mut self, hash: u64, name: &[u8], broadcasts: bool) {
        self.invalidate(hash, name, broadcasts.then_some(NOBODY));
    }

    fn invalidate(&mut self, hash: u64, name: &[u8], broadcast: Option<u64>) {
        let tracked = self.take(hash, name);
        if tracked.is_none() && broadcast.is_none() {
            return;
        }
        let client = self.changer.client;
        let pending = self.pending.get_or_insert_default();
        if let Some(by) = broadcast {
            let name = tracked.as_ref().map_or_else(|| KeyName::from(name), |tracked| Arc::clone(&tracked.name));
            pending.changed.insert(name, by);
        }
        if let Some(Tracked { name, readers }) = tracked {
            pending.invalidated.push(Invalidated { name, readers, client });
        }
    }

    /// Returns the tracking state of a key, before changes that may be rolled back.
    pub(crate) fn hold(&self, hash: u64, name: &[u8]) -> HeldTracking {
        let found = self.keys.as_ref().and_then(|keys| keys.find(hash as u32, |tracked| *tracked.name == *name));
        let changed = self.pending.as_ref().and_then(|pending| pending.changed.get(name).copied());
        let invalidated = self.pending.as_ref().map_or(0, |pending| pending.invalidated.len());
        HeldTracking { is_tracked: found.is_some(), changed, invalidated }
    }

    /// Drops the pending invalidations of a key whose changes were rolled back, and tracks the key
    /// for its former readers again. Invalidations that were pending before the changes remain.
    pub(crate) fn restore(&mut self, hash: u64, name: &[u8], held: HeldTracking) {
        let Some(pending) = &mut self.pending else { return };
        match held.changed {
            Some(by) => _ = pending.changed.get_mut(name).map(|now| *now = by),
            None => _ = pending.changed.remove(name),
        }
        let later = held.invalidated.min(pending.invalidated.len())..;
        let mut undone = pending.invalidated.extract_if(later, |invalidated| *invalidated.name == *name);
        // Only the first invalidation went to the former readers. The others went to readers that
        // have read the key during the changes.
        let first = undone.next().filter(|_| held.is_tracked);
        undone.for_each(drop);
        if pending.invalidated.is_empty() && pending.changed.is_empty() && pending.flushes == 0 {
            self.pending = None;
        }
        if let Some(first) = first {
            first.for_each_reader(|reader| _ = self.read(hash, name, &reader));
        }
    }

    fn take(&mut self, hash: u64, name: &[u8]) -> Option<Tracked> {
        let keys = self.keys.as_mut()?;
        let at = keys.find(hash as u32, |tracked| *tracked.name == *name)?;
        self.take_at(at)
    }

    fn take_at(&mut self, at: usize) -> Option<Tracked> {
        let keys = self.keys.as_mut()?;
        let tracked = keys.remove(at)?;
        self.readers -= tracked.readers.len();
        if keys.is_empty() {
            self.keys = None;
        }
        Some(tracked)
    }

    /// Stops tracking a random key. Invalidates the key for its readers, because they will receive
    /// no invalidations of its later changes. Returns `false` if no key is tracked.
    pub(crate) fn evict(&mut self, random: &mut Random) -> bool {
        let len = self.len();
        if len == 0 {
            return false;
        }
        let Some(Tracked { name, readers }) = self.take_at(random.below(len as u64) as usize) else { return false };
        let pending = self.pending.get_or_insert_default();
        pending.invalidated.push(Invalidated { name, readers, client: NOBODY });
        true
    }

    /// Stops tracking all keys after a database was emptied, and invalidates all keys for all
    /// readers.
    pub(crate) fn flush(&mut self) {
        self.keys = None;
        self.readers = 0;
        self.pending.get_or_insert_default().flushes += 1;
    }
}
