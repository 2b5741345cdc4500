//! The periodic work of a worker: timeouts, limits, expired keys and statistics. It runs `hz` times
//! a second.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::purges;
use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_session::access::must_log_in;

use super::Control;
use crate::aof::rewrite_if_due;
use crate::clients::{check_follower, output_limit, primary};
use crate::config::Settings;
use crate::dispatch::{Connection, Dispatcher};
use crate::host::Server;
use crate::snapshot::save_if_due;

impl Control {
    /// Runs a round of periodic work if one is due. Rounds are due `hz` times a second.
    #[inline]
    pub fn cron_if_due<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        if dispatcher.clients.reactor.clock.turn_ran_ms >= self.next_cron_ms.get() {
            self.cron(dispatcher);
        }
    }

    #[cold]
    fn cron<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        let hz = i64::from(dispatcher.clients.reactor.settings.hz.max(1));
        self.next_cron_ms.set(dispatcher.clients.reactor.clock.turn_ran_ms + 1000 / hz);
        if dispatcher.clients.executor.keyspace().tuning.cron_is_paused.load(Relaxed) {
            return;
        }
        self.limit_tracked(dispatcher);
        check_clients(dispatcher);
        dispatcher.memory.look_after(&mut dispatcher.clients);
        let has_purged = dispatcher.memory.purge_again();
        let (server, number) = (dispatcher.clients.reactor.server, dispatcher.clients.reactor.number);
        if number == 0 {
            if has_purged {
                purges::request();
            }
            self.work.borrow_mut().purges.look(server, dispatcher.clients.reactor.clock.turn_ran_ms);
        }
        // A long script runs turns (iterations of the event loop) within itself. A Lua state is in
        // use during these turns, so flushed states are dropped later.
        if !dispatcher.clients.frozen.is_within_script() {
            server.scripting().drop_flushed(number);
        }
        let now_ms = dispatcher.clients.reactor.clock.now_ms;
        // As in Redis, nothing expires while writes are paused. On a replica, only keys whose TTL
        // was set by the replica's own clients expire. The primary deletes the other keys.
        let (tuning, executor) = (&server.keyspace().tuning, &mut dispatcher.clients.executor);
        if tuning.is_replica() {
            self.work.borrow_mut().expiry.turn_of_replica(executor, number, now_ms);
        } else if !tuning.is_paused(now_ms) {
            self.work.borrow_mut().expiry.turn(executor, number, now_ms);
        }
        dispatcher.clients.reactor.stats.cpu_us.set(crate::process::thread_cpu_us());
        if number == 0 {
            let used_bytes = || server.facts().startup_bytes + server.data_bytes();
            server.stats.sample(server.all_worker_stats(), used_bytes, now_ms);
            save_if_due(server);
            server.replication().look_after(server);
            rewrite_if_due(server);
            server.snapshots().aof.warn_if_stalled(server);
        }
    }
}

fn check_clients<L: EventLoop>(dispatcher: &mut Dispatcher<'_, L>) {
    let mut has_followers = false;
    for index in 0..dispatcher.clients.reactor.connections.len() {
        // The connection that runs the script is checked after the script has ended.
        if dispatcher.clients.frozen.holds(index as u32) {
            continue;
        }
        let reactor = &mut dispatcher.clients.reactor;
        let Some(connection) = &mut reactor.connections[index] else { continue };
        connection.publish_buffers(&reactor.io);
        let pending_bytes = connection.pending_bytes();
        if let Some(following) = &mut connection.session.follows {
            has_followers = true;
            let why = following.timed_out(pending_bytes);
            check_follower(&mut dispatcher.clients, index as u32, why);
            if dispatcher.clients.reactor.connections[index].is_none() {
                continue;
            }
        }
        let reactor = &mut dispatcher.clients.reactor;
        let Some(connection) = &mut reactor.connections[index] else { continue };
        if connection.session.primary.is_some() {
            if primary::look_after(&mut dispatcher.clients, index as u32) {
                dispatcher.clients.close(index as u32);
            }
        } else if unauthenticated_too_long(connection, reactor.server, &reactor.settings, reactor.clock.now_ms) {
            tracing::debug!("Closing a client that has not authenticated");
            dispatcher.clients.close(index as u32);
        } else if idle_too_long(connection, &reactor.settings, reactor.clock.now_ms) {
            tracing::debug!("Closing idle client");
            dispatcher.clients.close(index as u32);
        } else if connection.socket.tls.as_ref().is_some_and(|layer| layer.is_overdue(reactor.clock.now_ms)) {
            tracing::debug!("Closing a client that doesn't finish its TLS handshake");
            dispatcher.clients.close(index as u32);
        } else if over_soft_limit(connection, &reactor.settings, reactor.clock.now_ms) {
            reactor.server.log_output_limit(&connection.session.client);
            dispatcher.clients.close(index as u32);
        }
    }
    dispatcher.clients.has_followers &= has_followers;
}

/// Returns whether a client has been unauthenticated for longer than `unauthenticated-timeout`,
/// since it connected or was logged out. A client counts as unauthenticated until its TLS handshake
/// is finished.
fn unauthenticated_too_long(connection: &Connection, server: &Server, settings: &Settings, now_ms: i64) -> bool {
    let is_stranger = || {
        let is_handshaking = connection.socket.tls.as_ref().is_some_and(|layer| layer.is_handshaking());
        is_handshaking || must_log_in(&connection.session, server.keyspace().users())
    };
    settings.unauthenticated_timeout_s > 0
        && now_ms - unauthenticated_since_ms(connection) > i64::from(settings.unauthenticated_timeout_s) * 1000
        && is_stranger()
}

/// Returns the time at which a client was last logged out, Unix time in ms. If it never was,
/// returns the time at which it connected.
fn unauthenticated_since_ms(connection: &Connection) -> i64 {
    let client = &connection.session.client;
    match client.unauthenticated_since_ms.load(Relaxed) {
        // A client that needs no login may still be in its TLS handshake.
        0 => client.created_ms,
        since_ms => since_ms,
    }
}

fn idle_too_long(connection: &Connection, settings: &Settings, now_ms: i64) -> bool {
    settings.timeout_s > 0
        // Subscribers, replicas and monitors may stay idle.
        && connection.session.subscriptions.is_none()
        && connection.session.follows.is_none()
        && !connection.session.monitors
        && matches!(connection.state, State::Open | State::Closing)
        && now_ms - connection.session.client.active_ms.load(Relaxed) > i64::from(settings.timeout_s) * 1000
}

/// Returns whether the output has exceeded the soft limit for too long. Records when it began to
/// exceed the limit. Output doesn't count while no send is in flight. Such output waits for the end
/// of this turn or for the next turn, not for a slow peer.
fn over_soft_limit(connection: &mut Connection, settings: &Settings, now_ms: i64) -> bool {
    let limit = output_limit(connection, settings);
    // Includes the part of the replication stream that has not been added to the replica's output
    // yet.
    let is_above = || {
        let lag_bytes = connection.session.follows.as_ref().map_or(0, |follower| follower.limited_bytes());
        connection.pending_bytes() as u64 + lag_bytes > limit.soft_bytes
    };
    let above = limit.soft_bytes > 0 && connection.sending.bytes > 0 && is_above();
    if !above {
        connection.sending.above_soft_limit_since_ms = None;
        return false;
    }
    let since = *connection.sending.above_soft_limit_since_ms.get_or_insert(now_ms);
    now_ms - since > i64::from(limit.soft_seconds) * 1000
}
