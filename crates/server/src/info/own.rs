//! Pantala's own sections: Shards, Workers. A line for each; the names are those of DESIGN's words.

use super::Text;
use crate::host::Server;

pub(super) fn shards(text: &mut Text, server: &Server) {
    let keyspace = server.keyspace();
    text.field("shards", keyspace.shard_count());
    text.field("contended_requests", keyspace.contended());
    for shard in 0..keyspace.shard_count() {
        let stats = keyspace.shard_stats(shard);
        let sum = |figure: fn(&pantala_engine::shard::DatabaseStats) -> u64| -> u64 {
            keyspace.shard_figures(shard).map(figure).sum()
        };
        text.line(format_args!(
            "shard{shard}:home={},keys={},expires={},dict_bytes={},heap_bytes={},commands={},hits={},misses={},expired={},\
             combined={},handovers={}",
            keyspace.home(shard),
            sum(|database| database.keys.get()),
            sum(|database| database.expires.get()),
            sum(|database| database.dict_bytes.get()),
            sum(|database| database.heap_bytes.get()),
            stats.commands.get(),
            stats.hits.get(),
            stats.misses.get(),
            stats.expired.get(),
            stats.combined.get(),
            stats.handovers.get(),
        ));
    }
}

pub(super) fn workers(text: &mut Text, server: &Server) {
    text.field("workers", server.facts().workers);
    text.field("io_workers", server.facts().workers - server.keyspace().layout().homes);
    for (number, stats) in server.all_worker_stats().iter().enumerate() {
        text.line(format_args!(
            "worker{number}:connections={},commands={},errors={},turns={},windows={},joined={},input_bytes={},output_bytes={},cpu_us={}",
            stats.connections.get(),
            stats.commands.get(),
            stats.errors.get(),
            stats.turns.get(),
            stats.windows.get(),
            stats.joined.get(),
            stats.input_bytes.get(),
            stats.output_bytes.get(),
            stats.cpu_us.get(),
        ));
    }
}
