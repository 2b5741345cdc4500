//! Runs a shutdown with a snapshot, after `SHUTDOWN` or a signal. Also runs `DEBUG LOADAOF`, which
//! needs all shards too.
//!
//! A shutdown acquires all shards, like any command that needs them all. Then it saves the dataset
//! and stops the workers. The shards are released only if saving fails. If they were released after
//! a successful save, a later command could write, and its acknowledged write would be lost.

use pantala_engine::access::SessionView;
use pantala_engine::client::{AllShards, Shutdown};
use pantala_engine::command::Permit;
use pantala_engine::executor::Ran;
use pantala_engine::ownership::Ownership;
use pantala_resp::{Reply, Version};
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::transactions::Held;
use crate::aof::reload;
use crate::clients::Clients;
use crate::snapshot::{SHUTDOWN_FAILED, SHUTDOWN_FAILED_LINE, SIGNAL_FAILED, save_before_end};

/// Stands for a connection's token (identifier) in the requests that [`acquire_all_for_end`] makes
/// for all shards. No connection has this token.
pub(super) const ENDING: u64 = u64::MAX;

/// The session under which the server's own work runs.
pub(super) const SERVER_SESSION: SessionView = SessionView {
    client: 0,
    db: 0,
    version: Version::Resp2,
    no_touch: true,
    of_primary: false,
    in_script: false,
    permit: Permit::new(0, true),
};

/// Acquires all shards for a client's `SHUTDOWN` with a snapshot, or its `DEBUG LOADAOF`.
#[cold]
pub fn acquire_all_for<L: EventLoop>(d: &mut Dispatcher<'_, L>, index: u32, work: AllShards) -> Ran {
    if matches!(work, AllShards::Shutdown(_)) {
        tracing::warn!("User requested shutdown...");
        // A dataset that is not completely loaded must not be saved.
        let server = d.clients.reactor.server;
        let loading = &server.snapshots().loading;
        loading.note_shutdown();
        if loading.is_incomplete() {
            server.stop();
            if let Some(connection) = &mut d.clients.reactor.connections[index as usize] {
                connection.session.close_after_reply = true;
            }
            return d.clients.executor.outbox().done();
        }
    }
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    d.gather_for(index, Held::All(work), false)
}

/// Acquires all shards for a shutdown by a signal, or for a `SHUTDOWN` that has waited: for
/// replicas or, on a replica, for the end of the link to its primary.
pub(super) fn acquire_all_for_end<L: EventLoop>(d: &mut Dispatcher<'_, L>) {
    d.shards.clear();
    d.shards.extend(0..d.clients.executor.keyspace().partition_count());
    d.clients.executor.gather_for(&d.shards, SERVER_SESSION, ENDING, d.clients.reactor.clock.now_ms, false);
}

/// Saves the dataset and stops the server, for the `SHUTDOWN` of the connection at `index` or, if
/// `index` is `None`, for [`acquire_all_for_end`]. The caller holds all shards.
pub(super) fn end<L: EventLoop>(
    d: &mut Dispatcher<'_, L>,
    index: Option<u32>,
    how: Shutdown,
    owned: Vec<Ownership>,
) -> Ran {
    let is_over = save_and_end(&mut d.clients, how, owned);
    let connection = index.and_then(|index| d.clients.reactor.connections[index as usize].as_mut());
    match connection {
        Some(connection) if is_over => connection.session.close_after_reply = true,
        Some(connection) => Reply::new(&mut connection.output, connection.session.version).error(SHUTDOWN_FAILED),
        None if is_over => {}
        None => tracing::warn!("{SIGNAL_FAILED}"),
    }
    d.clients.executor.outbox().done()
}

/// Loads the append-only file for the `DEBUG LOADAOF` of a connection. The caller holds all shards.
pub(super) fn load_aof<L: EventLoop>(d: &mut Dispatcher<'_, L>, index: u32, mut owned: Vec<Ownership>) -> Ran {
    let Clients { executor, reactor, .. } = &mut d.clients;
    let journal = reactor.server.keyspace().journal();
    executor.recorder().flush_stream();
    // `reload` first syncs the file up to this point. The sync waits until the journal ends its
    // current epoch (a section of its stream), and the journal waits for each worker that is awake.
    // So this worker must count as asleep meanwhile.
    journal.rest(reactor.number);
    let loaded = reload(reactor.server, executor, &mut owned, SERVER_SESSION);
    journal.attend(reactor.number);
    executor.release_shards(owned, reactor.clock.now_ms);
    if let Some(connection) = &mut reactor.connections[index as usize] {
        let mut reply = Reply::new(&mut connection.output, connection.session.version);
        match loaded {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(&error),
        }
    }
    d.clients.executor.outbox().done()
}

/// Saves the dataset and stops the server. Returns whether the server stops. If saving fails, the
/// server continues, unless the shutdown is forced.
fn save_and_end<L: EventLoop>(clients: &mut Clients<'_, L, Held>, how: Shutdown, mut owned: Vec<Ownership>) -> bool {
    let (server, now_ms) = (clients.reactor.server, clients.reactor.clock.now_ms);
    // If a load has failed since the shutdown was requested, the dataset is empty and must not
    // replace the last snapshot.
    let is_over = if server.snapshots().loading.has_failed_since_shutdown() {
        tracing::warn!("Exiting without a final RDB snapshot: the dataset of the master could not be loaded");
        true
    } else {
        save_before_end(server, &mut clients.executor.runner().look(&SERVER_SESSION, &mut owned, now_ms).whole(), how)
    };
    if is_over {
        // The shards are never released, see the head of this module.
        drop(owned);
        server.stop();
    } else {
        tracing::warn!("{SHUTDOWN_FAILED_LINE}");
        clients.executor.release_shards(owned, now_ms);
        server.replication().resume_writes(server);
    }
    is_over
}
