//! A worker's figures: written by the worker, read by whoever asks `INFO`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pantala_base::{Counter, Gauge, Histogram};
use pantala_engine::command::{Command, Flags};
use pantala_engine::tuning::WATCHING;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a reply that is no error, or not known yet.
    Ok,
    /// With an error.
    Failed,
    /// Not run.
    Rejected,
}

/// Figures of one command on one worker (`INFO commandstats`).
#[derive(Default)]
pub struct CommandStats {
    /// Calls that ran.
    pub calls: Counter,
    /// Time they took, ns. Commands of a window share its time evenly.
    pub time_ns: Counter,
    /// Calls that ran and failed.
    pub failed: Counter,
    /// Calls that did not run.
    pub rejected: Counter,
    /// How long calls took, ns (`latency-tracking`).
    pub latency: Histogram,
}

/// The commands that a worker has met.
type ByCommand = Vec<(&'static Command, Arc<CommandStats>)>;

/// Error replies by code (`INFO errorstats`).
type ByCode = BTreeMap<Vec<u8>, Arc<Counter>>;

/// Longest error code, bytes; what has no blank by then counts as `ERR`, as in Redis.
const ERROR_CODE_BYTES_MAX: usize = 30;

/// Different error codes that are counted: there are a dozen, unless scripts make some up.
const ERROR_CODES_MAX: usize = 128;

/// Most counts of a run that may be put back which are kept until it stands: 32 KiB of them. Those beyond are made at once.
const HELD_MAX: usize = 1024;

/// A count of a run that may be put back.
enum HeldCount {
    /// A command within it, and how long it took.
    Command(&'static Command, Outcome, Duration),
    /// An error reply with this code; `None`: there are too many of them.
    Error(Option<Arc<Counter>>),
}

const _: () = assert!(HELD_MAX * size_of::<HeldCount>() <= 32 * 1024);

/// See the head of this module.
pub struct WorkerStats {
    /// Turns of the loop.
    pub turns: Counter,
    /// Windows that ran.
    pub windows: Counter,
    /// Parts of pipelines that waited together for a script's shards.
    pub joined: Counter,
    /// Commands that ran.
    pub commands: Counter,
    /// Error replies.
    pub errors: Counter,
    /// Bytes received.
    pub input_bytes: Counter,
    /// Bytes given to be sent.
    pub output_bytes: Counter,
    /// Times that bytes came from a connection.
    pub reads: Counter,
    /// Times that bytes were given to be sent.
    pub writes: Counter,
    /// Connections that it has now.
    pub connections: Gauge,
    /// Connections among them that `CLIENT PAUSE` holds back.
    pub paused: Gauge,
    /// Of those, the ones whose command waits for a key.
    pub blocked: Gauge,
    /// Of those, the ones that don't wait for ever.
    pub with_deadline: Gauge,
    /// CPU time of its thread as of the last look, µs.
    pub cpu_us: Gauge,
    by_command: Mutex<ByCommand>,
    by_code: Mutex<ByCode>,
}

/// A worker's hand on its figures: whoever asks sees each count as soon as it is made. What is counted for the first time is entered
/// under a lock; after that a count is a plain load and store.
pub struct Tally<'s> {
    stats: &'s WorkerStats,
    /// Few different commands, so a list.
    runs: ByCommand,
    last: usize,
    /// Time of its commands that had their own taken, ns.
    window_timed_ns: u64,
    /// Calls in the current window that share its time: by index in `runs` how many follow each other, none of them 0.
    window_calls: Vec<(usize, u64)>,
    by_code: ByCode,
    /// The error of the command at hand was counted when a command within it answered it.
    is_counted: bool,
    /// What a run that may be put back has counted so far.
    held: Vec<HeldCount>,
    /// Such a run is under way.
    is_holding: bool,
    /// Whether it is kept how long calls took (`latency-tracking`).
    pub tracks_latency: bool,
}

impl<'s> Tally<'s> {
    /// The hand on a worker's figures: there must be only one.
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

    /// A window begins to run.
    pub fn begin_window(&mut self) {
        self.window_timed_ns = 0;
        self.window_calls.clear();
    }

    /// A command has run, or was rejected.
    #[inline]
    pub fn count(&mut self, command: &'static Command, outcome: Outcome) {
        match outcome {
            Outcome::Ok => {}
            Outcome::Failed => self.stats_of(command).failed.add(1),
            Outcome::Rejected => return self.stats_of(command).rejected.add(1),
        }
        self.count_calls(command, 1);
    }

    /// So many calls of a command have run one after the other (at least one), with replies that are no errors.
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

    /// Figures of a command, whose index is `last` then.
    #[inline]
    fn stats_of(&mut self, command: &'static Command) -> &CommandStats {
        if !self.runs.get(self.last).is_some_and(|(known, _)| std::ptr::eq(*known, command)) {
            self.last = self.find(command);
        }
        &self.runs[self.last].1
    }

    /// Takes the call that was counted last from those that share their window's time.
    fn pop_call(&mut self) -> Option<usize> {
        let (index, count) = self.window_calls.last_mut()?;
        let index = *index;
        *count -= 1;
        if *count == 0 {
            self.window_calls.pop();
        }
        Some(index)
    }

    /// A command has run within another (a script), for so long, which counts for that one too; or was rejected there.
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

    /// The outcome of a command within another that has replied; an error is counted.
    pub fn outcome_within(&mut self, command: &Command, reply: &[u8]) -> Outcome {
        if reply.first() != Some(&b'-') || command.flags.contains(Flags::ANSWERS_ERRORS) {
            return Outcome::Ok;
        }
        self.count_reply_within(reply);
        Outcome::Failed
    }

    /// A reply that may be an error was given to what runs within a command.
    pub fn count_reply_within(&mut self, reply: &[u8]) {
        let [b'-', error @ ..] = reply else { return };
        let count = self.count_of(error);
        if self.holds_next() {
            self.held.push(HeldCount::Error(count));
        } else {
            self.add_error(count.as_deref());
        }
    }

    /// A run begins that may be put back: what is counted within it counts when it stands, and who asks meanwhile doesn't see it.
    pub fn hold(&mut self) {
        self.is_holding = true;
    }

    /// Whether the next count is to be held: there is room for it, or it is made at once.
    #[inline]
    fn holds_next(&self) -> bool {
        self.is_holding && self.held.len() < HELD_MAX
    }

    /// The run has ended. What it has counted counts if it stands, and is forgotten if it was put back.
    pub fn let_go(&mut self, stands: bool) {
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

    /// An error reply follows that was counted when a command within answered it.
    pub fn expect_counted(&mut self) {
        self.is_counted = true;
    }

    /// The outcome of a command that has replied; an error is counted.
    #[inline]
    pub fn outcome(&mut self, command: &Command, reply: &[u8]) -> Outcome {
        if reply.first() == Some(&b'-') { self.count_failure(command, reply) } else { Outcome::Ok }
    }

    /// The outcome of a command that has written an error, which is counted.
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

    /// A reply that may be an error was written.
    #[inline]
    pub fn count_reply(&mut self, reply: &[u8]) {
        if let [b'-', error @ ..] = reply {
            self.count_error(error);
        }
    }

    /// The reply has come of a command that was counted when it was sent on its way.
    #[inline]
    pub fn count_late_reply(&mut self, command: &'static Command, reply: &[u8]) {
        if reply.first() == Some(&b'-') {
            self.count_reply(reply);
            self.count_late_failure(command);
        }
    }

    /// A command that was counted when it was sent on its way has failed.
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

    /// Where errors with the code of this one are counted; `None`: there are too many codes.
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

    /// The command that was counted last took so long: it has no share in the time of its window.
    pub fn time_last(&mut self, took: Duration) {
        if let Some(index) = self.pop_call() {
            self.record(index, took);
            self.leave_out(took);
        }
    }

    /// The command that was counted last is on its way, and its own time will be told ([`Tally::time_late`]): it has no share in the time
    /// of its window.
    pub fn expect_time(&mut self) {
        self.pop_call();
    }

    /// A command that was counted when it was sent on its way took so long to run, wherever that was.
    #[cold]
    pub fn time_late(&mut self, command: &'static Command, took: Duration) {
        let index = self.find(command);
        self.record(index, took);
    }

    /// A command took so long to find that it has to wait. As in Redis that is no latency before it has an answer.
    pub fn time_blocked(&mut self, command: &'static Command, took: Duration) {
        let index = self.find(command);
        self.runs[index].1.time_ns.add(took.as_nanos() as u64);
    }

    /// The window's time has a part that isn't to be shared.
    pub fn leave_out(&mut self, took: Duration) {
        self.window_timed_ns += took.as_nanos() as u64;
    }

    /// A command that has waited has an answer, whose time was told when it began to ([`Tally::time_blocked`]).
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

    /// The window has run for so long, ns: what is left of its time is shared among its commands whose own wasn't taken.
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
    /// All zero.
    pub fn new() -> Self {
        WorkerStats {
            turns: Counter::new(),
            windows: Counter::new(),
            joined: Counter::new(),
            commands: Counter::new(),
            errors: Counter::new(),
            input_bytes: Counter::new(),
            output_bytes: Counter::new(),
            reads: Counter::new(),
            writes: Counter::new(),
            connections: Gauge::default(),
            blocked: Gauge::default(),
            with_deadline: Gauge::default(),
            paused: Gauge::default(),
            cpu_us: Gauge::default(),
            by_command: Mutex::default(),
            by_code: Mutex::default(),
        }
    }

    /// Figures by command, of all that it has met.
    pub fn by_command(&self) -> MutexGuard<'_, ByCommand> {
        self.by_command.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Error replies by code, of all that it has met.
    pub fn by_code(&self) -> MutexGuard<'_, ByCode> {
        self.by_code.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything that `CONFIG RESETSTAT` forgets.
    pub fn reset(&self) {
        for counter in [&self.turns, &self.windows, &self.commands, &self.errors, &self.input_bytes, &self.output_bytes]
        {
            counter.reset();
        }
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
        // At the longest code, and one past it.
        let (longest, longer) =
            ([b"-", [b'x'; 30].as_slice(), b" y"].concat(), [b"-", [b'x'; 31].as_slice(), b" y"].concat());
        assert_eq!(by_code(&[&longest, &longer]), (2, format!("ERR=1 {}=1", "x".repeat(30))));
    }

    /// At the most that is held, and one past it.
    #[test]
    fn a_run_counts_when_it_stands() {
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
            tally.let_go(stands);
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
