//! Parses commands into windows (lists of commands) and runs them. Each turn of the worker's event
//! loop calls [`Windows::run_ready`].
//!
//! If a command waits (for shards, a key, or the end of a pause), the later commands of its
//! connection stay in the connection's input. So the commands of a connection run in the order in
//! which the client sent them.

use std::time::Duration;

use pantala_base::Moment;
use pantala_engine::client::{LocalCall, LocalCaller, ReplyMode, run_local};
use pantala_engine::command::{Command, Flags, Handler, Slots, TransactionPart};
use pantala_engine::executor::{Call, Executor, Ran};
use pantala_engine::faults::{self, Fault};
use pantala_engine::keyspace::Execution;
use pantala_engine::routing::add_shards;
use pantala_engine::tuning::WATCHING;
use pantala_resp::{ArgRange, Args, Limits, is_aborted};
use pantala_runtime::EventLoop;
use pantala_session::access::{forbidden, is_restricted};
use pantala_session::replies::needs_settling;
use pantala_session::{Parsed, State};

use super::hand_over::HANDED_BYTES_MIN;
use super::waits::block_without_keys;
use super::{Runner, Windows};
use crate::clients::primary::{self, note_error};
use crate::clients::slow::LARGE_BYTES;
use crate::clients::{limit_stranger, note_unsynced, reply_limit};
use crate::config::Settings;
use crate::dispatch::ending::acquire_all_for;
use crate::dispatch::whole::rest;
use crate::dispatch::window::{Entry, What, Window, classify};
use crate::dispatch::{
    COMMANDS_PER_TURN_MAX, Connection, Dispatcher, PauseReply, SUBSCRIPTION_CHANGES, end_unplain_reply, flags_of,
};
use crate::reactor::token;
use crate::stats::Outcome;

/// The reason why [`Windows::fill`] has returned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// The next command is incomplete.
    Incomplete,
    /// The next command is incomplete, and the pending input exceeds its limit.
    TooMuch,
    /// The window is full and must run.
    Window,
    /// The window must run before more is parsed, because the client has not authenticated.
    Stranger,
    /// The connection has used up its commands for this turn.
    TurnOver,
    /// Protocol error: no command follows.
    Broken,
    /// A command of the connection is blocked, so later commands must wait.
    Blocked,
    /// The connection is closed, or runs no commands for another reason.
    NotOpen,
    /// The connection is the link to the primary, and the server has work that needs all shards,
    /// such as the start of a snapshot. This work must run before the link's next command
    /// (`dispatch::whole`).
    Rest,
}

impl Windows {
    /// Runs the commands of connections with input, window by window.
    pub fn run_ready<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>) {
        d.clients.executor.runner().begin_turn();
        d.clients.executor.serve_deferred();
        let mut ready = d.clients.reactor.take_ready();
        let mut again = Vec::new();
        for index in ready.drain(..) {
            // `begin` adds the connection to the reactor's touched list, even if none of its
            // commands runs. At the end of the turn, the worker calls `Reactor::finish` for each
            // connection in this list, which sends the connection's output.
            if d.clients.reactor.begin(index) && self.parse(d, index) {
                again.push(index);
            }
        }
        self.run_window(d);
        for index in again {
            d.clients.reactor.make_ready(index);
        }
        d.clients.reactor.keep_ready(ready);
        self.window.shrink();
        d.receive_own_replies();
    }

    /// Parses a connection's input into the window, and runs the window whenever it is full.
    /// Returns whether there may be more to parse in the next turn.
    fn parse<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, index: u32) -> bool {
        let mut left = COMMANDS_PER_TURN_MAX;
        loop {
            match self.fill(d, index, &mut left) {
                Fill::Incomplete | Fill::NotOpen => return false,
                Fill::Rest => rest(d, index),
                Fill::Window => {
                    let took_ns = self.run_window(d);
                    d.clients.reactor.clock.add_ns(took_ns, d.clients.reactor.server);
                    // If a script in the window ran for long, the worker has run turns of its event
                    // loop within the script. The end of such a turn empties the touched list. So
                    // the connection is added again. Otherwise, the output of its later commands
                    // would not be sent at the end of this turn.
                    d.clients.reactor.touch(index);
                }
                Fill::Stranger => {
                    let took_ns = self.run_window(d);
                    d.clients.reactor.clock.add_ns(took_ns, d.clients.reactor.server);
                    d.clients.reactor.touch(index);
                    limit_stranger(&mut d.clients, index);
                }
                Fill::TurnOver => return true,
                Fill::Broken => {
                    if self.window.is_full() {
                        self.run_window(d);
                    }
                    return false;
                }
                Fill::TooMuch => {
                    self.run_window(d);
                    d.clients.close(index);
                    return false;
                }
                Fill::Blocked => {
                    self.close_if_too_much(d, index);
                    return false;
                }
            }
        }
    }

    /// Parses at most `left` commands of a connection into the window. Parses only one command if
    /// the client has not authenticated.
    #[inline]
    fn fill<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, index: u32, left: &mut usize) -> Fill {
        let reactor = &mut d.clients.reactor;
        let Some(connection) = &mut reactor.connections[index as usize] else { return Fill::NotOpen };
        match connection.state {
            State::Open => {}
            State::Blocked => return Fill::Blocked,
            _ => return Fill::NotOpen,
        }
        // The input limits of an unauthenticated client depend on the outcome of its previous
        // command. So each command must run before the next is parsed.
        let is_alone = !connection.session.is_authenticated();
        let (keyspace, renames, db) = (reactor.server.keyspace(), reactor.server.renames(), connection.session.db);
        let mut max_bulk_len = usize::try_from(reactor.settings.proto_max_bulk_len_bytes).unwrap_or(usize::MAX);
        if let Some(link) = &mut connection.session.primary {
            if std::mem::take(&mut link.wants_rest) {
                return Fill::Rest;
            }
            // The primary's limit may be higher than this server's.
            max_bulk_len = Limits::PRIMARY_BULK_LEN;
        }
        loop {
            if *left == 0 {
                return Fill::TurnOver;
            }
            let first_arg = self.window.ranges.len();
            let (begin, end, is_inline, what) =
                match connection.parse(&mut reactor.io, &mut self.window.ranges, max_bulk_len) {
                    Ok(None) if has_too_much_input(connection, &reactor.settings) => return Fill::TooMuch,
                    Ok(None) => return Fill::Incomplete,
                    Ok(Some(Parsed { begin, end, is_inline })) => {
                        let bytes = &connection.input.bytes(&reactor.io)[begin..end];
                        let args = Args::new(bytes, &self.window.ranges[first_arg..]);
                        (begin, end, is_inline, classify(keyspace, renames, &mut self.window.recent, db, &args))
                    }
                    Err(error) => (0, 0, false, What::Broken(error)),
                };
            let is_broken = matches!(what, What::Broken(_) | What::Browser);
            self.window.entries.push(Entry {
                connection: index,
                db,
                begin,
                end,
                is_inline,
                first_arg: first_arg as u32,
                args: (self.window.ranges.len() - first_arg) as u32,
                what,
            });
            *left -= 1;
            if is_broken {
                return Fill::Broken;
            }
            if is_alone {
                return Fill::Stranger;
            }
            if self.window.is_full() {
                return Fill::Window;
            }
        }
    }

    /// Closes a blocked connection whose pending input exceeds its limit.
    #[cold]
    fn close_if_too_much<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, index: u32) {
        let reactor = &d.clients.reactor;
        if let Some(connection) = &reactor.connections[index as usize]
            && has_too_much_input(connection, &reactor.settings)
        {
            d.clients.close(index);
        }
    }

    /// Runs all commands of the window in order, and empties the window. Returns the run time of
    /// the window, ns, for `Clock::add_ns`. Returns `u64::MAX` if the window was not timed, because
    /// `add_ns` then reads the clock again.
    fn run_window<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>) -> u64 {
        if self.window.entries.is_empty() {
            return 0;
        }
        self.window.prefetch_entries(d.clients.reactor.server.keyspace());
        d.clients.reactor.stats.windows.add(1);
        let Windows { window, runner } = self;
        d.clients.tally.begin_window();
        let began = d.stopwatch.begin_window();
        if d.clients.reactor.server.keyspace().layout().execution == Execution::Owner {
            match runner.run_for_homes(d, std::mem::take(window)) {
                Some(back) => *window = back,
                None => {
                    d.clients.tally.begin_window();
                    return 0;
                }
            }
        } else {
            let keyspace = d.clients.reactor.server.keyspace();
            let is_shared = keyspace.ports().len() > 1;
            let is_beside_scripts = is_shared && keyspace.all_held.is_recent(d.clients.reactor.clock.turn_ran_ms);
            let (mut at, mut looked_ahead) = (0, 0);
            while let Some(entry) = window.entries.get(at) {
                if at >= looked_ahead {
                    looked_ahead = at + runner.look_ahead(d, window, at);
                }
                if !is_beside_scripts && matches!(entry.what, What::Single(..)) {
                    let plain = runner.run_plain(d, window, at..window.entries.len(), looked_ahead, is_shared);
                    if plain > 0 {
                        note_unsynced(&mut d.clients, entry.connection);
                        at += plain;
                        continue;
                    }
                }
                if let Some(command) = may_be_script(entry) {
                    match runner.run_suspended(d, std::mem::take(window), at, command) {
                        Some(back) => *window = back,
                        None => {
                            d.clients.tally.begin_window();
                            return 0;
                        }
                    }
                    note_unsynced(&mut d.clients, window.entries[at].connection);
                    at += 1;
                    continue;
                }
                if is_beside_scripts {
                    let waiting = runner.wait_together(d, window, at);
                    if waiting > 0 {
                        at += waiting;
                        continue;
                    }
                }
                // Another worker may have last written the next shard's gate (the word that says
                // whether the shard is held). So the gate's cache line is prefetched while this
                // command runs.
                if is_shared
                    && let Some(Entry { what: What::Single(_, next), .. }) = window.entries.get(at + 1)
                    && !d.clients.executor.hot.has(next.hash)
                {
                    keyspace.prefetch_gate(next.shard);
                }
                runner.run_entry(d, entry, window.ranges_of(entry));
                if faults::hits(Fault::Overtaking) {
                    runner.overtake(d, window, at);
                }
                at += 1;
            }
        }
        let mut took_ns = u64::MAX;
        if let Some(began) = began {
            let ended = Moment::now();
            took_ns = ended.ns_since(began);
            d.clients.reactor.clock.end_window(ended);
            d.clients.tally.end_window(took_ns);
            runner.end_watch(d, window, began, ended);
        }
        hold_back(d, window);
        window.clear();
        took_ns
    }
}

impl Runner {
    /// Runs one command, if its connection is still open.
    pub(super) fn run_entry<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, entry: &Entry, ranges: &[ArgRange]) {
        if self.run_one(d, entry, ranges) {
            self.end_caching_of(d, entry);
        }
        note_unsynced(&mut d.clients, entry.connection);
    }

    /// Runs one command, if its connection is still open. Returns whether `CLIENT CACHING` may have
    /// applied to it.
    #[inline(always)]
    fn run_one<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, entry: &Entry, ranges: &[ArgRange]) -> bool {
        let users = d.clients.executor.keyspace().users();
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return false };
        if connection.state == State::Open && !connection.session.refresh_rules(users) {
            // The connection's user was deleted, so no more of its commands run.
            connection.state = State::Closing;
            return false;
        }
        if d.clients.reactor.server.keyspace().tuning.is_limited() && !self.has_room(d, entry, ranges) {
            return true;
        }
        if let What::Local(command) = entry.what
            && command.flags.intersects(SUBSCRIPTION_CHANGES)
        {
            d.deliver_before(entry.connection, command);
        }
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return false };
        if connection.state != State::Open {
            return false;
        }
        if connection.output.capacity() == 0 {
            connection.renew_output(&mut d.clients.reactor.spare);
        }
        let (What::Single(command, _) | What::Keyed(command) | What::Local(command)) = entry.what else {
            self.reject_entry(d, entry, ranges);
            return false;
        };
        if connection.session.primary.is_some() {
            primary::begin_command(connection, &d.clients.reactor.io, entry.begin);
        }
        let session = &connection.session;
        session.client.set_command(command);
        // A transaction may contain `CLIENT CACHING`, which is known only after the transaction has
        // run. So `EXEC` is treated as if it did.
        let is_exec = matches!(command.handler, Handler::Transaction(TransactionPart::Exec));
        let is_cached = session.caching || is_exec;
        // `is_restricted` is a cheap test (five loads) that is false for almost all clients. Only
        // restricted clients and protected commands need the full check, `forbidden`.
        if is_restricted(session, users) || command.flags.contains(Flags::PROTECTED) {
            let args = Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges);
            if forbidden(command, &args, session, users, d.clients.reactor.server).is_some() {
                self.reject_entry(d, entry, ranges);
                return is_cached;
            }
        }
        if d.clients.reactor.server.keyspace().tuning.refuses() && self.rejects(d, entry, command, ranges) {
            return is_cached;
        }
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return false };
        let session = &connection.session;
        if d.clients.reactor.server.is_paused(command, session, d.clients.reactor.clock.now_ms, || {
            flags_of(
                d.clients.reactor.server,
                command,
                &Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges),
            )
        }) {
            d.defer_command(entry.connection, command);
            return false;
        }
        if let Some(transaction) = &session.transaction {
            if !command.flags.contains(Flags::UNQUEUED) {
                self.queue(d, entry, command, ranges);
                return false;
            }
            if is_exec && d.clients.reactor.server.keyspace().is_cluster() && transaction.slots() == Slots::Several {
                self.reject_exec(d, entry);
                return is_cached;
            }
        }
        let before = connection.output.len();
        let began = d.stopwatch.begin(command, ranges.len(), entry.end - entry.begin);
        let is_large = began.is_some() && entry.end - entry.begin >= HANDED_BYTES_MIN;
        let handed = if is_large { self.call_handing_over(d, entry, command, ranges) } else { None };
        let ran = match handed {
            Some(ran) => ran,
            None => self.call(d, entry, command, ranges),
        };
        self.end_entry(d, entry, command, ranges, before, began, ran);
        is_cached
    }

    /// Ends the call of a command. If the command has run, settles its reply ([`Runner::settle`]).
    /// If it waits for shards or has blocked, counts it.
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "inlined into both of its callers")]
    pub(super) fn end_entry<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        command: &'static Command,
        ranges: &[ArgRange],
        before: usize,
        began: Option<Moment>,
        ran: Ran,
    ) {
        if matches!(ran, Ran::Parked | Ran::Blocked) {
            d.clients.tally.count(command, Outcome::Ok);
            if ran == Ran::Blocked || d.stopwatch.times_requests(command, ranges.len()) {
                d.clients.tally.expect_time();
            }
            if let Some(waiter) = d.clients.executor.outbox().take_blocked() {
                let took = if WATCHING { d.stopwatch.end(began) } else { Duration::ZERO };
                d.clients.tally.time_blocked(command, took);
                d.clients.tally.exclude_time(took);
                d.clients.block(entry.connection, waiter, took);
            }
            return;
        }
        self.settle(d, entry, ranges, command, before, began);
        if ran == Ran::DoneWithEvents {
            d.clients.send_own_invalidations();
        }
    }

    /// Calls the handler of a command on the shards that it needs.
    #[inline]
    fn call<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        command: &'static Command,
        ranges: &[ArgRange],
    ) -> Ran {
        if command.flags.contains(Flags::MEASURES) {
            d.clients.executor.evictor().measure_all();
        }
        let connection =
            d.clients.reactor.connections[entry.connection as usize].as_mut().expect("looked at by the caller");
        let args = Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges);
        let now_ms = d.clients.reactor.clock.now_ms;
        let ran = match (&entry.what, command.handler) {
            (What::Local(_), Handler::Local(_)) => {
                connection.publish_buffers(&d.clients.reactor.io);
                let (keyspace, host) = (d.clients.executor.keyspace(), d.clients.reactor.server);
                let (session, before) = (&mut connection.session, connection.output.len());
                let reply_limit = reply_limit(session, keyspace);
                {
                    // This lock orders changes of the function libraries. It is held until this
                    // command's effect is committed.
                    let is_ordered = command.flags.contains(Flags::WRITE);
                    let _order = is_ordered.then(|| keyspace.journal().order_libraries());
                    let call = LocalCall { command, args, session, keyspace, host, now_ms, reply_limit };
                    run_local(call, LocalCaller::Client(d.clients.executor.recorder()), &mut connection.output);
                }
                if let Some(pause) = connection.session.pause.take() {
                    connection.input.done(entry.end);
                    // Only `REPLICAOF` requests a pause of 0 ms, so that its reply waits for all
                    // commands in flight. This reply must not be replaced by a `-BUSY` error,
                    // because the server has already changed its role.
                    let may_be_rejected = pause.lasts();
                    let answer = PauseReply::new(*pause, Some((command, ranges.len())), may_be_rejected);
                    return d.hold_pause_reply(entry.connection, before, Box::new(answer));
                }
                if let Some(awaited) = connection.session.awaits.take() {
                    let (session, token) = (connection.session.view(), token(connection.socket.id));
                    let call =
                        Call { command, args, first_key: None, session, reads_as: None, connection: token, now_ms };
                    block_without_keys(host, &mut d.clients.executor, &call, awaited);
                    connection.input.done(entry.end);
                    return Ran::Blocked;
                }
                if let Some(work) = connection.session.needs_all.take() {
                    connection.input.done(entry.end);
                    return acquire_all_for(d, entry.connection, work);
                }
                Ran::Done
            }
            (What::Local(_), Handler::Transaction(part)) => return d.gather(entry, command, part, ranges),
            (what, _) => {
                let first_key = if let What::Single(_, place) = what { Some(*place) } else { None };
                let (session, token) = (connection.session.view(), token(connection.socket.id));
                let reads_as = connection.session.reads_as.as_ref();
                let call = Call { command, args, first_key, session, reads_as, connection: token, now_ms };
                let output = &mut connection.output;
                match first_key {
                    Some(place) => d.clients.executor.run_single(&call, place, output),
                    None => run_keyed(&mut d.clients.executor, &call, &mut d.shards, output),
                }
            }
        };
        connection.input.done(entry.end);
        if ran == Ran::Parked {
            // The length of the raw command is slightly more than the size of the arguments.
            connection.park(1, entry.end - entry.begin);
            connection.waits.has_waited = true;
        }
        ran
    }

    /// Settles the reply of a command that has run: counts and times the command, removes the reply
    /// if the client wants none (`CLIENT REPLY`), and checks output limits.
    #[inline]
    fn settle<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        ranges: &[ArgRange],
        command: &'static Command,
        before: usize,
        began: Option<Moment>,
    ) {
        let index = entry.connection;
        let Some(connection) = &mut d.clients.reactor.connections[index as usize] else { return };
        let reply = &connection.output[before..];
        let outcome = if reply.first() == Some(&b'-') {
            if is_aborted(reply) && connection.session.reply_mode == ReplyMode::On {
                d.clients.tally.count(command, Outcome::Ok);
                return d.clients.close_over_limit(index);
            }
            note_error(&connection.session, command, reply);
            d.clients.tally.count_failure(command, reply)
        } else {
            Outcome::Ok
        };
        let is_large = WATCHING && reply.len() + (entry.end - entry.begin) >= LARGE_BYTES;
        d.clients.tally.count(command, outcome);
        let connection = if began.is_some() || is_large {
            let took = d.stopwatch.end(began);
            d.clients.tally.time_last(took);
            self.note_slow(d, entry, command, ranges, took);
            d.clients.reactor.clock.add(took, d.clients.reactor.server);
            let Some(connection) = &mut d.clients.reactor.connections[index as usize] else { return };
            connection
        } else {
            connection
        };
        let connection = if needs_settling(&connection.session) {
            end_unplain_reply(d, index, before, command, outcome);
            let Some(connection) = &mut d.clients.reactor.connections[index as usize] else { return };
            connection
        } else {
            connection
        };
        if d.clients.limits.alarm.is_reached(connection) {
            d.clients.yield_at_piece(index, before);
        }
    }
}

/// Returns whether a connection's pending input exceeds `client-query-buffer-limit`. If so, logs
/// this.
#[inline]
fn has_too_much_input(connection: &Connection, settings: &Settings) -> bool {
    #[cold]
    fn log(id: u64) {
        tracing::warn!("Closing client that reached max query buffer length: id={id}");
    }
    let is_over = connection.unrun_bytes() as u64 > settings.client_query_buffer_limit_bytes;
    let has = is_over && connection.session.primary.is_none();
    if has {
        log(connection.session.client.id);
    }
    has
}

/// Keeps the parsed commands that have not run, because an earlier command of their connection
/// waits, in the connection's input. They run once the earlier command has been answered.
#[inline]
fn hold_back<L: EventLoop>(d: &mut Dispatcher<'_, L>, window: &Window) {
    for (at, entry) in window.first_of_each() {
        if let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize]
            && connection.state != State::Open
        {
            connection.input.hold_back(window.of_connection(entry.connection, at));
        }
    }
}

/// Returns the entry's command if it may run a script. `EXEC` may, because a script may be queued.
#[inline]
pub(super) fn may_be_script(entry: &Entry) -> Option<&'static Command> {
    let What::Local(command) = entry.what else { return None };
    let may_be = matches!(command.handler, Handler::Transaction(TransactionPart::Script(_) | TransactionPart::Exec));
    may_be.then_some(command)
}

/// Runs a command whose shards are not those of a single key: finds its shards ([`add_shards`]),
/// and runs it on them.
fn run_keyed(executor: &mut Executor<'_>, call: &Call<'_>, shards: &mut Vec<u32>, output: &mut Vec<u8>) -> Ran {
    let keyspace = executor.keyspace();
    shards.clear();
    add_shards(keyspace, &call.session, call.command, &call.args, shards);
    if shards.is_empty() {
        shards.push(0);
    }
    if faults::hits(Fault::TornMset)
        && Fault::TornMset.breaks(call.command)
        && let Some(ran) = call.run_torn(executor, output)
    {
        return ran;
    }
    if faults::hits(Fault::Repeated) && Fault::Repeated.breaks(call.command) {
        return call.run_repeated(executor, shards, output);
    }
    executor.run_many(call, shards, output)
}
