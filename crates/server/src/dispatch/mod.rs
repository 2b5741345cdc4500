//! The dispatcher: from parsed commands to their replies, on this worker's shards and those of others.
//!
//! It drives the [reactor](crate::reactor): takes the connections that have input, parses their commands into [windows](window), has
//! them [run](run), hands requests to other workers and takes their [answers](messages). [Transactions](transactions) and
//! [scripts](scripts) gather shards and run here. What is above it (periodic work, settings) drives it in turn; where a script that
//! has run for long needs a whole turn within it, it asks what is above by a trait of its own ([`Above`]).

mod blocked;
mod busy;
mod close;
mod hand_over;
mod homes;
mod limits;
mod mail;
mod memory;
mod messages;
mod pause;
mod published;
mod refusal;
mod run;
mod scripts;
mod slow;
mod tracking;
mod transactions;
mod window;

use std::collections::BTreeSet;

use pantala_engine::executor::Executor;
use pantala_engine::faults::{self, Fault};
use pantala_engine::ownership::Ownership;
use pantala_engine::undo::Undo;
use pantala_runtime::EventLoop;
use pantala_session::{Blocked, State};

use crate::host::Server;
use crate::reactor::{self, Happened, index_of, token};
use crate::stats::Tally;
use busy::Busy;
use hand_over::Handed;
use limits::Limits;
use mail::Mail;
use memory::MemoryState;
pub use run::output_limit;
use slow::Stopwatch;
pub use slow::times_all;
use transactions::Held;
use window::Window;

/// Commands of one connection that run in a turn before the others get theirs.
const COMMANDS_PER_TURN_MAX: usize = 1024;

/// A connection of this worker.
pub type Connection = reactor::Connection<Held>;

/// What drives dispatchers.
pub trait Above<'s, L: EventLoop> {
    /// Runs a turn of the worker's loop in the midst of a script, which holds these shards.
    fn turn_within(&mut self, dispatcher: &mut Dispatcher<'s, L>, owned: &mut [Ownership]);
}

/// See the head of this module.
pub struct Dispatcher<'s, L: EventLoop> {
    /// The worker's sockets and connections.
    pub reactor: reactor::Reactor<'s, L, Held>,
    /// The worker's hand on shards.
    pub executor: Executor<'s>,
    /// Its hand on its statistics.
    pub tally: Tally<'s>,
    /// How much memory clients may use.
    pub limits: Limits,
    /// `maxmemory`.
    pub memory: MemoryState,
    /// The worker is to stop.
    pub is_stopping: bool,
    /// What runs turns within scripts.
    above: Option<Box<dyn Above<'s, L> + 's>>,
    window: Window,
    scratch: Scratch,
    stopwatch: Stopwatch,
    waiting: Waiting,
    mail: Mail,
    busy: Busy,
}

/// Memory that commands use one after the other.
#[derive(Default)]
struct Scratch {
    /// The shards of a command.
    shards: Vec<u32>,
    /// What a script has changed.
    undo: Undo,
    /// The command that has just run, if its value was handed over.
    handed: Option<Handed>,
}

/// Connections that go on at some time.
#[derive(Default)]
struct Waiting {
    /// Those that `CLIENT PAUSE` holds back, by index.
    paused: Vec<u32>,
    /// When blocked connections time out: deadline in µs of the clock that never goes back, ticket of the waiter, index of the
    /// connection.
    deadlines: BTreeSet<(i64, u64, u32)>,
}

impl<'s, L: EventLoop> Dispatcher<'s, L> {
    /// A dispatcher over a loop that this thread has made.
    pub fn new(server: &'s Server, number: u32, io: L) -> Self {
        let reactor = reactor::Reactor::new(server, number, io);
        let limits_clients = server.keyspace().clients().memory().limit_bytes() > 0;
        server.scripting().attach(number);
        Dispatcher {
            executor: Executor::new(server.keyspace(), number),
            tally: Tally::new(server.worker_stats(number)),
            limits: Limits::new(&reactor.settings, limits_clients),
            memory: MemoryState::default(),
            is_stopping: false,
            above: None,
            window: Window::default(),
            scratch: Scratch::default(),
            stopwatch: Stopwatch::new(&reactor.settings),
            waiting: Waiting::default(),
            mail: Mail::default(),
            busy: Busy::default(),
            reactor,
        }
    }

    /// Sets what runs turns within scripts.
    pub fn set_above(&mut self, above: Box<dyn Above<'s, L> + 's>) {
        self.above = Some(above);
    }

    /// Whether there is something to do at once.
    pub fn is_behind(&self) -> bool {
        self.reactor.is_behind()
            || self.mail.is_behind()
            || self.limits.weighing.is_due()
            || self.memory.is_behind()
            || self.executor.has_work()
    }

    /// How long a poll may wait until a pause ends or a blocked connection times out, µs; at most `wait_us`.
    pub fn wait_us(&self, wait_us: i64) -> i64 {
        let mut wait_us = wait_us;
        if !self.waiting.paused.is_empty() {
            let paused_ms = (self.reactor.server.paused_until_ms() - self.reactor.clock.now_ms).max(1);
            wait_us = wait_us.min(paused_ms.saturating_mul(1000));
        }
        let Some((deadline_us, ..)) = self.waiting.deadlines.first() else { return wait_us };
        wait_us.min(deadline_us.saturating_sub(self.reactor.server.monotonic_us()).max(0))
    }

    /// Takes up new settings.
    pub fn reload(&mut self) {
        self.reactor.settings = self.reactor.server.config().settings();
        self.stopwatch.set(&self.reactor.settings);
        self.tally.tracks_latency = self.reactor.settings.latency_tracking;
    }

    /// Ends the turn: finishes all connections that took part in it.
    pub fn finish_turn(&mut self) {
        faults::pause(Fault::PauseReplying);
        self.reactor.touch_listed();
        let mut untouched = None;
        while let Some(index) = self.reactor.next_touched() {
            if self.busy.is_frozen(index) {
                untouched = Some(index);
                continue;
            }
            if !self.reactor.finish(index) {
                continue;
            }
            if self.limits.weighing.is_on {
                self.weigh(index);
            }
            if self.reactor.is_over(index) {
                self.close(index);
            }
        }
        self.reactor.touch_again(untouched);
        if self.limits.weighing.is_on {
            self.end_weighing();
        }
    }
}
