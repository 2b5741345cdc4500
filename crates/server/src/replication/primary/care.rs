//! Maintains the table of replicas. Frees the backlog (the part of the stream that is kept for
//! replicas) when no replica needs it any more. Decides whether there are enough good replicas for
//! writes; a replica is *good* if it has sent an acknowledgement recently (`min-replicas-max-lag`).
//!
//! A *history* is the stream under one replication ID.

use std::sync::Arc;

use pantala_engine::tuning::refusal::Refusals;
use pantala_replication::{Replica, ReplicaState};

use super::Link;
use crate::config::primary::PrimarySettings;
use crate::host::Server;
use crate::replication::{Place, Replication, State, promotion};

impl State {
    /// Records whether the stream is kept, for attached replicas or for replicas that may
    /// reconnect.
    pub(in crate::replication) fn set_backlog(&mut self, server: &Server, is_kept: bool) {
        self.has_backlog = is_kept;
        server.snapshots().aof.gate().set_streamed(is_kept);
    }
}

impl Replication {
    /// Adds a replica. If there is no backlog, the stream was not kept, so a new history starts.
    /// `at` is the place from which the replica continues. Returns `false` if the history has
    /// another ID than this place.
    pub(super) fn added(&self, server: &Server, replica: Replica, link: Arc<Link>, at: Option<Place>) -> bool {
        {
            let mut state = self.state();
            if at.is_some_and(|place| place.id != state.history.id()) {
                return false;
            }
            if !state.has_backlog {
                let id = state.new_id();
                state.history.change(id);
                state.set_backlog(server, true);
                tracing::info!(
                    "Replication backlog created, my new replication IDs are '{id}' and '{}'",
                    "0".repeat(40)
                );
            }
            state.alone_since_ms = None;
            state.has_announced_id = true;
            state.replicas.add(replica);
            state.links.push(link);
        }
        self.update_pings(server);
        self.check_good_replicas(server);
        true
    }

    /// Enables the periodic `PING` in the stream if there are replicas. Disables it while the
    /// stream must not grow: during a failover, a promotion, and a shutdown that waits for
    /// replicas.
    pub(in crate::replication) fn update_pings(&self, server: &Server) {
        // The lock is held while the decision is stored, so that the last decision made is the last
        // stored.
        let state = self.state();
        let is_closing = self.failovers.is_running() || state.draining.holds_writes() || state.promotions.running > 0;
        server.keyspace().journal().set_replicas(!state.replicas.is_empty() && !is_closing);
    }

    /// Records that the whole snapshot was sent to a replica.
    pub(super) fn set_online(&self, server: &Server, client: u64) {
        if let Some(replica) = self.state().replicas.find(client) {
            replica.state = ReplicaState::Online;
            replica.acked_ms = server.monotonic_ms();
        }
        self.check_good_replicas(server);
    }

    /// Records that a replica has sent an empty line: it is alive and still loads its snapshot.
    pub(crate) fn note_alive(&self, client: u64, now_ms: i64) {
        self.state().replicas.note_alive(client, now_ms);
    }

    /// Removes a replica whose connection has closed.
    pub(super) fn removed(&self, server: &Server, client: u64) {
        {
            let mut state = self.state();
            state.replicas.remove(client);
            state.links.retain(|link| link.client != client);
            if state.replicas.is_empty() {
                state.alone_since_ms = Some(server.monotonic_ms());
            }
        }
        self.update_pings(server);
        self.check_good_replicas(server);
    }

    /// Frees the backlog if there has been no replica for the time `repl-backlog-ttl`. The history
    /// then gets another ID, so that no replica tries to continue it.
    fn end_backlog_if_due(&self, server: &Server) {
        let ttl_ms = server.config().settings().primary.backlog_ttl_s.saturating_mul(1000) as i64;
        {
            let mut state = self.state();
            let is_due = |since_ms: i64| server.monotonic_ms() - since_ms > ttl_ms;
            // A replica keeps its backlog. If it is promoted, other replicas of its primary may
            // need the backlog.
            let is_kept = ttl_ms == 0 || !state.has_backlog || server.keyspace().tuning.is_replica();
            if is_kept || !state.alone_since_ms.is_some_and(is_due) {
                return;
            }
            let id = state.new_id();
            state.history.change(id);
            state.set_backlog(server, false);
            state.alone_since_ms = None;
            // The state stays locked during this call. Otherwise, a replica could attach at this
            // moment and lose the stream. `keep_journal` can't fail here: only starting a thread
            // can fail, and `false` starts none.
            let _ = server.keyspace().keep_journal(false);
        }
        tracing::info!("Replication backlog freed after {} seconds without connected replicas.", ttl_ms / 1000);
    }

    /// Runs the periodic work of replication. Worker 0 calls this a few times a second.
    pub fn look_after(&self, server: &Server) {
        promotion::retry(server);
        self.sync_if_due(server);
        self.check_good_replicas(server);
        self.end_backlog_if_due(server);
        self.spill_if_wanted(server);
    }

    /// Starts another history and closes the connections of all replicas, which then need a full
    /// sync. `why` is logged.
    pub fn start_history(&self, why: &str) {
        {
            let mut state = self.state();
            let id = state.new_id();
            state.history.change(id);
        }
        self.drop_replicas(why);
    }

    /// Closes the connections of all replicas, so that the replicas attach again. `why` is logged.
    pub fn drop_replicas(&self, why: &str) {
        let links: Vec<Arc<Link>> = self.state().links.iter().map(Arc::clone).collect();
        links.iter().for_each(|link| link.fail(why));
    }

    /// Makes the server reject or accept writes, according to the number of good replicas.
    pub fn check_good_replicas(&self, server: &Server) {
        self.require_good_replicas(server, server.config().settings().primary);
    }

    /// Does the same as [`Replication::check_good_replicas`], with settings that are about to be
    /// applied.
    pub fn require_good_replicas(&self, server: &Server, settings: PrimarySettings) {
        let tuning = &server.keyspace().tuning;
        // Locked until the result is published. Otherwise a result from before a change of the role
        // could replace a later one.
        let state = self.state();
        // A replica skips this check: its writes come from its primary, which has accepted them.
        let lacks = settings.requires_replicas()
            && !tuning.is_replica()
            && (state.replicas.good(settings.lag_s_max, server.monotonic_ms()) as u64) < settings.replicas_min;
        tuning.set_refusals(Refusals::NO_REPLICAS, lacks);
    }
}
