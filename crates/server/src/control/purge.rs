//! Returns freed memory to the kernel, on `MEMORY PURGE` and within a second after much memory was
//! freed.
//!
//! The allocator keeps freed memory in a heap per thread, and returns it to the kernel only during
//! later allocations of the same thread. So each thread must purge its own heap. Workers purge when
//! they receive [`Message::Purge`](pantala_engine::message::Message::Purge). Other threads purge
//! when [`pantala_base::purges`] requests it.
//!
//! A few times a second, worker 0 compares resident memory with accounted memory. If the difference
//! exceeds 8 MiB plus 5 % of accounted memory, worker 0 makes all threads purge. If a purge changes
//! little, the memory is probably fragmented. The interval to the next purge is then doubled, so
//! that fragmentation costs little CPU time.
//!
//! Shortly after the start, worker 0 removes code from resident memory, because most of the code
//! that has run by then never runs again ([`code`]).
//!
//! Worker 0 also enables huge pages when the server has grown, and disables them when the server is
//! small again.
//!
//! All of this is periodic work. It adds nothing to the cost of a command.

use pantala_base::allocator::{self, HugePages};
use pantala_base::code;
use pantala_engine::client::Host;

use crate::host::Server;
use crate::process;

/// Resident memory from which each part of the allocator's arenas has huge pages, bytes. Below
/// 512 MiB, huge pages would add too much to the memory usage: they make the unused ends of blocks
/// resident.
const HUGE_PAGES_FROM_BYTES: [(HugePages, u64); 2] =
    [(HugePages::AfterFirst, 256 * 1024 * 1024), (HugePages::All, 512 * 1024 * 1024)];

/// Huge pages are enabled only if accounted memory is at least the bytes in
/// [`HUGE_PAGES_FROM_BYTES`] divided by this number. Otherwise, most of the resident memory has
/// been freed and will soon be returned.
const HUGE_PAGES_USED_DIVISOR: u64 = 2;

/// If accounted memory falls below the bytes in [`HUGE_PAGES_FROM_BYTES`] divided by this number,
/// there are no more huge pages. If a small server kept them, each small block that is allocated at
/// a new place could make 2 MiB resident. The allocator would not know of that memory, and never
/// return it.
const HUGE_PAGES_KEPT_DIVISOR: u64 = 4;

/// Minimum interval between checks of resident memory, ms.
const WATCH_MS: i64 = 200;

/// Maximum difference between resident and accounted memory without a purge: this number of bytes,
/// plus accounted memory divided by [`UNUSED_SHARE`].
const UNUSED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The divisor of accounted memory, see [`UNUSED_BYTES_MAX`].
const UNUSED_SHARE: u64 = 20;

/// Maximum number of consecutive checks that are skipped because a script runs or memory is being
/// freed in the background. So a server that always runs scripts still checks every 600 ms.
const SKIPS_MAX: u32 = 2;

/// Interval to the next purge after the first purge that changed little, ms.
const REPEAT_MS: i64 = 2 * WATCH_MS;
/// Maximum interval to the next purge, ms.
const REPEAT_MS_MAX: i64 = 64_000;

/// Number of checks after the start before code is released: one second. In the first second the
/// workers accept their first connections, and threads set themselves up.
const CODE_RELEASE_CHECKS: u32 = 5;

/// Decides when a purge is due.
#[derive(Default)]
pub(super) struct Watch {
    next_check_ms: i64,
    /// Number of checks since the start, up to the one that releases code.
    checks: u32,
    /// Number of consecutive checks skipped so far.
    skipped: u32,
    /// Difference between resident and accounted memory at the last purge, bytes; 0 if the last
    /// check found nothing to purge.
    level_bytes: u64,
    /// Time before which no purge is repeated, unless the difference has changed much.
    next_purge_ms: i64,
    /// Minimum interval between the next purge and the one after it. Doubles with each purge that
    /// changes little.
    repeat_ms: i64,
    /// The part of the allocator's arenas that has huge pages.
    huge_pages: HugePages,
    /// Resident memory when that part was last set, bytes.
    huge_pages_at_bytes: u64,
}

impl Watch {
    /// Makes all threads purge if a purge is due. Worker 0 calls this a few times a second.
    pub(super) fn look(&mut self, server: &Server, now_ms: i64) {
        if now_ms < self.next_check_ms {
            return;
        }
        self.next_check_ms = now_ms + WATCH_MS;
        if self.must_release_code(server.snapshots().loading.is_incomplete()) {
            code::release();
        }
        if self.is_skipped(server.scripting().is_running() || server.keyspace().lazy_free().pending() > 0) {
            return;
        }
        // Like accounted memory, excludes the pages of the program.
        let Some(resident_bytes) = process::allocated_resident_bytes() else { return };
        let used_bytes = server.accounted_bytes();
        // Huge pages are disabled before a purge, so that the returned memory does not become
        // resident again.
        if self.must_place_huge_pages(resident_bytes, used_bytes) {
            allocator::place_huge_pages(self.huge_pages);
        }
        if self.is_due(resident_bytes, used_bytes, now_ms) {
            server.purge_memory();
        }
    }

    /// Returns whether to release code now, which is done once. The code that loads a dataset is
    /// released with the rest, so the release waits until the dataset is loaded.
    fn must_release_code(&mut self, is_loading: bool) -> bool {
        let is_now = self.checks == CODE_RELEASE_CHECKS && !is_loading;
        if self.checks < CODE_RELEASE_CHECKS || is_now {
            self.checks += 1;
        }
        is_now
    }

    /// Decides which part of the allocator's arenas has huge pages. Returns whether to ask the
    /// kernel for it. This is repeated when resident memory has doubled, for new arenas.
    fn must_place_huge_pages(&mut self, resident_bytes: u64, used_bytes: u64) -> bool {
        let reached = |(part, from_bytes): &(HugePages, u64)| {
            let is_kept = *part <= self.huge_pages && used_bytes >= from_bytes / HUGE_PAGES_KEPT_DIVISOR;
            (is_kept || resident_bytes >= *from_bytes && used_bytes >= from_bytes / HUGE_PAGES_USED_DIVISOR)
                .then_some(*part)
        };
        let part = HUGE_PAGES_FROM_BYTES.iter().rev().find_map(reached).unwrap_or_default();
        let has_grown = part > HugePages::None && resident_bytes >= 2 * self.huge_pages_at_bytes;
        if part == self.huge_pages && !has_grown {
            return false;
        }
        (self.huge_pages, self.huge_pages_at_bytes) = (part, resident_bytes);
        true
    }

    /// Returns whether to skip this check. `is_unsettled` is true if a script runs or memory is
    /// being freed in the background.
    ///
    /// In both cases resident and accounted memory are hard to compare. Scripts publish their
    /// memory usage only when they end, and memory that is being freed will soon not be resident.
    /// But a script may be running at every check, so only a few consecutive checks are skipped. If
    /// this leads to a needless purge, the purge changes little, and further purges follow at
    /// growing intervals.
    fn is_skipped(&mut self, is_unsettled: bool) -> bool {
        let is_skipped = is_unsettled && self.skipped < SKIPS_MAX;
        self.skipped = if is_skipped { self.skipped + 1 } else { 0 };
        is_skipped
    }

    /// Returns whether to purge now. `used_bytes` is the accounted memory.
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
    /// Returns the accounted memory, bytes: the memory at startup plus the memory of data, clients,
    /// Lua states, encoded entries of a running snapshot, and effects (changes) that the
    /// append-only file or replicas have not received yet.
    fn accounted_bytes(&self) -> u64 {
        let stream_bytes = self.keyspace().journal().unread_memory_bytes();
        let snapshot_bytes = self.snapshots().background.running().map_or(0, |running| running.kept_bytes());
        let others_bytes = self.keyspace().memory().other_bytes() + self.scripting().all_state_bytes();
        self.data_bytes() + others_bytes + stream_bytes + snapshot_bytes
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
    fn code_is_released_once_a_second_after_the_start_and_after_loading() {
        for loading in [0, 3, 9] {
            let mut watch = Watch::default();
            let released: Vec<u32> = (0..20).filter(|&check| watch.must_release_code(check < loading)).collect();
            assert_eq!(released, [loading.max(CODE_RELEASE_CHECKS)]);
        }
    }

    #[test]
    fn huge_pages_follow_the_size_of_the_server() {
        use HugePages::{AfterFirst, All, None};
        let mut watch = Watch::default();
        for (resident, used, expected) in [
            (100, 90, Option::None),
            (300, 20, Option::None), // Freed memory, which is returned next.
            (300, 290, Some(AfterFirst)),
            (320, 310, Option::None),
            (600, 200, Some(AfterFirst)), // Resident memory has doubled.
            (700, 690, Some(All)),
            (1_399, 690, Option::None),
            (1_400, 690, Some(All)),
            (1_400, 128, Option::None),
            (1_400, 127, Some(AfterFirst)),
            (1_400, 255, Option::None),
            (1_400, 63, Some(None)),
            (1_400, 63, Option::None),
            (30, 20, Option::None),
            (900, 890, Some(All)),
            (900, 10, Some(None)),
        ] {
            let is_placed = watch.must_place_huge_pages(resident * MIB, used * MIB);
            assert_eq!(is_placed.then_some(watch.huge_pages), expected, "{resident} MiB, {used} MiB in use");
        }
    }

    #[test]
    fn scripts_at_every_check_skip_only_some_of_them() {
        let mut watch = Watch::default();
        let skipped: Vec<bool> = (0..6).map(|_| watch.is_skipped(true)).collect();
        assert_eq!(skipped, [true, true, false, true, true, false]);
        assert!(!watch.is_skipped(false));
    }

    #[test]
    fn purges_that_change_little_become_rarer() {
        let mut watch = Watch::default();
        let purges: Vec<i64> = (0..600_000).step_by(200).filter(|at| watch.is_due(400 * MIB, 10 * MIB, *at)).collect();
        assert_eq!(purges[..4], [0, 400, 1_200, 2_800]);
        assert_eq!(purges.last_chunk().map(|[a, b]| b - a), Some(REPEAT_MS_MAX));
        assert!(watch.is_due(420 * MIB, 10 * MIB, 600_000), "more is unused than before");
        assert!(watch.is_due(420 * MIB, 10 * MIB, 600_400), "and it is repeated soon again");
    }
}
