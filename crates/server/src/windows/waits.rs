//! `WAIT`, `WAITAOF`, `SHUTDOWN`, and commands that read or write files: they block without a key.

use std::sync::Arc;

use pantala_engine::blocking::{Block, Waiter, Woken};
use pantala_engine::client::{Awaited, FileCommand};
use pantala_engine::executor::{Call, Executor};
use pantala_engine::keyspace::WorkerPort;
use pantala_engine::message::Message;
use pantala_resp::{Reply, Version};

use crate::file_commands::{Outcome, run_on_thread};
use crate::host::Server;

/// Blocks a client. A `WAIT` or `WAITAOF` is unblocked when its condition holds or its timeout
/// expires. A `SHUTDOWN` stays blocked until the server stops, or until the shutdown fails or is
/// aborted. A command that reads or writes files stays blocked until its thread has run it.
#[cold]
pub(super) fn block_without_keys(server: &Server, executor: &mut Executor<'_>, call: &Call<'_>, awaited: Awaited) {
    let timeout_ms = if let Awaited::Acknowledged(wait) = awaited { wait.timeout_ms } else { 0 };
    // As in Redis, a `SHUTDOWN` can be interrupted, although the server stops in any case.
    let is_interruptible = !matches!(awaited, Awaited::Files(_));
    let block = Block { is_interruptible, ..Block::without_keys(timeout_ms) };
    let waiter = call.wait_without_keys(executor.keyspace(), executor.worker(), &block);
    let (replication, worker, blocked) = (server.replication(), executor.worker(), Arc::clone(&waiter));
    match awaited {
        Awaited::Acknowledged(wait) => replication.wait(server, worker, blocked, wait),
        Awaited::Shutdown(how) => {
            tracing::warn!("User requested shutdown...");
            replication.drain_and_end(server, how, Some((blocked, worker)));
        }
        Awaited::Files(command) => run_file_command(server, worker, call, command, blocked),
    }
    executor.outbox().set_blocked(waiter);
}

/// Runs a command on a thread that may wait for the disk.
fn run_file_command(server: &Server, worker: u32, call: &Call<'_>, command: FileCommand, waiter: Arc<Waiter>) {
    let blocked = Arc::clone(&waiter);
    let answering = Answering { ports: Arc::clone(server.keyspace().ports()), worker, waiter };
    let Some(client) = server.keyspace().clients().find(call.session.client) else { return };
    let started = run_on_thread(server, command, client, blocked, move |outcome| answering.answer(outcome));
    if let Err(error) = started {
        tracing::warn!("{} failed: no thread could be started: {error}", call.command.shown_name());
    }
}

/// Answers the client of a command that reads or writes files, unless it has disconnected. If this
/// value is dropped without an answer, because a thread could not be started, the client receives
/// an error.
struct Answering {
    ports: Arc<[WorkerPort]>,
    worker: u32,
    waiter: Arc<Waiter>,
}

impl Answering {
    fn answer(&self, outcome: Outcome) {
        if self.waiter.claim() {
            let mut encoded = Vec::new();
            // Both versions of the protocol encode these replies in the same way.
            let mut reply = Reply::new(&mut encoded, Version::default());
            match outcome.reply {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(&error),
            }
            let waiter = Arc::clone(&self.waiter);
            let woken = Woken { waiter, reply: encoded, effect_clock: 0, closes: outcome.closes };
            self.ports[self.worker as usize].send(Message::Woken(woken));
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let command = self.waiter.command().shown_name();
        self.answer(Err(format!("ERR '{command}' failed. Check server logs.")).into());
    }
}
