//! Freed memory is returned to the kernel: on `MEMORY PURGE`, and within a second of a large free.
//!
//! The allocator keeps what was freed, each thread in its own heap, and returns it only while it is
//! asked for more. So each worker purges its own heap, when it is sent
//! [`Message::Purge`](pantala_engine::message::Message::Purge). The first worker compares, a few
//! times a second, resident memory with the memory accounted for; where the former is larger by
//! more than a share of the latter, it sends that message to all. A purge that finds nothing is
//! repeated after twice the time, so that fragmented memory costs next to nothing.
//!
//! Commands don't pay for any of this: it is part of the periodic work.

use pantala_base::allocator;
use pantala_engine::client::Host;

use crate::host::Server;
use crate::process;

/// The resident memory, bytes, from which on new arenas of the allocator are looked for at each
/// doubling: the first has 1 GiB.
const HUGE_PAGES_FROM_BYTES: u64 = 512 * 1024 * 1024;

/// How often resident memory is looked at, ms.
const WATCH_MS: i64 = 200;

/// Resident memory may exceed the memory accounted for by so much, bytes, and by a part of it: a
/// twentieth.
const UNUSED_BYTES_MAX: u64 = 8 * 1024 * 1024;
const UNUSED_SHARE: u64 = 20;

/// How long after a purge that didn't change much the next one comes at least, and how long that
/// may become, ms.
const REPEAT_MS: i64 = 2 * WATCH_MS;
const REPEAT_MS_MAX: i64 = 64_000;

/// Decides when a purge is due.
#[derive(Default)]
pub(super) struct Watch {
    next_look_ms: i64,
    /// What was resident and not accounted for before the last purge, bytes; 0: there is nothing to
    /// purge.
    level_bytes: u64,
    next_purge_ms: i64,
    repeat_ms: i64,
    /// What was resident when the kernel was last asked to use huge pages, bytes.
    huge_pages_at_bytes: u64,
}

impl Watch {
    /// A few times a second, on the first worker: has all workers purge where that is due.
    pub(super) fn look(&mut self, server: &Server, now_ms: i64) {
        if now_ms < self.next_look_ms {
            return;
        }
        self.next_look_ms = now_ms + WATCH_MS;
        // What scripts take is known when they end, and what is being freed isn't resident for long.
        if server.scripting().is_running() || server.keyspace().lazy_free().pending() > 0 {
            return;
        }
        let Some(resident_bytes) = process::resident_bytes() else { return };
        if resident_bytes >= HUGE_PAGES_FROM_BYTES.max(2 * self.huge_pages_at_bytes) {
            self.huge_pages_at_bytes = resident_bytes;
            allocator::place_huge_pages();
        }
        if self.is_due(resident_bytes, server.accounted_bytes(), now_ms) {
            server.purge_memory();
        }
    }

    /// Whether to purge, where so much is resident and so much is accounted for, bytes.
    fn is_due(&mut self, resident_bytes: u64, used_bytes: u64, now_ms: i64) -> bool {
        let slack_bytes = UNUSED_BYTES_MAX + used_bytes / UNUSED_SHARE;
        let unused_bytes = resident_bytes.saturating_sub(used_bytes);
        if unused_bytes <= slack_bytes {
            self.level_bytes = 0;
            return false;
        }
        if unused_bytes.abs_diff(self.level_bytes) > slack_bytes {
            self.repeat_ms = REPEAT_MS;
        } else if now_ms < self.next_purge_ms {
            return false;
        }
        self.level_bytes = unused_bytes;
        self.next_purge_ms = now_ms + self.repeat_ms;
        self.repeat_ms = (self.repeat_ms * 2).min(REPEAT_MS_MAX);
        true
    }
}

impl Server {
    /// Memory that is accounted for, bytes: that of the server at its start, of data, clients and
    /// Lua states.
    fn accounted_bytes(&self) -> u64 {
        self.data_bytes() + self.keyspace().memory().other_bytes() + self.scripting().all_state_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_large_free_is_purged_at_once() {
        let mut watch = Watch::default();
        assert!(!watch.is_due(20 * MIB, 12 * MIB, 1_000), "within the slack");
        assert!(!watch.is_due(400 * MIB, 395 * MIB, 1_200));
        assert!(watch.is_due(400 * MIB, 10 * MIB, 1_400));
        assert!(!watch.is_due(15 * MIB, 10 * MIB, 1_600));
        assert!(watch.is_due(400 * MIB, 10 * MIB, 1_800));
    }

    #[test]
    fn what_a_purge_leaves_is_purged_ever_more_rarely() {
        let mut watch = Watch::default();
        let purges: Vec<i64> = (0..600_000).step_by(200).filter(|at| watch.is_due(400 * MIB, 10 * MIB, *at)).collect();
        assert_eq!(purges[..4], [0, 400, 1_200, 2_800]);
        assert_eq!(purges.last_chunk().map(|[a, b]| b - a), Some(REPEAT_MS_MAX));
        assert!(watch.is_due(420 * MIB, 10 * MIB, 600_000), "more is unused than before");
        assert!(watch.is_due(420 * MIB, 10 * MIB, 600_400), "and it is repeated soon again");
    }
}
