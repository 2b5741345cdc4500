//! One connection, as its worker keeps it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::Session;
use pantala_engine::request::Parcel;
use pantala_runtime::{ConnId, EventLoop, Outgoing, SharedBytes};

use super::input::Input;
use super::transactions::Held;

/// Whether a connection runs commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs what comes.
    Open,
    /// Commands of it wait for shards; the answers will come by message.
    Parked,
    /// Its command waits for a key; the answer will come by message, or time will be over.
    Blocked,
    /// `CLIENT PAUSE` holds it back.
    Paused,
    /// Its commands have replied as much as they may in one turn; at the turn's end it is open again, and has something to parse ([`super::Worker::finish_turn`]).
    Yielding,
    /// Nothing more is run; it closes when its replies are sent.
    Closing,
}

/// What a connection waits for.
pub struct Blocked {
    /// Its command.
    pub waiter: Arc<Waiter>,
    /// Until when, in the clock that never goes back, µs.
    pub deadline_us: Option<i64>,
    /// How long it took to find that it has to wait.
    pub took: Duration,
}

/// From this length on the output buffer ends as a piece instead of growing for the next reply, bytes. Shorter output is one buffer, and one send.
pub const PIECE_BYTES_MIN: usize = 64 * 1024;

/// The length that a piece of several replies comes to, bytes: sixteen of 64 KiB with their headers. The allocator rounds up to multiples of 64 KiB, so that shorter
/// ones would waste more.
pub const PIECE_BYTES: usize = 1024 * 1024 + PIECE_BYTES_MIN;

/// What a reply may ask for beyond its length, bytes: room for the longest header.
const PIECE_SPARE_BYTES: usize = 64;

/// Output that is sent in pieces, before what is in the connection's own buffer: replies that are long together, long messages that others get too, and what was to be
/// sent before them. Hardly any connection ever has such.
#[derive(Default)]
pub struct Ahead {
    pieces: VecDeque<Outgoing>,
    len_bytes: usize,
    shared_bytes: usize,
    /// The capacity of the output buffer behind the piece that has just ended, bytes.
    next_capacity_bytes: Option<usize>,
}

impl Ahead {
    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len_bytes == 0
    }

    fn push(&mut self, piece: Outgoing) {
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

    /// Ends an output buffer as a piece if it is long and has no room for another reply as long as the last one, `reply_bytes`. Returns whether it did.
    pub fn end_piece(&mut self, output: &mut Vec<u8>, reply_bytes: usize) -> bool {
        let (len, capacity) = (output.len(), output.capacity());
        if len < PIECE_BYTES_MIN || (capacity - len >= reply_bytes && len < PIECE_BYTES) {
            return false;
        }
        self.push(std::mem::take(output).into());
        // As many more as long as that, so that none has to be moved; where that is none or one, it allocates its memory itself. A client that stops here doesn't
        // have the memory of a full piece.
        let replies = PIECE_BYTES.min(2 * len) / reply_bytes.max(1);
        self.next_capacity_bytes = Some(if replies > 1 { replies * reply_bytes + PIECE_SPARE_BYTES } else { 0 });
        true
    }

    /// Returns whether the next output buffer is one of [`Connection::set_large_buffer`].
    #[inline]
    pub fn gives_buffer(&self) -> bool {
        self.next_capacity_bytes.is_some()
    }

    /// Removes all pieces, and returns them with their length in bytes, without those that others have too.
    pub fn take(&mut self) -> (VecDeque<Outgoing>, usize) {
        let own_bytes = self.len_bytes - self.shared_bytes;
        (std::mem::take(self).pieces, own_bytes)
    }
}

/// See the head of this module.
pub struct Connection {
    /// The loop's name for it.
    pub id: ConnId,
    /// What it has agreed with the server.
    pub session: Session,
    /// Whether it runs commands.
    pub state: State,
    /// Commands of it have waited for their shards since those behind them last went together ([`super::Worker::wait_together`]).
    pub has_waited: bool,
    /// Requests that are on their way.
    pub requests: u32,
    /// What it does with the shards that it has asked for.
    pub held: Option<Held>,
    /// Answers that wait for those of the same pipeline that are not there yet.
    pub answers: Vec<Parcel>,
    /// What its command waits for.
    pub blocked: Option<Blocked>,
    /// The answer to what it is not known yet to wait for.
    pub woken_early: Option<Woken>,
    /// What came in.
    pub input: Input,
    /// The peer will send no more.
    pub eof: bool,
    /// Replies that are not given to the loop yet.
    pub output: Vec<u8>,
    /// What goes before them.
    pub ahead: Ahead,
    /// What it is to be told, of changed keys or by others, encoded, while answers are on their way that come before that.
    pub news: Vec<u8>,
    /// What the transaction that runs has confirmed of subscriptions: that is sent where replies are not wanted, too.
    pub confirmed: Vec<u8>,
    /// Bytes that the loop is sending; 0: no send is in flight.
    pub sending_bytes: usize,
    /// Others have those too.
    pub sends_shared: bool,
    /// Since when its output has been above the soft limit, unix time in ms.
    pub soft_limit_since_ms: Option<i64>,
    /// Nothing is received from it until what waits has run.
    pub is_held: bool,
    /// It stands in the worker's list of connections that may have something to parse.
    pub is_ready: bool,
    /// It stands in the worker's list of connections whose turn is to be finished.
    pub is_touched: bool,
    /// It stands in the worker's list of connections that are to be sent messages.
    pub is_listed: bool,
}

impl Connection {
    /// Takes back the reply that begins at `before` in the output, as `CLIENT REPLY` wants it. What counts as a message stays.
    pub fn withdraw_reply(&mut self, before: usize) {
        self.output.truncate(before);
        self.output.extend(std::mem::take(&mut self.confirmed));
    }

    /// A connection that has just been accepted.
    pub fn new(id: ConnId, session: Session) -> Self {
        Connection {
            id,
            session,
            state: State::Open,
            has_waited: false,
            requests: 0,
            held: None,
            answers: Vec::new(),
            blocked: None,
            woken_early: None,
            input: Input::default(),
            eof: false,
            output: Vec::new(),
            ahead: Ahead::default(),
            news: Vec::new(),
            confirmed: Vec::new(),
            sending_bytes: 0,
            sends_shared: false,
            soft_limit_since_ms: None,
            is_held: false,
            is_ready: false,
            is_touched: false,
            is_listed: false,
        }
    }

    /// The worker's token for it in requests and messages.
    pub fn token(&self) -> u64 {
        token(self.id)
    }

    /// Bytes of replies that are not sent.
    pub fn pending_bytes(&self) -> usize {
        self.output.len() + self.news.len() + self.sending_bytes + self.ahead.len_bytes
    }

    /// Adds bytes to its output that others get too: they aren't copied.
    pub fn add_shared(&mut self, bytes: &Arc<SharedBytes>) {
        if !self.output.is_empty() {
            self.ahead.push(std::mem::take(&mut self.output).into());
        }
        self.ahead.push(Arc::clone(bytes).into());
    }

    /// As [`Ahead::end_piece`], of its output.
    pub fn end_piece(&mut self, reply_bytes: usize) -> bool {
        self.ahead.end_piece(&mut self.output, reply_bytes)
    }

    /// Adds a long reply as a piece of its own, which isn't copied.
    pub fn add_piece(&mut self, reply: Vec<u8>) {
        if !self.output.is_empty() {
            self.ahead.push(std::mem::take(&mut self.output).into());
        }
        self.ahead.push(reply.into());
    }

    /// Gives the connection the output buffer behind a piece that has just ended.
    #[cold]
    pub fn set_large_buffer(&mut self) {
        self.output = Vec::with_capacity(self.ahead.next_capacity_bytes.take().unwrap_or_default());
    }

    /// Pieces of output that are not sent.
    pub fn pieces(&self) -> usize {
        let is_sending = self.sending_bytes > 0 && (!self.ahead.is_empty() || self.sending_bytes >= PIECE_BYTES_MIN);
        self.ahead.pieces.len() + usize::from(is_sending)
    }

    /// Has others see that so many requests with so many bytes of arguments are on their way, of which it waits for the answers.
    pub fn park(&mut self, requests: u32, argument_bytes: usize) {
        self.state = State::Parked;
        self.requests = requests;
        self.session.client.argument_bytes.store(argument_bytes as u64, Relaxed);
    }

    /// Has others see that it has all answers, or the shards that it has asked for.
    pub fn unpark(&mut self) {
        if self.state == State::Parked {
            self.state = State::Open;
        }
        self.requests = 0;
        self.session.client.argument_bytes.store(0, Relaxed);
    }

    /// Makes the figures of its buffers true, which a command may ask for (`CLIENT LIST`): as in Redis, the command itself counts as
    /// waiting.
    #[inline]
    pub fn tell_buffers<L: EventLoop>(&self, io: &L) {
        let (session, client) = (&self.session, &self.session.client);
        let answered_bytes: usize = self.answers.iter().map(|parcel| parcel.value.reply.len()).sum();
        client.query_bytes.store(self.input.waiting_bytes() as u64, Relaxed);
        client.query_capacity_bytes.store(self.input.capacity_bytes() as u64, Relaxed);
        client.query_free_bytes.store(self.input.free_bytes(io) as u64, Relaxed);
        client.output_bytes.store((self.pending_bytes() + answered_bytes) as u64, Relaxed);
        client.output_pieces.store(self.pieces() as u64, Relaxed);
        client.shared_bytes.store(self.shared_bytes() as u64, Relaxed);
        client.overhead_bytes.store(session.overhead_bytes() as u64, Relaxed);
    }

    /// Bytes among those not sent that others have too.
    pub fn shared_bytes(&self) -> usize {
        self.ahead.shared_bytes + if self.sends_shared { self.sending_bytes } else { 0 }
    }
}

/// A connection's name as one word.
pub fn token(id: ConnId) -> u64 {
    u64::from(id.generation()) << 32 | id.index() as u64
}

/// Where the connection of a token stands among its worker's.
pub fn index_of(token: u64) -> usize {
    (token & u64::from(u32::MAX)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An output buffer with so many bytes, and with room for so many more.
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
        // Twice the last piece, as far as a piece goes.
        let large = bulk(64 * 1024);
        assert_eq!(after(large, large), 2 * large + PIECE_SPARE_BYTES);
        assert_eq!(after(8 * large, large), 16 * large + PIECE_SPARE_BYTES);
        assert_eq!(after(16 * large, large), 16 * large + PIECE_SPARE_BYTES);
        // One reply finds its memory itself.
        assert_eq!(after(bulk(1024 * 1024), bulk(1024 * 1024)), 0);
        assert_eq!(after(PIECE_BYTES, PIECE_BYTES / 2 + 1), 0);
        assert_eq!(after(PIECE_BYTES, PIECE_BYTES / 2), PIECE_BYTES + PIECE_SPARE_BYTES);
    }
}
