//! Measures GET and SET on the engine without sockets, with 1 and 2 workers, uniform and Zipf keys,
//! and 1 to 64 shards.

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pantala_benches::{Keys, Load, Prepared};
use pantala_engine::keyspace::Execution;

const KEYS: usize = 1_000_000;

fn engine(criterion: &mut Criterion) {
    for (name, distribution) in [("uniform", Keys::Uniform), ("zipf0.99", Keys::Zipf(0.99))] {
        let mut group = criterion.benchmark_group(format!("engine/get-set/{name}"));
        group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
        for workers in [1, 2] {
            for shards in [1, 8, 40, 64] {
                let prepared = Prepared::new(Load {
                    workers,
                    shards,
                    keys: KEYS,
                    distribution,
                    sets_percent: 50,
                    publishes: true,
                    value_bytes: 64,
                    execution: Execution::Inline,
                    is_journaled: false,
                });
                group.throughput(Throughput::Elements(u64::from(workers)));
                group.bench_function(
                    BenchmarkId::new(format!("{workers}-workers"), format!("{shards}-shards")),
                    |bencher| {
                        // Runs at least 100,000 operations. With fewer, starting the threads would
                        // take most of the time.
                        bencher.iter_custom(|operations| {
                            let at_least = (operations as usize).max(100_000);
                            prepared.run(at_least).mul_f64(operations as f64 / at_least as f64)
                        });
                    },
                );
            }
        }
        group.finish();
    }
}

criterion_group!(benches, engine);
criterion_main!(benches);
