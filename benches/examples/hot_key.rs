//! Compares two workers with one worker on a single key, in interleaved rounds, on the engine
//! without sockets. Prints the throughput of two workers divided by that of one, in two columns. In
//! the first, each GET takes the gate (the lock) of the key's shard. In the second, workers publish
//! the value, and GETs read it without the gate (docs/decisions/0028-hot-keys.md).
//!
//! Run it with `cargo run --release -p pantala-benches --example hot_key`. Throughput is computed
//! from the CPU time of the slowest worker, as in the example `engine_scaling`.

use pantala_benches::{Keys, Load, Prepared, with_idle_cores_held};
use pantala_engine::keyspace::Execution;

const ROUNDS: usize = 7;
const OPERATIONS: usize = 2_000_000;

fn prepare(workers: u32, sets_percent: u32, publishes: bool) -> Prepared {
    Prepared::new(Load {
        workers,
        shards: 40,
        keys: 1,
        distribution: Keys::Uniform,
        sets_percent,
        value_bytes: 256,
        execution: Execution::Inline,
        is_journaled: false,
        publishes,
    })
}

fn main() {
    println!("one key, 256-byte value, {OPERATIONS} operations per worker; medians of {ROUNDS} rounds (min-max)");
    println!("{:<6} {:>13} {:>26} {:>26}", "SETs", "1 worker op/s", "2 workers / 1, gate", "2 workers / 1, published");
    for sets_percent in [0, 5, 50] {
        let one = prepare(1, sets_percent, true);
        let pairs = [false, true].map(|publishes| prepare(2, sets_percent, publishes));
        let cpu_s = |prepared: &Prepared| with_idle_cores_held(|| prepared.run_timed(OPERATIONS)).cpu.as_secs_f64();
        let rounds: Vec<(f64, [f64; 2])> = (0..ROUNDS)
            .map(|_| {
                let alone = cpu_s(&one);
                (alone, [0, 1].map(|pair| 2.0 * alone / cpu_s(&pairs[pair])))
            })
            .collect();
        let column = |pair: usize| {
            let mut ratios: Vec<f64> = rounds.iter().map(|(_, ratios)| ratios[pair]).collect();
            ratios.sort_by(f64::total_cmp);
            format!("{:.2} ({:.2}-{:.2})", ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1])
        };
        let mut alone: Vec<f64> = rounds.iter().map(|(alone, _)| *alone).collect();
        alone.sort_by(f64::total_cmp);
        let rate = OPERATIONS as f64 / alone[ROUNDS / 2];
        println!("{:<6} {rate:>13.0} {:>26} {:>26}", format!("{sets_percent}%"), column(0), column(1));
    }
}
