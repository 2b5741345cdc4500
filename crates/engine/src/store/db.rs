//! A command's view of one database in one shard. Lookups delete or hide expired keys, count hits
//! and misses, touch keys (record the access for LRU or LFU) and return shared views. Writes commit
//! their change ([`change`]).

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pantala_base::Gauge;
use pantala_base::random::Random;
use pantala_dict::{Dict, Entry, EntryMut, EntryRef, Extracted, NewPayload, Occupancy, Payload, Removed};
use pantala_types::collection::PackedForm;
use pantala_types::{OutOfMemory, Value, access};

use crate::clients::waiter::WakesOn;
use crate::command::{Drawn, Key};
use crate::effect::blocking::KeyObservers;
use crate::events::latency;
use crate::events::notify::{Event, EventClass};
use crate::faults::{self, Fault};
use crate::store::Store;
use crate::store::fields::{Watched, is_timed};
use crate::store::state::{Database, DatabaseStats, Shard, ShardStats};
use crate::tuning::AccessPolicy;

mod collections;
mod expired;
mod held;
mod strings;
pub(crate) mod transfer;

pub use crate::effect::change::{self, Change, Silence};
pub use collections::{Missing, Timeless};
use expired::{Expired, Looks, expired};
pub use held::{FLAG_RAW, FLAG_UNSHARED, Held, Holds, NewString, WrongType, fits_inline, payload_of};
pub use strings::EditError;
pub use transfer::DatabaseKey;

/// Number of new keys between two updates of the dictionary's memory statistics, which are costly.
const PUBLISH_EVERY_KEYS: u64 = 64;

/// The effect of a write on the key's TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expire {
    /// Removes the TTL.
    Clear,
    /// Keeps the TTL.
    Keep,
    /// Sets the deadline: Unix time, ms.
    At(i64),
}

/// Evaluates to the entry `$found`. If the entry has expired, [`Expired`] says whether it counts as
/// found nevertheless, is hidden, or is deleted. For a hidden or deleted entry, evaluates
/// `$absent`, which must return from the caller. This is a macro, because a function would keep the
/// whole view borrowed along with the entry.
macro_rules! live {
    ($view:ident, $found:ident, $key:ident, $looks:expr, else $absent:expr) => {{
        if $found.expire_at_ms().is_some_and(|at| at <= $view.now_ms) && !faults::hits(Fault::KeptExpired) {
            match expired(&$view.store.tuning, $view.of_primary, $looks, $view.now_ms) {
                Expired::Found => {}
                Expired::Hidden => $absent,
                Expired::Deleted => {
                    let removed = $found.remove();
                    forget($view.store, $view.stats, $view.db_stats, removed, $view.now_ms);
                    commit_expired($view.store, $view.observers, $view.db, $key, $view.now_ms);
                    $absent
                }
            }
        }
        $found
    }};
}

/// A command's view of one database in one shard. See the head of this module.
pub struct Db<'s> {
    pub(crate) dict: &'s mut Dict<Value>,
    pub(crate) watched: &'s mut Watched,
    random: &'s mut Random,
    scratch: &'s mut Vec<u8>,
    pub(crate) observers: &'s mut KeyObservers,
    /// Number of the database as clients know it.
    pub(crate) db: u32,
    pub(crate) store: &'s Store,
    stats: &'s ShardStats,
    pub(crate) db_stats: &'s DatabaseStats,
    pub(crate) now_ms: i64,
    no_touch: bool,
    /// Whether the server's primary, or the append-only file being loaded, sent the command.
    pub(crate) of_primary: bool,
}

impl<'s> Db<'s> {
    #[inline(always)]
    pub(crate) fn new(
        store: &'s Store,
        stats: &'s ShardStats,
        shard: &'s mut Shard,
        number: u32,
        db: u32,
        now_ms: i64,
        no_touch: bool,
    ) -> Self {
        let physical = store.physical(db);
        let Database { dict, watched, .. } =
            shard.databases.get_or_make(physical, || store.make_database(number, physical));
        Db {
            dict,
            watched,
            random: &mut shard.random,
            scratch: &mut shard.scratch,
            observers: &mut shard.observers,
            db,
            store,
            stats,
            db_stats: store.db_stats(number, physical),
            now_ms,
            no_touch,
            of_primary: false,
        }
    }

    /// Returns the number of keys, including expired keys that were not deleted yet.
    pub fn len(&self) -> usize {
        self.dict.len()
    }

    /// Returns how the keys are distributed over the buckets of their table.
    pub fn occupancy(&self) -> Occupancy {
        self.dict.occupancy()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Looks up a key without counting a hit or a miss, and without touching it. Deletes or hides
    /// an expired key as a lookup for a write does (`expired.rs`).
    #[inline]
    pub fn find(&mut self, key: &Key<'_>) -> Option<EntryRef<'_, Value>> {
        self.find_mut(key).map(EntryMut::into_ref)
    }

    /// Looks up a key like [`Db::find`], but returns a mutable entry.
    #[inline]
    pub(crate) fn find_mut(&mut self, key: &Key<'_>) -> Option<EntryMut<'_, Value>> {
        let found = self.dict.find_mut(key.place.hash, key.bytes)?;
        Some(live!(self, found, key, Looks::ToWrite, else return None))
    }

    /// Looks up a key even if it has expired, without deleting it.
    pub fn find_even_expired(&self, key: &Key<'_>) -> Option<EntryRef<'_, Value>> {
        self.dict.find(key.place.hash, key.bytes)
    }

    /// Looks up a key for reading: counts a hit or a miss, and touches the key.
    #[inline]
    pub fn read(&mut self, key: &Key<'_>) -> Option<EntryRef<'_, Value>> {
        let Some(found) = self.dict.find_mut(key.place.hash, key.bytes) else {
            miss(self.store, self.stats, self.db, key.bytes);
            return None;
        };
        let mut found = live!(self, found, key, Looks::ToRead, else {
            miss(self.store, self.stats, self.db, key.bytes);
            return None;
        });
        self.stats.hits.add(1);
        if !self.no_touch {
            touch(&mut found, self.store, self.random, self.now_ms);
        }
        Some(found.into_ref())
    }

    /// Looks up a key like [`Db::read`], but does not touch it: for commands that inspect a key.
    pub fn peek(&mut self, key: &Key<'_>) -> Option<EntryRef<'_, Value>> {
        // The flag need not be reset, because a view lives as long as one command uses it.
        self.no_touch = true;
        self.read(key)
    }

    /// Looks up a key for reading and touches it even if `CLIENT NO-TOUCH` is on (`TOUCH`).
    pub fn read_touching(&mut self, key: &Key<'_>) -> Option<EntryRef<'_, Value>> {
        self.no_touch = false;
        self.read(key)
    }

    /// Looks up a key before a change. Touches the key, but counts neither a hit nor a miss.
    #[inline]
    pub fn write(&mut self, key: &Key<'_>) -> Option<EntryRef<'_, Value>> {
        self.write_mut(key).map(EntryMut::into_ref)
    }

    /// Looks up a key like [`Db::write`], but returns a mutable entry.
    #[inline]
    fn write_mut(&mut self, key: &Key<'_>) -> Option<EntryMut<'_, Value>> {
        let found = self.dict.find_mut(key.place.hash, key.bytes)?;
        let mut found = live!(self, found, key, Looks::ToWrite, else return None);
        if !self.no_touch {
            touch(&mut found, self.store, self.random, self.now_ms);
        }
        Some(found)
    }

    /// Returns whether a key exists and has not expired. Never deletes it, as `WATCH` requires.
    pub fn is_live(&self, key: &Key<'_>) -> bool {
        let found = self.find_even_expired(key);
        found.is_some_and(|entry| entry.expire_at_ms().is_none_or(|at_ms| at_ms > self.now_ms))
    }

    /// Returns whether a key exists.
    pub fn exists(&mut self, key: &Key<'_>) -> bool {
        self.find(key).is_some()
    }

    /// Stores a string, replacing the key's value.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. Nothing has changed then.
    #[inline]
    pub fn set_string(
        &mut self,
        key: &Key<'_>,
        value: NewString<'_>,
        expire: Expire,
        change: Change,
    ) -> Result<(), OutOfMemory> {
        let (payload, flags) = payload_of(key, value)?;
        self.set_payload(key, payload, flags, expire, change);
        Ok(())
    }

    /// Stores a string without a TTL if the key is missing, with one lookup in the dictionary.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. Nothing has changed then.
    pub fn add_string(&mut self, key: &Key<'_>, value: NewString<'_>, change: Change) -> Result<(), OutOfMemory> {
        match self.dict.entry(key.place.hash, key.bytes) {
            // An expired key is replaced like a missing one.
            Entry::Occupied(found) if found.expire_at_ms().is_none_or(|at| at > self.now_ms) => Ok(()),
            Entry::Occupied(_) => self.set_string(key, value, Expire::Clear, change),
            Entry::Vacant(vacant) => {
                let (payload, flags) = payload_of(key, value)?;
                self.db_stats.heap_bytes.add(heap_bytes(&payload));
                vacant.insert(payload, flags, fresh_access(self.store, self.now_ms), None);
                self.db_stats.keys.add(1);
                self.commit(key, change.of_new_key(true));
                Ok(())
            }
        }
    }

    /// Stores a payload with its user flags, replacing the key's value.
    // Always inlined, so that `change` is a constant for the compiler if the caller knows it. The
    // large part (`Db::store`) is never inlined.
    #[inline(always)]
    pub fn set_payload(
        &mut self,
        key: &Key<'_>,
        payload: NewPayload<'_, Value>,
        flags: u8,
        expire: Expire,
        change: Change,
    ) {
        let is_new = self.store(key, payload, flags, expire);
        self.commit(key, change.of_new_key(is_new));
    }

    /// Stores a payload. The caller commits. Returns whether the key was missing or expired.
    #[inline(never)]
    fn store(&mut self, key: &Key<'_>, payload: NewPayload<'_, Value>, flags: u8, expire: Expire) -> bool {
        let (store, db_stats, now_ms) = (self.store, self.db_stats, self.now_ms);
        let heap = heap_bytes(&payload);
        if let NewPayload::Heap(value) = &payload
            && is_timed(value)
        {
            self.watched.add(key.bytes, db_stats);
        }
        let clock = fresh_access(store, now_ms);
        let is_new = match self.dict.entry(key.place.hash, key.bytes) {
            Entry::Occupied(mut found) => {
                // An expired key counts as missing here (`is_over`), so its TTL must not be kept.
                let had = found.expire_at_ms();
                let is_over = had.is_some_and(|at| at <= now_ms) && !self.of_primary;
                if is_over {
                    self.stats.expired.add(1);
                    commit_expired(store, self.observers, self.db, key, now_ms);
                }
                let keep = expire == Expire::Keep && !is_over;
                if let Some(old) = found.replace(payload, flags) {
                    db_stats.heap_bytes.sub(old.allocated_bytes() as u64);
                    store.dispose(old, store.tuning.lazyfree_lazy_server_del.load(Relaxed));
                }
                match expire {
                    Expire::Keep if keep => {}
                    Expire::At(at) => {
                        self.watched.note_ttl(store, self.of_primary, key.bytes);
                        found.set_expire(Some(at));
                        if had.is_none() {
                            db_stats.expires.add(1);
                        }
                    }
                    _ => {
                        if had.is_some() {
                            found.set_expire(None);
                            db_stats.expires.sub(1);
                        }
                    }
                }
                if store.tuning.access_policy() == AccessPolicy::Lru {
                    if found.access() != clock {
                        found.set_access(clock);
                    }
                } else {
                    touch(&mut found, store, self.random, now_ms);
                }
                is_over
            }
            Entry::Vacant(vacant) => {
                let at = match expire {
                    Expire::At(at) => Some(at),
                    Expire::Clear | Expire::Keep => None,
                };
                vacant.insert(payload, flags, clock, at);
                db_stats.keys.add(1);
                if at.is_some() {
                    self.watched.note_ttl(store, self.of_primary, key.bytes);
                    db_stats.expires.add(1);
                }
                if db_stats.keys.get() % PUBLISH_EVERY_KEYS == 0 {
                    self.publish_bytes();
                }
                true
            }
        };
        // Most values are inside their entries and use no heap. For these, the branch avoids a
        // write to the statistics' cache line.
        if heap > 0 {
            db_stats.heap_bytes.add(heap);
        }
        is_new
    }

    /// Sets or clears the TTL of a key. Returns `false` if the key is missing.
    pub fn set_expire(&mut self, key: &Key<'_>, at_ms: Option<i64>, change: Change) -> bool {
        let db_stats = self.db_stats;
        if at_ms.is_some() {
            self.watched.note_ttl(self.store, self.of_primary, key.bytes);
        }
        let Some(mut found) = self.find_mut(key) else { return false };
        match (found.expire_at_ms().is_some(), at_ms.is_some()) {
            (false, true) => db_stats.expires.add(1),
            (true, false) => db_stats.expires.sub(1),
            _ => {}
        }
        found.set_expire(at_ms);
        self.commit(key, change);
        true
    }

    /// Deletes a key and frees its value, in the background if `lazy` is set and the value is
    /// large. The event is `del`. Returns `false` if the key is missing or has expired.
    pub fn remove(&mut self, key: &Key<'_>, lazy: bool) -> bool {
        let now_ms = self.now_ms;
        let Some(removed) = self.dict.remove(key.place.hash, key.bytes) else { return false };
        if removed.expire_at_ms().is_some_and(|at| at <= now_ms) && !self.of_primary {
            forget(self.store, self.stats, self.db_stats, removed, self.now_ms);
            commit_expired(self.store, self.observers, self.db, key, now_ms);
            return false;
        }
        self.discard(removed, lazy);
        self.commit(key, Change::event(&Event(EventClass::Generic, "del")));
        true
    }

    /// Deletes a key like [`Self::remove`], but treats an expired key like any other key, and
    /// commits `change`. Used by commands that, as in Redis, do not look up their destination key.
    pub(crate) fn remove_unseen(&mut self, key: &Key<'_>, lazy: bool, change: Change) -> bool {
        let Some(removed) = self.dict.remove(key.place.hash, key.bytes) else { return false };
        self.discard(removed, lazy);
        self.commit(key, change);
        true
    }

    fn discard(&mut self, removed: Removed<Value>, lazy: bool) {
        uncount(self.db_stats, &removed);
        if let Some(value) = removed.into_heap() {
            self.store.dispose(value, lazy);
        }
    }

    /// Counts a hit or a miss. Used by commands that in Redis look up a key for reading before they
    /// change it.
    #[inline]
    pub fn count_lookup(&self, key: &Key<'_>, found: bool) {
        if found { self.stats.hits.add(1) } else { miss(self.store, self.stats, self.db, key.bytes) }
    }

    /// Commits a change of a key (see [`change`]).
    #[inline(always)]
    pub(crate) fn commit(&mut self, key: &Key<'_>, change: Change) {
        self.stats.changes.add(u64::from(change.is_saved()));
        change::commit(self.store, self.observers, self.db, key, change);
    }

    /// Returns the shard's number of changes.
    pub(crate) fn changes(&self) -> &'s Gauge {
        &self.stats.changes
    }

    /// Returns the kind of waiters (blocked commands) that a key in its current state can wake.
    pub(crate) fn wakes(&mut self, key: &Key<'_>) -> Option<WakesOn> {
        match self.find(key)?.held() {
            Held::Packed(PackedForm::List, _) | Held::Heap(Value::List(_)) => Some(WakesOn::List),
            Held::Packed(PackedForm::SortedSet, _) | Held::Heap(Value::SortedSet(_)) => Some(WakesOn::SortedSet),
            Held::Heap(Value::Stream(_)) => Some(WakesOn::Stream),
            _ => None,
        }
    }

    /// Continues a scan (see [`Dict::scan`]). Skips expired keys.
    pub fn scan(&self, cursor: u64, buckets: usize, visit: &mut dyn FnMut(EntryRef<'_, Value>)) -> u64 {
        let now_ms = self.now_ms;
        self.dict.scan(cursor, buckets, &mut |entry| {
            if entry.expire_at_ms().is_none_or(|at| at > now_ms) {
                visit(entry);
            }
        })
    }

    /// Continues a scan like [`Db::scan`]. For an expired key, calls `visit` with `None`, and
    /// deletes the key if `expires` returns true for it.
    pub fn scan_expiring(
        &mut self,
        cursor: u64,
        buckets: usize,
        expires: &dyn Fn(&[u8]) -> bool,
        visit: &mut dyn FnMut(Option<EntryRef<'_, Value>>),
    ) -> u64 {
        let now_ms = self.now_ms;
        let mut expired: Vec<Box<[u8]>> = Vec::new();
        let next = self.dict.scan(cursor, buckets, &mut |entry| {
            if entry.expire_at_ms().is_none_or(|at| at > now_ms) {
                return visit(Some(entry));
            }
            visit(None);
            if expires(entry.key()) {
                expired.push(entry.key().into());
            }
        });
        expired.iter().for_each(|bytes| self.expire(bytes));
        next
    }

    /// Deletes an expired key, as any lookup does.
    fn expire(&mut self, bytes: &[u8]) {
        let place = self.store.place(bytes);
        let _ = self.find(&Key { bytes, place });
    }

    /// Returns a random key that has not expired, or `None` if 100 tries found none.
    pub fn random(&mut self, _: Drawn) -> Option<Box<[u8]>> {
        const TRIES: usize = 100;
        for _ in 0..TRIES {
            let random = &mut *self.random;
            let entry = self.dict.random(&mut || random.next_u64())?;
            let is_live = entry.expire_at_ms().is_none_or(|at| at > self.now_ms);
            let bytes: Box<[u8]> = entry.key().into();
            if is_live {
                return Some(bytes);
            }
            self.expire(&bytes);
        }
        None
    }

    /// Returns the memory usage of a key in bytes, with its value and its share of the dictionary.
    pub fn memory_usage(&mut self, key: &Key<'_>) -> Option<usize> {
        /// A key's share of its table: a slot of 8 bytes, in segments that are about 5/6 full.
        const SLOT_BYTES: usize = 10;
        let entry = self.find(key)?;
        let heap = match entry.payload() {
            Payload::Heap(value) => value.allocated_bytes(),
            Payload::Bytes(_) | Payload::Int(_) => 0,
        };
        Some(entry.allocated_bytes() + heap + SLOT_BYTES)
    }

    /// Updates the statistics of the dictionary's memory, for `INFO`.
    pub(crate) fn publish_bytes(&self) {
        self.db_stats.dict_bytes.set(self.dict.allocated_bytes() as u64);
    }

    /// Returns the dictionary, the observers and the statistics, which active expiry needs.
    pub(crate) fn parts(&mut self) -> (&mut Dict<Value>, &mut KeyObservers, &'s ShardStats, &'s DatabaseStats) {
        (self.dict, self.observers, self.stats, self.db_stats)
    }
}

/// Returns the access word (LRU or LFU data) of a new entry.
#[inline]
fn fresh_access(store: &Store, now_ms: i64) -> u32 {
    match store.tuning.access_policy() {
        AccessPolicy::Lru => access::lru_clock(now_ms as u64),
        AccessPolicy::Lfu => access::lfu_new(now_ms as u64),
    }
}

/// Records an access. With LRU the word changes at most once a second, so that reading a hot key
/// does not dirty its cache line.
#[inline]
fn touch(entry: &mut EntryMut<'_, Value>, store: &Store, random: &mut Random, now_ms: i64) {
    let before = entry.access();
    let after = match store.tuning.access_policy() {
        AccessPolicy::Lru => access::lru_clock(now_ms as u64),
        AccessPolicy::Lfu => access::lfu_touch(
            before,
            now_ms as u64,
            store.tuning.lfu_decay_time_minutes.load(Relaxed),
            store.tuning.lfu_log_factor.load(Relaxed),
            random.next_u64() as u32,
        ),
    };
    if after != before {
        entry.set_access(after);
    }
}

pub(crate) fn uncount(db_stats: &DatabaseStats, removed: &Removed<Value>) {
    db_stats.keys.sub(1);
    if removed.expire_at_ms().is_some() {
        db_stats.expires.sub(1);
    }
    if let Some(value) = removed.heap() {
        db_stats.heap_bytes.sub(value.allocated_bytes() as u64);
    }
}

/// Removes an entry from the counters, given the content that was taken out of the entry.
fn uncount_taken(db_stats: &DatabaseStats, taken: &Extracted<Value>) {
    db_stats.keys.sub(1);
    if taken.expire_at_ms.is_some() {
        db_stats.expires.sub(1);
    }
    if let Payload::Heap(value) = taken.payload.payload() {
        db_stats.heap_bytes.sub(value.allocated_bytes() as u64);
    }
}

fn heap_bytes(payload: &NewPayload<'_, Value>) -> u64 {
    match payload {
        NewPayload::Heap(value) => value.allocated_bytes() as u64,
        NewPayload::Bytes(_) | NewPayload::Int(_) => 0,
    }
}

/// Counts a lookup for reading that found no key.
#[inline]
fn miss(store: &Store, stats: &ShardStats, db: u32, key: &[u8]) {
    stats.misses.add(1);
    store.notify(EventClass::Miss, "keymiss", db, key);
}

/// Commits the expiry of a key.
#[cold]
fn commit_expired(store: &Store, observers: &mut KeyObservers, db: u32, key: &Key<'_>, now_ms: i64) {
    observers.note_expired(now_ms);
    change::commit(store, observers, db, key, Change::expired());
}

/// Counts an expired key and frees its value.
#[cold]
pub(crate) fn forget(store: &Store, stats: &ShardStats, db_stats: &DatabaseStats, entry: Removed<Value>, now_ms: i64) {
    stats.expired.add(1);
    uncount(db_stats, &entry);
    let Some(value) = entry.into_heap() else { return };
    let lazy = store.tuning.lazyfree_lazy_expire.load(Relaxed);
    if store.tuning.latency_threshold_ms.load(Relaxed) == 0 {
        return store.dispose(value, lazy);
    }
    let began = Instant::now();
    store.dispose(value, lazy);
    // Recorded for worker 0, whichever worker runs this: `LATENCY` merges the events of all
    // workers.
    store.note_latency(0, latency::EXPIRE_DEL, now_ms, began.elapsed());
}

#[cfg(all(test, not(loom)))]
mod tests;
