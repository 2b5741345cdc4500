//! Moves and copies values from one key to another, possibly between shards.
//! [`crate::effect::change`] explains changes, their commits and their sinks.

use pantala_types::OutOfMemory;
use pantala_types::rdb_value::cut_id;

use crate::effect::change::Change;
use crate::shard::access::Access;
use crate::store::db::DatabaseKey;
use crate::store::db::transfer::Content;

impl Access<'_> {
    /// Moves the value of `from` to `to` with its TTL and access word (LRU or LFU data), replacing
    /// any value at `to`. `to` counts as a new key, because Redis deletes a former key `to` first.
    /// Commits the change `left` at `from`, and then the change `arrived` at `to`. Returns `false`
    /// if `from` is missing.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. Nothing has changed then.
    pub fn move_value(
        &mut self,
        from: DatabaseKey<'_>,
        to: DatabaseKey<'_>,
        left: Change,
        arrived: Change,
    ) -> Result<bool, OutOfMemory> {
        let mut source = self.db_at(from.db, &from.key);
        let Some(mut load) = source.load(&from.key, false)? else { return Ok(false) };
        if let Content::Stays = load.content {
            // Nothing can fail from now on, because a large value is stored unchanged.
            let Some(value) = source.take_heap(&from.key) else { return Ok(false) };
            load.content = Content::Heap(value);
        }
        let cut = if let Content::Heap(value) = &load.content { cut_id(value) } else { None };
        let is_copied = !matches!(load.content, Content::Heap(_));
        let mut destination = self.db_at(to.db, &to.key);
        destination.unload(&to.key, load)?;
        if let Some(cut) = cut {
            // A snapshot continues to read the value at its new key.
            self.keyspace.detached.follow(cut, self.keyspace.physical(to.db), &to.key);
            self.keyspace.call_walkers();
        }
        let mut destination = self.db_at(to.db, &to.key);
        // Publishes the event `new` of the destination before the events of the source. The last
        // commit notifies all other sinks of the destination, so that the source is invalidated
        // before the destination, as in Redis.
        destination.commit(&to.key, Change::key_added());
        let mut source = self.db_at(from.db, &from.key);
        if is_copied {
            source.remove_unseen(&from.key, false, left);
        } else {
            source.commit(&from.key, left);
        }
        self.db_at(to.db, &to.key).commit(&to.key, arrived);
        Ok(true)
    }

    /// Copies the value of `from` to `to` with its TTL and access word (LRU or LFU data), replacing
    /// any value at `to`. `to` counts as a new key, as in [`Access::move_value`]. Returns `false`
    /// if `from` is missing.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. Nothing has changed then.
    pub fn copy_value(
        &mut self,
        from: DatabaseKey<'_>,
        to: DatabaseKey<'_>,
        arrived: Change,
    ) -> Result<bool, OutOfMemory> {
        let Some(load) = self.db_at(from.db, &from.key).load(&from.key, true)? else { return Ok(false) };
        let mut destination = self.db_at(to.db, &to.key);
        destination.unload(&to.key, load)?;
        destination.commit(&to.key, arrived.of_new_key(true));
        Ok(true)
    }
}
