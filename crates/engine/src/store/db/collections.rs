//! Collections in a database, packed inside an entry or on the heap: lookups, changes, stores.

use pantala_dict::{EntryMut, NewPayload};
use pantala_types::collection::{Collection, INLINE_PACKED_BYTES_MAX};
use pantala_types::rdb_value::{Writer, write};
use pantala_types::{Hash, List, Set, SortedSet, Stream, Value};

use super::{Change, Db, Expire, Held, Holds, WrongType, fits_inline, uncount};
use crate::command::Key;
use crate::effect::change::{CHECKED_BYTES_MAX, UNREPORTED_CHANGE};
use crate::store::Store;
use crate::store::state::DatabaseStats;

/// How to change a collection if its key is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Starts with an empty collection.
    Create,
    /// Does nothing.
    Skip,
}

/// A collection whose elements have no TTLs. Hashes do not qualify, because their fields may have
/// TTLs. A hash is changed by [`Db::change_hash`], which first deletes expired fields:
///
/// ```compile_fail,E0277
/// use pantala_engine::access::Key;
/// use pantala_engine::db::{Change, Db, Missing};
/// use pantala_types::Hash;
///
/// fn clear(db: &mut Db<'_>, key: &Key<'_>) {
///     let _ = db.change_as(key, Missing::Skip, |hash: &mut Hash| (Change::none(), ()));
/// }
/// ```
pub trait Timeless: Collection {}

impl Timeless for List {}
impl Timeless for Set {}
impl Timeless for SortedSet {}
impl Timeless for Box<Stream> {}

impl Db<'_> {
    /// Returns the collection of a key for reading. Counts a hit or a miss and touches the key, as
    /// [`Db::read`] does.
    ///
    /// # Errors
    /// [`WrongType`] if the key holds another type.
    #[inline]
    pub fn read_as<C: Collection>(&mut self, key: &Key<'_>) -> Result<Option<C::View<'_>>, WrongType> {
        let Some(entry) = self.read(key) else { return Ok(None) };
        entry.held().view::<C>().map(Some).ok_or(WrongType)
    }

    /// Returns the collection of a key for a command that may change it. Touches the key without
    /// counting, as [`Db::write`] does.
    ///
    /// # Errors
    /// [`WrongType`] if the key holds another type.
    #[inline]
    pub fn write_as<C: Collection>(&mut self, key: &Key<'_>) -> Result<Option<C::View<'_>>, WrongType> {
        let Some(entry) = self.write(key) else { return Ok(None) };
        entry.held().view::<C>().map(Some).ok_or(WrongType)
    }

    /// Changes the collection of a key. `work` returns the change and a result. A collection that
    /// becomes empty is deleted with its key, and the event `del` follows the events of the change.
    /// The key's TTL remains. Returns `None` if the key is missing and `missing` is
    /// [`Missing::Skip`].
    ///
    /// Nothing is rolled back, so `work` must leave the collection valid, whatever it returns. If
    /// `work` returns [`Change::none`], it must not have changed the collection. Debug builds check
    /// this for small collections.
    ///
    /// # Errors
    /// [`WrongType`] if the key holds another type. `work` is not called then.
    #[inline]
    pub fn change_as<C: Timeless, K: Into<Option<Change>>, R>(
        &mut self,
        key: &Key<'_>,
        missing: Missing,
        work: impl FnOnce(&mut C) -> (K, R),
    ) -> Result<Option<R>, WrongType> {
        self.change_collection(key, missing, work)
    }

    /// Changes any collection, like [`Db::change_as`]. The caller has deleted expired fields.
    #[inline]
    pub(crate) fn change_collection<C: Collection, K: Into<Option<Change>>, R>(
        &mut self,
        key: &Key<'_>,
        missing: Missing,
        work: impl FnOnce(&mut C) -> (K, R),
    ) -> Result<Option<R>, WrongType> {
        let (store, db_stats) = (self.store, self.db_stats);
        let mut scratch = std::mem::take(self.scratch);
        let Some(mut entry) = self.write_mut(key) else {
            *self.scratch = scratch;
            if missing == Missing::Skip {
                return Ok(None);
            }
            let mut collection = C::empty();
            let (change, result) = work(&mut collection);
            if let Some(change) = change.into()
                && !collection.is_empty()
            {
                self.put(key, collection, Expire::Clear, change);
            }
            return Ok(Some(result));
        };
        let form = match entry.as_ref().held() {
            Held::Packed(form, bytes) => {
                scratch.clear();
                scratch.extend_from_slice(bytes);
                form
            }
            Held::Heap(_) => {
                let done = change_on_heap(store, entry, db_stats, work);
                *self.scratch = scratch;
                let HeapChange { change, result, has_first_times } = done?;
                if has_first_times {
                    self.watched.add(key.bytes, db_stats);
                }
                if let Some(change) = change {
                    self.commit(key, change);
                }
                return Ok(Some(result));
            }
            Held::Int(_) | Held::Bytes(_) => {
                *self.scratch = scratch;
                return Err(WrongType);
            }
        };
        let mut collection = match C::from_packed(form, scratch) {
            Ok(collection) => collection,
            Err(back) => {
                *self.scratch = back;
                return Err(WrongType);
            }
        };
        let (change, result) = work(&mut collection);
        let Some(change) = change.into() else {
            debug_assert!(
                matches!((entry.as_ref().held(), collection.packed()), (Held::Packed(_, was), Some((_, is))) if was == is),
                "{UNREPORTED_CHANGE}"
            );
            *self.scratch = collection.into_packed().unwrap_or_default();
            return Ok(Some(result));
        };
        let is_deleted = collection.is_empty();
        if is_deleted {
            uncount(db_stats, &entry.remove());
            *self.scratch = collection.into_packed().unwrap_or_default();
        } else {
            match collection.packed() {
                Some((form, bytes))
                    if bytes.len() <= INLINE_PACKED_BYTES_MAX && fits_inline(key.bytes, bytes.len()) =>
                {
                    entry.replace(NewPayload::Bytes(bytes), form as u8);
                    *self.scratch = collection.into_packed().unwrap_or_default();
                }
                _ => {
                    let value = collection.into_value();
                    db_stats.heap_bytes.add(value.allocated_bytes() as u64);
                    let has_times = has_times(&value);
                    entry.replace(NewPayload::Heap(value), 0);
                    if has_times {
                        self.watched.add(key.bytes, db_stats);
                    }
                }
            }
        }
        self.commit(key, change.of_deleted_key(is_deleted));
        Ok(Some(result))
    }

    /// Stores a collection, replacing the key's value. Only a stream may be empty.
    pub fn put<C: Collection>(&mut self, key: &Key<'_>, collection: C, expire: Expire, change: Change) {
        match collection.packed() {
            Some((form, bytes)) if bytes.len() <= INLINE_PACKED_BYTES_MAX && fits_inline(key.bytes, bytes.len()) => {
                self.set_payload(key, NewPayload::Bytes(bytes), form as u8, expire, change);
            }
            _ => self.set_payload(key, NewPayload::Heap(collection.into_value()), 0, expire, change),
        }
    }
}

/// The result of changing a value on the heap.
struct HeapChange<R> {
    change: Option<Change>,
    result: R,
    /// Whether the value is a hash that had no fields with a TTL before and has some now. Active
    /// expiry must then visit the hash.
    has_first_times: bool,
}

/// Does the work of [`Db::change_as`] for a value on the heap, which is changed in place.
#[inline]
fn change_on_heap<C: Collection, K: Into<Option<Change>>, R>(
    store: &Store,
    mut entry: EntryMut<'_, Value>,
    db_stats: &DatabaseStats,
    work: impl FnOnce(&mut C) -> (K, R),
) -> Result<HeapChange<R>, WrongType> {
    let Some(value) = entry.heap_mut() else { return Err(WrongType) };
    let (had_times, image_before) = (has_times(value), image(value));
    let Some(collection) = C::of_mut(value) else { return Err(WrongType) };
    let before = collection.allocated_bytes();
    let (change, result) = work(collection);
    let change: Option<Change> = change.into();
    let after = collection.allocated_bytes();
    let is_deleted = collection.is_empty() && change.is_some();
    db_stats.heap_bytes.sub(before as u64);
    db_stats.heap_bytes.add(after as u64);
    let has_first_times = !had_times && has_times(value);
    debug_assert!(change.is_some() || image_before.is_none() || image_before == image(value), "{UNREPORTED_CHANGE}");
    if is_deleted {
        let removed = entry.remove();
        uncount(db_stats, &removed);
        removed.into_heap().into_iter().for_each(|value| store.dispose(value, false));
    }
    let change = change.map(|change| change.of_deleted_key(is_deleted));
    Ok(HeapChange { change, result, has_first_times })
}

/// Returns the RDB form of a small value, which debug builds compare to detect changes.
#[inline]
fn image(value: &Value) -> Option<Vec<u8>> {
    if !cfg!(debug_assertions) || value.allocated_bytes() > CHECKED_BYTES_MAX {
        return None;
    }
    let mut bytes = Vec::new();
    write(Held::Heap(value).to_write()?, &mut Writer::new(&mut bytes, false));
    Some(bytes)
}

/// Returns whether a value is a hash with fields that have a TTL.
#[inline]
fn has_times(value: &Value) -> bool {
    matches!(value, Value::Hash(hash @ Hash::Expiring(_)) if hash.view().has_expiring_fields())
}
