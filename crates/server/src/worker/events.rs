//! What comes from the loop and from other workers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use pantala_dict::prefetch_all;
use pantala_engine::client::{ReplyMode, Session};
use pantala_engine::message::Message;
use pantala_engine::pubsub::Published;
use pantala_engine::request::Parcel;
use pantala_engine::slowlog::Sender;
use pantala_resp::is_given_up;
use pantala_runtime::{ConnId, Event, EventLoop};
use pantala_session::output::PIECE_BYTES_MIN;
use pantala_session::replies::replies_wanted;

use super::busy::Deferred;
use super::connection::{Connection, Socket, State, index_of, token};
use super::{Worker, slow};
use crate::net;

/// Of what is handled one after the other, memory is fetched so far ahead: some hundred nanoseconds before it is used.
const FETCHED_AHEAD: usize = 4;

impl<L: EventLoop> Worker<'_, L> {
    /// Accepts from the sockets that the server listens on now, if it is this worker that accepts.
    ///
    /// # Errors
    /// The loop refuses them, or no file descriptors are to be had.
    pub fn listen(&mut self) -> std::io::Result<()> {
        if self.number != self.server.facts().first_io_worker {
            return Ok(());
        }
        for listener in std::mem::take(&mut self.listeners) {
            self.io.remove_listener(listener);
        }
        self.listening_generation = self.server.listening().generation();
        for socket in self.server.listening().copies()? {
            let listener = self.io.add_listener(socket)?;
            self.listeners.push(listener);
        }
        Ok(())
    }

    /// Handles what the loop has reported.
    pub(super) fn handle_all(&mut self, events: &mut Vec<Event>) {
        let mut events = events.drain(..);
        while let Some(event) = events.next() {
            self.fetch_ahead(events.as_slice(), |event| event.conn().map(ConnId::index));
            self.handle(event);
        }
    }

    /// Asks the processor for the connections of what is handled soon. Of many, few are in its caches.
    #[inline]
    fn fetch_ahead<T>(&self, following: &[T], connection: impl Fn(&T) -> Option<usize>) {
        if let Some(index) = following.get(FETCHED_AHEAD).and_then(&connection) {
            prefetch_all(self.connections.as_ptr().wrapping_add(index));
        }
        // It was asked for when this was the furthest: what others see of it can be found now.
        if let Some(index) = following.get(FETCHED_AHEAD / 2).and_then(&connection)
            && let Some(Some(connection)) = self.connections.get(index)
        {
            prefetch_all(Arc::as_ptr(&connection.session.client));
        }
    }

    /// Handles one event.
    pub(super) fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { socket, .. } => self.accepted(socket),
            Event::Data { conn, chunk } => match self.find(conn) {
                Some(index) => {
                    let connection = self.connections[index as usize].as_mut().expect("found");
                    self.stats.input_bytes.add(chunk.len() as u64);
                    self.stats.reads.add(1);
                    if connection.state == State::Closing {
                        self.io.release(chunk);
                        return;
                    }
                    connection.session.client.active_ms.store(self.now_ms, std::sync::atomic::Ordering::Relaxed);
                    connection.input.receive(&mut self.io, chunk);
                    self.make_ready(index);
                    self.touch(index);
                }
                None => self.io.release(chunk),
            },
            Event::Eof { conn } => {
                if let Some(index) = self.find(conn) {
                    self.connections[index as usize].as_mut().expect("found").eof = true;
                    self.touch(index);
                }
            }
            Event::Failed { conn, .. } => {
                if let Some(index) = self.find(conn) {
                    self.close(index);
                }
            }
            Event::Sent { conn, buffer, result } => {
                if let Some(index) = self.find(conn) {
                    let connection = self.connections[index as usize].as_mut().expect("found");
                    let is_awaited = connection.sent();
                    connection.session.client.active_ms.store(self.now_ms, std::sync::atomic::Ordering::Relaxed);
                    if result.is_err() {
                        self.close(index);
                    } else if is_awaited {
                        self.touch(index);
                    }
                    if self.weighing.is_on {
                        self.weigh(index);
                    }
                }
                self.recycle(buffer);
            }
            Event::Woken => {}
        }
    }

    pub(super) fn find(&self, conn: ConnId) -> Option<u32> {
        let connection = self.connections.get(conn.index())?.as_ref()?;
        (connection.socket.id == conn).then_some(conn.index() as u32)
    }

    pub(super) fn find_token(&self, wanted: u64) -> Option<u32> {
        let index = index_of(wanted);
        let connection = self.connections.get(index)?.as_ref()?;
        (token(connection.socket.id) == wanted).then_some(index as u32)
    }

    /// A connection came in: checks whether it may stay, and gives it to the worker with the fewest.
    fn accepted(&mut self, socket: OwnedFd) {
        let Some(socket) = self.server.admit(socket, &self.settings) else { return };
        let worker = self.server.least_loaded_worker();
        if worker == self.number {
            self.add(socket);
        } else {
            self.server.port(worker).send(Message::Socket(socket, 0));
        }
    }

    /// Takes a connection over; it was counted when it was admitted.
    fn add(&mut self, socket: OwnedFd) {
        if let Err(error) = net::prepare(&socket, &self.settings) {
            tracing::debug!("setting options of an accepted socket: {error}");
        }
        // Between its admission and now the peer may have gone.
        let Ok((address, local_address)) = net::endpoints(&socket) else {
            return self.server.connection_refused(self.number);
        };
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let id = match self.io.add(socket) {
            Ok(id) => id,
            Err(error) => {
                tracing::warn!("could not watch an accepted connection: {error}");
                self.server.connection_refused(self.number);
                return;
            }
        };
        let client = self.server.client_joined(self.number, token(id), fd, address, local_address);
        let session = Session::new(Arc::clone(&client), !self.server.has_password());
        let index = id.index();
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        debug_assert!(self.connections[index].is_none(), "the loop reuses an index only after close");
        self.connections[index] = Some(Connection::new(Socket::new(id), session));
        if self.weighing.is_on {
            self.weigh(index as u32);
        }
    }

    /// Handles what other workers sent, and answers of its own.
    #[inline]
    pub(super) fn receive_messages(&mut self) {
        let has_messages = self.server.port(self.number).mailbox().wake() || !self.received.is_empty();
        let has_requests = !self.set_back.is_empty() || !self.brought.is_empty();
        if has_messages || has_requests || self.executor.has_answers() {
            self.receive_all_messages();
        }
    }

    fn receive_all_messages(&mut self) {
        let (mut published, mut is_late) = (Vec::new(), false);
        // Before anybody is told that this worker has settled.
        self.resume_set_back();
        self.without_shards = 0;
        let left = std::mem::take(&mut self.received).into_iter();
        for message in left.chain(self.server.port(self.number).mailbox().receive().map(|node| node.value)) {
            // What is published on one channel, one after the other, is handed to its listeners together.
            if let Message::Published(next) = message {
                if published.last().is_some_and(|last: &Arc<Published>| !last.goes_with(&next)) {
                    self.deliver(&mut published);
                }
                published.push(next);
                continue;
            }
            self.deliver(&mut published);
            // What was sent has seen no later time than it is now. All of them were sent before the first is looked at.
            if !is_late && matches!(message, Message::Answer(_) | Message::Brought(_) | Message::Woken(_)) {
                is_late = true;
                self.read_clock();
            }
            match message {
                Message::Answer(parcel) => self.answer(parcel),
                Message::Brought(parcel) => self.brought.push_back(parcel),
                Message::Woken(woken) => self.woken(woken),
                Message::Unblock(unblock) => self.unblocked(&unblock),
                Message::Run(parcel) => self.executor.resume(parcel),
                Message::Shard(ownership) => self.executor.adopt(ownership),
                Message::Socket(socket, _) => self.add(socket),
                Message::Published(_) => unreachable!("seen to above"),
                Message::Monitored(wanted, line) => self.show(wanted, &line),
                Message::Effects(wanted, bytes) => self.send_effects(wanted, &bytes),
                Message::Told(news) => self.tell_all(news),
                Message::Kill(wanted, client) => self.kill(wanted, client),
                Message::Settle(to) => self.settle_for(to),
                Message::Settled(wanted) => self.settled(wanted),
                // It has woken this worker, whose turn begins with the settings. What it listens on may be others though they are not.
                Message::Reload => self.listen_if_changed(),
                Message::Purge => self.purge(),
                Message::Stop => self.stopping = true,
            }
        }
        self.deliver(&mut published);
        self.run_brought();
        self.receive_own_answers();
    }

    /// Runs what has its shards. Not in the midst of messages: a script may have others handled before it ends.
    fn run_brought(&mut self) {
        while let Some(parcel) = self.brought.pop_front() {
            self.brought(parcel);
        }
    }

    /// Handles answers to this worker's connections that this worker itself has run.
    #[inline]
    pub(super) fn receive_own_answers(&mut self) {
        if self.executor.has_answers() {
            self.take_own_answers();
        }
    }

    #[cold]
    fn take_own_answers(&mut self) {
        while self.executor.has_answers() {
            self.read_clock();
            for parcel in self.executor.take_answers() {
                self.answer(parcel);
            }
            self.brought.extend(self.executor.take_brought());
            let mut woken = self.executor.take_woken().into_iter();
            while let Some(next) = woken.next() {
                self.fetch_ahead(woken.as_slice(), |later| Some(index_of(later.waiter.connection)));
                self.woken(next);
            }
            self.run_brought();
            // Behind all answers: what is in them may be what has changed since.
            let news = self.executor.take_told();
            self.tell_all(news);
        }
    }

    /// The answer to a request. When the last of a pipeline's has come, their replies go out in the order of the commands.
    fn answer(&mut self, mut parcel: Parcel) {
        self.executor.observe_clock(parcel.value.effect_clock);
        // The connection may have gone meanwhile: what it asked for was done all the same, as in Redis.
        let Some(index) = self.find_token(parcel.value.connection) else { return };
        let connection = self.connections[index as usize].as_mut().expect("found");
        debug_assert!(connection.waits.requests > 0, "an answer without a request");
        if let Some(waiter) = parcel.value.blocked.take() {
            // A command that may wait travels alone.
            connection.waits.requests -= 1;
            let took = parcel.value.first_took().unwrap_or_default();
            self.tally.time_blocked(waiter.command(), took);
            return self.block(index, waiter, took);
        }
        connection.waits.answers.push(parcel);
        connection.waits.requests -= 1;
        if connection.waits.requests > 0 {
            // It takes more than before.
            return self.touch(index);
        }
        let keyspace = self.executor.keyspace();
        let mut answers = std::mem::take(&mut connection.waits.answers);
        // It travels alone.
        if let [parcel] = answers.as_slice()
            && let Some(exec) = &parcel.value.exec
        {
            self.answer_exec(index, exec, &parcel.value.reply);
        }
        let Some(connection) = &mut self.connections[index as usize] else { return };
        let mut replies = Vec::new();
        for parcel in &answers {
            replies.extend(parcel.value.replies().map(|(step, reply)| (&parcel.value, step, reply)));
        }
        replies.sort_unstable_by_key(|(_, step, _)| step.sequence);
        if replies.iter().any(|(.., reply)| is_given_up(reply)) && connection.session.reply_mode == ReplyMode::On {
            return self.close_over_limit(index);
        }
        let is_long =
            answers.len() == 1 && matches!(replies.as_slice(), [(.., reply)] if reply.len() >= PIECE_BYTES_MIN);
        let mut has_piece = false;
        for (request, step, reply) in replies {
            if let Some(took) = step.took {
                let (client, args) = (&connection.session.client, request.args(step));
                slow::note(keyspace, Sender::Client(client), step.command, &args, took, self.now_ms);
                self.tally.time_late(step.command, took);
            }
            self.tally.count_late_reply(step.command, reply);
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
        connection.unpark();
        if connection.session.close_after_reply {
            connection.state = State::Closing;
        }
        connection.release_news();
        if self.closed_over_limit(index, 0) {
            return;
        }
        self.make_ready(index);
        self.touch(index);
    }

    /// A connection is about to listen no more. If it does: hands out what has been published, and shown to monitors, until now; anything else that came waits for the next
    /// turn. The connection may be closed for what it gets, unless it runs a transaction, whose reply comes first.
    #[cold]
    pub(super) fn hand_out_before_leaving(&mut self, index: u32) {
        let listens =
            |connection: &Connection| connection.session.subscriptions.is_some() || connection.session.monitors;
        if !self.connections[index as usize].as_ref().is_some_and(listens) {
            return;
        }
        let mut others = std::mem::take(&mut self.received);
        for node in self.server.port(self.number).mailbox().receive() {
            match node.value {
                Message::Published(published) => self.deliver(&mut vec![published]),
                Message::Monitored(wanted, line) => self.show(wanted, &line),
                other => others.push(other),
            }
        }
        self.received = others;
    }

    /// Shows a command to a monitor, unless it is none any more.
    fn show(&mut self, wanted: u64, line: &[u8]) {
        let Some(index) = self.find_token(wanted) else { return };
        let Some(connection) = &mut self.connections[index as usize] else { return };
        if connection.session.monitors && connection.state != State::Closing {
            let output = if connection.session.in_exec { &mut connection.news } else { &mut connection.output };
            output.extend_from_slice(line);
            if !self.closed_over_limit(index, line.len()) {
                self.touch(index);
            }
        }
    }

    /// Sends the next part of the stream of effects to a connection that follows it.
    fn send_effects(&mut self, wanted: u64, bytes: &Arc<[u8]>) {
        let Some(index) = self.find_token(wanted) else { return };
        let Some(connection) = &mut self.connections[index as usize] else { return };
        if connection.session.follows.is_some() && connection.state != State::Closing {
            connection.output.extend_from_slice(bytes);
            if !self.closed_over_limit(index, bytes.len()) {
                self.touch(index);
            }
        }
    }

    pub(super) fn kill(&mut self, wanted: u64, client: u64) {
        let Some(index) = self.find_token(wanted) else { return };
        if self.is_frozen(index) {
            return self.deferred.push(Deferred::Kill(wanted, client));
        }
        if self.connections[index as usize].as_ref().is_some_and(|c| c.session.client.id == client) {
            self.close(index);
        }
    }

    /// Takes the settings up when they have changed: one load when they haven't.
    #[inline]
    pub(super) fn reload_if_changed(&mut self) {
        let generation = self.server.config().generation();
        if generation != self.settings_generation {
            self.reload(generation);
        }
    }

    /// Takes up the settings of a generation, or newer ones.
    #[cold]
    fn reload(&mut self, generation: u64) {
        // The number was read first: settings newer than it are taken up again, never missed.
        self.settings = self.server.config().settings();
        self.settings_generation = generation;
        self.stopwatch.set(&self.settings);
        self.tally.tracks_latency = self.settings.latency_tracking;
        self.limit_tracked();
        self.reload_weighing();
        self.look_after_memory();
    }

    /// Takes up other sockets, where the server listens on others.
    fn listen_if_changed(&mut self) {
        if self.listening_generation != self.server.listening().generation()
            && let Err(error) = self.listen()
        {
            tracing::warn!("Not listening on all sockets: {error}");
        }
    }

    /// Closes everything when the server stops. Replies that are ready are given a moment to leave.
    pub(super) fn close_all(&mut self, events: &mut Vec<Event>) -> std::io::Result<()> {
        for listener in std::mem::take(&mut self.listeners) {
            self.io.remove_listener(listener);
        }
        self.finish_turn();
        while !self.listed.is_empty() {
            self.finish_turn();
        }
        self.io.poll(Some(std::time::Duration::ZERO), events)?;
        for index in 0..self.connections.len() {
            self.close(index as u32);
        }
        Ok(())
    }
}
