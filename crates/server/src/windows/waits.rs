//! `WAIT`, `WAITAOF` and `SHUTDOWN`, which block without a key.

use std::sync::Arc;

use pantala_engine::client::Awaited;
use pantala_engine::executor::{Call, Executor};

use crate::host::Server;

/// Blocks a client. A `WAIT` or `WAITAOF` is unblocked when its condition holds or its timeout
/// expires. A `SHUTDOWN` stays blocked until the server stops, or until the shutdown fails or is
/// aborted.
#[cold]
pub(super) fn wait_for_replicas(server: &Server, executor: &mut Executor<'_>, call: &Call<'_>, awaited: Awaited) {
    let timeout_ms = if let Awaited::Acknowledged(wait) = awaited { wait.timeout_ms } else { 0 };
    let waiter = call.wait_without_keys(executor.keyspace(), executor.worker(), timeout_ms);
    let (replication, worker, blocked) = (server.replication(), executor.worker(), Arc::clone(&waiter));
    match awaited {
        Awaited::Acknowledged(wait) => replication.wait(server, worker, blocked, wait),
        Awaited::Shutdown(how) => {
            tracing::warn!("User requested shutdown...");
            replication.drain_and_end(server, how, Some((blocked, worker)));
        }
    }
    executor.outbox().set_blocked(waiter);
}
