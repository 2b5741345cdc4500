//! Closes connections, and ends each turn for the connections that took part in it. A turn is one
//! iteration of the worker's event loop.

use std::collections::VecDeque;

use pantala_engine::client::{Durability, Session};
use pantala_engine::faults::{self, Fault};
use pantala_runtime::{EventLoop, Outgoing};
use pantala_session::State;
use pantala_session::output::Ahead;

use super::{Abandon, Clients, primary};
use crate::host::Server;

/// Maximum output of closed connections that is freed in one turn, bytes. Freeing this amount takes
/// a few tenths of a millisecond.
const FREED_BYTES_PER_TURN: usize = 4 * 1024 * 1024;

/// Pending output of closed connections. The output may amount to gigabytes, which the kernel takes
/// long to unmap. So each turn frees only a part.
#[derive(Default)]
pub struct Garbage {
    pieces: VecDeque<Outgoing>,
}

impl Garbage {
    /// Returns whether no output is left to free.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Frees the pending output of a closed connection at once if it is small. Keeps large output,
    /// which later turns free.
    #[cold]
    fn add(&mut self, ahead: &mut Ahead) {
        let (pieces, own_bytes) = ahead.take();
        if own_bytes > FREED_BYTES_PER_TURN {
            self.pieces.extend(pieces);
        }
    }

    /// Frees one buffer after another, until at least [`FREED_BYTES_PER_TURN`] are freed or no
    /// buffer is left.
    pub fn free(&mut self) {
        let mut freed_bytes = 0;
        while freed_bytes < FREED_BYTES_PER_TURN
            && let Some(piece) = self.pieces.pop_front()
        {
            freed_bytes += piece.bytes().len();
        }
    }
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Closes a connection at once. The link to the primary is closed later if one of its commands
    /// is in flight.
    pub fn close(&mut self, index: u32) {
        if self.has_primary && primary::is_kept(self, index) {
            return;
        }
        self.stop_waiting(index);
        let Some(mut connection) = self.reactor.remove(index) else { return };
        if self.has_primary {
            primary::end(self.reactor.server, &mut connection);
        }
        if connection.state == State::Paused {
            self.reactor.stats.paused.sub(1);
        }
        if let Some(held) = connection.socket.shard_work.take() {
            held.abandon(self.reactor.server);
        }
        let keyspace = self.executor.keyspace();
        connection.session.leave_channels(keyspace);
        connection.session.set_monitors(keyspace, false);
        connection.session.leave_effects(keyspace);
        connection.session.untrack(keyspace);
        note_no_longer_asks(self.reactor.server, &connection.session);
        if let Some(mut ahead) = self.reactor.shut(connection) {
            self.garbage.add(&mut ahead);
        }
    }

    /// Closes all connections when the server stops, after one attempt to send pending replies.
    ///
    /// # Errors
    /// The error of the event loop's last poll, which sends the replies.
    pub fn close_all(&mut self) -> std::io::Result<()> {
        self.reactor.stop_listening();
        self.finish_turn();
        while self.reactor.has_listed() {
            self.finish_turn();
        }
        self.reactor.io.poll(Some(std::time::Duration::ZERO), &mut Vec::new())?;
        for index in 0..self.reactor.connections.len() {
            self.close(index as u32);
        }
        Ok(())
    }

    /// Ends the turn for all connections that took part in it: sends their output
    /// ([`Reactor::finish`](crate::reactor::Reactor::finish)), and closes those that have ended.
    pub fn finish_turn(&mut self) {
        faults::pause(Fault::PauseReplying);
        self.reactor.touch_listed();
        finish_touched(self);
        // The connections in `unsynced` have replies that wait for a sync of the append-only file.
        // A sync may end before this worker has registered for its notification. So the connections
        // are checked again after the registration.
        while !self.reactor.unsynced.is_empty() {
            self.reactor.server.snapshots().aof.await_sync(self.reactor.number);
            if !self.reactor.release_synced() {
                break;
            }
            finish_touched(self);
        }
        if self.limits.accounting.is_on {
            self.limits.end_turn(self.reactor.server);
        }
    }
}

/// Ends the session of a connection that could not be added to a reactor.
pub(super) fn end_session(server: &Server, session: &Session) {
    note_no_longer_asks(server, session);
    server.client_left(&session.client);
}

/// Uncounts a client that asks for `CLIENT DURABILITY always`.
fn note_no_longer_asks(server: &Server, session: &Session) {
    if session.durability == Durability::Always {
        server.snapshots().aof.note_asks_always(server, false);
    }
}

fn finish_touched<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>) {
    let mut untouched = None;
    while let Some(index) = clients.reactor.next_touched() {
        if clients.frozen.holds(index) {
            untouched = Some(index);
            continue;
        }
        if clients.has_primary {
            primary::end_turn(clients, index);
        }
        let Some(is_over) = clients.reactor.finish(index) else { continue };
        if clients.limits.accounting.is_on {
            clients.account(index);
        }
        if is_over {
            clients.close(index);
        }
    }
    clients.reactor.touch_again(untouched);
}
