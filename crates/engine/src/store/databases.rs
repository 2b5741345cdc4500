//! Changes of whole databases (`FLUSHALL`, `FLUSHDB`, `SWAPDB`), and the single place that notifies
//! the sinks of such changes. [`crate::effect::change`] does the same for changes of single keys.
//!
//! The functions that replace the content of a database require a [`Permit`]. A permit exists only
//! within [`change_databases`], which then notifies the sinks of the change that its closure
//! returns. So code that replaces a database elsewhere, and notifies no sink, does not compile.
//! Each change makes all published values outdated ([`crate::effect::published`]).
//!
//! | kind | blocked clients | `WATCH` | tracking | journal |
//! | --- | --- | --- | --- | --- |
//! | flushed | woken ([`Db::flush`]) | not raised: `EXEC` checks whether keys still exist | all keys invalidated | the command |
//! | swapped | woken | raised, unless the key was missing and still is | – | the command |
//! | swapped with itself | – | – | – | the command |

use pantala_dict::Dict;
use pantala_types::Value;

use crate::store::Store;
use crate::store::db::Db;
use crate::store::fields::Watched;
use crate::store::state::Shard;
use crate::store::undo::HeldShards;

/// A change of whole databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DatabasesChange {
    /// Databases were emptied.
    Flushed,
    /// Two databases were swapped.
    Swapped(u32, u32),
    /// A database was swapped with itself.
    SwappedWithItself,
}

/// Permission to change whole databases. See the head of this module.
pub(crate) struct Permit(());

/// Calls `change`, which changes whole databases and returns the kind of change. Then notifies the
/// sinks of this change. All shards must be held.
pub(crate) fn change_databases<H: HeldShards>(
    store: &Store,
    held: &mut H,
    now_ms: i64,
    change: impl FnOnce(&mut H, &Permit) -> DatabasesChange,
) {
    if store.published.get() > 0 {
        (0..store.partition_count()).for_each(|shard| held.shard(shard).observers.watches.published().outdate_all());
    }
    match change(held, &Permit(())) {
        DatabasesChange::Flushed => {
            let tracking = store.tracking();
            if tracking.keys() > 0 || tracking.clients() > 0 {
                (0..store.partition_count()).for_each(|shard| held.shard(shard).observers.tracked.flush());
            }
        }
        DatabasesChange::Swapped(a, b) => {
            for shard in 0..store.partition_count() {
                let Shard { observers, databases, .. } = held.shard(shard);
                for db in [a, b] {
                    observers.note_all(db);
                    let content = databases.get(store.physical(db));
                    // An expired key counts as missing.
                    observers.watches.replaced(db, |key| {
                        let found = content.and_then(|content| content.dict.find(store.place(key).hash, key));
                        found.is_some_and(|entry| entry.expire_at_ms().is_none_or(|at_ms| at_ms > now_ms))
                    });
                }
            }
        }
        DatabasesChange::SwappedWithItself => {}
    }
    if store.tuning.is_journaled() {
        // The lowest shard of a command records the command's own effect.
        held.shard(0).observers.pending.is_changed = true;
    }
}

impl Db<'_> {
    /// Empties the database and returns its content.
    /// [`Access::flush`](crate::shard::access::Access::flush) does the rest of a flush.
    pub(crate) fn flush(&mut self, _: &Permit) -> Dict<Value> {
        let old = self.dict.take();
        self.changes().add(old.len() as u64);
        let stats = self.db_stats;
        for counter in [&stats.keys, &stats.expires, &stats.ttl_sum_ms, &stats.ttl_samples, &stats.timed_hashes] {
            counter.set(0);
        }
        *self.watched = Watched::default();
        stats.heap_bytes.set(0);
        stats.dict_bytes.set(self.dict.allocated_bytes() as u64);
        self.observers.note_all(self.db);
        old
    }
}
