//! Simulates workers that acquire shards. An event is the arrival of a worker at a *gate*, the word
//! that shows whether a shard is held.
//!
//! A worker is always busy. It works on an operation outside any shard, acquires the operation's
//! shard, works while it holds the shard, and continues with the next operation. If another worker
//! holds the shard, the worker first spins. If the shard is still held after a while, the worker
//! leaves a *request* at the shard and continues with other connections. The holder runs the
//! request before it releases the shard. Its connections wait for their replies, so a worker works
//! ahead for at most [`AHEAD_NS`] before a reply must arrive.
//!
//! With [`Policy::Owner`], every shard has a *home*, the worker that runs all operations on the
//! shard. Other workers send their operations on the shard as requests to its home.
//!
//! Two kinds of cache lines move from core to core:
//!
//! - Lines that commands write in a shard. They move if another worker held the shard last.
//! - Lines of a key's entry. They move in two cases: another worker has written the entry since
//!   this worker used it, or this worker writes the entry while it is in another worker's cache.
//!   Such a move counts only if the key is used again so soon that the entry would still be in the
//!   cache of a single worker. If the key is used later, even a single worker reads the entry from
//!   memory. The time measured with one worker includes this read.
//!
//! A simulated command on several keys reserves all its shards when it arrives at the first shard.
//! A real command would reserve the other shards later. The simulated throughput of such commands
//! is therefore a lower bound. With [`Policy::Owner`], `tables` reports only commands on one key.
//!
//! The simulation does not model the hand-over of a shard to its home after 64 requests, sleeping
//! workers, memory bandwidth, or locks in the kernel.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use pantala_base::limits::SLOTS;
use pantala_base::{Random, key_slot};

use super::costs::Written;
use crate::load::keys::{Keys, Pattern, Range};

/// Maximum time that a worker works for other connections while a reply is pending, in ns.
const AHEAD_NS: f64 = 100_000.0;
/// Maximum number of workers.
pub(super) const WORKERS_MAX: usize = 1024;

/// The worker that runs a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// The worker that parsed the command.
    Inline,
    /// The home of the command's shard.
    Owner,
}

/// The parameters of a simulation.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    pub(super) workers: u32,
    pub(super) shards: u32,
    pub(super) policy: Policy,
    pub(super) keys: u64,
    /// Zipf exponent, or 0 for uniform keys.
    pub(super) zipf: f64,
    pub(super) keys_per_operation: u32,
    /// Time of an operation outside its shards, in ns.
    pub(super) outside_ns: f64,
    /// Time for each key while its shard is held, in ns.
    pub(super) held_ns: f64,
    /// The lines that a command writes for each of its keys.
    pub(super) written: Written,
    /// Number of operations after which an entry that was not used again has left all caches.
    pub(super) kept_operations: f64,
    /// Time to transfer a line that another core wrote last, in ns.
    pub(super) line_ns: f64,
    /// Share of `line_ns` that a prefetch hides, from 0 to 1. It applies to the lines of an entry.
    /// If the operation doesn't wait for the shard, it also applies to the line of the gate.
    pub(super) hidden: f64,
    pub(super) spin_ns: f64,
    pub(super) request_ns: f64,
    /// Number of line transfers that a request costs its sender, and also the worker that runs the
    /// request.
    pub(super) request_lines: f64,
}

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) operations_per_s: f64,
    /// Share of the workers' time that is spent on line transfers. The transfers of requests are
    /// not included.
    pub(super) lines: f64,
    /// Share of the workers' time that is spent waiting for gates and replies.
    pub(super) waiting: f64,
    /// Share of the workers' time that is spent creating requests, and transferring requests and
    /// replies. The time to run requests is not included.
    pub(super) requests: f64,
    /// Share of the operations that run on a shard that another worker held last. With
    /// [`Policy::Owner`], share of the operations that do not run on the worker that parsed them.
    pub(super) moved: f64,
    /// Share of the operations for which a worker left a request.
    pub(super) requested: f64,
    /// Mean number of line transfers per operation, including those of requests.
    pub(super) fetched: f64,
    /// Share of the time during which the busiest shard is held.
    pub(super) hottest: f64,
}

#[derive(Clone, Copy)]
struct Shard {
    free_at: f64,
    last: u32,
    held_ns: f64,
}

/// A key that an operation uses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Wanted {
    shard: u32,
    key: u64,
    writes: bool,
}

/// The workers that have the current version of a key's entry in their caches.
struct Entry {
    /// Number of the last operation that used the entry.
    at: u64,
    /// The workers, with one bit for each.
    holders: [u64; WORKERS_MAX / 64],
}

struct Simulation<'s> {
    scene: &'s Scene,
    shards: Vec<Shard>,
    entries: HashMap<u64, Entry>,
    /// Number of operations so far.
    done: u64,
    /// For each worker, the time of its work for other workers that has not yet delayed its own
    /// operations, in ns.
    debt: Vec<f64>,
    /// For each home, the time at which its work for other workers ends. Used only with
    /// [`Policy::Owner`].
    home_busy: Vec<f64>,
    outcome: Outcome,
}

/// A time that is never NaN, so that times have a total order.
#[derive(Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Simulates `operations` operations of all workers together.
pub(super) fn simulate(scene: &Scene, operations: u64, seed: u64) -> Outcome {
    let mut random = Random::from_seed(seed);
    let pattern = if scene.zipf > 0.0 { Pattern::Zipf } else { Pattern::Uniform };
    let range =
        Range { minimum: 0, maximum: scene.keys - 1, median: 0.0, stddev: 1.0, zipf_exponent: scene.zipf.max(0.1) };
    let mut keys = Keys::new(pattern, &range, 0, 1);
    let free = Shard { free_at: 0.0, last: u32::MAX, held_ns: 0.0 };
    let mut simulation = Simulation {
        scene,
        shards: vec![free; scene.shards as usize],
        entries: HashMap::new(),
        done: 0,
        debt: vec![0.0; scene.workers as usize],
        home_busy: vec![0.0; scene.workers as usize],
        outcome: Outcome::default(),
    };
    let mut arrivals: BinaryHeap<_> =
        (0..scene.workers).map(|worker| Reverse((Time(random.unit() * scene.outside_ns), worker))).collect();
    let (mut now, mut wanted) = (0.0, Vec::new());
    while simulation.done < operations {
        let Some(Reverse((Time(at), worker))) = arrivals.pop() else { break };
        // The work that this worker did for other workers since its last operation delays it.
        let debt = std::mem::take(&mut simulation.debt[worker as usize]);
        if debt > 0.0 {
            arrivals.push(Reverse((Time(at + debt), worker)));
            continue;
        }
        now = at;
        wanted.clear();
        let writes = random.unit() < scene.written.writes;
        for _ in 0..scene.keys_per_operation {
            let key = keys.draw(&mut random);
            let shard = (u64::from(key_slot(&key.to_le_bytes())) * u64::from(scene.shards) / SLOTS as u64) as u32;
            wanted.push(Wanted { shard, key, writes });
        }
        wanted.sort_unstable();
        let next = simulation.operation(at, worker, &wanted);
        // The time is random. With equal times, the workers would run in lockstep and never
        // contend.
        let outside_ns = scene.outside_ns * (0.5 + random.unit());
        arrivals.push(Reverse((Time(next + outside_ns), worker)));
        simulation.done += 1;
    }
    simulation.finish(now)
}

impl Simulation<'_> {
    /// Runs an operation of `worker` on its keys, which are sorted by shard. Returns the time at
    /// which the worker is free again.
    fn operation(&mut self, at: f64, worker: u32, wanted: &[Wanted]) -> f64 {
        let scene = self.scene;
        let held_ns = scene.held_ns * f64::from(scene.keys_per_operation);
        if scene.policy == Policy::Owner {
            return self.at_home(at, worker, wanted, held_ns);
        }
        // Shards are acquired one after another. The operation keeps its shards while it waits for
        // the next shard.
        let (mut ready, mut last) = (at, worker);
        for keys in wanted.chunk_by(|a, b| a.shard == b.shard) {
            let Shard { free_at, last: holder, .. } = self.shards[keys[0].shard as usize];
            if free_at > ready {
                (ready, last) = (free_at, holder);
            }
        }
        let waited = ready - at;
        let is_left = waited > scene.spin_ns;
        // The last holder of a shard runs the requests left there. Their run time delays the
        // holder's next operation.
        let runner = if is_left { last } else { worker };
        let line_ns = self.lines(at, runner, wanted);
        if !is_left {
            let end = ready + line_ns + held_ns;
            self.hold(wanted, end, worker, held_ns + line_ns);
            self.outcome.lines += line_ns;
            self.outcome.waiting += waited;
            return end;
        }
        let message_ns = scene.request_lines * scene.line_ns;
        let served_ns = held_ns + line_ns + message_ns;
        let end = ready + served_ns;
        self.hold(wanted, end, last, served_ns);
        self.debt[last as usize] += served_ns;
        self.asked(at, end, message_ns)
    }

    /// Lets `runner` use keys, which are sorted by shard, from the time `at` on. Returns the time
    /// that the line transfers take.
    fn lines(&mut self, at: f64, runner: u32, wanted: &[Wanted]) -> f64 {
        let scene = self.scene;
        let (mut ready, mut fetched, mut line_ns, mut moved) = (at, 0.0, 0.0, false);
        for keys in wanted.chunk_by(|a, b| a.shard == b.shard) {
            let Shard { free_at, last: holder, .. } = self.shards[keys[0].shard as usize];
            let waits = free_at > ready;
            ready = ready.max(free_at);
            // If the worker waits for the gate, a prefetch can't hide the transfer of the gate's
            // line.
            let shown = if waits { 1.0 } else { 1.0 - scene.hidden };
            if holder != runner && holder != u32::MAX {
                moved = true;
                // The gate's line is prefetched, but the shard's other lines are not. Several keys
                // of one shard write the same lines of the shard.
                fetched += scene.written.shard;
                line_ns += scene.line_ns * (shown + scene.written.shard - 1.0);
            }
            for wanted in keys {
                let lines = self.entry_lines(runner, wanted);
                fetched += lines;
                // Entries are prefetched together with their bucket. A write invalidates only the
                // entry of the written key in the caches of other workers.
                line_ns += scene.line_ns * (1.0 - scene.hidden) * lines;
            }
        }
        self.outcome.moved += f64::from(u8::from(moved));
        self.outcome.fetched += fetched;
        line_ns
    }

    /// Returns the number of lines of a key's entry that move from core to core if `worker` uses
    /// the key. The worker fetches these lines from another core, or invalidates them there.
    fn entry_lines(&mut self, worker: u32, wanted: &Wanted) -> f64 {
        let Scene { written, kept_operations, keys, zipf, .. } = *self.scene;
        // With uniform keys, a key is used again after about as many operations as there are keys.
        if written.writes == 0.0 || (zipf == 0.0 && keys as f64 > kept_operations) {
            return 0.0;
        }
        // Removes entries that have left all caches, to limit the size of the map.
        if self.done.is_multiple_of(kept_operations as u64 + 1) {
            let done = self.done;
            self.entries.retain(|_, entry| (done - entry.at) as f64 <= kept_operations);
        }
        let (word, bit) = (worker as usize / 64, 1 << (worker % 64));
        let mut alone = [0; WORKERS_MAX / 64];
        alone[word] = bit;
        let entry = self.entries.entry(wanted.key).or_insert(Entry { at: self.done, holders: alone });
        let is_kept = (self.done - entry.at) as f64 <= kept_operations;
        entry.at = self.done;
        let is_transferred = is_kept && (entry.holders[word] & bit == 0 || (wanted.writes && entry.holders != alone));
        if wanted.writes || !is_kept {
            entry.holders = alone;
        } else {
            entry.holders[word] |= bit;
        }
        if is_transferred { written.entry } else { 0.0 }
    }

    /// Runs an operation of `worker` at the homes of its shards ([`Policy::Owner`]). Returns the
    /// time at which `worker` continues.
    fn at_home(&mut self, at: f64, worker: u32, wanted: &[Wanted], held_ns: f64) -> f64 {
        let scene = self.scene;
        let home = |shard: u32| (u64::from(shard) * u64::from(scene.workers) / u64::from(scene.shards)) as u32;
        if wanted.iter().all(|wanted| home(wanted.shard) == worker) {
            self.hold(wanted, at + held_ns, worker, held_ns);
            return at + held_ns;
        }
        let message_ns = scene.request_lines * scene.line_ns;
        let each_ns = held_ns / wanted.len() as f64 + message_ns;
        let mut end = at;
        // The operation runs at one home after another.
        for wanted in wanted {
            let home = home(wanted.shard);
            let begin = self.home_busy[home as usize].max(end);
            end = begin + each_ns;
            self.home_busy[home as usize] = end;
            self.debt[home as usize] += each_ns;
            self.hold(&[*wanted], end, home, each_ns);
        }
        self.outcome.moved += 1.0;
        self.asked(at, end, message_ns)
    }

    /// Accounts for a request that was left at the time `at` and whose reply is sent at the time
    /// `end`. Returns the time at which the sender continues.
    fn asked(&mut self, at: f64, end: f64, message_ns: f64) -> f64 {
        let sent = at + self.scene.request_ns + message_ns;
        let next = sent.max(end - AHEAD_NS);
        self.outcome.requested += 1.0;
        self.outcome.fetched += 2.0 * self.scene.request_lines;
        self.outcome.requests += self.scene.request_ns + 2.0 * message_ns;
        self.outcome.waiting += next - sent;
        next
    }

    fn hold(&mut self, wanted: &[Wanted], until: f64, worker: u32, ns: f64) {
        for keys in wanted.chunk_by(|a, b| a.shard == b.shard) {
            let shard = &mut self.shards[keys[0].shard as usize];
            *shard = Shard { free_at: until, last: worker, held_ns: shard.held_ns + ns };
        }
    }

    fn finish(self, ns: f64) -> Outcome {
        let Outcome { lines, waiting, requests, moved, requested, fetched, .. } = self.outcome;
        let all_ns = ns * f64::from(self.scene.workers);
        let count = self.done as f64;
        Outcome {
            operations_per_s: count / ns * 1e9,
            lines: lines / all_ns,
            waiting: waiting / all_ns,
            requests: requests / all_ns,
            moved: moved / count,
            requested: requested / count,
            fetched: fetched / count,
            hottest: self.shards.iter().map(|shard| shard.held_ns / ns).fold(0.0, f64::max).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a scene with 900 ns outside the shard and 100 ns inside for each operation.
    fn scene(workers: u32, shards: u32) -> Scene {
        Scene {
            workers,
            shards,
            policy: Policy::Inline,
            keys: 1_000_000,
            zipf: 0.0,
            keys_per_operation: 1,
            outside_ns: 900.0,
            held_ns: 100.0,
            written: Written { shard: 1.0, writes: 0.0, entry: 0.0 },
            kept_operations: 0.0,
            line_ns: 0.0,
            hidden: 0.0,
            spin_ns: 1e9,
            request_ns: 0.0,
            request_lines: 0.0,
        }
    }

    fn rate(scene: &Scene) -> f64 {
        simulate(scene, 200_000, 1).operations_per_s
    }

    #[track_caller]
    fn assert_near(value: f64, wanted: f64, within: f64) {
        assert!((value / wanted - 1.0).abs() <= within, "{value} is not {wanted} ± {within}");
    }

    #[test]
    fn one_worker_takes_the_sum_of_its_work() {
        assert_near(rate(&scene(1, 40)), 1e6, 5e-3);
        let outcome = simulate(&scene(1, 1), 10_000, 1);
        assert_near(outcome.hottest, 0.1, 2e-2);
        assert_eq!((outcome.moved, outcome.requested, outcome.waiting, outcome.lines), (0.0, 0.0, 0.0, 0.0));
    }

    /// Throughput grows with the number of workers as long as they rarely meet. If they all use one
    /// shard, its gate limits the throughput.
    #[test]
    fn throughput_grows_until_a_gate_is_full() {
        assert_near(rate(&scene(8, 16_384)), 8e6, 0.01);
        assert_near(rate(&scene(64, 1)), 1e7, 0.01);
        assert!(simulate(&scene(64, 1), 100_000, 1).hottest > 0.99);
        // Two workers that each spend a tenth of their time at one gate lose a little.
        let two = rate(&scene(2, 1));
        assert!((1.96e6..2e6).contains(&two), "{two}");
    }

    /// With many shards, the probability that another worker held a shard last is 1 − 1 / workers.
    #[test]
    fn shards_move_as_often_as_there_are_others() {
        for workers in [2, 4, 10] {
            let outcome = simulate(&scene(workers, 1000), 400_000, 1);
            assert_near(outcome.moved, 1.0 - 1.0 / f64::from(workers), 0.02);
        }
    }

    #[test]
    fn lines_cost_what_is_not_hidden() {
        let mut scene = scene(2, 16_384);
        (scene.line_ns, scene.hidden) = (200.0, 0.75);
        // Every second operation takes 50 ns more than 1000 ns.
        let outcome = simulate(&scene, 1_000_000, 1);
        assert_near(outcome.operations_per_s, 2e6 / 1.025, 0.01);
        assert_near(outcome.lines, 0.025 / 1.025, 0.05);
        assert_near(outcome.fetched, 0.5, 0.02);
        // The shard now has four more lines, which nothing hides. Every second operation takes 850
        // ns more.
        scene.written.shard = 5.0;
        let outcome = simulate(&scene, 1_000_000, 1);
        assert_near(outcome.operations_per_s, 2e6 / 1.425, 0.01);
        assert_near(outcome.fetched, 2.5, 0.02);
    }

    /// Two workers use one key nearly in turn. If operations write the key, most of them therefore
    /// fetch the entry from the other worker.
    #[test]
    fn entries_come_from_their_last_writer() {
        let fetched = |writes: f64, keys: u64, kept_operations: f64| {
            let mut scene = scene(2, 16_384);
            (scene.keys, scene.zipf, scene.kept_operations) = (keys, 1.0, kept_operations);
            // The entry has so many lines that the lines of the shard are negligible.
            scene.written = Written { shard: 0.0, writes, entry: 100.0 };
            (scene.line_ns, scene.hidden) = (1.0, 1.0);
            simulate(&scene, 200_000, 1).fetched
        };
        assert_eq!(fetched(0.0, 1, 1000.0), 0.0, "nobody writes");
        let written = fetched(1.0, 1, 1000.0);
        assert!((50.0..100.0).contains(&written), "{written}");
        // A tenth of the operations write. A write needs a transfer if the other worker has used
        // the key since the last write. The next read of the other worker then needs a transfer,
        // too.
        let mixed = fetched(0.1, 1, 1000.0);
        assert!((8.0..20.0).contains(&mixed), "{mixed}");
        assert_eq!(fetched(1.0, 1, 0.0), 0.0, "nobody has it in a cache");
        // With many keys, transfers count only for keys that are used again while they would still
        // be in a cache.
        let many = fetched(1.0, 1_000_000, 1000.0);
        assert!((1.0..35.0).contains(&many), "{many}");
    }

    /// Writes cost more than reads only if workers share keys.
    #[test]
    fn a_set_costs_more_than_a_get_on_popular_keys() {
        let rate_of = |writes: f64, zipf: f64| {
            let mut scene = scene(8, 16_384);
            (scene.zipf, scene.kept_operations) = (zipf, 10_000.0);
            scene.written = Written { shard: 1.0, writes, entry: 5.0 };
            (scene.line_ns, scene.hidden) = (100.0, 0.5);
            rate(&scene)
        };
        assert_near(rate_of(1.0, 0.0), rate_of(0.0, 0.0), 0.005);
        let (get, set) = (rate_of(0.0, 1.0), rate_of(1.0, 1.0));
        assert!(set < get * 0.95, "{set} {get}");
    }

    /// The work of a request delays the holder that runs it, and no operation is lost.
    #[test]
    fn requests_are_work_for_the_holder() {
        let mut full = scene(64, 1);
        full.spin_ns = 0.0;
        let outcome = simulate(&full, 200_000, 1);
        assert!(outcome.requested > 0.9, "{outcome:?}");
        assert_near(outcome.operations_per_s, 1e7, 0.02);
        (full.line_ns, full.request_lines) = (50.0, 2.0);
        // The transfers of each request halve the throughput of the gate.
        assert_near(rate(&full), 5e6, 0.05);
    }

    #[test]
    fn owner_execution_pays_for_messages_and_shares_the_work() {
        let mut scene = scene(4, 400);
        scene.policy = Policy::Owner;
        assert_near(rate(&scene), 4e6, 0.03);
        (scene.request_ns, scene.line_ns, scene.request_lines) = (100.0, 50.0, 2.0);
        // Three quarters of the operations pay 100 ns for the request. They also pay for two
        // transfers of 50 ns each, for the request and for the reply.
        assert_near(rate(&scene), 4e6 / 1.225, 0.03);
    }

    /// With Zipf's law and the exponent 1.2, nearly a fifth of all operations use the most popular
    /// key. The gate of that key's shard limits the throughput.
    #[test]
    fn a_hot_key_bounds_all() {
        let mut hot = scene(64, 16_384);
        hot.zipf = 1.2;
        let share: f64 = 1.0 / (1..=hot.keys).map(|rank| (rank as f64).powf(-1.2)).sum::<f64>();
        let bound = 1.0 / (share * hot.held_ns) * 1e9;
        let rate = rate(&hot);
        assert!(bound < 64e6 && rate <= bound * 1.02 && rate > bound * 0.85, "{rate} of {bound}");
    }

    #[test]
    fn several_shards_are_held_together() {
        let mut scene = scene(1, 40);
        scene.keys_per_operation = 10;
        assert_near(rate(&scene), 1e9 / 1900.0, 5e-3);
        scene.workers = 8;
        let eight = rate(&scene);
        assert!(eight < 8e9 / 1900.0 && eight > 1e9 / 1000.0, "{eight}");
    }
}
