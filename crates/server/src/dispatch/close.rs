//! Connections that end.

use pantala_runtime::EventLoop;
use pantala_session::State;

use super::Dispatcher;
use super::transactions::Held;

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Closes a connection at once.
    pub fn close(&mut self, index: u32) {
        self.stop_waiting(index);
        let Some(mut connection) = self.reactor.remove(index) else { return };
        if connection.state == State::Paused {
            self.reactor.stats.paused.sub(1);
        }
        if let Some(Held::Pause(answer)) = connection.socket.held.take() {
            self.tell_paused(&answer);
        }
        let keyspace = self.executor.keyspace();
        connection.session.leave_channels(keyspace);
        connection.session.set_monitors(keyspace, false);
        connection.session.leave_effects(keyspace);
        connection.session.untrack(keyspace);
        if let Some(mut ahead) = self.reactor.shut(connection) {
            self.memory.free_output(&mut ahead);
        }
    }

    /// Closes everything when the server stops. Replies that are ready are given a moment to leave.
    ///
    /// # Errors
    /// The loop can't send any more.
    pub fn close_all(&mut self) -> std::io::Result<()> {
        self.reactor.stop_listening();
        self.finish_turn();
        while self.reactor.has_listed() {
            self.finish_turn();
        }
        self.reactor.io.poll(Some(std::time::Duration::ZERO), &mut Vec::new())?;
        for index in 0..self.reactor.connections.len() {
            self.close(index as u32);
        }
        Ok(())
    }
}
