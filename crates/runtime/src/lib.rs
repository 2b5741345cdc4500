//! Event loops for Pantala's workers: one trait, [`EventLoop`], and two backends. Also contains
//! [`SequentialFile`], which the server's file threads use.
//!
//! The server's workers and `pantala-bench floor` use these loops. A loop belongs to the thread
//! that created it. Other threads may use only the loop's [`Doorbell`].
//!
//! # Words
//!
//! - **loop**: the event sources of one worker thread: its listeners, connections and doorbell.
//! - **turn**: one [`EventLoop::poll`], the handling of its events, and the sends that follow.
//! - **quiet send**: a send whose success does not make `poll` return ([`EventLoop::send_quiet`]).
//! - **chunk**: received bytes, in memory that the loop lends to the caller until `release`.
//! - **doorbell**: the handle by which another thread wakes a loop ([`Doorbell`], an eventfd).
//!
//! # Ownership
//!
//! | resource | owner |
//! | --- | --- |
//! | a socket | the loop, from `add` or `add_listener` to `close` or `remove_listener` |
//! | an accepted socket | the receiver of `Event::Accepted`, until it passes the socket to `add` |
//! | memory of received bytes | the loop, always |
//! | the buffer of a send | the loop, from `send` to the `Sent` event |
//! | bytes that many sends share ([`SharedBytes`]) | all of these sends together |
//!
//! The caller may read and change the bytes of a [`Chunk`] until it releases the chunk. The loop
//! owns the buffer of a send because the kernel may be reading the buffer. If the connection is
//! closed or the loop is dropped before `Sent`, the buffer is kept until the kernel has finished
//! with it. If shared bytes are sent, a reference to them is kept just as long. `send_at_once` may
//! return the buffer immediately.
//!
//! # Backends
//!
//! [`UringLoop`]: multishot receive into a ring of provided buffers. The system call that waits for
//! the next events also submits the sends of a turn. While the loop is mostly idle, sends are made
//! directly instead.
//!
//! [`EpollLoop`]: edge-triggered readiness. In each turn, each readable connection costs one
//! `recv`, into a pool of packed buffers, and each sending connection costs one `send`. A caller
//! that needs no event can send at once ([`EventLoop::send_at_once`]).
//!
//! [`choose`] picks a backend that the kernel allows.
//!
//! # What it costs
//!
//! Memory per connection: about 100 bytes in the loop, and the kernel's socket. Buffers per loop: 1
//! MB in ordinary use. If many connections receive in one turn, or the caller holds chunks, the
//! loop adds buffers, up to 128 MB (epoll) or 64 MB (io_uring). For the CPU time per operation, see
//! `docs/decisions/0003-networking.md`, which compares this time with that of a server without a
//! store.

mod accept;
mod choice;
mod doorbell;
mod epoll;
mod event;
mod file;
mod pool;
mod rusage;
mod slots;
mod uring;

pub use choice::{Backend, Choice, REFUSE_ENV, choose, probe};
pub use doorbell::Doorbell;
pub use epoll::EpollLoop;
pub use event::{Chunk, ConnId, Event, EventLoop, ListenerId};
pub use file::{RawFile, SequentialFile};
pub use pantala_base::{Lender, Lent, Outgoing, SharedBytes};
pub use rusage::{Usage, thread_usage};
pub use uring::UringLoop;

/// Maximum bytes of one [`Chunk`].
pub const RECEIVE_BYTES_MAX: usize = 64 * 1024;

/// Duration of a listener's *rest*, ms. When the process or the host has run out of descriptors or
/// memory, a listener stops accepting for this time.
pub const ACCEPT_REST_MS: u64 = 100;

/// Maximum bytes of one send operation. Without this limit, a huge reply to a fast reader would
/// keep the worker from serving other connections. A stored value of 1 MiB fits into one operation,
/// together with its header and some short replies before it.
const SEND_BYTES_MAX: usize = (1024 + 128) * 1024;
