//! Runs commands of a window (a list of parsed commands) that may run scripts. If a script becomes
//! *busy* (runs for long), the worker abandons the window and serves its other connections during
//! the script (`dispatch::busy`).

use pantala_engine::command::Command;
use pantala_resp::ArgRange;
use pantala_runtime::EventLoop;

use super::Runner;
use crate::dispatch::window::{Entry, What, Window};
use crate::dispatch::{Dispatcher, Suspended};

impl Runner {
    /// Runs a command of the window that may run a script. Returns the window, or `None` if the
    /// script became busy and the window was abandoned.
    #[cold]
    pub(super) fn run_suspended<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        window: Window,
        at: usize,
        command: &'static Command,
    ) -> Option<Window> {
        let Entry { connection, db, begin, end, is_inline, first_arg, args, .. } = window.entries[at];
        let entry = Entry { connection, db, begin, end, is_inline, first_arg, args, what: What::Local(command) };
        let ranges: Vec<ArgRange> = window.ranges_of(&entry).to_vec();
        d.suspended.push(Suspended { window, at, is_abandoned: false });
        self.run_entry(d, &entry, &ranges);
        let Suspended { window, at, is_abandoned } = d.suspended.pop()?;
        if !is_abandoned {
            return Some(window);
        }
        // When the window was abandoned, its later commands of other connections were held back.
        // Those of the script's connection must be held back too.
        let is_own = |later: &Entry| later.connection == entry.connection;
        if window.entries[at + 1..].iter().any(is_own)
            && let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize]
        {
            connection.input.hold_back(window.of_connection(entry.connection, at + 1));
            d.clients.reactor.make_ready(entry.connection);
        }
        None
    }
}
