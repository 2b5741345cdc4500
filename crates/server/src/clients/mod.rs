//! The clients of a worker: sending to them, their limits, and closing.
//!
//! This layer sends published messages, invalidations of cached keys, and replies to blocked
//! clients. It enforces the limits on output and on the memory of all clients. It also defers
//! events and output of the connection whose script is busy ([`frozen`]). The
//! [dispatcher](crate::dispatch) calls this layer, which calls the [reactor](crate::reactor).

mod blocked;
mod close;
mod events;
mod following;
pub mod frozen;
mod limits;
mod memory;
pub mod moving;
mod output;
pub mod primary;
mod published;
pub mod slow;
mod tracking;
mod unsynced;

use std::collections::BTreeSet;

use pantala_engine::executor::Executor;
use pantala_runtime::EventLoop;
use pantala_session::{Blocked, State};

use crate::host::Server;
use crate::reactor::{Connection, Reactor};
use crate::stats::Tally;
pub use close::Garbage;
pub use following::check_follower;
use frozen::Frozen;
use limits::Limits;
pub use memory::EvictionState;
pub use output::{
    close_instead_of_reply, discard_over_limit, drop_over_limit, limit_stranger, output_limit, reply_limit,
};
pub use published::{close_subscriber, deliver_packed};
pub use unsynced::{note_unsynced, note_unsynced_until};

/// The work for which a connection has requested shards.
pub trait Abandon {
    /// Drops the work, because the connection closes before the shards arrive.
    fn abandon(self, server: &Server);
}

/// The clients of a worker. `H` is the work for which connections have requested shards.
pub struct Clients<'s, L: EventLoop, H> {
    /// The worker's sockets and connections.
    pub reactor: Reactor<'s, L, H>,
    /// The worker's access to shards.
    pub executor: Executor<'s>,
    /// The worker's access to its statistics.
    pub tally: Tally<'s>,
    /// The limits on the output of each client and on the memory of all clients.
    pub limits: Limits,
    /// The connection whose script is busy.
    pub frozen: Frozen,
    /// Output of closed connections that must still be freed.
    pub garbage: Garbage,
    /// Whether this worker may have connections that receive the stream of effects, as replicas do.
    /// If so, the worker checks after each completed send whether to read more of the stream for
    /// them.
    pub has_followers: bool,
    /// Whether this worker may have the link to the primary. `false` means that it has not.
    has_primary: bool,
    /// Timeouts of blocked connections: the deadline in µs of the monotonic clock, the ticket
    /// (unique number) of the blocked command's waiter, and the connection's index.
    deadlines: BTreeSet<(i64, u64, u32)>,
}

impl<'s, L: EventLoop, H: Abandon> Clients<'s, L, H> {
    /// Creates an empty set of clients on an event loop that this thread created.
    pub fn new(server: &'s Server, number: u32, io: L) -> Self {
        let reactor = Reactor::new(server, number, io);
        let limits_clients = server.keyspace().clients().memory().limit_bytes() > 0;
        Clients {
            executor: Executor::new(server.keyspace(), number),
            tally: Tally::new(server.worker_stats(number)),
            limits: Limits::new(&reactor.settings, limits_clients),
            frozen: Frozen::default(),
            garbage: Garbage::default(),
            has_followers: false,
            has_primary: false,
            deadlines: BTreeSet::new(),
            reactor,
        }
    }

    /// Returns whether the next turn (iteration of the worker's event loop) must start without
    /// waiting.
    #[inline]
    pub fn has_pending_work(&self) -> bool {
        // `|` makes this one branch instead of four. Usually all four conditions are false.
        self.reactor.has_pending_work()
            | self.limits.accounting.is_due()
            | !self.garbage.is_empty()
            | self.executor.has_work()
    }

    /// Returns the time until the first blocked client times out, µs. Returns `None` if no blocked
    /// client has a timeout.
    pub fn times_out_us(&self) -> Option<i64> {
        let (deadline_us, ..) = self.deadlines.first()?;
        Some(deadline_us.saturating_sub(self.reactor.server.monotonic_us()).max(0))
    }
}
