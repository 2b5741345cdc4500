//! Accepts connections from listeners, for both backends.
//!
//! A backend watches its listeners in an epoll instance. The watch is level-triggered. It is also
//! exclusive, so that a new connection does not wake all loops that share a listener.
//!
//! The io_uring backend uses an epoll instance too, and does not accept through its ring. An
//! operation in a ring keeps its socket open until the kernel has torn down the ring, which happens
//! some time after the end of the process. Until then, a listening socket would keep its address in
//! use, and a server restarted after `kill -9` could not bind the address. An epoll instance, by
//! contrast, holds no reference to the sockets that it watches, so these are closed with the
//! process.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::ACCEPT_REST_MS;
use crate::event::{Event, ListenerId};
use crate::slots::{Slots, Token};

/// Maximum wait passed to the kernel: a century, which in practice means no limit.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Maximum number of connections accepted from one listener in one turn (iteration of the loop).
const ACCEPTS_PER_TURN_MAX: usize = 64;
/// Marks epoll data that belongs to a listener. The bit is 0 in the data of a connection, whose
/// token uses only the lowest 56 bits ([`Token::to_bits`]).
const LISTENER_BIT: u64 = 1 << 63;

/// The listeners of one loop. All calls must pass the same epoll instance.
pub(crate) struct Listeners {
    slots: Slots<Listener>,
    /// Time at which the first resting listener resumes accepting (see [`ACCEPT_REST_MS`]). `None`
    /// if no listener rests.
    rest_until: Option<Instant>,
}

struct Listener {
    socket: OwnedFd,
    /// Whether the caller has paused this listener.
    paused: bool,
    /// End of the listener's rest. A rest starts when descriptors or memory are exhausted, or when
    /// the kernel can't watch the socket.
    resting_until: Option<Instant>,
    /// Whether the socket is registered with the epoll instance.
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

    /// Closes the loop's copy of a listening socket. Does nothing if the listener was already
    /// removed.
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

    /// Returns whether the data of an epoll event identifies a listener.
    pub(crate) fn is_about_listener(data: u64) -> bool {
        data & LISTENER_BIT != 0
    }

    /// Accepts connections from the listener that `data`, the data of an epoll event, identifies.
    /// Returns whether more connections may be waiting.
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
                // The connection was closed before it was accepted, or a signal arrived. Neither
                // affects the next connection.
                Err(_) => {}
            }
        }
        true
    }

    /// Returns `timeout`, or the time until the first rest ends if that is shorter.
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

    /// Resumes the listeners whose rest has ended.
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

    /// Starts a rest: the listener doesn't accept for [`ACCEPT_REST_MS`].
    fn rest(&mut self, token: Token) {
        let until = Instant::now() + Duration::from_millis(ACCEPT_REST_MS);
        if let Some(listener) = self.slots.value_mut(token) {
            listener.resting_until = Some(until);
            self.rest_until = Some(self.rest_until.map_or(until, |other| other.min(until)));
        }
    }

    /// Watches or unwatches a listener, according to its state. Starts a rest if the kernel can't
    /// watch the socket.
    fn watch(&mut self, epoll: &OwnedFd, token: Token) {
        let Some(listener) = self.slots.value_mut(token) else {
            return;
        };
        let wanted = listener.is_wanted();
        if wanted == listener.watched {
            return;
        }
        // The kernel can't modify an exclusive registration, so add or delete it.
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

/// Returns whether an accept failed because resources are exhausted. Immediate retries would spin,
/// because the pending connection keeps the listener ready.
fn is_exhaustion(error: Errno) -> bool {
    matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
}
