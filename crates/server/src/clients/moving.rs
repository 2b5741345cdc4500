//! Moves connections between workers ([`crate::reactor::moving`] describes the steps).

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::faults::{self, Fault};
use pantala_runtime::EventLoop;

use super::close::end_session;
use super::{Abandon, Clients};
use crate::reactor::moving::{self, Moved};

/// Hands over the connections that are to leave for other workers, except those with pending work.
/// Hands over none while events are deferred (`clients::frozen`), because these may be events of
/// leaving connections.
#[inline]
pub fn hand_over_leaving<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>) {
    if moving::has_leaving(&clients.reactor) && !clients.frozen.has_deferred() {
        let effect_clock = clients.executor.recorder().effect_clock();
        for returned in moving::hand_over(&mut clients.reactor, effect_clock) {
            take_over(clients, returned);
        }
    }
}

/// Takes over a connection that another worker has handed over.
pub fn take_over<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, moved: Moved) {
    // The connection's next effects must be stamped later than its earlier ones.
    clients.executor.recorder().observe_clock(moved.effect_clock);
    let index = match moving::take_over(&mut clients.reactor, moved) {
        Ok(index) => index,
        Err(session) => return end_session(clients.reactor.server, &session),
    };
    // A request to close the connection may have gone to its former worker, which no longer has it.
    let connection = clients.reactor.connections[index as usize].as_ref();
    if connection.is_some_and(|connection| connection.session.client.killed.load(Relaxed)) {
        clients.close(index);
    }
}

/// Makes randomly chosen connections of this turn leave for another worker, for tests.
#[cold]
pub fn move_at_random<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>) {
    let facts = clients.reactor.server.facts();
    let next =
        if clients.reactor.number + 1 < facts.workers { clients.reactor.number + 1 } else { facts.first_io_worker };
    if next != clients.reactor.number {
        for index in moving::in_turn(&clients.reactor) {
            if faults::hits(Fault::MoveConnection) {
                moving::ask_to_leave(&mut clients.reactor, index, next);
            }
        }
    }
}
