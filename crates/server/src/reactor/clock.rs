//! The time that commands see: read once per turn (iteration of the worker's event loop), and again
//! after commands that took long.
//!
//! Within a turn, the time that a connection's commands see never decreases. It is at least the
//! time that earlier commands of the connection have seen on other workers. If the connection was
//! blocked and another client's command has served it, the time is also at least the time that this
//! other command has seen. So once a connection has found a key expired, it finds all keys with
//! earlier deadlines expired too. In the next turn, the time follows the system's clock again, even
//! if that clock was set back.
//!
//! All commands of a transaction or a script see the time when it started. Later commands see the
//! time when it ended.

use std::time::Duration;

use pantala_base::Moment;

use crate::host::Server;

/// Run time of commands after which the clock is read again, ns.
const AGE_MAX_NS: u64 = 1_000_000;

/// The clock of a worker.
pub struct Clock {
    /// The time that commands see, Unix time in ms.
    pub now_ms: i64,
    /// When the turn's commands ended, in ms of the monotonic clock. Set once per turn.
    pub turn_ran_ms: i64,
    /// When the latest window (list of commands that run together) of this turn ended; `None` if
    /// other work, which may have taken long, has run since.
    ran: Option<Moment>,
    /// Upper bound of the time for which commands have run since the clock was read, ns.
    age_ns: u64,
}

impl Clock {
    /// Creates a clock set to the current time.
    pub fn new(server: &Server) -> Self {
        Clock { now_ms: server.now_ms(), turn_ran_ms: server.monotonic_ms(), ran: None, age_ns: 0 }
    }

    /// Starts a turn.
    #[inline]
    pub fn begin_turn(&mut self, server: &Server) {
        self.now_ms = server.now_ms();
    }

    /// Notes when a window ended.
    #[inline]
    pub fn end_window(&mut self, ran: Moment) {
        self.ran = Some(ran);
    }

    /// Notes when the turn's commands ended: at the end of the latest window, or now if that is
    /// unknown.
    #[inline]
    pub fn end_turn(&mut self, server: &Server) {
        let ran = self.ran.take().unwrap_or_else(Moment::now);
        self.turn_ran_ms = server.monotonic_ms_of(ran);
    }

    /// Adds the run time of commands. Reads the clock again once commands have run for
    /// [`AGE_MAX_NS`].
    #[inline]
    pub fn add(&mut self, took: Duration, server: &Server) {
        self.add_ns(took.as_nanos() as u64, server);
    }

    /// Adds the run time of commands, ns. Reads the clock again once commands have run for
    /// [`AGE_MAX_NS`].
    #[inline]
    pub fn add_ns(&mut self, took_ns: u64, server: &Server) {
        self.age_ns = self.age_ns.saturating_add(took_ns);
        if self.age_ns >= AGE_MAX_NS {
            self.age_ns = 0;
            self.now_ms = self.now_ms.max(server.now_ms());
        }
    }

    /// Reads the clock within a turn, after work that may have taken long.
    pub fn read(&mut self, server: &Server) {
        self.ran = None;
        self.add_ns(AGE_MAX_NS, server);
    }
}
