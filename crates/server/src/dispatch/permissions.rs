//! Repeats the permission check for commands that have waited since the first check.
//!
//! The engine repeats the check for the calls that it runs itself. This module repeats the check
//! for the queued commands of a transaction that runs on its client's worker, and for `WATCH` and
//! scripts once their shards are held.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::acl::{Context, Denied};
use pantala_engine::command::Command;
use pantala_engine::eviction::OUT_OF_MEMORY;
use pantala_engine::transaction::{Queued, Transaction, discarded};
use pantala_resp::{Args, Reply};
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::scripts::copied;
use super::transactions::Held;
use crate::clients::Clients;
use crate::reactor::Reactor;

/// Rejects a connection's command whose shards are now held.
pub(super) fn reject_held<L: EventLoop>(reactor: &mut Reactor<'_, L, Held>, index: u32, why: &str) {
    let Some(connection) = &mut reactor.connections[index as usize] else { return };
    let (session, output) = (&mut connection.session, &mut connection.output);
    match connection.socket.shard_work.take() {
        Some(Held::Exec(..)) => {
            session.discard();
            Reply::new(output, session.version).error_bytes(&discarded(why.as_bytes()));
        }
        held => {
            Reply::new(output, session.version).error(why);
            if let Some(Held::Pause(answer)) = held {
                answer.cancel(reactor.server);
            }
        }
    }
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Rejects a queued command if its client's user may no longer run it. Returns whether it was
    /// rejected.
    pub(super) fn rejects_queued(&mut self, index: u32, transaction: &Transaction, queued: &Queued) -> bool {
        let (keyspace, now_ms) = (self.clients.executor.keyspace(), self.clients.reactor.clock.now_ms);
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return true };
        let session = &mut connection.session;
        let args = transaction.args(queued);
        let is_deleted = session.user().is_deleted();
        let checked = if is_deleted { Err(Denied::Command) } else { session.check(queued.command, &args) };
        let Err(denied) = checked else { return false };
        // As in Redis, the log describes the client in its state at `EXEC`.
        let queued_count = transaction.queue().len() as i64;
        let shown = session.client.queued.swap(queued_count, Relaxed);
        keyspace.note_denied(&session.client, denied, Context::Multi, queued.command, &args, now_ms);
        session.client.queued.store(shown, Relaxed);
        let before = connection.output.len();
        Reply::new(&mut connection.output, session.version).error(&denied.message_in_exec());
        self.clients.tally.count_reply(&connection.output[before..]);
        true
    }

    /// Updates the cached rules of a session. Called at the start of a transaction, and after each
    /// of its commands that may change users. Changes by other clients in between are ignored, so
    /// that they don't take effect in the middle of the transaction.
    pub(super) fn refresh_rules(&mut self, index: u32) {
        let users = self.clients.executor.keyspace().users();
        if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
            connection.session.refresh_rules(users);
        }
    }

    /// Rejects a connection's command whose shards are now held, if the client may no longer run it
    /// or if memory is used up (`has_room` is false). Returns whether it was rejected.
    pub(super) fn rejects_held(&mut self, index: u32, has_room: bool) -> bool {
        let why = if has_room { rejection_of_held(&mut self.clients, index) } else { Some(OUT_OF_MEMORY.to_owned()) };
        if let Some(why) = &why {
            reject_held(&mut self.clients.reactor, index, why);
        }
        why.is_some()
    }
}

/// Returns the error for a `WATCH` or a script whose permission was revoked while it waited for
/// shards, or before its rerun with all shards. Returns `None` for a transaction, whose commands
/// are checked one by one as they run.
fn rejection_of_held<L: EventLoop>(clients: &mut Clients<'_, L, Held>, index: u32) -> Option<String> {
    let (keyspace, now_ms) = (clients.executor.keyspace(), clients.reactor.clock.now_ms);
    let users = keyspace.users();
    let connection = clients.reactor.connections[index as usize].as_mut()?;
    let session = &mut connection.session;
    // No other command of the connection has run since the earlier check, so the session still has
    // the rules of that check. If these rules are current, the check is still valid.
    if session.has_followed(users.epoch()) {
        return None;
    }
    let (command, (bytes, ranges)): (&Command, _) = match &connection.socket.shard_work {
        Some(Held::Watch(command, words)) => (command, copied(words.iter().map(|word| &**word))),
        Some(Held::Script(call)) => (call.command(), call.words()),
        // A transaction checks each of its commands. A pause or a `SHUTDOWN` has already started,
        // so as in Redis, a change of rules no longer stops it.
        Some(Held::Exec(..) | Held::Pause(_) | Held::All(_)) | None => return None,
    };
    let args = Args::new(&bytes, &ranges);
    let checked = if session.refresh_rules(users) { session.check(command, &args) } else { Err(Denied::Command) };
    let denied = checked.err()?;
    keyspace.note_denied(&session.client, denied, Context::TopLevel, command, &args, now_ms);
    Some(denied.message(command.full_name))
}
