//! An integer level with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A level that rises and falls.
///
/// As with [`crate::Counter`], only one thread at a time may change the level (a change is a plain
/// load and store); any thread may read it at any time. A reader that sees a change doesn't
/// necessarily see the writer's earlier stores to other memory.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Adds `n`. Only the owner may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Subtracts `n`. Only the owner may call it.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// Sets the level. Only the owner may call it.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// Returns the current level.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_and_falls() {
        let gauge = Gauge::default();
        gauge.add(5);
        gauge.sub(2);
        assert_eq!(gauge.get(), 3);
        gauge.set(0);
        assert_eq!(gauge.get(), 0);
    }
}
