//! The load generator: drives a server and measures throughput and latency.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | plan | a validated load: target, clients, commands, keys, amount ([`plan::Plan`]) |
//! | operation | the unit that is counted and timed: one request, or several that belong together |
//! | client | draws operations, and has one connection (in cluster mode one to every node) |
//! | pipeline | maximum number of requests in flight on a *connection* |
//! | due time | when an operation should be sent at a fixed rate; its latency counts from then |
//!
//! Each thread owns its clients, connections and counts, and publishes the counts a few times a
//! second. Threads share nothing else.
//!
//! # What it costs
//!
//! Each read of a connection costs `recv`, `send` and two readings of the clock. Connections that
//! are readable at the same time share one `epoll_wait`. For each operation, the generator draws a
//! key, copies a few byte ranges, increments a counter, and allocates no memory.
//! `docs/benchmarks.md` has measurements.

mod client;
pub(crate) mod cluster;
mod connection;
pub(crate) mod control;
pub(crate) mod data;
mod driver;
mod hand_over;
pub(crate) mod keys;
pub(crate) mod link;
pub(crate) mod options;
pub(crate) mod outcome;
pub(crate) mod plan;
mod progress;
mod scan;
mod schedule;
mod shared;
pub(crate) mod tally;
pub(crate) mod template;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use self::driver::{Driven, Driver};
use self::hand_over::HandOver;
use self::options::Options;
use self::outcome::{Outcome, Sample, ThreadCost};
use self::plan::Plan;
use self::progress::Progress;
use self::shared::Shared;
use self::tally::Tally;

/// Interval at which the watcher checks whether the threads have ended. The watcher is the thread
/// that starts them.
const WATCH: Duration = Duration::from_millis(20);
/// Interval at which the watcher takes a sample.
const SAMPLE: Duration = Duration::from_secs(1);
/// Number of file descriptors that are needed besides those of the connections.
const DESCRIPTORS_SPARE: u64 = 100;

/// Runs `pantala-bench load`. Fails if a request failed or the run was interrupted.
pub(crate) fn main(options: &Options, stop: &Arc<AtomicBool>) -> io::Result<()> {
    let plan = options.plan().map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    // The files are opened first, so that an invalid path causes an error before the run.
    let json = options.json_out_file.as_ref().map(|path| create(path)).transpose()?;
    let hdr = options.hdr_file.as_ref().map(|path| create(path)).transpose()?;
    let mut progress = Progress::new(plan.requests());
    let outcome = run(&plan, stop, &mut progress)?;
    progress.end();
    if let Some(mut file) = json {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        let command = without_secret(words, options.authenticate.as_deref());
        serde_json::to_writer_pretty(&mut file, &Report { command, load: plan.described(), outcome: &outcome })?;
        file.flush()?;
    }
    if let Some(mut file) = hdr {
        outcome.write_percentiles(&mut file)?;
        file.flush()?;
    }
    // The files are written before the table is printed, so that they are complete even if stdout
    // is closed.
    outcome.write_table(&mut io::stdout().lock())?;
    match outcome.trouble() {
        Some(why) => Err(io::Error::other(why)),
        None if outcome.interrupted => Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "interrupted before the end: the results cover the time until then",
        )),
        None => Ok(()),
    }
}

/// The contents of `--json-out-file`.
#[derive(Serialize)]
struct Report<'a> {
    /// The command line, without the secret.
    command: Vec<String>,
    /// The load, including default values.
    load: serde_json::Value,
    #[serde(flatten)]
    outcome: &'a Outcome,
}

/// Returns the words of a command line, with the secret replaced by stars. The secret may be a word
/// of its own, or follow the name of its option within a word.
fn without_secret(words: impl Iterator<Item = String>, secret: Option<&str>) -> Vec<String> {
    let Some(secret) = secret.filter(|secret| !secret.is_empty()) else { return words.collect() };
    let hide = |word: String| match word.strip_suffix(secret) {
        Some(before) if before.is_empty() || before.starts_with('-') => format!("{before}***"),
        _ => word,
    };
    words.map(hide).collect()
}

fn create(path: &std::path::Path) -> io::Result<BufWriter<File>> {
    let file = File::create(path);
    file.map(BufWriter::new).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// An observer of a running load.
pub(crate) trait Watch {
    /// Called after the threads have tried to connect all clients, and before the load starts.
    fn begins(&mut self) {}

    /// Called about every second. `operations` is the number of operations so far.
    fn sample(&mut self, _sample: &Sample, _operations: u64) {}

    /// Called when the last reply has arrived, while all connections are still open.
    fn ends(&mut self) {}
}

/// An observer that does nothing.
impl Watch for () {}

/// Runs a load to its end, or until `stop` is set.
pub(crate) fn run(plan: &Plan, stop: &Arc<AtomicBool>, watch: &mut dyn Watch) -> io::Result<Outcome> {
    allow_descriptors(plan)?;
    let shared = Shared::new(Arc::clone(stop));
    let start = Start::new(plan.threads as usize);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.threads as usize)
            .map(|index| {
                let (shared, start) = (&shared, &start);
                scope.spawn(move || run_thread(plan, shared, index, start))
            })
            .collect();
        start.connected.wait();
        watch.begins();
        start.go.wait();
        let samples = watch_threads(&shared, watch, || threads.iter().all(thread::ScopedJoinHandle::is_finished));
        watch.ends();
        let mut sum = Tally::new(plan.commands.len());
        let (mut costs, mut interrupted, mut error) = (Vec::new(), false, None);
        for thread in threads {
            match thread.join().map_err(|_| io::Error::other("a thread of the load panicked"))? {
                Ok(Some((driven, cost))) => {
                    sum.add(&driven.tally);
                    interrupted |= driven.interrupted;
                    costs.push(cost);
                    drop(driven.sockets);
                }
                Ok(None) => {}
                Err(why) => error = Some(why),
            }
        }
        match error {
            Some(error) => Err(error),
            None => Ok(Outcome::new(plan, &sum, &costs, interrupted, samples)),
        }
    })
}

/// Synchronizes the start of the threads. Either all threads start together, or none starts.
struct Start {
    clock: Instant,
    /// The threads and the watcher wait here until every thread has connected its clients, or has
    /// failed to connect them.
    connected: Barrier,
    /// The threads wait here until the watcher has returned from [`Watch::begins`].
    go: Barrier,
    failed: AtomicBool,
}

impl Start {
    fn new(threads: usize) -> Self {
        let barrier = || Barrier::new(threads + 1);
        Self { clock: Instant::now(), connected: barrier(), go: barrier(), failed: AtomicBool::new(false) }
    }
}

/// Runs one thread of the load. Returns `None` if another thread could not connect.
fn run_thread(plan: &Plan, shared: &Shared, index: usize, start: &Start) -> io::Result<Option<(Driven, ThreadCost)>> {
    let prepare = || {
        if !plan.cpus.is_empty() {
            pantala_base::cpus::run_on(&[plan.cpus[index % plan.cpus.len()]])?;
        }
        if plan.rate_per_s.is_some() {
            // By default, the kernel may delay timers by 50 µs, which would count as latency.
            rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
        }
        connect(plan, shared, index, start.clock)
    };
    let run = prepare();
    if run.is_err() {
        start.failed.store(true, Ordering::SeqCst);
    }
    start.connected.wait();
    start.go.wait();
    let run = run?;
    if start.failed.load(Ordering::SeqCst) {
        return Ok(None);
    }
    let (cpu_s, wait_s) = (thread_cpu_s(), thread_wait_s());
    let driven = run()?;
    let cost = ThreadCost {
        cpu_s: thread_cpu_s() - cpu_s,
        wait_s: thread_wait_s() - wait_s,
        elapsed_s: driven.elapsed_ns as f64 / 1e9,
    };
    Ok(Some((driven, cost)))
}

/// The load of one thread. It must run only after all threads have connected.
type Run<'a> = Box<dyn FnOnce() -> io::Result<Driven> + 'a>;

/// Connects the clients of the thread with index `index`.
fn connect<'a>(plan: &'a Plan, shared: &'a Shared, index: usize, clock: Instant) -> io::Result<Run<'a>> {
    if plan.hand_over {
        let hand_over = HandOver::connect(plan, shared, clock)?;
        return Ok(Box::new(|| hand_over.run()));
    }
    let driver = Driver::connect(plan, shared, index, clock)?;
    Ok(Box::new(|| driver.run()))
}

fn thread_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the seconds that this thread spent in the run queue. Returns 0 if the kernel does not
/// report this time.
fn thread_wait_s() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|word| word.parse::<f64>().ok()).unwrap_or_default() / 1e9
}

fn watch_threads(shared: &Shared, watch: &mut dyn Watch, ended: impl Fn() -> bool) -> Vec<Sample> {
    let begin = Instant::now();
    let (mut samples, mut last, mut last_operations) = (Vec::new(), begin, 0);
    while !ended() {
        thread::sleep(WATCH);
        if last.elapsed() < SAMPLE {
            continue;
        }
        let seconds = last.elapsed().as_secs_f64();
        last = Instant::now();
        let operations = shared.operations.load(Ordering::Relaxed);
        let mut interval = shared.interval.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let sample = Sample {
            at_s: begin.elapsed().as_secs_f64(),
            operations_per_s: (operations - last_operations) as f64 / seconds,
            p99_us: interval.value_at_quantile(0.99) as f64 / 1e3,
        };
        interval.reset();
        drop(interval);
        last_operations = operations;
        watch.sample(&sample, operations);
        samples.push(sample);
    }
    samples
}

/// Raises this process's limit of file descriptors to the hard limit, if the current limit is too
/// low.
///
/// Fails with an explanation if the hard limit is too low for one connection per client. In cluster
/// mode the limit is always raised, because the number of nodes is unknown here. If the hard limit
/// is too low for all nodes, connecting to a node fails later.
fn allow_descriptors(plan: &Plan) -> io::Result<()> {
    let needed = u64::from(plan.clients) + DESCRIPTORS_SPARE;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed && !plan.cluster) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(io::Error::other(format!(
            "{} clients need {needed} file descriptors, the limit is {}: raise it with ulimit -n",
            plan.clients,
            limit.maximum.unwrap_or_default()
        )));
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_written_down() {
        let hidden = |line: &str, secret| without_secret(line.split(' ').map(str::to_owned), secret).join(" ");
        assert_eq!(hidden("load -p 1 -a me:pass -n 5", Some("me:pass")), "load -p 1 -a *** -n 5");
        assert_eq!(hidden("load --authenticate=pass -apass", Some("pass")), "load --authenticate=*** -a***");
        assert_eq!(hidden("load --key-prefix compass", Some("pass")), "load --key-prefix compass");
        assert_eq!(hidden("load -a", Some("")), "load -a");
        assert_eq!(hidden("load -p 1", None), "load -p 1");
    }
}
