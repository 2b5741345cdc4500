//! The dispatcher: commands that need more than their turn in a window, on this worker's shards and those of others.
//!
//! [Transactions](transactions) and [scripts](scripts) gather shards and run here; [messages](messages) bring the answers to requests,
//! and the shards that were asked for. It drives the [clients](crate::clients), which get what comes of it. What is above it has
//! commands parsed and [run in windows](crate::windows); where a script that has run for long needs a whole turn within it, the
//! dispatcher asks what is above by a trait of its own ([`Above`]).

mod busy;
pub mod ending;
mod mail;
mod messages;
mod pause;
mod permissions;
mod scripts;
mod transactions;
pub mod window;

use pantala_engine::ownership::Ownership;
use pantala_engine::undo::Undo;
use pantala_runtime::EventLoop;
use pantala_session::State;

use crate::clients::slow::Stopwatch;
use crate::clients::{Clients, Memory};
use crate::host::Server;
use crate::reactor;
pub use busy::Suspended;
use mail::Mail;
pub use pause::PauseAnswer;
pub use scripts::flags_of;
pub use transactions::{Held, refusal};

/// Commands of one connection that run in a turn before the others get theirs.
pub const COMMANDS_PER_TURN_MAX: usize = 1024;

/// A connection of this worker.
pub type Connection = reactor::Connection<Held>;

/// What drives dispatchers.
pub trait Above<'s, L: EventLoop> {
    /// Runs a turn of the worker's loop in the midst of a script, which holds these shards.
    fn turn_within(&mut self, dispatcher: &mut Dispatcher<'s, L>, owned: &mut [Ownership]);
}

/// See the head of this module.
pub struct Dispatcher<'s, L: EventLoop> {
    /// The worker's clients.
    pub clients: Clients<'s, L, Held>,
    /// `maxmemory`.
    pub memory: Memory,
    /// How long commands take.
    pub stopwatch: Stopwatch,
    /// The worker is to stop.
    pub is_stopping: bool,
    /// Memory for the shards of a command.
    pub shards: Vec<u32>,
    /// Windows in the midst of which a command runs that may be a script: that of the turn, and that of a turn within.
    pub suspended: Vec<Suspended>,
    /// What runs turns within scripts.
    above: Option<Box<dyn Above<'s, L> + 's>>,
    /// Memory for what a script has changed.
    undo: Undo,
    /// Connections that `CLIENT PAUSE` holds back, by index.
    paused: Vec<u32>,
    mail: Mail,
}

impl<'s, L: EventLoop> Dispatcher<'s, L> {
    /// A dispatcher over a loop that this thread has made. `above` runs turns within scripts.
    pub fn new(server: &'s Server, number: u32, io: L, above: Box<dyn Above<'s, L> + 's>) -> Self {
        let clients = Clients::new(server, number, io);
        server.scripting().attach(number);
        Dispatcher {
            memory: Memory::default(),
            stopwatch: Stopwatch::new(&clients.reactor.settings),
            is_stopping: false,
            shards: Vec::new(),
            suspended: Vec::new(),
            above: Some(above),
            undo: Undo::default(),
            paused: Vec::new(),
            mail: Mail::default(),
            clients,
        }
    }

    /// Whether there is something to do at once.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.clients.is_behind() | self.mail.is_behind() | self.memory.is_behind()
    }

    /// How long a poll may wait until a pause ends or a blocked connection times out, µs; at most `wait_us`.
    #[inline]
    pub fn wait_us(&self, wait_us: i64) -> i64 {
        let mut wait_us = wait_us;
        if !self.paused.is_empty() {
            let reactor = &self.clients.reactor;
            let paused_ms = (reactor.server.paused_until_ms() - reactor.clock.now_ms).max(1);
            wait_us = wait_us.min(paused_ms.saturating_mul(1000));
        }
        self.clients.times_out_us().map_or(wait_us, |until_us| wait_us.min(until_us))
    }

    /// Takes up new settings.
    pub fn reload(&mut self) {
        let Clients { reactor, tally, .. } = &mut self.clients;
        reactor.settings = reactor.server.config().settings();
        self.stopwatch.set(&reactor.settings);
        tally.tracks_latency = reactor.settings.latency_tracking;
    }
}
