//! Measures how long the journal's thread takes to merge the effects of several workers.
//!
//! Run it with `cargo run --release -p pantala-benches --example merging [-- BYTES ...]`. The
//! default is values of 256 bytes and of 10 KiB. One thread plays all workers, so that their
//! effects are interleaved as closely as possible, and any number of workers can be measured on two
//! cores. The merged effects are discarded. On the cores of a real server, the journal's thread
//! would also have to fetch the effects from other cores' caches.

use pantala_base::allocator::Allocator;
use pantala_benches::{Keys, Load, Prepared};
use pantala_engine::keyspace::Execution;

/// The server's allocator: the journal's thread allocates and frees a lot.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const ROUNDS: usize = 3;
const WORKERS: [u32; 7] = [1, 2, 4, 8, 16, 40, 64];
/// Number of bytes of all values of a round.
const BYTES: usize = 1_000_000_000;
/// Maximum number of operations of a round.
const OPERATIONS_MAX: usize = 1_000_000;
/// Number of bytes of all keys' values.
const KEYS_BYTES: usize = 200_000_000;
/// Number of commands after which a worker hands over its effects.
const TURN: usize = 25;

fn main() {
    let mut lengths: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse().expect("the length of a value")).collect();
    if lengths.is_empty() {
        lengths = vec![256, 10 * 1024];
    }
    println!("CPU time of the journal's thread for each SET, ns; medians of {ROUNDS} rounds (min-max)");
    println!("{:>7} {:>8} {:>10}", "bytes", "workers", "ns");
    for value_bytes in lengths {
        for workers in WORKERS {
            let prepared = Prepared::new(Load {
                workers,
                shards: 16 * workers,
                keys: (KEYS_BYTES / value_bytes).min(100_000),
                distribution: Keys::Uniform,
                sets_percent: 100,
                value_bytes,
                execution: Execution::Inline,
                is_journaled: true,
                publishes: true,
            });
            let operations = (BYTES / value_bytes).min(OPERATIONS_MAX) / workers as usize;
            let run = |_| {
                let cpu = prepared.run_interleaved(operations, TURN);
                cpu.as_nanos() as f64 / (operations * workers as usize) as f64
            };
            let mut rounds: Vec<f64> = (0..ROUNDS).map(run).collect();
            rounds.sort_by(f64::total_cmp);
            println!(
                "{value_bytes:>7} {workers:>8} {:>10.1} ({:.1}-{:.1})",
                rounds[ROUNDS / 2],
                rounds[0],
                rounds[ROUNDS - 1]
            );
        }
    }
}
