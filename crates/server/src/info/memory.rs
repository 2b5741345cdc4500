//! The sections Memory and Persistence.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use pantala_engine::client::Host;

use super::{Text, human, percent};
use crate::aof::State;
use crate::host::Server;
use crate::scripting::Kind;
use crate::snapshot::Purpose;

pub(super) fn memory(text: &mut Text, server: &Server) {
    let memory = server.memory();
    let (used, resident) = (memory.used_bytes, memory.resident_bytes);
    let overhead = memory.startup_bytes + memory.clients_bytes;
    let dataset = used.saturating_sub(overhead);
    let ratio = if used == 0 { 0.0 } else { resident as f64 / used as f64 };
    let beyond_used = i128::from(resident) - i128::from(used);
    text.bytes("used_memory", used);
    text.bytes("used_memory_rss", resident);
    text.bytes("used_memory_peak", memory.peak_bytes);
    text.field("used_memory_peak_perc", format_args!("{:.2}%", percent(used, memory.peak_bytes)));
    text.field("used_memory_overhead", overhead);
    text.field("used_memory_startup", memory.startup_bytes);
    text.field("used_memory_dataset", dataset);
    let since_start = used.saturating_sub(memory.startup_bytes);
    text.field("used_memory_dataset_perc", format_args!("{:.2}%", percent(dataset, since_start)));
    text.field("allocator_allocated", used);
    text.field("allocator_active", used);
    text.field("allocator_resident", resident);
    text.bytes("total_system_memory", system_bytes());
    scripts(text, server);
    let limit_bytes = server.keyspace().memory().limit_bytes();
    text.field("maxmemory", limit_bytes);
    text.field("maxmemory_human", human(limit_bytes));
    text.field("maxmemory_policy", server.config().settings().maxmemory_policy.name());
    text.field("allocator_frag_ratio", "1.00");
    text.field("allocator_frag_bytes", 0);
    text.field("allocator_rss_ratio", format_args!("{ratio:.2}"));
    text.field("allocator_rss_bytes", beyond_used);
    text.field("rss_overhead_ratio", "1.00");
    text.field("rss_overhead_bytes", 0);
    text.field("mem_fragmentation_ratio", format_args!("{ratio:.2}"));
    text.field("mem_fragmentation_bytes", beyond_used);
    // The memory of the replication stream is not part of `used_memory`.
    let stream_bytes = server.keyspace().journal().memory_bytes();
    let backlog_bytes = stream_bytes.min(server.config().settings().repl_backlog_bytes);
    text.field("mem_not_counted_for_evict", 0);
    text.field("mem_replication_backlog", backlog_bytes);
    text.field("mem_total_replication_buffers", stream_bytes);
    text.field("mem_clients_slaves", stream_bytes - backlog_bytes);
    // Pantala's own field. This memory isn't part of `used_memory` either.
    text.field("mem_replica_snapshot", server.replication().replica.snapshot_bytes.load(Relaxed));
    text.field("mem_clients_normal", memory.clients_bytes);
    text.field("mem_cluster_links", 0);
    text.field("mem_aof_buffer", server.snapshots().aof.unwritten_bytes());
    text.field("mem_allocator", "mimalloc");
    text.field("active_defrag_running", 0);
    let lazy_free = server.keyspace().lazy_free();
    text.field("lazyfree_pending_objects", lazy_free.pending());
    text.field("lazyfreed_objects", lazy_free.freed());
}

/// Writes the memory usage of scripts and functions: the memory of all workers' Lua states, and the
/// memory of the source texts.
fn scripts(text: &mut Text, server: &Server) {
    let scripting = server.scripting();
    let (for_scripts, for_functions) = (scripting.state_bytes(Kind::Script), scripting.state_bytes(Kind::Function));
    let table = scripting.libraries.table();
    let (scripts_bytes, libraries_bytes) = (scripting.scripts.bytes(), table.bytes() as u64);
    text.field("used_memory_lua", for_scripts);
    text.field("used_memory_vm_eval", for_scripts);
    text.field("used_memory_lua_human", human(for_scripts));
    text.field("used_memory_scripts_eval", scripts_bytes);
    text.field("number_of_cached_scripts", scripting.scripts.len());
    text.field("number_of_functions", table.functions());
    text.field("number_of_libraries", table.libraries().len());
    text.field("used_memory_vm_functions", for_functions);
    text.bytes("used_memory_vm_total", for_scripts + for_functions);
    text.field("used_memory_functions", libraries_bytes);
    text.bytes("used_memory_scripts", scripts_bytes + libraries_bytes);
}

/// Returns the memory of the host, bytes.
fn system_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    u64::from(system.mem_unit).saturating_mul(system.totalram as u64)
}

pub(super) fn persistence(text: &mut Text, server: &Server) {
    let (snapshots, running) = (server.snapshots(), server.snapshots().background.running());
    let saves = &snapshots.saves;
    // Pantala doesn't fork. Instead of the memory that a fork would have copied, these fields show
    // how many bytes commands had to encode for the snapshot before they changed values.
    let forced_bytes = running.as_ref().map_or(0, |running| running.forced_bytes());
    let (keys_done, keys) = running.as_ref().map_or((0, 0), |running| (running.keys_done.load(Relaxed), running.keys));
    text.field("loading", u8::from(snapshots.loading.progress(server.now_ms() / 1000).is_some()));
    text.zeros(&["async_loading"]);
    text.field("current_cow_peak", forced_bytes);
    text.field("current_cow_size", forced_bytes);
    text.field("current_cow_size_age", 0);
    text.field("current_fork_perc", format_args!("{:.2}", percent(keys_done, keys)));
    text.field("current_save_keys_processed", keys_done);
    text.field("current_save_keys_total", keys);
    let saving = running.filter(|running| running.purpose != Purpose::Rewrite);
    text.field("rdb_changes_since_last_save", server.snapshots().unsaved_changes(server.keyspace()));
    text.field("rdb_bgsave_in_progress", u8::from(saving.is_some()));
    text.field("rdb_last_save_time", saves.last_save_s());
    text.field("rdb_last_bgsave_status", if saves.has_failed() { "err" } else { "ok" });
    text.field("rdb_last_bgsave_time_sec", saves.last_took_s());
    let saving_s = saving.map_or(-1, |running| running.started.elapsed().as_secs() as i64);
    text.field("rdb_current_bgsave_time_sec", saving_s);
    text.field("rdb_saves", saves.count());
    text.field("rdb_last_cow_size", saves.last_forced_bytes());
    let (loaded, expired) = snapshots.loaded();
    text.field("rdb_last_load_keys_expired", expired);
    text.field("rdb_last_load_keys_loaded", loaded);
    append_only_file(text, server);
    if let Some(progress) = snapshots.loading.progress(server.now_ms() / 1000) {
        text.field("loading_start_time", progress.started_s);
        text.field("loading_total_bytes", progress.total_bytes);
        text.field("loading_rdb_used_mem", progress.used_bytes);
        text.field("loading_loaded_bytes", progress.loaded_bytes);
        text.field("loading_loaded_perc", format_args!("{:.2}", progress.loaded_percent));
        text.field("loading_eta_seconds", progress.left_s);
    }
}

/// Writes the fields of the append-only file. The last seven fields are written only while the file
/// is on.
fn append_only_file(text: &mut Text, server: &Server) {
    let aof = &server.snapshots().aof;
    let (rewrites, written) = (&aof.rewrites, &aof.written);
    let state = aof.state();
    let is_on = state != State::Off;
    // A scheduled rewrite that starts is first marked as running, and then no longer as scheduled.
    // Reading in the opposite order finds at least one of the marks.
    let is_scheduled = rewrites.is_scheduled.load(Acquire);
    // The snapshot of a rewrite may end after the rewrite itself. Until the snapshot has ended, no
    // other snapshot can start, so the rewrite is shown as running.
    let running = server.snapshots().background.running();
    let is_rewriting = running.is_some_and(|running| running.purpose == Purpose::Rewrite);
    let is_running = rewrites.is_running.load(Acquire) || is_rewriting;
    // A rewrite that can't start becomes a scheduled one again, which the reads may miss. Until
    // there is a base, one of the fields must be set, because clients wait for the base by them.
    let is_scheduled = is_scheduled || state == State::AwaitsBase && !is_running;
    let status = |is_well: bool| if is_well { "ok" } else { "err" };
    let runs_s = (server.monotonic_ms() - rewrites.since_ms.load(Relaxed)) / 1000;
    text.field("aof_enabled", u8::from(is_on));
    text.field("aof_rewrite_in_progress", u8::from(is_running));
    text.field("aof_rewrite_scheduled", u8::from(is_scheduled));
    text.field("aof_last_rewrite_time_sec", rewrites.last_took_s.load(Relaxed));
    text.field("aof_current_rewrite_time_sec", if is_running { runs_s } else { -1 });
    text.field("aof_last_bgrewrite_status", status(rewrites.failures.load(Relaxed) == 0));
    text.field("aof_rewrites", rewrites.count.load(Relaxed));
    text.field("aof_rewrites_consecutive_failures", rewrites.failures.load(Relaxed));
    text.field("aof_last_write_status", status(aof.write_error().is_none()));
    text.zeros(&["aof_last_cow_size", "module_fork_in_progress", "module_fork_last_cow_size"]);
    if is_on {
        text.field("aof_current_size", written.current_bytes.load(Relaxed));
        text.field("aof_base_size", written.base_bytes.load(Relaxed));
        text.field("aof_pending_rewrite", 0);
        text.field("aof_buffer_length", aof.unwritten_bytes());
        text.field("aof_pending_bio_fsync", 0);
        text.field("aof_writes_wait", u8::from(aof.gate().is_behind()));
        text.field("aof_delayed_fsync", written.delayed_syncs.load(Relaxed));
    }
}
