//! Holds back writes before a shutdown until replicas have the whole stream.
//!
//! A pause holds back commands that have not been admitted yet. The commands admitted before it are
//! in the stream after three steps:
//!
//! | wait until | then |
//! | --- | --- |
//! | the journal has reached a mark | each worker has ended the turn in which it admitted them |
//! | a job holds all shards | they have run |
//! | the journal has reached a second mark | their effects are in the stream |

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pantala_engine::message::Message;
use pantala_replication::{ReplId, ReplicaState};

use crate::aof;
use crate::host::Server;
use crate::replication::Replication;
use crate::replication::replica::Known;
use crate::snapshot;

/// How long a replica that stops waits for the last command of its link.
const LINK_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// How often acknowledgements are checked.
const LOOK: Duration = Duration::from_millis(5);

/// Calls `done` with the end of the log when all admitted commands are in it. The caller must hold
/// back new commands. With `asks`, replicas are then asked for an acknowledgement.
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
    } else if aof::allows_exit(server, server.snapshots().ending()) {
        server.stop();
    } else {
        tracing::warn!("{}", snapshot::SIGNAL_FAILED);
        server.replication().resume_writes(server);
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
        self.update_pings(server);
        let (sender, receiver) = mpsc::channel();
        // The receiver may have stopped waiting.
        quiesce(server, true, move |offset| _ = sender.send(offset));
        let Ok(offset) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) else {
            tracing::warn!("Shutdown: writes could not be held back in time");
            return;
        };
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

    /// Admits writes again, and follows the primary again, after a shutdown that has failed.
    pub fn resume_writes(&self, server: &Server) {
        self.replica.resume_following();
        let pause = {
            let mut state = self.state();
            state.is_drained = false;
            state.drain.take()
        };
        if let Some(pause) = pause {
            server.keyspace().tuning.start_pause_time(&pause, server.now_ms());
            self.update_pings(server);
            server.keyspace().ports().iter().for_each(|port| port.send(Message::Reload));
        }
    }

    /// Stops the server when replicas have the whole stream, at the latest after
    /// `shutdown-timeout`. A replica ends its link instead: the stream is its primary's.
    pub fn drain_and_end(&self, server: &Server) {
        let timeout = Duration::from_secs(server.config().settings().shutdown_timeout_s.into());
        let (has_replicas, shared) = (!self.state().replicas.is_empty(), self.server());
        let is_replica = server.keyspace().tuning.is_replica();
        if let (true, Some(shared)) = (is_replica || has_replicas && !timeout.is_zero(), shared) {
            let run = move || {
                let replication = shared.replication();
                if is_replica {
                    replication.replica.stop_following(&shared, Instant::now() + LINK_ENDS_WITHIN);
                } else {
                    tracing::info!(
                        "{} replicas are waited for before shutting down",
                        replication.state().replicas.len()
                    );
                    replication.drain(&shared, Instant::now() + timeout);
                }
                end(&shared);
            };
            if std::thread::Builder::new().name("pantala-shutdown".into()).spawn(run).is_ok() {
                return;
            }
        }
        end(server);
    }

    /// Returns the auxiliary fields that allow a server to continue this history after it has
    /// loaded the snapshot. None unless the offset of the dataset is known: the stream is complete,
    /// or on a replica no command of its link is in flight.
    pub fn saved_position(&self, server: &Server) -> Vec<(&'static str, String)> {
        let fields = |id: ReplId, offset: u64, db: u32| {
            vec![("repl-stream-db", db.to_string()), ("repl-id", id.to_string()), ("repl-offset", offset.to_string())]
        };
        if let Some(Known { position, db }) = self.replica.known_at_rest() {
            return fields(position.id, position.offset, db);
        }
        let state = self.state();
        if !state.is_drained {
            return Vec::new();
        }
        let offset = self.held(server).0.end;
        fields(state.history.id(), offset, 0)
    }

    /// Continues the history of the snapshot loaded at startup, so that replicas that have all of
    /// it need no full sync, nor does this server if it is a replica. `db` is the database that
    /// the stream has selected. Must be called before any worker runs.
    pub fn continue_saved_history(&self, server: &Server, id: ReplId, offset: u64, db: u32) {
        server.keyspace().journal().continue_at(offset);
        if server.keyspace().keep_journal(true).is_err() {
            return;
        }
        // Waits until the journal's thread records the stream, which would lack earlier effects.
        while !server.keyspace().journal().held().1 {
            std::thread::sleep(LOOK);
        }
        let mut state = self.state();
        let own = state.new_id();
        state.history.change(id);
        state.shift(own, offset, db);
        self.set_backlog(server, &mut state, true);
        state.alone_since_ms = Some(server.monotonic_ms());
        tracing::info!("The snapshot's history {id} continues as {own} at offset {offset}");
    }
}
