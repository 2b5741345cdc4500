//! Holds back writes before a shutdown until replicas have the whole stream.
//!
//! A pause holds back commands that have not been admitted yet. The commands admitted before it are
//! in the stream after three steps:
//!
//! | wait until | result |
//! | --- | --- |
//! | the journal has reached a mark | each worker has ended the turn that admitted the commands |
//! | a job holds all shards | the commands have run |
//! | the journal has reached a second mark | the commands' effects are in the stream |

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::Shutdown;
use pantala_engine::message::Message;
use pantala_replication::{ReplId, ReplicaState};

use crate::aof;
use crate::host::Server;
use crate::replication::promotion::{hold_writes, release_writes};
use crate::replication::replica::Known;
use crate::replication::{Replication, State};
use crate::snapshot;

/// How long a replica that shuts down waits for the last command of its link.
const LINK_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Minimum time that a shutdown allows admitted commands to end. It also applies to `SHUTDOWN NOW`,
/// although that waits for no replica, because the stream's end is unknown until these commands
/// have ended.
const COMMANDS_END_WITHIN: Duration = Duration::from_secs(1);

/// How often acknowledgements are checked.
const LOOK: Duration = Duration::from_millis(5);

/// The waiter of a blocked `SHUTDOWN`, and the worker of its connection.
pub type BlockedShutdown = (Arc<Waiter>, u32);

/// A shutdown that waits for replicas, or has begun to end the server.
pub(in crate::replication) struct PendingShutdown {
    number: u64,
    /// The clients whose `SHUTDOWN` is blocked.
    clients: Vec<BlockedShutdown>,
    /// When the wait for replicas ends at the latest.
    until: Instant,
    /// Whether the shutdown no longer waits, so that it can't be aborted.
    is_ending: bool,
}

/// Calls `done` with the end of the log when all admitted commands are in it. The caller must hold
/// back new commands. If `asks` is true, the replicas are then asked for acknowledgements.
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
    } else if server.snapshots().loading.is_incomplete() || aof::allows_exit(server, server.snapshots().ending()) {
        server.stop();
    } else {
        tracing::warn!("{}", snapshot::SHUTDOWN_FAILED_LINE);
        tracing::warn!("{}", snapshot::SIGNAL_FAILED);
        server.replication().resume_writes(server);
    }
}

impl State {
    /// Returns whether the shutdown `number` is pending and was not aborted.
    fn awaits_shutdown(&self, number: u64) -> bool {
        self.shutdown.as_ref().is_some_and(|shutdown| shutdown.number == number)
    }

    /// Holds back writes, unless they already are. As in Redis, `CLIENT UNPAUSE` does not end this
    /// pause.
    fn begin_draining(&mut self, server: &Server) {
        if !std::mem::replace(&mut self.is_draining, true) {
            hold_writes(server);
        }
    }

    /// Ends the wait of a shutdown. Returns false if it was aborted.
    fn begin_end(&mut self, number: u64) -> bool {
        let waiting = self.shutdown.as_mut().filter(|shutdown| shutdown.number == number);
        waiting.map(|shutdown| shutdown.is_ending = true).is_some()
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

    /// Holds back writes, and waits until replicas have the whole stream, at most until `until` or
    /// until the shutdown is aborted. Blocks, so a worker must not call it.
    fn drain(&self, server: &Arc<Server>, number: u64, until: Instant) {
        let quiet_until = until.max(Instant::now() + COMMANDS_END_WITHIN);
        {
            let mut state = self.state();
            if !state.awaits_shutdown(number) {
                return;
            }
            // A replica that has been promoted since has not held back writes yet.
            state.begin_draining(server);
        }
        self.update_pings(server);
        let (sender, receiver) = mpsc::channel();
        // If the shutdown doesn't wait for replicas, no request for acknowledgements is added to
        // the stream. An error of `send` is ignored: the receiver may have stopped waiting.
        let asks = Instant::now() < until;
        quiesce(server, asks, move |offset| _ = sender.send(offset));
        let offset = loop {
            match receiver.recv_timeout(LOOK) {
                Ok(offset) => break offset,
                Err(_) if !self.state().awaits_shutdown(number) => return,
                Err(_) if Instant::now() >= quiet_until => {
                    tracing::warn!("Shutdown: writes could not be held back in time");
                    return;
                }
                Err(_) => {}
            }
        };
        {
            let mut state = self.state();
            if !state.is_draining || !state.awaits_shutdown(number) {
                return;
            }
            state.is_drained = true;
        }
        while self.is_behind(offset) && Instant::now() < until && self.state().awaits_shutdown(number) {
            std::thread::sleep(LOOK);
        }
        if !self.state().awaits_shutdown(number) {
            return;
        }
        let (state, now_ms) = (self.state(), server.monotonic_ms());
        let lagging = || state.replicas.iter().filter(|replica| replica.acked < offset);
        for replica in lagging() {
            tracing::warn!(
                "Lagging replica {} reported offset {} behind master, lag={}, state={}.",
                replica.address(),
                offset - replica.acked,
                replica.lag_s(now_ms),
                replica.state.name()
            );
        }
        let all = state.replicas.len();
        if all > 0 {
            tracing::info!("{} of {all} replicas are in sync when shutting down.", all - lagging().count());
        }
    }

    /// Admits writes again, follows the primary again, and sends an error to clients whose
    /// `SHUTDOWN` is blocked, after a shutdown that has failed or was aborted.
    pub fn resume_writes(&self, server: &Server) {
        self.replica.resume_following();
        let shutdown = {
            let mut state = self.state();
            if std::mem::take(&mut state.is_draining) {
                release_writes(server);
            }
            state.is_drained = false;
            state.shutdown.take()
        };
        self.update_pings(server);
        for (waiter, worker) in shutdown.into_iter().flat_map(|shutdown| shutdown.clients) {
            if waiter.claim() {
                let reply = format!("-{}\r\n", snapshot::SHUTDOWN_FAILED).into_bytes();
                server.port(worker).send(Message::Woken(Woken { waiter, reply, effect_clock: 0 }));
            }
        }
    }

    /// Returns whether a shutdown must first determine the end of the stream. It may then wait for
    /// replicas or, on a replica, for the end of the link. Also returns `true` if another shutdown
    /// is pending, because the new shutdown joins it.
    pub fn drains_before(&self, server: &Server) -> bool {
        self.state().shutdown.is_some() || server.keyspace().tuning.is_replica() || self.held(server).1
    }

    /// Stops the server when replicas have the whole stream, at the latest after
    /// `shutdown-timeout`. On a replica, whose stream is its primary's, ends the link to the
    /// primary instead. `client` is the client that has sent `SHUTDOWN`, if any.
    pub fn drain_and_end(&self, server: &Server, how: Shutdown, client: Option<BlockedShutdown>) {
        let waits = self.drains_before(server);
        let timeout_s = if how.now { 0 } else { server.config().settings().shutdown_timeout_s.into() };
        let until = Instant::now() + Duration::from_secs(timeout_s);
        let number = {
            let mut state = self.state();
            if let Some(shutdown) = &mut state.shutdown {
                return shutdown.clients.extend(client);
            }
            state.shutdowns += 1;
            let (number, clients) = (state.shutdowns, client.into_iter().collect());
            state.shutdown = Some(PendingShutdown { number, clients, until, is_ending: !waits });
            if waits && !server.keyspace().tuning.is_replica() {
                // Before any client can see that the shutdown waits.
                state.begin_draining(server);
            }
            number
        };
        server.snapshots().set_ending(how);
        // A load that starts now would replace the dataset before it is saved.
        self.replica.hold();
        if let (true, Some(shared)) = (waits, self.server()) {
            let run = move || {
                let replication = shared.replication();
                if shared.keyspace().tuning.is_replica() {
                    replication.replica.stop_following(&shared, Instant::now() + LINK_ENDS_WITHIN);
                } else {
                    if timeout_s > 0 && !replication.state().replicas.is_empty() {
                        tracing::info!("Waiting for replicas before shutting down.");
                    }
                    replication.drain(&shared, number, until);
                }
                let begins = replication.state().begin_end(number);
                if begins {
                    end(&shared);
                } else {
                    // The shutdown was aborted. If `stop_following` prevented links after that,
                    // they must be allowed again.
                    replication.replica.resume_following();
                }
            };
            if std::thread::Builder::new().name("pantala-shutdown".into()).spawn(run).is_ok() {
                return;
            }
        }
        let begins = self.state().begin_end(number);
        if begins {
            end(server);
        }
    }

    /// Aborts a shutdown that waits for replicas (`SHUTDOWN ABORT`). Returns whether there was one.
    pub fn abort_shutdown(&self, server: &Server) -> bool {
        {
            let mut state = self.state();
            if state.shutdown.as_ref().is_none_or(|shutdown| shutdown.is_ending) {
                return false;
            }
            // The shutdown is kept until writes are admitted again. By the new number, the
            // shutdown's thread detects that the shutdown was aborted.
            state.shutdowns += 1;
            let number = state.shutdowns;
            state.shutdown.iter_mut().for_each(|shutdown| shutdown.number = number);
        }
        self.resume_writes(server);
        tracing::info!("Shutdown manually aborted.");
        true
    }

    /// Returns the maximum remaining time for which a pending shutdown waits for replicas; `None`
    /// if none is pending.
    pub fn shutdown_in(&self) -> Option<Duration> {
        let state = self.state();
        state.shutdown.as_ref().map(|shutdown| shutdown.until.saturating_duration_since(Instant::now()))
    }

    /// Returns the auxiliary fields that allow a server to continue this history after it has
    /// loaded the snapshot. Returns no fields unless the offset of the dataset is known. On a
    /// primary it is known once the stream is complete; on a replica, while the link rests or is
    /// closed.
    pub fn saved_position(&self, server: &Server) -> Vec<(&'static str, String)> {
        let fields = |id: ReplId, offset: u64, db: u32| {
            vec![("repl-stream-db", db.to_string()), ("repl-id", id.to_string()), ("repl-offset", offset.to_string())]
        };
        if let Some(Known { position, db }) = self.replica.known_at_rest() {
            return fields(position.id, position.offset, db);
        }
        let state = self.state();
        // A `REPLICAOF` may have made this server a replica since.
        if !state.is_drained || server.keyspace().tuning.is_replica() {
            return Vec::new();
        }
        let offset = self.held(server).0.end;
        fields(state.history.id(), offset, 0)
    }

    /// Continues the history of the snapshot loaded at startup. Replicas that have all of that
    /// history then need no full sync. If this server is itself a replica, it needs none either.
    /// `db` is the database that the stream has selected. Must be called before any worker runs.
    pub fn continue_saved_history(&self, server: &Server, id: ReplId, offset: u64, db: u32) {
        server.keyspace().journal().continue_at(offset);
        if server.keyspace().keep_journal(true).is_err() {
            return;
        }
        // Waits until the journal's thread records the stream, because effects that are produced
        // before that would be missing from it.
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
