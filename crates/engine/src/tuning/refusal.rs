//! The reasons for which the server currently rejects commands from any client. Examples of
//! rejected commands are writes on a read-only replica, reads of data that may be stale, and
//! commands that need the dataset while it is being loaded.
//!
//! Commands check one bit of a word that they read anyway ([`Tuning::unchecked`]). If the bit is
//! set, the flags of each command are compared with the reasons (`pantala_session::access`).

use std::sync::atomic::Ordering::Relaxed;

use super::{LIMITED, REFUSES, Tuning};

bitflags::bitflags! {
    /// Reasons to reject commands.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Refusals: u32 {
        /// The server is a replica and `replica-read-only` is set.
        const READ_ONLY = 1 << 0;
        /// The server is a replica without a link to its primary, and `replica-serve-stale-data` is
        /// not set.
        const STALE = 1 << 1;
        /// The dataset of a primary is being loaded.
        const LOADING = 1 << 2;
        /// The append-only file cannot be written, because the disk is full.
        const DISK_FULL = 1 << 3;
        /// The append-only file cannot be written for another reason.
        const DISK_ERROR = 1 << 4;
        /// The last background snapshot failed, and `stop-writes-on-bgsave-error` is set.
        const UNSAVED = 1 << 5;
        /// Too few replicas acknowledge (`min-replicas-to-write`).
        const NO_REPLICAS = 1 << 8;
    }
}

/// The plain commands ([`Command::is_plain`](crate::command::Command::is_plain)) that run without
/// an individual check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchecked {
    /// All commands.
    All,
    /// Commands that do not write.
    Reads,
    /// No commands.
    None,
}

impl Tuning {
    /// Returns the plain commands that run without a check:
    ///
    /// - all, if memory is not limited and the server rejects no command;
    /// - reads, if memory is not limited and the server rejects only writes;
    /// - none in all other cases.
    #[inline]
    pub fn unchecked(&self) -> Unchecked {
        match self.events.load(Relaxed) & (LIMITED | REFUSES) {
            0 => Unchecked::All,
            bits => self.unchecked_of(bits),
        }
    }

    #[cold]
    fn unchecked_of(&self, bits: u32) -> Unchecked {
        let is_read_only = (Refusals::READ_ONLY | Refusals::NO_REPLICAS).contains(self.refusals());
        if bits & LIMITED == 0 && is_read_only { Unchecked::Reads } else { Unchecked::None }
    }

    /// Returns whether the server rejects some commands.
    #[inline]
    pub fn refuses(&self) -> bool {
        self.events.load(Relaxed) & REFUSES != 0
    }

    /// Returns the reasons for which the server rejects commands.
    pub fn refusals(&self) -> Refusals {
        Refusals::from_bits_retain(self.refusals.load(Relaxed))
    }

    /// Starts or stops rejecting commands for some reasons.
    pub fn set_refusals(&self, reasons: Refusals, is_set: bool) {
        // The lock keeps the bit `REFUSES` consistent with `refusals` if several threads change the
        // reasons at the same time.
        let _lock = self.pauses();
        let before = self.refusals();
        let after = if is_set { before | reasons } else { before - reasons };
        self.refusals.store(after.bits(), Relaxed);
        self.set_watched(REFUSES, !after.is_empty());
    }

    /// Returns whether the server is a replica. A replica deletes an expired key when its primary
    /// does, unless a client of the (writable) replica gave the key its TTL.
    #[inline]
    pub fn is_replica(&self) -> bool {
        self.is_replica.load(Relaxed)
    }

    /// Sets whether the server is a replica.
    pub fn set_replica(&self, is_replica: bool) {
        self.is_replica.store(is_replica, Relaxed);
    }

    /// Returns whether lookups hide expired keys instead of deleting them. They do so while writes
    /// are paused, and on a replica, which leaves the deletion to its primary. The caller must
    /// handle one exception: a client's write on a writable replica deletes the key.
    #[inline]
    pub fn keeps_expired(&self, now_ms: i64) -> bool {
        self.is_replica() || self.is_paused(now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stay_plain_on_a_read_only_replica() {
        let tuning = Tuning::new();
        assert_eq!(tuning.unchecked(), Unchecked::All);
        tuning.set_refusals(Refusals::READ_ONLY, true);
        assert_eq!(tuning.unchecked(), Unchecked::Reads);
        tuning.set_refusals(Refusals::STALE | Refusals::LOADING, true);
        assert_eq!(tuning.unchecked(), Unchecked::None);
        tuning.set_refusals(Refusals::STALE | Refusals::LOADING, false);
        tuning.set_limited(true);
        assert_eq!(tuning.unchecked(), Unchecked::None);
        tuning.set_refusals(Refusals::READ_ONLY, false);
        tuning.set_limited(false);
        assert_eq!((tuning.unchecked(), tuning.refuses()), (Unchecked::All, false));
    }
}
