//! The interface between a worker and its event loop: the events, and the trait of both backends.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use pantala_base::{Lender, Lent, Outgoing};

use crate::doorbell::Doorbell;
use crate::slots::Token;
use crate::{Backend, RECEIVE_BYTES_MAX};

/// Identifies a connection of one loop. Once the connection is closed, its ID refers to nothing,
/// even if a new connection has the same position in the loop's table (until the 24-bit generation
/// wraps).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub(crate) Token);

impl ConnId {
    /// Returns the position in the loop's table. It is less than the maximum number of connections
    /// that were ever open at the same time. Callers may use it as an index into a table of their
    /// own, if they also compare [`generation`](Self::generation).
    #[inline]
    pub fn index(self) -> usize {
        self.0.index as usize
    }

    /// Returns how many connections had this position before, modulo 2^24.
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
/// A chunk has at least one byte and at most [`RECEIVE_BYTES_MAX`]. If a chunk is dropped without
/// being released, its part of the loop's bounded buffers is lost. Once all buffers are lost,
/// receiving stops.
#[derive(Debug)]
#[must_use = "a chunk that isn't released keeps one of the loop's buffers for ever"]
pub struct Chunk {
    pub(crate) buffer: u32,
    pub(crate) start: u32,
    pub(crate) len_bytes: u32,
    /// Number of the io_uring loop that lent the chunk. All other io_uring loops reject the chunk.
    /// In a chunk of an epoll loop, the number is 0.
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

    /// Shortens the chunk to its first `len` bytes. A decrypting layer calls this after it has
    /// moved the plaintext to the start of the chunk.
    ///
    /// # Panics
    /// If `len` is 0, or more than the chunk's length.
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

/// An event that a loop reports.
#[derive(Debug)]
pub enum Event {
    /// A connection was accepted. It belongs to no loop yet. The caller passes it to
    /// [`EventLoop::add`] of this worker's loop or of another worker's.
    Accepted {
        /// The listener that accepted the connection.
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
    /// The peer closed its sending half. No `Data` follows, but sends are still possible.
    Eof {
        /// The connection, still open on this side.
        conn: ConnId,
    },
    /// Receiving failed, usually because the peer has reset the connection. No `Data` follows. The
    /// caller must call [`EventLoop::close`].
    Failed {
        /// The connection, still open on this side.
        conn: ConnId,
        /// The reason.
        error: io::Error,
    },
    /// A send ended.
    Sent {
        /// The connection.
        conn: ConnId,
        /// The buffer of the send, emptied for reuse. It has no capacity if shared bytes were sent.
        buffer: Vec<u8>,
        /// `Ok` if the kernel accepted all bytes. After an error, the remaining bytes are lost.
        result: io::Result<()>,
    },
    /// The doorbell rang at least once since the last `Woken`.
    Woken,
}

impl Event {
    /// Returns the connection that the event belongs to, if any.
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

/// An event loop. Only the thread that created the loop uses it.
///
/// A turn of a worker consists of [`poll`](Self::poll), the handling of its events, and the
/// resulting sends. The next `poll` submits these sends together, except those that are sent at
/// once ([`send_at_once`](Self::send_at_once)). Only `poll` produces events.
pub trait EventLoop: Lender<Chunk = Chunk> + Sized {
    /// Creates a loop that `doorbell` wakes. Each doorbell belongs to one loop.
    ///
    /// # Errors
    /// If descriptors or memory are exhausted. With io_uring, also for every reason that
    /// [`crate::probe`] can return.
    fn new(doorbell: Doorbell) -> io::Result<Self>;

    /// Returns the backend of this loop.
    fn backend(&self) -> Backend;

    /// Returns the doorbell given to [`new`](Self::new).
    fn doorbell(&self) -> Doorbell;

    /// Starts to accept from a listening socket, and makes the socket non-blocking. Several loops
    /// may share one socket, and exactly one of them then accepts each connection. Alternatively,
    /// each loop has its own socket with `SO_REUSEPORT`.
    ///
    /// If descriptors or memory are exhausted, or the kernel cannot watch the socket, accepting
    /// pauses for [`crate::ACCEPT_REST_MS`] and is then retried.
    ///
    /// # Errors
    /// If the socket cannot be made non-blocking.
    fn add_listener(&mut self, socket: OwnedFd) -> io::Result<ListenerId>;

    /// Stops accepting, and closes the loop's copy of the socket. The next poll may still report
    /// connections that were accepted before. Does nothing if the listener was already removed.
    fn remove_listener(&mut self, listener: ListenerId);

    /// Stops accepting until [`resume_accept`](Self::resume_accept). Until then, new connections
    /// wait in the socket's backlog. Connections that were accepted before may still be reported.
    fn pause_accept(&mut self, listener: ListenerId);

    /// Resumes accepting.
    fn resume_accept(&mut self, listener: ListenerId);

    /// Takes ownership of a connected stream socket (TCP or Unix), makes the socket non-blocking,
    /// and starts receiving.
    ///
    /// # Errors
    /// If the socket cannot be made non-blocking or, with epoll, the kernel cannot watch it.
    fn add(&mut self, socket: OwnedFd) -> io::Result<ConnId>;

    /// Returns the connection's socket, for access to addresses and options. Returns `None` if the
    /// connection is closed.
    fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>>;

    /// Stops receiving, which slows down the peer once the kernel's buffers are full. The next poll
    /// may still report bytes that were received before. Does nothing if the connection is closed.
    fn pause_receive(&mut self, conn: ConnId);

    /// Resumes receiving after [`pause_receive`](Self::pause_receive). Does nothing if the
    /// connection is closed.
    fn resume_receive(&mut self, conn: ConnId);

    /// Sends a buffer or shared bytes at the next [`poll`](Self::poll). [`Event::Sent`] returns the
    /// buffer.
    ///
    /// # Panics
    /// If `bytes` is empty, if the connection is closed, or if the `Sent` event of the connection's
    /// previous send has not been reported.
    fn send(&mut self, conn: ConnId, bytes: impl Into<Outgoing>);

    /// Does the same as [`send`](Self::send), except that success does not end a wait: `Sent` is
    /// reported together with the next event that ends a wait. Servers send their replies in this
    /// way. If the completion of each reply ended the wait, a turn would receive too few requests.
    ///
    /// If more output is queued after this send, [`expect_sent`](Self::expect_sent) must be called
    /// before the next poll. Otherwise that output waits for an event that ends a wait.
    ///
    /// # Panics
    /// As `send`.
    fn send_quiet(&mut self, conn: ConnId, bytes: impl Into<Outgoing>);

    /// If the backend is epoll and the socket has room, sends the whole buffer at once. If the
    /// kernel took all bytes, returns the emptied buffer, and no [`Event::Sent`] follows. Otherwise
    /// sends the remaining bytes like [`send_quiet`](Self::send_quiet), and returns `None`.
    ///
    /// # Panics
    /// As `send`.
    #[inline]
    fn send_at_once(&mut self, conn: ConnId, buffer: Vec<u8>) -> Option<Vec<u8>> {
        self.send_quiet(conn, buffer);
        None
    }

    /// Makes the completion of the send in flight on `conn` end a wait, as if the send had been
    /// started with [`send`](Self::send). Does nothing if no send is in flight.
    fn expect_sent(&mut self, conn: ConnId);

    /// Removes a connection and returns its socket, which another loop can add. Receiving must be
    /// paused ([`pause_receive`](Self::pause_receive)). Returns `None`, and changes nothing, while
    /// an operation of the connection is in flight, and if the connection has ended or is closed.
    /// Bytes that have not been reported remain in the socket.
    fn detach(&mut self, conn: ConnId) -> Option<OwnedFd>;

    /// Cancels all operations of the connection and closes it. No further event is reported for the
    /// connection. The buffer of a send in flight is dropped once the kernel has finished with it.
    /// Does nothing if the connection is already closed.
    fn close(&mut self, conn: ConnId);

    /// Submits all queued operations, waits for events and appends them to `events`.
    ///
    /// If `timeout` is `None`, waits without limit; if it is zero, does not wait. A poll may return
    /// early without any event, after a signal or when a listener resumes. The number of events per
    /// poll is bounded, so more events may be available.
    ///
    /// # Errors
    /// If the kernel cannot wait, because of a programming error or a lack of memory. Failures of
    /// single connections are reported as events.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()>;
}
