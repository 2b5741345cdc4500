//! What the benches share: a load on the engine without sockets.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use pantala_base::Random;
use pantala_engine::access::SessionView;
use pantala_engine::executor::{Call, Executor, Ran};
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_engine::message::Message;
use pantala_resp::{ArgRange, Args, Version};

/// Commands that a worker prefetches together, as the server's window does.
const WINDOW: usize = 32;

/// How keys are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    /// Each as likely as any other.
    Uniform,
    /// Zipf's law with this exponent: rank r is chosen with a probability proportional to r^-exponent.
    Zipf(f64),
}

/// A load on the engine.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Threads, each a worker.
    pub workers: u32,
    /// Shards.
    pub shards: u32,
    /// Keys, all of which exist.
    pub keys: usize,
    /// How they are chosen.
    pub distribution: Keys,
    /// Of 100 operations, how many are SET; the rest is GET.
    pub sets_percent: u32,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Who runs commands.
    pub execution: Execution,
}

/// A keyspace with its keys in place.
pub struct Prepared {
    load: Load,
    keyspace: Keyspace,
}

const SEED: u64 = 0x5eed;

fn key(index: usize) -> Vec<u8> {
    format!("key:{index:012}").into_bytes()
}

fn session() -> SessionView {
    SessionView { client: 1, db: 0, version: Version::Resp2, no_touch: false }
}

/// A command as bytes and ranges.
struct Packed {
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
}

impl Packed {
    fn new(words: &[&[u8]]) -> Self {
        let mut packed = Packed { bytes: Vec::new(), ranges: Vec::new() };
        for word in words {
            packed.ranges.push(ArgRange::new(packed.bytes.len(), word.len()));
            packed.bytes.extend_from_slice(word);
        }
        packed
    }

    fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }
}

/// One worker's thread-side state.
struct Lane<'k> {
    keyspace: &'k Keyspace,
    executor: Executor<'k>,
    worker: u32,
    reply: Vec<u8>,
}

impl<'k> Lane<'k> {
    fn new(keyspace: &'k Keyspace, worker: u32) -> Self {
        Lane { keyspace, executor: Executor::new(keyspace, worker), worker, reply: Vec::new() }
    }

    /// Sees to messages; returns how many answers came.
    fn messages(&mut self) -> usize {
        let mut answers = 0;
        for node in self.keyspace.port(self.worker).mailbox().receive() {
            match node.value {
                Message::Answer(_) => answers += 1,
                Message::Run(parcel) => self.executor.resume(parcel),
                Message::Shard(ownership) => self.executor.adopt(ownership),
                _ => {}
            }
        }
        answers + self.executor.take_answers().len()
    }

    /// Runs a window of commands, all to their end.
    fn window(&mut self, commands: &[Packed]) {
        let get = pantala_commands::lookup(b"get").expect("GET is built");
        let set = pantala_commands::lookup(b"set").expect("SET is built");
        let mut places = [None; WINDOW];
        for (command, place) in commands.iter().zip(&mut places) {
            let found = self.keyspace.place(command.args().at(1));
            self.keyspace.hint(0, found.shard).prefetch_bucket(found.hash);
            *place = Some(found);
        }
        for place in places.iter().flatten() {
            self.keyspace.hint(0, place.shard).prefetch_entry(place.hash);
        }
        self.reply.clear();
        let mut waiting = 0;
        for (command, place) in commands.iter().zip(places) {
            let place = place.expect("filled above");
            let args = command.args();
            let call = Call {
                command: if args.len() == 2 { get } else { set },
                args,
                first_key: Some(place),
                session: session(),
                connection: 0,
                now_ms: 1_700_000_000_000,
            };
            if self.executor.run_single(&call, place, &mut self.reply) == Ran::Parked {
                waiting += 1;
            }
        }
        black_box(&self.reply);
        // As a connection does: nothing more until the answers are there.
        while waiting > 0 {
            waiting -= self.messages();
        }
    }
}

impl Prepared {
    /// Fills a keyspace.
    pub fn new(load: Load) -> Self {
        let ports = (0..load.workers).map(|_| WorkerPort::new(Box::new(|| {}))).collect();
        let layout = Layout {
            shards: load.shards,
            databases: 1,
            homes: load.workers,
            workers: load.workers,
            execution: Execution::Inline,
            seed: SEED,
        };
        let keyspace = Keyspace::new(layout, ports);
        let value = vec![b'v'; load.value_bytes];
        let mut lane = Lane::new(&keyspace, 0);
        let mut window = Vec::new();
        for index in 0..load.keys {
            window.push(Packed::new(&[b"SET", &key(index), &value]));
            if window.len() == WINDOW || index + 1 == load.keys {
                lane.window(&window);
                window.clear();
            }
        }
        drop(lane);
        Prepared { load, keyspace }
    }

    /// Runs `operations` on each worker and tells how long that took, from the common start to the last worker's end.
    pub fn run(&self, operations: usize) -> Duration {
        let load = self.load;
        let barrier = Barrier::new(load.workers as usize);
        let left = std::sync::atomic::AtomicU32::new(load.workers);
        let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..load.workers)
                .map(|worker| {
                    let (barrier, left) = (&barrier, &left);
                    scope.spawn(move || {
                        pin(worker);
                        let windows = self.commands(worker, operations);
                        let mut lane = Lane::new(&self.keyspace, worker);
                        barrier.wait();
                        let began = Instant::now();
                        for window in &windows {
                            lane.window(window);
                            lane.messages();
                        }
                        let ended = Instant::now();
                        // Others may still need what this worker's messages hold.
                        left.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
                        while left.load(std::sync::atomic::Ordering::Acquire) > 0 {
                            lane.messages();
                            std::thread::yield_now();
                        }
                        (began, ended)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a lane ends")).collect()
        });
        let began = times.iter().map(|(began, _)| *began).min().expect("workers");
        let ended = times.iter().map(|(_, ended)| *ended).max().expect("workers");
        ended - began
    }

    /// The operations of a worker, made before the clock runs: bounded, and run over and over.
    fn commands(&self, worker: u32, operations: usize) -> Vec<Vec<Packed>> {
        let mut random = Random::from_seed(SEED ^ u64::from(worker + 1));
        let zipf = match self.load.distribution {
            Keys::Uniform => None,
            Keys::Zipf(exponent) => Some(Zipf::new(self.load.keys, exponent)),
        };
        let value = vec![b'w'; self.load.value_bytes];
        (0..operations.div_ceil(WINDOW))
            .map(|_| {
                (0..WINDOW)
                    .map(|_| {
                        let index = match &zipf {
                            None => random.below(self.load.keys as u64) as usize,
                            Some(zipf) => zipf.sample(&mut random),
                        };
                        if random.below(100) < u64::from(self.load.sets_percent) {
                            Packed::new(&[b"SET", &key(index), &value])
                        } else {
                            Packed::new(&[b"GET", &key(index)])
                        }
                    })
                    .collect()
            })
            .collect()
    }
}

/// Ranks by Zipf's law: a table of the cumulative distribution, searched by halving.
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=ranks)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        Zipf { cumulative }
    }

    fn sample(&self, random: &mut Random) -> usize {
        let total = self.cumulative.last().copied().unwrap_or(1.0);
        let at = random.unit() * total;
        // Ranks are scattered over the key numbers, so that neighbours in rank are no neighbours in memory.
        let rank = self.cumulative.partition_point(|&sum| sum < at);
        (rank.wrapping_mul(0x9e37_79b1)) % self.cumulative.len()
    }
}

/// Pins the calling thread to a core, so that two workers never share one while another idles.
fn pin(worker: u32) {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut set = rustix::thread::CpuSet::new();
    set.set(worker as usize % cores);
    // Without it the figures are noisier, not wrong.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}
