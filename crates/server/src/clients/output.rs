//! Output of connections and its limits, each connection's and that of all together.

use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_session::output::PIECE_BYTES;

use super::{Abandon, Clients, Connection};
use crate::config::{OutputLimit, Settings};

/// The output limit of a connection: that of its class.
pub fn output_limit<'s, H>(connection: &Connection<H>, settings: &'s Settings) -> &'s OutputLimit {
    if connection.session.follows.is_some() {
        &settings.output_limit_replica
    } else if connection.session.subscriptions.is_some() {
        &settings.output_limit_pubsub
    } else {
        &settings.output_limit_normal
    }
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Closes a connection whose output is above the hard limit, or makes clients take too much memory, and returns whether it did. Otherwise ends a piece of
    /// its output where that has become long. `added_bytes`: what was added to it.
    #[inline]
    pub fn closed_over_limit(&mut self, index: u32, added_bytes: usize) -> bool {
        let Some(connection) = &self.reactor.connections[index as usize] else { return true };
        // A transaction is never left in the middle: the caller of EXEC asks when it has run.
        if connection.session.in_exec || !self.limits.alarm.is_reached(connection) {
            return false;
        }
        let is_closed = self.closed_at_alarm(index);
        if let Some(connection) = &mut self.reactor.connections[index as usize] {
            end_piece(connection, &self.reactor.settings, added_bytes);
        }
        is_closed
    }

    /// After a command of the window whose reply begins at `before`: looks at the limits, and has the connection yield to the others where a piece of its output ends. What it
    /// has sent behind the command runs in the next turn, when the piece is given to the loop; so a turn of a connection is bounded, whether or not its
    /// peer reads.
    #[cold]
    pub fn yield_at_piece(&mut self, index: u32, before: usize) {
        if self.closed_at_alarm(index) {
            return;
        }
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        let reply_bytes = connection.output.len().saturating_sub(before);
        if end_piece(connection, &self.reactor.settings, reply_bytes) && connection.state == State::Open {
            connection.state = State::Yielding;
        }
    }

    #[cold]
    fn closed_at_alarm(&mut self, index: u32) -> bool {
        let Some(connection) = &self.reactor.connections[index as usize] else { return true };
        let hard_bytes = output_limit(connection, &self.reactor.settings).hard_bytes;
        if hard_bytes > 0 && connection.pending_bytes() as u64 > hard_bytes {
            self.close_over_limit(index);
            return true;
        }
        let is_evicted = self.limits.weighing.is_on && self.evicts_for(index);
        if is_evicted {
            self.close(index);
        }
        is_evicted
    }

    /// Closes a connection for its output.
    #[cold]
    pub fn close_over_limit(&mut self, index: u32) {
        if let Some(connection) = &self.reactor.connections[index as usize] {
            self.reactor.server.log_output_limit(&connection.session.client);
        }
        self.close(index);
    }
}

/// As [`pantala_session::Connection::end_piece`], unless the hard limit itself bounds the output of a turn: what is above such a limit
/// is as in Redis not answered in part.
#[cold]
fn end_piece<H>(connection: &mut Connection<H>, settings: &Settings, reply_bytes: usize) -> bool {
    let hard_bytes = output_limit(connection, settings).hard_bytes;
    let is_bounded = (1..=PIECE_BYTES as u64).contains(&hard_bytes);
    !is_bounded && connection.end_piece(reply_bytes)
}
