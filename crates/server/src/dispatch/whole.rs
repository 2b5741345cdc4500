//! Work of the server itself that needs all shards, such as the start of a snapshot: see
//! [`with_all_shards`](crate::snapshot::with_all_shards).

use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::ending::NO_SESSION;

/// The token of requests for all shards for the server's own work. No connection has it.
pub(super) const WHOLE: u64 = u64::MAX - 1;

/// Acquires all shards.
pub(super) fn take_all<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    d.clients.executor.bring(&d.shards, NO_SESSION, WHOLE, d.clients.reactor.clock.now_ms, false);
}

/// Runs all pending work on all shards, and releases them.
pub(super) fn run_jobs<L: EventLoop>(d: &mut Dispatcher<'_, L>, mut owned: Vec<Ownership>) {
    let (server, now_ms) = (d.clients.reactor.server, d.clients.reactor.clock.now_ms);
    for job in server.snapshots().background.take_jobs() {
        job(server, &mut d.clients.executor.look(&NO_SESSION, &mut owned, now_ms).whole());
    }
    d.clients.executor.give_back(owned, now_ms);
}
