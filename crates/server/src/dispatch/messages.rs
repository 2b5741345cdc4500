//! Processes messages from other workers, and the replies to requests that this worker ran itself.
//! A *turn* is one iteration of the worker's event loop. A *window* is a list of parsed commands
//! that a worker runs together.

use std::sync::Arc;

use pantala_engine::client::ReplyMode;
use pantala_engine::command::{Command, Flags};
use pantala_engine::message::Message;
use pantala_engine::pubsub::Published;
use pantala_engine::request::RequestNode;
use pantala_engine::slowlog::Sender;
use pantala_resp::is_aborted;
use pantala_runtime::EventLoop;
use pantala_session::output::PIECE_BYTES_MIN;
use pantala_session::replies::replies_wanted;
use smallvec::SmallVec;

use super::{Connection, Dispatcher, State, ending, loading, whole};
use crate::clients::moving::take_over;
use crate::clients::primary::{self, note_error};
use crate::clients::{close_subscriber, deliver_packed, note_unsynced_until, slow};
use crate::reactor::{hold_unsynced, index_of, kind_of, resume_handshake};
use crate::stats::Outcome;

/// Flags of commands that start or end subscriptions, end a `MONITOR`, or suppress its lines.
pub const SUBSCRIPTION_CHANGES: Flags = Flags::UNSUBSCRIBES.union(Flags::ANSWERS_MESSAGES);

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Processes messages from other workers and replies from this worker's executor.
    #[inline(always)]
    pub fn receive_messages(&mut self) {
        let has_messages = self.clients.reactor.server.port(self.clients.reactor.number).mailbox().wake();
        if has_messages | self.mail.has_pending_work() | self.clients.executor.outbox().has_answers() {
            self.receive_all_messages();
        }
    }

    fn receive_all_messages(&mut self) {
        let (mut published, mut is_late) = (Vec::new(), false);
        // Requests that a script has reset have released their shards. They must queue for their
        // shards again before this worker confirms a pause below, because they were admitted before
        // the pause (`super::pause`).
        self.mail.resume_reset(&mut self.clients.executor);
        let left = self.mail.take_received().into_iter();
        for message in left.chain(
            self.clients.reactor.server.port(self.clients.reactor.number).mailbox().receive().map(|node| node.value),
        ) {
            // Consecutive messages on one channel are delivered together.
            if let Message::Published(next) = message {
                if published.last().is_some_and(|last: &Arc<Published>| !last.can_combine_with(&next)) {
                    self.clients.deliver(&mut published);
                }
                published.push(next);
                continue;
            }
            self.clients.deliver(&mut published);
            // This worker's clock must not be behind the clocks of the senders. All messages were
            // sent before the first of them is processed, so one reading of the clock suffices.
            if !is_late && matches!(message, Message::Answer(_) | Message::Gathered(_) | Message::Woken(_)) {
                is_late = true;
                self.clients.reactor.read_clock();
            }
            match message {
                Message::Answer(node) => self.answer(node),
                Message::Gathered(node) => self.mail.gathered.push_back(node),
                Message::Woken(woken) => self.clients.woken(woken),
                Message::Unblock(unblock) => self.clients.unblocked(&unblock),
                Message::Run(node) => self.clients.executor.resume(node),
                Message::Shard(ownership) => self.clients.executor.adopt(ownership),
                Message::Socket(socket, via) => {
                    let happened = self.clients.reactor.add(socket, kind_of(via));
                    self.clients.after(happened);
                }
                Message::Moved(moved) => {
                    let moved = moved.downcast().expect("the server has sent it");
                    take_over(&mut self.clients, *moved);
                }
                Message::Handshake(wanted, performed) => {
                    let performed = performed.downcast().expect("the server has sent it");
                    let happened = resume_handshake(&mut self.clients.reactor, wanted, *performed);
                    self.clients.after(happened);
                }
                Message::Published(_) => unreachable!("handled above"),
                Message::Packed => deliver_packed(&mut self.clients),
                Message::OverLimit(wanted) => close_subscriber(&mut self.clients, wanted),
                Message::Monitored(wanted, line) => self.clients.show(wanted, &line),
                Message::Effects(wanted) => self.clients.follow(wanted),
                Message::Invalidations(notifications) => self.clients.send_invalidations(notifications),
                Message::Kill(wanted, client) => self.clients.kill(wanted, client),
                // At this point, between two windows, this worker has settled: it runs no command
                // that was admitted earlier.
                Message::Settle(to) => {
                    self.clients.reactor.server.port(to.worker).send(Message::Settled(to.connection));
                }
                Message::Settled(wanted) => self.settled(wanted),
                Message::LoadHolds(wanted) => {
                    if let Some(index) = self.clients.reactor.find_token(wanted) {
                        self.acquire_all_for_pause(index);
                    }
                }
                // The message only has to wake this worker, because each turn starts by loading
                // changed settings. The listening sockets may have changed even if the settings
                // have not.
                Message::Reload => self.clients.reactor.listen_if_changed(),
                Message::Synced => {
                    self.clients.reactor.release_synced();
                }
                Message::Purge => {
                    self.clients.executor.recorder().shrink_stream();
                    self.memory.purge();
                }
                // The message only wakes this worker.
                Message::Snapshot => {}
                Message::Whole => whole::take_all(self),
                Message::Primary(new) => primary::follow(&mut self.clients, new),
                Message::StreamSynced => primary::report_synced(&mut self.clients),
                Message::TakeAll => loading::take_all(self),
                Message::Release(owned) => {
                    let now_ms = self.clients.reactor.clock.now_ms;
                    self.clients.executor.release_shards(owned, now_ms);
                }
                Message::Demoted => primary::unblock_after_demotion(&mut self.clients),
                Message::Save => ending::acquire_all_for_end(self),
                Message::Stop => self.is_stopping = true,
            }
        }
        self.clients.deliver(&mut published);
        self.run_gathered();
        self.receive_own_replies();
    }

    /// Runs requests whose shards have arrived. Must be called after all messages have been taken
    /// from the mailbox. The reason is that one of these requests may run a script that becomes
    /// busy, and a turn within that script takes further messages from the mailbox.
    fn run_gathered(&mut self) {
        while let Some(node) = self.mail.gathered.pop_front() {
            self.gathered(node);
        }
    }

    /// Processes the replies to requests of this worker's connections that this worker ran itself.
    #[inline]
    pub fn receive_own_replies(&mut self) {
        if self.clients.executor.outbox().has_answers() {
            self.handle_own_replies();
        }
    }

    #[cold]
    fn handle_own_replies(&mut self) {
        while self.clients.executor.outbox().has_answers() {
            self.clients.reactor.read_clock();
            for node in self.clients.executor.outbox().take_answers() {
                self.answer(node);
            }
            self.mail.gathered.extend(self.clients.executor.outbox().take_gathered());
            let mut woken = self.clients.executor.outbox().take_woken().into_iter();
            while let Some(next) = woken.next() {
                self.clients.reactor.fetch_ahead(woken.as_slice(), |later| Some(index_of(later.waiter.connection)));
                self.clients.woken(next);
            }
            self.run_gathered();
            // Invalidations must follow all replies, because the replies may contain values that
            // have changed since.
            let notifications = self.clients.executor.outbox().take_invalidations();
            self.clients.send_invalidations(notifications);
        }
    }

    /// Processes the reply to a request. When the last reply of a pipeline has arrived, writes all
    /// its replies in the order of the commands.
    fn answer(&mut self, mut node: RequestNode) {
        self.clients.executor.recorder().observe_clock(node.value.effect_clock);
        // The connection may have been closed meanwhile. As in Redis, its commands have run
        // nevertheless.
        let Some(index) = self.clients.reactor.find_token(node.value.connection) else {
            // If the command has blocked, its waiter is withdrawn. If the waiter were served, the
            // elements popped for the disconnected client would be lost.
            if let Some(waiter) = node.value.blocked.take().filter(|waiter| waiter.claim()) {
                self.clients.executor.withdraw(&waiter);
            }
            return;
        };
        note_unsynced_until(&mut self.clients, index, node.value.seen);
        let connection = self.clients.reactor.connections[index as usize].as_mut().expect("found");
        debug_assert!(connection.waits.requests > 0, "an answer without a request");
        if let Some(waiter) = node.value.blocked.take() {
            // A request with a command that may block contains no other command.
            connection.waits.requests -= 1;
            let took = node.value.first_took().unwrap_or_default();
            self.clients.tally.time_blocked(waiter.command(), took);
            return self.clients.block(index, waiter, took);
        }
        connection.waits.answers.push(node);
        connection.waits.requests -= 1;
        if connection.waits.requests > 0 {
            // The reply adds to the client's memory usage. Touching the connection makes the end of
            // this turn update the usage.
            return self.clients.reactor.touch(index);
        }
        let keyspace = self.clients.executor.keyspace();
        let mut answers = std::mem::take(&mut connection.waits.answers);
        // While a transaction is in flight, its connection has no other request.
        if let [node] = answers.as_slice()
            && let Some(exec) = &node.value.exec
        {
            self.write_exec_replies(index, exec, &node.value.reply);
        }
        let Some(connection) = &mut self.clients.reactor.connections[index as usize] else { return };
        let mut replies: SmallVec<[_; 2]> = SmallVec::new();
        for node in &answers {
            replies.extend(node.value.replies().map(|(step, reply)| (&node.value, step, reply)));
        }
        replies.sort_unstable_by_key(|(_, step, _)| step.sequence);
        if replies.iter().any(|(.., reply)| is_aborted(reply)) && connection.session.reply_mode == ReplyMode::On {
            return self.clients.close_over_limit(index);
        }
        let is_long =
            answers.len() == 1 && matches!(replies.as_slice(), [(.., reply)] if reply.len() >= PIECE_BYTES_MIN);
        let mut has_piece = false;
        for (request, step, reply) in replies {
            if let Some(took) = step.took {
                let (client, args) = (&connection.session.client, request.args(step));
                slow::note(
                    keyspace,
                    Sender::Client(client),
                    step.command,
                    &args,
                    took,
                    self.clients.reactor.clock.now_ms,
                );
                self.clients.tally.time_late(step.command, took);
            }
            if reply.first() == Some(&b'-') {
                note_error(&connection.session, step.command, reply);
            }
            self.clients.tally.count_late_reply(step.command, reply);
            if replies_wanted(&mut connection.session) {
                has_piece = is_long;
                if !is_long {
                    connection.output.extend_from_slice(reply);
                    connection.end_piece(reply.len());
                }
            }
        }
        if has_piece {
            let reply = std::mem::take(&mut answers[0].value.reply);
            connection.add_piece(reply);
        }
        answers.drain(..).for_each(|node| self.clients.executor.spare().keep_request(node));
        // Keeps the vector's capacity.
        connection.waits.answers = answers;
        connection.unpark();
        if connection.session.close_after_reply {
            connection.state = State::Closing;
        }
        connection.release_messages();
        if self.clients.closed_over_limit(index, 0) {
            return;
        }
        hold_unsynced(&mut self.clients.reactor, index);
        self.clients.reactor.make_ready(index);
        self.clients.reactor.touch(index);
    }

    /// Delivers all received pub/sub messages and `MONITOR` lines before a command of
    /// [`SUBSCRIPTION_CHANGES`] runs, because they were published before the command. So a
    /// subscription that the command starts does not receive them, even if its own connection has
    /// published them. A subscription that the command ends does receive them. Other messages wait
    /// for the next turn.
    ///
    /// Does nothing if the command only ends subscriptions and the connection has none. May close
    /// the connection for exceeding its output limit, but never within a transaction, because the
    /// transaction's reply must be sent first.
    #[cold]
    pub fn deliver_before(&mut self, index: u32, command: &Command) {
        let listens =
            |connection: &Connection| connection.session.subscriptions.is_some() || connection.session.monitors;
        let subscribes = !command.flags.contains(Flags::UNSUBSCRIBES);
        if !subscribes && !self.clients.reactor.connections[index as usize].as_ref().is_some_and(listens) {
            return;
        }
        // Messages received during a script are older than those in the mailbox.
        let (earlier, mut others) = (self.mail.take_received(), Vec::new());
        let later = self.clients.reactor.server.port(self.clients.reactor.number).mailbox().receive();
        for message in earlier.into_iter().chain(later.map(|node| node.value)) {
            match message {
                Message::Published(published) => self.clients.deliver(&mut vec![published]),
                Message::Packed => deliver_packed(&mut self.clients),
                Message::Monitored(wanted, line) => self.clients.show(wanted, &line),
                other => others.push(other),
            }
        }
        self.mail.keep_received(others);
    }

    /// Invalidates the keys that the turn has changed, for clients that track prefixes.
    #[inline]
    pub fn send_prefix_invalidations(&mut self) {
        if self.clients.executor.outbox().has_changed() {
            self.clients.executor.outbox().send_prefix_invalidations();
        }
        self.receive_own_replies();
    }
}

/// Removes the reply to `command` that starts at `before` in the output, if `CLIENT REPLY`
/// suppresses it. Closes the connection once its output is sent, if the command has asked for that.
///
/// `CLIENT REPLY SKIP` and the command after it end the current mode. The `MONITOR` lines that
/// were published in this mode, in particular the command's own line, are delivered first.
#[cold]
pub fn end_unplain_reply<L: EventLoop>(
    d: &mut Dispatcher<'_, L>,
    index: u32,
    before: usize,
    command: &Command,
    outcome: Outcome,
) {
    let Some(connection) = &d.clients.reactor.connections[index as usize] else { return };
    let mode = connection.session.reply_mode;
    if connection.session.monitors && matches!(mode, ReplyMode::SkipNext | ReplyMode::Skip) {
        let monitor = connection.socket.token();
        deliver_lines(d, monitor);
    }
    let Some(connection) = &mut d.clients.reactor.connections[index as usize] else { return };
    let is_pushed = command.flags.contains(Flags::ANSWERS_MESSAGES) && outcome == Outcome::Ok;
    if !replies_wanted(&mut connection.session) && !is_pushed {
        connection.withdraw_reply(before);
    }
    if connection.session.close_after_reply {
        connection.state = State::Closing;
    }
}

/// Delivers all received `MONITOR` lines to the connection with the token `monitor`. Other
/// messages wait for the next turn.
fn deliver_lines<L: EventLoop>(d: &mut Dispatcher<'_, L>, monitor: u64) {
    let (earlier, mut others) = (d.mail.take_received(), Vec::new());
    let later = d.clients.reactor.server.port(d.clients.reactor.number).mailbox().receive();
    for message in earlier.into_iter().chain(later.map(|node| node.value)) {
        match message {
            Message::Monitored(wanted, line) if wanted == monitor => d.clients.show(wanted, &line),
            other => others.push(other),
        }
    }
    d.mail.keep_received(others);
}
