//! Connections whose command waits for a key (`BLPOP` and its like): from here they are watched, woken, and given up.
//!
//! Whoever claims the waiter answers: the thread that has something for it, this worker's clock, `CLIENT UNBLOCK`, or nobody
//! when the connection goes. Everything else finds it claimed and does nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::message::Unblock;
use pantala_engine::slowlog::Sender;
use pantala_resp::{Reply, Version};
use pantala_runtime::EventLoop;

use super::{Abandon, Blocked, Clients, State, slow};
use crate::stats::WorkerStats;

/// What `CLIENT UNBLOCK … ERROR` has the command answer.
const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// A command of a connection has become a waiter, which took so long.
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
        let early = connection.waits.woken_early.take();
        connection.waits.blocked = Some(Blocked { waiter, deadline_us, took });
        if !connection.awaits_answer() {
            connection.release_news();
        }
        publish_blocked(self.reactor.stats, 1, self.deadlines.len());
        // Its peer may have gone before it was known to wait.
        self.reactor.touch(index);
        if let Some(early) = early {
            self.woken(early);
        }
    }

    /// The answer to a command that waited.
    pub fn woken(&mut self, woken: Woken) {
        self.executor.observe_clock(woken.effect_clock);
        // The connection may have gone meanwhile, and the answer with it, as in Redis.
        let Some(index) = self.reactor.find_token(woken.waiter.connection) else { return };
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        match &connection.waits.blocked {
            Some(blocked) if Arc::ptr_eq(&blocked.waiter, &woken.waiter) => {
                self.unblock(index, false, &mut |output, _| output.extend_from_slice(&woken.reply));
            }
            // The news that it waits has not been looked at yet.
            None if connection.state == State::Parked => connection.waits.woken_early = Some(woken),
            _ => {}
        }
    }

    /// `CLIENT UNBLOCK` has claimed a waiter.
    pub fn unblocked(&mut self, unblock: &Unblock) {
        let Some(index) = self.reactor.find_token(unblock.waiter.connection) else { return };
        let is_its = self.reactor.connections[index as usize]
            .as_ref()
            .and_then(|connection| connection.waits.blocked.as_ref())
            .is_some_and(|blocked| Arc::ptr_eq(&blocked.waiter, &unblock.waiter));
        if is_its {
            let with_error = unblock.with_error;
            if !with_error {
                // Redis counts either as a failure.
                self.tally.count_late_failure(unblock.waiter.command());
            }
            self.unblock(index, false, &mut |output, version| {
                let mut reply = Reply::new(output, version);
                if with_error { reply.error(UNBLOCKED) } else { reply.null_array() }
            });
        }
    }

    /// Answers those whose time is over.
    #[inline(always)]
    pub fn time_out(&mut self) {
        if !self.deadlines.is_empty() {
            self.look_at_deadlines();
        }
    }

    #[cold]
    fn look_at_deadlines(&mut self) {
        let now_us = self.reactor.server.monotonic_us();
        while let Some(&(deadline_us, ticket, index)) = self.deadlines.first()
            && deadline_us <= now_us
        {
            self.deadlines.remove(&(deadline_us, ticket, index));
            let waiter = self.reactor.connections[index as usize]
                .as_ref()
                .and_then(|connection| connection.waits.blocked.as_ref());
            // Claimed by another: its answer is on the way.
            if waiter.is_some_and(|blocked| blocked.waiter.ticket() == ticket && blocked.waiter.claim()) {
                self.unblock(index, true, &mut |output, version| Reply::new(output, version).null_array());
            }
        }
    }

    /// Answers a connection whose waiter is claimed; it goes on with what it has sent since. As in Redis the command enters the slow log and the histogram only now,
    /// without the time that it waited, and not at all when it timed out.
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
        self.tally.count_late_reply(waiter.command(), &connection.output[before..]);
        connection.end_reply(before);
        connection.release_news();
        let added_bytes = connection.output.len() - before.min(connection.output.len());
        if self.closed_over_limit(index, added_bytes) {
            return;
        }
        // Most have sent nothing while they waited.
        if self.reactor.connections[index as usize]
            .as_ref()
            .is_some_and(|connection| connection.input.waiting_bytes() > 0)
        {
            self.reactor.make_ready(index);
        }
        self.reactor.touch(index);
    }

    /// Gives up what a connection waits for: it closes.
    pub fn stop_waiting(&mut self, index: u32) {
        if let Some(Some(connection)) = self.reactor.connections.get(index as usize)
            && let Some(blocked) = &connection.waits.blocked
        {
            // Where another was faster, its answer finds nobody.
            let _ = blocked.waiter.claim();
            self.no_longer_blocked(index);
        }
    }

    /// Forgets that a connection waits, here and in the queues.
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

/// Publishes how many connections are blocked, and how many of them with a deadline.
fn publish_blocked(stats: &WorkerStats, change: i64, with_deadline: usize) {
    stats.blocked.set(stats.blocked.get().saturating_add_signed(change));
    stats.with_deadline.set(with_deadline as u64);
}
