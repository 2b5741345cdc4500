//! `MULTI`, `EXEC` and `WATCH`: commands are queued, and `EXEC` runs them on the shards of all
//! their keys.
//!
//! The connection's worker owns the session, so this worker acquires the shards of `EXEC` and
//! `WATCH`. If another worker holds one of the shards, the connection is parked: its later commands
//! wait. When the shards become free, there are two cases. A transaction whose commands need only
//! their keys runs on the worker that releases the last missing shard. For `WATCH` and for other
//! transactions, the shards are handed over to the connection's worker, which runs them.
//!
//! Other commands that run on requested shards (scripts, `CLIENT PAUSE`, `SHUTDOWN`) use the same
//! path: see [`Held`] and [`Dispatcher::gather_for`].

use std::borrow::Cow;
use std::time::Instant;

use pantala_engine::client::{AllShards, ReplyMode, Session};
use pantala_engine::command::{Command, Flags, Handler, ScriptForm, TransactionPart};
use pantala_engine::exec::Exec;
use pantala_engine::executor::Ran;
use pantala_engine::faults::{self, Fault};
use pantala_engine::ownership::Ownership;
use pantala_engine::request::RequestNode;
use pantala_engine::slowlog::Sender;
use pantala_engine::transaction::{Queued, discarded};
use pantala_engine::tuning::WATCHING;
use pantala_resp::{ArgRange, Args, Reply, is_aborted};
use pantala_runtime::EventLoop;
use pantala_session::replies::replies_wanted;

use super::ending::{self, ENDING};
use super::loading::{self, LOADING};
use super::pause::PauseReply;
use super::permissions::reject_held;
use super::scripts::{ScriptCall, copied};
use super::whole::{self, WHOLE};

use super::window::Entry;
use super::{Connection, Dispatcher, State};
use crate::clients::primary::note_error;
use crate::clients::slow::{self, Words};
use crate::clients::{Abandon, Clients, drop_over_limit, note_unsynced};
use crate::host::Server;
use crate::reactor::Reactor;
use crate::reactor::hold_unsynced;
use crate::stats::Outcome;

/// The work for which a connection has requested shards.
pub enum Held {
    /// `WATCH`: watches keys. The words include the command's name.
    Watch(&'static Command, Vec<Box<[u8]>>),
    /// Runs the connection's transaction. The bytes are the command's name as the client spelled
    /// it.
    Exec(&'static Command, Cow<'static, [u8]>),
    /// Runs a script.
    Script(Box<ScriptCall>),
    /// Replies to `CLIENT PAUSE` when the pause is in force.
    Pause(Box<PauseReply>),
    /// Does work that needs all shards.
    All(AllShards),
}

impl Held {
    /// Returns the size of the arguments that this value keeps, bytes. Excludes those of a
    /// transaction, which the session keeps.
    fn argument_bytes(&self) -> usize {
        match self {
            Held::Watch(_, words) => words.iter().map(|word| word.len()).sum(),
            Held::Exec(..) | Held::Pause(_) | Held::All(_) => 0,
            Held::Script(call) => call.kept_bytes(),
        }
    }
}

/// The error of `EXEC` when a command could not be queued.
const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

/// Returns the error for a rejected command. If the command is `EXEC`, also discards the
/// transaction, and adds this fact to the error.
pub fn refusal<'a>(command: &Command, session: &mut Session, why: &'a [u8]) -> Cow<'a, [u8]> {
    if !matches!(command.handler, Handler::Transaction(TransactionPart::Exec)) {
        return why.into();
    }
    session.discard();
    let reason = why.strip_prefix(b"ERR ").unwrap_or(why);
    discarded(reason).into()
}

/// Keeps the name by which a client calls `EXEC`, for monitors. Allocates only for unusual
/// spellings and renamed commands.
fn kept_name(name: &[u8]) -> Cow<'static, [u8]> {
    match name {
        b"EXEC" => Cow::Borrowed(b"EXEC"),
        b"exec" => Cow::Borrowed(b"exec"),
        _ => Cow::Owned(name.to_vec()),
    }
}

/// Takes a connection's transaction from its session, if a thread other than the connection's
/// worker may run the transaction. This requires two conditions: the commands need only their keys,
/// and the user is unrestricted as of `epoch` (the version of the ACL users).
fn take_exec(connection: &mut Connection, epoch: u64) -> Option<Box<Exec>> {
    let Some(Held::Exec(command, name)) = &connection.socket.shard_work else { return None };
    let (command, name) = (*command, name.clone());
    let session = &mut connection.session;
    if !session.is_unrestricted(epoch) {
        return None;
    }
    let transaction = session.transaction.take_if(|transaction| transaction.can_travel())?;
    let watching = session.watching.take();
    session.publish_transaction();
    connection.socket.shard_work = None;
    Some(Box::new(Exec::new(transaction, watching, command, name)))
}

/// Takes from the session the pause that a finished transaction has started.
fn take_pause(connection: &mut Connection, exec: &'static Command, has_waited: bool) -> Option<Box<PauseReply>> {
    let pause = connection.session.pause.take()?;
    // If the transaction had to wait, its time is already recorded.
    let timed = (!has_waited).then_some((exec, 1));
    Some(Box::new(PauseReply::new(*pause, timed, false)))
}

/// Returns whether a connection has requested shards for a script, or for a transaction with a
/// script.
fn would_run_script(connection: &Connection) -> bool {
    let is_script = |queued: &Queued| matches!(queued.command.handler, Handler::Transaction(_));
    match &connection.socket.shard_work {
        Some(Held::Script(_)) => true,
        Some(Held::Exec(..)) => {
            connection.session.transaction.as_ref().is_some_and(|transaction| transaction.queue().iter().any(is_script))
        }
        _ => false,
    }
}

/// Returns whether a pause holds back a script whose shards have arrived.
fn is_paused<L: EventLoop>(reactor: &Reactor<'_, L, Held>, index: u32, call: &ScriptCall) -> bool {
    let Some(connection) = &reactor.connections[index as usize] else { return false };
    let now_ms = reactor.clock.now_ms;
    reactor.server.is_paused(call.command(), &connection.session, now_ms, || call.command_flags())
}

/// Watches keys on shards that are held.
fn watch<L: EventLoop>(clients: &mut Clients<'_, L, Held>, index: u32, keys: &[Box<[u8]>], owned: &mut [Ownership]) {
    let Some(Connection { session, output, .. }) = &mut clients.reactor.connections[index as usize] else {
        return;
    };
    let view = session.view();
    let watching = session.watching.get_or_insert_default();
    let now_ms = clients.executor.runner().time_of(clients.reactor.clock.now_ms, owned);
    watching.add(&mut clients.executor.runner().look(&view, owned, now_ms), keys);
    session.client.publish_watch(watching.watch());
    Reply::new(output, view.version).ok();
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Acquires the shards of `EXEC`, `WATCH` or a script.
    pub fn gather(
        &mut self,
        entry: &Entry,
        command: &'static Command,
        part: TransactionPart,
        ranges: &[ArgRange],
    ) -> Ran {
        if let TransactionPart::Script(form) = part {
            return self.gather_script(entry, command, form, ranges);
        }
        let index = entry.connection;
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return Ran::Done };
        let args = Args::new(&connection.input.bytes(&self.clients.reactor.io)[entry.begin..entry.end], ranges);
        let (keyspace, session) = (self.clients.executor.keyspace(), &mut connection.session);
        let mut reply = Reply::new(&mut connection.output, session.version);
        self.shards.clear();
        let held = match part {
            TransactionPart::Watch if session.transaction.is_some() => {
                reply.error("ERR WATCH inside MULTI is not allowed");
                None
            }
            TransactionPart::Watch => {
                let keys: Vec<Box<[u8]>> = args.iter().map(Box::from).collect();
                self.shards.extend(keys.iter().skip(1).map(|key| keyspace.place(key).shard));
                Some(Held::Watch(command, keys))
            }
            TransactionPart::Exec => {
                let changed = session.watching.as_ref().is_some_and(|watching| watching.is_changed());
                match &session.transaction {
                    None => {
                        reply.error("ERR EXEC without MULTI");
                        None
                    }
                    Some(transaction) if transaction.aborted => {
                        reply.error(ABORTED);
                        session.discard();
                        None
                    }
                    Some(_) if changed && !faults::hits(Fault::BlindExec) => {
                        reply.null_array();
                        session.discard();
                        None
                    }
                    Some(transaction) => {
                        transaction.add_shards(keyspace, &mut self.shards);
                        if let Some(watching) = &session.watching {
                            watching.add_shards(&mut self.shards);
                        }
                        Some(Held::Exec(command, kept_name(args.at(0))))
                    }
                }
            }
            TransactionPart::Script(_) => unreachable!("handled above"),
        };
        if held.is_none() && keyspace.monitors().are_there() {
            keyspace.show(command, &args, session.client.id, session.db);
        }
        connection.input.done(entry.end);
        match held {
            Some(held) => self.gather_for(index, held, false),
            None => Ran::Done,
        }
    }

    /// Resolves a script and requests its shards.
    fn gather_script(
        &mut self,
        entry: &Entry,
        command: &'static Command,
        form: ScriptForm,
        ranges: &[ArgRange],
    ) -> Ran {
        let index = entry.connection;
        let Some(connection) = &self.clients.reactor.connections[index as usize] else { return Ran::Done };
        let args = Args::new(&connection.input.bytes(&self.clients.reactor.io)[entry.begin..entry.end], ranges);
        let call = self.script_call(index, command, form, &args);
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return Ran::Done };
        connection.input.done(entry.end);
        match call {
            Ok(call) => self.gather_for_script(index, call, false),
            Err(why) => {
                Reply::new(&mut connection.output, connection.session.version).error_bytes(&why);
                Ran::Done
            }
        }
    }

    /// Requests the shards in `self.shards`, and does the work of `held` once the connection has
    /// them. `has_waited` means that the command has already waited for shards, so its window (the
    /// list of commands that ran together) has ended.
    pub(super) fn gather_for(&mut self, index: u32, held: Held, has_waited: bool) -> Ran {
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return Ran::Done };
        // While a script is busy, a request for one of its shards may be rejected with `-BUSY`. A
        // `WATCH` is not rejected, because its transaction would then run unprotected, which is
        // worse than waiting. Commands of the primary are not rejected, because this replica would
        // lose them.
        let may_be_rejected = !matches!(held, Held::Watch(..)) && connection.session.primary.is_none();
        let mut argument_bytes = held.argument_bytes();
        connection.socket.shard_work = Some(held);
        let (view, token) = (connection.session.view(), connection.socket.token());
        match self.clients.executor.gather(
            &self.shards,
            view,
            token,
            self.clients.reactor.clock.now_ms,
            may_be_rejected,
        ) {
            Ok(owned) => self.run_held(index, owned, has_waited),
            Err(mut node) => {
                if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
                    node.value.reads_as = connection.session.reads_as.clone();
                    if let Some(exec) = take_exec(connection, self.clients.executor.keyspace().users().epoch()) {
                        argument_bytes += exec.transaction.memory_bytes();
                        node.value.run_exec(exec);
                    }
                    connection.park(1, argument_bytes);
                }
                self.clients.executor.resume(node);
                Ran::Parked
            }
        }
    }

    /// Writes the replies of a transaction that ran on the thread that released the last missing
    /// shard.
    pub(super) fn write_exec_replies(&mut self, index: u32, exec: &Exec, reply: &[u8]) {
        self.clients.tally.begin_window();
        let mut is_over_limit = false;
        for (queued, ran, part) in exec.replies(reply) {
            is_over_limit |= is_aborted(part);
            if ran.is_denied {
                self.clients.tally.count_reply(part);
                continue;
            }
            let outcome = self.clients.tally.outcome(queued.command, part);
            self.clients.tally.count(queued.command, outcome);
            let Some(connection) = &self.clients.reactor.connections[index as usize] else { continue };
            if outcome == Outcome::Failed {
                note_error(&connection.session, queued.command, part);
            }
            if let Some(took) = ran.took {
                self.clients.tally.time_last(took);
                let (keyspace, client) = (self.clients.executor.keyspace(), &connection.session.client);
                let args = exec.transaction.args(queued);
                slow::note(
                    keyspace,
                    Sender::Client(client),
                    queued.command,
                    &args,
                    took,
                    self.clients.reactor.clock.now_ms,
                );
            }
        }
        // If the transaction was rejected, its only reply is an error, and `exec.took` is zero.
        self.clients.tally.count_late_reply(exec.command, reply);
        if !exec.took.is_zero() {
            self.clients.tally.end_window(exec.took.as_nanos() as u64);
            if self.stopwatch.times(exec.command, 1) {
                self.clients.time_late(index, exec.command, exec.took, || copied(std::iter::once(&*exec.name)));
            }
        }
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        if is_over_limit && connection.session.reply_mode == ReplyMode::On {
            let end = connection.output.len();
            return drop_over_limit(connection, self.clients.reactor.server, end);
        }
        if replies_wanted(&mut connection.session) {
            connection.output.extend_from_slice(reply);
        }
    }

    /// Processes a request of this worker whose shards have arrived.
    pub(super) fn gathered(&mut self, mut node: RequestNode) {
        node.value.note_arrived(self.clients.executor.keyspace());
        let owned = node.value.take_owned();
        if node.value.connection == ENDING {
            let how = self.clients.reactor.server.snapshots().shutdown_options();
            ending::end(self, None, how, owned);
            return;
        }
        if node.value.connection == WHOLE {
            return whole::run_jobs(self, owned);
        }
        if node.value.connection == LOADING {
            return loading::hand_over(self, owned);
        }
        // If the connection has been closed, no queued command runs, as if `EXEC` had not been
        // sent.
        let Some(index) = self.clients.reactor.find_token(node.value.connection) else {
            return self.clients.executor.release_shards(owned, self.clients.reactor.clock.now_ms);
        };
        let connection = self.clients.reactor.connections[index as usize].as_mut().expect("found");
        let before = connection.output.len();
        connection.unpark();
        let script = match &connection.socket.shard_work {
            Some(Held::Script(call)) => Some(call.command()),
            _ => None,
        };
        match node.value.refused {
            Some(why) => reject_held(&mut self.clients.reactor, index, why),
            None => {
                let ran = self.run_held(index, owned, true);
                note_unsynced(&mut self.clients, index);
                if ran == Ran::Parked {
                    return;
                }
            }
        }
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        connection.end_caching();
        if let Some(command) = script
            && self.clients.tally.outcome(command, &connection.output[before..]) == Outcome::Failed
        {
            self.clients.tally.count_late_failure(command);
        }
        connection.end_reply(before);
        connection.release_messages();
        if connection.session.close_after_reply {
            connection.state = State::Closing;
        }
        let added_bytes = connection.output.len().saturating_sub(before);
        if !self.clients.closed_over_limit(index, added_bytes) {
            hold_unsynced(&mut self.clients.reactor, index);
            self.clients.reactor.make_ready(index);
            self.clients.reactor.touch(index);
        }
    }

    /// Does the work for which the shards were requested, and releases the shards. If the work had
    /// to wait for its shards (`has_waited`), its time is measured from here: as in Redis, the time
    /// of waiting does not count.
    fn run_held(&mut self, index: u32, mut owned: Vec<Ownership>, has_waited: bool) -> Ran {
        let before =
            self.clients.reactor.connections[index as usize].as_ref().map_or(0, |connection| connection.output.len());
        if let Some(why) = self.clients.frozen.reply()
            && self.clients.reactor.connections[index as usize].as_ref().is_some_and(would_run_script)
        {
            self.clients.executor.release_shards(owned, self.clients.reactor.clock.now_ms);
            reject_held(&mut self.clients.reactor, index, why);
            return Ran::Done;
        }
        // The permission is checked even if the work has not waited: a script may be rerun with
        // more shards, and its permission may have been revoked during its first run.
        let has_room = !has_waited || self.make_room_for_held(index, &mut owned);
        if self.rejects_held(index, has_room) {
            self.clients.executor.release_shards(owned, self.clients.reactor.clock.now_ms);
            return Ran::Done;
        }
        // All commands of a transaction or a script see the same time.
        let now_ms = self.clients.executor.runner().time_of(self.clients.reactor.clock.now_ms, &mut owned);
        let held = self.clients.reactor.connections[index as usize]
            .as_mut()
            .and_then(|connection| connection.socket.shard_work.take());
        let began = (has_waited && WATCHING).then(Instant::now);
        match held {
            Some(Held::Script(call)) if is_paused(&self.clients.reactor, index, &call) => {
                self.clients.executor.release_shards(owned, now_ms);
                self.defer_command(index, call.command());
                if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
                    connection.socket.shard_work = Some(Held::Script(call));
                }
                return Ran::Parked;
            }
            Some(Held::All(AllShards::Shutdown(how))) => return ending::end(self, Some(index), how, owned),
            Some(Held::All(AllShards::LoadAof)) => return ending::load_aof(self, index, owned),
            Some(Held::All(AllShards::Pending)) => return whole::run_at_rest(self, index, owned),
            Some(Held::Pause(answer)) => {
                let ran = self.end_pause_reply(index, answer, owned.is_empty());
                self.clients.executor.release_shards(owned, now_ms);
                if ran == Ran::Parked {
                    self.acquire_all_for_pause(index);
                }
                return ran;
            }
            Some(Held::Script(call)) if call.is_too_narrow(self.clients.executor.keyspace()) => {
                self.clients.executor.release_shards(owned, now_ms);
                return self.gather_for_script(index, call.widened(), has_waited);
            }
            Some(Held::Script(call)) => {
                let scripted = self.run_script(index, &call, &mut owned, now_ms);
                let took = began.map(|began| began.elapsed());
                self.clients.executor.release_shards(owned, now_ms);
                if let Some(connection) = &mut self.clients.reactor.connections[index as usize]
                    && is_aborted(&connection.output[before..])
                {
                    drop_over_limit(connection, self.clients.reactor.server, before);
                }
                match scripted {
                    None => return self.gather_for_script(index, call.widened(), has_waited),
                    Some(scripted) if scripted.is_counted => self.clients.tally.expect_counted(),
                    Some(_) => {}
                }
                if let Some(took) = took {
                    self.clients.time_late(index, call.command(), took, || call.words());
                }
                return self.clients.executor.outbox().done();
            }
            Some(Held::Watch(command, words)) => {
                watch(&mut self.clients, index, &words[1..], &mut owned);
                self.end_held(index, command, || copied(words.iter().map(|word| &**word)), began);
            }
            Some(Held::Exec(command, name)) => {
                if has_waited {
                    self.clients.tally.begin_window();
                }
                self.execute_transaction(index, &mut owned, now_ms);
                if let Some(began) = began {
                    self.clients.reactor.read_clock();
                    // Commands of the transaction that weren't timed individually share the
                    // remaining time.
                    self.clients.tally.end_window(began.elapsed().as_nanos() as u64);
                }
                self.end_held(index, command, || copied(std::iter::once(&*name)), began);
                let connection = self.clients.reactor.connections[index as usize].as_mut();
                if let Some(answer) = connection.and_then(|connection| take_pause(connection, command, has_waited)) {
                    self.clients.executor.release_shards(owned, now_ms);
                    return self.hold_pause_reply(index, before, answer);
                }
            }
            None => {}
        }
        self.clients.executor.release_shards(owned, now_ms);
        self.clients.executor.outbox().done()
    }

    /// Sends a command to the monitors while its shards are held. If the command had to wait for
    /// its shards, also records its time since `began`.
    fn end_held(&mut self, index: u32, command: &'static Command, words: impl Fn() -> Words, began: Option<Instant>) {
        let keyspace = self.clients.executor.keyspace();
        if began.is_none() && !keyspace.monitors().are_there() {
            return;
        }
        let took = began.map(|began| began.elapsed());
        if keyspace.monitors().are_there()
            && let Some(Connection { session, .. }) = &self.clients.reactor.connections[index as usize]
        {
            let (bytes, ranges) = words();
            keyspace.show(command, &Args::new(&bytes, &ranges), session.client.id, session.db);
        }
        if let Some(took) = took
            && self.stopwatch.times(command, words().1.len())
        {
            self.clients.time_late(index, command, took, words);
        }
    }

    /// Makes room ([`EvictionState::make_room`](crate::clients::EvictionState::make_room)) for a
    /// command whose requested shards have arrived. Returns whether the command may run.
    pub(super) fn make_room_for_held(&mut self, index: u32, held: &mut [Ownership]) -> bool {
        if !self.clients.executor.keyspace().tuning.is_limited() {
            return true;
        }
        self.memory.make_room(&mut self.clients, held);
        // Shards from which keys were evicted are released now, not after the command, because a
        // script may run for a long time.
        self.clients.executor.evictor().free_evicted();
        let Some(connection) = &self.clients.reactor.connections[index as usize] else { return true };
        let flags = match &connection.socket.shard_work {
            Some(Held::Script(call)) => call.flags(),
            Some(Held::Exec(..)) => {
                connection.session.transaction.as_ref().map_or(Flags::empty(), |transaction| transaction.flags())
            }
            _ => Flags::empty(),
        };
        !self.memory.is_out() || !flags.contains(Flags::DENYOOM) || connection.session.primary.is_some()
    }
}

impl Abandon for Held {
    fn abandon(self, server: &Server) {
        if let Held::Pause(answer) = self {
            answer.start_duration(server);
        }
    }
}
