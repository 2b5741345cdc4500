//! The flag that a change of a watched key raises (`WATCH`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A flag that is raised when a watched key is changed.
#[derive(Default)]
pub struct Watch {
    changed: AtomicBool,
}

impl Watch {
    /// Returns whether a key is known to have changed.
    pub fn is_changed(&self) -> bool {
        // Relaxed: if the caller holds the shards of the keys, acquiring them provides the
        // ordering. For other threads the result is only a hint.
        self.changed.load(Relaxed)
    }

    /// Records that a watched key was changed.
    pub(crate) fn raise(&self) {
        self.changed.store(true, Relaxed);
    }
}
