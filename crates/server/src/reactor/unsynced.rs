//! Replies that wait for the append-only file ([`crate::aof`]): until the effects (changes) that
//! they reveal are on disk (`appendfsync always`), or until the disk has caught up with the
//! writers.
//!
//! A connection records the latest stamp (position in the journal) of the effects that its commands
//! have produced or seen. Until all effects up to that stamp are synced, the connection's output is
//! not sent, and the connection runs no more commands. Further commands of an endless pipeline
//! would raise the stamp again and again, so that its replies would never be sent. Other
//! connections continue.

use pantala_runtime::EventLoop;
use pantala_session::State;

use super::Reactor;

impl<L: EventLoop, H> Reactor<'_, L, H> {
    /// Returns whether a connection must wait for a sync, judged by the stamp that it has recorded.
    /// If so, adds it to the list of waiting connections.
    #[cold]
    pub(super) fn waits_for_sync(&mut self, index: u32) -> bool {
        let aof = &self.server.snapshots().aof;
        let (synced, is_behind) = (aof.synced(), aof.gate().is_behind());
        let Some(connection) = &mut self.connections[index as usize] else { return false };
        // While the disk is behind, even a client that receives no replies (`CLIENT REPLY OFF`)
        // waits. Only the link to a primary passes, because the primary's writes can't be delayed.
        let may_pass = if is_behind { connection.session.primary.is_some() } else { !connection.has_output() };
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
            // The connection that waited may be closed, and another may have its index.
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

/// Makes a connection run no commands while its replies wait for a sync. Called when the connection
/// has become open. Without this call, a pipeline whose commands run on other workers would never
/// wait.
pub fn hold_unsynced<L: EventLoop, H>(reactor: &mut Reactor<'_, L, H>, index: u32) {
    if let Some(connection) = &mut reactor.connections[index as usize]
        && connection.socket.is_unsynced
        && connection.state == State::Open
    {
        connection.state = State::Syncing;
    }
}
