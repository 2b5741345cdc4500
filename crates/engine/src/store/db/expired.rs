//! Decides what happens to an expired entry. A primary deletes it. On a replica the primary
//! decides.

use crate::tuning::Tuning;
use crate::tuning::refusal::Refusals;

/// What happens to an expired entry that a command finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// It is deleted.
    Deleted,
    /// It is hidden from the command and stays.
    Hidden,
    /// The command finds it, because it is the primary's, which has not deleted the key yet.
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
    if !tuning.is_replica() {
        return if tuning.is_paused(now_ms) { Expired::Hidden } else { Expired::Deleted };
    }
    match looks {
        _ if of_primary => Expired::Found,
        // As in Redis, a client of a writable replica replaces the expired key.
        Looks::ToWrite if !tuning.refusals().contains(Refusals::READ_ONLY) => Expired::Deleted,
        _ => Expired::Hidden,
    }
}
