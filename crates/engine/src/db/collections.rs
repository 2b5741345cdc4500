//! Collections in a database, whether they are packed inside an entry or stand on the heap: looked at, changed, stored.

use pantala_dict::{EntryMut, NewPayload};
use pantala_types::Value;
use pantala_types::collection::{Collection, INLINE_PACKED_BYTES_MAX};

use super::{Db, Expire, Held, WrongType, fits_inline, uncount};
use crate::access::Key;
use crate::shard::DatabaseStats;

/// What becomes of a change to a collection whose key doesn't exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// It works on an empty one.
    Create,
    /// It isn't called.
    Skip,
}

impl Db<'_> {
    /// The collection that a key holds, for reading: counts a hit or a miss and touches it, as [`Db::read`].
    ///
    /// # Errors
    /// [`WrongType`] when the key holds something else.
    #[inline]
    pub fn read_as<C: Collection>(&mut self, key: &Key<'_>) -> Result<Option<C::View<'_>>, WrongType> {
        let Some(entry) = self.read(key) else { return Ok(None) };
        let entry = entry.into_ref();
        Held::of(entry.payload(), entry.user_flags()).view::<C>().map(Some).ok_or(WrongType)
    }

    /// The collection that a key holds, as a command looks at it before it changes something: touches it and counts nothing,
    /// as [`Db::write`].
    ///
    /// # Errors
    /// [`WrongType`] when the key holds something else.
    #[inline]
    pub fn write_as<C: Collection>(&mut self, key: &Key<'_>) -> Result<Option<C::View<'_>>, WrongType> {
        let Some(entry) = self.write(key) else { return Ok(None) };
        let entry = entry.into_ref();
        Held::of(entry.payload(), entry.user_flags()).view::<C>().map(Some).ok_or(WrongType)
    }

    /// Changes the collection that a key holds. `change` says whether it changed anything, and gives a result; what it leaves
    /// empty is removed with its key. Its expiry stays. `None`: there is no such key, and `missing` says to skip it.
    ///
    /// `change` must leave the collection whole, whatever it answers: nothing is undone. What it changes of a value on the heap
    /// stays, though it says that it changed nothing; then nobody is told.
    ///
    /// # Errors
    /// [`WrongType`] when the key holds something else; `change` isn't called.
    #[inline]
    pub fn change_as<C: Collection, R>(
        &mut self,
        key: &Key<'_>,
        missing: Missing,
        change: impl FnOnce(&mut C) -> (bool, R),
    ) -> Result<Option<R>, WrongType> {
        let figures = self.figures;
        let mut scratch = std::mem::take(self.scratch);
        let Some(mut entry) = self.write(key) else {
            *self.scratch = scratch;
            if missing == Missing::Skip {
                return Ok(None);
            }
            let mut collection = C::empty();
            let (changed, result) = change(&mut collection);
            if changed && !collection.is_empty() {
                self.put(key, collection, Expire::Clear);
            }
            return Ok(Some(result));
        };
        let form = match Held::of(entry.payload(), entry.user_flags()) {
            Held::Packed(form, bytes) => {
                scratch.clear();
                scratch.extend_from_slice(bytes);
                form
            }
            Held::Heap(_) => {
                let done = change_on_heap(entry, figures, change);
                *self.scratch = scratch;
                let (changed, result) = done?;
                if changed {
                    self.modified(key);
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
        let (changed, result) = change(&mut collection);
        if !changed {
            *self.scratch = collection.into_packed().unwrap_or_default();
        } else if collection.is_empty() {
            uncount(figures, &entry.remove());
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
                    figures.heap_bytes.add(value.allocated_bytes() as u64);
                    entry.replace(NewPayload::Heap(value), 0);
                }
            }
        }
        if changed {
            self.modified(key);
        }
        Ok(Some(result))
    }

    /// Stores a collection in place of whatever the key held. It must not be empty (but for a stream).
    pub fn put<C: Collection>(&mut self, key: &Key<'_>, collection: C, expire: Expire) {
        match collection.packed() {
            Some((form, bytes)) if bytes.len() <= INLINE_PACKED_BYTES_MAX && fits_inline(key.bytes, bytes.len()) => {
                self.set_payload(key, NewPayload::Bytes(bytes), form as u8, expire);
            }
            _ => self.set_payload(key, NewPayload::Heap(collection.into_value()), 0, expire),
        }
    }
}

/// [`Db::change_as`] for a value on the heap, which is changed in place.
#[inline]
fn change_on_heap<C: Collection, R>(
    mut entry: EntryMut<'_, Value>,
    figures: &DatabaseStats,
    change: impl FnOnce(&mut C) -> (bool, R),
) -> Result<(bool, R), WrongType> {
    let Some(collection) = entry.heap_mut().and_then(C::of_mut) else { return Err(WrongType) };
    let before = collection.allocated_bytes();
    let (changed, result) = change(collection);
    let after = collection.allocated_bytes();
    let empty = collection.is_empty();
    figures.heap_bytes.sub(before as u64);
    figures.heap_bytes.add(after as u64);
    if changed && empty {
        uncount(figures, &entry.remove());
    }
    Ok((changed, result))
}
