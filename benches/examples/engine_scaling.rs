//! Compares two workers with one worker on the engine without sockets, in interleaved rounds.
//! Prints the throughput of two workers divided by that of one.
//!
//! Run it with `cargo run --release -p pantala-benches --example engine_scaling [-- [journal]
//! SHARDS ...]`. The default is 1, 4, 16, 40 and 64 shards. With `journal`, each operation is a
//! SET, and the workers record the effects of each SET in the journal. A separate thread on the
//! same cores merges the recorded effects into one stream, and discards the stream.
//!
//! The output has several columns. `ratio` is computed from the CPU time of the slowest worker,
//! which other load on the host influences less than the wall time. `by the clock` is computed from
//! the wall time. `host limit` is the ratio for two workers that share nothing: each has its own
//! keyspace with half of the keys.
//!
//! `line` is the time to transfer a written cache line from core to core, measured before and after
//! each row. On a virtual host, this time changes with the physical cores that the host assigns. No
//! other condition influences the ratio as much. On a busy host, run the command with `chrt -f 5`.

use pantala_benches::{Elapsed, Keys, Load, Prepared, line_transfer, run_apart, with_idle_cores_held};
use pantala_engine::keyspace::Execution;

const ROUNDS: usize = 7;
const OPERATIONS: usize = 2_000_000;
const KEYS: usize = 1_000_000;

/// The durations of one round: one worker, two workers on one keyspace, and two workers on separate
/// keyspaces.
struct Round {
    alone: Elapsed,
    together: Elapsed,
    apart: Elapsed,
}

impl Round {
    fn ratio(&self) -> f64 {
        2.0 * self.alone.cpu.as_secs_f64() / self.together.cpu.as_secs_f64()
    }

    fn ratio_by_clock(&self) -> f64 {
        2.0 * self.alone.wall.as_secs_f64() / self.together.wall.as_secs_f64()
    }

    fn host_limit(&self) -> f64 {
        2.0 * self.alone.cpu.as_secs_f64() / self.apart.cpu.as_secs_f64()
    }
}

fn median(rounds: &[Round], value: impl Fn(&Round) -> f64) -> (f64, f64, f64) {
    let mut values: Vec<f64> = rounds.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    (values[0], values[values.len() / 2], values[values.len() - 1])
}

fn measure(distribution: Keys, shards: u32, is_journaled: bool) -> Vec<Round> {
    let prepare = |workers, keys| {
        Prepared::new(Load {
            workers,
            shards,
            keys,
            distribution,
            sets_percent: if is_journaled { 100 } else { 50 },
            value_bytes: 64,
            execution: Execution::Inline,
            is_journaled,
            publishes: true,
        })
    };
    let (one, two, halves) = (prepare(1, KEYS), prepare(2, KEYS), [prepare(1, KEYS / 2), prepare(1, KEYS / 2)]);
    let run = |_| Round {
        alone: with_idle_cores_held(|| one.run_timed(OPERATIONS)),
        together: two.run_timed(OPERATIONS),
        apart: run_apart(&halves, OPERATIONS),
    };
    (0..ROUNDS).map(run).collect()
}

fn main() {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_journaled = arguments.first().is_some_and(|first| first == "journal");
    arguments.drain(..usize::from(is_journaled));
    let mut shards: Vec<u32> = arguments.iter().map(|text| text.parse().expect("a number of shards")).collect();
    if shards.is_empty() {
        shards = vec![1, 4, 16, 40, 64];
    }
    let mix = if is_journaled { "SET, journal on" } else { "GET and SET 1:1" };
    println!(
        "engine without sockets, {KEYS} keys of 16 bytes, 64-byte values, {mix}, {OPERATIONS} operations per worker; medians of {ROUNDS} rounds (min-max)"
    );
    println!(
        "{:<11} {:>6} {:>13} {:>14} {:>18} {:>18} {:>18} {:>13}",
        "keys", "shards", "1 worker op/s", "2 workers op/s", "ratio", "by the clock", "host limit", "line, ns"
    );
    for distribution in [Keys::Uniform, Keys::Zipf(0.99)] {
        for &shards in &shards {
            let before = line_transfer();
            let rounds = measure(distribution, shards, is_journaled);
            let after = line_transfer();
            let column = |value: fn(&Round) -> f64| {
                let (least, middle, most) = median(&rounds, value);
                format!("{middle:.2} ({least:.2}-{most:.2})")
            };
            println!(
                "{:<11} {shards:>6} {:>13.0} {:>14.0} {:>18} {:>18} {:>18} {:>6} {:>6}",
                format!("{distribution:?}"),
                median(&rounds, |round| OPERATIONS as f64 / round.alone.cpu.as_secs_f64()).1,
                median(&rounds, |round| 2.0 * OPERATIONS as f64 / round.together.cpu.as_secs_f64()).1,
                column(Round::ratio),
                column(Round::ratio_by_clock),
                column(Round::host_limit),
                before.as_nanos(),
                after.as_nanos()
            );
        }
    }
}
