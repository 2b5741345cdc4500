//! Moves connections to other workers.
//!
//! 1. [`ask_to_leave`] pauses receiving on a connection.
//! 2. At the ends of turns, [`hand_over`] checks whether anything of the connection is in flight or
//!    pending. If not, it sends the socket and the session to the other worker. If the connection
//!    is still in use after [`TURNS_MAX`] turns, it stays and receives again.
//! 3. The other worker adds the socket and the session to its reactor ([`take_over`]).
//!
//! Between steps 2 and 3, the client's address ([`Client::listener`]) has the token
//! [`Listener::MOVING`]. A connection moves only if other parts of the server don't use its address
//! ([`Session::may_move`]), except for two purposes: to kill the client, and to redirect
//! invalidations to it. A client that is killed while it moves is closed on arrival. Invalidations
//! that are redirected to a moving client are sent again until it has arrived.
//!
//! [`Client::listener`]: pantala_engine::client::Client::listener

use std::os::fd::OwnedFd;

use pantala_engine::client::{Listener, Session};
use pantala_engine::faults::{self, Fault};
use pantala_engine::message::Message;
use pantala_runtime::{ConnId, EventLoop};
use pantala_session::State;

use super::connection::insert;
use super::tls::Layer;
use super::{Connection, Reactor, Socket, keep_spare, token};

/// Maximum number of turns for which a connection waits to be handed over.
const TURNS_MAX: u8 = 8;

/// A connection that is to leave.
pub(super) struct Leaving {
    id: ConnId,
    to: u32,
    turns: u8,
}

/// A connection without a worker: its former worker sends it to the next one.
pub struct Moved {
    socket: OwnedFd,
    session: Session,
    tls: Option<Box<Layer>>,
    layer_bytes: usize,
    /// The clock of the effects that the connection has made or seen on its former worker.
    pub effect_clock: u64,
}

/// Returns the connections that take part in this turn.
pub fn in_turn<L: EventLoop, H>(reactor: &Reactor<'_, L, H>) -> Vec<u32> {
    reactor.touched.clone()
}

/// Starts to move a connection to another worker. The connection leaves once nothing of it is
/// pending. Returns `false` if the connection can't move now: it waits for something other than its
/// next command, or other parts of the server refer to its address ([`Session::may_move`]).
pub fn ask_to_leave<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>, index: u32, to: u32) -> bool {
    let Some(connection) = &mut reactor.connections[index as usize] else { return false };
    let socket = &mut connection.socket;
    let is_bound = socket.is_leaving || socket.is_receive_paused || waits(socket);
    if is_bound || connection.state != State::Open || connection.sending.bytes > 0 || !connection.session.may_move() {
        return false;
    }
    socket.is_leaving = true;
    reactor.leaving.push(Leaving { id: socket.id, to, turns: 0 });
    reactor.io.pause_receive(socket.id);
    true
}

/// Returns whether any connections are to leave.
#[inline]
pub fn has_leaving<L: EventLoop, H>(reactor: &Reactor<'_, L, H>) -> bool {
    !reactor.leaving.is_empty()
}

/// Hands over the connections that are to leave and have nothing pending. Called at the end of a
/// turn. `effect_clock` is the worker's clock of effects. Returns the connections that were removed
/// from the reactor but may not leave after all. The caller must add them to this reactor again.
#[cold]
pub fn hand_over<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>, effect_clock: u64) -> Vec<Moved> {
    let mut returned = Vec::new();
    for mut leaving in std::mem::take(&mut reactor.leaving) {
        let Some(index) = reactor.find(leaving.id) else { continue };
        if let Some(moved) = detach(reactor, index, effect_clock) {
            returned.extend(send(reactor, moved, leaving.to));
            continue;
        }
        leaving.turns += 1;
        if leaving.turns < TURNS_MAX {
            reactor.leaving.push(leaving);
        } else {
            stay(reactor, index);
        }
    }
    returned
}

/// Cancels the moves of all connections that are to leave. They receive again.
#[cold]
pub fn let_stay<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>) {
    for leaving in std::mem::take(&mut reactor.leaving) {
        if let Some(index) = reactor.find(leaving.id) {
            stay(reactor, index);
        }
    }
}

fn stay<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>, index: u32) {
    let Some(connection) = &mut reactor.connections[index as usize] else { return };
    connection.socket.is_leaving = false;
    if !connection.socket.is_receive_paused {
        reactor.io.resume_receive(connection.socket.id);
    }
}

/// Removes a connection from the reactor. Returns `None` if anything of it is in flight or pending.
fn detach<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>, index: u32, effect_clock: u64) -> Option<Moved> {
    let id = reactor.connections[index as usize].as_ref().filter(|found| is_at_rest(found))?.socket.id;
    let socket = reactor.io.detach(id)?;
    let Connection { session, socket: Socket { tls, .. }, output, layer_bytes, .. } = reactor.remove(index)?;
    keep_spare(&mut reactor.spare, output);
    Some(Moved { socket, session, tls, layer_bytes, effect_clock })
}

/// Sends a detached connection to another worker. Returns the connection if its client must stay on
/// this worker.
fn send<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>, moved: Moved, to: u32) -> Option<Moved> {
    reactor.stats.connections.sub(1);
    // The address must change before the message is sent. The other worker changes it again.
    if moved.session.client.leave_for(Listener { worker: to, connection: Listener::MOVING }) {
        reactor.stats.moved.add(1);
        reactor.server.loads.add(to);
        reactor.server.loads.remove(reactor.number);
        reactor.server.port(to).send(Message::Moved(Box::new(moved)));
        return None;
    }
    Some(moved)
}

/// Adds a detached connection to the reactor. Returns its index.
///
/// # Errors
/// The session, if the event loop can't add the socket. The socket is closed.
pub fn take_over<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>, moved: Moved) -> Result<u32, Box<Session>> {
    let Moved { socket, session, tls, layer_bytes, .. } = moved;
    reactor.stats.connections.add(1);
    let added = reactor.io.add(socket);
    let added = added.inspect_err(|error| tracing::warn!("could not watch a connection that has moved: {error}"));
    let Ok(id) = added else { return Err(Box::new(session)) };
    faults::pause(Fault::MoveConnection);
    session.client.arrive_at(Listener { worker: reactor.number, connection: token(id) });
    let mut connection = Connection::new(Socket { tls, ..Socket::new(id) }, session);
    connection.layer_bytes = layer_bytes;
    Ok(insert(&mut reactor.connections, connection))
}

/// Returns whether nothing of a connection is pending, and the connection may move.
fn is_at_rest<H>(connection: &Connection<H>) -> bool {
    let socket = &connection.socket;
    let is_listed = socket.is_touched || socket.is_listed || socket.is_receive_paused;
    !(is_listed || waits(socket)) && connection.may_move() && socket.tls.as_ref().is_none_or(|layer| layer.is_at_rest())
}

/// Returns whether a connection waits for shards, or for a sync of the append-only file.
fn waits<H>(socket: &Socket<H>) -> bool {
    socket.shard_work.is_some() || socket.unsynced != 0 || socket.is_unsynced
}
