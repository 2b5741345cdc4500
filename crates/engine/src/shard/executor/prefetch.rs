//! Prefetches members of a collection for consecutive commands on the same key.

use pantala_dict::Payload;

use crate::command::Key;
use crate::shard::executor::Executor;

impl Executor<'_> {
    /// Prefetches the data that commands on members or fields of one key's collection will read, if
    /// the collection is large. Called before several such commands run, so that their cache misses
    /// overlap. Does nothing if the shard is busy.
    pub fn prefetch_members<'m>(&mut self, db: u32, key: &Key<'_>, members: impl Iterator<Item = &'m [u8]>) {
        let Some(ownership) = self.try_take(key.place.shard) else { return };
        let physical = self.keyspace.physical(db);
        let shard = self.keyspace.shard_ref(&ownership);
        if let Some(database) = shard.databases.get(physical)
            && let Some(entry) = database.dict.find(key.place.hash, key.bytes)
            && let Payload::Heap(value) = entry.payload()
        {
            value.prefetch(members);
        }
        self.free(ownership);
    }
}
