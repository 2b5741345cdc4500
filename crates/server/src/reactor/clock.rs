//! The time that commands see: read once per turn, and again where commands have taken long.
//!
//! Within a turn it never goes back, and whatever a connection has seen of time elsewhere (a command of it that ran on another
//! worker, an element that came for it) is no later than what its next command sees: so no connection finds a key whose deadline has
//! passed after one whose deadline is later and had passed. With the next turn it follows the system's clock, also where that was set
//! back.
//!
//! A transaction or a script sees the time when it began until it ends. What comes behind sees that of then.

use std::time::Duration;

use pantala_base::Moment;

use crate::host::Server;

/// How long commands may have run before the clock is read again, ns.
const AGE_MAX_NS: u64 = 1_000_000;

/// See the head of this module.
pub struct Clock {
    /// The time that commands see, unix time in ms.
    pub now_ms: i64,
    /// When the turn had run its commands, in the clock that never goes back: a turn reads it once.
    pub turn_ran_ms: i64,
    /// When this turn's last window had run, if nothing that may take long has run since.
    ran: Option<Moment>,
    /// How long commands have run since the clock was read, or longer, ns.
    age_ns: u64,
}

impl Clock {
    /// The time now.
    pub fn new(server: &Server) -> Self {
        Clock { now_ms: server.now_ms(), turn_ran_ms: server.monotonic_ms(), ran: None, age_ns: 0 }
    }

    /// A turn begins.
    #[inline]
    pub fn begin_turn(&mut self, server: &Server) {
        self.now_ms = server.now_ms();
    }

    /// A window has run, and it is that moment.
    #[inline]
    pub fn end_window(&mut self, ran: Moment) {
        self.ran = Some(ran);
    }

    /// A turn has run its commands: that is when its last window had.
    #[inline]
    pub fn end_turn(&mut self, server: &Server) {
        let ran = self.ran.take().unwrap_or_else(Moment::now);
        self.turn_ran_ms = server.monotonic_ms_of(ran);
    }

    /// Commands have run for so long: reads the clock again where that is too long.
    #[inline]
    pub fn add(&mut self, took: Duration, server: &Server) {
        self.add_ns(took.as_nanos() as u64, server);
    }

    /// As [`Clock::add`], in ns.
    #[inline]
    pub fn add_ns(&mut self, took_ns: u64, server: &Server) {
        self.age_ns = self.age_ns.saturating_add(took_ns);
        if self.age_ns >= AGE_MAX_NS {
            self.age_ns = 0;
            self.now_ms = self.now_ms.max(server.now_ms());
        }
    }

    /// Reads the clock in the midst of a turn, in which something may have taken long.
    pub fn read(&mut self, server: &Server) {
        self.ran = None;
        self.add_ns(AGE_MAX_NS, server);
    }
}
