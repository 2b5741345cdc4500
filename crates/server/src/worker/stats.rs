//! A worker's figures: written by the worker, read by whoever asks `INFO`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pantala_base::{Counter, Gauge};
use pantala_engine::command::Command;

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

/// Figures of one command (`INFO commandstats`).
#[derive(Clone, Copy, Debug, Default)]
pub struct CommandStats {
    /// Calls that ran.
    pub calls: u64,
    /// Time they took, ns. Commands of a window share its time evenly.
    pub time_ns: u64,
    /// Calls that ran and failed.
    pub failed: u64,
    /// Calls that did not run.
    pub rejected: u64,
}

/// Figures by command name.
pub type ByCommand = HashMap<&'static str, CommandStats>;

/// See the head of this module.
pub struct WorkerStats {
    /// Turns of the loop.
    pub turns: Counter,
    /// Windows that ran.
    pub windows: Counter,
    /// Commands that ran or were refused.
    pub commands: Counter,
    /// Error replies.
    pub errors: Counter,
    /// Bytes received.
    pub input_bytes: Counter,
    /// Bytes given to be sent.
    pub output_bytes: Counter,
    /// Connections that it has now.
    pub connections: Gauge,
    /// CPU time of its thread as of the last look, µs.
    pub cpu_us: Gauge,
    by_command: Mutex<ByCommand>,
}

/// What ran since the worker last told: few different commands, so a list. Belongs to the worker; told at each round of its
/// cron, and before a command that might ask.
#[derive(Default)]
pub struct Tally {
    runs: Vec<(&'static Command, CommandStats)>,
    last: usize,
    window_began: Option<Instant>,
    /// Calls in the window at hand, by index in `runs`.
    window_calls: Vec<usize>,
    commands: u64,
    errors: u64,
}

impl Tally {
    /// A window begins to run.
    pub fn begin_window(&mut self) {
        self.window_began = Some(Instant::now());
        self.window_calls.clear();
    }

    /// A command has run, or was rejected.
    #[inline]
    pub fn count(&mut self, command: &'static Command, outcome: Outcome) {
        self.commands += 1;
        if !self.runs.get(self.last).is_some_and(|(known, _)| std::ptr::eq(*known, command)) {
            self.last = self.find(command);
        }
        let stats = &mut self.runs[self.last].1;
        match outcome {
            Outcome::Ok => stats.calls += 1,
            Outcome::Failed => {
                stats.calls += 1;
                stats.failed += 1;
                self.errors += 1;
            }
            Outcome::Rejected => {
                stats.rejected += 1;
                self.errors += 1;
                return;
            }
        }
        self.window_calls.push(self.last);
    }

    /// Something that is no command was answered with an error.
    pub fn count_refused(&mut self) {
        self.commands += 1;
        self.errors += 1;
    }

    /// The window has run: its time is shared among its commands.
    pub fn end_window(&mut self) {
        let Some(began) = self.window_began.take() else { return };
        let calls = self.window_calls.len() as u64;
        if calls == 0 {
            return;
        }
        let each_ns = began.elapsed().as_nanos() as u64 / calls;
        for &index in &self.window_calls {
            self.runs[index].1.time_ns += each_ns;
        }
    }

    /// Adds everything to the worker's figures.
    pub fn tell(&mut self, stats: &WorkerStats) {
        stats.commands.add(self.commands);
        stats.errors.add(self.errors);
        (self.commands, self.errors) = (0, 0);
        let mut by_command = stats.by_command();
        for (command, run) in &mut self.runs {
            let run = std::mem::take(run);
            if run.calls + run.rejected > 0 {
                let total = by_command.entry(command.full_name).or_default();
                total.calls += run.calls;
                total.time_ns += run.time_ns;
                total.failed += run.failed;
                total.rejected += run.rejected;
            }
        }
    }

    #[cold]
    fn find(&mut self, command: &'static Command) -> usize {
        if let Some(index) = self.runs.iter().position(|(known, _)| std::ptr::eq(*known, command)) {
            return index;
        }
        self.runs.push((command, CommandStats::default()));
        self.runs.len() - 1
    }
}

impl WorkerStats {
    /// All zero.
    pub fn new() -> Self {
        WorkerStats {
            turns: Counter::new(),
            windows: Counter::new(),
            commands: Counter::new(),
            errors: Counter::new(),
            input_bytes: Counter::new(),
            output_bytes: Counter::new(),
            connections: Gauge::default(),
            cpu_us: Gauge::default(),
            by_command: Mutex::default(),
        }
    }

    /// Figures by command.
    pub fn by_command(&self) -> MutexGuard<'_, ByCommand> {
        self.by_command.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything that `CONFIG RESETSTAT` forgets.
    pub fn reset(&self) {
        for counter in [&self.turns, &self.windows, &self.commands, &self.errors, &self.input_bytes, &self.output_bytes] {
            counter.reset();
        }
        self.by_command().clear();
    }
}

impl Default for WorkerStats {
    fn default() -> Self {
        Self::new()
    }
}
