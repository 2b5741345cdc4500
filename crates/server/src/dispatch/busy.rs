//! Serves other connections while a script is busy. A script is *busy* when it has run for longer
//! than `busy-reply-threshold`. From then on, every few milliseconds, the hook that Lua calls
//! between instructions runs a *turn within* the script. Such a turn is an iteration of the
//! worker's event loop that serves the other connections.
//!
//! Turns within a script are sound for these reasons:
//!
//! * The connection that runs the script is *frozen*: its input is not parsed, its output
//!   neither grows nor is sent, and it is not closed. Its events and messages wait in
//!   `clients::frozen`, up to the limits described there. They wait until the script has ended
//!   and the worker has returned to its loop, or until another script becomes busy.
//! * The window (list of parsed commands) that contains the script is abandoned. The commands
//!   after the script are held back ([`pantala_session::Input::hold_back`]). Commands of other
//!   connections run in the turn within; commands of the script's own connection run when the
//!   script has ended. So a turn within may change the input of every connection but the frozen
//!   one, because the abandoned window refers only to the input of the frozen connection.
//! * No script runs in a turn within, because a client that calls a script receives `-BUSY`. So
//!   the Lua state isn't re-entered. The executor isn't re-entered either, because the hook is
//!   called between Lua instructions, never during a command.
//! * A turn within does the usual periodic work, but skips the frozen connection and the Lua
//!   states.
//! * A request for a shard that the script holds is queued at the shard's gate (the word that
//!   says whether the shard is held). The hook takes such requests of all workers from the
//!   gates and rejects them with `-BUSY`
//!   ([`pantala_engine::executor::Executor::reject_waiting`]).
//!
//! Before a script has exceeded the threshold, or if the threshold is 0, there are no turns within.
//! Instead, the hook hands over shards to other workers at the same interval
//! ([`Mail::pass_on_shards`](super::mail::Mail::pass_on_shards)). These are shards that the
//! script's worker holds, but not for the script. The handover touches no connection. Other
//! messages, replies, and requests that had to release their shards wait for the next turn, which
//! may be a turn within the script.

use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::window::Window;
use crate::reactor::moving;
use crate::scripting::Kind;

/// Interval between turns within a script, ms. Before a script is busy, its worker hands over
/// shards to other workers at this interval.
pub(super) const TURN_EVERY_MS: i64 = 5;

/// A window that is running a command that may be a script.
pub struct Suspended {
    /// The window.
    pub window: Window,
    /// Index of the running command.
    pub at: usize,
    /// Whether the window is abandoned. If so, the commands of other connections that follow the
    /// running command in the window are held back.
    pub is_abandoned: bool,
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Freezes the connection of a script that has become busy, and makes all other connections
    /// ready.
    pub(super) fn begin_busy(&mut self, index: u32, kind: Kind) {
        // If the script had to wait for its shards, it has no window. If the script is being rerun
        // and was busy in its first run too, its window is already abandoned, and the positions in
        // that window are stale.
        if let Some(suspended) = self.suspended.last_mut()
            && !std::mem::replace(&mut suspended.is_abandoned, true)
        {
            let reactor = &mut self.clients.reactor;
            for (at, entry) in suspended.window.first_of_each() {
                if entry.connection != index
                    && let Some(connection) = &mut reactor.connections[entry.connection as usize]
                {
                    connection.input.hold_back(suspended.window.of_connection(entry.connection, at));
                }
            }
        }
        // No connection is handed over until the script has ended.
        moving::let_stay(&mut self.clients.reactor);
        self.clients.freeze(index, kind);
    }

    /// Runs one turn within a script that holds the shards in `owned`.
    pub(super) fn turn_within(&mut self, owned: &mut [Ownership]) {
        let (Some(why), Some(mut above)) = (self.clients.frozen.reply(), self.above.take()) else { return };
        // Effects of commands that run in this turn must not join the script's unit (a group of
        // effects that are propagated together). That unit gets its stamp (position in the journal)
        // when the script ends.
        let unit = self.clients.executor.recorder().suspend_unit();
        // The journal ends an epoch (a section of its stream) when each worker has confirmed that
        // it is between two turns. This worker confirms it here, although the script's unit is not
        // committed yet.
        self.clients.executor.recorder().flush_stream();
        self.clients.executor.keyspace().journal().attend(self.clients.reactor.number);
        self.clients.executor.reject_waiting(owned, why);
        above.turn_within(self, owned);
        self.clients.executor.recorder().resume_unit(unit);
        self.above = Some(above);
    }

    /// Rejects requests for the shards that the busy script holds.
    pub fn reject_waiting(&mut self, owned: &mut [Ownership]) {
        if let Some(why) = self.clients.frozen.reply() {
            self.clients.executor.reject_waiting(owned, why);
        }
    }
}
