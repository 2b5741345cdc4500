//! A connection driven without a server, for the tests of this crate and its fuzz target.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use pantala_base::{Lender, Lent};
use pantala_engine::acl::{Catalog, Users};
use pantala_engine::client::{Client, Endpoint, Listener, Session};
use pantala_resp::{Args, ProtocolError};

use crate::connection::{Connection, State};
use crate::input::{Parsed, Unrun};
use crate::turn::Sends;

/// A chunk of [`Memory`].
#[derive(Debug)]
pub struct Piece {
    at: usize,
    len: usize,
}

impl Lent for Piece {
    fn len_bytes(&self) -> usize {
        self.len
    }
}

/// The memory of an event loop, without the loop. Access to a released chunk panics.
#[derive(Default)]
pub struct Memory {
    pieces: Vec<Option<Vec<u8>>>,
}

impl Memory {
    /// Lends some bytes.
    pub fn lend(&mut self, bytes: &[u8]) -> Piece {
        self.pieces.push(Some(bytes.to_vec()));
        Piece { at: self.pieces.len() - 1, len: bytes.len() }
    }

    /// Overwrites the bytes in lent memory for which `is_one` returns true.
    pub fn overwrite(&mut self, is_one: impl Fn(u8) -> bool, with: u8) {
        let lent = self.pieces.iter_mut().flatten().flatten();
        lent.filter(|byte| is_one(**byte)).for_each(|byte| *byte = with);
    }

    /// Returns whether all lent chunks were released.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.pieces.iter().all(Option::is_none)
    }
}

impl Lender for Memory {
    type Chunk = Piece;

    fn bytes(&self, chunk: &Piece) -> &[u8] {
        self.pieces[chunk.at].as_deref().expect("not released")
    }

    fn bytes_mut(&mut self, chunk: &Piece) -> &mut [u8] {
        self.pieces[chunk.at].as_deref_mut().expect("not released")
    }

    fn room_after(&self, _: &Piece) -> usize {
        0
    }

    fn release(&mut self, chunk: Piece) {
        assert!(self.pieces[chunk.at].take().is_some(), "released twice");
    }
}

/// Creates a newly accepted connection that has authenticated.
#[must_use]
pub fn connection() -> Connection<Piece, ()> {
    connection_to(None)
}

/// Creates a newly accepted connection that has not authenticated.
#[must_use]
pub fn stranger() -> Connection<Piece, ()> {
    connection_to(Some(b"secret"))
}

/// Creates a connection to a server with this password.
fn connection_to(password: Option<&[u8]>) -> Connection<Piece, ()> {
    let end = Endpoint::Tcp(SocketAddr::from(([127, 0, 0, 1], 6379)));
    // Users refer to their catalog for the life of the process, so all connections share one
    // catalog.
    static CATALOG: LazyLock<Catalog> = LazyLock::new(Catalog::empty);
    let users = Users::new(&CATALOG);
    users.set_default_password(password);
    Connection::new((), Session::new(Arc::new(Client::new(1, Listener::default(), 0, end.clone(), end, 0)), &users))
}

/// The result of running a stream of bytes.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// The commands, each with its arguments.
    pub commands: Vec<Vec<Vec<u8>>>,
    /// The error that ended the stream.
    pub error: Option<ProtocolError>,
    /// Bytes sent in reply: see [`reply_to`].
    pub sent: Vec<u8>,
}

/// Returns the reply to a command: its concatenated arguments. So the reply is as long as they are.
fn reply_to(words: &[Vec<u8>]) -> Vec<u8> {
    words.concat()
}

/// Feeds a stream to a connection, turn by turn, and runs its commands. `choose` makes all choices:
/// it returns a number less than its argument.
///
/// # Panics
/// If the connection violates its invariants.
pub fn drive(stream: &[u8], choose: &mut dyn FnMut(usize) -> usize) -> Outcome {
    /// Maximum number of chunks in a turn.
    const CHUNKS_MAX: usize = 3;
    let (mut outcome, mut memory, mut connection) = (Outcome::default(), Memory::default(), connection());
    let mut fed = 0;
    let mut is_flushed = false;
    while !is_flushed {
        // Once the whole stream is fed, turns continue until all commands have run and all output
        // is sent.
        for _ in 0..choose(CHUNKS_MAX + 1) {
            let len = (1 + choose(stream.len().max(1))).min(stream.len() - fed);
            if len > 0 && connection.state != State::Closing {
                let chunk = memory.lend(&stream[fed..fed + len]);
                connection.input.receive(&mut memory, chunk);
                fed += len;
            }
        }
        let mut is_done = turn(&mut connection, &mut memory, &mut outcome, choose);
        connection.end_input(&mut memory);
        assert!(memory.is_whole(), "a turn has kept memory that was lent");
        // A send may be in flight for several turns.
        if choose(2) == 1 {
            connection.sent();
        }
        match connection.take_send(Vec::new) {
            Sends::Nothing => {}
            Sends::Later => is_done = false,
            Sends::Now(send) => {
                assert!(!send.bytes.bytes().is_empty(), "a send of nothing");
                outcome.sent.extend_from_slice(send.bytes.bytes());
                is_done = false;
            }
        }
        is_flushed = is_done && (fed == stream.len() || outcome.error.is_some());
    }
    outcome
}

/// Parses all pending commands, runs some, and holds the others back. Returns whether no command is
/// left to run.
fn turn(
    connection: &mut Connection<Piece, ()>,
    memory: &mut Memory,
    outcome: &mut Outcome,
    choose: &mut dyn FnMut(usize) -> usize,
) -> bool {
    if connection.state == State::Closing {
        return true;
    }
    let mut window: Vec<(Parsed, std::ops::Range<usize>)> = Vec::new();
    let mut ranges = Vec::new();
    let error = loop {
        let first = ranges.len();
        match connection.parse(memory, &mut ranges, MAX_BULK_LEN) {
            Ok(Some(parsed)) => window.push((parsed, first..ranges.len())),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let runs = if choose(4) == 0 { choose(window.len() + 1) } else { window.len() };
    for (parsed, at) in &window[..runs] {
        let args = Args::new(&connection.input.bytes(memory)[parsed.begin..parsed.end], &ranges[at.clone()]);
        let words: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
        let reply = reply_to(&words);
        connection.output.extend_from_slice(&reply);
        connection.end_piece(reply.len());
        outcome.commands.push(words);
        connection.input.done(parsed.end);
    }
    if runs < window.len() {
        let unrun = window.iter().map(|(parsed, at)| Unrun { parsed: *parsed, ranges: &ranges[at.clone()] });
        connection.input.hold_back(unrun);
        return false;
    }
    if error.is_some() {
        outcome.error = error;
        connection.state = State::Closing;
    }
    true
}

/// Maximum length of an argument, bytes: more than the length at which output is sent in pieces.
const MAX_BULK_LEN: usize = 1 << 20;
