//! Runs the server's own work that needs all shards, such as the start of a snapshot
//! ([`with_all_shards`](crate::snapshot::with_all_shards)).
//!
//! On a replica, the worker that has the link to the primary acquires the shards between two
//! commands of the replication stream. The link *rests* (runs no command) during the work, so the
//! dataset has a known replication offset.

use pantala_engine::client::AllShards;
use pantala_engine::executor::Ran;
use pantala_engine::message::Message;
use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::ending::SERVER_SESSION;
use super::transactions::Held;
use crate::clients::primary;

/// Stands for a connection's token (identifier) in the requests for all shards that the server
/// makes for its own work. No connection has this token.
pub(super) const WHOLE: u64 = u64::MAX - 1;

/// Acquires all shards. If the server has a link to its primary, the worker of that link acquires
/// the shards instead.
pub(super) fn take_all<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    let (server, number) = (d.clients.reactor.server, d.clients.reactor.number);
    match server.replication().replica.link_worker.get() {
        Some(worker) if worker != number => return server.port(worker).send(Message::Whole),
        Some(_) if primary::ask_to_rest(&mut d.clients) => return,
        _ => {}
    }
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    d.clients.executor.gather_for(&d.shards, SERVER_SESSION, WHOLE, d.clients.reactor.clock.now_ms, false);
}

/// Acquires all shards for work that runs while the link at `index` rests. The caller ensures that
/// none of the link's commands is in flight.
#[cold]
pub fn rest<L: EventLoop>(d: &mut Dispatcher<'_, L>, index: u32) {
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    // If the link is parked (waits for shards), the work runs when the shards have arrived, and the
    // link continues after the work.
    let _ = d.gather_for(index, Held::All(AllShards::Pending), false);
}

/// Runs all pending work while the link at `index` rests, and releases the shards.
pub(super) fn run_at_rest<L: EventLoop>(d: &mut Dispatcher<'_, L>, index: u32, owned: Vec<Ownership>) -> Ran {
    primary::begin_rest(&mut d.clients, index);
    run_jobs(d, owned);
    primary::end_rest(&mut d.clients, index);
    d.clients.executor.outbox().done()
}

/// Runs all pending work on all shards, and releases them.
pub(super) fn run_jobs<L: EventLoop>(d: &mut Dispatcher<'_, L>, mut owned: Vec<Ownership>) {
    let (server, now_ms) = (d.clients.reactor.server, d.clients.reactor.clock.now_ms);
    for job in server.snapshots().background.take_jobs() {
        job(server, &mut d.clients.executor.runner().look(&SERVER_SESSION, &mut owned, now_ms).whole());
    }
    d.clients.executor.release_shards(owned, now_ms);
}
