//! Processes the events of the event loop, and messages to a single connection.

use pantala_engine::client::ReplyMode;
use pantala_runtime::{ConnId, Event, EventLoop};

use super::following::continue_stream_to_follower;
use super::frozen::Deferred;
use super::{Abandon, Clients, State};
use crate::reactor::Happened;

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Processes all events that the loop has reported.
    pub fn handle_all(&mut self, events: &mut Vec<Event>) {
        for at in 0..events.len() {
            self.reactor.fetch_ahead(&events[at + 1..], |event| event.conn().map(ConnId::index));
            // Most iterations of the loop report few events. Replacing each event then costs less
            // than `Vec::drain`.
            self.handle(std::mem::replace(&mut events[at], Event::Woken));
        }
        events.clear();
    }

    /// Processes one event.
    #[inline]
    pub fn handle(&mut self, event: Event) {
        let happened = self.reactor.handle(event);
        self.after(happened);
    }

    /// Acts on the outcome that the reactor has returned for an event.
    #[inline]
    pub fn after(&mut self, happened: Happened) {
        match happened {
            Happened::Nothing => {}
            Happened::Changed(index) => {
                if self.limits.accounting.is_on | self.has_followers {
                    after_change(self, index);
                }
            }
            Happened::Failed(index) => self.close(index),
        }
    }

    /// Sends a `MONITOR` line to the connection with the token (identifier) `wanted`, unless the
    /// connection has stopped monitoring or `CLIENT REPLY` suppresses its replies.
    pub fn show(&mut self, wanted: u64, line: &[u8]) {
        let Some(index) = self.reactor.find_token(wanted) else { return };
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        if connection.session.monitors && connection.state != State::Closing {
            let output = match connection.session.reply_mode {
                ReplyMode::Off | ReplyMode::Skip => return,
                _ if connection.session.in_exec => &mut connection.held_messages,
                ReplyMode::On => &mut connection.output,
                // `CLIENT REPLY SKIP` is still running. Its own line is sent.
                ReplyMode::SkipNext => &mut connection.confirmed,
            };
            output.extend_from_slice(line);
            if !self.closed_over_limit(index, line.len()) {
                self.reactor.touch(index);
            }
        }
    }

    /// Closes the connection with the token `wanted`, if the connection still belongs to the client
    /// with the ID `client`.
    pub fn kill(&mut self, wanted: u64, client: u64) {
        let Some(index) = self.reactor.find_token(wanted) else { return };
        if self.frozen.holds(index) {
            return self.frozen.defer(Deferred::Kill(wanted, client));
        }
        if self.reactor.connections[index as usize].as_ref().is_some_and(|c| c.session.client.id == client) {
            self.close(index);
        }
    }
}

#[cold]
fn after_change<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    if clients.limits.accounting.is_on {
        clients.account(index);
    }
    continue_stream_to_follower(clients, index);
}
