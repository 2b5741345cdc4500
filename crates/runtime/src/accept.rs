//! When a listener accepts: shared by both backends.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::ACCEPT_REST_MS;

/// The longest wait that is handed to the kernel; nobody sees it end.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Whether a listener is to accept now.
#[derive(Default)]
pub(crate) struct Accepting {
    /// By the caller's wish.
    pub(crate) paused: bool,
    /// The host was out of something: tried again at this time.
    resting_until: Option<Instant>,
}

impl Accepting {
    pub(crate) fn is_wanted(&self) -> bool {
        !self.paused && self.resting_until.is_none()
    }

    /// Begins a rest, and says when it ends.
    pub(crate) fn rest(&mut self) -> Instant {
        let until = Instant::now() + Duration::from_millis(ACCEPT_REST_MS);
        self.resting_until = Some(until);
        until
    }

    /// Ends the rest if it is over at `now`; otherwise says when it will be.
    pub(crate) fn end_rest(&mut self, now: Instant) -> Option<Instant> {
        self.resting_until = self.resting_until.filter(|&until| now < until);
        self.resting_until
    }
}

/// Whether an accept failed because something is used up, so that trying again at once would spin:
/// the waiting connection keeps the listener ready.
pub(crate) fn is_exhaustion(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}
