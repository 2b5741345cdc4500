//! What a worker does a few times a second: time-outs, limits, expired keys, figures.

use std::sync::atomic::Ordering::Relaxed;

use pantala_runtime::EventLoop;

use super::Worker;
use super::connection::{Connection, State};
use super::run::output_limit;
use crate::config::Settings;

impl<L: EventLoop> Worker<'_, L> {
    /// One round, `hz` times a second.
    pub(super) fn cron(&mut self) {
        let hz = i64::from(self.settings.hz.max(1));
        self.next_cron_ms = self.turn_ran_ms + 1000 / hz;
        if self.executor.keyspace().tuning.cron_is_paused.load(Relaxed) {
            return;
        }
        self.limit_tracked();
        self.look_after_clients();
        self.look_after_memory();
        self.look_after_purges();
        // In a turn within a script its state is in use, and the time that the other one is kept for doesn't matter.
        if self.busy.is_none() {
            self.server.scripting().drop_flushed(self.number);
        }
        // While writes are paused nothing may change, as in Redis.
        if self.server.paused_until_ms() <= self.now_ms {
            self.expiry.turn(&mut self.executor, self.number, self.now_ms);
        }
        self.stats.cpu_us.set(crate::process::thread_cpu_us());
        if self.number == 0 {
            self.server.sample(self.now_ms);
        }
    }

    fn look_after_clients(&mut self) {
        for index in 0..self.connections.len() {
            // The one that runs a script is looked at when that has ended.
            if self.is_frozen(index as u32) {
                continue;
            }
            let Some(connection) = &mut self.connections[index] else { continue };
            connection.tell_buffers(&self.io);
            if idle_too_long(connection, &self.settings, self.now_ms) {
                tracing::debug!("Closing idle client");
                self.close(index as u32);
            } else if over_soft_limit(connection, &self.settings, self.now_ms) {
                self.server.log_output_limit(&connection.session.client);
                self.close(index as u32);
            }
        }
    }
}

fn idle_too_long(connection: &Connection, settings: &Settings, now_ms: i64) -> bool {
    settings.timeout_s > 0
        // Who listens may be silent.
        && connection.session.subscriptions.is_none()
        && !connection.session.monitors
        && matches!(connection.state, State::Open | State::Closing)
        && now_ms - connection.session.client.active_ms.load(Relaxed) > i64::from(settings.timeout_s) * 1000
}

/// Whether the output has been above the soft limit for too long; keeps the time since when. Where no send is in flight, what there is has come in this turn, or waits for
/// the next one: the peer takes what it gets.
fn over_soft_limit(connection: &mut Connection, settings: &Settings, now_ms: i64) -> bool {
    let limit = output_limit(connection, settings);
    let above =
        limit.soft_bytes > 0 && connection.sending.bytes > 0 && connection.pending_bytes() as u64 > limit.soft_bytes;
    if !above {
        connection.sending.above_soft_limit_since_ms = None;
        return false;
    }
    let since = *connection.sending.above_soft_limit_since_ms.get_or_insert(now_ms);
    now_ms - since > i64::from(limit.soft_seconds) * 1000
}
