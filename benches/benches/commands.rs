//! Measures the lookup of a command's record by name.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pantala_commands::lookup;

/// Command names in upper and lower case, as clients send them.
const NAMES: [&[u8]; 8] = [b"GET", b"set", b"MGET", b"incr", b"DEL", b"expire", b"PEXPIREAT", b"incrbyfloat"];

fn find_record(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("commands");
    group.throughput(Throughput::Elements(NAMES.len() as u64));
    group.bench_function("lookup", |bencher| {
        bencher.iter(|| NAMES.iter().filter(|name| lookup(black_box(name)).is_some()).count());
    });
    group.finish();
}

criterion_group!(benches, find_record);
criterion_main!(benches);
