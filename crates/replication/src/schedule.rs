//! Decides when a full sync starts. Replicas that ask for data within a short time share one
//! snapshot.

/// Settings of full syncs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Whether snapshots are sent to replicas without being written to a file first
    /// (`repl-diskless-sync`).
    pub is_diskless: bool,
    /// Time for which a diskless snapshot waits for more replicas (`repl-diskless-sync-delay`), s.
    pub delay_s: u64,
    /// Number of waiting replicas at which the snapshot starts at once
    /// (`repl-diskless-sync-max-replicas`). 0 means no limit.
    pub replicas_max: u64,
}

/// A replica that waits for a snapshot to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Time that the replica has waited, ms.
    pub since_ms: i64,
    /// Whether the replica can detect the end of a snapshot by a mark.
    pub finds_mark: bool,
}

impl Schedule {
    /// Returns whether the snapshot for these replicas is sent directly, without being written to a
    /// file first. Two conditions must hold. First, `repl-diskless-sync` is set, or the snapshot
    /// has only a part of the dataset (`is_filtered`). Second, all replicas can detect the
    /// snapshot's end by a mark.
    #[must_use]
    pub fn is_direct(&self, waiting: &[Waiting], is_filtered: bool) -> bool {
        (self.is_diskless || is_filtered) && waiting.iter().all(|replica| replica.finds_mark)
    }

    /// Returns whether a snapshot for these replicas starts now.
    #[must_use]
    pub fn is_due(&self, waiting: &[Waiting]) -> bool {
        let Some(longest_ms) = waiting.iter().map(|replica| replica.since_ms).max() else { return false };
        !self.is_diskless
            || waiting.iter().any(|replica| !replica.finds_mark)
            || longest_ms >= self.delay_s.saturating_mul(1000) as i64
            || self.replicas_max > 0 && waiting.len() as u64 >= self.replicas_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISKLESS: Schedule = Schedule { is_diskless: true, delay_s: 5, replicas_max: 3 };

    fn waiting(count: usize, since_ms: i64) -> Vec<Waiting> {
        vec![Waiting { since_ms, finds_mark: true }; count]
    }

    #[test]
    fn a_diskless_snapshot_waits_for_further_replicas() {
        assert!(!DISKLESS.is_due(&[]));
        assert!(!DISKLESS.is_due(&waiting(1, 4999)));
        assert!(DISKLESS.is_due(&waiting(1, 5000)));
        assert!(!DISKLESS.is_due(&waiting(2, 0)));
        assert!(DISKLESS.is_due(&waiting(3, 0)));
        assert!(!Schedule { replicas_max: 0, ..DISKLESS }.is_due(&waiting(9, 0)));
        assert!(Schedule { delay_s: 0, ..DISKLESS }.is_due(&waiting(1, 0)));
    }

    #[test]
    fn replicas_without_a_mark_need_not_wait() {
        let with_disk = Schedule { is_diskless: false, ..DISKLESS };
        assert!(with_disk.is_due(&waiting(1, 0)) && !with_disk.is_direct(&waiting(1, 0), false));
        assert!(with_disk.is_direct(&waiting(1, 0), true));
        let old = [Waiting { since_ms: 0, finds_mark: false }, Waiting { since_ms: 0, finds_mark: true }];
        assert!(DISKLESS.is_due(&old) && !DISKLESS.is_direct(&old, false));
        assert!(DISKLESS.is_direct(&waiting(2, 0), false));
    }
}
