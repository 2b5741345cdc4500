//! The view that a keyed command (one that runs on shards) has of the keyspace: the shards that it
//! holds, and the databases in them.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::Random;
use pantala_resp::Args;

use pantala_types::Collection;

use crate::clients::waiter::Block;
use crate::command::{Drawn, Handlers, Keyed};
pub use crate::command::{Key, KeyPlace, SessionView};
use crate::effect::change::Change;
use crate::events::notify::{Event, EventClass};
use crate::shard::blocking::Blocking;
use crate::shard::keyspace::Keyspace;
use crate::shard::ownership::Ownership;
use crate::store::Store;
use crate::store::databases::{DatabasesChange, change_databases};
use crate::store::db::{Db, Held, Holds, WrongType};
use crate::store::snapshot::keep_taken;
use crate::store::state::Shard;
use crate::store::undo::HeldShards;

/// A keyed command's view of the keyspace while it runs.
pub struct Access<'a> {
    pub(crate) keyspace: &'a Keyspace,
    pub(crate) session: &'a SessionView,
    pub(crate) owned: &'a mut [Ownership],
    pub(crate) first_key: Option<KeyPlace>,
    pub(crate) now_ms: i64,
    /// How the handler was called: whether it may block, and whether a changed key has woken it.
    pub(crate) blocking: Blocking<'a>,
    /// Set by the handler to block the command.
    pub(crate) block: Option<Block>,
    /// Whether the handler, an [`UndeterminedHandler`](crate::command::UndeterminedHandler), has
    /// reported that it changed nothing.
    pub(crate) is_unchanged: bool,
}

impl<'a> Access<'a> {
    /// Returns the Unix time in ms, which is the same throughout the command.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Returns whether a key with this deadline (Unix time in ms) must be deleted instead of
    /// stored. As in Redis, always returns `false` while the append-only file is loaded, and on a
    /// replica, whose primary deletes the key.
    pub fn is_past(&self, at_ms: i64) -> bool {
        at_ms <= self.now_ms && !self.session.of_primary && !self.keyspace.tuning.is_replica()
    }

    /// Returns the keyspace, for its settings and statistics.
    pub fn keyspace(&self) -> &'a Keyspace {
        self.keyspace
    }

    /// Returns a random number generator, seeded by the generator of the key's shard. The [`Drawn`]
    /// proves that the caller is an [`UndeterminedHandler`](crate::command::UndeterminedHandler),
    /// because no other handler can have one.
    pub fn random(&mut self, key: &Key<'_>, _: Drawn) -> Random {
        Random::from_seed(self.shard(key.place.shard).random.next_u64())
    }

    /// Returns the command's view of its connection.
    pub fn session(&self) -> &'a SessionView {
        self.session
    }

    /// Returns the maximum length of a string in bytes: `proto-max-bulk-len`. As in Redis, commands
    /// from a primary or an append-only file have no limit, because the server that ran them first
    /// has accepted them.
    pub fn string_bytes_max(&self) -> u64 {
        if self.session.of_primary { i64::MAX as u64 } else { self.keyspace.tuning.proto_max_bulk_len.load(Relaxed) }
    }

    /// Returns the key at `args[index]`, which must be a key that the command's route has declared.
    pub fn key<'k>(&self, args: &Args<'k>, index: usize) -> Key<'k> {
        let bytes = args.at(index);
        Key { bytes, place: self.keyspace.place(bytes) }
    }

    /// Returns the command's first key, at `args[index]`, like [`Access::key`]. Does not hash the
    /// key again.
    #[inline(always)]
    pub fn first_key<'k>(&self, args: &Args<'k>, index: usize) -> Key<'k> {
        let bytes = args.at(index);
        Key { bytes, place: self.first_key.unwrap_or_else(|| self.keyspace.place(bytes)) }
    }

    /// Prefetches the entry of a key in the selected database.
    #[inline]
    pub fn prefetch(&self, key: &Key<'_>) {
        self.keyspace.hint(self.session.db, key.place.shard).prefetch_entry(key.place.hash);
    }

    /// Returns the selected database, in the shard of `key`.
    #[inline]
    pub fn db(&mut self, key: &Key<'_>) -> Db<'_> {
        self.db_at(self.session.db, key)
    }

    /// Returns database `db` (below `Keyspace::databases`), in the shard of `key`.
    #[inline]
    pub fn db_at(&mut self, db: u32, key: &Key<'_>) -> Db<'_> {
        self.db_in(db, key.place.shard)
    }

    /// Returns database `db` of a shard that the command holds.
    ///
    /// # Panics
    /// If the command does not hold the shard, because its route and its handler disagree.
    #[inline(always)]
    pub fn db_in(&mut self, db: u32, shard: u32) -> Db<'_> {
        let (keyspace, now_ms, session) = (self.keyspace, self.now_ms, self.session);
        let cell = keyspace.cell(shard);
        let index = self.index_of(shard);
        let state = cell.state(&mut self.owned[index]);
        let mut db = Db::new(keyspace, cell.stats(), state, shard, db, now_ms, session.no_touch);
        db.of_primary = session.of_primary;
        db
    }

    /// Returns the collections of several keys for reading, with `None` for missing keys. Each
    /// lookup counts a hit or a miss and touches the key, as [`Db::read`] does.
    ///
    /// # Errors
    /// [`WrongType`] if one of the keys holds another type.
    pub fn views<C: Collection>(&mut self, keys: &[Key<'_>]) -> Result<Vec<Option<C::View<'_>>>, WrongType> {
        // The first pass deletes expired keys and updates access times, for which it needs the
        // shards mutably. The second pass needs only shared references.
        for key in keys {
            self.db(key).read_as::<C>(key)?;
        }
        let db = self.keyspace.physical(self.session.db);
        let found = keys.iter().map(|key| self.held_in(db, key)?.view::<C>());
        Ok(found.collect())
    }

    /// Returns the values of several keys for reading, with `None` for missing keys. Each lookup
    /// counts a hit or a miss and touches the key, as [`Db::read`] does. Stops after the first
    /// value for which `suits` returns false, because the command does not use any further value.
    pub fn held(&mut self, keys: &[Key<'_>], suits: fn(Held<'_>) -> bool) -> Vec<Option<Held<'_>>> {
        // As in `views`: the first pass needs the shards mutably, and the second only shared
        // references.
        for key in keys {
            if self.db(key).read(key).is_some_and(|entry| !suits(entry.held())) {
                break;
            }
        }
        let db = self.keyspace.physical(self.session.db);
        keys.iter().map(|key| self.held_in(db, key)).collect()
    }

    /// Returns the value of a key that was just read. `physical` is the index of the key's database
    /// in the shard's table of databases.
    fn held_in(&self, physical: usize, key: &Key<'_>) -> Option<Held<'_>> {
        let database = self.shard_ref(key.place.shard).databases.get(physical)?;
        let entry = database.dict.find(key.place.hash, key.bytes)?;
        // An expired key was deleted when it was read. But on a replica, and while writes are
        // paused, it still exists and is hidden here.
        let is_hidden = entry.expire_at_ms().is_some_and(|at_ms| at_ms <= self.now_ms)
            && self.keyspace.tuning.keeps_expired(self.now_ms)
            && !self.session.of_primary;
        (!is_hidden).then(|| Held::of(entry.payload(), entry.user_flags()))
    }

    /// Removes the destination key of a command whose result is empty. Returns whether the key
    /// existed.
    pub fn remove_destination(&mut self, key: &Key<'_>) -> bool {
        let lazy = self.keyspace.tuning.lazyfree_lazy_server_del.load(Relaxed);
        self.db(key).remove_unseen(key, lazy, Change::event(&Event(EventClass::Generic, "del")))
    }

    /// Swaps two databases (both below `Keyspace::databases`) for all clients. A swap of a
    /// database with itself is propagated and has no other effect.
    ///
    /// # Panics
    /// If the command does not hold all shards.
    pub fn swap_databases(&mut self, a: u32, b: u32) {
        self.assert_holds_all();
        change_databases(self.keyspace, self, self.now_ms, |access, permit| {
            if a == b {
                return DatabasesChange::SwappedWithItself;
            }
            access.keyspace.shard_stats(0).changes.add(1);
            access.keyspace.swap_databases(a, b, permit)
        });
    }

    /// Empties databases for all clients. Frees their content in the background if `lazy` is set.
    /// Does not mark watched keys as changed, because `EXEC` itself checks whether they still
    /// exist.
    ///
    /// # Panics
    /// If the command does not hold all shards.
    pub fn flush(&mut self, databases: Range<u32>, lazy: bool) {
        self.assert_holds_all();
        change_databases(self.keyspace, self, self.now_ms, |access, permit| {
            let keyspace = access.keyspace;
            let used: Vec<u32> = databases.filter(|&db| keyspace.is_used(db)).collect();
            for shard in access.shards() {
                for &db in &used {
                    if keyspace.shard_size(db, shard) > 0 {
                        let mut content = access.db_in(db, shard).flush(permit);
                        keyspace.detached.take_out(shard, keyspace.physical(db), &mut content);
                        // Entries that a running snapshot has not encoded yet are kept for the
                        // snapshot.
                        let garbage = keep_taken(access.shard(shard), keyspace.physical(db), content);
                        if let Some(garbage) = garbage.filter(|_| lazy) {
                            keyspace.dispose_dict(garbage);
                        }
                    }
                }
            }
            DatabasesChange::Flushed
        });
    }

    fn assert_holds_all(&self) {
        let all = self.keyspace.partition_count() as usize;
        assert_eq!(self.owned.len(), all, "a command changes whole databases without holding all shards");
    }

    /// Returns the numbers of the shards that the command holds, ascending.
    pub fn shards(&self) -> Vec<u32> {
        self.owned.iter().map(Ownership::shard).collect()
    }

    /// Returns the state of a held shard, for reading.
    ///
    /// # Panics
    /// If the command does not hold the shard.
    pub(crate) fn shard_ref(&self, shard: u32) -> &Shard {
        self.keyspace.shard_ref(&self.owned[self.index_of(shard)])
    }

    #[inline(always)]
    pub(crate) fn shard(&mut self, shard: u32) -> &mut Shard {
        let index = self.index_of(shard);
        self.keyspace.shard(&mut self.owned[index])
    }

    /// Returns the index of a shard in `owned`, which is sorted.
    #[inline(always)]
    fn index_of(&self, shard: u32) -> usize {
        // Nearly every command holds one shard.
        if self.owned[0].shard() == shard { 0 } else { self.index_among(shard) }
    }

    /// Does the work of [`Access::index_of`] for commands that hold several shards. Not inlined,
    /// because few commands hold several shards.
    #[inline(never)]
    fn index_among(&self, shard: u32) -> usize {
        // If all shards are held, the index of each is its number.
        if self.owned.get(shard as usize).is_some_and(|ownership| ownership.shard() == shard) {
            return shard as usize;
        }
        let found = self.owned.binary_search_by_key(&shard, Ownership::shard);
        found.expect("a handler uses only keys that its route declared")
    }
}

impl Keyed for Handlers {
    type Access<'a> = Access<'a>;
    type Keyspace = Keyspace;
}

impl HeldShards for Access<'_> {
    fn store(&self) -> &Store {
        self.keyspace
    }

    fn selected_db(&self) -> u32 {
        self.session.db
    }

    fn db_at(&mut self, db: u32, key: &Key<'_>) -> Db<'_> {
        Access::db_at(self, db, key)
    }

    fn shard(&mut self, number: u32) -> &mut Shard {
        Access::shard(self, number)
    }
}
