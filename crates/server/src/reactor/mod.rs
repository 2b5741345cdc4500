//! The reactor: owns a worker's event loop, its sockets, and the lists of connections that a turn
//! must process. A turn is one iteration of the event loop.
//!
//! The reactor doesn't interpret commands. It moves bytes between sockets and connections
//! ([`pantala_session`]), and returns the outcome of each event ([`Happened`]) to the layer above
//! ([`crate::clients`]). That layer decides when a connection is closed. It first removes the
//! references to the connection that other parts of the worker hold, and then closes the socket
//! ([`Reactor::shut`]).
//!
//! | list | connections that | emptied |
//! | --- | --- | --- |
//! | ready | may have something to parse | when the turn's windows are parsed |
//! | touched | took part in the turn | when the turn ends, by [`Reactor::finish`], which sends |
//! | listed | have messages to send, or a deferred TLS handshake | [`SENT_TO_PER_TURN`] a turn |
//! | leaving | are to [move](moving) to another worker | when they have moved, or give up moving |

mod clock;
mod connection;
mod handshaking;
pub mod moving;
mod sockets;
mod tls;
mod unsynced;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_dict::prefetch_all;
use pantala_runtime::{ConnId, Event, EventLoop};
use pantala_session::State;
use pantala_session::output::Ahead;
use pantala_session::turn::{Fate, Sends};

pub use clock::Clock;
pub use connection::{Connection, Socket, index_of, kind_of, token, via};
use handshaking::Handshakes;
pub use handshaking::resume_handshake;
use moving::Leaving;
use sockets::Listeners;
pub use tls::Layer;
pub use unsynced::hold_unsynced;

use crate::config::Settings;
use crate::host::Server;
use crate::stats::WorkerStats;

/// Maximum number of reply buffers kept for reuse.
const SPARE_BUFFERS_MAX: usize = 256;
/// Maximum capacity of a reply buffer kept for reuse, bytes.
const SPARE_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Maximum number of listed connections whose messages one turn sends. Sending to this many
/// connections takes about a millisecond.
const SENT_TO_PER_TURN: usize = 128;

/// While a list of connections is processed, [`Reactor::fetch_ahead`] prefetches the connection
/// that is this number of places ahead. Processing this many connections takes a few hundred
/// nanoseconds.
const FETCHED_AHEAD: usize = 4;

/// The outcome of an event, for the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Nothing to do.
    Nothing,
    /// The buffers of the connection at this index have changed.
    Changed(u32),
    /// The connection at this index must be closed.
    Failed(u32),
}

/// The reactor of a worker. `H` is the type of [`Socket::shard_work`].
pub struct Reactor<'s, L: EventLoop, H> {
    /// The worker's number.
    pub number: u32,
    /// The state that all workers share.
    pub server: &'s Server,
    /// The settings that this worker has applied.
    pub settings: Arc<Settings>,
    /// The event loop.
    pub io: L,
    /// Connections, by index.
    pub connections: Vec<Option<Connection<H>>>,
    /// The time that commands see.
    pub clock: Clock,
    /// The worker's statistics.
    pub stats: &'s WorkerStats,
    ready: Vec<u32>,
    touched: Vec<u32>,
    listed: VecDeque<u32>,
    leaving: Vec<Leaving>,
    /// Connections whose replies wait for a sync.
    pub unsynced: Vec<u32>,
    /// Spare output buffers for connections that have none.
    pub spare: Vec<Vec<u8>>,
    listeners: Listeners,
    handshakes: Handshakes,
}

impl<'s, L: EventLoop, H> Reactor<'s, L, H> {
    /// Creates a reactor on an event loop that this thread created.
    pub fn new(server: &'s Server, number: u32, io: L) -> Self {
        Reactor {
            number,
            server,
            settings: server.config().settings(),
            io,
            connections: Vec::new(),
            clock: Clock::new(server),
            stats: server.worker_stats(number),
            ready: Vec::new(),
            touched: Vec::new(),
            listed: VecDeque::new(),
            leaving: Vec::new(),
            unsynced: Vec::new(),
            spare: Vec::new(),
            listeners: Listeners::default(),
            handshakes: Handshakes::default(),
        }
    }

    /// Waits for events, and reads the clock.
    ///
    /// # Errors
    /// The loop can't wait for events.
    #[inline]
    pub fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> std::io::Result<()> {
        self.io.poll(timeout, events)?;
        self.clock.begin_turn(self.server);
        self.stats.turns.add(1);
        Ok(())
    }

    /// Returns whether any connections have input to parse, messages to send or a deferred
    /// handshake, or are leaving.
    #[inline]
    pub fn has_pending_work(&self) -> bool {
        !self.ready.is_empty() | !self.listed.is_empty() | !self.leaving.is_empty()
    }

    /// Returns whether any connections have messages to send or a deferred handshake.
    pub fn has_listed(&self) -> bool {
        !self.listed.is_empty()
    }

    /// Marks a connection as one that may have something to parse.
    #[inline]
    pub fn make_ready(&mut self, index: u32) {
        if let Some(connection) = &mut self.connections[index as usize]
            && !connection.is_ready
        {
            connection.is_ready = true;
            self.ready.push(index);
        }
    }

    /// Adds all open connections with input, except `but`, to the list of ready connections.
    /// Ignores the flag `is_ready`, because it is also set for connections that a caller has taken
    /// ([`Reactor::take_ready`]) and not processed yet.
    pub fn make_others_ready(&mut self, but: u32) {
        for (other, connection) in self.connections.iter_mut().enumerate() {
            let Some(connection) = connection else { continue };
            if other != but as usize && connection.state == State::Open && connection.input.waiting_bytes() > 0 {
                connection.is_ready = true;
                self.ready.push(other as u32);
            }
        }
    }

    /// Takes the connections that may have something to parse.
    #[inline]
    pub fn take_ready(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ready)
    }

    /// Begins the turn of a connection from [`Reactor::take_ready`], and adds it to the touched
    /// list. Returns whether the connection still exists.
    #[inline]
    pub fn begin(&mut self, index: u32) -> bool {
        let Some(connection) = &mut self.connections[index as usize] else { return false };
        connection.is_ready = false;
        if !connection.socket.is_touched {
            connection.socket.is_touched = true;
            self.touched.push(index);
        }
        true
    }

    /// Keeps the memory of a list that [`Reactor::take_ready`] has returned, for later lists. The
    /// caller has emptied the list.
    #[inline]
    pub fn keep_ready(&mut self, emptied: Vec<u32>) {
        // If the current list is not empty, it stays: it has the connections that have become ready
        // meanwhile, for example by replies from other workers.
        if self.ready.is_empty() {
            self.ready = emptied;
        }
    }

    /// Adds a connection to the touched list, so that the end of the turn calls [`Reactor::finish`]
    /// for it.
    #[inline]
    pub fn touch(&mut self, index: u32) {
        if let Some(connection) = &mut self.connections[index as usize]
            && !connection.socket.is_touched
        {
            connection.socket.is_touched = true;
            self.touched.push(index);
        }
    }

    /// Lists a connection that has only messages to send.
    pub fn list(&mut self, index: u32) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
        if !connection.socket.is_touched && !connection.socket.is_listed {
            connection.socket.is_listed = true;
            self.listed.push_back(index);
        }
    }

    /// Moves the first listed connections to the touched list. So their messages are sent, and
    /// their handshakes continued, in this turn.
    #[inline]
    pub fn touch_listed(&mut self) {
        for _ in 0..SENT_TO_PER_TURN {
            let Some(index) = self.listed.pop_front() else { return };
            // The connection may have been closed, and another one may have this index by now. The
            // other one's pending output is then sent, which does no harm.
            if let Some(connection) = &mut self.connections[index as usize] {
                connection.socket.is_listed = false;
                self.touch(index);
            }
        }
    }

    /// Removes a connection from the touched list and returns it.
    #[inline]
    pub fn next_touched(&mut self) -> Option<u32> {
        self.touched.pop()
    }

    /// Puts a connection from [`Reactor::next_touched`] into the touched list again, for the next
    /// turn.
    pub fn touch_again(&mut self, index: Option<u32>) {
        self.touched.extend(index);
    }

    /// Finishes the turn of a connection: keeps the rest of its input, pauses or resumes receiving,
    /// and sends its replies.
    ///
    /// Returns whether the connection must be closed: it runs no more commands, and all its output
    /// has been sent. Returns `None` if the connection is already closed.
    #[inline]
    pub fn finish(&mut self, index: u32) -> Option<bool> {
        let connection = self.connections[index as usize].as_mut()?;
        connection.socket.is_touched = false;
        let waits = connection.socket.unsynced != 0 && self.waits_for_sync(index);
        let connection = self.connections[index as usize].as_mut()?;
        let hold = connection.end_input(&mut self.io);
        if connection.state == State::Yielding {
            // The connection has let other connections run in the rest of this turn. It may run
            // commands again in the next turn.
            connection.state = State::Open;
            if !std::mem::replace(&mut connection.is_ready, true) {
                self.ready.push(index);
            }
        }
        if hold != connection.socket.is_receive_paused {
            connection.socket.is_receive_paused = hold;
            if hold {
                self.io.pause_receive(connection.socket.id);
            } else {
                self.io.resume_receive(connection.socket.id);
            }
        }
        if waits {
            return Some(false);
        }
        if connection.socket.tls.is_some() {
            return self.finish_encrypted(index);
        }
        if let Some(output) = connection.take_output() {
            let (socket, bytes) = (connection.socket.id, output.len());
            self.stats.output_bytes.add(bytes as u64);
            self.stats.writes.add(1);
            match self.io.send_at_once(socket, output) {
                Some(buffer) => {
                    connection.session.client.active_ms.store(self.clock.now_ms, Relaxed);
                    keep_spare(&mut self.spare, buffer);
                }
                None if connection.set_in_flight(bytes) => self.io.expect_sent(socket),
                None => {}
            }
        } else if connection.has_output() {
            self.send_later(index);
        }
        Some(is_over(&mut self.io, self.connections[index as usize].as_ref()?))
    }

    /// Makes the loop send a connection's next piece of output. If a send is already in flight,
    /// only makes the loop report its completion.
    #[cold]
    fn send_later(&mut self, index: u32) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
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
    }

    /// Removes a connection from the table.
    pub fn remove(&mut self, index: u32) -> Option<Connection<H>> {
        self.connections[index as usize].take()
    }

    /// Closes the socket of a removed connection. Returns the connection's pending pieces of
    /// output, if any.
    pub fn shut(&mut self, mut connection: Connection<H>) -> Option<Ahead> {
        connection.input.discard(&mut self.io);
        if let Some(layer) = connection.socket.tls.take() {
            self.notify_close(connection.socket.id, *layer);
        }
        self.io.close(connection.socket.id);
        self.server.client_left(&connection.session.client);
        keep_spare(&mut self.spare, connection.output);
        (!connection.ahead.is_empty()).then_some(connection.ahead)
    }

    /// Returns the connection to which the event loop has given this identifier, if it is open.
    /// Borrows only the table, so that callers can use other parts of the reactor meanwhile.
    #[inline]
    fn open(connections: &mut [Option<Connection<H>>], conn: ConnId) -> Option<&mut Connection<H>> {
        let connection = connections.get_mut(conn.index())?.as_mut()?;
        (connection.socket.id == conn).then_some(connection)
    }

    /// Returns the index of the connection to which the event loop has given this identifier, if
    /// the connection is open.
    #[inline]
    pub fn find(&self, conn: ConnId) -> Option<u32> {
        let connection = self.connections.get(conn.index())?.as_ref()?;
        (connection.socket.id == conn).then_some(conn.index() as u32)
    }

    /// Returns the index of the connection with this token, if the connection is open.
    #[inline]
    pub fn find_token(&self, wanted: u64) -> Option<u32> {
        let index = index_of(wanted);
        let connection = self.connections.get(index)?.as_ref()?;
        (connection.socket.token() == wanted).then_some(index as u32)
    }

    /// Reads the clock within a turn.
    #[inline]
    pub fn read_clock(&mut self) {
        self.clock.read(self.server);
    }

    /// Prefetches the connections of items that will be processed soon. A worker with many
    /// connections has only a few of them in the CPU caches. `connection` returns the index of an
    /// item's connection.
    #[inline]
    pub fn fetch_ahead<T>(&self, following: &[T], connection: impl Fn(&T) -> Option<usize>) {
        if let Some(index) = following.get(FETCHED_AHEAD).and_then(&connection) {
            prefetch_all(self.connections.as_ptr().wrapping_add(index));
        }
        // An earlier call has prefetched this connection, so reading its pointer to the client is
        // cheap.
        if let Some(index) = following.get(FETCHED_AHEAD / 2).and_then(&connection)
            && let Some(Some(connection)) = self.connections.get(index)
        {
            prefetch_all(Arc::as_ptr(&connection.session.client));
        }
    }
}

/// Returns whether a connection must be closed now. If it must be closed once its output is sent,
/// makes the loop report the completion of the send in flight.
#[inline]
fn is_over<L: EventLoop, H>(io: &mut L, connection: &Connection<H>) -> bool {
    match connection.fate() {
        Fate::Stays => false,
        Fate::EndsWhenSent => {
            io.expect_sent(connection.socket.id);
            false
        }
        Fate::Over => true,
    }
}

/// Keeps an output buffer for reuse, unless it is large or enough buffers are kept.
#[inline]
fn keep_spare(spare: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    if (1..=SPARE_BUFFER_BYTES_MAX).contains(&buffer.capacity()) && spare.len() < SPARE_BUFFERS_MAX {
        buffer.clear();
        spare.push(buffer);
    }
}
