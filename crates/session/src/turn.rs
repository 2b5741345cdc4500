//! The end of a turn (one round of the owner's loop): the actions that a connection's owner must
//! take on the socket.

use pantala_base::{Lender, Lent, Outgoing};

use crate::connection::{Connection, State};
use crate::input::{STRANGER_WAITING_BYTES_MAX, WAITING_BYTES_MAX};

/// Bytes to be sent.
#[derive(Debug)]
pub struct Send {
    /// The bytes.
    pub bytes: Outgoing,
    /// Whether the completion of the send must wake the owner, because more output or the end of
    /// the connection follows it.
    pub is_awaited: bool,
}

/// The output to send at the end of a turn.
#[derive(Debug)]
pub enum Sends {
    /// Nothing.
    Nothing,
    /// Nothing until the send in flight has completed. The completion must wake the owner, which
    /// then sends the rest.
    Later,
    /// These bytes.
    Now(Send),
}

/// Whether a connection continues after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It continues.
    Stays,
    /// It ends once the send in flight has completed.
    EndsWhenSent,
    /// It has ended: its socket must be closed.
    Over,
}

impl<C: Lent, S> Connection<C, S> {
    /// Ends the turn for the input: moves received bytes whose commands haven't run to the
    /// connection's own memory. Returns whether to stop receiving, because enough bytes are pending
    /// and the peer can wait.
    #[inline]
    pub fn end_input<M: Lender<Chunk = C>>(&mut self, memory: &mut M) -> bool {
        if self.input.keep(memory) {
            return false;
        }
        self.input.compact();
        // If the pending bytes contain complete commands, later bytes can wait in the kernel. If
        // they don't, the rest of the incomplete command must be received. A blocked connection
        // also keeps receiving: the close by the peer arrives after the pending bytes, and the
        // owner must notice it. (If the pending input exceeds `client-query-buffer-limit`, the
        // owner closes the connection.)
        let has_enough = match self.state {
            State::Open => self.is_ready,
            State::Blocked => false,
            State::Parked | State::Paused | State::Yielding | State::Syncing | State::Closing => true,
        };
        let waiting_bytes = self.input.waiting_bytes();
        has_enough
            && waiting_bytes > STRANGER_WAITING_BYTES_MAX
            && (waiting_bytes > WAITING_BYTES_MAX || !self.session.is_authenticated())
    }

    /// Takes the output buffer if it may be sent immediately. This requires that no send is in
    /// flight, no piece precedes the buffer, and the connection isn't that of a replica. (After
    /// each send to a replica, the owner must be woken, to add more of the stream to the output.)
    #[inline]
    pub fn take_output(&mut self) -> Option<Vec<u8>> {
        let may_be_sent = !self.output.is_empty()
            && self.sending.bytes == 0
            && self.ahead.is_empty()
            && self.session.follows.is_none();
        may_be_sent.then(|| std::mem::take(&mut self.output))
    }

    /// Records that the send of the buffer from [`Connection::take_output`] is in flight. Returns
    /// whether its completion must wake the owner.
    #[inline]
    pub fn set_in_flight(&mut self, bytes: usize) -> bool {
        self.sending.bytes = bytes;
        self.state == State::Closing || self.eof
    }

    /// Takes the output to send now. If this is the output buffer, `next_buffer` supplies the next
    /// output buffer.
    #[inline]
    pub fn take_send(&mut self, next_buffer: impl FnOnce() -> Vec<u8>) -> Sends {
        if !self.ahead.is_empty() {
            return self.take_piece();
        }
        if self.output.is_empty() {
            return Sends::Nothing;
        }
        if self.sending.bytes > 0 {
            return Sends::Later;
        }
        let output = std::mem::replace(&mut self.output, next_buffer());
        self.sending.bytes = output.len();
        Sends::Now(Send { bytes: output.into(), is_awaited: self.state == State::Closing || self.eof })
    }

    /// Takes the next piece, if no send is in flight.
    #[cold]
    fn take_piece(&mut self) -> Sends {
        if self.sending.bytes > 0 {
            return Sends::Later;
        }
        let Some(piece) = self.ahead.pop() else { return Sends::Nothing };
        self.sending.bytes = piece.bytes().len();
        self.sending.is_shared = matches!(piece, Outgoing::Shared(_));
        // The remaining output must follow as soon as this send completes.
        let is_last = self.ahead.is_empty() && self.output.is_empty();
        Sends::Now(Send { bytes: piece, is_awaited: !is_last || self.state == State::Closing || self.eof })
    }

    /// Ends the send in flight. Returns whether the owner must process the connection at the end of
    /// this turn: there may be more output to send, or the connection may have ended.
    #[inline]
    pub fn sent(&mut self) -> bool {
        self.sending.bytes = 0;
        self.sending.is_shared = false;
        !self.output.is_empty() || !self.ahead.is_empty() || self.state != State::Open || self.eof
    }

    /// Returns whether the connection continues after this turn.
    #[inline]
    pub fn fate(&self) -> Fate {
        if self.state == State::Open && !self.eof {
            return Fate::Stays;
        }
        let ends = match self.state {
            State::Closing => true,
            // All complete commands have run. The peer sends no more bytes, so the remaining ones
            // can't become a command.
            State::Open => self.eof && !self.is_ready,
            // As in Redis, the wait ends when the peer closes, even if more commands are pending.
            State::Blocked | State::Paused => self.eof,
            State::Parked | State::Yielding | State::Syncing => false,
        };
        match ends {
            true if self.pending_bytes() == 0 => Fate::Over,
            true if self.sending.bytes > 0 => Fate::EndsWhenSent,
            _ => Fate::Stays,
        }
    }
}
