//! The stream of effects that a server sends to whoever sends `SYNC`: read, and replayed elsewhere.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::client::{READ_MAX, encode, encode_into};
use crate::reply::{self, Reply, show};
use crate::{Client, Server};

/// The words of a propagated command.
pub type Effect = Vec<Vec<u8>>;

/// Most effects in flight while a stream is replayed.
const REPLAYED_TOGETHER: usize = 1000;

/// The key whose `SET` marks a place in the stream.
const MARKER: &[u8] = b"__marker__";

/// A connection that follows a server's stream.
pub struct EffectStream {
    stream: TcpStream,
    buffer: Vec<u8>,
    taken: usize,
}

impl EffectStream {
    /// Attaches to a server: what is written from now on is in the stream.
    ///
    /// # Panics
    /// When the server refuses `SYNC`.
    #[must_use]
    pub fn attach(server: &Server) -> EffectStream {
        // redis-server's pings have no place among effects.
        server.connect().call("CONFIG SET repl-ping-replica-period 3600");
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        stream.set_read_timeout(Some(READ_MAX)).expect("a socket takes a timeout");
        let mut attached = EffectStream { stream, buffer: Vec::new(), taken: 0 };
        attached.stream.write_all(&encode(&["SYNC"])).expect("the server reads");
        attached.skip_snapshot();
        attached
    }

    fn skip_snapshot(&mut self) {
        let line = loop {
            match self.buffer.iter().position(|byte| *byte == b'\n') {
                Some(0 | 1) => _ = self.buffer.drain(..=0),
                Some(end) => break self.buffer.drain(..=end).collect::<Vec<u8>>(),
                None => self.fill(),
            }
        };
        let length = line.strip_prefix(b"$").and_then(|rest| std::str::from_utf8(rest).ok()?.trim().parse().ok());
        let length: usize = length.unwrap_or_else(|| panic!("SYNC is answered {}", show(&line)));
        while self.buffer.len() < length {
            self.fill();
        }
        self.buffer.drain(..length);
    }

    fn fill(&mut self) {
        let mut chunk = [0; 64 * 1024];
        let count = self.stream.read(&mut chunk).unwrap_or_else(|error| panic!("reading the stream: {error}"));
        assert!(count > 0, "the server ended the stream");
        self.buffer.extend_from_slice(&chunk[..count]);
    }

    fn next_effect(&mut self) -> Effect {
        loop {
            match reply::parse(&self.buffer[self.taken..]).expect("the stream is RESP") {
                Some((Reply::Array(words), length)) => {
                    self.taken += length;
                    if self.taken == self.buffer.len() {
                        self.buffer.clear();
                        self.taken = 0;
                    }
                    let bulk = |word| match word {
                        Reply::Bulk(bytes) => bytes,
                        other => panic!("an effect with {other:?}"),
                    };
                    return words.into_iter().map(bulk).collect();
                }
                Some((other, _)) => panic!("no command in the stream: {other:?}"),
                None => self.fill(),
            }
        }
    }

    /// Returns the effects up to now: sets a key, and reads until that is in the stream.
    pub fn take(&mut self, client: &mut Client) -> Vec<Effect> {
        // Several streams of one server see each other's markers.
        static MARKERS: AtomicU64 = AtomicU64::new(0);
        let value = MARKERS.fetch_add(1, Ordering::Relaxed).to_string();
        client.command(&[&b"SET"[..], MARKER, value.as_bytes()]);
        let mut effects = Vec::new();
        loop {
            let effect = self.next_effect();
            if effect.len() == 3 && effect[1] == MARKER && effect[2] == value.as_bytes() {
                return effects;
            }
            effects.push(effect);
        }
    }
}

/// Runs effects on a server, in order.
///
/// # Panics
/// When one of them is an error there: what a server did must be possible elsewhere.
pub fn replay(effects: &[Effect], server: &Server) {
    let mut client = server.connect();
    for together in effects.chunks(REPLAYED_TOGETHER) {
        let mut bytes = Vec::new();
        together.iter().for_each(|effect| encode_into(&mut bytes, effect));
        for ((reply, _), effect) in client.exchange(&bytes, together.len()).into_iter().zip(together) {
            assert!(!has_error(&reply), "{} is answered {reply:?}", show_effect(effect));
        }
    }
    client.call("SELECT 0");
    client.command(&[&b"DEL"[..], MARKER]);
}

fn has_error(reply: &Reply) -> bool {
    match reply {
        Reply::Array(replies) => replies.iter().any(has_error),
        reply => reply.is_error(),
    }
}

/// Returns the digest of a server's dataset, markers aside.
pub fn digest(server: &Server) -> String {
    let mut client = server.connect();
    client.command(&[&b"DEL"[..], MARKER]);
    client.call("DEBUG DIGEST").text()
}

/// Returns an effect in one line.
#[must_use]
pub fn show_effect(effect: &Effect) -> String {
    effect.iter().map(|word| show(word)).collect::<Vec<_>>().join(" ")
}
