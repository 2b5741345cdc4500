//! Measures the dictionary: its single and batched lookups compared with those of hashbrown, its
//! growth, and its bytes per key.
//!
//! `cargo run --release -p pantala-dict --example figures [-- ENTRIES [bytes] [values] [find]]`
//!
//! `bytes`, `values` and `find` select parts. By default, all parts are measured with 20,000,000
//! entries, which takes 5 GB of memory and a few minutes.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::time::{ClockId, clock_gettime};

use pantala_dict::{Dict, Entry, EntryRef, NewPayload, Payload, hash_key};

const SEED: u64 = 0x0dd0_5eed_1234_5678;
/// Dictionaries in the memory measurements: the shards of a server with `--shards 40`.
const SHARDS: usize = 40;
const ROUNDS: usize = 60;
const FINDS_PER_ROUND: usize = 100_000;
/// Keys per `find_batch`: about as many pipelined commands as a worker executes together.
const WINDOW: usize = 64;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let entries = arguments.next().map_or(20_000_000, |text| text.parse().expect("a number of entries"));
    let what: Vec<String> = arguments.collect();
    let wanted = |name: &str| what.is_empty() || what.iter().any(|w| w == name);
    let small = (entries / 20).max(1);
    // Memory is measured first, before anything else uses the allocator.
    if wanted("bytes") {
        bytes_per_key(entries);
    }
    if wanted("values") {
        bytes_beyond_values(small);
    }
    if wanted("find") {
        finds(small);
        finds(entries);
    }
}

/// Returns the thread's CPU time. Other work on the machine affects it only through the caches.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("CPU time isn't negative")
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number of pages") * 4096
}

fn insert(dict: &mut Dict<()>, key: &[u8], value: &[u8]) {
    if let Entry::Vacant(entry) = dict.entry(hash_key(SEED, key), key) {
        entry.insert(NewPayload::Bytes(value), 0, 0, None);
    }
}

/// Spreads keys over shards evenly and independently of the dictionary's hash, as the server's hash
/// slots do.
fn shard_of(i: usize) -> usize {
    ((i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % SHARDS
}

/// Inserts pairs `key:N`/`value:N` into the dictionaries of all shards. Prints the resident bytes
/// per key, and the most slots that one insert moved.
fn bytes_per_key(entries: usize) {
    let before = resident_bytes();
    let started = cpu_time();
    let mut dicts: Vec<Dict<()>> = (0..SHARDS).map(|_| Dict::new(SEED)).collect();
    let (mut most_moved, mut key, mut value) = (0, Vec::new(), Vec::new());
    for i in 0..entries {
        key.clear();
        value.clear();
        write!(key, "key:{i}").and_then(|()| write!(value, "value:{i}")).expect("a Vec accepts all bytes");
        let dict = &mut dicts[shard_of(i)];
        insert(dict, &key, &value);
        most_moved = most_moved.max(dict.entries_moved_by_last_insert());
    }
    let per_key = |bytes: usize| bytes as f64 / entries as f64;
    println!("bytes: {entries} pairs key:N/value:N over {SHARDS} dictionaries, {:.1?} of CPU", cpu_time() - started);
    println!("  resident bytes per key      {:.2}", per_key(resident_bytes() - before));
    println!("  allocated_bytes() per key   {:.2}", per_key(dicts.iter().map(Dict::allocated_bytes).sum()));
    println!("  held_bytes() per key        {:.2}", per_key(dicts.iter().map(Dict::held_bytes).sum()));
    println!("  most moved by one insert    {most_moved} (a segment has 4088 slots)");
    let started = cpu_time();
    drop(dicts);
    println!(
        "  resident after the drop     {} MB, {:.1?} of CPU",
        (resident_bytes() - before) >> 20,
        cpu_time() - started
    );
    // Repeats the inserts with a single dictionary, and measures how long each insert takes.
    let mut dict = Dict::<()>::new(SEED);
    let (mut most_moved, mut times_ns) = (0, BTreeMap::new());
    let started = cpu_time();
    for i in 0..entries {
        key.clear();
        write!(key, "key:{i}").expect("a Vec accepts all bytes");
        // Wall-clock time is used here, because it is cheap to read. Other work on the machine
        // makes a few of the measured times long.
        let insert_started = Instant::now();
        insert(&mut dict, &key, &key);
        *times_ns.entry((insert_started.elapsed().as_nanos() as u64).next_power_of_two()).or_insert(0) += 1;
        most_moved = most_moved.max(dict.entries_moved_by_last_insert());
    }
    let each_ns = (cpu_time() - started).as_nanos() as f64 / entries as f64;
    println!("fill: {entries} entries into one dictionary, {each_ns:.0} ns of CPU each");
    println!("  most moved by one insert    {most_moved}");
    let slow: Vec<_> = times_ns.range(16_384..).map(|(ns, n)| format!("<= {} us: {n}", ns / 1000)).collect();
    println!("  slow inserts, wall-clock time: {}", slow.join(", "));
}

/// Measures resident bytes beyond key and value, for 16-byte keys with 256-byte values.
fn bytes_beyond_values(entries: usize) {
    let before = resident_bytes();
    let mut dicts: Vec<Dict<()>> = (0..SHARDS).map(|_| Dict::new(SEED)).collect();
    for i in 0..entries {
        insert(&mut dicts[shard_of(i)], format!("{i:016}").as_bytes(), &[b'v'; 256]);
    }
    let beyond = (resident_bytes() - before) as f64 / entries as f64 - (16 + 256) as f64;
    println!("values: {entries} keys of 16 bytes with values of 256 over {SHARDS} dictionaries");
    println!("  resident bytes beyond key and value, per key   {beyond:.2}");
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

    // Hashing a slice calls this with the slice's length. It is ignored, because `hash_key`
    // includes the length.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        // hashbrown takes its bucket from the low bits and its tag from the top bits. All bits of
        // this hash are uniform.
        self.0
    }
}

type Map = HashMap<Box<[u8]>, Box<[u8]>, SameHash>;

/// Measures lookups of random existing keys, including hashing, with and without reading one byte
/// of the value. In each round, all variants run one after the other on keys of the same
/// distribution. Ratios are computed from the times of the same round.
fn finds(entries: usize) {
    let mut dict = Dict::<()>::new(SEED);
    let mut map = Map::default();
    for i in 0..entries {
        let (key, value) = (format!("key:{i}"), format!("value:{i}"));
        insert(&mut dict, key.as_bytes(), value.as_bytes());
        map.insert(key.into_bytes().into(), value.into_bytes().into());
    }
    let mut draw = Draw { state: 1, entries };
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let mut took = [0.0; 6];
        // Each variant has its own keys, so no variant benefits from cache lines that another
        // variant fetched. Each round starts with another variant.
        for variant in (round..round + 6).map(|variant| variant % 6) {
            let text = draw.keys();
            let keys: Vec<&[u8]> = text.split(|&b| b == b' ').take(FINDS_PER_ROUND).collect();
            took[variant] = match variant {
                0 => time(|| keys.iter().filter(|key| dict.find(hash_key(SEED, key), key).is_some()).count()),
                1 => time(|| batched(&dict, &keys, &mut |entry| usize::from(entry.is_some()))),
                2 => time(|| keys.iter().filter(|key| map.get(**key).is_some()).count()),
                3 => time(|| keys.iter().map(|key| value_byte(dict.find(hash_key(SEED, key), key))).sum()),
                4 => time(|| batched(&dict, &keys, &mut value_byte)),
                _ => time(|| keys.iter().map(|key| map.get(*key).map_or(0, |value| usize::from(value[4]))).sum()),
            };
        }
        rounds.push(took);
    }
    let spread = |pick: &dyn Fn(&[f64; 6]) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(pick).collect();
        all.sort_by(f64::total_cmp);
        (all[all.len() / 4], all[all.len() / 2], all[all.len() * 3 / 4])
    };
    println!("{entries} entries, medians of {ROUNDS} rounds of {FINDS_PER_ROUND} lookups of random existing keys");
    for (what, first) in [("find", 0), ("find and read of the value", 3)] {
        println!("  {what}");
        for (name, i) in [("one by one", 0), ("batched", 1), ("hashbrown", 2)] {
            println!("    {name:<24} {:6.1} ns", spread(&|round| round[first + i]).1);
        }
        for (name, a, b) in [("batched / one by one", 1, 0), ("one by one / hashbrown", 0, 2)] {
            let (least, middle, most) = spread(&|round| round[first + a] / round[first + b]);
            println!("    {name:<24} {middle:6.3}   (middle half: {least:.3} to {most:.3})");
        }
    }
}

/// Draws existing keys.
struct Draw {
    state: u64,
    entries: usize,
}

impl Draw {
    /// Returns the keys of a round, each followed by a space.
    fn keys(&mut self) -> Vec<u8> {
        let mut text = Vec::new();
        for _ in 0..FINDS_PER_ROUND {
            self.state = self.state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            write!(text, "key:{} ", (self.state >> 16) as usize % self.entries).expect("a Vec accepts all bytes");
        }
        text
    }
}

fn time(work: impl FnOnce() -> usize) -> f64 {
    let started = cpu_time();
    black_box(work());
    (cpu_time() - started).as_nanos() as f64 / FINDS_PER_ROUND as f64
}

/// Reads a byte of the value, as the variant with hashbrown's map does.
fn value_byte(entry: Option<EntryRef<'_, ()>>) -> usize {
    match entry.map(|e| e.payload()) {
        Some(Payload::Bytes(bytes)) => usize::from(bytes[4]),
        _ => 0,
    }
}

fn batched(dict: &Dict<()>, keys: &[&[u8]], read: &mut dyn FnMut(Option<EntryRef<'_, ()>>) -> usize) -> usize {
    let mut hashes = [0; WINDOW];
    let mut out = [None; WINDOW];
    let mut sum = 0;
    for window in keys.chunks(WINDOW) {
        for (hash, key) in hashes.iter_mut().zip(window) {
            *hash = hash_key(SEED, key);
        }
        dict.find_batch(&hashes, window, &mut out);
        sum += out[..window.len()].iter().map(|entry| read(*entry)).sum::<usize>();
    }
    sum
}
