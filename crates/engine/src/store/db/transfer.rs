//! Moves or copies a value from one key to another, for `RENAME`, `MOVE` and `COPY`.

use pantala_dict::{NewPayload, OwnedPayload};
use pantala_types::{OutOfMemory, PackedForm, Value, is_shared_integer};

use super::{Db, Expire, FLAG_RAW, FLAG_UNSHARED, Held, Holds, NewString, fits_inline, payload_of, uncount_taken};
use crate::command::Key;

/// A key in a database.
#[derive(Clone, Copy, Debug)]
pub struct DatabaseKey<'k> {
    /// The database.
    pub db: u32,
    /// The key.
    pub key: Key<'k>,
}

/// A value that was read at its source and is to be stored at its destination, perhaps in another
/// shard.
pub(crate) struct Load {
    pub(crate) content: Content,
    flags: u8,
    access: u32,
    expire_at_ms: Option<i64>,
}

pub(crate) enum Content {
    Int(i64),
    Bytes(Vec<u8>),
    Packed(PackedForm, Vec<u8>),
    Heap(Value),
    /// A value on the heap that is not copied. It stays at its source until the move can no longer
    /// fail.
    Stays,
}

impl Db<'_> {
    /// Returns the value of a key: a copy, or [`Content::Stays`] if it is on the heap and `whole`
    /// is false.
    pub(crate) fn load(&mut self, key: &Key<'_>, whole: bool) -> Result<Option<Load>, OutOfMemory> {
        let Some(entry) = self.find(key) else { return Ok(None) };
        let mut flags = entry.user_flags();
        let content = match entry.held() {
            Held::Int(value) => {
                if whole && is_shared_integer(value) {
                    flags |= FLAG_UNSHARED;
                }
                Content::Int(value)
            }
            Held::Bytes(bytes) => Content::Bytes(copied(bytes)?),
            Held::Packed(form, bytes) => Content::Packed(form, copied(bytes)?),
            Held::Heap(value) if whole => Content::Heap(value.try_clone()?),
            Held::Heap(_) => Content::Stays,
        };
        Ok(Some(Load { content, flags, access: entry.access(), expire_at_ms: entry.expire_at_ms() }))
    }

    /// Removes a key whose value is on the heap, and returns the value. The caller commits the
    /// change.
    pub(crate) fn take_heap(&mut self, key: &Key<'_>) -> Option<Value> {
        let db_stats = self.db_stats;
        let taken = self.find_mut(key)?.extract();
        uncount_taken(db_stats, &taken);
        match taken.payload {
            OwnedPayload::Heap(value) => Some(value),
            OwnedPayload::Bytes(_) | OwnedPayload::Int(_) => None,
        }
    }

    /// Stores a value at a key, replacing the key's value. The caller commits the change.
    pub(crate) fn unload(&mut self, key: &Key<'_>, load: Load) -> Result<(), OutOfMemory> {
        let Load { content, flags, access, expire_at_ms } = load;
        let bytes;
        let (payload, flags) = match content {
            Content::Int(value) => (NewPayload::Int(value), flags),
            Content::Heap(value) => (NewPayload::Heap(value), flags),
            Content::Bytes(copy) => {
                bytes = copy;
                let raw = flags & FLAG_RAW != 0;
                // The value no longer fits inside its entry if the new key is much longer.
                payload_of(key, if raw { NewString::Raw(&bytes) } else { NewString::Bytes(&bytes) })?
            }
            Content::Packed(form, copy) => {
                bytes = copy;
                if fits_inline(key.bytes, bytes.len()) {
                    (NewPayload::Bytes(&bytes), flags)
                } else {
                    (NewPayload::Heap(Value::from_packed(form, bytes)), 0)
                }
            }
            // Does not occur: `move_value` has replaced this variant by the value.
            Content::Stays => return Ok(()),
        };
        self.store(key, payload, flags, expire_at_ms.map_or(Expire::Clear, Expire::At));
        // The access word moves with the value.
        if let Some(mut entry) = self.find_mut(key) {
            entry.set_access(access);
        }
        Ok(())
    }
}

fn copied(bytes: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}
