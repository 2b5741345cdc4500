//! The stream of a replica: the bytes of its primary, at the primary's offsets, under the primary's
//! ID.
//!
//! The worker that owns the link appends the bytes that it has applied (`clients/primary.rs`). So
//! the end of the stream is the position of the dataset, and the server's own replicas get the
//! bytes that the server itself has got. If the server is promoted, its backlog has the bytes that
//! other replicas may lack. A *history* is the stream under one replication ID.

use pantala_replication::ReplId;

use super::Replication;
use super::replica::Known;
use crate::host::Server;

/// The position at which a link starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// The position of the dataset in the primary's stream. If it is `None`, a later link can't
    /// continue the stream.
    pub(super) known: Option<Known>,
    /// The offset at which the link's stream starts.
    pub(super) offset: u64,
    /// The ID that this server has sent in the `PSYNC` that continued the stream. `None` after a
    /// full sync.
    pub(super) asked: Option<ReplId>,
}

impl Replication {
    /// Makes the stream of this server continue with the bytes of its primary. Returns whether
    /// `term` is still current: whether the server has followed the same primary all along.
    pub(super) fn relay(&self, server: &Server, term: u64, origin: Origin) -> bool {
        let Some(has_changed) = self.replica.follow_stream(server, term, origin) else { return false };
        if has_changed {
            self.drop_replicas("the history continues under another ID");
        }
        true
    }

    /// Makes the primary's history the history of this server. Returns whether the ID has changed.
    /// The caller must hold the lock under which the term changes (`Replica::in_term`).
    pub(super) fn follow_history(&self, server: &Server, Origin { known, offset, asked }: Origin) -> bool {
        let mut state = self.state();
        state.set_backlog(server, true);
        state.alone_since_ms = None;
        match (asked, known) {
            (Some(asked), Some(known)) => state.history.follow(asked, known.position.id, offset),
            (None, Some(known)) => state.history.change(known.position.id),
            (_, None) => {
                let own = state.new_id();
                state.history.change(own)
            }
        }
    }

    /// Gives the history its new ID after a promotion. If the dataset is at the end of the former
    /// primary's history, the new ID continues that history. Otherwise, a new history starts. The
    /// caller must hold the lock under which the term changes (`Replica::in_term`).
    pub(super) fn own_history(&self, server: &Server, former: Option<Known>) {
        let end = self.held(server).0.end;
        let mut state = self.state();
        let own = state.next_id.take().unwrap_or_else(|| state.new_id());
        match former {
            Some(Known { position, db }) if (position.id, position.offset) == (state.history.id(), end) => {
                state.continue_as(own, end, db);
            }
            _ => _ = state.history.change(own),
        }
        if state.replicas.is_empty() {
            state.alone_since_ms = Some(server.monotonic_ms());
        }
    }
}
