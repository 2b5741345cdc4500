//! Which commands took long: `SLOWLOG`, and the events of `LATENCY` that commands are.
//!
//! Reading the clock twice costs about what a small `GET` does, so at a pipeline of them it isn't read for each. What takes how long is
//! told by this:
//!
//! * a command that isn't *plain* ([`Command::is_plain`]) has its own time taken, and one whose arguments and reply are large;
//! * the plain ones of a window share what is left of the window's time, as they do in `INFO commandstats`. Only when that alone is beyond
//!   the threshold, one of them is logged with it: the one with the longest arguments;
//! * with a threshold below [`SLOWLOG_FINE_US`] every command has its own time taken: nothing else would tell them apart.

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

/// Bytes of arguments and reply together from which on a command has its own time taken: to copy as many takes longer than to read the
/// clock.
pub const LARGE_BYTES: usize = 16 * 1024;

/// Words one behind the other, and where each is.
pub type Words = (Vec<u8>, Vec<ArgRange>);

/// From how long on the plain commands of a window may belong into the log, ns.
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

/// The worker's stopwatch.
pub struct Stopwatch {
    times_all: bool,
    /// From how long on the plain commands of a window are looked at, ns.
    pub slow_window_ns: u64,
    /// When the last command whose time was taken ended, or the window began.
    pub mark: Moment,
}

impl Stopwatch {
    /// A stopwatch by these settings.
    pub fn new(settings: &Settings) -> Self {
        Stopwatch { times_all: settings.times_all(), slow_window_ns: slow_window_ns(settings), mark: Moment::now() }
    }

    /// To be called when the settings have changed.
    pub fn set(&mut self, settings: &Settings) {
        self.times_all = settings.times_all();
        self.slow_window_ns = slow_window_ns(settings);
    }

    /// A window begins; when, if its time is taken.
    pub fn begin_window(&mut self) -> Option<Moment> {
        let began = WATCHING.then(Moment::now)?;
        self.mark = began;
        Some(began)
    }

    /// When a command, of so many arguments of so many bytes, began whose time is to be taken.
    #[inline]
    pub fn begin(&self, command: &Command, arguments: usize, bytes: usize) -> Option<Moment> {
        let is_timed = || bytes >= LARGE_BYTES || self.times(command, arguments);
        (WATCHING && is_timed()).then(Moment::now)
    }

    /// Returns whether every command has its own time taken.
    #[inline]
    pub fn times_all(&self) -> bool {
        self.times_all
    }

    /// Whether a command of so many arguments has its own time taken wherever it runs.
    pub fn times(&self, command: &Command, arguments: usize) -> bool {
        WATCHING && (self.times_all || !command.is_plain(arguments))
    }

    /// Whether a command of so many arguments that travels has its own time taken.
    pub fn times_on_its_way(&self, command: &Command, arguments: usize) -> bool {
        WATCHING && (self.times_all || command.is_timed_on_its_way(arguments))
    }

    /// How long the command took that has just ended: since `began`, or since the last one ended.
    pub fn end(&mut self, began: Option<Moment>) -> Duration {
        let now = Moment::now();
        let took = now - began.unwrap_or(self.mark);
        self.mark = now;
        took
    }
}

/// Logs a command if it took long, and makes it an event of `LATENCY` if it took too long for that.
pub fn note(keyspace: &Keyspace, who: Sender<'_>, command: &Command, args: &Args<'_>, took: Duration, now_ms: i64) {
    note_cut(keyspace, who, command, args, None, took, now_ms);
}

/// As [`note`]. `cut`: an argument of which so many bytes are not there.
pub fn note_cut(
    keyspace: &Keyspace,
    who: Sender<'_>,
    command: &Command,
    args: &Args<'_>,
    cut: Option<(usize, usize)>,
    took: Duration,
    now_ms: i64,
) {
    if is_logged(keyspace, command, took) {
        let run = SlowRun { at_s: now_ms / 1000, duration_us: took.as_micros() as i64, cut };
        let max_len = keyspace.tuning.slowlog_max_len.load(Relaxed);
        keyspace.slowlog().note(who, command, args, run, max_len);
    }
    let (Sender::Client(client) | Sender::Script(client)) = who;
    note_latency(keyspace, client, command, took, now_ms);
}

/// By the threshold of this moment: the `CONFIG SET` that raises it isn't logged any more, as in Redis.
fn is_logged(keyspace: &Keyspace, command: &Command, took: Duration) -> bool {
    let slower_than_us = keyspace.tuning.slowlog_slower_than_us.load(Relaxed);
    slower_than_us >= 0 && took.as_micros() as i64 >= slower_than_us && !command.flags.contains(Flags::SKIP_SLOWLOG)
}

fn note_latency(keyspace: &Keyspace, client: &Client, command: &Command, took: Duration, now_ms: i64) {
    let event = if command.flags.contains(Flags::FAST) { latency::FAST_COMMAND } else { latency::COMMAND };
    keyspace.note_latency(client.worker, event, now_ms, took);
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// A command of a connection that had waited for its shards has run, and took so long from when they were there. Its words are put together only
    /// for the log.
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
