//! Holds back writes before a shutdown until replicas have the whole stream.
//!
//! A pause holds back commands that have not been admitted yet. Commands admitted before finish in
//! two steps: when the journal reaches a mark, each worker has ended the turn in which it admitted
//! them; when a job then has all shards, they have run. When the journal reaches a second mark, the
//! stream is complete.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pantala_engine::message::Message;
use pantala_replication::ReplicaState;

use crate::host::Server;
use crate::replication::Replication;
use crate::snapshot;

/// How often acknowledgements are checked.
const LOOK: Duration = Duration::from_millis(5);

/// Calls `done` with the end of the log once all commands that have been let run are in it. New
/// ones must be held back. `asks`: replicas are then asked for an acknowledgement.
pub(in crate::replication) fn quiesce(server: &Arc<Server>, asks: bool, done: impl FnOnce(u64) + Send + 'static) {
    let weak = Arc::downgrade(server);
    let journal = server.keyspace().journal();
    journal.mark(
        false,
        Box::new(move |_| {
            let Some(server) = weak.upgrade() else { return };
            snapshot::with_all_shards(
                &server,
                Box::new(move |server, _| server.keyspace().journal().mark(asks, Box::new(done))),
            );
        }),
    );
}

/// Stops the server, after a snapshot if the options of the shutdown require one.
fn end(server: &Server) {
    if Server::saves_before(server, server.snapshots().ending()) {
        // The snapshot needs all shards, which a worker must acquire.
        server.port(0).send(Message::Save);
    } else {
        server.stop();
    }
}

impl Replication {
    /// Returns whether an online replica has not acknowledged the stream up to `offset`. Ignores
    /// replicas that used `SYNC`, which don't acknowledge.
    fn is_behind(&self, offset: u64) -> bool {
        let state = self.state();
        let old = |client| state.links.iter().any(|link| link.client == client && link.is_old);
        let mut online = state.replicas.iter().filter(|replica| replica.state == ReplicaState::Online);
        online.any(|replica| replica.acked < offset && !old(replica.client))
    }

    /// Holds back writes, and waits until replicas have the whole stream, at most until `until`.
    /// Blocks, so a worker must not call it.
    pub fn drain(&self, server: &Arc<Server>, until: Instant) {
        if self.state().replicas.is_empty() {
            return;
        }
        let tuning = &server.keyspace().tuning;
        let pause = tuning.pause(0, false, server.now_ms());
        tuning.hold_pause(&pause);
        self.state().drain = Some(pause);
        server.keyspace().ports().iter().for_each(|port| port.send(Message::Reload));
        self.settle_pings(server);
        let (sender, receiver) = mpsc::channel();
        // The receiver may have stopped waiting.
        quiesce(server, true, move |offset| _ = sender.send(offset));
        let Ok(offset) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            tracing::warn!("Shutdown: writes could not be held back in time");
            return;
        };
        let offset = self.offset_of(offset);
        self.state().is_drained = true;
        while self.is_behind(offset) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        let all = self.state().replicas.len();
        match self.is_behind(offset) {
            true => tracing::warn!("Lagging replicas are left behind at shutdown (of {all})"),
            false => tracing::info!("{all} of {all} replicas are in sync when shutting down"),
        }
    }

    /// Admits writes again after a shutdown that has failed.
    pub fn resume_writes(&self, server: &Server) {
        let pause = {
            let mut state = self.state();
            state.is_drained = false;
            state.drain.take()
        };
        if let Some(pause) = pause {
            server.keyspace().tuning.tell_paused(&pause, server.now_ms());
            self.settle_pings(server);
            server.keyspace().ports().iter().for_each(|port| port.send(Message::Reload));
        }
    }

    /// Stops the server when replicas have the whole stream, at the latest after
    /// `shutdown-timeout`.
    pub fn drain_and_end(&self, server: &Server) {
        let timeout = Duration::from_secs(server.config().settings().shutdown_timeout_s.into());
        let (has_replicas, shared) = (!self.state().replicas.is_empty(), self.server());
        if let (true, false, Some(shared)) = (has_replicas, timeout.is_zero(), shared) {
            tracing::info!("{} replicas are waited for before shutting down", self.state().replicas.len());
            let run = move || {
                shared.replication().drain(&shared, Instant::now() + timeout);
                end(&shared);
            };
            if std::thread::Builder::new().name("pantala-shutdown".into()).spawn(run).is_ok() {
                return;
            }
        }
        end(server);
    }

    /// Returns the auxiliary fields that allow a server to continue this history after it has
    /// loaded the snapshot. None unless the stream is complete.
    pub fn saved_place(&self, server: &Server) -> Vec<(&'static str, String)> {
        let state = self.state();
        if !state.is_drained {
            return Vec::new();
        }
        let offset = self.held(server).0.end;
        let id = state.history.id().to_string();
        vec![("repl-stream-db", "0".to_owned()), ("repl-id", id), ("repl-offset", offset.to_string())]
    }

    /// Continues the history of the snapshot loaded at startup, so that replicas that have all of
    /// it need no full sync. Must be called before any worker runs.
    pub fn continue_saved(&self, server: &Server, id: pantala_replication::ReplId, offset: u64) {
        server.keyspace().journal().continue_at(offset);
        if server.keyspace().keep_journal(true).is_err() {
            return;
        }
        // Effects produced before the journal's thread records the stream would be missing from it.
        while !server.keyspace().journal().held().1 {
            std::thread::sleep(LOOK);
        }
        let mut state = self.state();
        let own = state.new_id();
        state.history.change(id);
        state.shift(own, offset);
        state.has_backlog = true;
        state.alone_since_ms = Some(server.monotonic_ms());
        tracing::info!("The snapshot's history {id} continues as {own} at offset {offset}");
    }
}
