//! `INFO replication` of a primary.

use crate::host::Server;
use crate::replication::Replication;

/// The state of the replicas, for `INFO replication`: some complete lines, and values for others.
pub struct PrimaryInfo {
    /// Number of replicas.
    pub replicas: usize,
    /// Number of good replicas, if writes require good replicas (`min-replicas-to-write`).
    pub good: Option<usize>,
    /// A line for each replica.
    pub lines: String,
    /// The current ID, the former ID, and the number of the first byte that no longer belongs to
    /// the former ID. This number is -1 if there is no former ID.
    pub ids: (String, String, i64),
    /// The replication ID that this server will have at the end of a promotion.
    pub next_id: Option<String>,
    /// Whether the journal keeps the stream for replicas.
    pub has_backlog: bool,
}

impl Replication {
    /// Returns the content of `INFO replication` about a primary.
    pub fn primary_info(&self, server: &Server) -> PrimaryInfo {
        let (now_ms, settings) = (server.monotonic_ms(), server.config().settings());
        let state = self.state();
        let good =
            settings.primary.requires_replicas().then(|| state.replicas.good(settings.primary.lag_s_max, now_ms));
        let (second, second_offset) = match state.history.second() {
            Some((id, offset)) => (id.to_string(), offset as i64),
            None => ("0".repeat(40), -1),
        };
        PrimaryInfo {
            replicas: state.replicas.len(),
            good,
            lines: state.replicas.info(now_ms),
            ids: (state.history.id().to_string(), second, second_offset),
            next_id: state.next_id.map(|id| id.to_string()),
            has_backlog: state.has_backlog,
        }
    }
}
