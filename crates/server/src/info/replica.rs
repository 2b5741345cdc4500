//! The role in section Replication, and the fields that only replicas have.

use super::Text;
use crate::host::Server;
use crate::replication::{Phase, Shown, Transfer};

/// Writes the role. On a replica, also writes the fields of a replica. Returns whether the server
/// is a replica.
pub(super) fn replica(text: &mut Text, server: &Server) -> bool {
    let Some(Shown { primary, phase, transfer, down_s, received_ms, offsets }) = server.replication().replica.shown()
    else {
        text.field("role", "master");
        return false;
    };
    let settings = server.config().settings();
    let silent_s = (server.now_ms() - received_ms).max(0) / 1000;
    let (is_up, is_syncing) = (phase == Phase::Connected, phase == Phase::Sync);
    text.field("role", "slave");
    text.field("master_host", &primary.host);
    text.field("master_port", primary.port);
    text.field("master_link_status", if is_up { "up" } else { "down" });
    text.field("master_last_io_seconds_ago", if is_up { silent_s } else { -1 });
    text.field("master_sync_in_progress", u8::from(is_syncing));
    let (applied, received) = offsets;
    text.field("slave_read_repl_offset", received);
    text.field("slave_repl_offset", applied);
    if is_syncing {
        let Transfer { total_bytes, read_bytes } = transfer.unwrap_or_default();
        let total = total_bytes.unwrap_or(0);
        text.field("master_sync_total_bytes", total);
        text.field("master_sync_read_bytes", read_bytes);
        text.field("master_sync_left_bytes", total as i64 - read_bytes as i64);
        let percent = if total == 0 { 0.0 } else { read_bytes as f64 * 100.0 / total as f64 };
        text.field("master_sync_perc", format_args!("{percent:.2}"));
        text.field("master_sync_last_io_seconds_ago", silent_s);
    }
    if !is_up {
        text.field("master_link_down_since_seconds", down_s);
    }
    text.field("slave_priority", settings.replica.priority);
    text.field("slave_read_only", u8::from(settings.replica.is_read_only));
    text.field("replica_announced", u8::from(settings.replica.is_announced));
    true
}
