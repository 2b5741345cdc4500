//! The words between a worker and its event loop, and the trait both backends serve.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use pantala_base::{Lender, Lent, Outgoing};

use crate::doorbell::Doorbell;
use crate::slots::Token;
use crate::{Backend, RECEIVE_BYTES_MAX};

/// A connection of one loop. A token is never given to another connection of the same loop
/// (until its 24-bit generation wraps), so a late use of a closed one finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(crate) Token);

impl ConnId {
    /// Position in the loop's table: below the number of connections that were ever open at once.
    /// Good as an index into a table beside the loop's, if [`generation`](Self::generation) is compared.
    #[inline]
    pub fn index(self) -> usize {
        self.0.index as usize
    }

    /// How often the position was given to another connection before.
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
/// At most [`RECEIVE_BYTES_MAX`] bytes, never none. Dropping a chunk without releasing it leaks
/// its share of the loop's bounded buffers, so that receiving comes to a halt at some time.
#[derive(Debug)]
#[must_use = "a chunk that isn't released keeps one of the loop's buffers for ever"]
pub struct Chunk {
    pub(crate) buffer: u32,
    pub(crate) start: u32,
    pub(crate) len_bytes: u32,
    /// The lender, so that a chunk is taken back by no other loop.
    pub(crate) lender: u32,
}

impl Chunk {
    /// Number of bytes, 1 to [`RECEIVE_BYTES_MAX`].
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "a chunk is never empty")]
    pub fn len(&self) -> usize {
        debug_assert!((1..=RECEIVE_BYTES_MAX).contains(&(self.len_bytes as usize)));
        self.len_bytes as usize
    }
}

impl Lent for Chunk {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.len()
    }
}

/// What a loop has to tell.
#[derive(Debug)]
pub enum Event {
    /// A connection was accepted. It is in no loop yet: [`EventLoop::add`] it here, or hand it to another worker.
    Accepted {
        /// The socket that accepted.
        listener: ListenerId,
        /// The connection, non-blocking and close-on-exec.
        socket: OwnedFd,
    },
    /// Bytes arrived.
    Data {
        /// Where they arrived.
        conn: ConnId,
        /// The bytes, to be given back with [`Lender::release`].
        chunk: Chunk,
    },
    /// The peer closed its sending half. No `Data` follows; sends are still possible.
    Eof {
        /// The connection, still open on this side.
        conn: ConnId,
    },
    /// Receiving failed (a reset, usually). No `Data` follows; all that is left is [`EventLoop::close`].
    Failed {
        /// The connection, still to be closed.
        conn: ConnId,
        /// Why.
        error: io::Error,
    },
    /// A send ended.
    Sent {
        /// The connection.
        conn: ConnId,
        /// The buffer given to the send, emptied, with its capacity; of shared bytes one without.
        buffer: Vec<u8>,
        /// `Ok`: the kernel took all its bytes. An error: some of them were not taken and never will be.
        result: io::Result<()>,
    },
    /// The doorbell rang at least once since the last `Woken`.
    Woken,
}

impl Event {
    /// The connection that it is of.
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
/// A turn of a worker is [`poll`](Self::poll), the handling of its events, and the sends that follow from them,
/// which the next `poll` submits together. Nothing but `poll` makes events.
pub trait EventLoop: Lender<Chunk = Chunk> + Sized {
    /// A loop that `doorbell` wakes. One doorbell belongs to one loop.
    ///
    /// # Errors
    /// What the kernel refuses: descriptors or memory are used up, or (io_uring) see [`crate::probe`].
    fn new(doorbell: Doorbell) -> io::Result<Self>;

    /// Which backend this is.
    fn backend(&self) -> Backend;

    /// The doorbell given to [`new`](Self::new).
    fn doorbell(&self) -> Doorbell;

    /// Accepts from a listening socket. The socket is made non-blocking. It may be shared between loops
    /// (then whichever loop is awake accepts) or be one of several with `SO_REUSEPORT`.
    ///
    /// When descriptors or memory are used up, accepting rests for [`crate::ACCEPT_REST_MS`] and is tried again.
    ///
    /// # Errors
    /// The kernel refuses to watch the descriptor.
    fn add_listener(&mut self, socket: OwnedFd) -> io::Result<ListenerId>;

    /// Stops accepting and closes the socket (when no accept is under way any more). Connections that were accepted
    /// before may still be reported by the next poll.
    fn remove_listener(&mut self, listener: ListenerId);

    /// Stops accepting until [`resume_accept`](Self::resume_accept): new connections wait in the socket's backlog.
    /// Some that were accepted already may still be reported.
    fn pause_accept(&mut self, listener: ListenerId);

    /// Accepts again.
    fn resume_accept(&mut self, listener: ListenerId);

    /// Takes a connected stream socket (TCP or unix) and starts to receive. The socket is made non-blocking.
    ///
    /// # Errors
    /// The kernel refuses to watch the descriptor.
    fn add(&mut self, socket: OwnedFd) -> io::Result<ConnId>;

    /// The connection's socket, for its addresses and options; `None` once it is closed.
    fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>>;

    /// Stops receiving, so that the peer is slowed down once the kernel's buffers are full.
    /// Bytes that were received already may still be reported by the next poll. A closed connection is ignored.
    fn pause_receive(&mut self, conn: ConnId);

    /// Receives again after [`pause_receive`](Self::pause_receive). A closed connection is ignored.
    fn resume_receive(&mut self, conn: ConnId);

    /// Sends the whole buffer, or bytes that are shared, at the next [`poll`](Self::poll); a buffer comes back in [`Event::Sent`].
    ///
    /// # Panics
    /// When it is empty, the connection is closed, or an earlier send of it has not been reported as `Sent` yet.
    fn send(&mut self, conn: ConnId, bytes: impl Into<Outgoing>);

    /// As [`send`](Self::send), but its success does not end a wait: `Sent` comes together with the next other event.
    /// A request-reply server sends so: a wait that its own sends end at once would find too few requests per turn.
    /// If output is queued behind such a send after all, call [`expect_sent`](Self::expect_sent) before the next poll,
    /// or it may stay queued until something else happens.
    ///
    /// # Panics
    /// As `send`.
    fn send_quiet(&mut self, conn: ConnId, bytes: impl Into<Outgoing>);

    /// Makes the send in flight on `conn`, if any, end the wait when it is done, as if [`send`](Self::send) had been used.
    fn expect_sent(&mut self, conn: ConnId);

    /// Drops what is in flight and closes. No event follows for the connection; the buffer of a send in flight
    /// is dropped once the kernel is done with it. A closed connection is ignored.
    fn close(&mut self, conn: ConnId);

    /// Submits everything, then waits for events and appends them to `events`.
    ///
    /// `timeout`: `None` waits without end, `Some(ZERO)` takes what is there. May come back early with no event
    /// at all (a signal was handled, a rest ended), and brings a bounded number of events, so more may be there.
    ///
    /// # Errors
    /// The kernel refuses to wait: a programmer's error or no memory. Troubles of single connections are events.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;
}
