//! A statistic with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count that one thread at a time adds to and anyone reads.
///
/// [`add`](Counter::add) is a plain load and store: no locked instruction, so that counting a hit costs no more than
/// incrementing a field. That loses updates if two threads add at the same time: the owner of the counter (whoever
/// holds the shard, or the worker itself) is the only one who may. It is no undefined behaviour if someone else does,
/// only a wrong figure.
///
/// [`reset`](Counter::reset) may come from anyone at any time. It doesn't write the count, which the owner might be
/// about to overwrite (the reset would be lost, and `INFO` would show old figures after `CONFIG RESETSTAT`), but
/// remembers where the count stood; [`get`](Counter::get) tells the difference. Two resets at the same time leave either
/// of their two moments. 16 bytes.
#[derive(Debug, Default)]
pub struct Counter {
    total: AtomicU64,
    reset_at: AtomicU64,
}

impl Counter {
    /// A counter at zero.
    pub const fn new() -> Self {
        Self { total: AtomicU64::new(0), reset_at: AtomicU64::new(0) }
    }

    /// Adds `n`. Only the owner may.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: the figure orders nothing else, and only this thread writes it.
        self.total.store(self.total.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// The count since the last reset.
    #[inline]
    pub fn get(&self) -> u64 {
        // Read in this order a reset in between makes the difference negative: then nothing was counted since.
        let total = self.total.load(Ordering::Relaxed);
        total.saturating_sub(self.reset_at.load(Ordering::Relaxed))
    }

    /// Makes the count zero. Anyone may.
    pub fn reset(&self) {
        self.reset_at.store(self.total.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_resets() {
        let counter = Counter::new();
        counter.add(3);
        counter.add(4);
        assert_eq!(counter.get(), 7);
        counter.reset();
        assert_eq!(counter.get(), 0);
        counter.add(1);
        assert_eq!(counter.get(), 1);
    }

    #[test]
    fn a_reset_beside_the_owner_is_never_lost() {
        const ADDS: u64 = if cfg!(miri) { 500 } else { 200_000 };
        const STEP: u64 = 1 << 20;
        let counter = Counter::new();
        std::thread::scope(|scope| {
            counter.add(ADDS * STEP);
            let resets = scope.spawn(|| {
                for _ in 0..ADDS / 200 {
                    counter.reset();
                    std::hint::spin_loop();
                }
            });
            for _ in 0..ADDS {
                counter.add(1);
            }
            resets.join().unwrap();
        });
        // Had one reset been overwritten by an `add` in flight, or all of them, the big first figure would be back.
        assert!(counter.get() <= ADDS);
    }
}
