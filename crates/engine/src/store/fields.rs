//! Expiry of hash fields, by commands and by active expiry.
//!
//! Before a command on some fields of a hash runs, the expired fields among them are deleted
//! ([`Db::expire_fields`]), together with a bounded number of other expired fields. Active expiry
//! deletes the rest. The deletion is a separate change before the command's change. If a hash loses
//! its last field, its key and the key's TTL are deleted, and the command then finds no key. If the
//! command fails, only the deletion of the fields is propagated.
//!
//! # Active expiry
//!
//! Each database of a shard has an unordered list of keys whose hashes may have fields with a TTL.
//! Active expiry walks the list, and removes a key from it if the key's value is no longer such a
//! hash. So deletions of keys need not update the list. A hash knows whether any of its fields has
//! expired. If none has, a visit to the hash costs only a lookup.
//!
//! A key on the list uses 20 to 25 bytes in addition to its length.

use std::sync::atomic::Ordering::Relaxed;

use pantala_resp::Args;
use pantala_types::{Collection, Hash, HashView, Value};

use crate::command::Key;
use crate::effect::change::commit;
use crate::store::Store;
use crate::store::db::{Change, Db, Holds, Missing, WrongType, uncount};
use crate::store::key_list::KeyList;
use crate::store::state::{DatabaseStats, Shard, ShardStats};

/// Maximum number of keys that one visit to a database checks. A visit takes about ten
/// microseconds.
const KEYS_PER_VISIT: usize = 64;

/// Maximum number of fields that one visit to a database deletes.
const FIELDS_PER_VISIT: usize = 256;

/// Maximum number of expired fields that a command on named fields deletes in addition to the named
/// ones. Deleting them takes a few hundred microseconds. Active expiry deletes the rest.
const DUE_PER_COMMAND: usize = 512;

/// The fields of a hash that a command accesses. Expired fields among them are deleted first.
#[derive(Clone, Copy)]
pub enum Fields<'a, 'b> {
    /// All fields.
    All,
    /// The arguments from index `first` to the end, in steps of `step`.
    Named {
        /// The command's arguments.
        args: &'a Args<'b>,
        /// The first field.
        first: usize,
        /// The distance from each field to the next.
        step: usize,
    },
}

impl<'a, 'b> Fields<'a, 'b> {
    /// Returns the single field `args[index]`.
    pub fn one(args: &'a Args<'b>, index: usize) -> Self {
        Fields::Named { args, first: index, step: usize::MAX }
    }

    /// Returns all arguments from index `first` to the end.
    pub fn from(args: &'a Args<'b>, first: usize) -> Self {
        Fields::Named { args, first, step: 1 }
    }

    /// Iterates over the named fields. Returns no names for [`Fields::All`].
    pub fn names(self) -> impl Iterator<Item = &'a [u8]> {
        let (args, first, step) = match self {
            Fields::All => (None, 0, 1),
            Fields::Named { args, first, step } => (Some(args), first, step),
        };
        args.into_iter().flat_map(move |args| (first..args.len()).step_by(step).map(|index| args.at(index)))
    }

    /// Deletes from a hash the expired ones among these fields, and some other expired fields.
    /// Calls `removed` with each deleted field and returns the number of deleted fields.
    fn expire(self, hash: &mut Hash, now_ms: i64, mut removed: impl FnMut(&[u8])) -> usize {
        let Fields::Named { .. } = self else { return hash.expire(now_ms, usize::MAX, removed) };
        let mut expired = hash.expire(now_ms, DUE_PER_COMMAND, &mut removed);
        if hash.view().has_expired(now_ms) {
            for field in self.names() {
                if hash.expire_field(field, now_ms) {
                    removed(field);
                    expired += 1;
                }
            }
        }
        expired
    }
}

/// The keys of one database that active expiry visits one by one.
#[derive(Default)]
pub(crate) struct Watched {
    /// Keys of hashes that may have fields with a TTL. See the head of this module.
    hashes: KeyList,
    /// Keys to which clients of a writable replica have given a TTL.
    pub(crate) own: KeyList,
}

impl Watched {
    /// Adds the key of a hash, unless the list contains it.
    pub(crate) fn add(&mut self, key: &[u8], db_stats: &DatabaseStats) {
        if self.hashes.add(key) {
            db_stats.timed_hashes.add(1);
        }
    }

    /// Returns whether `is_met` holds for the key of any hash.
    fn any(&self, is_met: impl FnMut(&[u8]) -> bool) -> bool {
        self.hashes.any(is_met)
    }

    /// Visits the keys of at most `most` hashes. Removes the keys for which `keeps` returns
    /// `false`.
    fn walk(&mut self, most: usize, db_stats: &DatabaseStats, keeps: impl FnMut(&[u8]) -> bool) {
        db_stats.timed_hashes.sub(self.hashes.walk(most, keeps) as u64);
    }

    /// Notes that a command gives a key a TTL. On a replica, the primary will send no `DEL` for a
    /// key whose TTL was given by a client. So the replica records such a key, and expires it
    /// itself.
    #[inline]
    pub(crate) fn note_ttl(&mut self, store: &Store, of_primary: bool, key: &[u8]) {
        if store.tuning.is_replica() && !of_primary {
            self.note_own_ttl(store, key);
        }
    }

    #[cold]
    fn note_own_ttl(&mut self, store: &Store, key: &[u8]) {
        self.own.add(key);
        store.tuning.has_own_ttls.store(true, Relaxed);
    }
}

/// Returns whether a heap value is a hash in the form that supports TTLs of fields.
pub(crate) fn is_timed(value: &Value) -> bool {
    matches!(value, Value::Hash(Hash::Expiring(_)))
}

/// Deletes expired fields of some hashes in each database of a shard. Returns their number.
pub(crate) fn visit(store: &Store, stats: &ShardStats, shard: &mut Shard, number: u32, now_ms: i64) -> usize {
    let mut expired = 0;
    if store.tuning.keeps_expired(now_ms) {
        return expired;
    }
    for db in 0..store.databases() {
        if store.db_stats(number, store.physical(db)).timed_hashes.get() > 0 {
            expired += Db::new(store, stats, shard, number, db, now_ms, true).expire_watched();
        }
    }
    expired
}

impl Db<'_> {
    /// Deletes the expired fields among `fields` of the hash at a key, and then changes the hash as
    /// [`Db::change_as`] does.
    ///
    /// # Errors
    /// [`WrongType`] if the key holds another type. `work` is not called then.
    #[inline]
    pub fn change_hash<K: Into<Option<Change>>, R>(
        &mut self,
        key: &Key<'_>,
        missing: Missing,
        fields: Fields<'_, '_>,
        work: impl FnOnce(&mut Hash) -> (K, R),
    ) -> Result<Option<R>, WrongType> {
        if self.db_stats.timed_hashes.get() > 0 {
            self.expire_fields(key, fields);
        }
        self.change_collection(key, missing, work)
    }

    /// Deletes the expired fields among `fields` of the hash at a key. If no field is left, deletes
    /// the key. Does nothing if the key holds no hash.
    #[cold]
    pub fn expire_fields(&mut self, key: &Key<'_>, fields: Fields<'_, '_>) {
        let (store, now_ms) = (self.store, self.now_ms);
        // For a command from the primary nothing is deleted here, because the primary also sends
        // the deletions of expired fields.
        if self.of_primary {
            return;
        }
        // Checked through a shared view first, because a mutable view makes a running snapshot
        // encode the entry.
        let found = self.find(key);
        if !found.is_some_and(|entry| entry.held().view::<Hash>().is_some_and(|hash| hash.has_expired(now_ms))) {
            return;
        }
        let is_journaled = store.tuning.is_journaled();
        let (mut names, mut expired) = (Vec::new(), 0);
        // Can't fail: the key holds a hash.
        let _ = self.change_collection(key, Missing::Skip, |hash: &mut Hash| {
            expired = fields.expire(hash, now_ms, |field| {
                if is_journaled {
                    names.push(field.to_vec());
                }
            });
            (Change::fields_found_expired().when(expired > 0), ())
        });
        if expired > 0 {
            self.observers.note_expired(now_ms);
        }
        names.iter().for_each(|field| self.observers.field_expired(&store.tuning, self.db, key.bytes, field));
    }

    /// Returns whether any hash of this database in this shard has fields with a TTL.
    pub(crate) fn has_expiring_fields(&self) -> bool {
        self.watched.any(|key| {
            let found = self.dict.find(self.store.place(key).hash, key);
            found.is_some_and(|entry| entry.held().view::<Hash>().is_some_and(HashView::has_expiring_fields))
        })
    }

    fn expire_watched(&mut self) -> usize {
        let (dict, store, db_stats) = (&mut *self.dict, self.store, self.db_stats);
        let (db, now_ms) = (self.db, self.now_ms);
        let observers = &mut *self.observers;
        let mut left = FIELDS_PER_VISIT;
        self.watched.walk(KEYS_PER_VISIT, db_stats, |key| {
            let key = Key { bytes: key, place: store.place(key) };
            let Some(mut entry) = dict.find_mut(key.place.hash, key.bytes) else { return false };
            // Checked through a shared view first, because a mutable view makes a running snapshot
            // encode the entry.
            let Some(hash) = entry.as_ref().held().view::<Hash>() else { return false };
            if hash.has_expiring_fields() && !hash.has_expired(now_ms) {
                return true;
            }
            let Some(hash) = entry.heap_mut().filter(|value| is_timed(value)).and_then(Hash::of_mut) else {
                return false;
            };
            if !hash.view().has_expiring_fields() {
                return false;
            }
            if left == 0 || !hash.view().has_expired(now_ms) {
                return true;
            }
            let before = hash.allocated_bytes();
            let expired =
                hash.expire(now_ms, left, |field| observers.field_expired(&store.tuning, db, key.bytes, field));
            left -= expired;
            db_stats.heap_bytes.sub(before as u64);
            db_stats.heap_bytes.add(hash.allocated_bytes() as u64);
            let (is_deleted, has_times) = (hash.is_empty(), hash.view().has_expiring_fields());
            if is_deleted {
                let removed = entry.remove();
                uncount(db_stats, &removed);
                removed.into_heap().into_iter().for_each(|value| store.dispose(value, false));
            }
            if expired > 0 {
                commit(store, observers, db, &key, Change::fields_expired_actively().of_deleted_key(is_deleted));
            }
            !is_deleted && has_times
        });
        if left < FIELDS_PER_VISIT {
            self.observers.note_expired(now_ms);
        }
        FIELDS_PER_VISIT - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_visits_every_key_and_removes_rejected_keys() {
        let db_stats = DatabaseStats::default();
        let mut watched = Watched::default();
        for number in 0..200 {
            watched.add(format!("{number}").as_bytes(), &db_stats);
            watched.add(b"7", &db_stats);
        }
        assert_eq!(db_stats.timed_hashes.get(), 200);
        let mut met = std::collections::BTreeSet::new();
        for _ in 0..10 {
            watched.walk(20, &db_stats, |key| met.insert(key.to_vec()));
        }
        assert_eq!((met.len(), db_stats.timed_hashes.get()), (200, 200));
        // None of these keys is a hash with TTLs, so each key is removed from the list at its next
        // visit.
        for _ in 0..10 {
            watched.walk(20, &db_stats, |key| met.insert(key.to_vec()));
        }
        assert_eq!(db_stats.timed_hashes.get(), 0);
        assert!(watched.hashes.is_empty());
    }
}
