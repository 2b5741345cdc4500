//! `MULTI` and what follows: commands are queued, `EXEC` has the shards of all of them brought here, and runs them.
//!
//! The connection's worker runs `EXEC` and `WATCH` itself while it holds shards: what they work with, the session, belongs to it. Where a
//! shard is busy, the connection is parked as for any other command; a transaction whose commands need nothing but their keys then
//! runs where the last shard is freed, and only others have their shards brought here.

use std::borrow::Cow;
use std::time::Instant;

use pantala_engine::client::{LocalContext, Session};
use pantala_engine::command::{Command, Handler, Route, ScriptForm, TransactionPart};
use pantala_engine::eviction::OUT_OF_MEMORY;
use pantala_engine::exec::Exec;
use pantala_engine::executor::{Call, Ran};
use pantala_engine::faults::{self, Fault};
use pantala_engine::ownership::Ownership;
use pantala_engine::request::Parcel;
use pantala_engine::slowlog::Sender;
use pantala_engine::transaction::{Queued, Transaction, discarded};
use pantala_engine::tuning::WATCHING;
use pantala_resp::{ArgRange, Args, Reply, is_given_up};
use pantala_runtime::EventLoop;
use pantala_session::queue::{QUEUED, ToQueue};
use pantala_session::replies::replies_wanted;

use super::pause::PauseAnswer;
use super::scripts::{ScriptCall, copied};
use super::slow::Words;
use super::window::{Entry, What};
use super::{Connection, Dispatcher, State, refusal, run, scripts};
use crate::stats::Outcome;

/// What a connection does with the shards that it has asked for.
pub enum Held {
    /// Begins to watch keys: `WATCH`, and its arguments with its name.
    Watch(&'static Command, Vec<Box<[u8]>>),
    /// Runs its transaction.
    Exec(&'static Command, ExecName),
    /// Runs a script.
    Script(Box<ScriptCall>),
    /// Is told that a pause has begun.
    Pause(Box<PauseAnswer>),
}

/// `EXEC` as the client spells it, for who sees every command.
type ExecName = [u8; 4];

impl Held {
    /// Bytes of the arguments that are kept here. Those of a transaction stay with its session.
    fn argument_bytes(&self) -> usize {
        match self {
            Held::Watch(_, words) => words.iter().map(|word| word.len()).sum(),
            Held::Exec(..) | Held::Pause(_) => 0,
            Held::Script(call) => call.kept_bytes(),
        }
    }
}

/// The answer to `EXEC` when a command could not be queued.
const ABORTED: &str = "EXECABORT Transaction discarded because of previous errors.";

/// The error for a command that is refused: of an `EXEC`, which ends its transaction, it says so.
pub fn refusal<'a>(command: &Command, session: &mut Session, why: &'a [u8]) -> Cow<'a, [u8]> {
    if !matches!(command.handler, Handler::Transaction(TransactionPart::Exec)) {
        return why.into();
    }
    session.discard();
    let reason = why.strip_prefix(b"ERR ").unwrap_or(why);
    discarded(reason).into()
}

/// Takes the transaction of a connection that is to run it, when any thread can.
fn take_exec(connection: &mut Connection) -> Option<Box<Exec>> {
    let Some(Held::Exec(command, name)) = connection.socket.held else { return None };
    let session = &mut connection.session;
    let transaction = session.transaction.take_if(|transaction| transaction.can_travel())?;
    let watching = session.watching.take();
    session.tell_transaction();
    connection.socket.held = None;
    Some(Box::new(Exec::new(transaction, watching, command, name)))
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Queues a command of a connection that has sent `MULTI`.
    #[cold]
    pub(super) fn queue(&mut self, entry: &Entry, command: &'static Command, ranges: &[ArgRange]) {
        let (keyspace, server) = (self.executor.keyspace(), self.reactor.server);
        let Some(connection) = &mut self.reactor.connections[entry.connection as usize] else { return };
        let before = connection.output.len();
        let place = if let What::Single(_, place) = entry.what { Some(place) } else { None };
        let queued = ToQueue { command, at: entry.begin..entry.end, ranges, place };
        let flags = |command: &Command, args: &Args<'_>| scripts::flags_of(server, command, args);
        if !connection.queue(&self.reactor.io, keyspace, queued, flags) {
            self.tally.count_reply(&connection.output[before..]);
            self.tally.count(command, Outcome::Rejected);
        }
        connection.end_reply(before);
        self.closed_over_limit(entry.connection, QUEUED.len());
    }

    /// An `EXEC` of commands whose keys have several slots, in a cluster: ends the transaction.
    #[cold]
    pub(super) fn refuse_exec(&mut self, entry: &Entry) {
        let Some(connection) = &mut self.reactor.connections[entry.connection as usize] else { return };
        let What::Local(command) = entry.what else { return };
        let before = connection.output.len();
        connection.session.discard();
        Reply::new(&mut connection.output, connection.session.version).error(refusal::CROSS_SLOT);
        self.tally.count_reply(&connection.output[before..]);
        self.tally.count(command, Outcome::Rejected);
        connection.end_reply(before);
        connection.input.done(entry.end);
    }

    /// `EXEC` and `WATCH`: asks for their shards.
    pub(super) fn gather(
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
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return Ran::Done };
        let args = Args::new(&connection.input.bytes(&self.reactor.io)[entry.begin..entry.end], ranges);
        let (keyspace, session) = (self.executor.keyspace(), &mut connection.session);
        let mut reply = Reply::new(&mut connection.output, session.version);
        self.scratch.shards.clear();
        let held = match part {
            TransactionPart::Watch if session.transaction.is_some() => {
                reply.error("ERR WATCH inside MULTI is not allowed");
                None
            }
            TransactionPart::Watch => {
                let keys: Vec<Box<[u8]>> = args.iter().map(Box::from).collect();
                self.scratch.shards.extend(keys.iter().skip(1).map(|key| keyspace.place(key).shard));
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
                        transaction.add_shards(keyspace, &mut self.scratch.shards);
                        if let Some(watching) = &session.watching {
                            watching.add_shards(&mut self.scratch.shards);
                        }
                        Some(Held::Exec(command, args.at(0).try_into().unwrap_or(*b"EXEC")))
                    }
                }
            }
            TransactionPart::Script(_) => unreachable!("seen to above"),
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

    /// A script: finds it, and asks for its shards.
    fn gather_script(
        &mut self,
        entry: &Entry,
        command: &'static Command,
        form: ScriptForm,
        ranges: &[ArgRange],
    ) -> Ran {
        let index = entry.connection;
        let Some(connection) = &self.reactor.connections[index as usize] else { return Ran::Done };
        let args = Args::new(&connection.input.bytes(&self.reactor.io)[entry.begin..entry.end], ranges);
        let call = self.script_call(index, command, form, &args);
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return Ran::Done };
        connection.input.done(entry.end);
        match call {
            Ok(call) => self.gather_for_script(index, call, false),
            Err(why) => {
                Reply::new(&mut connection.output, connection.session.version).error_bytes(&why);
                Ran::Done
            }
        }
    }

    /// Asks for the shards in `self.scratch.shards`, and does with them what they are for as soon as they are there. `has_waited`: the command has
    /// waited before, and the window that it stood in has run.
    pub(super) fn gather_for(&mut self, index: u32, held: Held, has_waited: bool) -> Ran {
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return Ran::Done };
        // A transaction that goes on without its watch would be worse than one that waits.
        let may_be_refused = !matches!(held, Held::Watch(..));
        let mut argument_bytes = held.argument_bytes();
        connection.socket.held = Some(held);
        let (view, token) = (connection.session.view(), connection.socket.token());
        match self.executor.gather(&self.scratch.shards, view, token, self.reactor.clock.now_ms, may_be_refused) {
            Ok(owned) => self.run_held(index, owned, has_waited),
            Err(mut parcel) => {
                if let Some(connection) = &mut self.reactor.connections[index as usize] {
                    parcel.value.reads_as = connection.session.reads_as.clone();
                    if let Some(exec) = take_exec(connection) {
                        argument_bytes += exec.transaction.bytes();
                        parcel.value.run_exec(exec);
                    }
                    connection.park(1, argument_bytes);
                }
                self.executor.resume(parcel);
                Ran::Parked
            }
        }
    }

    /// A transaction that was run where its shards were.
    pub(super) fn answer_exec(&mut self, index: u32, exec: &Exec, reply: &[u8]) {
        self.tally.begin_window();
        for (queued, ran, part) in exec.replies(reply) {
            if let Some(connection) = &mut self.reactor.connections[index as usize] {
                connection.session.close_after_reply |= is_given_up(part);
            }
            let outcome = self.tally.outcome(queued.command, part);
            self.tally.count(queued.command, outcome);
            let Some(connection) = &self.reactor.connections[index as usize] else { continue };
            if let Some(took) = ran.took {
                self.tally.time_last(took);
                let (keyspace, client) = (self.executor.keyspace(), &connection.session.client);
                let args = exec.transaction.args(queued);
                super::slow::note(
                    keyspace,
                    Sender::Client(client),
                    queued.command,
                    &args,
                    took,
                    self.reactor.clock.now_ms,
                );
            }
        }
        // Refused, it has one reply, and took no time.
        self.tally.count_late_reply(exec.command, reply);
        if !exec.took.is_zero() {
            self.tally.end_window(exec.took);
            if self.stopwatch.times(exec.command, 1) {
                self.time_late(index, exec.command, exec.took, || copied(std::iter::once(exec.name.as_slice())));
            }
        }
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        if replies_wanted(&mut connection.session) {
            connection.output.extend_from_slice(reply);
        }
    }

    /// The shards have come that a connection asked for.
    pub(super) fn brought(&mut self, mut parcel: Parcel) {
        let owned = parcel.value.take_owned();
        // Where the connection has gone meanwhile, what it queued has not begun: it is as if it had never sent EXEC.
        let Some(index) = self.reactor.find_token(parcel.value.connection) else {
            return self.executor.give_back(owned, self.reactor.clock.now_ms);
        };
        let connection = self.reactor.connections[index as usize].as_mut().expect("found");
        let before = connection.output.len();
        connection.unpark();
        let script = match &connection.socket.held {
            Some(Held::Script(call)) => Some(call.command()),
            _ => None,
        };
        match parcel.value.refused {
            Some(why) => self.refuse_held(index, why),
            None if self.run_held(index, owned, true) == Ran::Parked => return,
            None => {}
        }
        self.end_caching(index);
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        if let Some(command) = script
            && self.tally.outcome(command, &connection.output[before..]) == Outcome::Failed
        {
            self.tally.count_late_failure(command);
        }
        connection.end_reply(before);
        connection.release_news();
        if connection.session.close_after_reply {
            connection.state = State::Closing;
        }
        let added_bytes = connection.output.len().saturating_sub(before);
        if !self.closed_over_limit(index, added_bytes) {
            self.reactor.make_ready(index);
            self.reactor.touch(index);
        }
    }

    /// Does what the shards were asked for, and gives them back. Where it has waited for them its time is taken from here: as in Redis
    /// it is that of its work.
    fn run_held(&mut self, index: u32, mut owned: Vec<Ownership>, has_waited: bool) -> Ran {
        let before = self.reactor.connections[index as usize].as_ref().map_or(0, |connection| connection.output.len());
        if let Some(why) = self.busy.reply()
            && self.would_run_script(index)
        {
            self.executor.give_back(owned, self.reactor.clock.now_ms);
            self.refuse_held(index, why);
            return Ran::Done;
        }
        if has_waited && !self.has_room_for_held(index, &mut owned) {
            self.executor.give_back(owned, self.reactor.clock.now_ms);
            self.refuse_held(index, OUT_OF_MEMORY);
            return Ran::Done;
        }
        // A transaction or a script sees this time from its beginning to its end.
        let now_ms = self.reactor.clock.now_ms;
        let held =
            self.reactor.connections[index as usize].as_mut().and_then(|connection| connection.socket.held.take());
        let began = (has_waited && WATCHING).then(Instant::now);
        match held {
            Some(Held::Script(call)) if self.is_script_paused(index, &call) => {
                self.executor.give_back(owned, now_ms);
                self.put_off(index, call.command());
                if let Some(connection) = &mut self.reactor.connections[index as usize] {
                    connection.socket.held = Some(Held::Script(call));
                }
                return Ran::Parked;
            }
            Some(Held::Pause(answer)) => {
                let ran = self.end_pause_answer(index, answer);
                self.executor.give_back(owned, now_ms);
                if ran == Ran::Parked {
                    self.take_all_for_pause(index);
                }
                return ran;
            }
            Some(Held::Script(call)) if call.is_too_narrow(self.executor.keyspace()) => {
                self.executor.give_back(owned, now_ms);
                return self.gather_for_script(index, call.widened(), has_waited);
            }
            Some(Held::Script(call)) => {
                let scripted = self.run_script(index, &call, &mut owned, now_ms);
                let took = began.map(|began| began.elapsed());
                self.executor.give_back(owned, now_ms);
                match scripted {
                    None => return self.gather_for_script(index, call.widened(), has_waited),
                    Some(scripted) if scripted.is_counted => self.tally.expect_counted(),
                    Some(_) => {}
                }
                if let Some(took) = took {
                    self.time_late(index, call.command(), took, || call.words());
                }
                return self.executor.done();
            }
            Some(Held::Watch(command, words)) => {
                self.watch(index, &words[1..], &mut owned);
                self.end_held(index, command, || copied(words.iter().map(|word| &**word)), began);
            }
            Some(Held::Exec(command, name)) => {
                if has_waited {
                    self.tally.begin_window();
                }
                self.execute_transaction(index, &mut owned, now_ms);
                if let Some(began) = began {
                    self.reactor.read_clock();
                    // Its plain commands share what its others leave of its time.
                    self.tally.end_window(began.elapsed());
                }
                self.end_held(index, command, || copied(std::iter::once(name.as_slice())), began);
                if let Some(answer) = self.take_pause(index, command, has_waited) {
                    self.executor.give_back(owned, now_ms);
                    return self.answer_paused(index, before, answer);
                }
            }
            None => {}
        }
        self.executor.give_back(owned, now_ms);
        self.executor.done()
    }

    /// The pause that a transaction has begun, which has run.
    fn take_pause(&mut self, index: u32, exec: &'static Command, has_waited: bool) -> Option<Box<PauseAnswer>> {
        let pause = self.reactor.connections[index as usize].as_mut()?.session.pause.take()?;
        // That of one that has waited was told.
        let timed = (!has_waited).then_some((exec, 1));
        Some(Box::new(PauseAnswer::new(*pause, timed, false)))
    }

    /// Whether what a connection has asked for shards for is a script, or has one.
    fn would_run_script(&self, index: u32) -> bool {
        let Some(connection) = &self.reactor.connections[index as usize] else { return false };
        let is_script = |queued: &Queued| matches!(queued.command.handler, Handler::Transaction(_));
        match &connection.socket.held {
            Some(Held::Script(_)) => true,
            Some(Held::Exec(..)) => connection
                .session
                .transaction
                .as_ref()
                .is_some_and(|transaction| transaction.queue().iter().any(is_script)),
            _ => false,
        }
    }

    /// Answers what a connection has asked for shards for: a script is busy.
    fn refuse_held(&mut self, index: u32, why: &'static str) {
        let Some(Connection { session, output, socket, .. }) = &mut self.reactor.connections[index as usize] else {
            return;
        };
        match socket.held.take() {
            Some(Held::Exec(..)) => {
                session.discard();
                Reply::new(output, session.version).error_bytes(&discarded(why.as_bytes()));
            }
            held => {
                Reply::new(output, session.version).error(why);
                if let Some(Held::Pause(answer)) = held {
                    self.refuse_pause(&answer);
                }
            }
        }
    }

    /// Shows a command to who sees every command, while its shards are held, and tells its time if it had waited for them: since `began`.
    fn end_held(&mut self, index: u32, command: &'static Command, words: impl Fn() -> Words, began: Option<Instant>) {
        let keyspace = self.executor.keyspace();
        if began.is_none() && !keyspace.monitors().are_there() {
            return;
        }
        let took = began.map(|began| began.elapsed());
        if keyspace.monitors().are_there()
            && let Some(Connection { session, .. }) = &self.reactor.connections[index as usize]
        {
            let (bytes, ranges) = words();
            keyspace.show(command, &Args::new(&bytes, &ranges), session.client.id, session.db);
        }
        if let Some(took) = took
            && self.stopwatch.times(command, words().1.len())
        {
            self.time_late(index, command, took, words);
        }
    }

    fn watch(&mut self, index: u32, keys: &[Box<[u8]>], owned: &mut [Ownership]) {
        let Some(Connection { session, output, .. }) = &mut self.reactor.connections[index as usize] else { return };
        let view = session.view();
        let watching = session.watching.get_or_insert_default();
        watching.add(&mut self.executor.look(&view, owned, self.reactor.clock.now_ms), keys);
        session.client.tell_watch(watching);
        Reply::new(output, view.version).ok();
    }

    fn execute_transaction(&mut self, index: u32, owned: &mut Vec<Ownership>, now_ms: i64) {
        let Some(Connection { session, output, .. }) = &mut self.reactor.connections[index as usize] else { return };
        let view = session.view();
        let (transaction, watching) = (session.transaction.take(), session.watching.take());
        session.tell_transaction();
        let Some(transaction) = transaction else { return };
        let is_intact =
            watching.is_none_or(|watching| watching.is_intact(&mut self.executor.look(&view, owned, now_ms)));
        if !is_intact && !faults::hits(Fault::BlindExec) {
            return Reply::new(output, view.version).null_array();
        }
        Reply::new(output, view.version).array(transaction.queue().len());
        if let Some(connection) = &mut self.reactor.connections[index as usize] {
            connection.begin_exec();
        }
        self.executor.begin_unit();
        for (at, queued) in transaction.queue().iter().enumerate() {
            faults::pause(Fault::PauseHolding);
            if at + 1 == transaction.queue().len() && faults::hits(Fault::TornExec) {
                self.tear(&transaction, queued, owned);
            }
            self.run_queued(index, &transaction, queued, owned, now_ms);
        }
        self.executor.end_unit(owned);
        if let Some(connection) = &mut self.reactor.connections[index as usize] {
            connection.end_exec();
            connection.session.keep_ended(transaction);
        }
    }

    /// [`Fault::TornExec`].
    #[cold]
    fn tear(&mut self, transaction: &Transaction, last: &Queued, owned: &mut Vec<Ownership>) {
        let mut needed = Vec::new();
        if !transaction.find_shards(last, &mut needed) {
            return;
        }
        self.take_anew(&needed, owned);
    }

    /// Gives shards back, and takes those (ascending) when others have had them. Whatever came for this worker meanwhile is seen to.
    #[cold]
    pub(super) fn take_anew(&mut self, needed: &[u32], owned: &mut Vec<Ownership>) {
        self.executor.give_back(std::mem::take(owned), self.reactor.clock.now_ms);
        faults::stall();
        loop {
            owned.extend(needed.iter().map_while(|shard| self.executor.try_take(*shard)));
            if owned.len() == needed.len() {
                return;
            }
            self.executor.give_back(std::mem::take(owned), self.reactor.clock.now_ms);
            // Who has them may wait for this worker.
            self.receive_messages();
            self.executor.go_on();
            faults::stall();
        }
    }

    /// Runs one command of a transaction.
    fn run_queued(
        &mut self,
        index: u32,
        transaction: &Transaction,
        queued: &Queued,
        owned: &mut Vec<Ownership>,
        now_ms: i64,
    ) {
        let command = queued.command;
        if run::ends_listening(command) {
            self.hand_out_before_leaving(index);
        }
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        let bytes = transaction.args(queued).iter().map(<[u8]>::len).sum();
        let began = self.stopwatch.begin(command, transaction.args(queued).len(), bytes);
        let (args, before) = (transaction.args(queued), connection.output.len());
        match command.handler {
            Handler::Local(handler) => {
                connection.tell_buffers(&self.reactor.io);
                let Connection { session, output, confirmed, .. } = connection;
                let (keyspace, host, version) = (self.executor.keyspace(), self.reactor.server, session.version);
                let mut context = LocalContext { session, keyspace, host, now_ms };
                handler(&mut context, &args, &mut Reply::new(output, version));
                if keyspace.monitors().are_there() {
                    keyspace.show(command, &args, context.session.client.id, context.session.db);
                }
                if output.get(before) != Some(&b'-') {
                    self.executor.propagate_local(command, session.db, &args);
                }
                if run::is_pushed(command) && output[before..].first() != Some(&b'-') {
                    confirmed.extend_from_slice(&output[before..]);
                }
            }
            Handler::Keyed(_) => {
                let (keyspace, view) = (self.executor.keyspace(), connection.session.view());
                if !transaction.find_shards(queued, &mut self.scratch.shards) {
                    match command.route {
                        Route::Custom(choose) => choose(keyspace, &view, &args, &mut self.scratch.shards),
                        _ => self.scratch.shards.extend(0..keyspace.shard_count()),
                    }
                    if self.scratch.shards.is_empty() {
                        self.scratch.shards.push(0);
                    }
                    self.scratch.shards.sort_unstable();
                    self.scratch.shards.dedup();
                }
                let (first_key, connection_token) = (queued.first_key, connection.socket.token());
                let reads_as = connection.session.reads_as.as_ref();
                let call =
                    Call { command, args, first_key, session: view, reads_as, connection: connection_token, now_ms };
                self.executor.run_held(&call, &self.scratch.shards, owned, &mut connection.output);
            }
            Handler::Transaction(TransactionPart::Script(form)) => {
                let scripted = self.run_queued_script(index, command, form, &args, owned, now_ms);
                if scripted.is_counted {
                    self.tally.expect_counted();
                }
            }
            Handler::Transaction(_) | Handler::Container => unreachable!("runs at once, or not at all: never queued"),
        }
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        let reply = &connection.output[before..];
        connection.session.close_after_reply |= is_given_up(reply);
        let outcome = self.tally.outcome(command, reply);
        self.tally.count(command, outcome);
        if began.is_some() {
            let took = self.stopwatch.end(began);
            self.tally.time_last(took);
            let (keyspace, client) = (self.executor.keyspace(), &connection.session.client);
            let args = transaction.args(queued);
            super::slow::note(keyspace, Sender::Client(client), command, &args, took, now_ms);
        }
    }
}
