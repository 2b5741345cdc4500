//! The frozen connection, whose script is busy.
//!
//! A script is *busy* when it has run for longer than `busy-reply-threshold`. The worker then runs
//! turns of its event loop within the script ([`crate::dispatch`]). During these turns, the
//! script's connection is *frozen*: its input is not parsed, its output neither grows nor is
//! sent, and it is not closed. Events and messages for the frozen connection are kept as
//! [`Deferred`] until its script ends (the connection *thaws*) or another connection freezes.
//!
//! Output for the connection is deferred up to its hard output limit. If the output exceeds the
//! limit, it is dropped, and the connection will be closed. The soft limit and `maxmemory-clients`
//! apply again when the script has ended.

use pantala_engine::tracking::Notification;
use pantala_runtime::{Event, EventLoop, Outgoing};

use super::output::output_limit;
use super::{Abandon, Clients};
use crate::reactor::Reactor;
use crate::scripting::Kind;

/// A deferred event or message for a frozen connection.
pub enum Deferred {
    /// An event of the loop. There are few such events, because receiving from the connection is
    /// paused.
    Event(Event),
    /// A message to be sent to the connection with this token (identifier).
    /// [`Clients::defer_output`] limits the total length of these messages and of invalidations.
    Output(u64, Outgoing),
    /// An invalidation.
    Notification(Notification),
    /// The output deferred for the connection with this token has exceeded the limit and was
    /// dropped.
    OverLimit(u64),
    /// `CLIENT KILL`: the token, and the client's ID.
    Kill(u64, u64),
    /// The stream of effects has more bytes for the follower (replica) with this token.
    Effects(u64),
}

impl Deferred {
    /// Returns whether this item is output for the connection with the token `wanted`.
    fn is_output_of(&self, wanted: u64) -> bool {
        match self {
            Deferred::Output(token, _) => *token == wanted,
            Deferred::Notification(notification) => notification.connection == wanted,
            Deferred::Event(_) | Deferred::OverLimit(_) | Deferred::Kill(..) | Deferred::Effects(_) => false,
        }
    }
}

/// The frozen connection and its script.
struct FrozenScript {
    /// Index of the frozen connection.
    index: u32,
    /// Whether the connection runs a script or calls a function.
    kind: Kind,
    /// Output deferred for the connection, bytes.
    deferred_bytes: usize,
    /// Whether the deferred output has exceeded the limit.
    is_over_limit: bool,
}

/// The frozen connection, if any, and the deferred events and messages.
#[derive(Default)]
pub struct Frozen {
    script: Option<FrozenScript>,
    deferred: Vec<Deferred>,
}

impl Frozen {
    /// Returns whether the connection is frozen, that is, whether this turn runs within its script.
    #[inline]
    pub fn holds(&self, index: u32) -> bool {
        self.script.as_ref().is_some_and(|script| script.index == index)
    }

    /// Returns whether this turn is within a script.
    pub fn is_within_script(&self) -> bool {
        self.script.is_some()
    }

    /// Returns whether any events or messages are deferred.
    pub fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Returns the busy error if this turn is within a script. Clients get this error if they send
    /// another script or need the script's shards.
    pub fn reply(&self) -> Option<&'static str> {
        self.script.as_ref().map(|script| script.kind.busy())
    }

    /// Defers an event or a message for the frozen connection.
    pub fn defer(&mut self, deferred: Deferred) {
        self.deferred.push(deferred);
    }

    /// Defers an event if it is for the frozen connection. Otherwise returns it, and the caller
    /// must process it.
    fn defer_event<L: EventLoop, H>(&mut self, reactor: &Reactor<'_, L, H>, event: Event) -> Option<Event> {
        let Some(script) = &self.script else { return Some(event) };
        let conn = match &event {
            Event::Data { conn, .. }
            | Event::Eof { conn }
            | Event::Failed { conn, .. }
            | Event::Sent { conn, result: Err(_), .. } => *conn,
            Event::Sent { .. } | Event::Accepted { .. } | Event::Woken => return Some(event),
        };
        if reactor.find(conn) != Some(script.index) {
            return Some(event);
        }
        self.deferred.push(Deferred::Event(event));
        None
    }
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Freezes a connection whose script is busy, and makes all other connections ready.
    pub fn freeze(&mut self, index: u32, kind: Kind) {
        self.frozen.script = Some(FrozenScript { index, kind, deferred_bytes: 0, is_over_limit: false });
        if let Some(connection) = &self.reactor.connections[index as usize]
            && !connection.socket.is_receive_paused
        {
            self.reactor.io.pause_receive(connection.socket.id);
        }
        self.reactor.make_others_ready(index);
        // Another connection may have been frozen until now. Its deferred events must be processed
        // before new ones arrive.
        self.replay_deferred();
    }

    /// Thaws the connection, because its script has ended.
    pub fn thaw(&mut self) {
        let Some(script) = self.frozen.script.take() else { return };
        if let Some(connection) = &self.reactor.connections[script.index as usize]
            && !connection.socket.is_receive_paused
        {
            self.reactor.io.resume_receive(connection.socket.id);
        }
    }

    /// Processes events in a turn within a script. Defers the events of the frozen connection.
    pub fn handle_or_defer(&mut self, events: Vec<Event>) {
        for event in events {
            if let Some(event) = self.frozen.defer_event(&self.reactor, event) {
                self.handle(event);
            }
        }
    }

    /// Defers output of `bytes` bytes for the frozen connection. If the output limit is then
    /// exceeded, drops all output deferred for the connection.
    pub fn defer_output(&mut self, output: Deferred, bytes: usize) {
        let Some(script) = &mut self.frozen.script else { return };
        let Some(connection) = &self.reactor.connections[script.index as usize] else { return };
        if script.is_over_limit {
            return;
        }
        script.deferred_bytes += bytes;
        let hard_bytes = output_limit(connection, &self.reactor.settings).hard_bytes;
        script.is_over_limit =
            hard_bytes > 0 && (connection.pending_bytes() + script.deferred_bytes) as u64 > hard_bytes;
        if script.is_over_limit {
            let wanted = connection.socket.token();
            self.frozen.deferred.retain(|deferred| !deferred.is_output_of(wanted));
            self.frozen.deferred.push(Deferred::OverLimit(wanted));
        } else {
            self.frozen.deferred.push(output);
        }
    }

    /// Processes deferred events and messages. Returns whether there were any.
    #[inline]
    pub fn replay_deferred(&mut self) -> bool {
        let is_there = !self.frozen.deferred.is_empty();
        if is_there {
            self.replay_all();
        }
        is_there
    }

    #[cold]
    fn replay_all(&mut self) {
        for deferred in std::mem::take(&mut self.frozen.deferred) {
            match deferred {
                Deferred::Event(event) => {
                    if let Some(event) = self.frozen.defer_event(&self.reactor, event) {
                        self.handle(event);
                    }
                }
                Deferred::Kill(wanted, client) => self.kill(wanted, client),
                Deferred::Notification(notification) => self.send_invalidations(vec![notification]),
                Deferred::Effects(wanted) => self.follow(wanted),
                Deferred::Output(wanted, output) => {
                    if let Some(index) = self.reactor.find_token(wanted) {
                        self.add_output(index, &output);
                    }
                }
                Deferred::OverLimit(wanted) => match self.reactor.find_token(wanted) {
                    Some(index) if self.frozen.holds(index) => self.frozen.deferred.push(Deferred::OverLimit(wanted)),
                    Some(index) => self.close_over_limit(index),
                    None => {}
                },
            }
        }
    }
}
