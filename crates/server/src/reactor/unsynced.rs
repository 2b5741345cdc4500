//! Replies that wait until the effects that they tell of are on disk (`appendfsync always`), or
//! until the disk has caught up with the writers ([`crate::aof`]).
//!
//! A connection has the latest stamp of the units that its commands have made, or have read the
//! results of. Until all effects up to it are synced, its output stays where it is, and it runs no
//! more commands, so that a pipeline without end does not put its replies off for ever. Other
//! connections go on.

use pantala_runtime::EventLoop;
use pantala_session::State;

use super::Reactor;

impl<L: EventLoop, H> Reactor<'_, L, H> {
    /// Returns whether a connection with such a stamp must wait. If so, it is in the list of those
    /// that do.
    #[cold]
    pub(super) fn waits_for_sync(&mut self, index: u32) -> bool {
        let aof = &self.server.snapshots().aof;
        let (synced, is_behind) = (aof.synced(), aof.gate().is_behind());
        let Some(connection) = &mut self.connections[index as usize] else { return false };
        // A client without replies (CLIENT REPLY OFF) must not write ahead of the disk either. A
        // primary's writes can't be held back.
        let may_pass = !connection.has_output() && (!is_behind || connection.session.primary.is_some());
        if connection.socket.unsynced < synced || may_pass {
            connection.socket.unsynced = 0;
            return false;
        }
        if matches!(connection.state, State::Open | State::Yielding) {
            connection.state = State::Syncing;
        }
        if !std::mem::replace(&mut connection.socket.is_unsynced, true) {
            self.unsynced.push(index);
        }
        true
    }

    /// Releases the connections whose effects are synced. Returns whether there were any.
    pub fn release_synced(&mut self) -> bool {
        let synced = self.server.snapshots().aof.synced();
        let mut released = false;
        for index in std::mem::take(&mut self.unsynced) {
            let Some(connection) = &mut self.connections[index as usize] else { continue };
            // Or a connection that has since taken the index.
            if !connection.socket.is_unsynced {
                continue;
            }
            if connection.socket.unsynced >= synced {
                self.unsynced.push(index);
                continue;
            }
            (connection.socket.is_unsynced, connection.socket.unsynced) = (false, 0);
            if connection.state == State::Syncing {
                connection.state = State::Open;
                self.make_ready(index);
            }
            self.touch(index);
            released = true;
        }
        released
    }
}
