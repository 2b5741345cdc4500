//! Records a window (a list of parsed commands) whose plain commands together took long
//! ([`crate::clients::slow`]).

use std::time::Duration;

use pantala_base::Moment;
use pantala_engine::slowlog::Sender;
use pantala_resp::Args;
use pantala_runtime::EventLoop;

use super::Runner;
use crate::clients::slow::note;
use crate::dispatch::Dispatcher;
use crate::dispatch::window::{What, Window};

impl Runner {
    /// Logs one of a window's plain commands if they took long together.
    #[inline]
    pub(super) fn end_watch<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        window: &Window,
        began: Moment,
        ended: Moment,
    ) {
        // The rest is the time since the last individually timed command ended, in which only plain
        // commands ran. In most windows, no command is timed individually, so the rest is the whole
        // time.
        let timed_ns = d.stopwatch.mark.ns_since(began);
        let rest_ns = ended.ns_since(began).saturating_sub(timed_ns);
        if rest_ns >= d.stopwatch.slow_window_ns {
            self.note_plain(d, window, Duration::from_nanos(rest_ns));
        }
    }

    #[cold]
    fn note_plain<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, window: &Window, took: Duration) {
        let plain = window.entries.iter().filter_map(|entry| match entry.what {
            What::Single(command, _) | What::Keyed(command) | What::Local(command)
                if command.is_plain(entry.args as usize) =>
            {
                Some((entry, command))
            }
            _ => None,
        });
        let Some((entry, command)) = plain.max_by_key(|(entry, _)| entry.end - entry.begin) else { return };
        let Some(connection) = &d.clients.reactor.connections[entry.connection as usize] else { return };
        let Some(bytes) = connection.input.bytes(&d.clients.reactor.io).get(entry.begin..entry.end) else { return };
        let args = Args::new(bytes, window.ranges_of(entry));
        let client = &connection.session.client;
        note(
            d.clients.executor.keyspace(),
            Sender::Client(client),
            command,
            &args,
            took,
            d.clients.reactor.clock.now_ms,
        );
    }
}
