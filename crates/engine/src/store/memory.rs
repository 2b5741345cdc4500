//! What all data takes of memory together, and what it may (`maxmemory`).
//!
//! Each shard knows what it takes. Where there is a limit it *tells* the sum of all, while it is held, what a command has made of that; small differences
//! wait until there are more of them, so that workers don't fight for the sum's cache line. Beside the data it has what is taken otherwise, as
//! `used_memory` has it: what the server took before there was any, and clients, of which workers tell some times a second.
//!
//! | what | changed by |
//! | --- | --- |
//! | what the sum has of a database in a shard ([`DatabaseStats`]) | whoever holds the shard; who sets a limit where there was none. Exchanged, and the sum changed by the difference, so that it is the sum of what was told, whoever comes first |
//! | the sum | the same |
//! | limit, step, ceiling | who sets the limit; the ceiling falls, too, as memory does that was above the limit when that was set |
//!
//! Without a limit nobody looks here, and shards tell about once a second, and when somebody asks or is about to set one.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;

use crate::store::Store;
use crate::store::state::{Database, DatabaseStats, Shard};

/// All that shards haven't told is at most this part of the limit: an 8,192nd. (Databases count as one, though each has a step of its own.)
const UNTOLD_SHIFT: u32 = 13;

/// What a database in a shard may keep to itself at most, bytes.
const STEP_BYTES_MAX: u64 = 64 * 1024;

/// By which part of the limit memory may exceed it before eviction isn't bounded in time any more: a sixteenth.
const EXCESS_SHIFT: u32 = 4;

/// By which part it may where there are keys to evict, but none that the worker at hand could have: a quarter.
const BUSY_EXCESS_SHIFT: u32 = 2;

/// Up to which tenacity the time for evicting grows evenly, by how much, and how much it grows by each step beyond: Redis's figures.
const TENACITY_EVEN_MAX: u32 = 10;
const TENACITY_STEP: Duration = Duration::from_micros(50);
const TENACITY_GROWTH: f64 = 1.15;
const TENACITY_MAX: u32 = 100;

/// How long one command, or one turn, may evict by `maxmemory-eviction-tenacity`.
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

/// See the head of this module.
pub struct Memory {
    began: Instant,
    limit_bytes: AtomicU64,
    /// Up to here eviction is bounded in time.
    ceiling_bytes: AtomicU64,
    /// Differences up to this are kept back by each shard.
    step_bytes: AtomicU64,
    /// The data's. May wrap for a moment, where what was freed is told before it was told to be taken.
    data_bytes: CachePadded<AtomicU64>,
    /// Everything else's. As above.
    other_bytes: AtomicU64,
    /// The span of time that it is now, and what workers that evict each from shards of their own have freed in it.
    span: AtomicI64,
    freed_bytes: AtomicU64,
    /// Since when it is more than the limit though commands have tried to evict, µs from `began` on; 0: it isn't.
    exceeded_since_us: AtomicI64,
    /// For how long that was so before, µs.
    exceeded_us: AtomicU64,
}

impl Memory {
    /// Nothing, without a limit.
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

    /// The limit, bytes; 0: none.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Relaxed)
    }

    /// What is taken, as far as it was told, bytes.
    #[inline]
    pub fn used_bytes(&self) -> u64 {
        let sum = self.data_bytes.load(Relaxed).wrapping_add(self.other_bytes.load(Relaxed));
        // Of a sum that has wrapped more is free than there is of anything.
        if sum > i64::MAX as u64 { 0 } else { sum }
    }

    /// Whether it is more than the limit.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.used_bytes() > self.limit_bytes.load(Relaxed)
    }

    /// Whether eviction may be put off though it is more than the limit: not much, or not more than it was.
    pub(crate) fn is_bearable(&self) -> bool {
        self.used_bytes() <= self.ceiling_bytes.load(Relaxed)
    }

    /// Whether a command may run though the keys that should go for it are in shards that others hold.
    pub(crate) fn is_bearable_while_busy(&self) -> bool {
        self.is_bearable() || self.excess_bytes() <= self.limit_bytes() >> BUSY_EXCESS_SHIFT
    }

    /// By how much memory is above the limit, bytes.
    pub(crate) fn excess_bytes(&self) -> u64 {
        self.used_bytes().saturating_sub(self.limit_bytes())
    }

    /// What has become free in this span of time by workers that evict each from shards of their own, bytes.
    pub(crate) fn freed_bytes(&self) -> u64 {
        self.freed_bytes.load(Relaxed)
    }

    /// Begins a span of time, unless somebody has done so. What is counted in the wrong one makes shares a little uneven, and nothing else.
    pub(crate) fn begin_span(&self, span: i64) {
        if self.span.load(Relaxed) < span && self.span.fetch_max(span, Relaxed) < span {
            self.freed_bytes.store(0, Relaxed);
        }
    }

    pub(crate) fn add_freed(&self, bytes: u64) {
        self.freed_bytes.fetch_add(bytes, Relaxed);
    }

    /// Something has been evicted, and memory may still be above the limit: it isn't to rise again.
    pub(crate) fn lower_ceiling(&self) {
        let bearable = bearable_bytes(self.limit_bytes());
        self.ceiling_bytes.fetch_min(self.used_bytes().max(bearable), Relaxed);
    }

    /// Changes what is taken by something else than data, bytes.
    pub fn add_other(&self, difference: i64) {
        self.other_bytes.fetch_add(difference as u64, Relaxed);
    }

    /// What is taken by something else than data, as far as it was told, bytes.
    pub fn other_bytes(&self) -> u64 {
        let bytes = self.other_bytes.load(Relaxed);
        if bytes > i64::MAX as u64 { 0 } else { bytes }
    }

    /// Notes whether memory was found to be above the limit after eviction.
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

    /// For how long memory was above the limit in all, this time included, and for how long it has been by now, µs.
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

    /// Forgets how long memory was above the limit (`CONFIG RESETSTAT`).
    pub fn reset(&self) {
        self.exceeded_since_us.store(0, Relaxed);
        self.exceeded_us.store(0, Relaxed);
    }
}

/// The most that eviction bounded in time leaves, of a limit.
fn bearable_bytes(limit_bytes: u64) -> u64 {
    limit_bytes.saturating_add(limit_bytes >> EXCESS_SHIFT)
}

impl Store {
    /// Sets the limit of memory, bytes; 0: none. What is above it now is evicted little by little.
    pub fn limit_memory(&self, limit_bytes: u64) {
        let memory = self.memory();
        let before_bytes = memory.limit_bytes.swap(limit_bytes, Relaxed);
        if before_bytes == limit_bytes {
            return;
        }
        if before_bytes == 0 {
            // Till now they have told now and then.
            (0..self.partition_count())
                .flat_map(|shard| self.shard_figures(shard))
                .for_each(|figures| self.tell_memory(figures));
        }
        let step_bytes = (limit_bytes >> UNTOLD_SHIFT) / u64::from(self.partition_count());
        memory.step_bytes.store(step_bytes.min(STEP_BYTES_MAX), Relaxed);
        memory.ceiling_bytes.store(memory.used_bytes().max(bearable_bytes(limit_bytes)), Relaxed);
        self.tuning.set_limited(limit_bytes > 0);
    }

    /// Has the sum know what a database of a shard takes.
    pub(crate) fn tell_memory(&self, figures: &DatabaseStats) {
        let now = figures.dict_bytes.get() + figures.heap_bytes.get();
        if figures.told_bytes.load(Relaxed) != now {
            let before = figures.told_bytes.swap(now, Relaxed);
            self.memory().data_bytes.fetch_add(now.wrapping_sub(before), Relaxed);
        }
    }

    /// Takes up what a command has made of the memory of a shard: in one database (as clients number it), or in any.
    pub(crate) fn meter(&self, number: u32, shard: &mut Shard, db: Option<u32>) {
        let step_bytes = self.memory().step_bytes.load(Relaxed);
        let databases = &mut shard.databases;
        let meter = |physical, database: &mut Database| {
            let figures = self.figures(number, physical);
            figures.dict_bytes.set(database.dict.allocated_bytes() as u64);
            let now = figures.dict_bytes.get() + figures.heap_bytes.get();
            if now.abs_diff(figures.told_bytes.load(Relaxed)) > step_bytes {
                self.tell_memory(figures);
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
        // Some two and a half minutes, and then for ever.
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
    fn a_sum_that_is_ahead_of_what_it_is_of_is_none() {
        let memory = Memory::new();
        memory.add_other(-5);
        assert_eq!(memory.used_bytes(), 0);
        memory.add_other(7);
        assert_eq!(memory.used_bytes(), 2);
        assert!(memory.is_over());
    }
}
