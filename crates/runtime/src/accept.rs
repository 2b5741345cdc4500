//! Listeners: when and how they accept, shared by both backends.
//!
//! A backend watches its listeners in an epoll instance, level-triggered and exclusively (they may
//! be shared between loops). io_uring too: an operation in a ring keeps its socket open until the
//! kernel has torn the ring down, which it does some time after the process has ended. A listening
//! socket in a ring would keep its address in use that long, and a server that is restarted after
//! `kill -9` could not bind it. An epoll instance keeps no reference to the sockets that it
//! watches, so they are closed with the process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::ACCEPT_REST_MS;
use crate::event::{Event, ListenerId};
use crate::slots::{Slots, Token};

/// The longest wait that is passed to the kernel; it never ends in practice.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Maximum connections accepted from one listener in one turn.
const ACCEPTS_PER_TURN_MAX: usize = 64;
/// Marks a report that is about a listener: above the highest bit of a generation (see
/// `GENERATION_MAX`).
const LISTENER_BIT: u64 = 1 << 63;

/// The listeners of one loop. All methods with an epoll instance must get the same one.
pub(crate) struct Listeners {
    slots: Slots<Listener>,
    /// When the first resting listener accepts again.
    rest_until: Option<Instant>,
}

struct Listener {
    socket: OwnedFd,
    /// Paused by the caller.
    paused: bool,
    /// The host was out of descriptors or memory: retried at this time.
    resting_until: Option<Instant>,
    watched: bool,
}

impl Listener {
    fn is_wanted(&self) -> bool {
        !self.paused && self.resting_until.is_none()
    }
}

impl Listeners {
    pub(crate) fn new() -> Self {
        Listeners { slots: Slots::new(), rest_until: None }
    }

    /// Takes ownership of a listening socket and watches it.
    ///
    /// # Errors
    /// If the socket can't be made non-blocking.
    pub(crate) fn add(&mut self, epoll: &OwnedFd, socket: OwnedFd) -> io::Result<ListenerId> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let token = self.slots.insert(Listener { socket, paused: false, resting_until: None, watched: false });
        self.watch(epoll, token);
        Ok(ListenerId(token))
    }

    /// Closes the loop's copy of a listening socket; does nothing if it was removed before.
    pub(crate) fn remove(&mut self, epoll: &OwnedFd, listener: ListenerId) {
        self.set_paused(epoll, listener, true);
        self.slots.remove(listener.0);
    }

    /// Stops or resumes accepting.
    pub(crate) fn set_paused(&mut self, epoll: &OwnedFd, listener: ListenerId, paused: bool) {
        if let Some(state) = self.slots.value_mut(listener.0) {
            state.paused = paused;
            self.watch(epoll, listener.0);
        }
    }

    /// Returns whether an epoll report with this data is about a listener.
    pub(crate) fn is_about_listener(data: u64) -> bool {
        data & LISTENER_BIT != 0
    }

    /// Accepts from the listener that a report is about. Returns whether more connections may be
    /// waiting there.
    pub(crate) fn accept(&mut self, epoll: &OwnedFd, data: u64, events: &mut Vec<Event>) -> bool {
        let token = Token::from_bits(data & !LISTENER_BIT);
        let Some(listener) = self.slots.value_mut(token) else {
            return false;
        };
        for _ in 0..ACCEPTS_PER_TURN_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(&listener.socket, flags) {
                Ok(socket) => events.push(Event::Accepted { listener: ListenerId(token), socket }),
                Err(Errno::AGAIN) => return false,
                Err(error) if is_exhaustion(error) => {
                    self.rest(token);
                    self.watch(epoll, token);
                    return false;
                }
                // The connection has been closed already, or a signal came: the next one may be
                // fine.
                Err(_) => {}
            }
        }
        true
    }

    /// Returns the maximum time of a wait: until the first rest ends, or `timeout`.
    #[inline]
    pub(crate) fn shorten(&self, timeout: Option<Duration>) -> Option<Duration> {
        match self.rest_until {
            None => timeout,
            Some(until) => Self::shortened(until, timeout),
        }
    }

    #[cold]
    fn shortened(until: Instant, timeout: Option<Duration>) -> Option<Duration> {
        let rest = until.saturating_duration_since(Instant::now());
        Some(timeout.map_or(rest, |timeout| timeout.min(rest)))
    }

    /// Ends the rests whose time has come.
    #[inline]
    pub(crate) fn end_rests(&mut self, epoll: &OwnedFd) {
        if let Some(until) = self.rest_until {
            self.end_rests_until(epoll, until);
        }
    }

    #[cold]
    fn end_rests_until(&mut self, epoll: &OwnedFd, until: Instant) {
        let now = Instant::now();
        if now < until {
            return;
        }
        self.rest_until = None;
        let mut rested = Vec::new();
        for (token, listener) in self.slots.iter_mut() {
            listener.resting_until = listener.resting_until.filter(|&until| now < until);
            match listener.resting_until {
                Some(later) => self.rest_until = Some(self.rest_until.map_or(later, |other| other.min(later))),
                None => rested.push(token),
            }
        }
        for token in rested {
            self.watch(epoll, token);
        }
    }

    /// Starts a rest.
    fn rest(&mut self, token: Token) {
        let until = Instant::now() + Duration::from_millis(ACCEPT_REST_MS);
        if let Some(listener) = self.slots.value_mut(token) {
            listener.resting_until = Some(until);
            self.rest_until = Some(self.rest_until.map_or(until, |other| other.min(until)));
        }
    }

    /// Watches or unwatches the listener, according to its state. A failure leaves it unwatched
    /// until the rest ends.
    fn watch(&mut self, epoll: &OwnedFd, token: Token) {
        let Some(listener) = self.slots.value_mut(token) else {
            return;
        };
        let wanted = listener.is_wanted();
        if wanted == listener.watched {
            return;
        }
        // EPOLLEXCLUSIVE can't be modified: add or delete.
        if wanted {
            let data = epoll::EventData::new_u64(token.to_bits() | LISTENER_BIT);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            match epoll::add(epoll, &listener.socket, data, flags) {
                Ok(()) => listener.watched = true,
                Err(_) => self.rest(token),
            }
        } else if epoll::delete(epoll, &listener.socket).is_ok() {
            listener.watched = false;
        }
    }
}

/// Returns whether an accept failed because of exhaustion, so that an immediate retry would spin:
/// the waiting connection keeps the listener ready.
fn is_exhaustion(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}
