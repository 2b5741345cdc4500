//! Notes which replies wait until effects are on disk or the disk has caught up ([`crate::aof`]),
//! and which effects a `WAIT` of the connection waits for.

use pantala_engine::effect::Seen;
use pantala_runtime::EventLoop;

use super::{Abandon, Clients};

/// Makes the replies to a connection's last commands wait for the effects that these commands have
/// produced or seen, if the gate of the append-only file is shut (replies must wait for the disk).
/// If the stream is kept for replicas, notes for `WAIT` how much of the stream these commands have
/// produced or seen.
#[inline]
pub fn note_unsynced<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    if clients.reactor.server.snapshots().aof.gate().wants_notes() {
        let seen = clients.executor.take_seen();
        note(clients, index, seen);
    }
}

/// Does the same as [`note_unsynced`] for commands that another worker has run. `seen` describes
/// the effects that they have produced or read.
#[inline]
pub fn note_unsynced_until<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32, seen: Seen) {
    if clients.reactor.server.snapshots().aof.gate().wants_notes() {
        note(clients, index, seen);
    }
}

fn note<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32, seen: Seen) {
    let gate = clients.reactor.server.snapshots().aof.gate();
    if !gate.is_shut() && !gate.is_streamed() {
        return;
    }
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return };
    if gate.is_shut() {
        let stamp = gate.awaited(seen, connection.session.durability);
        connection.socket.unsynced = connection.socket.unsynced.max(stamp);
    }
    if gate.is_streamed() {
        connection.session.stream_stamp = clients.executor.stream_stamp();
    }
}
