//! Pantala's own sections, Shards and Workers. Each has totals, and one line for each shard or
//! worker.

use pantala_base::Counter;
use pantala_engine::state::{DatabaseStats, ShardStats};

use super::Text;
use crate::host::Server;
use crate::process::placement::info_ranges;

pub(super) fn shards(text: &mut Text, server: &Server) {
    let keyspace = server.keyspace();
    text.field("shards", keyspace.layout().shards);
    text.field("partitions", keyspace.partition_count());
    text.field("contended_requests", keyspace.contended());
    text.field("hot_keys", keyspace.published.get());
    text.field("hot_reads", keyspace.hot.reads());
    for shard in 0..keyspace.layout().shards {
        let partitions = keyspace.partitions_of(shard);
        let sum = |counter: fn(&DatabaseStats) -> u64| -> u64 {
            partitions.clone().flat_map(|partition| keyspace.database_stats_of_shard(partition)).map(counter).sum()
        };
        let count = |counter: fn(&ShardStats) -> &Counter| -> u64 {
            partitions.clone().map(|partition| counter(keyspace.shard_stats(partition)).get()).sum()
        };
        text.line(format_args!(
            "shard{shard}:home={},keys={},expires={},dict_bytes={},heap_bytes={},commands={},hits={},misses={},expired={},\
             combined={},handovers={}",
            keyspace.home(partitions.start),
            sum(|database| database.keys.get()),
            sum(|database| database.expires.get()),
            sum(|database| database.dict_bytes.get()),
            sum(|database| database.heap_bytes.get()),
            count(|stats| &stats.commands),
            count(|stats| &stats.hits),
            count(|stats| &stats.misses),
            count(|stats| &stats.expired),
            count(|stats| &stats.combined),
            count(|stats| &stats.handovers),
        ));
    }
}

pub(super) fn workers(text: &mut Text, server: &Server) {
    text.field("workers", server.facts().workers);
    text.field("io_workers", server.facts().workers - server.keyspace().layout().homes);
    for (number, stats) in server.all_worker_stats().iter().enumerate() {
        let place = server.facts().placement.place(number as u32);
        text.line(format_args!(
            "worker{number}:connections={},commands={},errors={},turns={},windows={},joined={},moved={},input_bytes={},output_bytes={},cpu_us={},longest_turn_us={},longest_turn_cpu_us={},node={},cpus={}",
            stats.connections.get(),
            stats.commands.get(),
            stats.errors.get(),
            stats.turns.get(),
            stats.windows.get(),
            stats.joined.get(),
            stats.moved.get(),
            stats.input_bytes.get(),
            stats.output_bytes.get(),
            stats.cpu_us.get(),
            stats.longest.us(),
            stats.longest.cpu_us(),
            place.node.map_or(-1, |node| node as i64),
            info_ranges(&place.cpus),
        ));
    }
}
