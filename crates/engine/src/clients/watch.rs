//! The flag of a client that watches keys (`WATCH`).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Raised when a watched key is changed.
#[derive(Default)]
pub struct Watch {
    changed: AtomicBool,
}

impl Watch {
    /// Whether it is known already that a key was changed.
    pub fn is_changed(&self) -> bool {
        // The shards that are held carry the order; before that, it is only a hint.
        self.changed.load(Relaxed)
    }

    /// Marks it: a watched key was changed.
    pub(crate) fn raise(&self) {
        self.changed.store(true, Relaxed);
    }
}
