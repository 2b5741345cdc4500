//! The sections Server, Clients, CPU, Replication, Modules and Cluster.

use std::sync::atomic::Ordering::Relaxed;

use pantala_commands::connection::REDIS_VERSION;
use pantala_engine::client::Host;

use super::stats::over_workers;
use super::{Text, usage};
use crate::host::Server;
use crate::process;

/// Time after which the LRU clock wraps, seconds. This clock for the last accesses of keys has 24
/// bits, as in Redis.
const LRU_CLOCK_WRAP_S: i64 = 1 << 24;

const S_PER_DAY: i64 = 86_400;

pub(super) fn server(text: &mut Text, server: &Server) {
    let (facts, settings) = (server.facts(), server.config().settings());
    let (now_us, system) = (server.now_us(), rustix::system::uname());
    let now_s = now_us.div_euclid(1_000_000);
    let uptime_s = (now_us.div_euclid(1000) - facts.started_ms).max(0) / 1000;
    let word = |word: &std::ffi::CStr| word.to_string_lossy().into_owned();
    text.field("redis_version", REDIS_VERSION);
    text.field("pantala_version", env!("CARGO_PKG_VERSION"));
    text.field("redis_git_sha1", "00000000");
    text.field("redis_git_dirty", 0);
    text.field("redis_build_id", 0);
    text.field("redis_mode", if server.keyspace().is_cluster() { "cluster" } else { "standalone" });
    text.field("os", format_args!("{} {} {}", word(system.sysname()), word(system.release()), word(system.machine())));
    text.field("arch_bits", usize::BITS);
    text.field("monotonic_clock", "POSIX clock_gettime");
    text.field("multiplexing_api", facts.backend);
    text.field("atomicvar_api", "rust");
    text.field("gcc_version", "0.0.0");
    text.field("process_id", std::process::id());
    text.field("process_supervised", process::supervisor_name());
    text.field("run_id", &facts.run_id);
    text.field("tcp_port", if settings.port == 0 { settings.tls.port } else { settings.port });
    if let Some(days) = server.listening().encryption().and_then(|encryption| encryption.days_left()) {
        text.field("tls_certificate_days_left", days);
    }
    text.field("server_time_usec", now_us);
    text.field("uptime_in_seconds", uptime_s);
    text.field("uptime_in_days", uptime_s / S_PER_DAY);
    text.field("hz", settings.hz);
    text.field("configured_hz", settings.hz);
    text.field("lru_clock", now_s.rem_euclid(LRU_CLOCK_WRAP_S));
    text.field("executable", &facts.executable);
    text.field("config_file", &facts.config_file);
    text.field("io_threads_active", u8::from(facts.first_io_worker > 0));
    let remaining = server.replication().state().draining.remaining();
    if let Some(left) = remaining {
        text.field("shutdown_in_milliseconds", left.as_millis());
    }
}

pub(super) fn clients(text: &mut Text, server: &Server) {
    let clients = server.clients().all();
    let largest = |bytes: fn(&pantala_engine::client::Client) -> u64| {
        clients.iter().map(|client| bytes(client)).max().unwrap_or(0)
    };
    let replicas = clients.iter().filter(|client| client.is_replica.load(Relaxed)).count();
    text.field("connected_clients", clients.len() - replicas);
    text.field("cluster_connections", 0);
    text.field("maxclients", server.config().settings().maxclients);
    text.field("client_recent_max_input_buffer", largest(|client| client.query_capacity_bytes.load(Relaxed)));
    text.field("client_recent_max_output_buffer", largest(|client| client.output_bytes.load(Relaxed)));
    // Clients held back by a pause count as blocked, as in Redis.
    text.field("blocked_clients", over_workers(server, |worker| worker.paused.get() + worker.blocked.get()));
    text.field("tracking_clients", server.keyspace().tracking().clients());
    text.field("clients_in_timeout_table", over_workers(server, |worker| worker.with_deadline.get()));
}

pub(super) fn replication(text: &mut Text, server: &Server) {
    // During a promotion, this replica becomes a primary with a new ID. `promoted` must be read
    // before `primary`: if the promotion ends between the two reads, the fields below still have
    // the IDs that result from the promotion.
    let promoted = server.replication().replica.former();
    let primary = server.replication().primary_info(server);
    let is_replica = super::replica::replica(text, server);
    text.field("connected_slaves", primary.replicas);
    if let Some(good) = primary.good {
        text.field("min_slaves_good_slaves", good);
    }
    text.lines(&primary.lines);
    text.field("master_failover_state", server.replication().failovers.state());
    let replica = &server.replication().replica;
    let (own, former, former_offset) = primary.ids;
    // During a promotion, shows the IDs that the server will have afterwards.
    let (id, second, second_offset) = match promoted {
        Some((id, offset)) => (primary.next_id.unwrap_or(own), id.to_string(), offset as i64 + 1),
        None => (own, former, former_offset),
    };
    text.field("master_replid", id);
    text.field("master_replid2", second);
    let (held, _) = server.replication().held(server);
    text.field(
        "master_repl_offset",
        if is_replica { replica.applied() } else { server.keyspace().journal().end_with_pending() },
    );
    text.field("second_repl_offset", second_offset);
    let is_active = primary.has_backlog;
    text.field("repl_backlog_active", u8::from(is_active));
    text.field("repl_backlog_size", server.config().settings().repl_backlog_bytes);
    // Redis counts the bytes of the stream from 1.
    text.field("repl_backlog_first_byte_offset", if is_active { held.start + 1 } else { 0 });
    text.field("repl_backlog_histlen", if is_active { held.end - held.start } else { 0 });
    spilled(text, server);
    flows(text, server);
}

/// Writes the fields about flows, if `repl-flows` permits flows.
fn flows(text: &mut Text, server: &Server) {
    let flows_max = server.config().settings().primary.flows.count;
    if flows_max > 1 {
        let syncs = &server.replication().syncs;
        text.field("repl_flows", flows_max);
        text.field("repl_flows_sent", syncs.flows_sent.load(Relaxed));
        text.field("repl_flows_received", syncs.flows_received.load(Relaxed));
    }
}

/// Writes the fields about the part of the backlog that is on disk, if it may be on disk.
fn spilled(text: &mut Text, server: &Server) {
    let bytes_max = server.config().settings().primary.backlog_disk_bytes;
    if bytes_max > 0 {
        let spilled = server.keyspace().journal().spilling().on_disk();
        text.field("repl_backlog_disk_size", bytes_max);
        text.field("repl_backlog_disk_first_byte_offset", if spilled.is_empty() { 0 } else { spilled.start + 1 });
        text.field("repl_backlog_disk_histlen", spilled.end - spilled.start);
    }
}

pub(super) fn cpu(text: &mut Text, _: &Server) {
    let (process, main_thread) = (usage::process(), usage::main_thread());
    let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.field("used_cpu_sys", seconds(process.system_us));
    text.field("used_cpu_user", seconds(process.user_us));
    text.field("used_cpu_sys_children", seconds(0));
    text.field("used_cpu_user_children", seconds(0));
    text.field("used_cpu_sys_main_thread", seconds(main_thread.system_us));
    text.field("used_cpu_user_main_thread", seconds(main_thread.user_us));
}

pub(super) fn modules(_: &mut Text, _: &Server) {}

pub(super) fn cluster(text: &mut Text, server: &Server) {
    text.field("cluster_enabled", u8::from(server.keyspace().is_cluster()));
}
