//! A worker: a thread with one event loop, the connections that it accepted, and the shards that it is home of.
//!
//! A turn of its loop:
//!
//! 1. *poll*: sends of the last turn go out, events come in ([`pantala_runtime`]);
//! 2. *messages*: answers to parked commands, shards handed over, new sockets ([`pantala_engine::message`]);
//! 3. *windows*: commands are parsed from all connections with input, prefetched, and run in order ([`window`], [`run`]);
//! 4. *finish*: replies are given to the loop, one send per connection; what is left of the input is kept.
//!
//! A few times a second it also looks after time-outs, limits and expired keys ([`cron`]).

mod blocked;
mod busy;
mod connection;
mod cron;
mod events;
mod eviction;
mod hand_over;
mod homes;
mod listeners;
mod memory;
mod pause;
mod purge;
mod refusal;
mod run;
mod scripts;
mod slow;
pub mod stats;
mod time;
mod tracking;
mod transactions;
mod window;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pantala_engine::executor::Executor;
use pantala_engine::expire::ActiveExpiry;
use pantala_engine::faults::{self, Fault};
use pantala_engine::message::Message;
use pantala_engine::request::Parcel;
use pantala_engine::undo::Undo;
use pantala_runtime::{Event, EventLoop};
use pantala_session::turn::{Fate, Sends};

use crate::config::Settings;
use crate::host::Server;
pub use slow::times_all;

use busy::{Busy, Deferred, Suspended};
use connection::{Connection, State};
use eviction::{OutputAlarm, Weighing};
use hand_over::Handed;
use memory::MemoryState;
use purge::PurgeState;
use slow::Stopwatch;
use stats::{Tally, WorkerStats};
use time::Age;
use window::Window;

/// Commands of one connection that run in a turn before the others get theirs.
const COMMANDS_PER_TURN_MAX: usize = 1024;

/// Buffers for replies that a worker keeps for reuse, and their capacity at most.
const SPARE_BUFFERS_MAX: usize = 256;
const SPARE_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// See the head of this module.
pub struct Worker<'s, L: EventLoop> {
    number: u32,
    server: &'s Server,
    io: L,
    executor: Executor<'s>,
    connections: Vec<Option<Connection>>,
    /// Indexes of connections that may have something to parse.
    ready: Vec<u32>,
    /// Indexes of connections that took part in this turn.
    touched: Vec<u32>,
    /// Indexes of connections that have only got messages since they were last sent any ([`listeners`]).
    listed: VecDeque<u32>,
    /// Indexes of connections that `CLIENT PAUSE` holds back.
    paused: Vec<u32>,
    /// When connections that wait for a key have waited enough: deadline in µs of the clock that never goes back, ticket
    /// of the waiter, index of the connection.
    deadlines: BTreeSet<(i64, u64, u32)>,
    window: Window,
    /// Scratch for the shards of a command.
    shards: Vec<u32>,
    /// Scratch for what scripts change.
    undo: Undo,
    spare: Vec<Vec<u8>>,
    settings: Arc<Settings>,
    settings_generation: u64,
    /// The time that commands see, unix time in ms ([`time`]).
    now_ms: i64,
    /// How old that is.
    age: Age,
    /// In the clock that never goes back.
    next_cron_ms: i64,
    /// In that clock, when the turn had run its commands: a turn reads it once.
    turn_ran_ms: i64,
    expiry: ActiveExpiry,
    listeners: Vec<pantala_runtime::ListenerId>,
    listening_generation: u64,
    stats: &'s WorkerStats,
    tally: Tally<'s>,
    stopwatch: Stopwatch,
    stopping: bool,
    /// Requests of this worker's connections that have brought their shards and not run yet.
    brought: VecDeque<Parcel>,
    /// Such that a script has set back: they take their shards again in the next turn.
    set_back: Vec<Parcel>,
    /// The window that the command at hand stands in, if that may be a script.
    suspended: Option<Suspended>,
    /// The script that has run for too long: this turn is one within it.
    busy: Option<Box<Busy>>,
    /// Messages that came in the midst of a turn, and wait for the next one.
    received: Vec<Message>,
    /// How many of them, from the first on, have no shards that could be handed on.
    without_shards: usize,
    /// What came for the connection of such a script meanwhile.
    deferred: Vec<Deferred>,
    weighing: Weighing,
    memory: MemoryState,
    purging: PurgeState,
    /// Of the command that has just run, if its value was handed over.
    handed: Option<Handed>,
    output_alarm: OutputAlarm,
}

impl<'s, L: EventLoop> Worker<'s, L> {
    /// A worker over a loop that this thread has made.
    pub fn new(server: &'s Server, number: u32, io: L) -> Self {
        let settings = server.config().settings();
        let weighs = server.keyspace().clients().memory().limit_bytes() > 0;
        server.scripting().attach(number);
        Worker {
            number,
            server,
            io,
            executor: Executor::new(server.keyspace(), number),
            connections: Vec::new(),
            ready: Vec::new(),
            touched: Vec::new(),
            listed: VecDeque::new(),
            paused: Vec::new(),
            deadlines: BTreeSet::new(),
            window: Window::default(),
            shards: Vec::new(),
            undo: Undo::default(),
            spare: Vec::new(),
            settings_generation: server.config().generation(),
            output_alarm: OutputAlarm::new(&settings, weighs),
            weighing: Weighing::new(weighs),
            memory: MemoryState::default(),
            purging: PurgeState::default(),
            handed: None,
            settings,
            now_ms: server.now_ms(),
            age: Age::default(),
            next_cron_ms: 0,
            turn_ran_ms: server.monotonic_ms(),
            expiry: ActiveExpiry::default(),
            listeners: Vec::new(),
            listening_generation: 0,
            stats: server.worker_stats(number),
            tally: Tally::new(server.worker_stats(number)),
            stopwatch: Stopwatch::new(&server.config().settings()),
            stopping: false,
            brought: VecDeque::new(),
            set_back: Vec::new(),
            suspended: None,
            busy: None,
            received: Vec::new(),
            without_shards: 0,
            deferred: Vec::new(),
        }
    }

    /// Runs until the server stops.
    ///
    /// # Errors
    /// The loop can't wait any more: nothing that a worker could go on without.
    pub fn run(&mut self) -> std::io::Result<()> {
        let mut events: Vec<Event> = Vec::new();
        while !self.stopping {
            let timeout = if self.replay_deferred() { Some(Duration::ZERO) } else { self.sleep_time() };
            self.executor.flush_stream();
            let may_sleep = timeout != Some(Duration::ZERO) && self.server.port(self.number).mailbox().try_sleep();
            let journal = self.executor.keyspace().journal();
            if may_sleep {
                journal.rest(self.number);
            }
            self.io.poll(if may_sleep { timeout } else { Some(Duration::ZERO) }, &mut events)?;
            journal.attend(self.number);
            self.now_ms = self.server.now_ms();
            self.stats.turns.add(1);
            // Whoever has seen CONFIG SET's answer finds every worker with the new settings, whatever it sends next.
            self.reload_if_changed();
            self.handle_all(&mut events);
            self.evict_if_due();
            if self.memory.is_behind() {
                self.go_on_freeing();
            }
            self.receive_messages();
            self.time_out();
            self.resume_paused();
            self.run_ready();
            self.turn_ran_ms = self.server.monotonic_ms();
            if self.turn_ran_ms >= self.next_cron_ms {
                self.cron();
            }
            self.tell_changed();
            self.tell_clients_if_over();
            // What CONFIG SET has asked for of the data is done before it is answered.
            self.reload_if_changed();
            self.finish_turn();
        }
        self.close_all(&mut events)
    }

    /// How long the next poll may wait; `ZERO`: not at all.
    fn sleep_time(&self) -> Option<Duration> {
        let is_behind =
            !self.listed.is_empty() || !self.received.is_empty() || self.weighing.is_due() || self.memory.is_behind();
        let has_requests = !self.brought.is_empty() || !self.set_back.is_empty();
        if is_behind || has_requests || !self.ready.is_empty() || self.executor.has_work() {
            return Some(Duration::ZERO);
        }
        let mut wait_ms = (self.next_cron_ms - self.turn_ran_ms).max(1);
        if !self.paused.is_empty() {
            wait_ms = wait_ms.min((self.server.paused_until_ms() - self.now_ms).max(1));
        }
        let wait = Duration::from_millis(wait_ms as u64);
        let Some((deadline_us, ..)) = self.deadlines.first() else { return Some(wait) };
        let left_us = deadline_us.saturating_sub(self.server.monotonic_us()).max(0);
        Some(wait.min(Duration::from_micros(left_us as u64)))
    }

    /// Marks a connection as one that may have something to parse.
    fn make_ready(&mut self, index: u32) {
        if let Some(connection) = &mut self.connections[index as usize]
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push(index);
        }
    }

    /// Marks a connection as one whose turn is to be finished.
    fn touch(&mut self, index: u32) {
        if let Some(connection) = &mut self.connections[index as usize]
            && !connection.socket.is_touched
        {
            connection.socket.is_touched = true;
            self.touched.push(index);
        }
    }

    /// Ends the turn: keeps what is left of the input, gives replies to the loop, closes what is to be closed.
    fn finish_turn(&mut self) {
        faults::pause(Fault::PauseReplying);
        self.touch_listed();
        let mut untouched = None;
        while let Some(index) = self.touched.pop() {
            if self.is_frozen(index) {
                untouched = Some(index);
                continue;
            }
            let Some(connection) = &mut self.connections[index as usize] else { continue };
            connection.socket.is_touched = false;
            let hold = connection.end_input(&mut self.io);
            if connection.state == State::Yielding {
                // The others had their turn.
                connection.state = State::Open;
                if !std::mem::replace(&mut connection.is_ready, true) {
                    self.ready.push(index);
                }
            }
            if hold != connection.socket.is_held {
                connection.socket.is_held = hold;
                if hold {
                    self.io.pause_receive(connection.socket.id);
                } else {
                    self.io.resume_receive(connection.socket.id);
                }
            }
            match connection.take_send(|| self.spare.pop().unwrap_or_default()) {
                Sends::Nothing => {}
                Sends::Later => self.io.expect_sent(connection.socket.id),
                Sends::Now(send) => {
                    self.stats.output_bytes.add(connection.sending.bytes as u64);
                    self.stats.writes.add(1);
                    if send.is_awaited {
                        self.io.send(connection.socket.id, send.bytes);
                    } else {
                        self.io.send_quiet(connection.socket.id, send.bytes);
                    }
                }
            }
            if self.weighing.is_on {
                self.weigh(index);
            }
            self.close_if_over(index);
        }
        self.touched.extend(untouched);
        if self.weighing.is_on {
            self.end_weighing();
        }
    }

    /// Closes a connection that runs nothing more and has nothing left to send.
    fn close_if_over(&mut self, index: u32) {
        let Some(connection) = &self.connections[index as usize] else { return };
        match connection.fate() {
            Fate::Stays => {}
            Fate::EndsWhenSent => self.io.expect_sent(connection.socket.id),
            Fate::Over => self.close(index),
        }
    }

    /// Closes a connection at once.
    fn close(&mut self, index: u32) {
        self.stop_waiting(index);
        let Some(mut connection) = self.connections[index as usize].take() else { return };
        if connection.state == State::Paused {
            self.stats.paused.sub(1);
        }
        if let Some(transactions::Held::Pause(answer)) = connection.socket.held.take() {
            self.tell_paused(&answer);
        }
        connection.session.leave_channels(self.executor.keyspace());
        connection.session.set_monitors(self.executor.keyspace(), false);
        connection.session.leave_effects(self.executor.keyspace());
        connection.session.untrack(self.executor.keyspace());
        connection.input.discard(&mut self.io);
        self.io.close(connection.socket.id);
        self.server.client_left(&connection.session.client);
        if !connection.ahead.is_empty() {
            self.free_output(&mut connection.ahead);
        }
        self.recycle(connection.output);
    }

    fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && buffer.capacity() <= SPARE_BUFFER_BYTES_MAX && self.spare.len() < SPARE_BUFFERS_MAX
        {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}
