//! A level with one writer and any number of readers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A level that goes up and down. As with [`crate::Counter`], only one thread at a time may change it (each change is a plain load and store), anyone
/// may read it at any time; nothing else is ordered by it.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Raises it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Lowers it.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_sub(n), Relaxed);
    }

    /// Sets it.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// What it is now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_up_and_down() {
        let gauge = Gauge::default();
        gauge.add(5);
        gauge.sub(2);
        assert_eq!(gauge.get(), 3);
        gauge.set(0);
        assert_eq!(gauge.get(), 0);
    }
}
