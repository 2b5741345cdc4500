//! The connection to the primary that this replica follows.
//!
//! This connection is called the *link*. Its commands run like those of any client: in order, and a
//! transaction as a whole. This module implements the differences:
//!
//! - Replies are dropped. Once a second, the replica sends the primary the offset that it has
//!   reached in the primary's stream.
//! - Applied commands are counted, so that a later link can continue after the last of them.
//! - If the link ends while one of its commands is in flight, it is closed after that command has
//!   run, so that the offset includes the command.
//! - The link *rests* while other work of the server (such as a snapshot) holds all shards between
//!   two of the link's commands. While it rests, its offset and its database don't change.
//! - A working primary sends neither invalid protocol nor blocking commands. If one of these
//!   arrives, the stream is not continued: as in Redis, the next link starts with a full
//!   synchronization.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::{NewPrimary, PrimaryLink, Session};
use pantala_engine::command::Command;
use pantala_engine::message::Message;
use pantala_resp::ProtocolError;
use pantala_runtime::EventLoop;
use pantala_session::State;

use super::blocked::unblock_with;
use super::{Abandon, Clients};
use crate::aof;
use crate::config::AppendFsync;
use crate::host::Server;
use crate::process::Kind;
use crate::reactor::{Connection, Layer};

/// The error for clients that are blocked when the server becomes a replica.
const DEMOTED: &str = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

/// Takes over the link to the primary, or passes it to a worker with few connections.
pub fn follow<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, mut new: Box<NewPrimary>) {
    let server = clients.reactor.server;
    if !std::mem::replace(&mut new.is_placed, true) {
        let worker = server.worker_for(&new.socket, &clients.reactor.settings);
        if worker != clients.reactor.number {
            return server.port(worker).send(Message::Primary(new));
        }
    }
    let NewPrimary { socket, rest, db, link, .. } = *new;
    let (number, offset) = (link.number, link.applied());
    if server.replication().replica.term() != number {
        // By now the server follows another primary, or none.
        return server.replication().replica.link_ended(server, number, Some(offset), db);
    }
    let Some(index) = clients.reactor.add_socket(socket, Kind::Tcp) else {
        return server.replication().replica.link_ended(server, number, Some(offset), db);
    };
    clients.has_primary = true;
    server.replication().replica.link_worker.set(Some(clients.reactor.number));
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return };
    connection.socket.tls = server.replication().encrypted.take(number).map(Layer::of_link);
    connection.session.follow_primary(server.keyspace().users(), link, db);
    connection.input.preload(rest);
    clients.reactor.make_ready(index);
    clients.reactor.touch(index);
}

/// Makes the link acquire all shards before its next command, for pending work of the server.
/// Returns `false` if this worker does not have the link.
pub fn ask_to_rest<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>) -> bool {
    for index in 0..clients.reactor.connections.len() as u32 {
        let Some(connection) = &mut clients.reactor.connections[index as usize] else { continue };
        if let Some(link) = &mut connection.session.primary {
            link.wants_rest = true;
            clients.reactor.make_ready(index);
            return true;
        }
    }
    false
}

/// Notes that the link rests, because work of the server holds all shards.
pub fn begin_rest<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return };
    note_applied(connection);
    relay(clients.reactor.server, connection);
    let Session { primary, db, .. } = &mut connection.session;
    if let Some(link) = primary {
        link.rest(Some(*db));
    }
}

/// Notes that the link no longer rests, because the work has ended.
pub fn end_rest<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    let connection = clients.reactor.connections[index as usize].as_ref();
    if let Some(link) = connection.and_then(|connection| connection.session.primary.as_ref()) {
        link.rest(None);
    }
}

/// Ends a turn (iteration of the worker's event loop) of the link: drops replies, counts the
/// applied commands, relays them to this server's replicas, and sends the offset if that is due.
/// Does nothing for other connections.
#[cold]
pub(super) fn end_turn<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    let now_ms = clients.reactor.clock.now_ms;
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return };
    if connection.session.primary.is_none() {
        return;
    }
    note_applied(connection);
    relay(clients.reactor.server, connection);
    connection.output.clear();
    drop(connection.ahead.take());
    connection.held_messages.clear();
    let Some(link) = &mut connection.session.primary else { return };
    let synced = synced_offset(clients.reactor.server, link, clients.reactor.number);
    if let Some(ack) = link.acknowledge(now_ms, synced) {
        connection.output.extend_from_slice(&ack);
    }
}

/// Returns the offset up to which the stream is known to be on disk, or `None` if the append-only
/// file is off. If a report to the primary is due and some applied commands are not on disk yet,
/// requests a sync. The offset is reported again after that sync.
fn synced_offset(server: &Server, link: &mut PrimaryLink, worker: u32) -> Option<u64> {
    let aof = &server.snapshots().aof;
    if aof.state() == aof::State::Off {
        return None;
    }
    // With `appendfsync no`, the kernel decides when data is written to disk.
    if aof.fsync() != AppendFsync::No && link.requests_sync() {
        let (progress, number, applied) = (Arc::clone(link.progress()), link.number, link.applied());
        let shared = server.replication().shared();
        aof.confirm(Box::new(move |is_synced| {
            // If a later link has replaced this one, the offset may belong to another history. So
            // it isn't recorded.
            if is_synced && progress.link.load(Relaxed) == number {
                progress.synced.fetch_max(applied, Relaxed);
            }
            if let Some(server) = shared.upgrade() {
                server.port(worker).send(Message::StreamSynced);
            }
        }));
    }
    Some(link.progress().synced.load(Relaxed))
}

/// Makes the link report to the primary how much of the stream is on disk. Called after a sync.
#[cold]
pub fn report_synced<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>) {
    for index in 0..clients.reactor.connections.len() {
        let Some(Some(connection)) = clients.reactor.connections.get_mut(index) else { continue };
        if let Some(link) = &mut connection.session.primary {
            link.end_sync();
            return clients.reactor.touch(index as u32);
        }
    }
}

/// Checks the link, a few times a second. Returns whether the link must be closed. There are three
/// reasons: the server now follows another primary or none, the primary has been silent for too
/// long, or the primary has sent a command that blocks.
pub fn look_after<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) -> bool {
    let (now_ms, timeout_s) = (clients.reactor.clock.now_ms, clients.reactor.settings.primary.timeout_s);
    let term = clients.reactor.server.replication().replica.term();
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return false };
    let silent_ms = now_ms - connection.session.client.active_ms.load(Relaxed);
    let Some(link) = &mut connection.session.primary else { return false };
    if link.number != term {
        // The role changed while the link was being handed over to this worker, so nothing has
        // closed the link yet.
        return true;
    }
    if silent_ms > i64::try_from(timeout_s).unwrap_or(i64::MAX).saturating_mul(1000) {
        tracing::warn!("MASTER timeout: no data nor PING received...");
        return true;
    }
    if connection.state == State::Blocked {
        tracing::warn!("A command of the master has blocked: closing the link.");
        link.break_off();
        return true;
    }
    if link.is_ack_due(now_ms) {
        link.wants_ack = true;
        clients.reactor.touch(index);
    }
    false
}

/// Returns whether the link must stay open for now, because one of its commands is in flight.
#[cold]
pub(super) fn is_kept<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) -> bool {
    let Some(Some(connection)) = clients.reactor.connections.get_mut(index as usize) else { return false };
    let keeps = connection.session.primary.is_some()
        && connection.state == State::Parked
        && !clients.reactor.server.is_stopping();
    if keeps {
        connection.session.close_after_reply = true;
    }
    keeps
}

/// Disconnects blocked clients with an error when the server has become a replica.
pub fn unblock_after_demotion<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>) {
    for index in 0..clients.reactor.connections.len() as u32 {
        let Some(connection) = &clients.reactor.connections[index as usize] else { continue };
        let blocked = connection.waits.blocked.as_ref().filter(|_| connection.session.primary.is_none());
        if blocked.is_some_and(|blocked| blocked.waiter.interrupt()) {
            unblock_with(clients, index, DEMOTED);
        }
    }
}

/// Counts and logs an error reply to a command of the primary. After such an error the dataset may
/// differ from the primary's.
#[cold]
pub fn note_error(session: &Session, command: &Command, reply: &[u8]) {
    if session.primary.is_some() {
        note_error_of(session, command.shown_name(), reply);
    }
}

/// Does the same as [`note_error`] for a command named `name` that was rejected before it ran.
#[cold]
pub fn note_error_of(session: &Session, name: &str, reply: &[u8]) {
    let Some(link) = &session.primary else { return };
    link.count_error();
    let line = reply.split(|byte| *byte == b'\r').next().unwrap_or_default();
    tracing::warn!(
        "== CRITICAL == This replica is sending an error to its master: '{}' after processing the command '{}'",
        line.escape_ascii(),
        name
    );
}

/// Counts as applied all bytes of the link's input before the command that starts at offset
/// `begin`. Does nothing within a transaction, whose bytes all count as applied with its `EXEC`.
#[cold]
pub fn begin_command<H, L: EventLoop>(connection: &mut Connection<H>, io: &L, begin: usize) {
    let pending_bytes = connection.input.bytes(io).len() - begin;
    let Session { primary, transaction, .. } = &mut connection.session;
    if let (Some(link), None) = (primary, transaction) {
        link.apply_but(pending_bytes);
    }
}

/// Records a protocol error in the stream of the link. The next link does not continue this stream.
#[cold]
pub fn break_off(link: &mut PrimaryLink, error: ProtocolError) {
    tracing::warn!("{error}: closing the link to the master, a full sync follows.");
    link.break_off();
}

/// Counts the link's commands that have run. The commands of a transaction count with its `EXEC`.
fn note_applied<H>(connection: &mut Connection<H>) {
    let Session { primary, transaction, .. } = &mut connection.session;
    let is_between = !matches!(connection.state, State::Parked | State::Blocked) && transaction.is_none();
    if let (Some(link), true) = (primary, is_between) {
        link.apply_but(connection.input.waiting_bytes());
    }
}

/// Appends the applied bytes of the primary's stream to the stream for this server's own replicas.
fn relay<H>(server: &Server, connection: &mut Connection<H>) {
    let applied = connection.session.primary.as_mut().map(|link| link.take_applied());
    if let Some(bytes) = applied.filter(|bytes| !bytes.is_empty()) {
        server.keyspace().journal().relay(bytes);
    }
}

/// Reports the end of the link, whose connection is being closed.
#[cold]
pub(super) fn end<H>(server: &Server, connection: &mut Connection<H>) {
    note_applied(connection);
    relay(server, connection);
    let db = connection.session.db;
    if let Some(link) = connection.session.primary.take() {
        server.replication().replica.link_worker.set(None);
        if link.wants_rest {
            // The pending work can now acquire the shards without the link.
            server.port(0).send(Message::Whole);
        }
        server.replication().replica.link_ended(server, link.number, link.continues_at(), db);
    }
}
