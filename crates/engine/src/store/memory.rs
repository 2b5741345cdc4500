//! Memory accounting of all data, and its limit (`maxmemory`).
//!
//! Each shard counts its own memory usage. If there is a limit, the shard's owner *flushes* the
//! count after each command: it adds the change of the shard's usage to a global counter. A change
//! of at most a *step* (a number of bytes) stays unflushed, so that workers do not contend for the
//! counter's cache line. `used_memory` also includes memory other than data: the server's memory at
//! the start, and the clients' memory, which workers flush a few times a second.
//!
//! While usage exceeds the limit, each command evicts keys, but only for a limited time. The
//! *ceiling* is a second threshold, above the limit: while usage exceeds it, a command evicts for
//! as long as necessary. So usage cannot grow without bound.
//!
//! | what | changed by |
//! | --- | --- |
//! | flushed bytes ([`DatabaseStats`]) | the shard's owner; the command that turns the limit on |
//! | the counter | the same threads |
//! | limit, step, ceiling | the command that sets the limit; eviction lowers the ceiling too |
//!
//! A flush atomically replaces the shard's flushed bytes by its current usage, and adds the
//! difference to the counter. So the counter is the sum of all flushed bytes, in whatever order
//! threads write.
//!
//! Without a limit no command reads the counter. Shards then flush about once a second, and before
//! a command reads the memory usage or sets a limit.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;

use crate::store::Store;
use crate::store::state::{Database, DatabaseStats, Shard};

/// The step is chosen so that all unflushed changes together are at most this fraction of the
/// limit: an 8,192nd, given as a shift. (If clients use several databases, the bound is higher,
/// because the step applies to each database of each partition.)
const UNFLUSHED_SHIFT: u32 = 13;

/// Maximum of the step: unflushed bytes of one database in one shard.
const STEP_BYTES_MAX: u64 = 64 * 1024;

/// Minimum of the ceiling, as an excess over the limit. Given as a shift: a sixteenth of the limit.
const EXCESS_SHIFT: u32 = 4;

/// Maximum excess over the limit at which commands may run although all keys to evict are in shards
/// held by other threads. Given as a shift: a quarter of the limit.
const BUSY_EXCESS_SHIFT: u32 = 2;

/// Maximum `maxmemory-eviction-tenacity` up to which the time limit of eviction grows linearly, as
/// in Redis. For a higher tenacity the time limit grows exponentially.
const TENACITY_EVEN_MAX: u32 = 10;
const TENACITY_STEP: Duration = Duration::from_micros(50);
const TENACITY_GROWTH: f64 = 1.15;
const TENACITY_MAX: u32 = 100;

/// Returns how long one command, or one turn (iteration of a worker's event loop), may evict, for a
/// value of `maxmemory-eviction-tenacity`.
pub(crate) fn time_limit(tenacity: u32) -> Duration {
    match tenacity {
        0..=TENACITY_EVEN_MAX => TENACITY_STEP * tenacity,
        TENACITY_MAX.. => Duration::MAX,
        _ => {
            let steps = f64::from(tenacity - TENACITY_EVEN_MAX);
            (TENACITY_STEP * TENACITY_EVEN_MAX).mul_f64(TENACITY_GROWTH.powf(steps))
        }
    }
}

/// The global counter of memory. See the head of this module.
pub struct Memory {
    began: Instant,
    limit_bytes: AtomicU64,
    /// Usage up to which eviction may stop at its time limit.
    ceiling_bytes: AtomicU64,
    /// Maximum change of the memory of one database in one shard that stays unflushed, bytes.
    step_bytes: AtomicU64,
    /// Memory of the data, bytes. May be negative (wrapped) for a moment, if the flush of a
    /// deallocation reaches the counter before the flush of the allocation.
    data_bytes: CachePadded<AtomicU64>,
    /// All other memory. May be negative too.
    other_bytes: AtomicU64,
    /// Number of the current time slice in which the workers share the eviction (see
    /// [`Memory::start_span`]).
    span: AtomicI64,
    /// Bytes evicted in this time slice, by workers that evict only from their own shards.
    freed_bytes: AtomicU64,
    /// Start of the current period in which usage stays above the limit even after eviction, in µs
    /// since `began`. 0 outside of such a period.
    exceeded_since_us: AtomicI64,
    /// Total length of earlier such periods, µs.
    exceeded_us: AtomicU64,
}

impl Memory {
    /// Returns an empty counter without a limit.
    pub(crate) fn new() -> Self {
        Memory {
            began: Instant::now(),
            limit_bytes: AtomicU64::new(0),
            ceiling_bytes: AtomicU64::new(0),
            step_bytes: AtomicU64::new(0),
            data_bytes: CachePadded::new(AtomicU64::new(0)),
            other_bytes: AtomicU64::new(0),
            span: AtomicI64::new(0),
            freed_bytes: AtomicU64::new(0),
            exceeded_since_us: AtomicI64::new(0),
            exceeded_us: AtomicU64::new(0),
        }
    }

    /// Returns the limit in bytes; 0: no limit.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Relaxed)
    }

    /// Returns the flushed memory usage in bytes.
    #[inline]
    pub fn used_bytes(&self) -> u64 {
        let sum = self.data_bytes.load(Relaxed).wrapping_add(self.other_bytes.load(Relaxed));
        // A sum this large is a negative number that wrapped.
        if sum > i64::MAX as u64 { 0 } else { sum }
    }

    /// Returns whether usage is above the limit.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.used_bytes() > self.limit_bytes.load(Relaxed)
    }

    /// Returns whether usage is at most the ceiling. Eviction may then stop at its time limit
    /// although usage is above the limit, because the excess is small or has not grown.
    pub(crate) fn is_excess_tolerated(&self) -> bool {
        self.used_bytes() <= self.ceiling_bytes.load(Relaxed)
    }

    /// Returns whether a command may run although all keys to evict are in shards held by other
    /// threads.
    pub(crate) fn is_excess_tolerated_while_busy(&self) -> bool {
        self.is_excess_tolerated() || self.excess_bytes() <= self.limit_bytes() >> BUSY_EXCESS_SHIFT
    }

    /// Returns the number of bytes by which usage exceeds the limit.
    pub(crate) fn excess_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.limit_bytes())
    }

    /// Returns the bytes evicted in the current time slice by workers that evict only from their
    /// own shards.
    pub(crate) fn freed_bytes(&self) -> u64 {
        self.freed_bytes.load(Relaxed)
    }

    /// Starts the time slice `span`, unless another worker has started it. A race may count bytes
    /// in the wrong slice. That only makes the workers' shares of eviction slightly uneven.
    pub(crate) fn start_span(&self, span: i64) {
        if self.span.load(Relaxed) < span && self.span.fetch_max(span, Relaxed) < span {
            self.freed_bytes.store(0, Relaxed);
        }
    }

    pub(crate) fn add_freed(&self, bytes: u64) {
        self.freed_bytes.fetch_add(bytes, Relaxed);
    }

    /// Lowers the ceiling to the current usage after an eviction, so that an excess that has shrunk
    /// cannot grow again. The ceiling stays at least a sixteenth above the limit.
    pub(crate) fn lower_ceiling(&self) {
        let bearable = tolerated_bytes(self.limit_bytes());
        self.ceiling_bytes.fetch_min(self.used_bytes().max(bearable), Relaxed);
    }

    /// Adds a difference to the memory other than data, in bytes.
    pub fn add_other(&self, difference: i64) {
        self.other_bytes.fetch_add(difference as u64, Relaxed);
    }

    /// Returns the flushed memory other than data, in bytes.
    pub fn other_bytes(&self) -> u64 {
        let bytes = self.other_bytes.load(Relaxed);
        if bytes > i64::MAX as u64 { 0 } else { bytes }
    }

    /// Records whether memory is above the limit after eviction.
    pub(crate) fn note_exceeded(&self, is_exceeded: bool) {
        if is_exceeded != (self.exceeded_since_us.load(Relaxed) != 0) {
            self.note_exceeded_at(is_exceeded, self.now_us());
        }
    }

    #[cold]
    fn note_exceeded_at(&self, is_exceeded: bool, now_us: i64) {
        if is_exceeded {
            let _ = self.exceeded_since_us.compare_exchange(0, now_us.max(1), Relaxed, Relaxed);
        } else {
            let since_us = self.exceeded_since_us.swap(0, Relaxed);
            let us = if since_us == 0 { 0 } else { (now_us - since_us).max(0) };
            self.exceeded_us.fetch_add(us as u64, Relaxed);
        }
    }

    /// Returns, in µs, the total time that memory was above the limit, and the length of the
    /// current period above the limit. The total includes the current period.
    pub fn exceeded_us(&self) -> (u64, u64) {
        self.exceeded_us_at(self.now_us())
    }

    fn exceeded_us_at(&self, now_us: i64) -> (u64, u64) {
        let since_us = self.exceeded_since_us.load(Relaxed);
        let current = if since_us == 0 { 0 } else { (now_us - since_us).max(0) as u64 };
        (self.exceeded_us.load(Relaxed) + current, current)
    }

    fn now_us(&self) -> i64 {
        self.began.elapsed().as_micros() as i64
    }

    /// Resets the time that memory was above the limit (`CONFIG RESETSTAT`).
    pub fn reset(&self) {
        self.exceeded_since_us.store(0, Relaxed);
        self.exceeded_us.store(0, Relaxed);
    }
}

/// Returns the minimum of the ceiling for a memory limit.
fn tolerated_bytes(limit_bytes: u64) -> u64 {
    limit_bytes.saturating_add(limit_bytes >> EXCESS_SHIFT)
}

impl Store {
    /// Sets the memory limit in bytes; 0: no limit. If usage exceeds the limit, the following
    /// commands and turns of the workers evict keys.
    pub fn limit_memory(&self, limit_bytes: u64) {
        let memory = self.memory();
        let before_bytes = memory.limit_bytes.swap(limit_bytes, Relaxed);
        if before_bytes == limit_bytes {
            return;
        }
        if before_bytes == 0 {
            // Without a limit, shards flush only about once a second, so the counter may be out of
            // date.
            (0..self.partition_count())
                .flat_map(|shard| self.database_stats_of_shard(shard))
                .for_each(|db_stats| self.flush_memory(db_stats));
        }
        let step_bytes = (limit_bytes >> UNFLUSHED_SHIFT) / u64::from(self.partition_count());
        memory.step_bytes.store(step_bytes.min(STEP_BYTES_MAX), Relaxed);
        memory.ceiling_bytes.store(memory.used_bytes().max(tolerated_bytes(limit_bytes)), Relaxed);
        self.tuning.set_limited(limit_bytes > 0);
    }

    /// Flushes the memory usage of a database of a shard.
    pub(crate) fn flush_memory(&self, db_stats: &DatabaseStats) {
        let now = db_stats.dict_bytes.get() + db_stats.heap_bytes.get();
        if db_stats.flushed_bytes.load(Relaxed) != now {
            let before = db_stats.flushed_bytes.swap(now, Relaxed);
            self.memory().data_bytes.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }

    /// Accounts for a command's changes to the memory of a shard. `db` is the logical number of the
    /// changed database; `None`: all databases. Flushes changes larger than the step.
    pub(crate) fn meter(&self, number: u32, shard: &mut Shard, db: Option<u32>) {
        let step_bytes = self.memory().step_bytes.load(Relaxed);
        let databases = &mut shard.databases;
        let meter = |physical, database: &mut Database| {
            let db_stats = self.db_stats(number, physical);
            db_stats.dict_bytes.set(database.dict.allocated_bytes() as u64);
            let now = db_stats.dict_bytes.get() + db_stats.heap_bytes.get();
            if now.abs_diff(db_stats.flushed_bytes.load(Relaxed)) > step_bytes {
                self.flush_memory(db_stats);
            }
        };
        match db.map(|db| self.physical(db)) {
            Some(physical) => databases.get_mut(physical).into_iter().for_each(|it| meter(physical, it)),
            None => databases.used().for_each(|(physical, database)| meter(physical, database)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_grows_with_tenacity_as_in_redis() {
        for (tenacity, us) in [(0, 0), (1, 50), (10, 500), (11, 575), (50, 133_931)] {
            assert_eq!(time_limit(tenacity).as_micros(), us, "{tenacity}");
        }
        // About two minutes at 99, and no limit at 100.
        assert_eq!(time_limit(99).as_secs(), 126);
        assert_eq!(time_limit(100), Duration::MAX);
    }

    #[test]
    fn time_above_the_limit_is_counted() {
        let memory = Memory::new();
        memory.note_exceeded_at(true, 1_000);
        memory.note_exceeded_at(true, 1_200);
        assert_eq!(memory.exceeded_us_at(1_500), (500, 500));
        memory.note_exceeded_at(false, 3_000);
        memory.note_exceeded_at(false, 3_500);
        assert_eq!(memory.exceeded_us_at(9_000), (2_000, 0));
        memory.note_exceeded_at(true, 10_000);
        assert_eq!(memory.exceeded_us_at(10_001), (2_001, 1));
        memory.reset();
        assert_eq!(memory.exceeded_us_at(20_000), (0, 0));
    }

    #[test]
    fn a_negative_sum_counts_as_zero() {
        let memory = Memory::new();
        memory.add_other(-5);
        assert_eq!(memory.used_bytes(), 0);
        memory.add_other(7);
        assert_eq!(memory.used_bytes(), 2);
        assert!(memory.is_over());
    }
}
