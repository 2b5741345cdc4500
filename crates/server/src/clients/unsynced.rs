//! Notes which replies wait until effects are on disk ([`crate::aof`]).

use pantala_runtime::EventLoop;

use super::{Abandon, Clients};

/// Notes that the replies of a connection's last commands wait until what these have done, or have
/// seen, is synced.
#[inline]
pub fn note_unsynced<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    if clients.reactor.server.snapshots().aof.gates() {
        let seen = clients.executor.take_seen();
        note(clients, index, seen);
    }
}

/// Notes the same for commands that another worker has run, with the latest stamp that they have
/// made or seen.
#[inline]
pub fn note_unsynced_until<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32, stamp: u64) {
    if clients.reactor.server.snapshots().aof.gates() {
        note(clients, index, stamp);
    }
}

fn note<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32, stamp: u64) {
    if let Some(connection) = &mut clients.reactor.connections[index as usize] {
        connection.socket.unsynced = connection.socket.unsynced.max(stamp);
    }
}
