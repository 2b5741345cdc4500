//! Times commands, and records the slow ones: `SLOWLOG`, and the command events of `LATENCY`.
//!
//! Reading the clock twice costs about as much as a small `GET`, so not every command of a pipeline
//! is timed individually. A *window* is a list of commands that a worker has parsed and runs
//! together.
//!
//! - A command is timed individually if it isn't *plain* ([`Command::is_plain`]), or if its
//!   arguments and reply are large.
//! - The plain commands of a window are timed together, for `INFO commandstats` too. If, at the end
//!   of the window, the time since the last individually timed command reaches
//!   `slowlog-log-slower-than` or `latency-monitor-threshold`, the plain command with the longest
//!   arguments is recorded with that time.
//! - If `slowlog-log-slower-than` is below [`SLOWLOG_FINE_US`], every command is timed
//!   individually, because the total time of a window would not show which of its commands were
//!   slow.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_base::Moment;
use pantala_engine::client::Client;
use pantala_engine::command::{Command, Flags};
use pantala_engine::keyspace::Keyspace;
use pantala_engine::latency;
use pantala_engine::slowlog::{Sender, SlowRun};
use pantala_engine::tuning::WATCHING;
use pantala_resp::{ArgRange, Args};
use pantala_runtime::EventLoop;

use super::{Abandon, Clients};
use crate::config::{SLOWLOG_FINE_US, Settings};

/// Minimum total size of a command's arguments and reply for which the command is timed
/// individually, bytes. Copying this amount takes longer than reading the clock.
pub const LARGE_BYTES: usize = 16 * 1024;

/// The words of a command in one buffer, and the range of each word.
pub type Words = (Vec<u8>, Vec<ArgRange>);

/// Returns the value of [`Stopwatch::slow_window_ns`].
fn slow_window_ns(settings: &Settings) -> u64 {
    let slow = match settings.slowlog_log_slower_than_us {
        slower_than_us @ SLOWLOG_FINE_US.. => Duration::from_micros(slower_than_us as u64),
        _ => Duration::MAX,
    };
    let least = match settings.latency_monitor_threshold_ms {
        0 => slow,
        threshold_ms => slow.min(Duration::from_millis(threshold_ms)),
    };
    u64::try_from(least.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the value of [`Stopwatch::times_turns`].
fn times_turns(settings: &Settings) -> bool {
    settings.latency_monitor_threshold_ms > 0
}

/// The worker's stopwatch: decides which commands are timed, and times them.
pub struct Stopwatch {
    times_all: bool,
    /// Whether the worker's turns are timed.
    pub times_turns: bool,
    /// Minimum total time of a window's plain commands for which one of them may be logged, ns.
    pub slow_window_ns: u64,
    /// The time at which the last timed command ended, or the window started.
    pub mark: Moment,
}

impl Stopwatch {
    /// Creates a stopwatch with these settings.
    pub fn new(settings: &Settings) -> Self {
        Stopwatch {
            times_all: settings.times_all(),
            times_turns: times_turns(settings),
            slow_window_ns: slow_window_ns(settings),
            mark: Moment::now(),
        }
    }

    /// Applies changed settings.
    pub fn set(&mut self, settings: &Settings) {
        self.times_all = settings.times_all();
        self.times_turns = times_turns(settings);
        self.slow_window_ns = slow_window_ns(settings);
    }

    /// Starts a window. Returns the current time, or `None` if commands are not timed in this build
    /// ([`WATCHING`]).
    pub fn begin_window(&mut self) -> Option<Moment> {
        let began = WATCHING.then(Moment::now)?;
        self.mark = began;
        Some(began)
    }

    /// Returns the current time if the command is to be timed individually, `None` otherwise.
    /// `arguments` is the number of the command's arguments, `bytes` their length.
    #[inline]
    pub fn begin(&self, command: &Command, arguments: usize, bytes: usize) -> Option<Moment> {
        let is_timed = || bytes >= LARGE_BYTES || self.times(command, arguments);
        (WATCHING && is_timed()).then(Moment::now)
    }

    /// Returns whether every command is timed individually.
    #[inline]
    pub fn times_all(&self) -> bool {
        self.times_all
    }

    /// Returns whether a command with this number of arguments is timed individually.
    pub fn times(&self, command: &Command, arguments: usize) -> bool {
        WATCHING && (self.times_all || !command.is_plain(arguments))
    }

    /// Returns whether a command with this number of arguments is timed when it runs on another
    /// worker.
    pub fn times_requests(&self, command: &Command, arguments: usize) -> bool {
        WATCHING && (self.times_all || command.is_timed_individually(arguments))
    }

    /// Returns the duration of the command that has just ended, measured from `began`. If `began`
    /// is `None`, measures from the end of the last timed command, or from the start of the window.
    pub fn end(&mut self, began: Option<Moment>) -> Duration {
        let now = Moment::now();
        let took = now - began.unwrap_or(self.mark);
        self.mark = now;
        took
    }
}

/// Adds a command to the slow log if its duration `took` reaches the log's threshold. Records a
/// `LATENCY` event if the duration reaches the threshold of `LATENCY`.
pub fn note(keyspace: &Keyspace, sender: Sender<'_>, command: &Command, args: &Args<'_>, took: Duration, now_ms: i64) {
    note_cut(keyspace, sender, command, args, None, took, now_ms);
}

/// Does the same as [`note`] for a command whose long value may have been handed over to the
/// keyspace. In that case, `args` has only the start of the value. `cut` then has the value's index
/// among the arguments, and the number of missing bytes.
pub fn note_cut(
    keyspace: &Keyspace,
    sender: Sender<'_>,
    command: &Command,
    args: &Args<'_>,
    cut: Option<(usize, usize)>,
    took: Duration,
    now_ms: i64,
) {
    if is_logged(keyspace, command, took) {
        let run = SlowRun { at_s: now_ms / 1000, duration_us: took.as_micros() as i64, cut };
        let max_len = keyspace.tuning.slowlog_max_len.load(Relaxed);
        keyspace.slowlog().note(sender, command, args, run, max_len);
    }
    let (Sender::Client(client) | Sender::Script(client)) = sender;
    note_latency(keyspace, client, command, took, now_ms);
}

/// Returns whether the slow log records a command. Uses the threshold that applies after the
/// command. So a slow `CONFIG SET` that raises the threshold above its own duration isn't logged,
/// as in Redis.
fn is_logged(keyspace: &Keyspace, command: &Command, took: Duration) -> bool {
    let slower_than_us = keyspace.tuning.slowlog_slower_than_us.load(Relaxed);
    slower_than_us >= 0 && took.as_micros() as i64 >= slower_than_us && !command.flags.contains(Flags::SKIP_SLOWLOG)
}

fn note_latency(keyspace: &Keyspace, client: &Client, command: &Command, took: Duration, now_ms: i64) {
    let event = if command.flags.contains(Flags::FAST) { latency::FAST_COMMAND } else { latency::COMMAND };
    keyspace.note_latency(client.listener().worker, event, now_ms, took);
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Records the time of a connection's command that had to wait for its shards. `took` is the
    /// time for which the command ran after it had acquired its shards. `words` is called only if
    /// the command is logged.
    pub fn time_late(&mut self, index: u32, command: &'static Command, took: Duration, words: impl FnOnce() -> Words) {
        self.tally.time_late(command, took);
        let Some(connection) = &self.reactor.connections[index as usize] else { return };
        let (keyspace, client) = (self.executor.keyspace(), &connection.session.client);
        if is_logged(keyspace, command, took) {
            let (bytes, ranges) = words();
            note(
                keyspace,
                Sender::Client(client),
                command,
                &Args::new(&bytes, &ranges),
                took,
                self.reactor.clock.now_ms,
            );
        } else {
            note_latency(keyspace, client, command, took, self.reactor.clock.now_ms);
        }
    }
}
