//! The flag of a client that watches keys (`WATCH`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Raised when a watched key is changed.
#[derive(Default)]
pub struct Watch {
    changed: AtomicBool,
}

impl Watch {
    /// Returns whether a key is known to have changed.
    pub fn is_changed(&self) -> bool {
        // For a holder of the keys' shards, taking the shards provides the ordering. For other
        // threads the result is only a hint.
        self.changed.load(Relaxed)
    }

    /// Records that a watched key was changed.
    pub(crate) fn raise(&self) {
        self.changed.store(true, Relaxed);
    }
}
