//! Connections of replicas, which follow the stream of effects. An effect is the change that a
//! command has made to a key, in the form in which it is propagated.
//!
//! A connection's output contains only a short part of the stream, at most about
//! [`REFILL_BELOW_BYTES`]. The rest stays in the log, which all followers share
//! ([`pantala_engine::effect`]). Once a part has been sent, the next part is read. So the memory
//! cost of a slow replica is the part of the log that is kept for it. When that part exceeds the
//! `client-output-buffer-limit` of replicas, the connection is closed.

use pantala_engine::client::Next;
use pantala_engine::effect::log::{Ahead, CutOff};
use pantala_runtime::{EventLoop, Outgoing};
use pantala_session::State;
use pantala_session::output::PIECE_BYTES_MIN;

use super::frozen::Deferred;
use super::{Abandon, Clients};

/// Pending output, in bytes, below which a follower reads more of the log. This value is twice what
/// a socket accepts at a time. A larger value would only move more bytes from the shared log to the
/// connection.
const REFILL_BELOW_BYTES: usize = 1024 * 1024;

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Reacts to a message for the follower with this token (connection identifier). The message
    /// means either that the stream has more effects for the follower, or that the follower is cut
    /// off because it is too far behind.
    pub fn follow(&mut self, wanted: u64) {
        let Some(index) = self.reactor.find_token(wanted) else { return };
        if self.frozen.holds(index) {
            return self.frozen.defer(Deferred::Effects(wanted));
        }
        self.has_followers = true;
        continue_stream_to_follower(self, index);
    }
}

/// Checks a follower periodically. If `timed_out` has a reason, closes the follower's connection.
/// Otherwise sends the follower more of the stream.
pub fn check_follower<L: EventLoop, H: Abandon>(
    clients: &mut Clients<'_, L, H>,
    index: u32,
    timed_out: Option<String>,
) {
    match timed_out {
        Some(why) => {
            tracing::warn!("{why}");
            clients.close(index);
        }
        None => continue_stream_to_follower(clients, index),
    }
}

/// Adds more of the stream to a connection's output, if the connection follows the stream and has
/// less than [`REFILL_BELOW_BYTES`] of pending output.
pub(super) fn continue_stream_to_follower<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, index: u32) {
    let Some(connection) = &mut clients.reactor.connections[index as usize] else { return };
    let mut room = REFILL_BELOW_BYTES.saturating_sub(connection.pending_bytes());
    let Some(follower) = &mut connection.session.follows else { return };
    if connection.state == State::Closing || clients.frozen.holds(index) {
        return;
    }
    let mut parts = Vec::new();
    // If there is no room, `read` reads nothing, but still reports whether the follower was cut
    // off.
    let next = loop {
        // Read at least two pieces (separately sent buffers). The loop reports the completion of a
        // send only if more output follows it, and this report triggers the next read.
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
    let bytes: usize = parts.iter().map(|part| part.bytes().len()).sum();
    clients.reactor.stats.repl_output_bytes.add(bytes as u64);
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
    let CutOff { lag_bytes, bytes_max } = why;
    tracing::warn!("A replica is {lag_bytes} bytes behind, of which its limit allows {bytes_max}.");
    clients.close_over_limit(index);
}
