//! A statistic with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering};

/// A count with one writer at a time and any number of readers. Takes 16 bytes.
///
/// [`add`](Counter::add) is a plain load and store instead of a locked instruction, so it costs no
/// more than incrementing a field. Two threads that add at the same time lose updates, so only the
/// owner of the counter (the holder of the shard, or the worker itself) may add. Breaking this rule
/// gives a wrong count, not undefined behavior.
///
/// Any thread may call [`reset`](Counter::reset). A reset records the current total instead of
/// writing zero. A concurrent `add` of the owner could overwrite a zero, and `INFO` would then show
/// the former count after `CONFIG RESETSTAT`. [`get`](Counter::get) returns the difference between
/// the total and the recorded total. Of two concurrent resets either may win.
///
/// The total is the first field. An owner can therefore place a counter so that the total is the
/// last word of a cache line that the owner writes anyway. The second field is then in the next
/// line.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counter {
    total: AtomicU64,
    reset_at: AtomicU64,
}

impl Counter {
    /// Returns a counter at zero.
    pub const fn new() -> Self {
        Self { total: AtomicU64::new(0), reset_at: AtomicU64::new(0) }
    }

    /// Adds `n`. Only the owner may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        // Relaxed: the count orders no other memory access, and only this thread writes it.
        self.total.store(self.total.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Returns the count since the last reset.
    #[inline]
    pub fn get(&self) -> u64 {
        // A reset between the two loads can make the difference negative. The loaded total is then
        // older than the reset, so the result is 0.
        let total = self.total.load(Ordering::Relaxed);
        total.saturating_sub(self.reset_at.load(Ordering::Relaxed))
    }

    /// Resets the count to zero. Any thread may call it.
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
    fn a_concurrent_reset_is_never_lost() {
        const ROUNDS: u32 = if cfg!(miri) { 5 } else { 2000 };
        const MANY: u64 = 1 << 40;
        for _ in 0..ROUNDS {
            let counter = Counter::new();
            counter.add(MANY);
            std::thread::scope(|scope| {
                let reset = scope.spawn(|| counter.reset());
                while !reset.is_finished() {
                    counter.add(1);
                }
            });
            // An `add` that overwrote the reset would restore the large initial count.
            assert!(counter.get() < MANY);
        }
    }
}
