//! Holds back writes before a shutdown, until replicas have the whole stream. At startup, continues
//! the history of the loaded snapshot (the stream under the snapshot's replication ID).
//!
//! A pause holds back writes. A worker checks once, before it runs a command, whether a pause holds
//! it back. Commands that were checked before the pause are *admitted* and still run. [`quiesce`]
//! waits until the effects (propagated changes) of all admitted commands are in the stream. It
//! takes the three steps below. In the first and the last step, it sets a *mark* in the journal.
//! The journal reaches the mark once each worker has ended its current turn (iteration of its event
//! loop) and the stream contains all effects committed until then.
//!
//! | step: wait until | result |
//! | --- | --- |
//! | the journal has reached a mark | each worker has ended the turn that admitted the commands |
//! | a worker has acquired all shards | the commands have run |
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

/// Maximum time for which a replica that shuts down waits for the last command of its link.
const LINK_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Time that even `SHUTDOWN NOW` gives admitted commands to end, although it waits for no replica.
/// Until these commands have ended, the end of the stream is unknown.
const COMMANDS_END_WITHIN: Duration = Duration::from_secs(1);

/// Interval at which acknowledgements are checked.
const LOOK: Duration = Duration::from_millis(5);

/// The waiter of a blocked `SHUTDOWN`, and the worker of its connection.
pub type BlockedShutdown = (Arc<Waiter>, u32);

/// A shutdown that waits for replicas or is ending the server.
pub(in crate::replication) struct PendingShutdown {
    number: u64,
    /// The clients whose `SHUTDOWN` blocks.
    clients: Vec<BlockedShutdown>,
    /// When the wait for replicas ends at the latest.
    until: Instant,
    /// Whether the shutdown no longer waits, so that it can't be aborted any more.
    is_ending: bool,
}

/// Calls `done` with the offset of the stream's end, once the stream contains the effects of all
/// admitted commands. The caller must hold back new commands. If `asks` is true, a request for the
/// replicas' acknowledgements is then added to the stream.
pub(in crate::replication) fn quiesce(server: &Arc<Server>, asks: bool, done: impl FnOnce(u64) + Send + 'static) {
    let weak = Arc::downgrade(server);
    let journal = server.keyspace().journal();
    journal.mark(
        false,
        Box::new(move |_| {
            let Some(server) = weak.upgrade() else { return };
            snapshot::with_all_shards(
                &server,
                Box::new(move |server, _| {
                    if !server.keyspace().reset_requests.are_there() {
                        server.keyspace().journal().mark(asks, Box::new(done));
                    } else if let Some(server) = weak.upgrade() {
                        // A script has reset an admitted request: the request has released its
                        // shards and may not be queued for them again yet. So the shards may have
                        // been acquired before the request has run. All steps are repeated.
                        quiesce(&server, asks, done);
                    }
                }),
            );
        }),
    );
}

/// Stops the server, after a snapshot if the options of the shutdown require one.
fn end(server: &Server) {
    if Server::saves_before(server, server.snapshots().shutdown_options()) {
        // The snapshot needs all shards, which a worker must acquire.
        server.port(0).send(Message::Save);
    } else if server.snapshots().loading.is_incomplete()
        || aof::allows_exit(server, server.snapshots().shutdown_options())
    {
        server.stop();
    } else {
        tracing::warn!("{}", snapshot::SHUTDOWN_FAILED_LINE);
        tracing::warn!("{}", snapshot::SIGNAL_FAILED);
        server.replication().resume_writes(server);
    }
}

/// The pending shutdown, and whether it holds back writes.
#[derive(Default)]
pub struct Draining {
    /// The shutdown that waits for replicas or is ending the server, if any.
    shutdown: Option<PendingShutdown>,
    /// The number that was last assigned to a shutdown. An abort assigns a new number to the
    /// aborted shutdown.
    shutdowns: u64,
    /// Whether a shutdown holds back writes.
    holds_writes: bool,
    /// Whether no more writes can run, so that the stream is complete.
    is_drained: bool,
}

impl Draining {
    /// Returns whether a shutdown holds back writes.
    pub(in crate::replication) fn holds_writes(&self) -> bool {
        self.holds_writes
    }

    /// Returns the maximum time for which the pending shutdown will still wait for replicas.
    /// Returns `None` if no shutdown is pending.
    pub fn remaining(&self) -> Option<Duration> {
        self.shutdown.as_ref().map(|shutdown| shutdown.until.saturating_duration_since(Instant::now()))
    }

    /// Returns whether the shutdown with this number is pending and was not aborted.
    fn awaits(&self, number: u64) -> bool {
        self.shutdown.as_ref().is_some_and(|shutdown| shutdown.number == number)
    }

    /// Holds back writes, unless they are held back already. As in Redis, `CLIENT UNPAUSE` does not
    /// end this pause.
    fn begin(&mut self, server: &Server) {
        if !std::mem::replace(&mut self.holds_writes, true) {
            hold_writes(server);
        }
    }

    /// Ends the wait of a shutdown. Returns `false` if the shutdown was aborted.
    fn begin_end(&mut self, number: u64) -> bool {
        let waiting = self.shutdown.as_mut().filter(|shutdown| shutdown.number == number);
        waiting.map(|shutdown| shutdown.is_ending = true).is_some()
    }

    /// Accepts writes again. Returns the shutdown that was pending.
    fn stop(&mut self, server: &Server) -> Option<PendingShutdown> {
        if std::mem::take(&mut self.holds_writes) {
            release_writes(server);
        }
        self.is_drained = false;
        self.shutdown.take()
    }

    /// Makes the thread of the pending shutdown end, unless the shutdown no longer waits. Returns
    /// whether a shutdown was waiting. The shutdown stays pending until [`Draining::stop`].
    fn abort(&mut self) -> bool {
        let Some(shutdown) = self.shutdown.as_mut().filter(|shutdown| !shutdown.is_ending) else { return false };
        // The thread detects the abort by the new number.
        self.shutdowns += 1;
        shutdown.number = self.shutdowns;
        true
    }
}

impl State {
    /// Returns whether any online replica has not acknowledged the stream up to `offset`. Ignores
    /// replicas that have attached by `SYNC`, because they send no acknowledgements.
    fn is_behind(&self, offset: u64) -> bool {
        let mut online = self.replicas.iter().filter(|replica| replica.state == ReplicaState::Online);
        let old = |client| self.links.iter().any(|link| link.client == client && link.is_old);
        online.any(|replica| replica.acked < offset && !old(replica.client))
    }
}

impl Replication {
    /// Holds back writes and waits until replicas have the whole stream, at most until `until`.
    /// Waits for admitted commands for at most [`COMMANDS_END_WITHIN`], or until `until` if that is
    /// later. An abort of the shutdown ends both waits. Blocks, so a worker must not call it.
    fn drain(&self, server: &Arc<Server>, number: u64, until: Instant) {
        let quiet_until = until.max(Instant::now() + COMMANDS_END_WITHIN);
        {
            let mut state = self.state();
            if !state.draining.awaits(number) {
                return;
            }
            // If the server was a replica when the shutdown was requested, writes are not held back
            // yet.
            state.draining.begin(server);
        }
        self.update_pings(server);
        let (sender, receiver) = mpsc::channel();
        // If a shutdown doesn't wait for replicas, it adds no request for acknowledgements to the
        // stream. An error of `send` means that the receiver has stopped waiting.
        let asks = Instant::now() < until;
        quiesce(server, asks, move |offset| _ = sender.send(offset));
        let offset = loop {
            match receiver.recv_timeout(LOOK) {
                Ok(offset) => break offset,
                Err(_) if !self.state().draining.awaits(number) => return,
                Err(_) if Instant::now() >= quiet_until => {
                    tracing::warn!("Shutdown: writes could not be held back in time");
                    return;
                }
                Err(_) => {}
            }
        };
        {
            let mut state = self.state();
            if !state.draining.holds_writes || !state.draining.awaits(number) {
                return;
            }
            state.draining.is_drained = true;
        }
        while Instant::now() < until {
            let state = self.state();
            if !state.is_behind(offset) || !state.draining.awaits(number) {
                break;
            }
            drop(state);
            std::thread::sleep(LOOK);
        }
        if !self.state().draining.awaits(number) {
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

    /// Undoes the preparations of a shutdown that has failed or was aborted. Accepts writes again,
    /// allows links to the primary again, and sends an error to the clients whose `SHUTDOWN` is
    /// blocked.
    pub fn resume_writes(&self, server: &Server) {
        self.replica.resume_following();
        let shutdown = self.state().draining.stop(server);
        self.update_pings(server);
        for (waiter, worker) in shutdown.into_iter().flat_map(|shutdown| shutdown.clients) {
            if waiter.claim() {
                let reply = format!("-{}\r\n", snapshot::SHUTDOWN_FAILED).into_bytes();
                server.port(worker).send(Message::Woken(Woken { waiter, reply, effect_clock: 0, closes: false }));
            }
        }
    }

    /// Returns whether a shutdown must wait: for replicas or, on a replica, for the end of the
    /// link. Each of these waits establishes where the stream ends. Also returns `true` if another
    /// shutdown is pending: the new shutdown then joins it.
    pub fn drains_before(&self, server: &Server) -> bool {
        self.state().draining.shutdown.is_some() || server.keyspace().tuning.is_replica() || self.held(server).1
    }

    /// Stops the server once replicas have the whole stream, but at the latest after
    /// `shutdown-timeout`. A replica closes its link instead, because its stream consists of its
    /// primary's bytes. `client` is the client that has sent `SHUTDOWN`, if any.
    pub fn drain_and_end(&self, server: &Server, how: Shutdown, client: Option<BlockedShutdown>) {
        let waits = self.drains_before(server);
        let timeout_s = if how.now { 0 } else { server.config().settings().shutdown_timeout_s.into() };
        let until = Instant::now() + Duration::from_secs(timeout_s);
        let number = {
            let draining = &mut self.state().draining;
            if let Some(shutdown) = &mut draining.shutdown {
                return shutdown.clients.extend(client);
            }
            draining.shutdowns += 1;
            let (number, clients) = (draining.shutdowns, client.into_iter().collect());
            draining.shutdown = Some(PendingShutdown { number, clients, until, is_ending: !waits });
            if waits && !server.keyspace().tuning.is_replica() {
                // Writes must be held back before any client can see that the shutdown waits.
                draining.begin(server);
            }
            number
        };
        server.snapshots().set_shutdown_options(how);
        // A load must not start now, because it would replace the dataset before it is saved.
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
                let begins = replication.state().draining.begin_end(number);
                if begins {
                    end(&shared);
                } else {
                    // The shutdown was aborted. The abort has allowed links, but `stop_following`
                    // may have run after the abort and prevented links again. So links are allowed
                    // once more.
                    replication.replica.resume_following();
                }
            };
            if std::thread::Builder::new().name("pantala-shutdown".into()).spawn(run).is_ok() {
                return;
            }
        }
        let begins = self.state().draining.begin_end(number);
        if begins {
            end(server);
        }
    }

    /// Aborts a shutdown that waits for replicas (`SHUTDOWN ABORT`). Returns whether there was one.
    pub fn abort_shutdown(&self, server: &Server) -> bool {
        if !self.state().draining.abort() {
            return false;
        }
        self.resume_writes(server);
        tracing::info!("Shutdown manually aborted.");
        true
    }

    /// Returns auxiliary fields for a snapshot. With these fields, a server that loads the snapshot
    /// can continue this history. Returns no fields if the offset of the dataset is unknown. A
    /// primary knows the offset once the stream is complete. A replica knows the offset while no
    /// command of its link is running, or once the link is closed.
    pub fn saved_position(&self, server: &Server) -> Vec<(&'static str, String)> {
        let fields = |id: ReplId, offset: u64, db: u32| {
            vec![("repl-stream-db", db.to_string()), ("repl-id", id.to_string()), ("repl-offset", offset.to_string())]
        };
        if let Some(Known { position, db }) = self.replica.known_at_rest() {
            return fields(position.id, position.offset, db);
        }
        let state = self.state();
        // After the stream was complete, a `REPLICAOF` may have made this server a replica.
        if !state.draining.is_drained || server.keyspace().tuning.is_replica() {
            return Vec::new();
        }
        let offset = self.held(server).0.end;
        fields(state.history.id(), offset, 0)
    }

    /// Continues the history of the snapshot that was loaded at startup. So replicas that have all
    /// of this history need no full sync. If this server is a replica itself, it needs no full sync
    /// from its primary either. `db` is the database that the stream has selected. Must be called
    /// before any worker runs.
    pub fn continue_saved_history(&self, server: &Server, id: ReplId, offset: u64, db: u32) {
        server.keyspace().journal().continue_at(offset);
        if server.keyspace().keep_journal(true).is_err() {
            return;
        }
        // Waits until the journal records the stream, which would otherwise lack the first effects.
        while !server.keyspace().journal().held().1 {
            std::thread::sleep(LOOK);
        }
        let mut state = self.state();
        let own = state.new_id();
        state.history.change(id);
        state.continue_as(own, offset, db);
        state.set_backlog(server, true);
        state.alone_since_ms = Some(server.monotonic_ms());
        tracing::info!("The snapshot's history {id} continues as {own} at offset {offset}");
    }
}
