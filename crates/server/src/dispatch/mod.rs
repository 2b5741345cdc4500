//! The dispatcher: runs the commands that a window alone can't run, such as transactions, scripts,
//! `CLIENT PAUSE` and `SHUTDOWN`. A *window* is a list of commands that a worker has parsed and
//! runs together.
//!
//! The dispatcher acquires the shards that [`transactions`] and [`scripts`] need. [`messages`]
//! receives these shards, and the replies to requests, from other workers. The dispatcher sends
//! results through the [clients](crate::clients).
//!
//! The layer above parses commands and [runs them in windows](crate::windows). While a script is
//! busy (runs for long), the dispatcher calls that layer through the trait [`Above`], to run turns
//! (iterations of the event loop) within the script.

mod busy;
pub mod ending;
mod loading;
mod mail;
mod messages;
mod pause;
mod permissions;
pub mod queued;
mod scripts;
mod transactions;
pub mod whole;
pub mod window;

use pantala_engine::ownership::Ownership;
use pantala_engine::undo::Undo;
use pantala_runtime::EventLoop;
use pantala_session::State;

use crate::clients::slow::Stopwatch;
use crate::clients::{Clients, EvictionState};
use crate::host::Server;
use crate::reactor;
pub use busy::Suspended;
use mail::Mail;
pub use messages::{SUBSCRIPTION_CHANGES, end_unplain_reply};
pub use pause::PauseReply;
pub use scripts::flags_of;
pub use transactions::{Held, refusal};

/// Maximum number of commands that one connection runs per turn. The limit lets other connections
/// run their commands too.
pub const COMMANDS_PER_TURN_MAX: usize = 1024;

/// A connection of this worker.
pub type Connection = reactor::Connection<Held>;

/// The layer above the dispatcher.
pub trait Above<'s, L: EventLoop> {
    /// Runs a turn of the worker's loop within a script that holds the shards in `owned`.
    fn turn_within(&mut self, dispatcher: &mut Dispatcher<'s, L>, owned: &mut [Ownership]);
}

/// The dispatcher of a worker.
pub struct Dispatcher<'s, L: EventLoop> {
    /// The worker's clients.
    pub clients: Clients<'s, L, Held>,
    /// The worker's state for `maxmemory`.
    pub memory: EvictionState,
    /// Times commands.
    pub stopwatch: Stopwatch,
    /// Whether the worker must stop.
    pub is_stopping: bool,
    /// Scratch memory for the shards of a command.
    pub shards: Vec<u32>,
    /// Windows whose running command may be a script. There are at most two: the window of the
    /// turn, and that of a turn within a script.
    pub suspended: Vec<Suspended>,
    /// The layer that runs turns within scripts.
    above: Option<Box<dyn Above<'s, L> + 's>>,
    /// Reusable undo log of scripts.
    undo: Undo,
    /// Indexes of the connections that a pause holds back.
    paused: Vec<u32>,
    /// Whether a `CLIENT PAUSE` was in force when one of the connections in `paused` was held back.
    clients_pause: bool,
    mail: Mail,
}

impl<'s, L: EventLoop> Dispatcher<'s, L> {
    /// Creates a dispatcher on an event loop that this thread created. `above` runs turns within
    /// scripts.
    pub fn new(server: &'s Server, number: u32, io: L, above: Box<dyn Above<'s, L> + 's>) -> Self {
        let clients = Clients::new(server, number, io);
        server.scripting().attach(number);
        Dispatcher {
            memory: EvictionState::default(),
            stopwatch: Stopwatch::new(&clients.reactor.settings),
            is_stopping: false,
            shards: Vec::new(),
            suspended: Vec::new(),
            above: Some(above),
            undo: Undo::default(),
            paused: Vec::new(),
            clients_pause: false,
            mail: Mail::default(),
            clients,
        }
    }

    /// Returns whether the next turn must start without waiting.
    #[inline]
    pub fn has_pending_work(&self) -> bool {
        self.clients.has_pending_work() | self.mail.has_pending_work() | self.memory.has_pending_work()
    }

    /// Returns how long a poll may wait, µs: the shortest of `wait_us`, the time until a pause
    /// ends, and the time until a blocked connection times out.
    #[inline]
    pub fn wait_us(&self, wait_us: i64) -> i64 {
        let mut wait_us = wait_us;
        if !self.paused.is_empty() {
            let paused_ms = (pause::resumes_at_ms(self) - self.clients.reactor.clock.now_ms).max(1);
            wait_us = wait_us.min(paused_ms.saturating_mul(1000));
        }
        self.clients.times_out_us().map_or(wait_us, |until_us| wait_us.min(until_us))
    }

    /// Applies changed settings.
    pub fn reload(&mut self) {
        let Clients { reactor, tally, .. } = &mut self.clients;
        reactor.settings = reactor.server.config().settings();
        self.stopwatch.set(&reactor.settings);
        tally.tracks_latency = reactor.settings.latency_tracking;
    }
}
