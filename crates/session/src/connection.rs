//! A connection without its socket: its input, its session and its output. [The crate's
//! page](crate) defines turn, chunk and piece.
//!
//! The *owner* is the thread that drives the connection. It creates the connection after it has
//! accepted the socket, and drops the connection when [`Connection::fate`] says that the connection
//! has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_base::{Lender, Lent, SharedBytes};
use pantala_engine::blocking::{Waiter, Woken};
use pantala_engine::client::Session;
use pantala_engine::request::RequestNode;
use pantala_resp::{ArgRange, Limits, ProtocolError};

use crate::input::{Input, Parsed};
use crate::output::{Ahead, PIECE_BYTES_MIN, Sending};

/// Whether a connection runs commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs commands as they arrive.
    Open,
    /// It runs no commands until the replies to its requests in flight have arrived from the
    /// shards, as messages.
    Parked,
    /// Its command is blocked until a message brings a reply or the timeout expires.
    Blocked,
    /// A pause delays its next command.
    Paused,
    /// Its replies have reached the limit for one turn, so it runs no more commands in this turn.
    /// At the end of the turn it becomes open and ready again.
    Yielding,
    /// Its replies are held until the effects (changes of the dataset) on which they depend are
    /// synced to the append-only file. After the sync it becomes open and ready again.
    Syncing,
    /// It runs no more commands, and closes once its replies are sent.
    Closing,
}

/// A blocked command of a connection.
pub struct Blocked {
    /// The waiter through which a shard wakes the command.
    pub waiter: Arc<Waiter>,
    /// Deadline in µs of the monotonic clock; `None` means no timeout.
    pub deadline_us: Option<i64>,
    /// Time for which the command ran before it blocked.
    pub took: Duration,
}

/// The requests and the blocked command that a connection waits for.
#[derive(Default)]
pub struct Waits {
    /// Requests that are in flight.
    pub requests: u32,
    /// Replies that have arrived but are not sent yet, because replies of the same pipeline are
    /// missing.
    pub answers: Vec<RequestNode>,
    /// The blocked command of the connection.
    pub blocked: Option<Blocked>,
    /// A reply that arrived before the connection was registered as blocked.
    pub woken_before_blocking: Option<Woken>,
    /// Whether an earlier command had to wait for its shards. While this is set, the owner sends
    /// consecutive single-key commands in one request. The owner clears it when such commands must
    /// run one by one.
    pub has_waited: bool,
}

/// The connection described at the head of this module. `C` is a chunk of the event loop's receive
/// memory, `S` the owner's data, such as the socket.
pub struct Connection<C, S> {
    /// The owner's data.
    pub socket: S,
    /// The connection's state in the server.
    pub session: Session,
    /// Whether the connection runs commands.
    pub state: State,
    /// The work that the connection waits for.
    pub waits: Waits,
    /// Received bytes whose commands haven't run.
    pub input: Input<C>,
    /// Whether the peer has closed its sending side.
    pub eof: bool,
    /// Whether there may be input to parse. If true, the connection is in its owner's list of ready
    /// connections.
    pub is_ready: bool,
    /// Pending replies.
    pub output: Vec<u8>,
    /// Output that precedes `output`.
    pub ahead: Ahead,
    /// Encoded messages and invalidations that must follow replies in flight. They are held until
    /// these replies have arrived.
    pub held_messages: Vec<u8>,
    /// Bytes that a transaction sends even if a `CLIENT REPLY` in it has suppressed replies: the
    /// elements of its reply before that `CLIENT REPLY`, and confirmations of subscriptions.
    pub confirmed: Vec<u8>,
    /// The send in flight.
    pub sending: Sending,
    /// Memory of the layer between the connection and its socket (TLS), bytes.
    pub layer_bytes: usize,
}

impl<C: Lent, S> Connection<C, S> {
    /// Returns a newly accepted connection.
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
            held_messages: Vec::new(),
            confirmed: Vec::new(),
            sending: Sending::default(),
            layer_bytes: 0,
        }
    }

    /// Parses the next command. Appends the ranges of its arguments, relative to the command's
    /// first byte.
    ///
    /// # Errors
    /// The bytes violate the protocol.
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

    /// Returns the size of received commands that haven't run, bytes. Commands queued since `MULTI`
    /// count too. `client-query-buffer-limit` limits this size.
    #[inline]
    pub fn unrun_bytes(&self) -> usize {
        let queued_bytes = self.session.transaction.as_ref().map_or(0, |queue| queue.bytes());
        self.input.query_buffer_bytes() + queued_bytes
    }

    /// Supplies a new output buffer after the last one was taken. If the last buffer became a
    /// piece, [`Ahead`] supplies the new one. Otherwise takes a buffer from `spare`, if there is
    /// any.
    #[inline(always)]
    pub fn renew_output(&mut self, spare: &mut Vec<Vec<u8>>) {
        if self.ahead.supplies_buffer() {
            self.output = self.ahead.next_buffer();
        } else if let Some(spare) = spare.pop() {
            self.output = spare;
        }
    }

    /// Returns the size of pending output, bytes.
    #[inline]
    pub fn pending_bytes(&self) -> usize {
        self.output.len() + self.held_messages.len() + self.sending.bytes + self.ahead.len_bytes()
    }

    /// Returns whether there is output that isn't part of the send in flight.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.output.is_empty() || !self.ahead.is_empty()
    }

    /// Returns the size of pending output that is shared with other connections, bytes.
    pub fn shared_bytes(&self) -> usize {
        self.ahead.shared_bytes() + if self.sending.is_shared { self.sending.bytes } else { 0 }
    }

    /// Returns the number of pending pieces of output, including a piece that is being sent.
    pub fn pieces(&self) -> usize {
        let is_sending = self.sending.bytes > 0 && (!self.ahead.is_empty() || self.sending.bytes >= PIECE_BYTES_MIN);
        self.ahead.pieces() + usize::from(is_sending)
    }

    /// Adds bytes shared with other connections to the output without copying them.
    pub fn add_shared(&mut self, bytes: &Arc<SharedBytes>) {
        if !self.output.is_empty() {
            self.ahead.push(std::mem::take(&mut self.output).into());
        }
        self.ahead.push(Arc::clone(bytes).into());
    }

    /// Adds a long reply as its own piece without copying it.
    pub fn add_piece(&mut self, reply: Vec<u8>) {
        if !self.output.is_empty() {
            self.ahead.push(std::mem::take(&mut self.output).into());
        }
        self.ahead.push(reply.into());
    }

    /// Ends a piece of the output as [`Ahead::end_piece`] does.
    pub fn end_piece(&mut self, reply_bytes: usize) -> bool {
        self.ahead.end_piece(&mut self.output, reply_bytes)
    }

    /// Returns whether another owner can take over the session without the rest of the connection.
    /// This requires that the session may move ([`Session::may_move`]), and that no command, input
    /// or output is pending.
    pub fn may_move(&self) -> bool {
        let waits = self.waits.requests > 0
            || self.waits.blocked.is_some()
            || self.waits.woken_before_blocking.is_some()
            || !self.waits.answers.is_empty();
        let has_messages = !self.held_messages.is_empty() || !self.confirmed.is_empty();
        let is_running = waits || self.state != State::Open || self.is_ready || self.eof;
        !(is_running || has_messages || self.has_output() || self.sending.bytes > 0)
            && self.input.is_empty()
            && self.session.may_move()
    }

    /// Parks the connection until this number of requests is answered. Publishes the size of the
    /// requests' arguments in bytes, for client memory accounting.
    pub fn park(&mut self, requests: u32, argument_bytes: usize) {
        self.state = State::Parked;
        self.waits.requests = requests;
        self.session.client.argument_bytes.store(argument_bytes as u64, Relaxed);
    }

    /// Ends the wait of a parked connection. Called when all its replies, or the requested shards,
    /// have arrived.
    pub fn unpark(&mut self) {
        if self.state == State::Parked {
            self.state = State::Open;
        }
        self.waits.requests = 0;
        self.session.client.argument_bytes.store(0, Relaxed);
    }

    /// Publishes the sizes of the buffers for client memory accounting and `CLIENT LIST`. The bytes
    /// of the running command count as pending input, as in Redis.
    #[inline]
    pub fn publish_buffers<M: Lender<Chunk = C>>(&self, memory: &M) {
        let (session, client) = (&self.session, &self.session.client);
        let answered_bytes: usize = self.waits.answers.iter().map(|node| node.value.reply.len()).sum();
        client.query_bytes.store(self.input.waiting_bytes() as u64, Relaxed);
        client.query_capacity_bytes.store(self.input.capacity_bytes() as u64, Relaxed);
        client.query_free_bytes.store(self.input.free_bytes(memory) as u64, Relaxed);
        client.output_bytes.store((self.pending_bytes() + answered_bytes) as u64, Relaxed);
        client.output_pieces.store(self.pieces() as u64, Relaxed);
        client.shared_bytes.store(self.shared_bytes() as u64, Relaxed);
        let overhead_bytes = session.overhead_bytes() + self.input.held_bytes() + self.layer_bytes;
        client.overhead_bytes.store(overhead_bytes as u64, Relaxed);
    }
}
