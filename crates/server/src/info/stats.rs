//! The sections Stats, Commandstats, Errorstats, Latencystats and Keyspace.

use pantala_engine::pubsub::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::Counter;
use pantala_base::Distribution;
use pantala_engine::state::ShardStats;

use super::Text;
use crate::host::Server;
use crate::stats::{CommandStats, WorkerStats};

pub(super) fn over_workers(server: &Server, counter: fn(&WorkerStats) -> u64) -> u64 {
    server.all_worker_stats().iter().map(counter).sum()
}

fn over_shards(server: &Server, counter: fn(&ShardStats) -> u64) -> u64 {
    let keyspace = server.keyspace();
    (0..keyspace.partition_count()).map(|shard| counter(keyspace.shard_stats(shard))).sum()
}

pub(super) fn stats(text: &mut Text, server: &Server) {
    let rate = server.stats.rate();
    let kilobytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);
    text.field("total_connections_received", server.stats.connections_received.load(Relaxed));
    text.field("total_commands_processed", over_workers(server, |worker| worker.commands.get()));
    text.field("instantaneous_ops_per_sec", rate.commands);
    let totals = server.stats.totals(server.all_worker_stats());
    text.field("total_net_input_bytes", totals.input_bytes);
    text.field("total_net_output_bytes", totals.output_bytes);
    text.field("total_net_repl_input_bytes", totals.repl_input_bytes);
    text.field("total_net_repl_output_bytes", totals.repl_output_bytes);
    text.field("instantaneous_input_kbps", kilobytes(rate.input_bytes));
    text.field("instantaneous_output_kbps", kilobytes(rate.output_bytes));
    text.field("instantaneous_input_repl_kbps", kilobytes(rate.repl_input_bytes));
    text.field("instantaneous_output_repl_kbps", kilobytes(rate.repl_output_bytes));
    text.field("rejected_connections", server.stats.connections_rejected.load(Relaxed));
    let syncs = &server.replication().syncs;
    text.field("sync_full", syncs.full.load(Relaxed));
    text.field("sync_partial_ok", syncs.partial_ok.load(Relaxed));
    text.field("sync_partial_err", syncs.partial_err.load(Relaxed));
    text.field("expired_keys", over_shards(server, |shard| shard.expired.get()));
    let expiry = &server.keyspace().expiry;
    text.field("expired_stale_perc", format_args!("{:.2}", expiry.stale_share() * 100.0));
    text.field("expired_time_cap_reached_count", expiry.capped.load(Relaxed));
    text.field("expire_cycle_cpu_milliseconds", expiry.spent_us.load(Relaxed) / 1000);
    text.field("evicted_keys", over_shards(server, |shard| shard.evicted.get()));
    text.field("evicted_clients", server.keyspace().clients().memory().evicted.load(Relaxed));
    let (all_us, current_us) = server.keyspace().memory().exceeded_us();
    text.field("total_eviction_exceeded_time", all_us / 1000);
    text.field("current_eviction_exceeded_time", current_us / 1000);
    text.field("keyspace_hits", over_shards(server, |shard| shard.hits.get()) + server.keyspace().hot.reads());
    text.field("keyspace_misses", over_shards(server, |shard| shard.misses.get()));
    let pubsub = server.keyspace().pubsub();
    text.field("pubsub_channels", pubsub.channels(Kind::Channel).len());
    text.field("pubsub_patterns", pubsub.pattern_count());
    text.field("pubsubshard_channels", pubsub.channels(Kind::Shard).len());
    text.zeros(&UNIMPLEMENTED_FIELDS);
    let (tracked_keys, readers) = server.keyspace().tracked();
    text.field("tracking_total_keys", tracked_keys);
    text.field("tracking_total_items", readers);
    text.field("tracking_total_prefixes", server.keyspace().tracking().prefix_count());
    text.field("unexpected_error_replies", server.replication().replica.unexpected_errors());
    text.field("total_error_replies", over_workers(server, |worker| worker.errors.get()));
    text.zeros(&["dump_payload_sanitizations"]);
    text.field("total_reads_processed", over_workers(server, |worker| worker.reads.get()));
    text.field("total_writes_processed", over_workers(server, |worker| worker.writes.get()));
    text.zeros(&[
        "io_threaded_reads_processed",
        "io_threaded_writes_processed",
        "reply_buffer_shrinks",
        "reply_buffer_expands",
    ]);
}

const UNIMPLEMENTED_FIELDS: [&str; 10] = [
    "latest_fork_usec",
    "total_forks",
    "migrate_cached_sockets",
    "slave_expires_tracked_keys",
    "active_defrag_hits",
    "active_defrag_misses",
    "active_defrag_key_hits",
    "active_defrag_key_misses",
    "total_active_defrag_time",
    "current_active_defrag_time",
];

pub(super) fn commandstats(text: &mut Text, server: &Server) {
    // By command: calls, time in ns, failed calls, rejected calls.
    let mut by_command: BTreeMap<&str, [u64; 4]> = BTreeMap::new();
    for worker in server.all_worker_stats() {
        for (command, CommandStats { calls, time_ns, failed, rejected, .. }) in
            worker.by_command().iter().map(|(command, stats)| (command, &**stats))
        {
            let total = by_command.entry(command.shown_name()).or_default();
            let counts = [calls, time_ns, failed, rejected].map(Counter::get);
            total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
        }
    }
    // Commands that were not called since `CONFIG RESETSTAT` are not shown.
    let met = by_command.into_iter().filter(|(_, [calls, _, failed, rejected])| calls + failed + rejected > 0);
    for (name, [calls, time_ns, failed, rejected]) in met {
        let (time_us, each_us) = (time_ns / 1000, (time_ns / 1000) as f64 / calls.max(1) as f64);
        text.line(format_args!(
            "cmdstat_{name}:calls={calls},usec={time_us},usec_per_call={each_us:.2},rejected_calls={rejected},\
             failed_calls={failed}"
        ));
    }
}

pub(super) fn errorstats(text: &mut Text, server: &Server) {
    let mut by_code: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for worker in server.all_worker_stats() {
        for (code, count) in worker.by_code().iter() {
            *by_code.entry(code.clone()).or_default() += count.get();
        }
    }
    for (code, count) in by_code.into_iter().filter(|(_, count)| *count > 0) {
        text.line(format_args!("errorstat_{}:count={count}", safe(&code)));
    }
}

/// Replaces characters that can't be part of a field's name by `_`. A script may have chosen the
/// error code.
fn safe(code: &[u8]) -> String {
    String::from_utf8_lossy(code).replace(['#', ':', '\n', '\r'], "_")
}

/// Returns the distribution of each command's latency over all workers.
pub(crate) fn latencies(server: &Server) -> Vec<(&'static str, Distribution)> {
    let mut by_command: BTreeMap<&str, Vec<Arc<CommandStats>>> = BTreeMap::new();
    for worker in server.all_worker_stats() {
        for (command, stats) in worker.by_command().iter() {
            by_command.entry(command.shown_name()).or_default().push(Arc::clone(stats));
        }
    }
    let distribution = |stats: Vec<Arc<CommandStats>>| Distribution::of(stats.iter().map(|stats| &stats.latency));
    let all = by_command.into_iter().map(|(name, stats)| (name, distribution(stats)));
    all.filter(|(_, distribution)| !distribution.is_empty()).collect()
}

pub(super) fn latencystats(text: &mut Text, server: &Server) {
    let settings = server.config().settings();
    if !settings.latency_tracking || settings.latency_percentiles.is_empty() {
        return;
    }
    for (name, distribution) in latencies(server) {
        let field = |percent: &f64| format!("p{percent}={:.3}", distribution.percentile(*percent) as f64 / 1000.0);
        let fields: Vec<String> = settings.latency_percentiles.iter().map(field).collect();
        text.line(format_args!("latency_percentiles_usec_{name}:{}", fields.join(",")));
    }
}

pub(super) fn keyspace(text: &mut Text, server: &Server) {
    let keyspace = server.keyspace();
    for db in 0..keyspace.databases() {
        let (keys, expires) = keyspace.database_size(db);
        if keys > 0 || expires > 0 {
            let average_ttl_ms = keyspace.average_ttl_ms(db);
            text.line(format_args!("db{db}:keys={keys},expires={expires},avg_ttl={average_ttl_ms}"));
        }
    }
}
