//! Compares the dictionary with hashbrown (the hash table of Rust's standard library): finds keys
//! one by one and in batches, and inserts keys into a table that grows. Also measures how long the
//! dictionary takes to remove and reinsert keys.
//!
//! Run it with `cargo bench -p pantala-benches --bench dict`. With `PANTALA_BENCH_LARGE=1`, it also
//! measures 20 million keys, which takes 5 GB of memory. `cargo run --release -p pantala-dict
//! --example figures` prints bytes per key, and the ratios of docs/benchmarks.md from interleaved
//! rounds.

use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use hashbrown::HashMap;
use pantala_dict::{Dict, Entry, NewPayload, hash_key};

const SEED: u64 = 0x0dd0_5eed_1234_5678;
/// Number of keys found per iteration. In the larger dictionaries, the entries of all sets of keys
/// together don't fit into the CPU's caches.
const FINDS: usize = 4096;
/// Number of sets of keys, which are searched in turn. There are so many that the entries of a set
/// have left the CPU's caches before the set is searched again.
const SETS: usize = 64;

fn sizes() -> Vec<usize> {
    let mut sizes = vec![10_000, 1_000_000];
    if std::env::var_os("PANTALA_BENCH_LARGE").is_some_and(|v| v == "1") {
        sizes.push(20_000_000);
    }
    sizes
}

#[derive(Clone, Copy, Default)]
struct SameHash(u64);

impl BuildHasher for SameHash {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        SameHash(0)
    }
}

impl Hasher for SameHash {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash_key(SEED, bytes);
    }

    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

type Map = HashMap<Box<[u8]>, Box<[u8]>, SameHash>;

fn insert(dict: &mut Dict<()>, key: &[u8], value: &[u8]) {
    if let Entry::Vacant(entry) = dict.entry(hash_key(SEED, key), key) {
        entry.insert(NewPayload::Bytes(value), 0, 0, None);
    }
}

fn pair(i: usize) -> (Vec<u8>, Vec<u8>) {
    (format!("key:{i}").into_bytes(), format!("value:{i}").into_bytes())
}

fn key_sets(entries: usize) -> Vec<Vec<Vec<u8>>> {
    let mut state = 1_u64;
    let mut draw = || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        (state >> 16) as usize % entries
    };
    (0..SETS).map(|_| (0..FINDS).map(|_| pair(draw()).0).collect()).collect()
}

fn finds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dict_find");
    group.throughput(Throughput::Elements(FINDS as u64));
    for entries in sizes() {
        let (mut dict, mut map) = (Dict::new(SEED), Map::default());
        for (key, value) in (0..entries).map(pair) {
            insert(&mut dict, &key, &value);
            map.insert(key.into(), value.into());
        }
        let sets = key_sets(entries);
        let sets: Vec<Vec<&[u8]>> = sets.iter().map(|set| set.iter().map(Vec::as_slice).collect()).collect();
        let mut turns = sets.iter().cycle();
        let mut turn = || turns.next().map_or(&[][..], Vec::as_slice);
        group.bench_function(BenchmarkId::new("one_by_one", entries), |bencher| {
            bencher.iter_batched(
                &mut turn,
                |keys| keys.iter().filter(|key| dict.find(hash_key(SEED, key), key).is_some()).count(),
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("batched", entries), |bencher| {
            bencher.iter_batched(
                || (turn(), vec![0; FINDS], vec![None; FINDS]),
                |(keys, mut hashes, mut out)| {
                    for (hash, key) in hashes.iter_mut().zip(keys) {
                        *hash = hash_key(SEED, key);
                    }
                    dict.find_batch(&hashes, keys, &mut out);
                    out.iter().flatten().count()
                },
                BatchSize::PerIteration,
            );
        });
        group.bench_function(BenchmarkId::new("hashbrown", entries), |bencher| {
            bencher.iter_batched(
                &mut turn,
                |keys| keys.iter().filter(|key| map.get(**key).is_some()).count(),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// Fills an empty dictionary. This includes all growth and all splits of segments.
fn growth(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dict_fill");
    group.sample_size(10);
    for entries in sizes() {
        group.throughput(Throughput::Elements(entries as u64));
        group.bench_function(BenchmarkId::new("dict", entries), |bencher| {
            bencher.iter_with_large_drop(|| {
                let mut dict = Dict::new(SEED);
                (0..entries).map(pair).for_each(|(key, value)| insert(&mut dict, &key, &value));
                dict
            });
        });
        group.bench_function(BenchmarkId::new("hashbrown", entries), |bencher| {
            bencher.iter_with_large_drop(|| {
                let mut map = Map::default();
                (0..entries).map(pair).for_each(|(key, value)| {
                    map.insert(key.into(), value.into());
                });
                map
            });
        });
    }
    group.finish();
}

/// Removes and reinserts keys of a dictionary of a fixed size, without growth.
fn turnover(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("dict_turnover");
    group.throughput(Throughput::Elements(1));
    for entries in sizes() {
        let mut dict = Dict::new(SEED);
        (0..entries).map(pair).for_each(|(key, value)| insert(&mut dict, &key, &value));
        let mut next = 0;
        group.bench_function(BenchmarkId::new("remove_and_insert", entries), |bencher| {
            bencher.iter_batched(
                || {
                    next = (next + 7919) % entries;
                    pair(next)
                },
                |(key, value)| {
                    black_box(dict.remove(hash_key(SEED, &key), &key).is_some());
                    insert(&mut dict, &key, &value);
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, finds, growth, turnover);
criterion_main!(benches);
