//! Connections that follow the stream of effects: replicas.
//!
//! A connection has at most a window of the stream in its output. The rest stays in the log, which
//! all followers share ([`pantala_engine::effect`]), and is read as the window is sent. So a slow
//! replica costs what the log holds for it, and is closed when that exceeds the
//! `client-output-buffer-limit` of its class.

use pantala_engine::client::Next;
use pantala_engine::effect::log::{Ahead, CutOff};
use pantala_runtime::{EventLoop, Outgoing};
use pantala_session::State;
use pantala_session::output::PIECE_BYTES_MIN;

use super::frozen::Deferred;
use super::{Abandon, Clients};

/// Pending output of a follower up to which it reads on, bytes: twice what a socket takes at a
/// time. More would only move from the shared log to the connection.
const WINDOW_BYTES: usize = 1024 * 1024;

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Handles more of the stream for the connection with this token, or its being cut off.
    pub fn follow(&mut self, wanted: u64) {
        let Some(index) = self.reactor.find_token(wanted) else { return };
        if self.frozen.holds(index) {
            return self.frozen.defer(Deferred::Effects(wanted));
        }
        self.has_followers = true;
        follow_on(self, index);
    }
}

/// Looks after a follower: closes it for this reason, or gives it what is due.
pub fn look_at_follower<L: EventLoop, H: Abandon>(
    clients: &mut Clients<'_, L, H>,
    index: u32,
    timed_out: Option<String>,
) {
    match timed_out {
        Some(why) => {
            tracing::warn!("{why}");
            clients.close(index);
        }
        None => follow_on(clients, index),
    }
}

/// Gives a connection more of the stream, if it follows it and has room in its window.
pub(super) fn follow_on<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return };
    let mut room = WINDOW_BYTES.saturating_sub(connection.pending_bytes());
    let Some(follower) = &mut connection.session.follows else { return };
    if connection.state == State::Closing || clients.frozen.holds(index) {
        return;
    }
    let mut parts = Vec::new();
    // Without room it reads nothing, but learns whether it was cut off.
    let next = loop {
        // Two pieces at least: the end of a send is waited for only where something follows it, and
        // that is when the next ones are read.
        let has_two = connection.ahead.pieces() + parts.len() >= 2;
        let before = parts.len();
        let next = follower.read(if has_two { room } else { room.max(1) }, &mut parts);
        room = room.saturating_sub(parts[before..].iter().map(|part| part.bytes().len()).sum());
        if next != Next::Ahead(Ahead::More) || (room == 0 && connection.ahead.pieces() + parts.len() >= 2) {
            break next;
        }
    };
    match next {
        Next::Ahead(Ahead::CutOff(why)) => return cut_off(clients, index, why),
        Next::Failed(why) => {
            tracing::warn!("Closing a replica: {why}");
            return clients.close(index);
        }
        Next::End => connection.state = State::Closing,
        Next::Ahead(_) if parts.is_empty() => return,
        Next::Ahead(_) => {}
    }
    if parts.is_empty() && connection.state != State::Closing {
        return;
    }
    for part in parts {
        match part {
            Outgoing::Shared(bytes) => connection.add_shared(&bytes),
            Outgoing::Own(bytes) if bytes.len() >= PIECE_BYTES_MIN => connection.add_piece(bytes),
            Outgoing::Own(bytes) => connection.output.extend_from_slice(&bytes),
        }
    }
    clients.reactor.touch(index);
}

fn cut_off<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32, why: CutOff) {
    let CutOff { behind_bytes, bytes_max } = why;
    tracing::warn!("A replica is {behind_bytes} bytes behind, of which its limit allows {bytes_max}.");
    clients.close_over_limit(index);
}
