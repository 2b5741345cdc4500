//! Two workers against one on the engine without sockets: issue 2's row, interleaved rounds, ratios.
//!
//! `cargo run --release -p pantala-benches --example engine_scaling`

use pantala_benches::{Keys, Load, Prepared};
use pantala_engine::keyspace::Execution;

const ROUNDS: usize = 5;
const OPERATIONS: usize = 2_000_000;

fn main() {
    println!(
        "engine without sockets, 1 M keys, 16-byte keys, 64-byte values, GET and SET 1:1, {OPERATIONS} operations per worker"
    );
    println!(
        "{:<12} {:>7} {:>14} {:>14} {:>8} {:>16}",
        "keys", "shards", "1 worker op/s", "2 workers op/s", "ratio", "spread"
    );
    for distribution in [Keys::Uniform, Keys::Zipf(0.99)] {
        for shards in [1, 4, 16, 40, 64] {
            let load = |workers| Load {
                workers,
                shards,
                keys: 1_000_000,
                distribution,
                sets_percent: 50,
                value_bytes: 64,
                execution: Execution::Inline,
            };
            let (one, two) = (Prepared::new(load(1)), Prepared::new(load(2)));
            let mut rates = Vec::new();
            for _ in 0..ROUNDS {
                let single = OPERATIONS as f64 / one.run(OPERATIONS).as_secs_f64();
                let double = 2.0 * OPERATIONS as f64 / two.run(OPERATIONS).as_secs_f64();
                rates.push((single, double));
            }
            rates.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
            let (single, double) = rates[ROUNDS / 2];
            let spread = (rates[0].1 / rates[0].0, rates[ROUNDS - 1].1 / rates[ROUNDS - 1].0);
            println!(
                "{:<12} {shards:>7} {single:>14.0} {double:>14.0} {:>8.2} {:>7.2}..{:.2}",
                format!("{distribution:?}"),
                double / single,
                spread.0,
                spread.1
            );
        }
    }
}
