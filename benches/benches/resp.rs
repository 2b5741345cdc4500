//! Measures the cost of the protocol for a command: parsing the request, writing the reply, and
//! computing the slot of the key. Run it with `cargo bench --bench resp`.
//!
//! `parse/…/30` is the time for a whole pipeline of thirty commands.

use std::hint::black_box;

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use pantala_base::{Random, crc16, key_slot};
use pantala_resp::{ArgRange, Limits, Parser, Reply, Version};

const VALUE_LEN: usize = 256;

fn command(args: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Version::Resp2);
    reply.array(args.len());
    args.iter().for_each(|arg| reply.bulk(arg));
    out
}

/// Parses all commands of `buf`. `ranges` collects the argument ranges of all commands, as a worker
/// does for a pipeline.
fn parse_all(parser: &mut Parser, buf: &mut [u8], ranges: &mut Vec<ArgRange>, limits: &Limits) -> usize {
    let mut at = 0;
    let mut commands = 0;
    while let Ok(Some(len)) = parser.parse(&mut buf[at..], ranges, limits) {
        at += len;
        commands += 1;
    }
    commands
}

fn parse(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parse");
    let get = command(&[b"GET", b"key:000000000123"]);
    let set = command(&[b"SET", b"key:000000000123", &[b'v'; VALUE_LEN]]);
    let limits = Limits::default();
    for (name, one) in [("get", &get), ("set256", &set)] {
        for pipeline in [1, 30] {
            let mut buf = one.repeat(pipeline);
            let mut parser = Parser::new();
            let mut ranges = Vec::with_capacity(128);
            group.throughput(Throughput::Elements(pipeline as u64));
            group.bench_function(format!("{name}/{pipeline}"), |bencher| {
                bencher.iter(|| {
                    ranges.clear();
                    let commands = parse_all(&mut parser, black_box(&mut buf), &mut ranges, black_box(&limits));
                    assert_eq!(commands, pipeline);
                });
            });
        }
    }
    mixed(&mut group);
    group.throughput(Throughput::Elements(1));
    let mut buf = set;
    let (mut parser, mut ranges) = (Parser::new(), Vec::with_capacity(8));
    group.bench_function("set256/two pieces", |bencher| {
        bencher.iter(|| {
            ranges.clear();
            assert_eq!(parser.parse(black_box(&mut buf[..100]), &mut ranges, &limits), Ok(None));
            assert!(parser.parse(black_box(&mut buf), &mut ranges, &limits).is_ok());
        });
    });
    group.bench_function("inline get", |bencher| {
        bencher.iter_batched_ref(
            || b"GET key:000000000123\r\n".to_vec(),
            |buf| {
                ranges.clear();
                assert!(parser.parse(black_box(buf), &mut ranges, &limits).is_ok());
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// Measures commands whose lengths have varying numbers of digits. With so many different commands,
/// the branch predictor can't learn the lengths.
fn mixed(group: &mut BenchmarkGroup<'_, WallTime>) {
    const COMMANDS: usize = 4_096;
    let mut random = Random::from_seed(1);
    let mut buf = Vec::new();
    for _ in 0..COMMANDS {
        let key = vec![b'k'; 1 + random.below(30) as usize];
        let value = vec![b'v'; 1 << random.below(11)];
        buf.extend(command(&[b"SET", &key, &value]));
    }
    let limits = Limits::default();
    let (mut parser, mut ranges) = (Parser::new(), Vec::with_capacity(4 * COMMANDS));
    group.throughput(Throughput::Elements(COMMANDS as u64));
    group.bench_function(format!("set of mixed lengths/{COMMANDS}"), |bencher| {
        bencher.iter(|| {
            ranges.clear();
            assert_eq!(parse_all(&mut parser, black_box(&mut buf), &mut ranges, &limits), COMMANDS);
        });
    });
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::Elements(1));
    let mut out = Vec::with_capacity(1 << 16);
    let mut bench = |name: &str, write: &dyn Fn(&mut Reply<'_>)| {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                if out.len() > 1 << 15 {
                    out.clear();
                }
                write(&mut Reply::new(black_box(&mut out), black_box(Version::Resp2)));
            });
        });
    };
    let value = [b'v'; VALUE_LEN];
    bench("ok", &|reply| reply.ok());
    bench("null", &|reply| reply.null());
    bench("bulk16", &|reply| reply.bulk(black_box(&value[..16])));
    bench("bulk256", &|reply| reply.bulk(black_box(&value)));
    bench("integer small", &|reply| reply.integer(black_box(1)));
    bench("integer 10 digits", &|reply| reply.integer(black_box(1_234_567_890)));
    bench("double", &|reply| reply.double(black_box(3.1)));
    group.finish();
}

fn slots(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("slot");
    let long = [b'k'; 64];
    for key in [&b"foo"[..], b"key:000000000123", &long] {
        group.throughput(Throughput::Bytes(key.len() as u64));
        group.bench_function(format!("crc16/{}", key.len()), |bencher| bencher.iter(|| crc16(black_box(key))));
        group.bench_function(format!("key_slot/{}", key.len()), |bencher| bencher.iter(|| key_slot(black_box(key))));
    }
    group.finish();
}

criterion_group!(benches, parse, encode, slots);
criterion_main!(benches);
