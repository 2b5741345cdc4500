//! Acquires all shards for the thread that loads a dataset received from a primary
//! ([`replication`](crate::replication)).
//!
//! The shards are acquired as for any command that needs them all, and are then handed over to the
//! thread. This worker therefore serves its connections while the thread loads. The message
//! [`Release`](pantala_engine::message::Message::Release) returns the shards.

use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::ending::SERVER_SESSION;

/// Used in place of a connection's token (identifier) in requests for all shards on behalf of the
/// loading thread. No connection has this token.
pub(super) const LOADING: u64 = u64::MAX - 2;

/// Requests all shards for the loading thread.
pub(super) fn take_all<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    d.clients.executor.gather_for(&d.shards, SERVER_SESSION, LOADING, d.clients.reactor.clock.now_ms, false);
}

/// Hands all shards over to the loading thread.
pub(super) fn hand_over<L: EventLoop>(d: &Dispatcher<'_, L>, owned: Vec<Ownership>) {
    d.clients.reactor.server.replication().replica.shards.deliver(owned);
}
