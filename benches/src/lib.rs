//! Code that the benchmarks share: a load on the engine without sockets.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, LazyLock};
use std::time::{Duration, Instant};

use crossbeam::utils::CachePadded;
use pantala_base::Random;
use pantala_engine::access::SessionView;
use pantala_engine::command::{Command, Flags, Permit};
use pantala_engine::executor::{Call, Executor, Ran};
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_engine::message::Message;
use pantala_resp::{ArgRange, Args, Version};
use rustix::time::{ClockId, clock_gettime};

/// Maximum number of commands that a worker prefetches together. In the server, such a group is a
/// window (the commands that a worker has parsed in one turn), and the maximum is 64.
const WINDOW: usize = 32;

/// The distribution of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keys {
    /// Every key is equally likely.
    Uniform,
    /// Zipf's law with this exponent: the rank r has a probability proportional to r^-exponent.
    Zipf(f64),
}

/// A load on the engine.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of threads, each a worker.
    pub workers: u32,
    /// Number of shards.
    pub shards: u32,
    /// Number of keys. All keys exist.
    pub keys: usize,
    /// Distribution of the keys.
    pub distribution: Keys,
    /// Percentage of SETs; the other commands are GETs.
    pub sets_percent: u32,
    /// Length of a value in bytes.
    pub value_bytes: usize,
    /// Execution mode: which worker runs a command. The field has no effect: [`Prepared::new`]
    /// always uses [`Execution::Inline`].
    pub execution: Execution,
    /// Whether the journal records effects. Merged effects are discarded.
    pub is_journaled: bool,
    /// Whether workers may publish the values of hot keys. If not, each GET takes its shard's gate.
    pub publishes: bool,
}

/// GET without published values.
static GATED_GET: LazyLock<Command> = LazyLock::new(|| {
    let get = pantala_commands::lookup(b"get").expect("GET is built");
    Command { flags: get.flags.difference(Flags::PUBLISHES), ..*get }
});

/// A filled keyspace.
pub struct Prepared {
    load: Load,
    keyspace: Keyspace,
}

const SEED: u64 = 0x5eed;

fn key(index: usize) -> Vec<u8> {
    format!("key:{index:012}").into_bytes()
}

fn session() -> SessionView {
    SessionView {
        client: 1,
        db: 0,
        version: Version::Resp2,
        no_touch: false,
        of_primary: false,
        in_script: false,
        permit: Permit::default(),
    }
}

/// Commands as a worker receives them: their bytes in sequence, and the range of each argument.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
    /// The end of each command in `bytes` and in `ranges`.
    ends: Vec<(usize, usize)>,
}

impl Stream {
    fn push(&mut self, words: &[&[u8]]) {
        let (begin, _) = self.end(self.ends.len());
        for word in words {
            self.ranges.push(ArgRange::new(self.bytes.len() - begin, word.len()));
            self.bytes.extend_from_slice(word);
        }
        self.ends.push((self.bytes.len(), self.ranges.len()));
    }

    /// Returns the end of the first `commands` commands.
    fn end(&self, commands: usize) -> (usize, usize) {
        commands.checked_sub(1).map_or((0, 0), |last| self.ends[last])
    }

    fn args(&self, index: usize) -> Args<'_> {
        let (begin, end) = (self.end(index), self.end(index + 1));
        Args::new(&self.bytes[begin.0..end.0], &self.ranges[begin.1..end.1])
    }

    fn len(&self) -> usize {
        self.ends.len()
    }
}

/// The state of one worker.
struct Lane<'k> {
    keyspace: &'k Keyspace,
    executor: Executor<'k>,
    worker: u32,
    get: &'static Command,
    reply: Vec<u8>,
}

impl<'k> Lane<'k> {
    fn new(keyspace: &'k Keyspace, worker: u32, publishes: bool) -> Self {
        let get = if publishes { pantala_commands::lookup(b"get").expect("GET is built") } else { &GATED_GET };
        Lane { keyspace, executor: Executor::new(keyspace, worker), worker, get, reply: Vec::new() }
    }

    /// Handles the messages in the worker's mailbox. Returns the number of replies among them.
    fn messages(&mut self) -> usize {
        self.executor.serve_deferred();
        let mut answers = 0;
        for node in self.keyspace.port(self.worker).mailbox().receive() {
            match node.value {
                Message::Answer(_) => answers += 1,
                Message::Run(node) => self.executor.resume(node),
                Message::Shard(ownership) => self.executor.adopt(ownership),
                _ => {}
            }
        }
        answers + self.executor.outbox().take_answers().len()
    }

    /// Runs all commands, window by window.
    fn run(&mut self, stream: &Stream) {
        self.end_turn();
        for first in (0..stream.len()).step_by(WINDOW) {
            self.window(stream, first..(first + WINDOW).min(stream.len()));
            self.messages();
            self.end_turn();
        }
    }

    /// Ends a turn (one iteration of a worker's event loop) and starts the next, as the server's
    /// workers do.
    fn end_turn(&mut self) {
        self.executor.recorder().flush_stream();
        self.keyspace.journal().attend(self.worker);
    }

    /// Ends the last turn of the run.
    fn rest(&mut self) {
        self.executor.recorder().flush_stream();
        self.keyspace.journal().rest(self.worker);
    }

    /// Runs a window of commands to completion.
    fn window(&mut self, stream: &Stream, commands: Range<usize>) {
        let set = pantala_commands::lookup(b"set").expect("SET is built");
        let mut places = [None; WINDOW];
        for (index, place) in commands.clone().zip(&mut places) {
            let found = self.keyspace.place(stream.args(index).at(1));
            self.keyspace.hint(0, found.shard).prefetch_bucket(found.hash);
            *place = Some(found);
        }
        for place in places.iter().flatten() {
            self.keyspace.hint(0, place.shard).prefetch_entry(place.hash);
        }
        self.reply.clear();
        let mut waiting = 0;
        for (number, index) in commands.enumerate() {
            let place = places[number].expect("filled above");
            if let Some(Some(next)) = places.get(number + 1)
                && !self.executor.hot.has(next.hash)
            {
                self.keyspace.prefetch_gate(next.shard);
            }
            let args = stream.args(index);
            let call = Call {
                command: if args.len() == 2 { self.get } else { set },
                args,
                first_key: Some(place),
                session: session(),
                reads_as: None,
                connection: 0,
                now_ms: 1_700_000_000_000,
            };
            if self.executor.run_single(&call, place, &mut self.reply) == Ran::Parked {
                waiting += 1;
            }
        }
        black_box(&self.reply);
        // Waits for all replies, as a connection does at the end of its pipeline.
        while waiting > 0 {
            waiting -= self.messages();
        }
    }
}

impl Prepared {
    /// Creates a keyspace and fills it.
    pub fn new(load: Load) -> Self {
        let ports = (0..load.workers).map(|_| WorkerPort::new(Box::new(|| {}))).collect();
        let layout = Layout {
            shards: load.shards,
            partitions: load.shards,
            databases: 1,
            homes: load.workers,
            workers: load.workers,
            execution: Execution::Inline,
            seed: SEED,
            random_seed: SEED,
        };
        let keyspace = Keyspace::new(layout, ports);
        let value = vec![b'v'; load.value_bytes];
        let mut lane = Lane::new(&keyspace, 0, load.publishes);
        let mut stream = Stream::default();
        for index in 0..load.keys {
            stream.push(&[b"SET", &key(index), &value]);
        }
        lane.run(&stream);
        lane.rest();
        drop(lane);
        if load.is_journaled {
            keyspace.keep_journal(true).expect("a thread can be started");
        }
        Prepared { load, keyspace }
    }

    /// Runs `operations` commands on each worker. Returns the time from the common start until the
    /// last worker has ended.
    pub fn run(&self, operations: usize) -> Duration {
        self.run_timed(operations).wall
    }

    /// Does the same as [`Prepared::run`], and also returns the CPU time of the workers.
    pub fn run_timed(&self, operations: usize) -> Elapsed {
        race(&(0..self.load.workers).map(|worker| (self, worker)).collect::<Vec<_>>(), operations)
    }

    /// Runs `operations` commands of each worker on the calling thread, which plays all workers
    /// alternately: one command of each worker in turn, and after `turn` commands the end of each
    /// worker's turn. So the effects of all workers are interleaved as closely as possible. Returns
    /// the CPU time of the journal's thread.
    pub fn run_interleaved(&self, operations: usize, turn: usize) -> Duration {
        pin(0);
        let workers = self.load.workers;
        // Each worker repeats these commands.
        let own = operations.min(400);
        let streams: Vec<Stream> = (0..workers).map(|lane| self.commands(lane as usize, own)).collect();
        let mut lanes: Vec<Lane<'_>> =
            (0..workers).map(|worker| Lane::new(&self.keyspace, worker, self.load.publishes)).collect();
        let before = journal_cpu();
        lanes.iter_mut().for_each(Lane::end_turn);
        for first in (0..operations).step_by(turn) {
            for command in first..(first + turn).min(operations) {
                for (lane, stream) in lanes.iter_mut().zip(&streams) {
                    lane.window(stream, command % own..command % own + 1);
                }
            }
            for lane in &mut lanes {
                lane.messages();
                lane.end_turn();
            }
        }
        lanes.iter_mut().for_each(Lane::rest);
        // The last epoch ends within a millisecond or two.
        std::thread::sleep(Duration::from_millis(50));
        journal_cpu() - before
    }

    /// Returns the commands of a worker, which are created before the measured time.
    fn commands(&self, lane: usize, operations: usize) -> Stream {
        let mut random = Random::from_seed(SEED ^ (lane as u64 + 1));
        let zipf = match self.load.distribution {
            Keys::Uniform => None,
            Keys::Zipf(exponent) => Some(Zipf::new(self.load.keys, exponent)),
        };
        let value = vec![b'w'; self.load.value_bytes];
        let mut stream = Stream::default();
        for _ in 0..operations {
            let index = match &zipf {
                None => random.below(self.load.keys as u64) as usize,
                Some(zipf) => zipf.sample(&mut random),
            };
            if random.below(100) < u64::from(self.load.sets_percent) {
                stream.push(&[b"SET", &key(index), &value]);
            } else {
                stream.push(&[b"GET", &key(index)]);
            }
        }
        stream
    }
}

/// Runs `operations` commands on one worker of each keyspace at the same time. Each worker has its
/// own core. The result is the host's limit for workers that share nothing.
pub fn run_apart(keyspaces: &[Prepared], operations: usize) -> Elapsed {
    race(&keyspaces.iter().map(|keyspace| (keyspace, 0)).collect::<Vec<_>>(), operations)
}

/// Runs `work` while spinning threads occupy all cores except the first. With `chrt -f`, no other
/// process can run on these cores and disturb the caches of the first core. A run on one worker
/// then has the same conditions as a run on all cores.
pub fn with_idle_cores_held<T>(work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for core in 1..cores() {
            let done = &done;
            scope.spawn(move || {
                pin(core);
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

/// Measures the time to transfer a cache line from the core that has written it to a core that
/// waits for it. Returns the mean of many transfers.
///
/// If cores use a shard alternately, each use costs this time in addition to its work. The time
/// differs by a factor of ten between hosts. On a virtual host it also differs from minute to
/// minute.
pub fn line_transfer() -> Duration {
    const TRANSFERS: usize = 200_000;
    let turn = CachePadded::new(AtomicUsize::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for core in 0..2 {
            let turn = &turn;
            scope.spawn(move || {
                pin(core);
                for mine in (core..TRANSFERS).step_by(2) {
                    while turn.load(Ordering::Acquire) != mine {
                        std::hint::spin_loop();
                    }
                    turn.store(mine + 1, Ordering::Release);
                }
            });
        }
    });
    began.elapsed() / TRANSFERS as u32
}

/// The duration of a run.
#[derive(Clone, Copy, Debug)]
pub struct Elapsed {
    /// Time from the common start until the last worker has ended.
    pub wall: Duration,
    /// CPU time of the slowest worker. It excludes the time that other processes used.
    pub cpu: Duration,
}

/// Runs workers at the same time. A worker is given as a keyspace and the worker's number in it.
fn race(workers: &[(&Prepared, u32)], operations: usize) -> Elapsed {
    let barrier = Barrier::new(workers.len());
    let left = AtomicUsize::new(workers.len());
    let times: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter()
            .enumerate()
            .map(|(number, &(prepared, worker))| {
                let (barrier, left) = (&barrier, &left);
                scope.spawn(move || {
                    pin(number);
                    let stream = prepared.commands(number, operations);
                    let mut lane = Lane::new(&prepared.keyspace, worker, prepared.load.publishes);
                    barrier.wait();
                    let (began, cpu_began) = (Instant::now(), thread_cpu());
                    lane.run(&stream);
                    let (ended, cpu) = (Instant::now(), thread_cpu() - cpu_began);
                    // This worker has run all its commands. It still handles messages, because
                    // other workers may wait for its replies.
                    left.fetch_sub(1, Ordering::AcqRel);
                    while left.load(Ordering::Acquire) > 0 {
                        lane.messages();
                        lane.end_turn();
                        std::thread::yield_now();
                    }
                    lane.rest();
                    (began, ended, cpu)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a lane ends")).collect()
    });
    let began = times.iter().map(|time| time.0).min().expect("workers");
    let ended = times.iter().map(|time| time.1).max().expect("workers");
    Elapsed { wall: ended - began, cpu: times.iter().map(|time| time.2).max().expect("workers") }
}

fn thread_cpu() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("it counts from zero")
}

/// Returns the CPU time of the journal's thread in this process.
fn journal_cpu() -> Duration {
    let threads = std::fs::read_dir("/proc/self/task").expect("the kernel lists the threads");
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    threads
        .filter_map(Result::ok)
        .filter(|thread| read(thread.path().join("comm")).starts_with("pantala-journal"))
        .filter_map(|thread| read(thread.path().join("schedstat")).split(' ').next()?.parse().ok())
        .map(Duration::from_nanos)
        .sum()
}

/// Draws ranks by Zipf's law, with a binary search in a table of the cumulative distribution.
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
        // Distributes the ranks over the numbers of keys, so that keys with adjacent ranks aren't
        // adjacent in memory.
        let rank = self.cumulative.partition_point(|&sum| sum < at);
        (rank.wrapping_mul(0x9e37_79b1)) % self.cumulative.len()
    }
}

/// Pins the calling thread to a core, so that two workers never share a core while another core is
/// idle.
fn pin(worker: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(worker % cores());
    // The error is ignored: without pinning, the results vary more but are still correct.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
