//! Pending output of a connection.
//!
//! Replies are appended to one buffer, which the event loop takes at the end of each turn (one
//! round of its loop). If the replies are long, the buffer becomes a *piece* ([`Ahead`]), and a new
//! buffer follows it. Pieces are sent one by one, before the current buffer.

use std::collections::VecDeque;

use pantala_base::Outgoing;

/// Minimum length of a piece, bytes. An output buffer of this length becomes a piece instead of
/// growing for the next reply. Shorter output stays one buffer and is sent in one send.
pub const PIECE_BYTES_MIN: usize = 64 * 1024;

/// Length at which a piece of several replies ends, bytes. A piece of this length has room for
/// sixteen replies of 64 KiB with their headers. Shorter pieces would waste more memory, because
/// the allocator rounds up to multiples of 64 KiB.
pub const PIECE_BYTES: usize = 1024 * 1024 + PIECE_BYTES_MIN;

/// Capacity that a reply may reserve in addition to its length, bytes: room for the longest header.
const PIECE_SPARE_BYTES: usize = 64;

/// Output that is sent in pieces before the connection's own buffer: long replies, long messages
/// shared with other connections, and output that was pending before them. Most connections never
/// have such output.
#[derive(Default)]
pub struct Ahead {
    pieces: VecDeque<Outgoing>,
    len_bytes: usize,
    shared_bytes: usize,
    /// The capacity of the next output buffer, bytes, if a piece has just ended.
    next_capacity_bytes: Option<usize>,
}

impl Ahead {
    /// Returns whether there are no pieces.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: Outgoing) {
        self.len_bytes += piece.bytes().len();
        if let Outgoing::Shared(bytes) = &piece {
            self.shared_bytes += bytes.len();
        }
        self.pieces.push_back(piece);
    }

    /// Takes the first piece.
    pub fn pop(&mut self) -> Option<Outgoing> {
        let piece = self.pieces.pop_front()?;
        self.len_bytes -= piece.bytes().len();
        if let Outgoing::Shared(bytes) = &piece {
            self.shared_bytes -= bytes.len();
        }
        Some(piece)
    }

    /// Makes the output buffer a piece if it is long enough: if it has at least [`PIECE_BYTES`], or
    /// if it has at least [`PIECE_BYTES_MIN`] and no room for another reply as long as the last one
    /// (`reply_bytes`). Returns whether the buffer became a piece.
    pub fn end_piece(&mut self, output: &mut Vec<u8>, reply_bytes: usize) -> bool {
        let (len, capacity) = (output.len(), output.capacity());
        if len < PIECE_BYTES_MIN || (capacity - len >= reply_bytes && len < PIECE_BYTES) {
            return false;
        }
        self.push(std::mem::take(output).into());
        // The next buffer has room for twice as many replies as the piece has, but at most for a
        // full piece. So it isn't reallocated for each reply, and a client that sends no more
        // commands doesn't hold the memory of a full piece. If only one reply would fit, the buffer
        // starts without capacity, because that reply allocates its own memory.
        let replies = PIECE_BYTES.min(2 * len) / reply_bytes.max(1);
        self.next_capacity_bytes = Some(if replies > 1 { replies * reply_bytes + PIECE_SPARE_BYTES } else { 0 });
        true
    }

    /// Returns whether [`Ahead::next_buffer`] supplies the next output buffer.
    #[inline]
    pub fn supplies_buffer(&self) -> bool {
        self.next_capacity_bytes.is_some()
    }

    /// Returns the output buffer that follows a piece that has just ended.
    #[cold]
    pub fn next_buffer(&mut self) -> Vec<u8> {
        Vec::with_capacity(self.next_capacity_bytes.take().unwrap_or_default())
    }

    /// Returns the size of all pieces, bytes.
    #[inline]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Returns the size of pieces that are shared with other connections, bytes.
    pub fn shared_bytes(&self) -> usize {
        self.shared_bytes
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Removes all pieces. Returns them, and the size of those that aren't shared, bytes.
    pub fn take(&mut self) -> (VecDeque<Outgoing>, usize) {
        let own_bytes = self.len_bytes - self.shared_bytes;
        (std::mem::take(self).pieces, own_bytes)
    }
}

/// A send in flight.
#[derive(Default)]
pub struct Sending {
    /// Size of the send, bytes; 0 if no send is in flight.
    pub bytes: usize,
    /// Whether its memory is shared with other connections.
    pub is_shared: bool,
    /// Time since which the pending output has exceeded the soft limit of
    /// `client-output-buffer-limit`, Unix time in ms. `None` while it does not exceed the limit.
    pub above_soft_limit_since_ms: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an output buffer of length `len`, with room for `room` more bytes.
    fn output(len: usize, room: usize) -> Vec<u8> {
        let mut output = Vec::with_capacity(len + room);
        output.resize(len, b'x');
        output
    }

    #[test]
    fn a_piece_ends_where_another_reply_would_move_it() {
        const REPLY_BYTES: usize = 1000;
        for (len, room, ends) in [
            (PIECE_BYTES_MIN, REPLY_BYTES - 1, true),
            (PIECE_BYTES_MIN, REPLY_BYTES, false),
            (PIECE_BYTES_MIN - 1, REPLY_BYTES - 1, false),
            (PIECE_BYTES, REPLY_BYTES, true),
            (PIECE_BYTES - 1, REPLY_BYTES, false),
        ] {
            let (mut ahead, mut output) = (Ahead::default(), output(len, room));
            assert_eq!(ahead.end_piece(&mut output, REPLY_BYTES), ends, "{len} and {room}");
            assert_eq!((output.is_empty(), ahead.is_empty()), (ends, !ends));
            assert_eq!(ahead.pop().map_or(0, |piece| piece.bytes().len()), if ends { len } else { 0 });
        }
    }

    #[test]
    fn the_buffer_behind_a_piece_has_room_for_whole_replies() {
        let after = |len: usize, reply_bytes: usize| {
            let mut ahead = Ahead::default();
            assert!(ahead.end_piece(&mut output(len, 0), reply_bytes));
            ahead.next_capacity_bytes.expect("one has just ended")
        };
        let bulk = |bytes: usize| bytes + format!("${bytes}\r\n\r\n").len();
        // The next buffer has twice the length of the last piece, up to the length of a piece.
        let large = bulk(64 * 1024);
        assert_eq!(after(large, large), 2 * large + PIECE_SPARE_BYTES);
        assert_eq!(after(8 * large, large), 16 * large + PIECE_SPARE_BYTES);
        assert_eq!(after(16 * large, large), 16 * large + PIECE_SPARE_BYTES);
        // A single reply allocates its own memory.
        assert_eq!(after(bulk(1024 * 1024), bulk(1024 * 1024)), 0);
        assert_eq!(after(PIECE_BYTES, PIECE_BYTES / 2 + 1), 0);
        assert_eq!(after(PIECE_BYTES, PIECE_BYTES / 2), PIECE_BYTES + PIECE_SPARE_BYTES);
    }
}
