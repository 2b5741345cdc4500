//! Notes the effects (propagated changes) that must be on disk before a connection's replies are
//! sent ([`crate::aof`]), and the effects that a later `WAIT` of the connection waits for.

use pantala_engine::effect::Seen;
use pantala_runtime::EventLoop;

use super::{Abandon, Clients};

/// Notes the effects that a connection's last commands have produced or seen.
///
/// If the *gate* of the append-only file is shut (replies must wait for the disk), the replies to
/// these commands wait until the noted effects are on disk. If the stream of effects is kept for
/// replicas, also notes, for `WAIT`, a stamp (stream position) after these effects.
#[inline]
pub fn note_unsynced<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    if clients.reactor.server.snapshots().aof.gate().wants_notes() {
        let seen = clients.executor.recorder().take_seen();
        note(clients, index, seen);
    }
}

/// Does the same as [`note_unsynced`] for commands that another worker has run. `seen` describes
/// the effects that these commands have produced or seen.
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
        connection.session.stream_stamp = clients.executor.recorder().stream_stamp();
    }
}
