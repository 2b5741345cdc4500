//! `CLIENT CACHING`, which applies to one command.

use pantala_engine::command::Flags;
use pantala_runtime::EventLoop;
use pantala_session::State;

use super::Runner;
use crate::dispatch::Dispatcher;
use crate::dispatch::window::{Entry, What};

impl Runner {
    /// Ends the effect of `CLIENT CACHING` after the command or transaction that it applies to.
    /// Commands with [`Flags::KEEPS_CACHING`], such as `CLIENT` itself, don't end it.
    #[cold]
    pub(super) fn end_caching_of<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, entry: &Entry) {
        let (What::Single(command, _) | What::Keyed(command) | What::Local(command)) = entry.what else { return };
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return };
        // The command has not run yet if the connection is held back by a pause, or waits for the
        // shards of a transaction or a script.
        let is_to_run = connection.socket.shard_work.is_some() || connection.state == State::Paused;
        if !is_to_run && !command.flags.contains(Flags::KEEPS_CACHING) {
            connection.end_caching();
        }
    }
}
