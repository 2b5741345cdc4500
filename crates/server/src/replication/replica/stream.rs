//! Switches the stream of this server when its role changes. The stream consists either of the
//! primary's bytes or of the server's own units (the effects of its own commands).
//!
//! A *term* is a period during which this server follows the same primary, or none. A *history* is
//! the stream under one replication ID. The functions here make all changes under the lock of
//! [`Replica`]'s state. The term changes under the same lock, so a thread of an earlier term can't
//! change anything.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pantala_engine::client::Progress;
use pantala_replication::replica::Position;

use super::{Known, Replica, WAKE_EVERY};
use crate::host::Server;
use crate::replication::relay::Origin;

impl Replica {
    /// Returns the database that the stream has selected at its end. Returns `None` while a command
    /// of the link may be running, because the dataset may not be at the end of the stream then.
    /// Must be called while all shards are held.
    pub(in crate::replication) fn stream_db_at_rest(&self) -> Option<u32> {
        let state = self.lock();
        match (&state.primary, state.link) {
            (_, Some(_)) => self.progress.is_resting.load(Relaxed).then(|| self.progress.db.load(Relaxed)),
            (Some(_), None) => Some(state.known.map_or(0, |known| known.db)),
            // The value doesn't matter, because a primary's stream selects a database for each new
            // reader.
            (None, None) => Some(0),
        }
    }

    /// Replaces this server's stream and history by those of the primary. Records the position from
    /// which they can be continued, if any. Returns whether the ID has changed, or `None` if `term`
    /// is no longer the current term.
    pub(in crate::replication) fn follow_stream(&self, server: &Server, term: u64, origin: Origin) -> Option<bool> {
        let (keyspace, mut has_changed) = (server.keyspace(), None);
        self.in_term(term, |state| {
            has_changed = Some(server.replication().follow_history(server, origin));
            state.known = origin.known;
            keyspace.journal().relay_from(&keyspace.tuning, origin.offset, origin.asked.is_some());
        });
        has_changed
    }

    /// Makes the stream consist of this server's own units again. Returns whether `term` is still
    /// the current term.
    ///
    /// # Errors
    /// The journal's thread can't be started.
    pub(in crate::replication) fn resume_stream(&self, server: &Server, term: u64) -> std::io::Result<bool> {
        let (keyspace, mut resumed) = (server.keyspace(), Ok(()));
        let is_current = self.in_term(term, |_| resumed = keyspace.journal().resume_stream(&keyspace.tuning));
        resumed.map(|()| is_current)
    }

    /// Records the end of this server's own stream, which is also the position of the dataset.
    /// Returns the end, or `None` if the end is unknown or `term` is over.
    pub(in crate::replication) fn record_own_end(
        &self,
        term: u64,
        end: impl FnOnce() -> Option<Known>,
    ) -> Option<Known> {
        let mut known = None;
        self.in_term(term, |state| {
            known = end();
            (state.known, state.is_own) = (known, false);
        });
        known
    }

    /// Ends the stream, and records that the dataset no longer has a position in any history.
    /// Returns whether `term` is still the current term.
    pub(in crate::replication) fn forget(&self, server: &Server, term: u64) -> bool {
        let keyspace = server.keyspace();
        self.in_term(term, |state| {
            (state.known, state.is_own) = (None, false);
            // Until the snapshot is loaded, this replica reports the offset 0. Sentinel prefers the
            // replica with the highest offset, so it does not choose this one.
            self.progress.applied.store(0, Relaxed);
            self.progress.received.store(0, Relaxed);
            keyspace.journal().hold_stream(&keyspace.tuning);
        })
    }

    /// Waits until the link of an earlier term has ended. Returns whether `term` is still the
    /// current term.
    pub(in crate::replication) fn wait_for_end(&self, server: &Server, term: u64) -> bool {
        let mut state = self.lock();
        while state.link.is_some() && self.term() == term && !server.is_stopping() {
            state = self.changed.wait_timeout(state, WAKE_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.term() == term && !server.is_stopping()
    }

    /// Ends a promotion, after the stream has become the server's own. Returns whether `term` is
    /// still the current term.
    pub(in crate::replication) fn end_promotion(&self, server: &Server, term: u64) -> bool {
        self.in_term(term, |state| server.replication().own_history(server, state.former.take()))
    }

    /// Closes the link, and prevents another link until [`Replica::resume_following`]. Waits until
    /// the link has ended, but at most until `until`. Once it has ended, the position of the
    /// dataset is known.
    pub(in crate::replication) fn stop_following(&self, server: &Server, until: Instant) {
        self.lock().is_held = true;
        self.end_link(server);
        let mut state = self.lock();
        while state.link.is_some() && Instant::now() < until {
            state = self.changed.wait_timeout(state, WAKE_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Prevents new links until [`Replica::resume_following`]. Also prevents loads that have not
    /// begun to replace the dataset yet.
    pub(in crate::replication) fn hold(&self) {
        self.lock().is_held = true;
    }

    /// Records that the load, which holds all shards, begins to replace the dataset. If a shutdown
    /// is pending, returns `false`, and the load must not start, because the shutdown saves the
    /// dataset.
    ///
    /// A shutdown first calls [`Replica::hold`], then checks whether the dataset is incomplete.
    /// `hold` and this function both take the lock of [`Replica`]. If `hold` comes first, the load
    /// does not start. If this function comes first, the check finds the dataset incomplete, and
    /// the shutdown does not save it.
    pub(in crate::replication) fn begin_replacing(&self, server: &Server) -> bool {
        let state = self.lock();
        if !state.is_held {
            server.snapshots().loading.set_incomplete(true);
        }
        !state.is_held
    }

    /// Allows links again.
    pub(in crate::replication) fn resume_following(&self) {
        self.lock().is_held = false;
        self.changed.notify_all();
    }

    /// Returns the position of the dataset in the primary's stream. Returns `None` if the position
    /// is unknown, for example because a command of the link may be running. Must be called while
    /// all shards are held.
    pub(in crate::replication) fn known_at_rest(&self) -> Option<Known> {
        let state = self.lock();
        let known = state.primary.as_ref().and(state.known)?;
        if state.link.is_none() {
            return Some(known);
        }
        let position = Position { offset: self.applied(), ..known.position };
        let Progress { is_resting, db, .. } = &*self.progress;
        is_resting.load(Relaxed).then(|| Known { position, db: db.load(Relaxed) })
    }
}
