//! Rollback of scripts: records the former values of keys that a script changes. Each run of a
//! script owns an [`Undo`].
//!
//! A script that holds only the shards of its declared keys may use another key after it has
//! written. The script must then be rerun with all shards, as if it had never started. Its changes
//! are rolled back while the first run's shards are still held, so no other thread sees the
//! changes.
//!
//! Only small values are recorded. A script that changes a large value is rerun with all shards
//! instead, which costs less than a copy. Events (`notify-keyspace-events`) of the script's changes
//! are published when the run is committed. A rollback drops these events, and those invalidations
//! of cached keys that have not been sent yet. Changes that were rolled back do not count in
//! `rdb_changes_since_last_save`.

use std::ops::Range;

use hashbrown::HashTable;
use pantala_dict::NewPayload;
use pantala_types::{PackedForm, Value};

use crate::command::{Key, KeyPlace};
use crate::effect::change::{Change, Silence};
use crate::effect::watches::{HeldWatches, Watches};
use crate::events::notify::{DeferredEvent, defer_events};
use crate::events::tracking::keys::HeldTracking;
use crate::store::Store;
use crate::store::db::{Db, Expire, FLAG_RAW, Held, Holds, NewString, fits_inline, payload_of};
use crate::store::state::Shard;

/// Maximum size in bytes of a recorded value that consists of one block. Copying it takes about 5
/// µs. Holding all shards for a short script delays other commands for about as long, so a longer
/// copy would cost more than a rerun.
pub const UNDO_STRING_BYTES_MAX: usize = 64 * 1024;

/// Maximum size in bytes of a recorded value that consists of several blocks. Copying it takes an
/// allocation for each block.
pub const UNDO_VALUE_BYTES_MAX: usize = 16 * 1024;

/// Maximum memory usage of the records of one run, in bytes.
pub const UNDO_BYTES_MAX: usize = 1024 * 1024;

/// Maximum capacity in bytes that is kept between runs.
const KEPT_BYTES_MAX: usize = 64 * 1024;
/// Maximum capacity in keys or events that is kept between runs.
const KEPT_ENTRIES_MAX: usize = 256;

/// Error: a value, or all values together, are too large to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// The former content of a key. Bytes are in [`Undo::bytes`].
enum Content {
    Int(i64),
    Bytes(Range<usize>),
    Packed(PackedForm, Range<usize>),
    Heap(Value),
}

/// The former state of a key.
struct Image {
    content: Content,
    flags: u8,
    access: u32,
    expire_at_ms: Option<i64>,
}

/// A recorded key and its former state, which is `None` if the key did not exist.
struct Noted {
    db: u32,
    place: KeyPlace,
    /// The key's bytes in [`Undo::bytes`].
    name: Range<usize>,
    image: Option<Image>,
    tracking: HeldTracking,
    /// The shard's number of changes (for `rdb_changes_since_last_save`) when the key was recorded.
    changes: u64,
}

/// Access to the shards that a run holds.
pub trait HeldShards {
    /// Returns the state shared by all shards.
    fn store(&self) -> &Store;
    /// Returns the selected database.
    fn selected_db(&self) -> u32;
    /// Returns a database in the shard of a key.
    fn db_at(&mut self, db: u32, key: &Key<'_>) -> Db<'_>;
    /// Returns a held shard.
    fn shard(&mut self, number: u32) -> &mut Shard;
}

/// The former states of the keys that a run changes. Empty between runs; the next run reuses the
/// memory.
#[derive(Default)]
pub struct Undo {
    /// Recorded keys in order.
    noted: Vec<Noted>,
    /// Indexes in `noted` by the key's hash.
    by_hash: HashTable<u32>,
    /// Concatenated names of keys, and values that were inside their entries.
    bytes: Vec<u8>,
    /// Watches (`WATCH`) of the recorded keys, each with the key's index in `noted`. They are held
    /// back during the run: a commit raises the watches of changed keys, and a rollback raises
    /// none.
    watches: Vec<(u32, HeldWatches)>,
    /// The deferred events of the run's commands, in order.
    events: Vec<DeferredEvent>,
    /// Memory usage of all records, in bytes.
    taken_bytes: usize,
}

impl Undo {
    /// Records the state of a key in the selected database, unless it is already recorded. Must be
    /// called before the key is changed, with its shard held.
    ///
    /// # Errors
    /// [`TooLarge`]: the key was not recorded, and must not be changed.
    pub fn note(&mut self, access: &mut impl HeldShards, key: &Key<'_>) -> Result<(), TooLarge> {
        let db = access.selected_db();
        if self.is_noted(db, key.place.hash, key.bytes) {
            return Ok(());
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key.bytes);
        let name = start..self.bytes.len();
        let (image, value_bytes) = match image_of(access, key, &mut self.bytes)? {
            Some((image, value_bytes)) => (Some(image), value_bytes),
            None => (None, 0),
        };
        let taken = size_of::<Noted>() + key.bytes.len() + value_bytes;
        if self.taken_bytes + taken > UNDO_BYTES_MAX {
            return Err(TooLarge);
        }
        self.taken_bytes += taken;
        let index = self.noted.len() as u32;
        let changes = access.db_at(db, key).changes().get();
        let tracking = access.shard(key.place.shard).observers.tracked.hold(key.place.hash, key.bytes);
        self.noted.push(Noted { db, place: key.place, name, image, tracking, changes });
        let noted = &self.noted;
        self.by_hash.insert_unique(key.place.hash, index, |&index| noted[index as usize].place.hash);
        if let Some(held) = access.shard(key.place.shard).observers.watches.hold(db, key.bytes) {
            self.watches.push((index, held));
        }
        Ok(())
    }

    fn is_noted(&self, db: u32, hash: u64, name: &[u8]) -> bool {
        let is_it = |&index: &u32| {
            let noted = &self.noted[index as usize];
            noted.db == db && self.bytes[noted.name.clone()] == *name
        };
        self.by_hash.find(hash, is_it).is_some()
    }

    /// Defers events of the run's commands until the run is committed.
    ///
    /// # Errors
    /// [`TooLarge`]: there are too many events.
    pub fn hold(&mut self, events: Vec<DeferredEvent>) -> Result<(), TooLarge> {
        self.taken_bytes += events.iter().map(DeferredEvent::bytes).sum::<usize>();
        self.events.extend(events);
        if self.taken_bytes > UNDO_BYTES_MAX { Err(TooLarge) } else { Ok(()) }
    }

    /// Rolls back the changes of all recorded keys.
    pub fn roll_back(&mut self, access: &mut impl HeldShards) {
        // Publishes the events of changes that stay: deletions of expired keys and fields, and
        // changes of unrecorded keys. All other events are dropped, because the rerun will repeat
        // them.
        for event in std::mem::take(&mut self.events) {
            let is_changed = || self.is_noted(event.db, access.store().place(&event.key).hash, &event.key);
            if event.is_expiry() || !event.is_miss() && !is_changed() {
                access.store().publish_deferred(&event);
            }
        }
        // A rollback is not a change, so its events are dropped.
        defer_events(|| {
            for Noted { db, place, name, image, .. } in &mut self.noted {
                let key = Key { bytes: &self.bytes[name.clone()], place: *place };
                match image.take() {
                    Some(image) => restore(access, *db, &key, image, &self.bytes),
                    None => {
                        // The event of this deletion is deferred, and dropped with the others.
                        access.db_at(*db, &key).remove(&key, false);
                    }
                }
            }
        });
        // Restores the statistics, and the invalidations that are not sent yet, to their state
        // before the run. Goes through the records in reverse order, because the first record of a
        // shard or key contains the state before the run.
        for Noted { db, place, name, tracking, changes, .. } in self.noted.iter().rev() {
            let key = Key { bytes: &self.bytes[name.clone()], place: *place };
            access.db_at(*db, &key).changes().set(*changes);
            access.shard(place.shard).observers.tracked.restore(place.hash, key.bytes, *tracking);
        }
        self.release(access, Watches::restore);
    }

    /// Commits the run: publishes the deferred events and raises the watches of changed keys. Must
    /// be called while the run's shards are still held.
    pub fn keep(&mut self, access: &mut impl HeldShards) {
        self.events.drain(..).for_each(|event| access.store().publish_deferred(&event));
        self.release(access, Watches::commit_held);
    }

    fn release(&mut self, access: &mut impl HeldShards, how: fn(&mut Watches, u32, &[u8], HeldWatches)) {
        for (index, held) in self.watches.drain(..) {
            let Noted { db, place, name, .. } = &self.noted[index as usize];
            how(&mut access.shard(place.shard).observers.watches, *db, &self.bytes[name.clone()], held);
        }
        self.clear();
    }

    /// Clears all records without a rollback.
    pub fn clear(&mut self) {
        if self.taken_bytes == 0 && self.bytes.is_empty() {
            return;
        }
        let entries = self.noted.capacity().max(self.events.capacity());
        if self.bytes.capacity() > KEPT_BYTES_MAX || entries > KEPT_ENTRIES_MAX {
            *self = Undo::default();
        } else {
            self.taken_bytes = 0;
            self.watches.clear();
            self.events.clear();
            self.bytes.clear();
            self.noted.clear();
            self.by_hash.clear();
        }
    }
}

/// Returns the state of a key, and the size of its value in bytes. If the value is stored inside
/// the key's dictionary entry, appends its bytes to `kept`.
fn image_of(
    access: &mut impl HeldShards,
    key: &Key<'_>,
    kept: &mut Vec<u8>,
) -> Result<Option<(Image, usize)>, TooLarge> {
    let mut keep = |bytes: &[u8]| {
        let start = kept.len();
        kept.extend_from_slice(bytes);
        start..kept.len()
    };
    let mut db = access.db_at(access.selected_db(), key);
    let Some(entry) = db.find(key) else { return Ok(None) };
    let (content, value_bytes) = match entry.held() {
        Held::Int(value) => (Content::Int(value), 0),
        Held::Bytes(bytes) | Held::Packed(_, bytes) if bytes.len() > UNDO_STRING_BYTES_MAX => return Err(TooLarge),
        Held::Bytes(bytes) => (Content::Bytes(keep(bytes)), bytes.len()),
        Held::Packed(form, bytes) => (Content::Packed(form, keep(bytes)), bytes.len()),
        Held::Heap(value) => {
            let value_bytes = value.allocated_bytes();
            let is_one_piece = matches!(value, Value::String(_));
            if value_bytes > if is_one_piece { UNDO_STRING_BYTES_MAX } else { UNDO_VALUE_BYTES_MAX } {
                return Err(TooLarge);
            }
            (Content::Heap(value.try_clone().map_err(|_| TooLarge)?), value_bytes)
        }
    };
    let image =
        Image { content, flags: entry.user_flags(), access: entry.access(), expire_at_ms: entry.expire_at_ms() };
    Ok(Some((image, value_bytes)))
}

fn restore(access: &mut impl HeldShards, db: u32, key: &Key<'_>, image: Image, kept: &[u8]) {
    let Image { content, flags, access: access_word, expire_at_ms } = image;
    let (payload, flags) = match content {
        Content::Int(value) => (NewPayload::Int(value), flags),
        Content::Heap(value) => (NewPayload::Heap(value), flags),
        Content::Bytes(range) => {
            let bytes = &kept[range];
            let string = if flags & FLAG_RAW != 0 { NewString::Raw(bytes) } else { NewString::Bytes(bytes) };
            payload_of(key, string).expect("a small value can be allocated")
        }
        Content::Packed(form, range) => {
            let bytes = &kept[range];
            if fits_inline(key.bytes, bytes.len()) {
                (NewPayload::Bytes(bytes), flags)
            } else {
                (NewPayload::Heap(Value::from_packed(form, bytes.to_vec())), 0)
            }
        }
    };
    let mut db = access.db_at(db, key);
    // On a replica, the restored TTL must not count as given by a client (`Watched::note_ttl`).
    // With `of_primary` set, it counts as given by the primary.
    db.of_primary |= db.store.tuning.is_replica();
    let expire = expire_at_ms.map_or(Expire::Clear, Expire::At);
    db.set_payload(key, payload, flags, expire, Change::silent(Silence::Loaded));
    if let Some(mut entry) = db.find_mut(key) {
        entry.set_access(access_word);
    }
}
