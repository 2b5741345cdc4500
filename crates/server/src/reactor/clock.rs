//! The time that commands see: read once per turn, and again where commands have taken long.
//!
//! Within a turn it never goes back, and whatever a connection has seen of time elsewhere (a command of it that ran on another
//! worker, an element that came for it) is no later than what its next command sees: so no connection finds a key whose deadline has
//! passed after one whose deadline is later and had passed. With the next turn it follows the system's clock, also where that was set
//! back.
//!
//! A transaction or a script sees the time when it began until it ends. What comes behind sees that of then.

use std::time::Duration;

use crate::host::Server;

/// How long commands may have run before the clock is read again.
const AGE_MAX: Duration = Duration::from_millis(1);

/// See the head of this module.
pub struct Clock {
    /// The time that commands see, unix time in ms.
    pub now_ms: i64,
    /// When the turn had run its commands, in the clock that never goes back: a turn reads it once.
    pub turn_ran_ms: i64,
    /// How long commands have run since the clock was read, or longer.
    age: Duration,
}

impl Clock {
    /// The time now.
    pub fn new(server: &Server) -> Self {
        Clock { now_ms: server.now_ms(), turn_ran_ms: server.monotonic_ms(), age: Duration::ZERO }
    }

    /// A turn begins.
    #[inline]
    pub fn begin_turn(&mut self, server: &Server) {
        self.now_ms = server.now_ms();
    }

    /// A turn has run its commands.
    #[inline]
    pub fn end_turn(&mut self, server: &Server) {
        self.turn_ran_ms = server.monotonic_ms();
    }

    /// Commands have run for so long: reads the clock again where that is too long.
    #[inline]
    pub fn add(&mut self, took: Duration, server: &Server) {
        self.age = self.age.saturating_add(took);
        if self.age >= AGE_MAX {
            self.age = Duration::ZERO;
            self.now_ms = self.now_ms.max(server.now_ms());
        }
    }

    /// Reads the clock in the midst of a turn.
    pub fn read(&mut self, server: &Server) {
        self.add(AGE_MAX, server);
    }
}
