//! Blocks clients (`BLPOP` and other blocking commands), and unblocks them when they are served,
//! time out or disconnect.
//!
//! A *waiter* is a blocked command in the queues of its keys. Several parties may try to unblock
//! the client: the thread that serves the waiter, this worker after a timeout, or `CLIENT UNBLOCK`.
//! The first party *claims* the waiter by setting the waiter's flag, and sends the reply. The other
//! parties find the flag set and do nothing. If the connection closes, this worker claims the
//! waiter, and no reply is sent.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::ReplyMode;
use pantala_engine::command::Flags;
use pantala_engine::effect::Seen;
use pantala_engine::message::Unblock;
use pantala_engine::slowlog::Sender;
use pantala_resp::{Reply, Version, is_aborted};
use pantala_runtime::EventLoop;

use super::{Abandon, Blocked, Clients, State, note_unsynced_until, slow};
use crate::reactor::hold_unsynced;
use crate::stats::WorkerStats;

/// The error for a command that was unblocked by `CLIENT UNBLOCK … ERROR`.
const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Registers a connection as blocked on a waiter. `took` is the time for which the connection's
    /// command ran before it blocked.
    pub fn block(&mut self, index: u32, waiter: Arc<Waiter>, took: Duration) {
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        connection.state = State::Blocked;
        *connection.session.client.waiter() = Some(Arc::clone(&waiter));
        connection.session.client.argument_bytes.store(waiter.argument_bytes() as u64, Relaxed);
        let deadline_us = (waiter.timeout_ms > 0).then(|| {
            self.reactor.server.monotonic_us().saturating_add_unsigned((waiter.timeout_ms as u64).saturating_mul(1000))
        });
        if let Some(deadline_us) = deadline_us {
            self.deadlines.insert((deadline_us, waiter.ticket(), index));
        }
        let early = connection.waits.woken_before_blocking.take();
        connection.waits.blocked = Some(Blocked { waiter, deadline_us, took });
        if !connection.awaits_answer() {
            connection.release_messages();
        }
        publish_blocked(self.reactor.stats, 1, self.deadlines.len());
        // The peer may have disconnected already. If so, the end of this turn (iteration of the
        // worker's event loop) closes the connection.
        self.reactor.touch(index);
        if let Some(early) = early {
            self.woken(early);
        }
    }

    /// Delivers the reply to a blocked command.
    pub fn woken(&mut self, woken: Woken) {
        self.executor.recorder().observe_clock(woken.effect_clock);
        // If the connection has been closed in the meantime, the reply is dropped, as in Redis.
        let Some(index) = self.reactor.find_token(woken.waiter.connection) else { return };
        let has_written = woken.waiter.command().flags.contains(Flags::WRITE);
        let seen = if has_written { Seen::written } else { Seen::read };
        note_unsynced_until(self, index, seen(woken.effect_clock));
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        match &connection.waits.blocked {
            Some(blocked) if Arc::ptr_eq(&blocked.waiter, &woken.waiter) => {
                self.unblock(index, false, &mut |output, _| output.extend_from_slice(&woken.reply));
                if woken.closes
                    && let Some(connection) = &mut self.reactor.connections[index as usize]
                {
                    connection.state = State::Closing;
                }
            }
            // The reply arrived before the client was registered as blocked. `block` delivers it.
            None if connection.state == State::Parked => connection.waits.woken_before_blocking = Some(woken),
            _ => {}
        }
    }

    /// Replies to a command whose waiter `CLIENT UNBLOCK` has claimed.
    pub fn unblocked(&mut self, unblock: &Unblock) {
        let Some(index) = self.reactor.find_token(unblock.waiter.connection) else { return };
        let is_its = self.reactor.connections[index as usize]
            .as_ref()
            .and_then(|connection| connection.waits.blocked.as_ref())
            .is_some_and(|blocked| Arc::ptr_eq(&blocked.waiter, &unblock.waiter));
        if is_its {
            let with_error = unblock.with_error;
            if !with_error {
                // As in Redis, a command unblocked by `CLIENT UNBLOCK` counts as failed. For an
                // error reply, `unblock` counts the failure.
                self.tally.count_late_failure(unblock.waiter.command());
            }
            if with_error {
                let error = |output: &mut Vec<u8>, version| Reply::new(output, version).error(UNBLOCKED);
                self.unblock(index, false, &mut { error });
            } else {
                unblock_with_nothing(self, index, false);
            }
        }
    }

    /// Replies to blocked clients whose deadline has passed.
    #[inline(always)]
    pub fn time_out(&mut self) {
        if !self.deadlines.is_empty() {
            self.check_deadlines();
        }
    }

    #[cold]
    fn check_deadlines(&mut self) {
        let now_us = self.reactor.server.monotonic_us();
        while let Some(&(deadline_us, ticket, index)) = self.deadlines.first()
            && deadline_us <= now_us
        {
            self.deadlines.remove(&(deadline_us, ticket, index));
            let waiter = self.reactor.connections[index as usize]
                .as_ref()
                .and_then(|connection| connection.waits.blocked.as_ref());
            // If another party has claimed the waiter, it has also sent the reply.
            if waiter.is_some_and(|blocked| blocked.waiter.ticket() == ticket && blocked.waiter.claim()) {
                unblock_with_nothing(self, index, true);
            }
        }
    }

    /// Replies to a connection whose waiter is claimed, and resumes the connection. As in Redis,
    /// the slow log and the latency histogram record the command only now, and exclude the time for
    /// which it was blocked. A command that timed out is not recorded.
    fn unblock(&mut self, index: u32, timed_out: bool, answer: &mut dyn FnMut(&mut Vec<u8>, Version)) {
        let Some(Blocked { waiter, took, .. }) = self.no_longer_blocked(index) else { return };
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        connection.state = State::Open;
        let before = connection.output.len();
        answer(&mut connection.output, connection.session.version);
        if !timed_out {
            let (keyspace, client) = (self.executor.keyspace(), &connection.session.client);
            slow::note(
                keyspace,
                Sender::Client(client),
                waiter.command(),
                &waiter.args(),
                took,
                self.reactor.clock.now_ms,
            );
            self.tally.end_blocked(waiter.command(), took);
        }
        if is_aborted(&connection.output[before..]) && connection.session.reply_mode == ReplyMode::On {
            return self.close_over_limit(index);
        }
        self.tally.count_late_reply(waiter.command(), &connection.output[before..]);
        connection.end_reply(before);
        connection.release_messages();
        hold_unsynced(&mut self.reactor, index);
        let Some(connection) = &self.reactor.connections[index as usize] else { return };
        let added_bytes = connection.output.len() - before.min(connection.output.len());
        if self.closed_over_limit(index, added_bytes) {
            return;
        }
        // Runs the commands that the client has sent while it was blocked. Most clients have sent
        // none.
        if self.reactor.connections[index as usize]
            .as_ref()
            .is_some_and(|connection| connection.input.waiting_bytes() > 0)
        {
            self.reactor.make_ready(index);
        }
        self.reactor.touch(index);
    }

    /// Unblocks a connection that is being closed, without a reply.
    pub fn stop_waiting(&mut self, index: u32) {
        if let Some(Some(connection)) = self.reactor.connections.get(index as usize)
            && let Some(blocked) = &connection.waits.blocked
        {
            // If another thread has claimed the waiter, its reply will find no connection.
            let _ = blocked.waiter.claim();
            self.no_longer_blocked(index);
        }
    }

    /// Removes a connection's waiter from the connection and from the queues.
    fn no_longer_blocked(&mut self, index: u32) -> Option<Blocked> {
        let connection = self.reactor.connections[index as usize].as_mut()?;
        let blocked = connection.waits.blocked.take()?;
        *connection.session.client.waiter() = None;
        connection.session.client.argument_bytes.store(0, Relaxed);
        if let Some(deadline_us) = blocked.deadline_us {
            self.deadlines.remove(&(deadline_us, blocked.waiter.ticket(), index));
        }
        self.executor.withdraw(&blocked.waiter);
        publish_blocked(self.reactor.stats, -1, self.deadlines.len());
        Some(blocked)
    }
}

/// Sends a connection the reply of a timeout: null or, for `WAIT` and `WAITAOF`, the counts reached
/// so far.
fn unblock_with_nothing<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32, timed_out: bool) {
    let Some(connection) = &clients.reactor.connections[index as usize] else { return };
    let Some(blocked) = &connection.waits.blocked else { return };
    let counts = clients.reactor.server.replication().end_wait(&blocked.waiter);
    clients.unblock(index, timed_out, &mut |output, version| match &counts {
        Some(counts) => output.extend_from_slice(counts),
        None => Reply::new(output, version).null_array(),
    });
}

/// Replies with an error to a connection whose waiter is claimed, and closes it after the reply.
pub(super) fn unblock_with<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32, error: &str) {
    clients.unblock(index, false, &mut |output, version| Reply::new(output, version).error(error));
    if let Some(connection) = &mut clients.reactor.connections[index as usize] {
        connection.state = State::Closing;
    }
}

/// Adds `change` to the count of blocked clients, and publishes the number of those with a
/// deadline.
fn publish_blocked(stats: &WorkerStats, change: i64, with_deadline: usize) {
    stats.blocked.set(stats.blocked.get().saturating_add_signed(change));
    stats.with_deadline.set(with_deadline as u64);
}
