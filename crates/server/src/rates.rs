//! Statistics of the whole server rather than of one worker: counters, peaks, and rates.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::host::Server;

/// Number of samples over which a rate is averaged, as in Redis.
const RATE_SAMPLES: usize = 16;

/// Statistics of the whole server rather than of one worker.
#[derive(Default)]
pub struct ServerStats {
    /// Connections admitted.
    pub connections_received: AtomicU64,
    /// Connections rejected because of `maxclients` or protected mode.
    pub connections_rejected: AtomicU64,
    /// Maximum number of simultaneous connections so far.
    pub peak_clients: AtomicU64,
    /// Connections closed for exceeding output limits.
    pub output_limit_closed: AtomicU64,
    /// Bytes that the link thread of a replica has received.
    pub link_bytes: AtomicU64,
    /// Peak memory usage, bytes. Sampled when a client requests memory usage (for example by
    /// `INFO`). Also sampled once in [`RATE_SAMPLES`] rounds of periodic work, but then without the
    /// memory of clients.
    pub peak_used_bytes: AtomicU64,
    rates: Mutex<Rates>,
}

/// Rates per second, or totals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// Commands.
    pub commands: u64,
    /// Bytes received, including those from the primary.
    pub input_bytes: u64,
    /// Bytes sent, including those to replicas.
    pub output_bytes: u64,
    /// Bytes received from the primary.
    pub repl_input_bytes: u64,
    /// Bytes of the stream and of snapshots for replicas.
    pub repl_output_bytes: u64,
}

#[derive(Default)]
struct Rates {
    samples: [Rate; RATE_SAMPLES],
    /// Index in `samples` of the next sample.
    next: usize,
    last_ms: i64,
    /// The counters at the time `last_ms`.
    last: Rate,
}

/// Returns the totals since the start or `CONFIG RESETSTAT`.
pub fn totals(server: &Server) -> Rate {
    let link_bytes = server.stats.link_bytes.load(Relaxed);
    let mut now = Rate { input_bytes: link_bytes, repl_input_bytes: link_bytes, ..Rate::default() };
    for worker in server.all_worker_stats() {
        now.commands += worker.commands.get();
        now.repl_input_bytes += worker.repl_input_bytes.get();
        now.repl_output_bytes += worker.repl_output_bytes.get();
        now.input_bytes += worker.input_bytes.get();
        now.output_bytes += worker.output_bytes.get();
    }
    now
}

impl Server {
    /// Samples rates and peaks. The first worker calls this in each round of its periodic work.
    pub fn sample(&self, now_ms: i64) {
        let now = totals(self);
        let mut rates = self.stats.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_ms = (now_ms - rates.last_ms).max(1) as u64;
        let per_second = |now: u64, before: u64| now.saturating_sub(before) * 1000 / elapsed_ms;
        let sample = Rate {
            commands: per_second(now.commands, rates.last.commands),
            input_bytes: per_second(now.input_bytes, rates.last.input_bytes),
            output_bytes: per_second(now.output_bytes, rates.last.output_bytes),
            repl_input_bytes: per_second(now.repl_input_bytes, rates.last.repl_input_bytes),
            repl_output_bytes: per_second(now.repl_output_bytes, rates.last.repl_output_bytes),
        };
        let next = rates.next;
        rates.samples[next] = sample;
        rates.next = (next + 1) % RATE_SAMPLES;
        rates.last = now;
        rates.last_ms = now_ms;
        // This doesn't run in each round, because it reads counters of each shard and database,
        // whose cache lines other workers write.
        if rates.next == 0 {
            self.stats.peak_used_bytes.fetch_max(self.facts().startup_bytes + self.data_bytes(), Relaxed);
        }
    }

    /// Returns the recent mean rates.
    pub fn rate(&self) -> Rate {
        let rates = self.stats.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let mean = |of: fn(&Rate) -> u64| rates.samples.iter().map(of).sum::<u64>() / RATE_SAMPLES as u64;
        Rate {
            commands: mean(|rate| rate.commands),
            input_bytes: mean(|rate| rate.input_bytes),
            output_bytes: mean(|rate| rate.output_bytes),
            repl_input_bytes: mean(|rate| rate.repl_input_bytes),
            repl_output_bytes: mean(|rate| rate.repl_output_bytes),
        }
    }
}
