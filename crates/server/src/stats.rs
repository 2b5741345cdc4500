//! The statistics of a worker. The worker writes them through its [`Tally`], and any worker reads
//! them for `INFO`.
//!
//! A *window* is a list of parsed commands that a worker runs together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pantala_base::{Counter, Gauge, Histogram};
use pantala_engine::command::{Command, Flags};
use pantala_engine::tuning::WATCHING;

use crate::turns::LongestTurns;

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The reply is not an error, or is still pending.
    Ok,
    /// The reply is an error.
    Failed,
    /// The command did not run.
    Rejected,
}

/// Statistics of one command on one worker (`INFO commandstats`).
#[derive(Default)]
pub struct CommandStats {
    /// Number of calls that ran.
    pub calls: Counter,
    /// Time spent in these calls, ns. A few commands of a window are timed individually. The other
    /// commands of the window get equal shares of its remaining time.
    pub time_ns: Counter,
    /// Number of calls that ran and failed.
    pub failed: Counter,
    /// Number of calls that were rejected and did not run.
    pub rejected: Counter,
    /// Latency of the calls, ns (`latency-tracking`).
    pub latency: Histogram,
}

/// Statistics of the commands that a worker has run or rejected.
type ByCommand = Vec<(&'static Command, Arc<CommandStats>)>;

/// Error replies by code (`INFO errorstats`).
type ByCode = BTreeMap<Vec<u8>, Arc<Counter>>;

/// Maximum length of an error code, bytes. As in Redis, an error without a space within that length
/// counts as `ERR`.
const ERROR_CODE_BYTES_MAX: usize = 30;

/// Maximum number of distinct error codes that are counted. Redis has about a dozen codes, but
/// scripts may invent more.
const ERROR_CODES_MAX: usize = 128;

/// Maximum number of counts that are held back while a script runs, because the run may be rolled
/// back. These counts occupy at most 32 KiB. Counts beyond this number are added at once, and
/// remain even after a rollback.
const HELD_MAX: usize = 1024;

/// A count that was made while a script ran, and that is dropped if the run is rolled back.
enum HeldCount {
    /// A command that was called in the run, and its duration.
    Command(&'static Command, Outcome, Duration),
    /// An error reply, with the counter of its code; `None` if there are too many codes.
    Error(Option<Arc<Counter>>),
}

const _: () = assert!(HELD_MAX * size_of::<HeldCount>() <= 32 * 1024);

/// The statistics of one worker. Any thread may read them. Only the worker writes them, except for
/// [`WorkerStats::reset`].
pub struct WorkerStats {
    /// Number of turns of the event loop.
    pub turns: Counter,
    /// Number of windows that ran.
    pub windows: Counter,
    /// Number of requests that contain several consecutive commands of one connection. The commands
    /// were joined because an earlier command of the connection had waited for its shards.
    pub joined: Counter,
    /// Number of connections that have moved to other workers.
    pub moved: Counter,
    /// Number of commands that ran.
    pub commands: Counter,
    /// Number of error replies.
    pub errors: Counter,
    /// Bytes received.
    pub input_bytes: Counter,
    /// Bytes received from a primary. They are part of `input_bytes`.
    pub repl_input_bytes: Counter,
    /// Bytes submitted to be sent.
    pub output_bytes: Counter,
    /// Bytes for replicas (the stream and snapshots) that were added to a connection's output.
    pub repl_output_bytes: Counter,
    /// Number of reads from connections.
    pub reads: Counter,
    /// Number of writes to connections.
    pub writes: Counter,
    /// Number of current connections.
    pub connections: Gauge,
    /// Number of connections held back by `CLIENT PAUSE`.
    pub paused: Gauge,
    /// Number of connections blocked by `BLPOP`, `WAIT` and similar commands.
    pub blocked: Gauge,
    /// Number of blocked connections with a timeout.
    pub with_deadline: Gauge,
    /// CPU time of the worker's thread, µs, at the last sample.
    pub cpu_us: Gauge,
    /// The longest turns of the event loop.
    pub longest: LongestTurns,
    by_command: Mutex<ByCommand>,
    by_code: Mutex<ByCode>,
}

/// The only writer of a worker's statistics. Readers see each count immediately. The first count of
/// a command or an error code takes a lock to add an entry. Each later count is a plain load and
/// store.
pub struct Tally<'s> {
    stats: &'s WorkerStats,
    /// The statistics of each command. A list suffices, because a worker runs few different
    /// commands.
    runs: ByCommand,
    /// Index in `runs` of the command that was counted last.
    last: usize,
    /// Time of the individually timed commands in the current window, ns.
    window_timed_ns: u64,
    /// The calls of the current window that share its time. Each item is a group of consecutive
    /// calls of one command: the command's index in `runs`, and the number of calls, which is never
    /// 0.
    window_calls: Vec<(usize, u64)>,
    by_code: ByCode,
    /// Whether the current command is a script whose error was already counted, as the error of a
    /// command that the script has called.
    is_counted: bool,
    /// Counts of the current run of a script, held back because the run may be rolled back.
    held: Vec<HeldCount>,
    /// Whether counts are held back, because a script runs.
    is_holding: bool,
    /// Whether latencies are recorded (`latency-tracking`).
    pub tracks_latency: bool,
}

impl<'s> Tally<'s> {
    /// Creates the writer of a worker's statistics. There must be only one.
    pub fn new(stats: &'s WorkerStats) -> Self {
        Tally {
            stats,
            runs: Vec::new(),
            last: 0,
            window_timed_ns: 0,
            window_calls: Vec::new(),
            by_code: ByCode::new(),
            is_counted: false,
            held: Vec::new(),
            is_holding: false,
            tracks_latency: true,
        }
    }

    /// Starts a window.
    pub fn begin_window(&mut self) {
        self.window_timed_ns = 0;
        self.window_calls.clear();
    }

    /// Counts a command that has run or was rejected.
    #[inline]
    pub fn count(&mut self, command: &'static Command, outcome: Outcome) {
        match outcome {
            Outcome::Ok => {}
            Outcome::Failed => self.stats_of(command).failed.add(1),
            Outcome::Rejected => return self.stats_of(command).rejected.add(1),
        }
        self.count_calls(command, 1);
    }

    /// Counts consecutive calls of a command whose replies are not errors. `calls` must be at least
    /// 1.
    #[inline(always)]
    pub fn count_calls(&mut self, command: &'static Command, calls: u64) {
        self.stats_of(command).calls.add(calls);
        self.stats.commands.add(calls);
        if WATCHING {
            match self.window_calls.last_mut() {
                Some((index, count)) if *index == self.last => *count += calls,
                _ => self.window_calls.push((self.last, calls)),
            }
        }
    }

    /// Returns the statistics of a command, and sets `last` to its index.
    #[inline]
    fn stats_of(&mut self, command: &'static Command) -> &CommandStats {
        if !self.runs.get(self.last).is_some_and(|(known, _)| std::ptr::eq(*known, command)) {
            self.last = self.find(command);
        }
        &self.runs[self.last].1
    }

    /// Removes the call that was counted last from the calls that share the window's time. Returns
    /// the index of its command.
    fn pop_call(&mut self) -> Option<usize> {
        let (index, count) = self.window_calls.last_mut()?;
        let index = *index;
        *count -= 1;
        if *count == 0 {
            self.window_calls.pop();
        }
        Some(index)
    }

    /// Counts a command that a script has called. The command was rejected, or ran for `took`. The
    /// statistics of the calling command (such as `EVAL`) include this time too.
    pub fn count_within(&mut self, command: &'static Command, outcome: Outcome, took: Duration) {
        if self.holds_next() {
            self.held.push(HeldCount::Command(command, outcome, took));
        } else {
            self.count_now(command, outcome, took);
        }
    }

    #[inline]
    fn count_now(&mut self, command: &'static Command, outcome: Outcome, took: Duration) {
        self.count(command, outcome);
        if outcome != Outcome::Rejected
            && let Some(index) = self.pop_call()
        {
            self.record(index, took);
        }
    }

    /// Returns the outcome of a command that a script has called, judged by the command's reply. If
    /// the reply is an error, counts the error.
    pub fn outcome_within(&mut self, command: &Command, reply: &[u8]) -> Outcome {
        if reply.first() != Some(&b'-') || command.flags.contains(Flags::ANSWERS_ERRORS) {
            return Outcome::Ok;
        }
        self.count_reply_within(reply);
        Outcome::Failed
    }

    /// Counts an error if the reply to a command that a script has called is an error.
    pub fn count_reply_within(&mut self, reply: &[u8]) {
        let [b'-', error @ ..] = reply else { return };
        let count = self.count_of(error);
        if self.holds_next() {
            self.held.push(HeldCount::Error(count));
        } else {
            self.add_error(count.as_deref());
        }
    }

    /// Starts a script's run, which may be rolled back. The counts of the run are held back until
    /// the run is committed.
    pub fn hold(&mut self) {
        self.is_holding = true;
    }

    /// Returns whether to hold back the next count. After [`HELD_MAX`] counts, further counts are
    /// added at once.
    #[inline]
    fn holds_next(&self) -> bool {
        self.is_holding && self.held.len() < HELD_MAX
    }

    /// Ends the run that [`Tally::hold`] has started. If the run was committed (`stands` is true),
    /// adds its counts. Otherwise drops them.
    pub fn commit_held(&mut self, stands: bool) {
        if !std::mem::take(&mut self.is_holding) {
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        if stands {
            for count in &held {
                match count {
                    HeldCount::Command(command, outcome, took) => self.count_now(command, *outcome, *took),
                    HeldCount::Error(count) => self.add_error(count.as_deref()),
                }
            }
        }
        held.clear();
        self.held = held;
    }

    /// Notes that the current command is a script, and that its error reply comes from a command
    /// that it has called. That error was already counted.
    pub fn expect_counted(&mut self) {
        self.is_counted = true;
    }

    /// Returns the outcome of a command that has replied. If the reply is an error, counts the
    /// error.
    #[inline]
    pub fn outcome(&mut self, command: &Command, reply: &[u8]) -> Outcome {
        if reply.first() == Some(&b'-') { self.count_failure(command, reply) } else { Outcome::Ok }
    }

    /// Returns the outcome of a command that has replied with an error, and counts the error. If
    /// the command has [`Flags::ANSWERS_ERRORS`], the error is no failure and does not count.
    #[cold]
    pub fn count_failure(&mut self, command: &Command, reply: &[u8]) -> Outcome {
        if command.flags.contains(Flags::ANSWERS_ERRORS) {
            return Outcome::Ok;
        }
        if !std::mem::take(&mut self.is_counted) {
            self.count_reply(reply);
        }
        Outcome::Failed
    }

    /// Counts an error if the reply is an error.
    #[inline]
    pub fn count_reply(&mut self, reply: &[u8]) {
        if let [b'-', error @ ..] = reply {
            self.count_error(error);
        }
    }

    /// Counts the error, if any, in the reply to a command that waited for its shards or was
    /// blocked. The call was counted when the command started to wait.
    #[inline]
    pub fn count_late_reply(&mut self, command: &'static Command, reply: &[u8]) {
        if reply.first() == Some(&b'-') {
            self.count_reply(reply);
            self.count_late_failure(command);
        }
    }

    /// Counts the failure of a command that waited for its shards or was blocked. The call was
    /// counted when the command started to wait.
    #[cold]
    pub fn count_late_failure(&mut self, command: &'static Command) {
        let index = self.find(command);
        self.runs[index].1.failed.add(1);
    }

    #[cold]
    fn count_error(&mut self, error: &[u8]) {
        let count = self.count_of(error);
        self.add_error(count.as_deref());
    }

    fn add_error(&self, of_its_code: Option<&Counter>) {
        self.stats.errors.add(1);
        if let Some(count) = of_its_code {
            count.add(1);
        }
    }

    /// Returns the counter of an error's code, or `None` if there are too many codes.
    #[cold]
    fn count_of(&mut self, error: &[u8]) -> Option<Arc<Counter>> {
        let code = match error.iter().take(ERROR_CODE_BYTES_MAX + 1).position(|&byte| byte == b' ') {
            Some(len) => &error[..len],
            None => b"ERR",
        };
        if let Some(count) = self.by_code.get(code) {
            return Some(Arc::clone(count));
        }
        if self.by_code.len() == ERROR_CODES_MAX {
            return None;
        }
        let count = Arc::new(Counter::new());
        self.by_code.insert(code.to_vec(), Arc::clone(&count));
        self.stats.by_code().insert(code.to_vec(), Arc::clone(&count));
        Some(count)
    }

    /// Records the time of the command that was counted last, and excludes it from the time that
    /// the window's commands share.
    pub fn time_last(&mut self, took: Duration) {
        if let Some(index) = self.pop_call() {
            self.record(index, took);
            self.exclude_time(took);
        }
    }

    /// Removes the call that was counted last from the calls that share the window's time. The
    /// command is in flight; [`Tally::time_late`] will record its time.
    pub fn expect_time(&mut self) {
        self.pop_call();
    }

    /// Records the time of a command that waited for its shards, and may have run on another
    /// worker. The call was counted when the command started to wait.
    #[cold]
    pub fn time_late(&mut self, command: &'static Command, took: Duration) {
        let index = self.find(command);
        self.record(index, took);
    }

    /// Records the time that a command ran before it blocked. As in Redis, its latency is recorded
    /// later, when the command is answered.
    pub fn time_blocked(&mut self, command: &'static Command, took: Duration) {
        let index = self.find(command);
        self.runs[index].1.time_ns.add(took.as_nanos() as u64);
    }

    /// Excludes `took` from the time that the window's commands share.
    pub fn exclude_time(&mut self, took: Duration) {
        self.window_timed_ns += took.as_nanos() as u64;
    }

    /// Records the latency of a blocked command that was answered. The run time was recorded when
    /// the command blocked ([`Tally::time_blocked`]).
    pub fn end_blocked(&mut self, command: &'static Command, took: Duration) {
        if self.tracks_latency {
            let index = self.find(command);
            self.runs[index].1.latency.record(took.as_nanos() as u64, 1);
        }
    }

    fn record(&self, index: usize, took: Duration) {
        let took_ns = took.as_nanos() as u64;
        let stats = &self.runs[index].1;
        stats.time_ns.add(took_ns);
        if self.tracks_latency {
            stats.latency.record(took_ns, 1);
        }
    }

    /// Ends a window that took `took_ns`. Divides the time among the commands that were not timed
    /// individually, after the times of the individually timed commands have been subtracted.
    #[inline]
    pub fn end_window(&mut self, took_ns: u64) {
        let shared_ns = took_ns.saturating_sub(self.window_timed_ns);
        let each_ns = match self.window_calls.as_slice() {
            [] => return,
            [(_, 1)] => shared_ns,
            several => shared_ns / several.iter().map(|(_, calls)| calls).sum::<u64>(),
        };
        for (index, calls) in &self.window_calls {
            let stats = &self.runs[*index].1;
            stats.time_ns.add(each_ns * calls);
            if self.tracks_latency {
                stats.latency.record(each_ns, *calls);
            }
        }
    }

    #[cold]
    fn find(&mut self, command: &'static Command) -> usize {
        if let Some(index) = self.runs.iter().position(|(known, _)| std::ptr::eq(*known, command)) {
            return index;
        }
        let stats = Arc::new(CommandStats::default());
        self.runs.push((command, Arc::clone(&stats)));
        self.stats.by_command().push((command, stats));
        self.runs.len() - 1
    }
}

impl WorkerStats {
    /// Creates statistics that are all zero.
    pub fn new() -> Self {
        WorkerStats {
            turns: Counter::new(),
            windows: Counter::new(),
            joined: Counter::new(),
            moved: Counter::new(),
            commands: Counter::new(),
            errors: Counter::new(),
            input_bytes: Counter::new(),
            repl_input_bytes: Counter::new(),
            output_bytes: Counter::new(),
            repl_output_bytes: Counter::new(),
            reads: Counter::new(),
            writes: Counter::new(),
            connections: Gauge::default(),
            blocked: Gauge::default(),
            with_deadline: Gauge::default(),
            paused: Gauge::default(),
            cpu_us: Gauge::default(),
            longest: LongestTurns::default(),
            by_command: Mutex::default(),
            by_code: Mutex::default(),
        }
    }

    /// Returns the statistics by command.
    pub fn by_command(&self) -> MutexGuard<'_, ByCommand> {
        self.by_command.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counts of error replies by code.
    pub fn by_code(&self) -> MutexGuard<'_, ByCode> {
        self.by_code.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets the counters (`CONFIG RESETSTAT`).
    pub fn reset(&self) {
        for counter in [
            &self.turns,
            &self.windows,
            &self.joined,
            &self.moved,
            &self.commands,
            &self.errors,
            &self.input_bytes,
            &self.repl_input_bytes,
            &self.output_bytes,
            &self.repl_output_bytes,
            &self.reads,
            &self.writes,
        ] {
            counter.reset();
        }
        self.longest.reset();
        for (_, stats) in self.by_command().iter() {
            let CommandStats { calls, time_ns, failed, rejected, latency } = &**stats;
            latency.reset();
            [calls, time_ns, failed, rejected].into_iter().for_each(Counter::reset);
        }
        self.by_code().values().for_each(|count| count.reset());
    }
}

impl Default for WorkerStats {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_clears_every_counter() {
        let stats = WorkerStats::new();
        let WorkerStats { turns, windows, joined, commands, errors, input_bytes, output_bytes, reads, writes, .. } =
            &stats;
        let WorkerStats { repl_input_bytes, repl_output_bytes, moved, .. } = &stats;
        let counters = [turns, windows, joined, commands, errors, input_bytes, output_bytes, reads, writes];
        let counters = [&counters[..], &[repl_input_bytes, repl_output_bytes, moved]].concat();
        counters.iter().for_each(|counter| counter.add(3));
        stats.longest.record(5, 2);
        stats.reset();
        assert!(counters.iter().all(|counter| counter.get() == 0));
        assert_eq!((stats.longest.us(), stats.longest.cpu_us()), (0, 0));
    }

    fn by_code(replies: &[&[u8]]) -> (u64, String) {
        let stats = WorkerStats::new();
        let mut tally = Tally::new(&stats);
        for reply in replies {
            tally.count_reply(reply);
        }
        let codes = stats
            .by_code()
            .iter()
            .map(|(code, count)| format!("{}={}", code.escape_ascii(), count.get()))
            .collect::<Vec<_>>();
        (stats.errors.get(), codes.join(" "))
    }

    #[test]
    fn errors_are_counted_by_code() {
        let replies: [&[u8]; 6] =
            [b"-ERR a b\r\n", b"+OK\r\n", b"-WRONGTYPE x\r\n", b"-alone\r\n", b"", b"-WRONGTYPE y\r\n"];
        assert_eq!(by_code(&replies), (4, "ERR=2 WRONGTYPE=2".to_owned()));
        // The maximum length of a code, and one byte more.
        let (longest, longer) =
            ([b"-", [b'x'; 30].as_slice(), b" y"].concat(), [b"-", [b'x'; 31].as_slice(), b" y"].concat());
        assert_eq!(by_code(&[&longest, &longer]), (2, format!("ERR=1 {}=1", "x".repeat(30))));
    }

    /// The maximum number of held counts, and one more.
    #[test]
    fn a_run_counts_when_it_is_committed() {
        let get = pantala_commands::lookup(b"get").expect("a command");
        for (calls, stands, meanwhile, after) in [
            (HELD_MAX - 1, true, 0, HELD_MAX - 1),
            (HELD_MAX - 1, false, 0, 0),
            (HELD_MAX, true, 1, HELD_MAX),
            (HELD_MAX, false, 1, 1),
        ] {
            let stats = WorkerStats::new();
            let mut tally = Tally::new(&stats);
            let commands = || stats.commands.get() as usize;
            tally.hold();
            tally.count_reply_within(b"-ERR a\r\n");
            for _ in 0..calls {
                tally.count_within(get, Outcome::Ok, Duration::ZERO);
            }
            assert_eq!((commands(), stats.errors.get()), (meanwhile, 0), "{calls}");
            tally.commit_held(stands);
            assert_eq!((commands(), stats.errors.get()), (after, u64::from(stands)), "{calls} {stands}");
            tally.count_within(get, Outcome::Rejected, Duration::ZERO);
            let rejected: u64 = stats.by_command().iter().map(|(_, stats)| stats.rejected.get()).sum();
            assert_eq!(rejected, 1, "what comes later counts at once");
        }
    }

    #[test]
    fn codes_are_bounded() {
        let replies: Vec<Vec<u8>> = (0..ERROR_CODES_MAX + 1).map(|code| format!("-E{code} x").into_bytes()).collect();
        let replies: Vec<&[u8]> = replies.iter().map(Vec::as_slice).collect();
        let (errors, codes) = by_code(&replies);
        assert_eq!((errors as usize, codes.split(' ').count()), (ERROR_CODES_MAX + 1, ERROR_CODES_MAX));
    }
}
