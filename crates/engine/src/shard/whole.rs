//! All shards held by one thread, for writing and loading snapshots.
//!
//! A [`Whole`] is the view of all shards. A command that holds all shards gets one from
//! [`Access::whole`]. At the start of the server, before the workers run, [`Keyspace::whole`]
//! returns one. Commands that hold all shards read and write files through [`Storage`], which the
//! server implements.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, MutexGuard};

use pantala_dict::EntryRef;
use pantala_types::rdb_value::Loaded;
use pantala_types::{OutOfMemory, Value};

use crate::command::{Key, SessionView};
use crate::effect::log::{Start, Wake};
use crate::effect::{Reader, Which};
use crate::shard::access::Access;
use crate::shard::blocking::Blocking;
use crate::shard::keyspace::Keyspace;
use crate::shard::ownership::{Freed, Ownership};
use crate::store::db::{Change, Db, Expire, Silence};

/// Number of buckets per step of a walk. Its value hardly matters, because nothing else runs
/// between two steps.
const BUCKETS_PER_STEP: usize = 64;

/// Reads and writes files for commands that hold all shards.
pub trait Storage: Send + Sync {
    /// Runs `SAVE`: writes a snapshot, which replaces the last one.
    ///
    /// # Errors
    /// The complete error reply. The last snapshot still exists.
    fn save(&self, whole: &mut Whole<'_>) -> Result<(), &'static str>;

    /// Runs `BGSAVE`. With `schedules`, the snapshot may be started later.
    ///
    /// # Errors
    /// The complete error reply.
    fn save_in_background(&self, access: &mut Access<'_>, schedules: bool) -> Result<Background, &'static str>;

    /// Notes that `FLUSHALL` has emptied all databases.
    fn note_flushed(&self, whole: &mut Whole<'_>);

    /// Runs `DEBUG RELOAD`.
    ///
    /// # Errors
    /// The complete error reply. If the dataset was changed, the log says so.
    fn reload(&self, access: &mut Access<'_>, how: Reload) -> Result<(), String>;
}

/// Result of `BGSAVE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// A snapshot of the current dataset was started.
    Started,
    /// A snapshot will be started as soon as possible.
    Scheduled,
}

/// Options of `DEBUG RELOAD`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// `NOSAVE`: loads the existing file.
    pub no_save: bool,
    /// `NOFLUSH`: keeps the current keys.
    pub no_flush: bool,
    /// `MERGE`: keys and libraries of the file replace current ones.
    pub merge: bool,
}

/// All shards, held by one thread.
pub struct Whole<'a> {
    keyspace: &'a Keyspace,
    /// All shards, in order.
    owned: &'a mut [Ownership],
    now_ms: i64,
    /// Whether walks visit expired keys too.
    shows_expired: bool,
}

impl Access<'_> {
    /// Returns all shards. The command must hold them.
    ///
    /// # Panics
    /// If the command does not hold all shards.
    pub fn whole(&mut self) -> Whole<'_> {
        assert_eq!(self.owned.len(), self.keyspace.partition_count() as usize, "the command does not hold all shards");
        Whole { keyspace: self.keyspace, owned: self.owned, now_ms: self.now_ms, shows_expired: false }
    }
}

/// The panic message of functions that must not be called while workers run.
const BUSY: &str = "a worker already runs";

impl Keyspace {
    /// Returns the view of shards that a thread other than a worker holds.
    pub fn access<'a>(&'a self, session: &'a SessionView, owned: &'a mut [Ownership], now_ms: i64) -> Access<'a> {
        let (blocking, block) = (Blocking::Denied, None);
        Access { keyspace: self, session, owned, first_key: None, now_ms, blocking, block, is_unchanged: false }
    }

    /// Takes all shards before any worker runs.
    ///
    /// # Panics
    /// If a shard is held, because a worker already runs.
    pub fn take_all(&self) -> Vec<Ownership> {
        (0..self.partition_count()).map(|shard| self.gate(shard).try_take().expect(BUSY)).collect()
    }

    /// Releases all shards before any worker runs.
    ///
    /// # Panics
    /// If a shard has pending requests, because a worker already runs.
    pub fn release_all(&self, owned: Vec<Ownership>) {
        for ownership in owned {
            let freed = self.gate(ownership.shard()).free(ownership);
            assert!(matches!(freed, Freed::Free), "{BUSY}");
        }
    }

    /// Returns the view of all shards, which the caller holds. `now_ms` is Unix time.
    ///
    /// # Panics
    /// If `owned` lacks a shard.
    pub fn whole<'a>(&'a self, owned: &'a mut [Ownership], now_ms: i64) -> Whole<'a> {
        assert_eq!(owned.len(), self.partition_count() as usize, "a shard is missing");
        Whole { keyspace: self, owned, now_ms, shows_expired: false }
    }

    /// Calls `work` with all shards, before any worker runs. `now_ms` is Unix time.
    ///
    /// # Panics
    /// If a shard is held or has pending requests, because a worker already runs.
    #[cfg(test)]
    pub(crate) fn with_whole<R>(&self, now_ms: i64, work: impl FnOnce(&mut Whole<'_>) -> R) -> R {
        let mut owned = self.take_all();
        let result = work(&mut self.whole(&mut owned, now_ms));
        self.release_all(owned);
        result
    }
}

impl<'a> Whole<'a> {
    /// Returns the keyspace, for its settings and statistics.
    pub fn keyspace(&self) -> &'a Keyspace {
        self.keyspace
    }

    /// Starts a reader of one of the journal's logs at this point. The reader receives every unit
    /// (the effects of a command, transaction or script) that is committed after the shards are
    /// released, and none that was committed before. The reader is cut off when it is more than
    /// `bytes_max` bytes behind.
    ///
    /// The shards' clocks are raised to one stamp, the *cut*. Units with at most that stamp are
    /// before the cut. Later units are recorded, even if nothing was recorded until now. `PUBLISH`
    /// holds no shard, so it may be on either side of the cut, but not before earlier writes of its
    /// connection. The first argument is the lock of
    /// [`Journal::order_libraries`](crate::effect::journal::Journal::order_libraries), which the
    /// caller holds until it has copied the function libraries.
    ///
    /// # Errors
    /// The journal's thread cannot be started.
    pub fn cut_journal(
        &mut self,
        _order: &MutexGuard<'_, ()>,
        which: Which,
        bytes_max: Arc<AtomicU64>,
        wake: Wake,
    ) -> io::Result<Reader> {
        let (keyspace, journal) = (self.keyspace, self.keyspace.journal());
        let mut stamp = journal.epoch_floor().max(journal.latest_without_shards());
        for ownership in self.owned.iter_mut() {
            stamp = stamp.max(keyspace.shard(ownership).observers.pending.clock);
        }
        for ownership in self.owned.iter_mut() {
            keyspace.shard(ownership).observers.pending.clock = stamp;
        }
        journal.note_without_shards(stamp);
        let joined = journal.join(&keyspace.tuning, (which, Start::Cut(stamp)), bytes_max, wake)?;
        Ok(joined.expect("the present is always held"))
    }

    /// Returns the Unix time in ms, which is fixed while the shards are held.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Returns the number of databases.
    pub fn databases(&self) -> u32 {
        self.keyspace.databases()
    }

    /// Returns the number of keys of a database, and the number of its keys with a TTL. Expired
    /// keys that have not been deleted are included.
    pub fn size(&self, db: u32) -> (u64, u64) {
        self.keyspace.database_size(db)
    }

    /// Returns whether any hash has fields with a TTL.
    pub fn has_expiring_fields(&mut self) -> bool {
        let (keyspace, now_ms) = (self.keyspace, self.now_ms);
        (0..keyspace.databases()).any(|db| {
            let physical = keyspace.physical(db);
            self.owned.iter_mut().any(|ownership| {
                keyspace.db_stats(ownership.shard(), physical).timed_hashes.get() > 0
                    && database(keyspace, ownership, db, now_ms).has_expiring_fields()
            })
        })
    }

    /// Makes walks visit expired keys too.
    pub fn show_expired(&mut self) {
        self.shows_expired = true;
    }

    /// Calls `visit` with each entry of a database until `visit` returns `false`. Skips expired
    /// entries, unless [`Whole::show_expired`] was called.
    pub fn for_each(&mut self, db: u32, visit: &mut dyn FnMut(EntryRef<'_, Value>) -> bool) {
        (0..self.owned.len()).all(|at| self.walk(db, at, visit));
    }

    /// Walks one shard for [`Whole::for_each`]. Returns whether `visit` wants more.
    fn walk(&mut self, db: u32, at: usize, visit: &mut dyn FnMut(EntryRef<'_, Value>) -> bool) -> bool {
        let ownership = &mut self.owned[at];
        if self.keyspace.shard_size(db, ownership.shard()) == 0 {
            return true;
        }
        let as_of_ms = if self.shows_expired { i64::MIN } else { self.now_ms };
        let db = database(self.keyspace, ownership, db, as_of_ms);
        let (mut cursor, mut wants_more) = (0, true);
        loop {
            cursor = db.scan(cursor, BUCKETS_PER_STEP, &mut |entry| wants_more = wants_more && visit(entry));
            if cursor == 0 || !wants_more {
                return wants_more;
            }
        }
    }

    /// Returns all shards, in order.
    pub(crate) fn owned(&mut self) -> impl Iterator<Item = &mut Ownership> {
        self.owned.iter_mut()
    }

    /// Adds the memory of loaded values to the memory accounting, for `INFO` and `maxmemory`.
    pub fn measure(&mut self) {
        for ownership in self.owned.iter_mut() {
            self.keyspace.meter(ownership.shard(), self.keyspace.shard(ownership), None);
        }
    }

    /// Splits the shards into at most `count` parts, each to be filled by a thread.
    pub fn parts(&mut self, count: usize) -> Vec<Part<'_>> {
        let (keyspace, now_ms) = (self.keyspace, self.now_ms);
        let len = self.owned.len().div_ceil(count.max(1));
        self.owned.chunks_mut(len).map(|owned| Part { keyspace, owned, now_ms }).collect()
    }
}

/// Neighbouring shards that one thread fills. See [`Whole::parts`].
pub struct Part<'a> {
    keyspace: &'a Keyspace,
    owned: &'a mut [Ownership],
    now_ms: i64,
}

impl Part<'_> {
    /// Returns the lowest shard.
    pub fn first_shard(&self) -> u32 {
        self.owned[0].shard()
    }

    /// Returns whether a key exists, expired or not.
    ///
    /// # Panics
    /// If the key's shard is in another part.
    pub fn contains(&mut self, db: u32, key: &[u8]) -> bool {
        let key = self.key(key);
        self.db(db, &key).find_even_expired(&key).is_some()
    }

    /// Stores a value from a file. Raises watches of the key, but publishes no event and propagates
    /// nothing. Returns `false` and changes nothing if the key exists and `replaces` is not set.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails.
    ///
    /// # Panics
    /// If the key's shard is in another part.
    pub fn load(
        &mut self,
        db: u32,
        key: &[u8],
        loaded: Loaded<'_>,
        expire_at_ms: Option<i64>,
        access: Option<u32>,
        replaces: bool,
    ) -> Result<bool, OutOfMemory> {
        let key = self.key(key);
        let mut db = self.db(db, &key);
        if db.find_even_expired(&key).is_some() {
            if !replaces {
                return Ok(false);
            }
            db.remove_unseen(&key, false, Change::silent(Silence::Loaded));
        }
        // On a replica, a TTL from a file must not count as given by a client. With `of_primary`
        // set, it counts as given by the primary.
        db.of_primary |= db.store.tuning.is_replica();
        let expire = expire_at_ms.map_or(Expire::Clear, Expire::At);
        db.put_loaded(&key, loaded, expire, access, Change::silent(Silence::Loaded))?;
        Ok(true)
    }

    fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key { bytes, place: self.keyspace.place(bytes) }
    }

    fn db(&mut self, db: u32, key: &Key<'_>) -> Db<'_> {
        let ownership = &mut self.owned[(key.place.shard - self.owned[0].shard()) as usize];
        database(self.keyspace, ownership, db, self.now_ms)
    }
}

/// Returns a database of a shard. Lookups in it do not change access words (LRU and LFU data).
fn database<'a>(keyspace: &'a Keyspace, ownership: &'a mut Ownership, db: u32, now_ms: i64) -> Db<'a> {
    let shard = ownership.shard();
    Db::new(keyspace, keyspace.shard_stats(shard), keyspace.shard(ownership), shard, db, now_ms, true)
}
