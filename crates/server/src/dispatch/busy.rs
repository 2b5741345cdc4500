//! A script that runs for longer than `busy-reply-threshold` doesn't have its worker stand still: every few milliseconds its hook
//! has the worker do a *turn within*, which serves the other connections.
//!
//! Why that is sound:
//!
//! * The connection that runs the script is *frozen*: nothing of it is parsed, sent, closed or written to; what comes for it waits in [`Deferred`]
//!   until the script has ended and the worker is back at its loop, or another script begins to be busy before that. What is to be sent to it waits there up to its hard output limit:
//!   beyond, nothing more is kept and it is closed instead. (The soft limit, and `maxmemory-clients`, look at it again when its script has ended.)
//! * The window that the script stands in is given up: what is behind the script in it is held back
//!   ([`pantala_session::Input::hold_back`]) and runs later, that of other connections in the turn
//!   within, that of the script's own when it has ended. So no window has a position in any input
//!   across a turn within, but that of the frozen one.
//! * No script runs in a turn within (it gets `-BUSY`), so the Lua state isn't entered again; and the hook is called between instructions of Lua,
//!   never in the midst of a command, so the executor isn't either.
//! * The periodic work of a turn within is that of any turn, but for the frozen connection and the Lua states, which it passes over.
//! * What wants a shard that the script holds finds its gate shut, here as on other workers: the hook takes the requests from the gates and
//!   answers them with `-BUSY` ([`pantala_engine::executor::Executor::refuse_waiting`]).
//!
//! Before that, and with a threshold of 0, there are no turns within, but every few milliseconds too the hook hands on what the worker has of shards that the script doesn't
//! hold ([`Mail::hand_on_shards`](super::mail::Mail::hand_on_shards)). It touches no connection: answers, messages and requests that were set back wait for the next turn, within or not.

use pantala_engine::ownership::Ownership;
use pantala_runtime::EventLoop;

use super::Dispatcher;
use super::window::Window;
use crate::scripting::Kind;

/// Between two turns within, ms, and before that between two times that shards are handed on.
pub(super) const TURN_EVERY_MS: i64 = 5;

/// A window in the midst of which a command runs that may be a script.
pub struct Suspended {
    /// The window.
    pub window: Window,
    /// Which of its commands runs.
    pub at: usize,
    /// The commands behind that one aren't to be run: they are, or will be, held back.
    pub is_given_up: bool,
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// The script of a connection has run for too long: freezes the connection, and has all others be looked at.
    pub(super) fn begin_busy(&mut self, index: u32, kind: Kind) {
        // None where the script has waited for its shards.
        if let Some(suspended) = self.suspended.last_mut() {
            suspended.is_given_up = true;
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

    /// One turn within a script, which holds these shards.
    pub(super) fn turn_within(&mut self, owned: &mut [Ownership]) {
        let (Some(why), Some(mut above)) = (self.clients.frozen.reply(), self.above.take()) else { return };
        // The effects of other commands are no part of the script's unit, which is stamped when it ends.
        let unit = self.clients.executor.suspend_unit();
        self.clients.executor.flush_stream();
        self.clients.executor.keyspace().journal().attend(self.clients.reactor.number);
        self.clients.executor.refuse_waiting(owned, why);
        above.turn_within(self, owned);
        self.clients.executor.resume_unit(unit);
        self.above = Some(above);
    }

    /// Answers what waits for shards that the script of this turn holds.
    pub fn refuse_waiting(&mut self, owned: &mut [Ownership]) {
        if let Some(why) = self.clients.frozen.reply() {
            self.clients.executor.refuse_waiting(owned, why);
        }
    }
}
