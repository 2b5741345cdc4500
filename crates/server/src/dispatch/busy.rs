//! A script that runs for longer than `busy-reply-threshold` doesn't block its worker: every few
//! milliseconds its Lua hook makes the worker run a *turn within*, which serves the other
//! connections.
//!
//! Why this is sound:
//!
//! * The connection that runs the script is *frozen*: it is not parsed, sent, closed or written to.
//!   Its events and messages wait in [`Deferred`] until the script has ended and the worker has
//!   returned to its loop, or until another script becomes busy. Output for the connection is
//!   deferred up to its hard output limit; beyond the limit it is dropped, and the connection will
//!   be closed. (The soft limit and `maxmemory-clients` apply again when the script has ended.)
//! * The script's window is abandoned: the commands behind the script are held back
//!   ([`pantala_session::Input::hold_back`]) and run later, those of other connections in the turn
//!   within, those of the script's own connection when it has ended. So no window refers to a
//!   position in any input across a turn within, except that of the frozen connection.
//! * No script runs in a turn within (it gets `-BUSY`), so the Lua state isn't re-entered. The hook
//!   is called between Lua instructions, never during a command, so the executor isn't re-entered
//!   either.
//! * The periodic work of a turn within is that of any turn, but skips the frozen connection and
//!   the Lua states.
//! * A request for a shard that the script holds finds its gate closed, on this worker as on
//!   others: the hook takes the requests from the gates and rejects them with `-BUSY`
//!   ([`pantala_engine::executor::Executor::refuse_waiting`]).
//!
//! Before the threshold, and always with a threshold of 0, there are no turns within. Instead the
//! hook hands on, at the same interval, the worker's shards that the script doesn't hold
//! ([`Mail::hand_on_shards`](super::mail::Mail::hand_on_shards)). This touches no connection:
//! replies, messages and requests that were set back wait for the next turn, within a script or
//! not.

use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::window::Window;
use crate::scripting::Kind;

/// Interval between turns within a script and, before the threshold, between handing on shards; ms.
pub(super) const TURN_EVERY_MS: i64 = 5;

/// A window that is running a command that may be a script.
pub struct Suspended {
    /// The window.
    pub window: Window,
    /// Index of the running command.
    pub at: usize,
    /// The window is abandoned: the commands behind the running one are held back.
    pub is_given_up: bool,
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Freezes the connection of a script that has become busy, and makes all others ready.
    pub(super) fn begin_busy(&mut self, index: u32, kind: Kind) {
        // None if the script has waited for its shards. A script that is busy again in its rerun
        // has abandoned its window already: its positions are stale.
        if let Some(suspended) = self.suspended.last_mut()
            && !std::mem::replace(&mut suspended.is_given_up, true)
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
        self.clients.freeze(index, kind);
    }

    /// Runs one turn within a script, which holds these shards.
    pub(super) fn turn_within(&mut self, owned: &mut [Ownership]) {
        let (Some(why), Some(mut above)) = (self.clients.frozen.reply(), self.above.take()) else { return };
        // Effects of other commands are not part of the script's unit. The unit is stamped when the
        // script ends.
        let unit = self.clients.executor.suspend_unit();
        self.clients.executor.flush_stream();
        self.clients.executor.keyspace().journal().attend(self.clients.reactor.number);
        self.clients.executor.refuse_waiting(owned, why);
        above.turn_within(self, owned);
        self.clients.executor.resume_unit(unit);
        self.above = Some(above);
    }

    /// Rejects requests for the shards that the busy script holds.
    pub fn refuse_waiting(&mut self, owned: &mut [Ownership]) {
        if let Some(why) = self.clients.frozen.reply() {
            self.clients.executor.refuse_waiting(owned, why);
        }
    }
}
