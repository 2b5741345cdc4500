//! `WAIT`, which blocks without a key.

use std::sync::Arc;

use pantala_engine::client::Acknowledged;
use pantala_engine::executor::{Call, Executor};

use crate::host::Server;

/// Blocks the client of a `WAIT` until replicas have acknowledged its earlier commands.
#[cold]
pub(super) fn wait_for_replicas(server: &Server, executor: &mut Executor<'_>, call: &Call<'_>, wait: Acknowledged) {
    let waiter = executor.wait_without_keys(call, wait.timeout_ms);
    server.replication().wait(server, executor.worker(), Arc::clone(&waiter), wait);
    executor.set_blocked(waiter);
}
