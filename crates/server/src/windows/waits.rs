//! `WAIT`, `WAITAOF`, `SHUTDOWN` and `CONFIG SET`, which block without a key.

use std::sync::Arc;

use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::Awaited;
use pantala_engine::executor::{Call, Executor};
use pantala_engine::message::Message;

use crate::host::Server;
use crate::tune::set_config_on_thread;

/// Blocks a client. A `WAIT` or `WAITAOF` is unblocked when its condition holds or its timeout
/// expires. A `SHUTDOWN` stays blocked until the server stops, or until the shutdown fails or is
/// aborted. A `CONFIG SET` stays blocked until the disk has answered.
#[cold]
pub(super) fn block_without_keys(server: &Server, executor: &mut Executor<'_>, call: &Call<'_>, awaited: Awaited) {
    let timeout_ms = if let Awaited::Acknowledged(wait) = awaited { wait.timeout_ms } else { 0 };
    let waiter = call.wait_without_keys(executor.keyspace(), executor.worker(), timeout_ms);
    let (replication, worker, blocked) = (server.replication(), executor.worker(), Arc::clone(&waiter));
    match awaited {
        Awaited::Acknowledged(wait) => replication.wait(server, worker, blocked, wait),
        Awaited::Shutdown(how) => {
            tracing::warn!("User requested shutdown...");
            replication.drain_and_end(server, how, Some((blocked, worker)));
        }
        Awaited::Configured => set_config(server, worker, call, blocked),
    }
    executor.outbox().set_blocked(waiter);
}

/// Runs a `CONFIG SET` on a thread that may wait for the disk.
fn set_config(server: &Server, worker: u32, call: &Call<'_>, waiter: Arc<Waiter>) {
    let Some(client) = server.keyspace().clients().find(call.session.client) else { return };
    let words = call.args.iter().skip(2).map(<[u8]>::to_vec).collect();
    let waiting = Arc::clone(&waiter);
    let started = set_config_on_thread(server, words, client, move |server, outcome| {
        answer(server, worker, waiting, outcome);
    });
    if let Err(error) = started {
        answer(server, worker, waiter, Err(format!("ERR CONFIG SET failed: no thread could be started: {error}")));
    }
}

/// Sends the client of a `CONFIG SET` its reply, unless it has disconnected.
fn answer(server: &Server, worker: u32, waiter: Arc<Waiter>, outcome: Result<(), String>) {
    if waiter.claim() {
        let reply = outcome.map_or_else(|error| format!("-{error}\r\n"), |()| "+OK\r\n".to_owned()).into_bytes();
        server.port(worker).send(Message::Woken(Woken { waiter, reply, effect_clock: 0 }));
    }
}
