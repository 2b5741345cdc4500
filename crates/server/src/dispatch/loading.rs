//! Acquires all shards for the thread that loads a dataset received from a primary
//! ([`replication`](crate::replication)).
//!
//! When this worker is asked for the shards, commands are already rejected with `-LOADING`
//! ([`crate::snapshot::loading::begin`]). But another worker may still run a window (a list of
//! commands that are run together) whose commands it has checked earlier. If one of them requested
//! a shard now, it would wait for the end of the load. So each other worker must first settle, that
//! is, end its window, as for `CLIENT PAUSE` ([`super::pause`]). Then the shards are acquired, as
//! for any command that needs them all, and handed over to the thread. So this worker can serve its
//! connections while the thread loads. The message
//! [`Release`](pantala_engine::message::Message::Release) returns the shards.

use pantala_engine::message::Message;
use pantala_engine::ownership::Ownership;
use pantala_engine::pubsub::Listener;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::ending::SERVER_SESSION;
use super::pause::ask_to_settle;

/// Stands for a connection's token (identifier) in the requests for all shards on behalf of the
/// loading thread. No connection has this token.
pub(super) const LOADING: u64 = u64::MAX - 2;

/// Requests all shards for the loading thread once the other workers have settled.
pub(super) fn take_all<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    let reactor = &d.clients.reactor;
    let others = reactor.server.keyspace().ports().len() as u32 - 1;
    reactor.server.replication().replica.shards.expect_settled(others);
    if others == 0 {
        acquire_all(d);
    } else {
        ask_to_settle(reactor.server, Listener { worker: reactor.number, connection: LOADING });
    }
}

/// Counts another worker as settled. Requests the shards once the last worker has settled.
pub(super) fn note_settled<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    if d.clients.reactor.server.replication().replica.shards.note_settled() {
        acquire_all(d);
    }
}

fn acquire_all<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    // Requests that a script has reset were admitted before the load started, so they queue for
    // their shards first.
    d.mail.resume_reset(&mut d.clients.executor);
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    d.clients.executor.gather_for(&d.shards, SERVER_SESSION, LOADING, d.clients.reactor.clock.now_ms, false);
}

/// Hands all shards over to the loading thread, and ends the pauses that wait for this.
pub(super) fn hand_over<L: EventLoop>(d: &Dispatcher<'_, L>, owned: Vec<Ownership>) {
    let server = d.clients.reactor.server;
    for pause in server.replication().replica.shards.deliver(owned) {
        server.port(pause.worker).send(Message::LoadHolds(pause.connection));
    }
}
