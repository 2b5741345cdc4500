//! Acquires all shards for the thread that loads the dataset of a primary
//! ([`replication`](crate::replication)).
//!
//! The shards are acquired as for any command on all of them and handed over to the thread, so that
//! this worker serves its connections while the thread loads. A message returns them
//! ([`pantala_engine::message::Message::Release`]).

use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::ending::NO_SESSION;

/// The token of requests for all shards for that thread. No connection has it.
pub(super) const LOADING: u64 = u64::MAX - 2;

/// Requests all shards.
pub(super) fn take_all<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    d.clients.executor.bring(&d.shards, NO_SESSION, LOADING, d.clients.reactor.clock.now_ms, false);
}

/// Hands the shards over to the thread.
pub(super) fn hand_over<L: EventLoop>(d: &Dispatcher<'_, L>, owned: Vec<Ownership>) {
    d.clients.reactor.server.replication().replica.bring(owned);
}
