//! Clients: what connections get beside the replies of the commands that they run now, and how they end.
//!
//! Messages and invalidations, replies of blocked commands, limits of output and of all clients' memory, and the connection whose
//! script is busy ([`frozen`]). It drives the [reactor](crate::reactor); what runs commands drives it.

mod blocked;
mod close;
mod events;
mod following;
pub mod frozen;
mod limits;
mod memory;
mod output;
mod published;
pub mod slow;
mod tracking;

use std::collections::BTreeSet;

use pantala_engine::executor::Executor;
use pantala_runtime::EventLoop;
use pantala_session::{Blocked, State};

use crate::host::Server;
use crate::reactor::{Connection, Reactor};
use crate::stats::Tally;
pub use close::Garbage;
use frozen::Frozen;
use limits::Limits;
pub use memory::Memory;
pub use output::output_limit;

/// What a connection does with the shards that it has asked for.
pub trait Abandon {
    /// The connection ends before they come.
    fn abandon(self, server: &Server);
}

/// See the head of this module. `H`: what connections do with the shards that they have asked for.
pub struct Clients<'s, L: EventLoop, H> {
    /// The worker's sockets and connections.
    pub reactor: Reactor<'s, L, H>,
    /// The worker's hand on shards.
    pub executor: Executor<'s>,
    /// Its hand on its statistics.
    pub tally: Tally<'s>,
    /// How much memory clients may use.
    pub limits: Limits,
    /// The connection whose script is busy.
    pub frozen: Frozen,
    /// Output of closed connections.
    pub garbage: Garbage,
    /// Some connections may follow the stream of effects: what they have sent is looked at.
    pub has_followers: bool,
    /// When blocked connections time out: deadline in µs of the clock that never goes back, ticket of the waiter, index of the
    /// connection.
    deadlines: BTreeSet<(i64, u64, u32)>,
}

impl<'s, L: EventLoop, H: Abandon> Clients<'s, L, H> {
    /// No clients yet, over a loop that this thread has made.
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
            deadlines: BTreeSet::new(),
            reactor,
        }
    }

    /// Whether there is something to do at once.
    #[inline]
    pub fn is_behind(&self) -> bool {
        // One branch: mostly there is nothing.
        self.reactor.is_behind() | self.limits.weighing.is_due() | !self.garbage.is_empty() | self.executor.has_work()
    }

    /// When the first blocked connection times out, µs from now; `None`: there is no such.
    pub fn times_out_us(&self) -> Option<i64> {
        let (deadline_us, ..) = self.deadlines.first()?;
        Some(deadline_us.saturating_sub(self.reactor.server.monotonic_us()).max(0))
    }
}
