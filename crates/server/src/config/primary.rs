//! Settings that apply while the server has replicas.

use pantala_replication::{FlowForm, Schedule};

use super::settings::bytes;
use super::values::Values;

/// Settings that apply while the server has replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrimarySettings {
    /// The schedule of full synchronizations: `repl-diskless-sync`, `repl-diskless-sync-delay`,
    /// `repl-diskless-sync-max-replicas`.
    pub schedule: Schedule,
    /// `repl-flows`: maximum number of connections over which a snapshot is sent to a replica.
    /// `repl-flows-compression`: whether it is compressed then.
    pub flows: FlowForm,
    /// `repl-timeout`, s.
    pub timeout_s: u64,
    /// `repl-backlog-disk-size`: maximum number of bytes of the stream on disk; 0 means that none
    /// are written to disk.
    pub backlog_disk_bytes: u64,
    /// `repl-backlog-ttl`, s; 0 means that the backlog is never freed.
    pub backlog_ttl_s: u64,
    /// `min-replicas-to-write`; 0 means that writes need no replicas.
    pub replicas_min: u64,
    /// `min-replicas-max-lag`, s; 0 means that writes need no replicas.
    pub lag_s_max: u64,
}

impl PrimarySettings {
    pub(super) fn new(values: &Values) -> Self {
        PrimarySettings {
            schedule: Schedule {
                is_diskless: values.bool("repl-diskless-sync"),
                delay_s: bytes(values, "repl-diskless-sync-delay"),
                replicas_max: bytes(values, "repl-diskless-sync-max-replicas"),
            },
            flows: FlowForm {
                count: u32::try_from(values.number("repl-flows")).unwrap_or(1),
                is_compressed: values.text("repl-flows-compression") == b"lz4",
            },
            timeout_s: bytes(values, "repl-timeout"),
            backlog_disk_bytes: bytes(values, "repl-backlog-disk-size"),
            backlog_ttl_s: bytes(values, "repl-backlog-ttl"),
            replicas_min: bytes(values, "min-replicas-to-write"),
            lag_s_max: bytes(values, "min-replicas-max-lag"),
        }
    }

    /// Returns whether these settings make writes depend on replicas. If so, a write is rejected
    /// while fewer than `replicas_min` replicas have a lag of at most `lag_s_max`.
    #[must_use]
    pub fn requires_replicas(&self) -> bool {
        self.replicas_min > 0 && self.lag_s_max > 0
    }
}
