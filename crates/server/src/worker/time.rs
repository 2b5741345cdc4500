//! The time that commands see: read once per turn, and again where commands have taken long.
//!
//! Within a turn it never goes back, and whatever a connection has seen of time elsewhere (a command of it that ran on another worker, an element that came for
//! it) is no later than what its next command sees: so no connection finds a key whose deadline has come behind one whose deadline is later and had come. With the next
//! turn it follows the system's clock, also where that was set back.
//!
//! A transaction or a script sees the time when it began until it ends. What comes behind sees that of then.

use std::time::Duration;

use pantala_runtime::EventLoop;

use super::Worker;
use crate::host::Server;

/// How long commands may have run before the clock is read again.
const AGE_MAX: Duration = Duration::from_millis(1);

/// How long commands have run since the clock was read, or longer.
#[derive(Default)]
pub(super) struct Age(Duration);

impl Age {
    /// Commands have run for so long: reads the clock again where that is too long.
    #[inline]
    pub(super) fn add(&mut self, took: Duration, now_ms: &mut i64, server: &Server) {
        self.0 = self.0.saturating_add(took);
        if self.0 >= AGE_MAX {
            self.0 = Duration::ZERO;
            *now_ms = (*now_ms).max(server.now_ms());
        }
    }
}

impl<L: EventLoop> Worker<'_, L> {
    /// Reads the clock in the midst of a turn.
    pub(super) fn read_clock(&mut self) {
        self.age.add(AGE_MAX, &mut self.now_ms, self.server);
    }
}
