//! Compares the names and the order of sections and fields with those of redis-server 7.0.15.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::topology::Topology;
use pantala_engine::client::{Client, Endpoint, Host, Listener};
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_runtime::Backend;

use crate::config::{ConfigStore, Loaded, Settings, values::Values};
use crate::host::{Facts, Server};
use crate::process::{self, placement::Wanted};
use crate::renames::Renames;

const REDIS_FIELDS: [(&str, &str); 13] = [
    (
        "Server",
        "redis_version redis_git_sha1 redis_git_dirty redis_build_id redis_mode os arch_bits monotonic_clock \
         multiplexing_api atomicvar_api gcc_version process_id process_supervised run_id tcp_port \
         server_time_usec uptime_in_seconds uptime_in_days hz configured_hz lru_clock executable config_file \
         io_threads_active",
    ),
    (
        "Clients",
        "connected_clients cluster_connections maxclients client_recent_max_input_buffer \
         client_recent_max_output_buffer blocked_clients tracking_clients clients_in_timeout_table",
    ),
    (
        "Memory",
        "used_memory used_memory_human used_memory_rss used_memory_rss_human used_memory_peak \
         used_memory_peak_human used_memory_peak_perc used_memory_overhead used_memory_startup \
         used_memory_dataset used_memory_dataset_perc allocator_allocated allocator_active allocator_resident \
         total_system_memory total_system_memory_human used_memory_lua used_memory_vm_eval \
         used_memory_lua_human used_memory_scripts_eval number_of_cached_scripts number_of_functions \
         number_of_libraries used_memory_vm_functions used_memory_vm_total used_memory_vm_total_human \
         used_memory_functions used_memory_scripts used_memory_scripts_human maxmemory maxmemory_human \
         maxmemory_policy allocator_frag_ratio allocator_frag_bytes allocator_rss_ratio allocator_rss_bytes \
         rss_overhead_ratio rss_overhead_bytes mem_fragmentation_ratio mem_fragmentation_bytes \
         mem_not_counted_for_evict mem_replication_backlog mem_total_replication_buffers mem_clients_slaves \
         mem_replica_snapshot mem_clients_normal mem_cluster_links mem_aof_buffer mem_allocator active_defrag_running \
         lazyfree_pending_objects lazyfreed_objects",
    ),
    (
        "Persistence",
        "loading async_loading current_cow_peak current_cow_size current_cow_size_age current_fork_perc \
         current_save_keys_processed current_save_keys_total rdb_changes_since_last_save \
         rdb_bgsave_in_progress rdb_last_save_time rdb_last_bgsave_status rdb_last_bgsave_time_sec \
         rdb_current_bgsave_time_sec rdb_saves rdb_last_cow_size rdb_last_load_keys_expired \
         rdb_last_load_keys_loaded aof_enabled aof_rewrite_in_progress aof_rewrite_scheduled \
         aof_last_rewrite_time_sec aof_current_rewrite_time_sec aof_last_bgrewrite_status aof_rewrites \
         aof_rewrites_consecutive_failures aof_last_write_status aof_last_cow_size module_fork_in_progress \
         module_fork_last_cow_size",
    ),
    (
        "Stats",
        "total_connections_received total_commands_processed instantaneous_ops_per_sec total_net_input_bytes \
         total_net_output_bytes total_net_repl_input_bytes total_net_repl_output_bytes \
         instantaneous_input_kbps instantaneous_output_kbps instantaneous_input_repl_kbps \
         instantaneous_output_repl_kbps rejected_connections sync_full sync_partial_ok sync_partial_err \
         expired_keys expired_stale_perc expired_time_cap_reached_count expire_cycle_cpu_milliseconds \
         evicted_keys evicted_clients total_eviction_exceeded_time current_eviction_exceeded_time \
         keyspace_hits keyspace_misses pubsub_channels pubsub_patterns pubsubshard_channels latest_fork_usec \
         total_forks migrate_cached_sockets slave_expires_tracked_keys active_defrag_hits \
         active_defrag_misses active_defrag_key_hits active_defrag_key_misses total_active_defrag_time \
         current_active_defrag_time tracking_total_keys tracking_total_items tracking_total_prefixes \
         unexpected_error_replies total_error_replies dump_payload_sanitizations total_reads_processed \
         total_writes_processed io_threaded_reads_processed io_threaded_writes_processed reply_buffer_shrinks \
         reply_buffer_expands",
    ),
    (
        "Replication",
        "role connected_slaves master_failover_state master_replid master_replid2 master_repl_offset \
         second_repl_offset repl_backlog_active repl_backlog_size repl_backlog_first_byte_offset \
         repl_backlog_histlen",
    ),
    (
        "CPU",
        "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children used_cpu_sys_main_thread \
         used_cpu_user_main_thread",
    ),
    ("Modules", ""),
    ("Commandstats", ""),
    ("Errorstats", ""),
    ("Latencystats", ""),
    ("Cluster", "cluster_enabled"),
    ("Keyspace", ""),
];

fn server() -> Server {
    let values = Values::new();
    let settings = Settings::from_values(&values);
    let loaded = Loaded { settings, values, warnings: Vec::new(), renames: Vec::new(), users: Vec::new(), file: None };
    let layout = Layout {
        shards: 3,
        partitions: 3,
        databases: 16,
        homes: 2,
        workers: 2,
        execution: Execution::Inline,
        seed: 7,
        random_seed: 7,
    };
    let ports = (0..2).map(|_| WorkerPort::new(Box::new(|| {}))).collect();
    let facts = Facts {
        backend: Backend::Epoll,
        backend_reason: "asked for".to_owned(),
        executable: "/bin/pantala".to_owned(),
        config_file: String::new(),
        run_id: "a".repeat(40),
        node_id: "b".repeat(40),
        started_ms: 1_700_000_000_000,
        startup_bytes: 1 << 20,
        workers: 2,
        placement: process::Placement::new(
            Topology::read(|_| None, &[0, 1]),
            Wanted { homes: 2, io_workers: 0, pin_threads: false, numa: true },
        ),
        first_io_worker: 0,
    };
    Server::new(Keyspace::new(layout, ports), ConfigStore::new(&loaded), Renames::default(), facts, Vec::new())
}

/// Returns each section's title with the names of its fields.
fn fields(text: &str) -> Vec<(String, String)> {
    let sections = text.split("\r\n\r\n").map(|section| {
        let mut lines = section.lines();
        let title = lines.next().expect("a title").strip_prefix("# ").expect("a title");
        let names: Vec<&str> = lines.map(|line| line.split_once(':').expect("a field").0).collect();
        (title.to_owned(), names.join(" "))
    });
    sections.collect()
}

fn asked(server: &Server, section: &str) -> String {
    server.info(&[section.to_owned()])
}

#[test]
fn fields_match_redis() {
    let all = asked(&server(), "all");
    assert!(all.ends_with("\r\n") && !all.ends_with("\r\n\r\n"), "{all}");
    let shown = fields(&all.replace("pantala_version:0.1.0\r\n", ""));
    for (shown, (title, names)) in shown.iter().zip(REDIS_FIELDS) {
        assert_eq!((shown.0.as_str(), shown.1.as_str()), (title, names));
    }
    let own: Vec<&str> = shown[REDIS_FIELDS.len()..].iter().map(|(title, _)| title.as_str()).collect();
    assert_eq!(own, ["Shards", "Workers"]);
}

#[test]
fn only_requested_sections_are_written() {
    let server = server();
    assert_eq!(asked(&server, "cluster"), "# Cluster\r\ncluster_enabled:0\r\n");
    assert_eq!(asked(&server, "nonsense"), "");
    let two = server.info(&["keyspace".to_owned(), "cluster".to_owned()]);
    assert_eq!(two, "# Cluster\r\ncluster_enabled:0\r\n\r\n# Keyspace\r\n");
}

#[test]
fn values_match_the_server() {
    let server = server();
    let end = |port: u16| Endpoint::Tcp(([127, 0, 0, 1], port).into());
    let client = server.client_joined(Listener { worker: 1, connection: 5 }, 9, end(1), end(2));
    client.query_capacity_bytes.store(300, Relaxed);
    client.output_bytes.store(20, Relaxed);
    let stats = server.keyspace().database_stats_for_tests(4, 2);
    stats.keys.add(7);
    stats.dict_bytes.add(1 << 20);
    server.keyspace().shard_stats(2).hits.add(3);
    server.keyspace().shard_stats(0).hits.add(2);
    server.worker_stats(0).commands.add(10);
    server.worker_stats(1).commands.add(5);
    server.worker_stats(0).reads.add(4);
    server.worker_stats(1).writes.add(3);
    let clients_bytes = size_of::<Client>() + 320;
    let all = asked(&server, "all");
    for line in [
        "connected_clients:1",
        "client_recent_max_input_buffer:300",
        "client_recent_max_output_buffer:20",
        &format!("used_memory:{}", (2 << 20) + clients_bytes),
        "used_memory_human:2.00M",
        "used_memory_startup:1048576",
        "used_memory_dataset:1048576",
        &format!("mem_clients_normal:{clients_bytes}"),
        "total_commands_processed:15",
        "total_reads_processed:4",
        "total_writes_processed:3",
        "keyspace_hits:5",
        "multiplexing_api:epoll",
        "db4:keys=7,expires=0,avg_ttl=0",
    ] {
        assert!(all.contains(&format!("\r\n{line}\r\n")), "{line} is missing in {all}");
    }
    assert!(all.contains("\r\nshard2:home=1,keys=7,expires=0,dict_bytes=1048576,"), "{all}");
    assert!(all.contains("\r\nworker1:connections=1,commands=5,"), "{all}");
}

#[test]
fn errors_and_commands_are_summed_over_workers() {
    use crate::stats::{Outcome, Tally};
    let server = server();
    let command = |name: &str| pantala_commands::lookup(name.as_bytes()).expect("a command");
    for worker in 0..2 {
        let mut tally = Tally::new(server.worker_stats(worker));
        tally.count(command("get"), Outcome::Ok);
        tally.count(command("get"), Outcome::Failed);
        tally.count_reply(b"-WRONGTYPE x\r\n");
        tally.count(&command("debug").subcommands[0], Outcome::Rejected);
        tally.count_reply(b"-A#:B x\r\n");
    }
    assert_eq!(
        asked(&server, "errorstats"),
        "# Errorstats\r\nerrorstat_A__B:count=2\r\nerrorstat_WRONGTYPE:count=2\r\n"
    );
    let text = asked(&server, "commandstats");
    assert!(
        text.contains("cmdstat_debug:calls=0,usec=0,usec_per_call=0.00,rejected_calls=2,failed_calls=0\r\n"),
        "{text}"
    );
    assert!(
        text.contains("cmdstat_get:calls=4,usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=2\r\n"),
        "{text}"
    );
    let stats = asked(&server, "stats");
    assert!(
        stats.contains("\r\ntotal_error_replies:4\r\n") && stats.contains("\r\ntotal_commands_processed:4\r\n"),
        "{stats}"
    );
    server.reset_stats();
    assert_eq!(asked(&server, "errorstats"), "# Errorstats\r\n");
    assert_eq!(asked(&server, "commandstats"), "# Commandstats\r\n");
}
