//! A value from one key to another: what `RENAME`, `MOVE` and `COPY` do.

use pantala_dict::{NewPayload, OwnedPayload};
use pantala_types::{OutOfMemory, PackedForm, Value, is_shared_integer};

use super::{
    Change, Db, Expire, FLAG_RAW, FLAG_UNSHARED, Held, Holds, NewString, fits_inline, payload_of, uncount_taken,
};
use crate::shard::access::{Access, Key};

/// A key in a database.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'k> {
    /// The database.
    pub db: u32,
    /// The key.
    pub key: Key<'k>,
}

/// A value on its own: its source and its destination may be in different shards.
struct Load {
    content: Content,
    flags: u8,
    access: u32,
    expire_at_ms: Option<i64>,
}

enum Content {
    Int(i64),
    Bytes(Vec<u8>),
    Packed(PackedForm, Vec<u8>),
    Heap(Value),
    /// Large and not copied: taken out of its key only when nothing can fail any more.
    Stays,
}

impl Access<'_> {
    /// Moves what `from` holds to `to`, over whatever is there, with its expiry and its access word.
    /// `to` is a new key, as in Redis, which deletes what is in the way. `left` is committed at
    /// `from`, and then `arrived` at `to`. `false`: there is no such key.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator refuses; nothing has changed then.
    pub fn move_value(
        &mut self,
        from: Spot<'_>,
        to: Spot<'_>,
        left: Change,
        arrived: Change,
    ) -> Result<bool, OutOfMemory> {
        let mut source = self.db_at(from.db, &from.key);
        let Some(mut load) = source.load(&from.key, false)? else { return Ok(false) };
        if let Content::Stays = load.content {
            // From here on nothing is refused: a large value is stored as it is.
            let Some(value) = source.take_heap(&from.key) else { return Ok(false) };
            load.content = Content::Heap(value);
        }
        let is_copied = !matches!(load.content, Content::Heap(_));
        let mut destination = self.db_at(to.db, &to.key);
        destination.unload(&to.key, load)?;
        // Publishes `new` before the events of the source. The last commit does the rest, so that
        // the source is invalidated before the destination, as in Redis.
        destination.commit(&to.key, Change::unnoticed().of_new_key(true));
        let mut source = self.db_at(from.db, &from.key);
        if is_copied {
            source.remove_unseen(&from.key, false, left);
        } else {
            source.commit(&from.key, left);
        }
        self.db_at(to.db, &to.key).commit(&to.key, arrived);
        Ok(true)
    }

    /// Copies what `from` holds to `to`, over whatever is there, with its expiry and its access word.
    /// `to` is a new key, as by [`Access::move_value`]. `false`: there is no such key.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator refuses; nothing has changed then.
    pub fn copy_value(&mut self, from: Spot<'_>, to: Spot<'_>, arrived: Change) -> Result<bool, OutOfMemory> {
        let Some(load) = self.db_at(from.db, &from.key).load(&from.key, true)? else { return Ok(false) };
        let mut destination = self.db_at(to.db, &to.key);
        destination.unload(&to.key, load)?;
        destination.commit(&to.key, arrived.of_new_key(true));
        Ok(true)
    }
}

impl Db<'_> {
    /// What a key holds: a copy, but for a large value unless `whole`.
    fn load(&mut self, key: &Key<'_>, whole: bool) -> Result<Option<Load>, OutOfMemory> {
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

    /// Takes a large value out of its key, which goes with it; the caller commits.
    fn take_heap(&mut self, key: &Key<'_>) -> Option<Value> {
        let figures = self.figures;
        let taken = self.find_mut(key)?.extract();
        uncount_taken(figures, &taken);
        match taken.payload {
            OwnedPayload::Heap(value) => Some(value),
            OwnedPayload::Bytes(_) | OwnedPayload::Int(_) => None,
        }
    }

    /// Gives a key this value, in place of whatever it held; the caller commits.
    fn unload(&mut self, key: &Key<'_>, load: Load) -> Result<(), OutOfMemory> {
        let Load { content, flags, access, expire_at_ms } = load;
        let bytes;
        let (payload, flags) = match content {
            Content::Int(value) => (NewPayload::Int(value), flags),
            Content::Heap(value) => (NewPayload::Heap(value), flags),
            Content::Bytes(copy) => {
                bytes = copy;
                let raw = flags & FLAG_RAW != 0;
                // It may move out of its entry, where the new key is the longer one.
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
            // `move_value` has replaced it by what it stands for.
            Content::Stays => return Ok(()),
        };
        self.store(key, payload, flags, expire_at_ms.map_or(Expire::Clear, Expire::At));
        // When it was last read moves with the value.
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
