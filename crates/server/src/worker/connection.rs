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

/// Output that is sent in pieces, before what is in the connection's own buffer: long messages that others get too, and what was to be sent before them.
/// Hardly any connection ever has such.
#[derive(Default)]
pub struct Ahead {
    pieces: VecDeque<Outgoing>,
    len_bytes: usize,
    shared_bytes: usize,
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
