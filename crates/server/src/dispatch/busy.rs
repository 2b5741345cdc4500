//! A script that runs for longer than `busy-reply-threshold` doesn't have its worker stand still: every few milliseconds its hook
//! has the worker do a *turn within*, which serves the other connections.
//!
//! Why that is sound:
//!
//! * The connection that runs the script is *frozen*: nothing of it is parsed, sent, closed or written to; what comes for it waits in [`Deferred`]
//!   until the script has ended and the worker is back at its loop, or another script begins to be busy before that. What is to be sent to it waits there up to its hard output limit:
//!   beyond, nothing more is kept and it is closed instead. (The soft limit, and `maxmemory-clients`, look at it again when its script has ended.)
//! * The window that the script stands in is given up: what is behind the script in it is parsed again, that of other connections in the turn
//!   within, that of the script's own when it has ended. So no position in any input is held across a turn within, but that of the frozen one.
//! * No script runs in a turn within (it gets `-BUSY`), so the Lua state isn't entered again; and the hook is called between instructions of Lua,
//!   never in the midst of a command, so the executor isn't either.
//! * The periodic work of a turn within is that of any turn, but for the frozen connection and the Lua states, which it passes over.
//! * What wants a shard that the script holds finds its gate shut, here as on other workers: the hook takes the requests from the gates and
//!   answers them with `-BUSY` ([`pantala_engine::executor::Executor::refuse_waiting`]).
//!
//! Before that, and with a threshold of 0, there are no turns within, but every few milliseconds too the hook hands on what the worker has of shards that the script doesn't
//! hold ([`Mail::hand_on_shards`](super::mail::Mail::hand_on_shards)). It touches no connection: answers, messages and requests that were set back wait for the next turn, within or not.

use pantala_engine::command::Command;
use pantala_engine::ownership::Ownership;
use pantala_engine::tracking::News;
use pantala_resp::ArgRange;
use pantala_runtime::{Event, EventLoop, Outgoing};

use super::Dispatcher;
use super::run::output_limit;
use super::window::{Entry, What, Window};
use crate::scripting::Kind;

/// Between two turns within, ms, and before that between two times that shards are handed on.
pub(super) const TURN_EVERY_MS: i64 = 5;

/// A window in the midst of which a command runs that may be a script.
pub(super) struct Suspended {
    pub(super) window: Window,
    /// Which of its commands runs.
    pub(super) at: usize,
    /// The commands behind that one aren't to be run: they were or will be parsed again.
    pub(super) is_given_up: bool,
}

/// What came for a frozen connection.
pub(super) enum Deferred {
    /// From the loop. Nothing is received meanwhile, so these are few.
    Event(Event),
    /// A message to be sent to it: by the worker's token of it. Bounded by [`Dispatcher::defer_output`], as is the next.
    Output(u64, Outgoing),
    /// What has become invalid for it.
    News(News),
    /// There would have been more of these two than its output limit allows: the token.
    OverLimit(u64),
    /// `CLIENT KILL`: the token, and the number of the client.
    Kill(u64, u64),
}

impl Deferred {
    /// Whether it is to be sent to a connection.
    fn is_output_of(&self, wanted: u64) -> bool {
        match self {
            Deferred::Output(token, _) => *token == wanted,
            Deferred::News(news) => news.connection == wanted,
            Deferred::Event(_) | Deferred::OverLimit(_) | Deferred::Kill(..) => false,
        }
    }
}

/// A script that has run for too long: this turn is one within it.
struct BusyScript {
    /// Index of the frozen connection.
    index: u32,
    kind: Kind,
    suspended: Option<Suspended>,
    /// Bytes of output that were deferred for it.
    deferred_bytes: usize,
    /// They were too many.
    is_over_limit: bool,
}

/// See the head of this module.
#[derive(Default)]
pub(super) struct Busy {
    /// The window that the running command stands in, if that may be a script.
    suspended: Option<Suspended>,
    script: Option<Box<BusyScript>>,
    /// What came for the connection of such a script meanwhile.
    deferred: Vec<Deferred>,
}

impl Busy {
    /// Whether a connection's own script runs, and this turn is one within it.
    #[inline]
    pub(super) fn is_frozen(&self, index: u32) -> bool {
        self.script.as_ref().is_some_and(|script| script.index == index)
    }

    /// Whether this turn is one within a script.
    pub(super) fn is_within(&self) -> bool {
        self.script.is_some()
    }

    /// The answer to a client that would run another script in a turn within one.
    pub(super) fn reply(&self) -> Option<&'static str> {
        self.script.as_ref().map(|script| script.kind.busy())
    }

    /// Keeps something that came for a frozen connection.
    pub(super) fn defer(&mut self, deferred: Deferred) {
        self.deferred.push(deferred);
    }
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Runs a command of the window that may be a script. Gives the window back, or nothing when it was given up meanwhile.
    #[cold]
    pub(super) fn run_suspended(&mut self, window: Window, at: usize, command: &'static Command) -> Option<Window> {
        let Entry { connection, db, begin, end, is_inline, first_arg, args, .. } = window.entries[at];
        let entry = Entry { connection, db, begin, end, is_inline, first_arg, args, what: What::Local(command) };
        let ranges: Vec<ArgRange> = window.ranges_of(&entry).to_vec();
        self.busy.suspended = Some(Suspended { window, at, is_given_up: false });
        self.run_entry(&entry, &ranges);
        let Suspended { window, at, is_given_up } = self.busy.suspended.take()?;
        if !is_given_up {
            return Some(window);
        }
        let is_own = |later: &Entry| later.connection == entry.connection;
        if let Some(next) = window.entries[at + 1..].iter().position(is_own)
            && let Some(connection) = &mut self.reactor.connections[entry.connection as usize]
        {
            let later = window.of_connection(entry.connection, at + 1 + next);
            connection.input.rewind(&mut self.reactor.io, later);
            self.reactor.make_ready(entry.connection);
        }
        None
    }

    /// The script of a connection has run for too long: freezes the connection, and has all others be looked at.
    pub(super) fn begin_busy(&mut self, index: u32, kind: Kind) {
        let mut suspended = self.busy.suspended.take();
        if let Some(suspended) = &mut suspended {
            suspended.is_given_up = true;
            for (at, entry) in suspended.window.entries.iter().enumerate() {
                if entry.connection != index
                    && let Some(connection) = &mut self.reactor.connections[entry.connection as usize]
                {
                    connection.input.rewind(&mut self.reactor.io, suspended.window.of_connection(entry.connection, at));
                }
            }
        }
        self.busy.script =
            Some(Box::new(BusyScript { index, kind, suspended, deferred_bytes: 0, is_over_limit: false }));
        if let Some(connection) = &self.reactor.connections[index as usize]
            && !connection.socket.is_held
        {
            self.reactor.io.pause_receive(connection.socket.id);
        }
        self.reactor.make_others_ready(index);
        // What came for a connection that was frozen before in this turn comes before what it gets in the turns within.
        self.replay_deferred();
    }

    /// One turn within a script, which holds these shards.
    pub(super) fn turn_within(&mut self, owned: &mut [Ownership]) {
        let (Some(why), Some(mut above)) = (self.busy.reply(), self.above.take()) else { return };
        // The effects of other commands are no part of the script's unit, which is stamped when it ends.
        let unit = self.executor.suspend_unit();
        self.executor.flush_stream();
        self.executor.keyspace().journal().attend(self.reactor.number);
        self.executor.refuse_waiting(owned, why);
        above.turn_within(self, owned);
        self.executor.resume_unit(unit);
        self.above = Some(above);
    }

    /// Answers what waits for shards that the script of this turn holds.
    pub fn refuse_waiting(&mut self, owned: &mut [Ownership]) {
        if let Some(why) = self.busy.reply() {
            self.executor.refuse_waiting(owned, why);
        }
    }

    /// Handles events in a turn within a script; those of its connection wait.
    pub fn handle_or_defer(&mut self, events: Vec<Event>) {
        for event in events {
            if let Some(event) = self.deferred_event(event) {
                self.handle(event);
            }
        }
    }

    /// Whether a connection's own script runs, and this turn is one within it.
    pub fn is_frozen(&self, index: u32) -> bool {
        self.busy.is_frozen(index)
    }

    /// Whether this turn is one within a script.
    pub fn is_within_script(&self) -> bool {
        self.busy.is_within()
    }

    /// The script has ended.
    pub(super) fn end_busy(&mut self) {
        let Some(busy) = self.busy.script.take() else { return };
        self.busy.suspended = busy.suspended;
        if let Some(connection) = &self.reactor.connections[busy.index as usize]
            && !connection.socket.is_held
        {
            self.reactor.io.resume_receive(connection.socket.id);
        }
    }

    /// Puts an event of the frozen connection off: then there is `None` left to be done.
    pub fn deferred_event(&mut self, event: Event) -> Option<Event> {
        let Some(busy) = &self.busy.script else { return Some(event) };
        let conn = match &event {
            Event::Data { conn, .. }
            | Event::Eof { conn }
            | Event::Failed { conn, .. }
            | Event::Sent { conn, result: Err(_), .. } => *conn,
            Event::Sent { .. } | Event::Accepted { .. } | Event::Woken => return Some(event),
        };
        if self.reactor.find(conn) != Some(busy.index) {
            return Some(event);
        }
        self.busy.deferred.push(Deferred::Event(event));
        None
    }

    /// Keeps what is to be sent to the frozen connection, so many bytes, unless that is more than its output limit allows.
    pub(super) fn defer_output(&mut self, output: Deferred, bytes: usize) {
        let Some(busy) = &mut self.busy.script else { return };
        let Some(connection) = &self.reactor.connections[busy.index as usize] else { return };
        if busy.is_over_limit {
            return;
        }
        busy.deferred_bytes += bytes;
        let hard_bytes = output_limit(connection, &self.reactor.settings).hard_bytes;
        busy.is_over_limit = hard_bytes > 0 && (connection.pending_bytes() + busy.deferred_bytes) as u64 > hard_bytes;
        if busy.is_over_limit {
            let wanted = connection.socket.token();
            self.busy.deferred.retain(|deferred| !deferred.is_output_of(wanted));
            self.busy.deferred.push(Deferred::OverLimit(wanted));
        } else {
            self.busy.deferred.push(output);
        }
    }

    /// Handles what came for a connection while it was frozen. `false`: nothing did.
    #[inline]
    pub fn replay_deferred(&mut self) -> bool {
        let is_there = !self.busy.deferred.is_empty();
        if is_there {
            self.replay_all();
        }
        is_there
    }

    #[cold]
    fn replay_all(&mut self) {
        for deferred in std::mem::take(&mut self.busy.deferred) {
            match deferred {
                Deferred::Event(event) => {
                    if let Some(event) = self.deferred_event(event) {
                        self.handle(event);
                    }
                }
                Deferred::Kill(wanted, client) => self.kill(wanted, client),
                Deferred::News(news) => self.tell_all(vec![news]),
                Deferred::Output(wanted, output) => {
                    if let Some(index) = self.reactor.find_token(wanted) {
                        self.hand(index, &output);
                    }
                }
                Deferred::OverLimit(wanted) => match self.reactor.find_token(wanted) {
                    Some(index) if self.busy.is_frozen(index) => self.busy.deferred.push(Deferred::OverLimit(wanted)),
                    Some(index) => self.close_over_limit(index),
                    None => {}
                },
            }
        }
    }
}
