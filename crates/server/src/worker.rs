//! A worker: a thread with one event loop. It owns connections, and it is the *home* of some
//! shards, whose periodic work it does. Startup creates one worker per thread and calls
//! [`Worker::run`].
//!
//! | layer | owns | uses |
//! | --- | --- | --- |
//! | [reactor](crate::reactor) | event loop, sockets, ready connections | [`pantala_session`] |
//! | [clients](crate::clients) | output besides replies, limits, closing | the reactor |
//! | [dispatch](crate::dispatch) | transactions, scripts, requests | the clients |
//! | [windows](crate::windows) | parsing, prefetching and running commands | the dispatcher |
//! | [control](crate::control) | periodic work, settings | the dispatcher |
//! | this file | the turn | all layers |
//!
//! A turn is one iteration of the event loop:
//!
//! 1. *poll*: submits the sends of the previous turn, and waits for events ([`pantala_runtime`]);
//! 2. *messages*: receives messages from other workers ([`pantala_engine::message`]): replies to
//!    commands that waited for a shard, shards that this worker has requested, and new sockets;
//! 3. *windows*: parses commands from all connections with input, prefetches the data that the
//!    commands need, and runs the commands in order;
//! 4. *finish*: sends the replies, with one send per connection. Unparsed input stays for the next
//!    turn.
//!
//! A few times a second, the worker also does periodic work: timeouts, limits and expired keys.
//! While a long script runs, the dispatcher runs further turns from within the script ([`Above`]).
//! Events that such a turn can't process are deferred to the end of the script.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::ownership::Ownership;
use pantala_runtime::{Event, EventLoop};

use crate::clients::Clients;
use crate::clients::moving::hand_over_leaving;
use crate::control::Control;
use crate::dispatch::{Above, Dispatcher};
use crate::host::Server;
use crate::turns::TurnTimer;
use crate::windows::Windows;

/// A worker; see the head of this module.
pub struct Worker<'s, L: EventLoop> {
    dispatcher: Dispatcher<'s, L>,
    windows: Windows,
    control: Rc<Control>,
    turn: TurnTimer,
}

impl<'s, L: EventLoop + 's> Worker<'s, L> {
    /// Creates a worker. The calling thread must have created the event loop `io`.
    pub fn new(server: &'s Server, number: u32, io: L) -> Self {
        let control = Rc::new(Control::new(server));
        let above = Box::new(TurnWithin { windows: Windows::default(), control: Rc::clone(&control) });
        let dispatcher = Dispatcher::new(server, number, io, above);
        Worker { dispatcher, windows: Windows::default(), control, turn: TurnTimer::default() }
    }

    /// Starts to accept connections from the server's current listening sockets. Does nothing if
    /// another worker accepts the connections.
    ///
    /// # Errors
    /// The event loop rejects the sockets, or the process can't open more file descriptors.
    pub fn listen(&mut self) -> std::io::Result<()> {
        self.dispatcher.clients.reactor.listen()
    }

    /// Runs until the server stops.
    ///
    /// # Errors
    /// The event loop can't wait for events, so the worker can't continue.
    pub fn run(&mut self) -> std::io::Result<()> {
        let mut events: Vec<Event> = Vec::new();
        while !self.dispatcher.is_stopping {
            self.poll(&mut events)?;
            let Worker { dispatcher, windows, control, .. } = self;
            // A client that has received the reply to `CONFIG SET` must find the new settings on
            // every worker. So the settings are reloaded before any command of this turn.
            control.reload_if_changed(dispatcher);
            wait_while_asleep(dispatcher);
            dispatcher.clients.handle_all(&mut events);
            evict_if_due(dispatcher);
            if dispatcher.memory.has_pending_work() | !dispatcher.clients.garbage.is_empty() {
                dispatcher.memory.serve_deferred(&mut dispatcher.clients);
            }
            run_commands(dispatcher, windows);
            end_turn(dispatcher, control, true);
        }
        let closed = self.dispatcher.clients.close_all();
        let Clients { executor, reactor, .. } = &mut self.dispatcher.clients;
        executor.recorder().flush_stream();
        reactor.server.keyspace().journal().rest(reactor.number);
        closed
    }

    /// Polls for events. Waits only if there is no other work to do.
    fn poll(&mut self, events: &mut Vec<Event>) -> std::io::Result<()> {
        let Worker { dispatcher, control, turn, .. } = self;
        let timeout = if dispatcher.clients.replay_deferred() || dispatcher.has_pending_work() {
            Duration::ZERO
        } else {
            let wait_ms = control.next_cron_ms() - dispatcher.clients.reactor.clock.turn_ran_ms;
            let wait_us = dispatcher.wait_us(wait_ms.max(1).saturating_mul(1000));
            control.wait_for_walk(Duration::from_micros(wait_us as u64))
        };
        let (server, number) = (dispatcher.clients.reactor.server, dispatcher.clients.reactor.number);
        dispatcher.clients.executor.recorder().flush_stream();
        let may_sleep = timeout != Duration::ZERO && server.port(number).mailbox().try_sleep();
        let journal = server.keyspace().journal();
        if !dispatcher.clients.reactor.unsynced.is_empty() {
            journal.demand();
        }
        if may_sleep {
            journal.rest(number);
            turn.end(&dispatcher.clients.reactor.stats.longest);
        }
        dispatcher.clients.reactor.poll(Some(if may_sleep { timeout } else { Duration::ZERO }), events)?;
        turn.end(&dispatcher.clients.reactor.stats.longest);
        turn.begin(dispatcher.stopwatch.times_turns);
        journal.attend(number);
        Ok(())
    }
}

/// Pause between two checks of whether `DEBUG SLEEP` has ended.
const ASLEEP_PAUSE: Duration = Duration::from_micros(500);

/// Waits while another worker runs `DEBUG SLEEP`.
#[inline]
fn wait_while_asleep<L: EventLoop>(dispatcher: &Dispatcher<'_, L>) {
    while dispatcher.clients.reactor.server.keyspace().tuning.is_asleep.load(Relaxed) {
        std::thread::sleep(ASLEEP_PAUSE);
    }
}

/// Closes clients if the memory usage of all clients had reached its limit at the end of the
/// previous turn (`maxmemory-clients`).
#[inline]
fn evict_if_due<L: EventLoop>(dispatcher: &mut Dispatcher<'_, L>) {
    let Clients { limits, reactor, .. } = &mut dispatcher.clients;
    limits.evict_if_due(reactor.server, reactor.clock.now_ms);
}

/// Processes messages from other workers, timeouts and the end of a pause. Then runs the commands
/// of connections.
#[inline(always)]
fn run_commands<L: EventLoop>(dispatcher: &mut Dispatcher<'_, L>, windows: &mut Windows) {
    dispatcher.receive_messages();
    dispatcher.clients.time_out();
    dispatcher.resume_paused();
    windows.run_ready(dispatcher);
}

/// Ends a turn: does periodic work, and sends invalidations and replies. `is_whole` is false for a
/// turn within a script.
#[inline(always)]
fn end_turn<L: EventLoop>(dispatcher: &mut Dispatcher<'_, L>, control: &Control, is_whole: bool) {
    dispatcher.clients.reactor.clock.end_turn(dispatcher.clients.reactor.server);
    control.cron_if_due(dispatcher);
    control.walk_if_due(dispatcher);
    dispatcher.send_prefix_invalidations();
    if is_whole {
        dispatcher.memory.publish_client_memory_if_over(&mut dispatcher.clients);
        control.balance_if_due(dispatcher);
    }
    // `CONFIG SET` may have run in this turn. Settings that affect the data are applied before the
    // reply of `CONFIG SET` is sent.
    control.reload_if_changed(dispatcher);
    if is_whole {
        // The effects (propagated changes) of the turn must be in the journal before the replies
        // are sent.
        dispatcher.clients.executor.recorder().flush_stream();
    }
    dispatcher.clients.finish_turn();
    if is_whole {
        hand_over_leaving(&mut dispatcher.clients);
    }
}

/// Runs turns within scripts.
struct TurnWithin {
    windows: Windows,
    control: Rc<Control>,
}

impl<'s, L: EventLoop> Above<'s, L> for TurnWithin {
    fn turn_within(&mut self, dispatcher: &mut Dispatcher<'s, L>, owned: &mut [Ownership]) {
        // If this poll fails, so does the poll after the script, and [`Worker::run`] returns its
        // error.
        let mut events = Vec::new();
        if dispatcher.clients.reactor.poll(Some(Duration::ZERO), &mut events).is_err() {
            return;
        }
        self.control.reload_if_changed(dispatcher);
        dispatcher.clients.handle_or_defer(events);
        evict_if_due(dispatcher);
        run_commands(dispatcher, &mut self.windows);
        dispatcher.reject_waiting(owned);
        // Keys that the script itself has changed are invalidated later, when its shards are
        // released.
        end_turn(dispatcher, &self.control, false);
    }
}
