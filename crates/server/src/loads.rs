//! The load of each worker: how many connections it has, and how busy it is. The first number
//! decides which worker gets a new connection. Both decide when connections move to other workers
//! ([`crate::control`]).

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A worker that uses its whole CPU.
pub const WHOLE_PERMILLE: u32 = 1000;

/// Time after which a measurement no longer counts, ms. A worker that has measured nothing for so
/// long was idle.
const CURRENT_MS: i64 = 200;

/// The load of a worker.
struct Load {
    /// Number of its connections, including those that are being handed over to it.
    connections: AtomicU64,
    /// CPU time of the worker's thread in the last tenths of a second, per thousand.
    cpu_permille: AtomicU32,
    /// When this was measured, in ms of the monotonic clock.
    measured_ms: AtomicI64,
    /// When the worker was last saturated, in ms of the monotonic clock.
    saturated_ms: AtomicI64,
}

/// The loads of all workers. A worker writes only its own measurements.
pub struct Loads(Box<[Load]>);

impl Loads {
    /// Creates the loads of idle workers.
    pub fn new(workers: u32) -> Self {
        let idle = || Load {
            connections: AtomicU64::new(0),
            cpu_permille: AtomicU32::new(0),
            measured_ms: AtomicI64::new(i64::MIN / 2),
            saturated_ms: AtomicI64::new(i64::MIN / 2),
        };
        Loads((0..workers).map(|_| idle()).collect())
    }

    /// Returns the number of connections of each worker from `first` on.
    pub fn connections(&self, first: u32) -> impl Iterator<Item = u64> + Clone {
        self.0[first as usize..].iter().map(|load| load.connections.load(Relaxed))
    }

    /// Counts a connection for a worker.
    pub fn add(&self, worker: u32) {
        self.0[worker as usize].connections.fetch_add(1, Relaxed);
    }

    /// Removes a connection from a worker's count.
    pub fn remove(&self, worker: u32) {
        self.0[worker as usize].connections.fetch_sub(1, Relaxed);
    }

    /// Records how busy a worker is.
    pub fn record(&self, worker: u32, now_ms: i64, cpu_permille: u32, is_saturated: bool) {
        let load = &self.0[worker as usize];
        load.cpu_permille.store(cpu_permille, Relaxed);
        load.measured_ms.store(now_ms, Relaxed);
        if is_saturated {
            load.saturated_ms.store(now_ms, Relaxed);
        }
    }

    /// Returns the part of a CPU that a worker uses, per thousand.
    pub fn cpu_permille(&self, worker: u32, now_ms: i64) -> u32 {
        let load = &self.0[worker as usize];
        let is_current = now_ms - load.measured_ms.load(Relaxed) <= CURRENT_MS;
        if is_current { load.cpu_permille.load(Relaxed).min(WHOLE_PERMILLE) } else { 0 }
    }

    /// Returns whether a worker was saturated in the last `within_ms`.
    pub fn was_saturated(&self, worker: u32, now_ms: i64, within_ms: i64) -> bool {
        now_ms - self.0[worker as usize].saturated_ms.load(Relaxed) <= within_ms
    }
}
