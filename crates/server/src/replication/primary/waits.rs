//! `WAIT` blocks a client until replicas have acknowledged the stream up to the client's last
//! command. `WAITAOF` blocks a client until the effects (propagated changes) of its commands are on
//! disk: in the append-only file of this server, in those of replicas, or both. A `WAITAOF` that
//! waits for this server's file requests a sync.
//!
//! A *stamp* is a position in the journal. While the stream is kept for replicas, each connection
//! notes the last stamp of its commands. A `WAIT` must find the offset at which the stream contains
//! all effects up to this stamp. The offset is known once the journal's thread has merged the
//! stamp's *epoch*, which has the effects of about a millisecond
//! ([`offset_after`](pantala_engine::effect::Journal::offset_after)). If this epoch has not been
//! merged yet, the `WAIT` uses the offset at which the current epoch ends
//! ([`mark`](pantala_engine::effect::Journal::mark)). At the end of the epoch, a request for the
//! replicas' acknowledgements is added to the stream, if the wait needs replicas and no failover is
//! in progress.

use std::sync::Arc;

use pantala_commands::WAITAOF_NOT_APPENDING;
use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::Acknowledged;
use pantala_engine::message::Message;
use pantala_replication::Replicas;

use crate::host::Server;
use crate::replication::Replication;

/// A blocked `WAIT` or `WAITAOF`.
pub(in crate::replication) struct PendingWait {
    waiter: Arc<Waiter>,
    worker: u32,
    replicas: u64,
    /// The local part of a `WAITAOF`; `None` for `WAIT`.
    local: Option<Local>,
    /// The offset that replicas must acknowledge, once it is known.
    offset: Option<u64>,
}

/// The local part of a `WAITAOF`: whether the client's effects are on this server's disk.
#[derive(Clone, Copy)]
struct Local {
    is_wanted: bool,
    /// Whether the client's effects are on disk.
    is_synced: bool,
}

impl PendingWait {
    /// Returns the number of replicas that have acknowledged the stream up to the offset of the
    /// wait. For `WAITAOF`, counts the replicas that have synced the stream up to there. Returns
    /// `None` until the offset is known.
    fn acked(&self, replicas: &Replicas) -> Option<u64> {
        let count = |offset| if self.local.is_some() { replicas.synced(offset) } else { replicas.acked(offset) };
        self.offset.map(|offset| count(offset) as u64)
    }

    /// Returns whether the condition of the wait holds.
    fn is_over(&self, replicas: &Replicas) -> bool {
        let is_synced = self.local.is_none_or(|local| local.is_synced || !local.is_wanted);
        is_synced && (self.replicas == 0 || self.acked(replicas).is_some_and(|acked| acked >= self.replicas))
    }

    /// Returns the encoded reply.
    fn reply(&self, replicas: &Replicas) -> Vec<u8> {
        let acked = self.acked(replicas).unwrap_or(0);
        match self.local {
            None => format!(":{acked}\r\n").into_bytes(),
            Some(local) => format!("*2\r\n:{}\r\n:{acked}\r\n", u8::from(local.is_synced)).into_bytes(),
        }
    }
}

/// Returns an offset up to which the stream has all effects of a connection's commands. `stamp` is
/// the last stamp of these commands. Returns `None` if some effects may not be in the stream yet.
pub(super) fn offset_after(server: &Server, stamp: u64) -> Option<u64> {
    if stamp == 0 {
        // The connection has run no command while the stream was kept.
        return Some(0);
    }
    server.keyspace().journal().offset_after(stamp)
}

/// Ends all waits of `WAITAOF` for this server's file with an error. Called once the append-only
/// file is off, because nothing else ends a wait whose sync never comes or has already come.
pub fn end_local_waits(server: &Server) {
    let is_local = |wait: &mut PendingWait| wait.local.as_ref().is_some_and(|local| local.is_wanted);
    let ended: Vec<PendingWait> = server.replication().state().waits.extract_if(.., is_local).collect();
    for wait in ended {
        answer(server, wait, format!("-{WAITAOF_NOT_APPENDING}\r\n").into_bytes());
    }
}

impl Replication {
    /// Registers a blocked `WAIT` or `WAITAOF` of a connection that `worker` owns.
    pub fn wait(&self, server: &Server, worker: u32, waiter: Arc<Waiter>, wait: Acknowledged) {
        let ticket = waiter.ticket();
        let offset = offset_after(server, wait.stamp);
        {
            let mut state = self.state();
            // Drops the waiters that only this list refers to, because their connections are
            // closed.
            state.waits.retain(|wait| Arc::strong_count(&wait.waiter) > 1);
            // If the reply is held back until the effects are on disk, they count as synced
            // already, unless the client waits for their sync.
            let awaits_syncs = server.snapshots().aof.gate().awaits_syncs(wait.durability);
            let local = wait.local.map(|is_wanted| Local { is_wanted, is_synced: awaits_syncs && !is_wanted });
            state.waits.push(PendingWait { waiter, worker, replicas: wait.replicas, local, offset });
        }
        let Some(shared) = self.server.get().cloned() else { return };
        if wait.local == Some(true) {
            let shared = shared.clone();
            server.snapshots().aof.confirm(Box::new(move |is_synced| {
                let Some(server) = shared.upgrade() else { return };
                server.replication().note_local(&server, ticket, is_synced);
            }));
        }
        // In a failover, a request would move the end of the stream, which the target must reach.
        // Even without a request, replicas send an acknowledgement once a second.
        let asks = wait.replicas > 0 && !self.failovers.is_running();
        server.keyspace().journal().mark(
            asks,
            Box::new(move |offset| {
                let Some(server) = shared.upgrade() else { return };
                if let Some(wait) =
                    server.replication().state().waits.iter_mut().find(|wait| wait.waiter.ticket() == ticket)
                {
                    wait.offset.get_or_insert(offset);
                }
                server.replication().answer_waits(&server);
            }),
        );
    }

    /// Records the outcome of the sync for a `WAITAOF`. If `is_synced` is true, the effects of the
    /// waiting client are on disk. If `is_synced` is false, the append-only file was turned off,
    /// and the wait ends with an error.
    fn note_local(&self, server: &Server, ticket: u64, is_synced: bool) {
        let ended = {
            let mut state = self.state();
            let Some(at) = state.waits.iter().position(|wait| wait.waiter.ticket() == ticket) else { return };
            if is_synced && let Some(local) = &mut state.waits[at].local {
                local.is_synced = true;
            }
            if is_synced { None } else { Some(state.waits.swap_remove(at)) }
        };
        match ended {
            None => self.answer_waits(server),
            Some(wait) => answer(server, wait, format!("-{WAITAOF_NOT_APPENDING}\r\n").into_bytes()),
        }
    }

    /// Answers the clients whose waits are over.
    pub(super) fn answer_waits(&self, server: &Server) {
        let mut answers = Vec::new();
        {
            let mut state = self.state();
            if state.waits.is_empty() {
                return;
            }
            for wait in std::mem::take(&mut state.waits) {
                if wait.is_over(&state.replicas) {
                    let reply = wait.reply(&state.replicas);
                    answers.push((wait, reply));
                } else {
                    state.waits.push(wait);
                }
            }
        }
        for (wait, reply) in answers {
            answer(server, wait, reply);
        }
    }

    /// Ends a blocked `WAIT` or `WAITAOF` after its timeout or a `CLIENT UNBLOCK`. Returns the
    /// encoded reply, or `None` if the waiter belongs to another command.
    pub fn end_wait(&self, waiter: &Arc<Waiter>) -> Option<Vec<u8>> {
        let mut state = self.state();
        let at = state.waits.iter().position(|wait| Arc::ptr_eq(&wait.waiter, waiter))?;
        let wait = state.waits.swap_remove(at);
        Some(wait.reply(&state.replicas))
    }
}

/// Sends a reply to the client of a wait that has ended, unless another thread has replied before.
fn answer(server: &Server, PendingWait { waiter, worker, .. }: PendingWait, reply: Vec<u8>) {
    if waiter.claim() {
        server.port(worker).send(Message::Woken(Woken { waiter, reply, effect_clock: 0, closes: false }));
    }
}
