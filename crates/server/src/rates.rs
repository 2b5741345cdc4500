//! Statistics of the whole server, as opposed to one worker: counters, peaks and rates.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::stats::WorkerStats;

/// Number of samples over which a rate is averaged, as in Redis.
const RATE_SAMPLES: usize = 16;

/// Statistics of the whole server, as opposed to one worker.
#[derive(Default)]
pub struct ServerStats {
    /// Number of connections admitted.
    pub connections_received: AtomicU64,
    /// Number of connections rejected because of `maxclients` or protected mode.
    pub connections_rejected: AtomicU64,
    /// Maximum number of simultaneous connections so far.
    pub peak_clients: AtomicU64,
    /// Number of connections closed because they exceeded an output limit.
    pub output_limit_closed: AtomicU64,
    /// Number of bytes that a replica's link thread has received.
    pub link_bytes: AtomicU64,
    /// Peak memory usage, bytes. Updated when a client requests the memory usage (for example by
    /// `INFO`). Also updated in every [`RATE_SAMPLES`]-th round of periodic work, but without the
    /// memory of clients.
    pub peak_used_bytes: AtomicU64,
    rates: Mutex<Rates>,
}

/// Numbers per second, or totals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// Number of commands.
    pub commands: u64,
    /// Bytes received, including those from the primary.
    pub input_bytes: u64,
    /// Bytes sent, including those to replicas.
    pub output_bytes: u64,
    /// Bytes received from the primary.
    pub repl_input_bytes: u64,
    /// Bytes sent to replicas: the stream and snapshots.
    pub repl_output_bytes: u64,
}

#[derive(Default)]
struct Rates {
    samples: [Rate; RATE_SAMPLES],
    /// Index in `samples` at which the next sample is stored.
    next: usize,
    last_ms: i64,
    /// The totals at `last_ms`.
    last: Rate,
}

impl ServerStats {
    /// Returns the totals since the start or `CONFIG RESETSTAT`.
    pub fn totals(&self, workers: &[WorkerStats]) -> Rate {
        let link_bytes = self.link_bytes.load(Relaxed);
        let mut now = Rate { input_bytes: link_bytes, repl_input_bytes: link_bytes, ..Rate::default() };
        for worker in workers {
            now.commands += worker.commands.get();
            now.repl_input_bytes += worker.repl_input_bytes.get();
            now.repl_output_bytes += worker.repl_output_bytes.get();
            now.input_bytes += worker.input_bytes.get();
            now.output_bytes += worker.output_bytes.get();
        }
        now
    }

    /// Samples rates and peaks. Worker 0 calls this in each round of its periodic work.
    /// `used_bytes` returns the memory usage without clients.
    pub fn sample(&self, workers: &[WorkerStats], used_bytes: impl FnOnce() -> u64, now_ms: i64) {
        let now = self.totals(workers);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
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
        // The sum reads counters of each shard and database, in cache lines that other workers
        // write. So it is computed only once in [`RATE_SAMPLES`] rounds.
        if rates.next == 0 {
            self.peak_used_bytes.fetch_max(used_bytes(), Relaxed);
        }
    }

    /// Returns the rates averaged over the last samples.
    pub fn rate(&self) -> Rate {
        let rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
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
