//! The load of each worker. A new connection is assigned to a worker with few connections. Later,
//! connections may move to other workers, depending on how busy the workers are
//! ([`crate::control`]).

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The CPU time of a worker that uses a whole CPU, per thousand.
pub const WHOLE_PERMILLE: u32 = 1000;

/// Age after which the last measurement of a sleeping worker no longer counts, ms. The worker then
/// counts as idle.
const CURRENT_MS: i64 = 200;

/// Age of the last measurement after which a worker that is awake counts as fully busy, ms. Such a
/// worker is in a long turn (iteration of its event loop): if the turn had ended, the worker would
/// have measured its load again.
const LONG_TURN_MS: i64 = 6;

/// Minimum and maximum time for which a worker that was saturated neither packs its connections on
/// another worker nor receives packed connections, ms. (To *pack* is to move the connections of a
/// worker with little to do.) The time doubles when a worker is saturated soon after it has
/// received packed connections. It returns to the minimum when connections are packed on a worker
/// that has not been saturated for twice this time.
const CALM_MS: (i64, i64) = (5_000, 60_000);

/// The load of a worker.
struct Load {
    /// Number of its connections, including those that are being handed over to it.
    connections: AtomicU64,
    /// CPU time of the worker's thread, per thousand, averaged over some tens of milliseconds.
    cpu_permille: AtomicU32,
    /// When `cpu_permille` was measured, in ms of the monotonic clock.
    measured_ms: AtomicI64,
    /// When the worker was last saturated, in ms of the monotonic clock.
    saturated_ms: AtomicI64,
    /// When the worker last got the connections of a worker with little to do, in ms of the
    /// monotonic clock.
    packed_ms: AtomicI64,
}

/// The loads of all workers.
pub struct Loads {
    workers: Box<[Load]>,
    calm_ms: AtomicI64,
}

impl Loads {
    /// Creates the loads of idle workers.
    pub fn new(workers: u32) -> Self {
        let long_ago = || AtomicI64::new(i64::MIN / 2);
        let idle = || Load {
            connections: AtomicU64::new(0),
            cpu_permille: AtomicU32::new(0),
            measured_ms: long_ago(),
            saturated_ms: long_ago(),
            packed_ms: long_ago(),
        };
        Loads { workers: (0..workers).map(|_| idle()).collect(), calm_ms: AtomicI64::new(CALM_MS.0) }
    }

    /// Returns the number of connections of each worker from `first` on.
    pub fn connections(&self, first: u32) -> impl Iterator<Item = u64> + Clone {
        self.workers[first as usize..].iter().map(|load| load.connections.load(Relaxed))
    }

    /// Counts a connection for a worker.
    pub fn add(&self, worker: u32) {
        self.workers[worker as usize].connections.fetch_add(1, Relaxed);
    }

    /// Removes a connection from a worker's count.
    pub fn remove(&self, worker: u32) {
        self.workers[worker as usize].connections.fetch_sub(1, Relaxed);
    }

    /// Records how busy a worker is.
    pub fn record(&self, worker: u32, now_ms: i64, cpu_permille: u32, is_saturated: bool) {
        let load = &self.workers[worker as usize];
        load.cpu_permille.store(cpu_permille, Relaxed);
        load.measured_ms.store(now_ms, Relaxed);
        if !is_saturated {
            return;
        }
        let calm_ms = self.calm_ms.load(Relaxed);
        let was_saturated = self.was_saturated(worker, now_ms, calm_ms);
        load.saturated_ms.store(now_ms, Relaxed);
        if !was_saturated && now_ms - load.packed_ms.load(Relaxed) < 2 * calm_ms {
            self.calm_ms.store((2 * calm_ms).min(CALM_MS.1), Relaxed);
        }
    }

    /// Returns the part of a CPU that a worker uses, per thousand. `is_asleep` says whether the
    /// worker sleeps between two turns.
    pub fn cpu_permille(&self, worker: u32, now_ms: i64, is_asleep: bool) -> u32 {
        let load = &self.workers[worker as usize];
        let age_ms = now_ms - load.measured_ms.load(Relaxed);
        match is_asleep {
            true if age_ms > CURRENT_MS => 0,
            false if age_ms > LONG_TURN_MS => WHOLE_PERMILLE,
            _ => load.cpu_permille.load(Relaxed).min(WHOLE_PERMILLE),
        }
    }

    /// Adds the load of packed connections to that of the worker that receives them. The worker's
    /// next measurement replaces the sum.
    pub fn pack(&self, to: u32, now_ms: i64, cpu_permille: u32) {
        let load = &self.workers[to as usize];
        if !self.was_saturated(to, now_ms, 2 * self.calm_ms.load(Relaxed)) {
            self.calm_ms.store(CALM_MS.0, Relaxed);
        }
        load.cpu_permille.fetch_add(cpu_permille, Relaxed);
        load.packed_ms.store(now_ms, Relaxed);
    }

    /// Returns whether a worker was saturated in the last `within_ms`.
    pub fn was_saturated(&self, worker: u32, now_ms: i64, within_ms: i64) -> bool {
        now_ms - self.workers[worker as usize].saturated_ms.load(Relaxed) <= within_ms
    }

    /// Returns whether a worker was not saturated lately, so that connections may be packed.
    pub fn is_calm(&self, worker: u32, now_ms: i64) -> bool {
        !self.was_saturated(worker, now_ms, self.calm_ms.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_in_a_long_turn_is_busy_and_a_sleeping_one_becomes_idle() {
        let loads = Loads::new(2);
        assert_eq!(loads.cpu_permille(0, 1_000, true), 0, "it has never measured, and sleeps");
        loads.record(0, 1_000, 300, false);
        assert_eq!((loads.cpu_permille(0, 1_004, false), loads.cpu_permille(0, 1_100, true)), (300, 300));
        assert_eq!(loads.cpu_permille(0, 1_010, false), WHOLE_PERMILLE);
        assert_eq!(loads.cpu_permille(0, 1_300, true), 0);
        loads.pack(0, 1_004, 250);
        assert_eq!(loads.cpu_permille(0, 1_005, true), 550);
    }

    #[test]
    fn a_saturation_soon_after_packing_prolongs_the_calm() {
        let loads = Loads::new(1);
        let (min_ms, max_ms) = CALM_MS;
        loads.record(0, 0, 900, true);
        assert!(!loads.is_calm(0, min_ms) && loads.is_calm(0, min_ms + 1));
        let mut now_ms = min_ms + 1;
        for _ in 0..10 {
            loads.pack(0, now_ms, 100);
            loads.record(0, now_ms + 10, 900, true);
            now_ms += 10 + loads.calm_ms.load(Relaxed) + 1;
            assert!(loads.is_calm(0, now_ms) && !loads.is_calm(0, now_ms - 1));
        }
        assert_eq!(loads.calm_ms.load(Relaxed), max_ms);
        now_ms += 2 * max_ms;
        loads.pack(0, now_ms, 100);
        assert_eq!(loads.calm_ms.load(Relaxed), min_ms, "after a long time without a saturation");
    }

    #[test]
    fn connections_are_counted_by_worker() {
        let loads = Loads::new(3);
        (0..3).for_each(|_| loads.add(1));
        loads.add(2);
        loads.remove(1);
        assert_eq!(loads.connections(1).collect::<Vec<_>>(), [2, 1]);
    }
}
