//! The interface between a worker and its event loop: events, and the trait of both backends.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use pantala_base::{Lender, Lent, Outgoing};

use crate::doorbell::Doorbell;
use crate::slots::Token;
use crate::{Backend, RECEIVE_BYTES_MAX};

/// A connection of one loop. A token never names another connection of the same loop (until its
/// 24-bit generation wraps), so a stale one finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(crate) Token);

impl ConnId {
    /// Returns the position in the loop's table: below the number of connections that were ever
    /// open at once. Usable as an index into a table beside the loop's, if
    /// [`generation`](Self::generation) is compared.
    #[inline]
    pub fn index(self) -> usize {
        self.0.index as usize
    }

    /// Returns how many other connections had this position before.
    #[inline]
    pub fn generation(self) -> u32 {
        self.0.generation
    }
}

/// A listening socket of one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(crate) Token);

/// Received bytes, in memory lent by the loop until [`Lender::release`].
///
/// At least one byte and at most [`RECEIVE_BYTES_MAX`]. Dropping a chunk without releasing it leaks
/// its share of the loop's bounded buffers, until receiving stops.
#[derive(Debug)]
#[must_use = "a chunk that isn't released keeps one of the loop's buffers for ever"]
pub struct Chunk {
    pub(crate) buffer: u32,
    pub(crate) start: u32,
    pub(crate) len_bytes: u32,
    /// The lender: no other loop accepts the chunk.
    pub(crate) lender: u32,
}

impl Chunk {
    /// Returns the number of bytes, 1 to [`RECEIVE_BYTES_MAX`].
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a chunk is never empty")]
    pub fn len(&self) -> usize {
        debug_assert!((1..=RECEIVE_BYTES_MAX).contains(&(self.len_bytes as usize)));
        self.len_bytes as usize
    }

    /// Shortens it to its first bytes: a layer that decrypts has moved what it holds there.
    ///
    /// # Panics
    /// If that is none, or more than it has.
    pub fn truncate(&mut self, len: usize) {
        assert!((1..=self.len()).contains(&len), "a chunk of {len} bytes");
        self.len_bytes = len as u32;
    }
}

impl Lent for Chunk {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.len()
    }
}

/// What happened, as a loop reports it.
#[derive(Debug)]
pub enum Event {
    /// A connection was accepted. It is in no loop yet: [`EventLoop::add`] it here, or hand it to
    /// another worker.
    Accepted {
        /// The socket that accepted.
        listener: ListenerId,
        /// The connection, non-blocking and close-on-exec.
        socket: OwnedFd,
    },
    /// Bytes arrived.
    Data {
        /// The connection that received them.
        conn: ConnId,
        /// The bytes, to be released with [`Lender::release`].
        chunk: Chunk,
    },
    /// The peer closed its sending half. No `Data` follows; sends are still possible.
    Eof {
        /// The connection, still open on this side.
        conn: ConnId,
    },
    /// Receiving failed (usually a reset). No `Data` follows; only [`EventLoop::close`] remains.
    Failed {
        /// The connection, still to be closed.
        conn: ConnId,
        /// The reason.
        error: io::Error,
    },
    /// A send ended.
    Sent {
        /// The connection.
        conn: ConnId,
        /// The buffer of the send, emptied, with its capacity; without capacity for shared bytes.
        buffer: Vec<u8>,
        /// `Ok`: the kernel took all its bytes. An error: it did not take all, and never will.
        result: io::Result<()>,
    },
    /// The doorbell rang at least once since the last `Woken`.
    Woken,
}

impl Event {
    /// Returns the connection that the event is about, if any.
    #[inline]
    pub fn conn(&self) -> Option<ConnId> {
        match self {
            Event::Data { conn, .. } | Event::Eof { conn } | Event::Failed { conn, .. } | Event::Sent { conn, .. } => {
                Some(*conn)
            }
            Event::Accepted { .. } | Event::Woken => None,
        }
    }
}

/// An event loop: used by one thread, the one that created it.
///
/// A turn of a worker is [`poll`](Self::poll), the handling of its events, and the sends that
/// follow, which the next `poll` submits together, unless they were done at once
/// ([`send_at_once`](Self::send_at_once)). Only `poll` makes events.
pub trait EventLoop: Lender<Chunk = Chunk> + Sized {
    /// Creates a loop that `doorbell` wakes. One doorbell belongs to one loop.
    ///
    /// # Errors
    /// If the kernel rejects it: descriptors or memory are exhausted, or (io_uring) see
    /// [`crate::probe`].
    fn new(doorbell: Doorbell) -> io::Result<Self>;

    /// Returns which backend this is.
    fn backend(&self) -> Backend;

    /// Returns the doorbell given to [`new`](Self::new).
    fn doorbell(&self) -> Doorbell;

    /// Accepts from a listening socket. The socket is made non-blocking. It may be shared between
    /// loops (then whichever loop is awake accepts) or be one of several with `SO_REUSEPORT`.
    ///
    /// If descriptors or memory are exhausted, accepting rests for [`crate::ACCEPT_REST_MS`] and is
    /// then retried.
    ///
    /// # Errors
    /// If the kernel can't watch the descriptor.
    fn add_listener(&mut self, socket: OwnedFd) -> io::Result<ListenerId>;

    /// Stops accepting and closes the socket (once no accept is in flight). Connections accepted
    /// before may still be reported by the next poll.
    fn remove_listener(&mut self, listener: ListenerId);

    /// Stops accepting until [`resume_accept`](Self::resume_accept): new connections wait in the
    /// socket's backlog. Some that were accepted already may still be reported.
    fn pause_accept(&mut self, listener: ListenerId);

    /// Resumes accepting.
    fn resume_accept(&mut self, listener: ListenerId);

    /// Takes ownership of a connected stream socket (TCP or Unix) and starts receiving. The socket
    /// is made non-blocking.
    ///
    /// # Errors
    /// If the kernel can't watch the descriptor.
    fn add(&mut self, socket: OwnedFd) -> io::Result<ConnId>;

    /// Returns the connection's socket, for its addresses and options; `None` once it is closed.
    fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>>;

    /// Stops receiving, which slows the peer down once the kernel's buffers are full. Bytes
    /// received already may still be reported by the next poll. A closed connection is ignored.
    fn pause_receive(&mut self, conn: ConnId);

    /// Resumes receiving after [`pause_receive`](Self::pause_receive). A closed connection is
    /// ignored.
    fn resume_receive(&mut self, conn: ConnId);

    /// Sends the whole buffer, or shared bytes, at the next [`poll`](Self::poll); a buffer comes
    /// back in [`Event::Sent`].
    ///
    /// # Panics
    /// If it is empty, the connection is closed, or an earlier send of it has not been reported as
    /// `Sent` yet.
    fn send(&mut self, conn: ConnId, bytes: impl Into<Outgoing>);

    /// Sends as [`send`](Self::send), but its success does not end a wait: `Sent` comes together
    /// with the next other event. A request-reply server uses it: a wait that its own sends end at
    /// once would find too few requests per turn. If output is queued behind such a send after all,
    /// call [`expect_sent`](Self::expect_sent) before the next poll, or it may stay queued until
    /// something else happens.
    ///
    /// # Panics
    /// As `send`.
    fn send_quiet(&mut self, conn: ConnId, bytes: impl Into<Outgoing>);

    /// Sends the whole buffer at once, if this backend does so and the socket has room. Returns the
    /// buffer, emptied, if the kernel took all its bytes: no [`Event::Sent`] follows. Otherwise the
    /// rest is sent as by [`send_quiet`](Self::send_quiet), and `None` is returned.
    ///
    /// # Panics
    /// As `send`.
    #[inline]
    fn send_at_once(&mut self, conn: ConnId, buffer: Vec<u8>) -> Option<Vec<u8>> {
        self.send_quiet(conn, buffer);
        None
    }

    /// Makes the send in flight on `conn`, if any, end the wait when it is done, as if
    /// [`send`](Self::send) had been used.
    fn expect_sent(&mut self, conn: ConnId);

    /// Drops all operations and closes. No event follows for the connection; the buffer of a send
    /// in flight is dropped once the kernel is done with it. A closed connection is ignored.
    fn close(&mut self, conn: ConnId);

    /// Submits everything, then waits for events and appends them to `events`.
    ///
    /// `timeout`: `None` waits without end, `Some(ZERO)` takes what is there. May return early
    /// without any event (a signal was handled, a rest ended), and reports a bounded number of
    /// events, so more may be there.
    ///
    /// # Errors
    /// If the kernel can't wait: a programming error, or no memory. Failures of single connections
    /// are events.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;
}
