//! `WAIT`: blocks clients until replicas have acknowledged the stream up to their last commands.
//!
//! While the stream is kept for replicas, connections note the stamps of their commands. The offset
//! behind a stamp is known when the journal's thread has merged its epoch, a millisecond later
//! ([`offset_behind`](pantala_engine::effect::Journal::offset_behind)). A `WAIT` that comes earlier
//! waits for the end of the current epoch ([`mark`](pantala_engine::effect::Journal::mark)). The
//! stream then requests the replicas' offsets, except during a failover.

use std::sync::Arc;

use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::Acknowledged;
use pantala_engine::message::Message;

use crate::host::Server;
use crate::replication::Replication;

/// A blocked `WAIT`.
pub(in crate::replication) struct PendingWait {
    waiter: Arc<Waiter>,
    worker: u32,
    replicas: u64,
    /// The offset that replicas must acknowledge, once it is known.
    offset: Option<u64>,
}

impl Replication {
    /// Returns an offset up to which the history has all effects of a connection's commands, given
    /// its stamp; `None` if some may still be pending.
    pub(super) fn offset_behind(&self, server: &Server, stamp: u64) -> Option<u64> {
        if stamp == 0 {
            // It has run none for which the stream is kept.
            return Some(0);
        }
        server.keyspace().journal().offset_behind(stamp)
    }

    /// Registers a blocked `WAIT` of a connection of `worker`.
    pub fn wait(&self, server: &Server, worker: u32, waiter: Arc<Waiter>, wait: Acknowledged) {
        let ticket = waiter.ticket();
        let offset = self.offset_behind(server, wait.stamp);
        {
            let mut state = self.state();
            // A waiter to which only this list refers belongs to a closed connection.
            state.waits.retain(|wait| Arc::strong_count(&wait.waiter) > 1);
            state.waits.push(PendingWait { waiter, worker, replicas: wait.replicas, offset });
        }
        let Some(shared) = self.server.get().cloned() else { return };
        // A request would move the end of the stream, which the target of a failover must have.
        // Replicas also acknowledge once a second without it.
        let asks = !self.failovers.is_running();
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

    /// Answers clients whose offsets enough replicas have acknowledged.
    pub(super) fn answer_waits(&self, server: &Server) {
        let mut answers = Vec::new();
        {
            let mut state = self.state();
            if state.waits.is_empty() {
                return;
            }
            for wait in std::mem::take(&mut state.waits) {
                let acked = wait.offset.map(|offset| state.replicas.acked(offset) as u64);
                match acked {
                    Some(acked) if acked >= wait.replicas => answers.push((wait, acked)),
                    _ => state.waits.push(wait),
                }
            }
        }
        for (PendingWait { waiter, worker, .. }, acked) in answers {
            if waiter.claim() {
                let reply = format!(":{acked}\r\n").into_bytes();
                server.port(worker).send(Message::Woken(Woken { waiter, reply, effect_clock: 0 }));
            }
        }
    }

    /// Ends a blocked `WAIT` that has timed out or is unblocked. Returns how many replicas have
    /// acknowledged its offset; `None` if the waiter belongs to another command.
    pub fn end_wait(&self, waiter: &Arc<Waiter>) -> Option<u64> {
        let mut state = self.state();
        let at = state.waits.iter().position(|wait| Arc::ptr_eq(&wait.waiter, waiter))?;
        let wait = state.waits.swap_remove(at);
        Some(wait.offset.map_or(0, |offset| state.replicas.acked(offset) as u64))
    }
}
