//! `CLIENT PAUSE`: holds back commands, and delays its own reply until the pause is in force.
//!
//! Each command is checked once, before it is admitted to run (`windows::run`). So when a pause
//! starts, commands that were admitted earlier may still be running or waiting. But clients that
//! fail over rely on a guarantee: after the reply to `CLIENT PAUSE WRITE`, nothing changes. Redis
//! gives this guarantee because it runs one command at a time. In Pantala, the reply waits for all
//! commands that were admitted before the pause:
//!
//! 1. Each other worker is asked to settle, and replies between two windows. (A window is a list of
//!    commands that a worker has parsed and runs together.) By then, each command that the worker
//!    has admitted has finished, holds a shard or has requested one. Later commands are held back.
//! 2. Then all shards are acquired, as by any command that needs them all. A command that holds a
//!    shard keeps it until it has run. Mailboxes and gates (the queues of requests for a shard) are
//!    FIFO, so earlier requests are served earlier. But two kinds of requests release their shards
//!    and queue again:
//!    - requests whose shards a busy script has released
//!      ([`pantala_engine::executor::Executor::reject_waiting`]): such a request changes nothing,
//!      or belongs to the work in step 3;
//!    - requests that a script has reset (`Executor::reset_gathered`): such a request queues at its
//!      gates again before its worker settles, or before the worker acquires the shards for its own
//!      `CLIENT PAUSE`. During a pause, no request is reset ([`super::mail`]).
//! 3. Two kinds of work acquire shards again after they have released theirs:
//!    - a script that is rerun with all shards: its first run was rolled back, and if the pause
//!      holds back the script, the rerun is deferred;
//!    - the command of a blocked client, such as `BLMOVE`, whose destination was busy: it is served
//!      later. While there is such a command, `CLIENT PAUSE` releases all shards and acquires them
//!      again.
//!
//! While a replica loads its primary's dataset, the load holds all shards. So the reply does not
//! acquire them, but waits until the load holds them ([`super::loading`]).
//!
//! While a script is busy, commands that need its shards are rejected with `-BUSY`. As in Redis,
//! `CLIENT PAUSE` is rejected too, and its pause is rolled back. A transaction with `CLIENT PAUSE`
//! needs all shards, so it is rejected before any of its commands runs.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::command::Command;
use pantala_engine::executor::Ran;
use pantala_engine::message::Message;
use pantala_engine::pause::Pause;
use pantala_engine::pubsub::Listener;
use pantala_runtime::EventLoop;

use super::loading::{self, LOADING};
use super::transactions::Held;
use super::{Dispatcher, State};
use crate::host::Server;
use crate::reactor::hold_unsynced;
use crate::replication::PauseInLoad;

/// The pending reply to `CLIENT PAUSE`, or to a transaction that contains it.
pub struct PauseReply {
    pause: Pause,
    /// Workers that haven't settled yet.
    unsettled: usize,
    /// The reply.
    reply: Vec<u8>,
    /// The command whose time is to be recorded, and its number of arguments; `None` if its time is
    /// already recorded.
    timed: Option<(&'static Command, usize)>,
    may_be_rejected: bool,
}

impl PauseReply {
    /// Creates the pending reply to a pause. `may_be_rejected` must be false for a transaction,
    /// because the transaction has already run.
    pub fn new(pause: Pause, timed: Option<(&'static Command, usize)>, may_be_rejected: bool) -> Self {
        PauseReply { pause, unsettled: 0, reply: Vec::new(), timed, may_be_rejected }
    }

    fn pause(&self) -> &Pause {
        &self.pause
    }

    /// Rolls back the pause because a busy script holds shards.
    pub(super) fn cancel(&self, server: &Server) {
        server.keyspace().tuning.cancel_pause(&self.pause);
        wake_for_pause(server);
    }

    /// Starts the duration of the pause. Called when the reply has been written, or the client has
    /// disconnected.
    pub(super) fn start_duration(&self, server: &Server) {
        server.keyspace().tuning.start_pause_time(&self.pause, server.now_ms());
        wake_for_pause(server);
    }
}

/// Asks all workers except that of `to` to settle. `to` receives the replies.
pub(super) fn ask_to_settle(server: &Server, to: Listener) {
    let ports = server.keyspace().ports().iter().enumerate();
    ports.filter(|(worker, _)| *worker != to.worker as usize).for_each(|(_, port)| port.send(Message::Settle(to)));
}

/// Wakes the workers, so that each reads the end of the pause again.
fn wake_for_pause(server: &Server) {
    server.keyspace().ports().iter().for_each(|port| port.send(Message::Reload));
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Holds back the reply to a pause until all commands admitted before the pause have run. The
    /// reply is the output that starts at `before`.
    #[cold]
    pub fn hold_pause_reply(&mut self, index: u32, before: usize, mut answer: Box<PauseReply>) -> Ran {
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return Ran::Done };
        answer.reply = connection.output.split_off(before);
        answer.unsettled = self.clients.reactor.server.keyspace().ports().len() - 1;
        let is_alone = answer.unsettled == 0;
        let to = connection.session.listener();
        self.clients.reactor.server.keyspace().tuning.hold_pause(answer.pause());
        connection.socket.shard_work = Some(Held::Pause(answer));
        connection.park(1, 0);
        ask_to_settle(self.clients.reactor.server, to);
        if is_alone {
            self.acquire_all_for_pause(index);
        }
        Ran::Parked
    }

    /// Counts another worker as settled for the `CLIENT PAUSE` of the connection with the token
    /// (identifier) `wanted`, or for the load of a primary's dataset.
    pub(super) fn settled(&mut self, wanted: u64) {
        if wanted == LOADING {
            return loading::note_settled(self);
        }
        let Some(index) = self.clients.reactor.find_token(wanted) else { return };
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        let Some(Held::Pause(answer)) = &mut connection.socket.shard_work else { return };
        answer.unsettled -= 1;
        if answer.unsettled == 0 {
            self.acquire_all_for_pause(index);
        }
    }

    pub(super) fn acquire_all_for_pause(&mut self, index: u32) {
        // Requests that a script has reset have released their shards. They were admitted before
        // the pause, so they must queue for their shards before this request does.
        self.mail.resume_reset(&mut self.clients.executor);
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        let Some(Held::Pause(answer)) = &connection.socket.shard_work else { return };
        let (may_be_rejected, view, token) =
            (answer.may_be_rejected, connection.session.view(), connection.socket.token());
        self.shards.clear();
        match self.clients.reactor.server.replication().replica.shards.pause(connection.session.listener()) {
            PauseInLoad::Acquires => self.shards.extend(0..self.clients.executor.keyspace().partition_count()),
            PauseInLoad::Waits => return,
            PauseInLoad::Holds => {}
        }
        self.clients.executor.gather_for(&self.shards, view, token, self.clients.reactor.clock.now_ms, may_be_rejected);
    }

    /// Writes the reply, unless the command of a blocked client must still be served. In that case,
    /// parks the connection again, to wait for shards, and returns [`Ran::Parked`]. The caller,
    /// which holds all shards, then releases them and acquires them again. If `is_in_load` is true,
    /// a load holds the shards instead of the caller, and the reply is written at once.
    pub(super) fn end_pause_reply(&mut self, index: u32, answer: Box<PauseReply>, is_in_load: bool) -> Ran {
        let serves_later = !is_in_load && self.clients.executor.keyspace().deferred_waiters.are_there();
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return Ran::Done };
        if serves_later {
            connection.socket.shard_work = Some(Held::Pause(answer));
            connection.park(1, 0);
            return Ran::Parked;
        }
        connection.output.extend_from_slice(&answer.reply);
        if let Some((command, arguments)) = answer.timed
            && self.stopwatch.times(command, arguments)
        {
            // The command has only waited for other commands, so its run time is zero.
            self.clients.tally.time_late(command, Duration::ZERO);
        }
        answer.start_duration(self.clients.reactor.server);
        Ran::Done
    }

    /// Defers a command until the pause has ended.
    pub fn defer_command(&mut self, index: u32, command: &'static Command) {
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        connection.state = State::Paused;
        connection.release_messages();
        connection.session.client.set_command(command);
        connection.session.client.paused.store(true, Relaxed);
        self.clients.reactor.stats.paused.add(1);
        self.paused.push(index);
        let reactor = &self.clients.reactor;
        self.clients_pause |= reactor.server.keyspace().tuning.is_paused_by_clients(reactor.clock.now_ms);
        self.clients.reactor.touch(index);
    }

    /// Resumes the connections that were held back, if the pause has ended.
    #[inline]
    pub fn resume_paused(&mut self) {
        if !self.paused.is_empty() && resumes_at_ms(self) <= self.clients.reactor.clock.now_ms {
            self.resume_all();
        }
    }

    #[cold]
    fn resume_all(&mut self) {
        self.clients_pause = false;
        for index in std::mem::take(&mut self.paused) {
            let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { continue };
            if connection.state != State::Paused {
                continue;
            }
            connection.state = State::Open;
            connection.session.client.paused.store(false, Relaxed);
            self.clients.reactor.stats.paused.sub(1);
            if let Some(Held::Script(call)) = &connection.socket.shard_work {
                let argument_bytes = call.kept_bytes();
                call.find_shards(self.clients.executor.keyspace(), &mut self.shards);
                connection.park(1, argument_bytes);
                let (view, token) = (connection.session.view(), connection.socket.token());
                self.clients.executor.gather_for(&self.shards, view, token, self.clients.reactor.clock.now_ms, true);
                continue;
            }
            hold_unsynced(&mut self.clients.reactor, index);
            self.clients.reactor.make_ready(index);
            self.clients.reactor.touch(index);
        }
    }
}

/// Returns when the held-back commands must be checked again. This may be before the pause ends:
/// during a failover's pause of writes, a `CLIENT PAUSE` of all commands may end, and reads must
/// run again.
#[cold]
pub(super) fn resumes_at_ms<L: EventLoop>(d: &Dispatcher<'_, L>) -> i64 {
    let server = d.clients.reactor.server;
    let until_ms = server.paused_until_ms();
    let clients_until_ms = || server.keyspace().tuning.clients_paused_until_ms.load(Relaxed);
    if d.clients_pause { until_ms.min(clients_until_ms()) } else { until_ms }
}
