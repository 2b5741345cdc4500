//! A connection without its socket: what it has sent, what it has agreed with the server, what it is to be sent.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_base::{Lender, Lent, SharedBytes};
use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::Session;
use pantala_engine::request::Parcel;
use pantala_resp::{ArgRange, Limits, ProtocolError};

use crate::input::{Input, Parsed};
use crate::output::{Ahead, PIECE_BYTES_MIN, Sending};

/// Whether a connection runs commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs what comes.
    Open,
    /// Commands of it wait for shards; the answers will come by message.
    Parked,
    /// Its command is blocked on a key; the answer will come by message, or the timeout will expire.
    Blocked,
    /// `CLIENT PAUSE` holds it back.
    Paused,
    /// Its commands have replied as much as they may in one turn; at the turn's end it is open again, and has something
    /// to parse.
    Yielding,
    /// Nothing more is run; it closes when its replies are sent.
    Closing,
}

/// A blocked command of a connection.
pub struct Blocked {
    /// Its waiter.
    pub waiter: Arc<Waiter>,
    /// Until when, in the clock that never goes back, µs.
    pub deadline_us: Option<i64>,
    /// How long it took to find that it has to wait.
    pub took: Duration,
}

/// What a connection waits for.
#[derive(Default)]
pub struct Waits {
    /// Requests that are in flight.
    pub requests: u32,
    /// Answers that wait for those of the same pipeline that are not there yet.
    pub answers: Vec<Parcel>,
    /// Its blocked command.
    pub blocked: Option<Blocked>,
    /// A reply that arrived before the connection was registered as blocked.
    pub woken_early: Option<Woken>,
    /// Commands of it have waited for their shards since those behind them last went together.
    pub has_waited: bool,
}

/// See the head of this module. `C`: chunks of the memory in which its bytes arrive. `S`: what its owner keeps with it, such
/// as its socket.
pub struct Connection<C, S> {
    /// What its owner keeps with it.
    pub socket: S,
    /// What it has agreed with the server.
    pub session: Session,
    /// Whether it runs commands.
    pub state: State,
    /// What it waits for.
    pub waits: Waits,
    /// What came in.
    pub input: Input<C>,
    /// The peer will send no more.
    pub eof: bool,
    /// It may have something to parse, and its owner knows.
    pub is_ready: bool,
    /// Replies that are not sent yet.
    pub output: Vec<u8>,
    /// What is sent before them.
    pub ahead: Ahead,
    /// Messages and invalidations, encoded, while answers are in flight that come before them.
    pub news: Vec<u8>,
    /// What the running transaction has confirmed of subscriptions: that is sent where replies are not wanted, too.
    pub confirmed: Vec<u8>,
    /// The send in flight.
    pub sending: Sending,
}

impl<C: Lent, S> Connection<C, S> {
    /// A connection that has just been accepted.
    pub fn new(socket: S, session: Session) -> Self {
        Connection {
            socket,
            session,
            state: State::Open,
            waits: Waits::default(),
            input: Input::default(),
            eof: false,
            is_ready: false,
            output: Vec::new(),
            ahead: Ahead::default(),
            news: Vec::new(),
            confirmed: Vec::new(),
            sending: Sending::default(),
        }
    }

    /// Parses its next command; appends where its arguments stand, relative to the command's first byte.
    ///
    /// # Errors
    /// The bytes are no command.
    #[inline]
    pub fn parse<M: Lender<Chunk = C>>(
        &mut self,
        memory: &mut M,
        ranges: &mut Vec<ArgRange>,
        max_bulk_len: usize,
    ) -> Result<Option<Parsed>, ProtocolError> {
        let limits = Limits { max_bulk_len, authenticated: self.session.is_authenticated(), ..Limits::default() };
        self.input.parse(memory, ranges, &limits)
    }

    /// Bytes that it has sent and that haven't run, those queued since `MULTI` included: what `client-query-buffer-limit`
    /// bounds.
    #[inline]
    pub fn unrun_bytes(&self) -> usize {
        let queued_bytes = self.session.transaction.as_ref().map_or(0, |queue| queue.bytes());
        self.input.query_buffer_bytes() + queued_bytes
    }

    /// Gives it the output buffer for what comes next: behind a piece one of the length that the pieces
    /// call for, otherwise one of those kept for reuse.
    #[inline(always)]
    pub fn renew_output(&mut self, spare: &mut Vec<Vec<u8>>) {
        if self.ahead.gives_buffer() {
            self.output = self.ahead.next_buffer();
        } else if let Some(spare) = spare.pop() {
            self.output = spare;
        }
    }

    /// Bytes of replies that are not sent.
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        self.output.len() + self.news.len() + self.sending.bytes + self.ahead.len_bytes()
    }

    /// Bytes among those not sent that others have too.
    pub fn shared_bytes(&self) -> usize {
        self.ahead.shared_bytes() + if self.sending.is_shared { self.sending.bytes } else { 0 }
    }

    /// Pieces of output that are not sent.
    pub fn pieces(&self) -> usize {
        let is_sending = self.sending.bytes > 0 && (!self.ahead.is_empty() || self.sending.bytes >= PIECE_BYTES_MIN);
        self.ahead.pieces() + usize::from(is_sending)
    }

    /// Adds bytes to its output that others get too: they aren't copied.
    pub fn add_shared(&mut self, bytes: &Arc<SharedBytes>) {
        if !self.output.is_empty() {
            self.ahead.push(std::mem::take(&mut self.output).into());
        }
        self.ahead.push(Arc::clone(bytes).into());
    }

    /// Adds a long reply as a piece of its own, which isn't copied.
    pub fn add_piece(&mut self, reply: Vec<u8>) {
        if !self.output.is_empty() {
            self.ahead.push(std::mem::take(&mut self.output).into());
        }
        self.ahead.push(reply.into());
    }

    /// As [`Ahead::end_piece`], of its output.
    pub fn end_piece(&mut self, reply_bytes: usize) -> bool {
        self.ahead.end_piece(&mut self.output, reply_bytes)
    }

    /// Has others see that so many requests with so many bytes of arguments are in flight, of which it waits for the answers.
    pub fn park(&mut self, requests: u32, argument_bytes: usize) {
        self.state = State::Parked;
        self.waits.requests = requests;
        self.session.client.argument_bytes.store(argument_bytes as u64, Relaxed);
    }

    /// Has others see that it has all answers, or the shards that it has asked for.
    pub fn unpark(&mut self) {
        if self.state == State::Parked {
            self.state = State::Open;
        }
        self.waits.requests = 0;
        self.session.client.argument_bytes.store(0, Relaxed);
    }

    /// Publishes the lengths of its buffers, which a command may ask for (`CLIENT LIST`): as in Redis, the command itself counts
    /// as pending.
    #[inline]
    pub fn tell_buffers<M: Lender<Chunk = C>>(&self, memory: &M) {
        let (session, client) = (&self.session, &self.session.client);
        let answered_bytes: usize = self.waits.answers.iter().map(|parcel| parcel.value.reply.len()).sum();
        client.query_bytes.store(self.input.waiting_bytes() as u64, Relaxed);
        client.query_capacity_bytes.store(self.input.capacity_bytes() as u64, Relaxed);
        client.query_free_bytes.store(self.input.free_bytes(memory) as u64, Relaxed);
        client.output_bytes.store((self.pending_bytes() + answered_bytes) as u64, Relaxed);
        client.output_pieces.store(self.pieces() as u64, Relaxed);
        client.shared_bytes.store(self.shared_bytes() as u64, Relaxed);
        let overhead_bytes = session.overhead_bytes() + self.input.held_bytes();
        client.overhead_bytes.store(overhead_bytes as u64, Relaxed);
    }
}
