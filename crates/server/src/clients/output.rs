//! Enforces the output limits of connections, and the limit on the memory of all clients when
//! output is added. A *turn* is one iteration of the worker's event loop.

use std::sync::atomic::AtomicU64;

use pantala_engine::client::{ReplyMode, Session};
use pantala_engine::keyspace::Keyspace;
use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_session::access::must_log_in;
use pantala_session::output::PIECE_BYTES;

use super::{Abandon, Clients, Connection};
use crate::config::{OutputLimit, Settings};
use crate::host::Server;

/// Maximum unsent output of a client that must authenticate first, bytes, as in Redis.
const STRANGER_OUTPUT_BYTES_MAX: usize = 1024;

/// Returns the output limit of a connection's class.
pub fn output_limit<'s, H>(connection: &Connection<H>, settings: &'s Settings) -> &'s OutputLimit {
    if connection.session.primary.is_some() {
        // There is no limit, because replies to the primary are dropped at the end of the turn.
        &OutputLimit { hard_bytes: 0, soft_bytes: 0, soft_seconds: 0 }
    } else if connection.session.follows.is_some() {
        &settings.output_limit_replica
    } else if connection.session.subscriptions.is_some() {
        &settings.output_limit_pubsub
    } else {
        &settings.output_limit_normal
    }
}

/// Returns whether a connection's pending output exceeds its hard limit.
fn is_over_limit<H>(connection: &Connection<H>, settings: &Settings) -> bool {
    let hard_bytes = output_limit(connection, settings).hard_bytes;
    hard_bytes > 0 && connection.pending_bytes() as u64 > hard_bytes
}

/// Removes the replies of a connection's running transaction, which start at `start`, if the
/// connection's output exceeds the hard limit. Returns whether it did. The transaction continues,
/// and the caller closes the connection after it.
pub fn discard_over_limit<H>(connection: &mut Connection<H>, settings: &Settings, start: usize) -> bool {
    let is_over = is_over_limit(connection, settings);
    if is_over {
        connection.output.truncate(start);
    }
    is_over
}

/// Returns the limit for a reply to this connection, for [`pantala_resp::Reply::limited`]. Returns
/// `None` (no limit) for the link to the primary, because replies to the primary are dropped.
#[inline]
pub fn reply_limit<'k>(session: &Session, keyspace: &'k Keyspace) -> Option<&'k AtomicU64> {
    session.primary.is_none().then_some(&keyspace.tuning.reply_bytes_max)
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Closes a connection if its output exceeds the hard limit. Also closes it if the memory of
    /// all clients reaches `maxmemory-clients` and this connection is among those chosen to be
    /// closed. Returns whether the connection was closed.
    ///
    /// Long output becomes a piece: a buffer that is sent on its own (`end_piece`). `added_bytes`
    /// is the size of the output that was just added.
    #[inline]
    pub fn closed_over_limit(&mut self, index: u32, added_bytes: usize) -> bool {
        let Some(connection) = &self.reactor.connections[index as usize] else { return true };
        // A connection is never closed within a transaction. The limits are checked after EXEC.
        if connection.session.in_exec || !self.limits.alarm.is_reached(connection) {
            return false;
        }
        let is_closed = self.closed_at_alarm(index);
        if let Some(connection) = &mut self.reactor.connections[index as usize] {
            end_piece(connection, &self.reactor.settings, added_bytes);
        }
        is_closed
    }

    /// Checks the limits after a command of the window (the list of parsed commands that the worker
    /// runs together). The command's reply starts at `before`. If this reply completes a piece of
    /// the connection's output (a buffer that is sent on its own), the connection yields: its later
    /// commands run only in the next turn. So a connection produces at most about one piece per
    /// turn, even if its peer doesn't read, and other connections run in between.
    #[cold]
    pub fn yield_at_piece(&mut self, index: u32, before: usize) {
        if self.closed_at_alarm(index) {
            return;
        }
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        let reply_bytes = connection.output.len().saturating_sub(before);
        if end_piece(connection, &self.reactor.settings, reply_bytes) && connection.state == State::Open {
            connection.state = State::Yielding;
        }
    }

    #[cold]
    fn closed_at_alarm(&mut self, index: u32) -> bool {
        let Some(connection) = &self.reactor.connections[index as usize] else { return true };
        if is_over_limit(connection, &self.reactor.settings) {
            self.close_over_limit(index);
            return true;
        }
        let is_evicted = self.limits.accounting.is_on && self.evicts_for(index);
        if is_evicted {
            self.close(index);
        }
        is_evicted
    }

    /// Closes a connection for exceeding its output limit.
    #[cold]
    pub fn close_over_limit(&mut self, index: u32) {
        if let Some(connection) = &self.reactor.connections[index as usize] {
            self.reactor.server.log_output_limit(&connection.session.client);
        }
        self.close(index);
    }
}

/// Drops the output that starts at `before`: a reply that was aborted
/// ([`pantala_resp::Reply::abort`]) and is therefore incomplete. The connection will be closed once
/// the output before the reply is sent. Does nothing if the client wants no reply.
#[cold]
pub fn drop_over_limit<H>(connection: &mut Connection<H>, server: &Server, before: usize) {
    if connection.session.reply_mode == ReplyMode::On {
        close_instead_of_reply(connection, server, before);
    }
}

/// Drops the output that starts at `before`, for exceeding the output limit. The connection will be
/// closed once the output before it is sent.
#[cold]
pub fn close_instead_of_reply<H>(connection: &mut Connection<H>, server: &Server, before: usize) {
    server.log_output_limit(&connection.session.client);
    connection.output.truncate(before);
    connection.session.close_after_reply = true;
}

/// Ends a piece of output ([`pantala_session::Connection::end_piece`]). Returns whether a piece has
/// ended.
///
/// Does nothing if the hard limit is at most the size of a piece, because such a limit already
/// bounds the output of a turn. If the output exceeds such a limit, none of it is sent, as in
/// Redis.
#[cold]
fn end_piece<H>(connection: &mut Connection<H>, settings: &Settings, reply_bytes: usize) -> bool {
    let hard_bytes = output_limit(connection, settings).hard_bytes;
    let is_bounded = (1..=PIECE_BYTES as u64).contains(&hard_bytes);
    !is_bounded && connection.end_piece(reply_bytes)
}

/// Limits the output of a client that has run a command before authentication. If more than
/// [`STRANGER_OUTPUT_BYTES_MAX`] is pending, it is sent first, and the connection's later commands
/// run in the next turn. If an earlier send is still in flight, the connection is closed.
#[cold]
pub fn limit_stranger<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    let users = clients.executor.keyspace().users();
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return };
    if connection.pending_bytes() <= STRANGER_OUTPUT_BYTES_MAX || !must_log_in(&connection.session, users) {
        return;
    }
    if connection.sending.bytes > 0 {
        clients.close_over_limit(index);
    } else if connection.state == State::Open {
        connection.state = State::Yielding;
    }
}
