//! Runs the commands that a transaction has queued, on shards that are held.

use std::sync::MutexGuard;

use pantala_engine::client::{LocalCall, LocalCaller, run_local};
use pantala_engine::command::{Flags, Handler, Route, TransactionPart};
use pantala_engine::effect::Journal;
use pantala_engine::executor::Call;
use pantala_engine::faults::{self, Fault};
use pantala_engine::ownership::Ownership;
use pantala_engine::slowlog::Sender;
use pantala_engine::transaction::{Queued, Transaction};
use pantala_resp::{Args, Reply, is_aborted};
use pantala_runtime::EventLoop;
use pantala_scripting::Libraries;

use super::messages::SUBSCRIPTION_CHANGES;
use super::scripts::copied;
use super::{Connection, Dispatcher};
use crate::clients::primary::note_error;
use crate::clients::slow::{self, Words};
use crate::clients::{close_instead_of_reply, discard_over_limit, reply_limit};
use crate::host::Server;
use crate::stats::Outcome;

/// Returns whether a queued command may change the function libraries.
fn changes_libraries(queued: &Queued) -> bool {
    matches!(queued.command.handler, Handler::Local(_)) && queued.command.flags.contains(Flags::WRITE)
}

/// Returns whether a queued command may wait for other workers, or let other connections' commands
/// run meanwhile. Such a command must not run under the lock of the function libraries.
fn may_wait(queued: &Queued) -> bool {
    matches!(queued.command.handler, Handler::Transaction(_)) || queued.command.flags.contains(Flags::ADMIN)
}

/// A transaction's use of the lock of the function libraries ([`Journal::order_libraries`]). The
/// transaction acquires the lock before it first changes the libraries, and holds it until the
/// effect of the change is committed. It releases the lock while it runs a command that may wait.
/// During that time, other connections may change the libraries, and the effects of their changes
/// are committed before those of the transaction.
struct LibraryOrder<'s> {
    journal: &'s Journal,
    libraries: &'s Libraries,
    lock: Option<MutexGuard<'s, ()>>,
    /// The generation of the libraries when the lock was released.
    released_at: Option<u64>,
    /// Whether the libraries were changed while the lock was released.
    is_overtaken: bool,
}

impl<'s> LibraryOrder<'s> {
    fn new(server: &'s Server) -> Self {
        let (journal, libraries) = (server.keyspace().journal(), &server.scripting().libraries);
        LibraryOrder { journal, libraries, lock: None, released_at: None, is_overtaken: false }
    }

    fn acquire(&mut self) {
        self.lock.get_or_insert_with(|| self.journal.order_libraries());
        if let Some(generation) = self.released_at.take() {
            self.is_overtaken |= generation != self.libraries.generation();
        }
    }

    fn release(&mut self) {
        if self.lock.is_some() {
            self.released_at = Some(self.libraries.generation());
            self.lock = None;
        }
    }

    /// Prepares the commit of the transaction's unit (the effects that it propagates together).
    /// Acquires the lock if the transaction has changed the libraries. If another connection has
    /// changed the libraries while the lock was released, replicas would apply the changes in
    /// another order. To correct this, returns commands that set all libraries to their present
    /// state. The caller appends these commands to the unit. If no other connection has changed the
    /// libraries, returns no commands.
    fn end(&mut self) -> Vec<Words> {
        if self.released_at.is_some() {
            self.acquire();
        }
        if !self.is_overtaken {
            return Vec::new();
        }
        let table = self.libraries.table();
        let flush: &[&[u8]] = &[b"FUNCTION", b"FLUSH"];
        let loads = table.libraries().map(|library| copied([&b"FUNCTION"[..], b"LOAD", &library.text].into_iter()));
        std::iter::once(copied(flush.iter().copied())).chain(loads).collect()
    }
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Runs the transaction of a connection on its shards, unless a watched key has changed.
    pub(super) fn execute_transaction(&mut self, index: u32, owned: &mut Vec<Ownership>, now_ms: i64) {
        let Some(Connection { session, output, .. }) = &mut self.clients.reactor.connections[index as usize] else {
            return;
        };
        let view = session.view();
        let (transaction, watching) = (session.transaction.take(), session.watching.take());
        session.publish_transaction();
        let Some(transaction) = transaction else { return };
        let start = output.len();
        let is_intact = watching
            .is_none_or(|watching| watching.is_intact(&mut self.clients.executor.runner().look(&view, owned, now_ms)));
        if !is_intact && !faults::hits(Fault::BlindExec) {
            return Reply::new(output, view.version).null_array();
        }
        Reply::new(output, view.version).array(transaction.queue().len());
        if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
            connection.begin_exec(start);
        }
        self.refresh_rules(index);
        self.clients.executor.recorder().begin_unit(owned);
        let mut is_over_limit = false;
        let mut order = LibraryOrder::new(self.clients.reactor.server);
        let mut change = None;
        for (at, queued) in transaction.queue().iter().enumerate() {
            if may_wait(queued) {
                order.release();
            } else if changes_libraries(queued) {
                order.acquire();
                change = Some(queued.command);
            }
            faults::pause(Fault::PauseHolding);
            if at + 1 == transaction.queue().len() && faults::hits(Fault::TornExec) {
                let mut needed = Vec::new();
                if transaction.find_shards(queued, &mut needed) {
                    self.reacquire(&needed, owned);
                }
            }
            let before =
                self.clients.reactor.connections[index as usize].as_ref().map_or(0, |found| found.output.len());
            let is_aborted = self.run_queued(index, &transaction, queued, owned, now_ms);
            if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
                let is_confirmation = queued.command.flags.contains(Flags::ANSWERS_MESSAGES);
                is_over_limit |= connection.end_queued_reply(before, is_confirmation) && is_aborted;
                is_over_limit |= discard_over_limit(connection, &self.clients.reactor.settings, start);
            }
            if queued.command.flags.contains(Flags::ADMIN) {
                self.refresh_rules(index);
            }
        }
        if let Some(command) = change {
            for (bytes, ranges) in order.end() {
                self.clients.executor.recorder().propagate_local(command, view.db, &Args::new(&bytes, &ranges));
            }
        }
        self.clients.executor.recorder().end_unit(owned);
        drop(order);
        if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
            if is_over_limit {
                close_instead_of_reply(connection, self.clients.reactor.server, start);
            }
            connection.end_exec(start);
            connection.session.keep_ended(transaction);
        }
    }

    /// Releases the shards in `owned`, processes this worker's messages, and then acquires the
    /// shards in `needed` (ascending). In between, other requests run on the shards. Only fault
    /// injection calls this function.
    #[cold]
    pub(super) fn reacquire(&mut self, needed: &[u32], owned: &mut Vec<Ownership>) {
        self.clients.executor.release_shards(std::mem::take(owned), self.clients.reactor.clock.now_ms);
        faults::stall();
        loop {
            owned.extend(needed.iter().map_while(|shard| self.clients.executor.try_take(*shard)));
            if owned.len() == needed.len() {
                return;
            }
            self.clients.executor.release_shards(std::mem::take(owned), self.clients.reactor.clock.now_ms);
            // The owners of the missing shards may be waiting for this worker.
            self.receive_messages();
            self.clients.executor.serve_deferred();
            faults::stall();
        }
    }

    /// Runs one command of a transaction. Returns whether the reply was aborted for exceeding the
    /// output limit.
    fn run_queued(
        &mut self,
        index: u32,
        transaction: &Transaction,
        queued: &Queued,
        owned: &mut Vec<Ownership>,
        now_ms: i64,
    ) -> bool {
        let command = queued.command;
        if self.rejects_queued(index, transaction, queued) {
            return false;
        }
        if command.flags.intersects(SUBSCRIPTION_CHANGES) {
            self.deliver_before(index, command);
        }
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return false };
        let bytes = transaction.args(queued).iter().map(<[u8]>::len).sum();
        let began = self.stopwatch.begin(command, transaction.args(queued).len(), bytes);
        let (args, before) = (transaction.args(queued), connection.output.len());
        match command.handler {
            Handler::Local(_) => {
                connection.publish_buffers(&self.clients.reactor.io);
                let Connection { session, output, .. } = connection;
                let (keyspace, host) = (self.clients.executor.keyspace(), self.clients.reactor.server);
                let reply_limit = reply_limit(session, keyspace);
                let call = LocalCall { command, args, session, keyspace, host, now_ms, reply_limit };
                run_local(call, LocalCaller::Client(self.clients.executor.recorder()), output);
            }
            Handler::Keyed(_) | Handler::Undetermined(_) => {
                let (keyspace, view) = (self.clients.executor.keyspace(), connection.session.view());
                if !transaction.find_shards(queued, &mut self.shards) {
                    match command.route {
                        Route::Custom(choose) => choose(keyspace, &view, &args, &mut self.shards),
                        _ => self.shards.extend(0..keyspace.partition_count()),
                    }
                    if self.shards.is_empty() {
                        self.shards.push(0);
                    }
                    self.shards.sort_unstable();
                    self.shards.dedup();
                }
                let (first_key, connection_token) = (queued.first_key, connection.socket.token());
                let reads_as = connection.session.reads_as.as_ref();
                let call =
                    Call { command, args, first_key, session: view, reads_as, connection: connection_token, now_ms };
                self.clients.executor.runner().run_held(&call, &self.shards, owned, &mut connection.output);
            }
            Handler::Transaction(TransactionPart::Script(form)) => {
                let scripted = self.run_queued_script(index, command, form, &args, owned, now_ms);
                if scripted.is_counted {
                    self.clients.tally.expect_counted();
                }
            }
            Handler::Transaction(_) | Handler::Container => unreachable!("runs at once, or not at all: never queued"),
        }
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return false };
        let reply = &connection.output[before..];
        let is_over_limit = is_aborted(reply);
        let outcome = self.clients.tally.outcome(command, reply);
        if outcome == Outcome::Failed {
            note_error(&connection.session, command, reply);
        }
        self.clients.tally.count(command, outcome);
        if began.is_some() {
            let took = self.stopwatch.end(began);
            self.clients.tally.time_last(took);
            let (keyspace, client) = (self.clients.executor.keyspace(), &connection.session.client);
            let args = transaction.args(queued);
            slow::note(keyspace, Sender::Client(client), command, &args, took, now_ms);
        }
        is_over_limit
    }
}
