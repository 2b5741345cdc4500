//! What becomes of an expired entry: on a primary it is deleted, on a replica that is up to the
//! primary.

use crate::tuning::Tuning;
use crate::tuning::refusal::Refusals;

/// What becomes of an expired entry that a command finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// It is deleted.
    Deleted,
    /// It is not found, but stays.
    Hidden,
    /// It is found: the command is the primary's, which has not deleted it yet.
    Found,
}

/// Why a command looks a key up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// To read it.
    ToRead,
    /// Perhaps to change it.
    ToWrite,
}

/// Returns what becomes of an expired entry.
#[cold]
pub(super) fn expired(tuning: &Tuning, of_primary: bool, looks: Looks, now_ms: i64) -> Expired {
    if !tuning.is_replica() {
        return if tuning.is_paused(now_ms) { Expired::Hidden } else { Expired::Deleted };
    }
    match looks {
        _ if of_primary => Expired::Found,
        // As in Redis, a client of a writable replica starts with a new one.
        Looks::ToWrite if !tuning.refusals().contains(Refusals::READ_ONLY) => Expired::Deleted,
        _ => Expired::Hidden,
    }
}
