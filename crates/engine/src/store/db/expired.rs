//! Decides what happens to an expired entry that a command finds. A primary deletes the entry, or
//! hides it while writes are paused. A replica hides the entry until its primary deletes the key.
//! But a client's write on a writable replica deletes the entry.

use super::{Db, forget};
use crate::command::Key;
use crate::effect::change::{Change, commit};
use crate::tuning::Tuning;
use crate::tuning::refusal::Refusals;

/// The treatment of an expired entry that a command finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// The entry is deleted.
    Deleted,
    /// The entry is hidden from the command, but not deleted.
    Hidden,
    /// The command finds the entry, because the primary (or the append-only file) sent the command
    /// and has not deleted the key yet.
    Found,
}

/// The purpose of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// Reading.
    ToRead,
    /// Possibly changing the key.
    ToWrite,
}

/// Returns what happens to an expired entry.
#[cold]
pub(super) fn expired(tuning: &Tuning, of_primary: bool, looks: Looks, now_ms: i64) -> Expired {
    if of_primary {
        // The sender is the primary or the append-only file being loaded. Its stream contains the
        // deletion of the key.
        return Expired::Found;
    }
    if !tuning.is_replica() {
        return if tuning.is_paused(now_ms) { Expired::Hidden } else { Expired::Deleted };
    }
    match looks {
        // As in Redis, a client's write on a writable replica deletes the expired key.
        Looks::ToWrite if !tuning.refusals().contains(Refusals::READ_ONLY) => Expired::Deleted,
        _ => Expired::Hidden,
    }
}

impl Db<'_> {
    /// Deletes a key that active expiry has found expired.
    pub(crate) fn expire_now(&mut self, key: &Key<'_>) {
        if let Some(removed) = self.dict.remove(key.place.hash, key.bytes) {
            forget(self.store, self.stats, self.db_stats, removed, self.now_ms);
            self.observers.note_expired(self.now_ms);
            commit(self.store, self.observers, self.db, key, Change::expired_actively());
        }
    }
}
