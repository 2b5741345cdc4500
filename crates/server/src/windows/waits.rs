//! `WAIT`, `WAITAOF`, `SHUTDOWN` and `CONFIG SET`, which block without a key.

use std::sync::Arc;

use pantala_engine::blocking::{Block, Waiter, Woken};
use pantala_engine::client::Awaited;
use pantala_engine::executor::{Call, Executor};
use pantala_engine::keyspace::WorkerPort;
use pantala_engine::message::Message;
use pantala_resp::{Reply, Version};

use crate::host::Server;
use crate::tune::set_config_on_thread;

/// Blocks a client. A `WAIT` or `WAITAOF` is unblocked when its condition holds or its timeout
/// expires. A `SHUTDOWN` stays blocked until the server stops, or until the shutdown fails or is
/// aborted. A `CONFIG SET` stays blocked until the disk has answered.
#[cold]
pub(super) fn block_without_keys(server: &Server, executor: &mut Executor<'_>, call: &Call<'_>, awaited: Awaited) {
    let timeout_ms = if let Awaited::Acknowledged(wait) = awaited { wait.timeout_ms } else { 0 };
    // As in Redis, a `SHUTDOWN` can be interrupted, although the server stops in any case.
    let is_interruptible = awaited != Awaited::Configured;
    let block = Block { is_interruptible, ..Block::without_keys(timeout_ms) };
    let waiter = call.wait_without_keys(executor.keyspace(), executor.worker(), &block);
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
    let answering = Answering { ports: Arc::clone(server.keyspace().ports()), worker, waiter };
    let Some(client) = server.keyspace().clients().find(call.session.client) else { return };
    let words = call.args.iter().skip(2).map(<[u8]>::to_vec).collect();
    let started = set_config_on_thread(server, words, client, move |_, outcome| answering.answer(outcome));
    if let Err(error) = started {
        tracing::warn!("CONFIG SET failed: no thread could be started: {error}");
    }
}

/// Answers the client of a `CONFIG SET`, unless it has disconnected. If this value is dropped
/// without an answer, for example because a thread could not be started or has panicked, the client
/// receives an error.
struct Answering {
    ports: Arc<[WorkerPort]>,
    worker: u32,
    waiter: Arc<Waiter>,
}

impl Answering {
    fn answer(&self, outcome: Result<(), String>) {
        if self.waiter.claim() {
            let mut encoded = Vec::new();
            // Both versions of the protocol encode these replies in the same way.
            let mut reply = Reply::new(&mut encoded, Version::default());
            match outcome {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(&error),
            }
            let woken = Woken { waiter: Arc::clone(&self.waiter), reply: encoded, effect_clock: 0 };
            self.ports[self.worker as usize].send(Message::Woken(woken));
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.answer(Err("ERR CONFIG SET failed. Check server logs.".to_owned()));
    }
}
