//! `MULTI`: queues commands of a window (a list of parsed commands) in their connection's
//! transaction.

use pantala_engine::command::Command;
use pantala_resp::{ArgRange, Args, Reply};
use pantala_runtime::EventLoop;
use pantala_session::queue::{QUEUED, ToQueue};

use super::Runner;
use super::refusal::CROSS_SLOT;
use crate::dispatch::window::{Entry, What};
use crate::dispatch::{Dispatcher, flags_of};
use crate::stats::Outcome;

impl Runner {
    /// Queues a command of a connection that has sent `MULTI`.
    #[cold]
    pub(super) fn queue<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        command: &'static Command,
        ranges: &[ArgRange],
    ) {
        let (keyspace, server) = (d.clients.executor.keyspace(), d.clients.reactor.server);
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return };
        let before = connection.output.len();
        let place = if let What::Single(_, place) = entry.what { Some(place) } else { None };
        let queued = ToQueue { command, at: entry.begin..entry.end, ranges, place };
        let flags = |command: &Command, args: &Args<'_>| flags_of(server, command, args);
        if !connection.queue(&d.clients.reactor.io, keyspace, queued, flags) {
            d.clients.tally.count_reply(&connection.output[before..]);
            d.clients.tally.count(command, Outcome::Rejected);
        }
        connection.end_reply(before);
        d.clients.closed_over_limit(entry.connection, QUEUED.len());
    }

    /// Rejects an `EXEC` whose commands have keys in several slots of a cluster, and ends the
    /// transaction.
    #[cold]
    pub(super) fn reject_exec<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, entry: &Entry) {
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return };
        let What::Local(command) = entry.what else { return };
        let before = connection.output.len();
        connection.session.discard();
        Reply::new(&mut connection.output, connection.session.version).error(CROSS_SLOT);
        d.clients.tally.count_reply(&connection.output[before..]);
        d.clients.tally.count(command, Outcome::Rejected);
        connection.end_reply(before);
        connection.input.done(entry.end);
    }
}
