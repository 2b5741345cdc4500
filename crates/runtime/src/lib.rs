//! Event loops for Pantala's workers: one trait, [`EventLoop`], and two backends. Also
//! [`SequentialFile`], which the server's file threads use.
//!
//! The server's workers and `pantala-bench floor` use them. A loop belongs to the thread that
//! created it. Other threads may use only its [`Doorbell`].
//!
//! # Words
//!
//! - **loop**: the event sources of one worker thread: listeners, connections, its doorbell.
//! - **turn**: one [`EventLoop::poll`], the handling of its events, and the sends that follow.
//! - **quiet send**: a send whose success does not end a wait ([`EventLoop::send_quiet`]).
//! - **chunk**: received bytes in memory that the loop lends until [`EventLoop::release`].
//! - **doorbell**: wakes a loop from another thread ([`Doorbell`], an eventfd).
//!
//! # Ownership
//!
//! | resource | owner |
//! | --- | --- |
//! | a socket | the loop, from `add`/`add_listener` to `close`/`remove_listener`; an accepted one the receiver of `Event::Accepted` |
//! | memory of received bytes | the loop, always; the caller holds a [`Chunk`] and may read and change its bytes until it releases it |
//! | the buffer of a send | the loop, from `send` to the `Sent` event (or until `send_at_once` returns it), because the kernel may be reading it. If the connection is closed or the loop dropped in between, it is kept until the kernel is done |
//! | bytes that many sends share ([`SharedBytes`]) | all of these sends together: each keeps its reference for as long as it would keep its buffer |
//!
//! # Backends
//!
//! [`UringLoop`]: multishot receive into a ring of provided buffers; the turn's sends are submitted
//! by the system call that waits for the next events, or sent directly while the loop is mostly
//! idle. [`EpollLoop`]: edge-triggered readiness, one `recv` per readable connection and turn into
//! a pool of packed buffers, one `send` per connection and turn. A caller that needs no event can
//! send at once ([`EventLoop::send_at_once`]). [`choose`] picks one that the kernel allows.
//!
//! # What it costs
//!
//! Memory per connection: about 100 bytes in the loop, and the kernel's socket. Buffers per loop: 1
//! MB in ordinary use, at most 128 MB (epoll) or 64 MB (io_uring), reached only if the caller holds
//! chunks. CPU per operation, compared with a server without a store:
//! `docs/decisions/0003-networking.md`.

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
pub use file::SequentialFile;
pub use pantala_base::{Lender, Lent, Outgoing, SharedBytes};
pub use uring::UringLoop;

/// Maximum bytes of one [`Chunk`].
pub const RECEIVE_BYTES_MAX: usize = 64 * 1024;

/// Duration of a listener's *rest*, in milliseconds: after the process or the host ran out of
/// descriptors or memory, it stops accepting for this time.
pub const ACCEPT_REST_MS: u64 = 100;

/// Maximum bytes of one send operation, so that a fast reader of a huge reply shares the worker
/// with other connections. A value of 1 MiB fits into one operation together with its header and
/// some short replies before it.
const SEND_BYTES_MAX: usize = (1024 + 128) * 1024;
