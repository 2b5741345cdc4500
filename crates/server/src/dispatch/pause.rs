//! `CLIENT PAUSE`: what it holds back, and when who has asked for it is told.
//!
//! Every command is looked at before it is let run ([`Dispatcher::run_one`]). A failover counts on more: from the moment that `CLIENT PAUSE WRITE` is answered nothing changes any
//! more. In Redis that is so because nothing else runs meanwhile. Here the answer waits, when the pause has begun, for whatever was let run before:
//!
//! 1. Each other worker is asked to settle, and says that it has when it comes by: not in the midst of a window, so what it has let through by then has run, holds a shard or is on its
//!    way to one, and what it looks at later is held back.
//! 2. Then all shards are taken, as any command takes them. Whatever holds one keeps it until it has run. Whatever waits at a gate or in a home's mailbox came there before, and is served
//!    before: gates and mailboxes are in order.
//!    (Who has given its shards back for a busy script, [`pantala_engine::executor::Executor::refuse_waiting`], comes anew, but changes nothing, or is of those of 3.)
//!    (Those that a script has set back come to their gates before their worker says that it has settled, or takes the shards for a pause of its own.)
//! 3. Two things take shards anew that had none in between. A script that is run again with all shards asks once more whether it may, and is put off if it may not: nothing
//!    of its first run is there. And a waiter whose destination was busy (`BLMOVE`) is served later: as long as there is such a one, the shards are given back and taken again.
//!
//! While a script is busy who needs what it holds gets `-BUSY`: so does `CLIENT PAUSE`, as in Redis, and the pause is taken back. A transaction with it needs all shards, and is refused as a whole.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::command::Command;
use pantala_engine::executor::Ran;
use pantala_engine::message::Message;
use pantala_engine::pause::Pause;
use pantala_runtime::EventLoop;

use super::transactions::Held;
use super::{Dispatcher, State};
use crate::host::Server;

/// The answer to `CLIENT PAUSE`, or to a transaction with it, which waits.
pub struct PauseAnswer {
    pause: Pause,
    /// How many workers haven't settled yet.
    unsettled: usize,
    /// What is answered then.
    reply: Vec<u8>,
    /// What is to be timed, and with how many arguments, if its time isn't told yet.
    timed: Option<(&'static Command, usize)>,
    may_be_refused: bool,
}

impl PauseAnswer {
    /// The answer of `CLIENT PAUSE` itself, or of a transaction, which can't be refused any more.
    pub fn new(pause: Pause, timed: Option<(&'static Command, usize)>, may_be_refused: bool) -> Self {
        PauseAnswer { pause, unsettled: 0, reply: Vec::new(), timed, may_be_refused }
    }

    /// The pause is refused: a script is busy.
    pub(super) fn refuse(&self, server: &Server) {
        server.keyspace().tuning.take_pause_back(&self.pause);
        look_at_pause(server);
    }

    /// The client of the pause is told, or has gone: its time counts from now.
    pub(super) fn tell(&self, server: &Server) {
        server.keyspace().tuning.tell_paused(&self.pause, server.now_ms());
        look_at_pause(server);
    }
}

/// Workers sleep until a pause is to end: has them look again.
fn look_at_pause(server: &Server) {
    server.keyspace().ports().iter().for_each(|port| port.send(Message::Reload));
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// A pause has begun. What its connection was answered from `before` on in its output waits until all that was let run has run.
    #[cold]
    pub fn answer_paused(&mut self, index: u32, before: usize, mut answer: Box<PauseAnswer>) -> Ran {
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return Ran::Done };
        answer.reply = connection.output.split_off(before);
        answer.unsettled = self.clients.reactor.server.keyspace().ports().len() - 1;
        let is_alone = answer.unsettled == 0;
        let to = connection.session.listener();
        self.clients.reactor.server.keyspace().tuning.hold_pause();
        connection.socket.held = Some(Held::Pause(answer));
        connection.park(1, 0);
        for worker in (0..self.clients.reactor.server.keyspace().ports().len() as u32)
            .filter(|worker| *worker != self.clients.reactor.number)
        {
            self.clients.reactor.server.port(worker).send(Message::Settle(to));
        }
        if is_alone {
            self.take_all_for_pause(index);
        }
        Ran::Parked
    }

    /// Another worker has settled.
    pub(super) fn settled(&mut self, wanted: u64) {
        let Some(index) = self.clients.reactor.find_token(wanted) else { return };
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        let Some(Held::Pause(answer)) = &mut connection.socket.held else { return };
        answer.unsettled -= 1;
        if answer.unsettled == 0 {
            self.take_all_for_pause(index);
        }
    }

    pub(super) fn take_all_for_pause(&mut self, index: u32) {
        // They were let run before the pause began.
        self.mail.resume_set_back(&mut self.clients.executor);
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        let Some(Held::Pause(answer)) = &connection.socket.held else { return };
        let (may_be_refused, view, token) =
            (answer.may_be_refused, connection.session.view(), connection.socket.token());
        self.shards.clear();
        self.shards.extend(0..self.clients.executor.keyspace().partition_count());
        self.clients.executor.bring(&self.shards, view, token, self.clients.reactor.clock.now_ms, may_be_refused);
    }

    /// All shards are held: whether that means that nothing is on its way any more. If so its client is answered; otherwise they are to be given back and taken again.
    pub(super) fn end_pause_answer(&mut self, index: u32, answer: Box<PauseAnswer>) -> Ran {
        let keyspace = self.clients.executor.keyspace();
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return Ran::Done };
        if keyspace.serves_later() {
            connection.socket.held = Some(Held::Pause(answer));
            connection.park(1, 0);
            return Ran::Parked;
        }
        connection.output.extend_from_slice(&answer.reply);
        if let Some((command, arguments)) = answer.timed
            && self.stopwatch.times(command, arguments)
        {
            // Its work was that of a moment: it waited for others.
            self.clients.tally.time_late(command, Duration::ZERO);
        }
        answer.tell(self.clients.reactor.server);
        Ran::Done
    }

    /// Puts a command off until the pause has ended.
    pub fn put_off(&mut self, index: u32, command: &'static Command) {
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        connection.state = State::Paused;
        connection.release_news();
        connection.session.client.set_command(command);
        connection.session.client.paused.store(true, Relaxed);
        self.clients.reactor.stats.paused.add(1);
        self.paused.push(index);
        self.clients.reactor.touch(index);
    }

    /// Lets connections that were held back go on when the pause is over.
    #[inline]
    pub fn resume_paused(&mut self) {
        if !self.paused.is_empty() && self.clients.reactor.server.paused_until_ms() <= self.clients.reactor.clock.now_ms
        {
            self.resume_all();
        }
    }

    #[cold]
    fn resume_all(&mut self) {
        for index in std::mem::take(&mut self.paused) {
            let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { continue };
            if connection.state != State::Paused {
                continue;
            }
            connection.state = State::Open;
            connection.session.client.paused.store(false, Relaxed);
            self.clients.reactor.stats.paused.sub(1);
            if let Some(Held::Script(call)) = &connection.socket.held {
                let argument_bytes = call.kept_bytes();
                call.find_shards(self.clients.executor.keyspace(), &mut self.shards);
                connection.park(1, argument_bytes);
                let (view, token) = (connection.session.view(), connection.socket.token());
                self.clients.executor.bring(&self.shards, view, token, self.clients.reactor.clock.now_ms, true);
                continue;
            }
            self.clients.reactor.make_ready(index);
            self.clients.reactor.touch(index);
        }
    }
}
