//! One event loop of the floor responder (a server without a store).

use std::io;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};

use pantala_resp::{ArgRange, Args, Limits, Parser};
use pantala_runtime::{ConnId, Event, EventLoop};

/// The reply to `CONFIG GET`. redis-benchmark requests `save` and `appendonly`, and prints the
/// reply.
const CONFIG_REPLY: &[u8] = b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n";
/// Maximum capacity of an output buffer that an idle connection keeps, in bytes.
const OUTPUT_KEPT_BYTES_MAX: usize = 64 * 1024;

#[derive(Default)]
struct Connection {
    /// `None` after the connection was closed, until a new connection uses this position.
    conn: Option<ConnId>,
    parser: Parser,
    /// The start of a command that has not arrived completely.
    partial: Vec<u8>,
    output: Vec<u8>,
    /// The buffer of a finished send, for reuse by the next output.
    spare: Option<Vec<u8>>,
    sending: bool,
    /// Whether the connection is in [`Responder::touched`].
    listed: bool,
    /// Whether to close the connection when its output is sent.
    ending: bool,
}

pub(super) struct Responder<L> {
    event_loop: L,
    connections: Vec<Connection>,
    /// The connections that received output or ended in this turn. A turn is one iteration of the
    /// event loop.
    touched: Vec<ConnId>,
    get_reply: Vec<u8>,
    ranges: Vec<ArgRange>,
    commands: u64,
}

impl<L: EventLoop> Responder<L> {
    pub(super) fn new(event_loop: L, reply_bytes: usize) -> Self {
        let mut get_reply = format!("${reply_bytes}\r\n").into_bytes();
        get_reply.resize(get_reply.len() + reply_bytes, b'x');
        get_reply.extend_from_slice(b"\r\n");
        Responder {
            event_loop,
            connections: Vec::new(),
            touched: Vec::new(),
            get_reply,
            ranges: Vec::new(),
            commands: 0,
        }
    }

    /// Returns the number of commands that the responder has replied to.
    pub(super) fn commands(&self) -> u64 {
        self.commands
    }

    /// Replies to commands until `stop` is set. The thread that sets `stop` must then ring the
    /// doorbell of the event loop, which wakes the loop.
    pub(super) fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut events = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            self.event_loop.poll(None, &mut events)?;
            for event in events.drain(..) {
                self.handle(event);
            }
            self.send_all();
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Accepted { socket, .. } => {
                // Adding fails only if descriptors or memory are exhausted. The connection is then
                // closed.
                if let Ok(conn) = self.event_loop.add(socket) {
                    if self.connections.len() <= conn.index() {
                        self.connections.resize_with(conn.index() + 1, Connection::default);
                    }
                    self.connections[conn.index()] = Connection { conn: Some(conn), ..Connection::default() };
                }
            }
            Event::Data { conn, chunk } => {
                let connection = &mut self.connections[conn.index()];
                if connection.conn == Some(conn) && !connection.ending {
                    let bytes = self.event_loop.bytes_mut(&chunk);
                    let replier =
                        Replier { get_reply: &self.get_reply, ranges: &mut self.ranges, commands: &mut self.commands };
                    replier.take(connection, bytes);
                    self.touch(conn);
                }
                self.event_loop.release(chunk);
            }
            Event::Sent { conn, buffer, result } => {
                let connection = &mut self.connections[conn.index()];
                if connection.conn == Some(conn) {
                    connection.sending = false;
                    connection.ending |= result.is_err();
                    connection.spare = Some(kept(buffer));
                    if connection.ending || !connection.output.is_empty() {
                        self.touch(conn);
                    }
                }
            }
            Event::Eof { conn } | Event::Failed { conn, .. } => {
                let connection = &mut self.connections[conn.index()];
                if connection.conn == Some(conn) {
                    connection.ending = true;
                    self.touch(conn);
                }
            }
            Event::Woken => {}
        }
    }

    fn touch(&mut self, conn: ConnId) {
        let connection = &mut self.connections[conn.index()];
        if !mem::replace(&mut connection.listed, true) {
            self.touched.push(conn);
        }
    }

    /// Ends the turn: sends the output of each connection with one call.
    fn send_all(&mut self) {
        let mut touched = mem::take(&mut self.touched);
        for conn in touched.drain(..) {
            let connection = &mut self.connections[conn.index()];
            connection.listed = false;
            if connection.sending {
                self.event_loop.expect_sent(conn);
            } else if !connection.output.is_empty() {
                let spare = connection.spare.take().unwrap_or_default();
                let output = mem::replace(&mut connection.output, spare);
                connection.spare = self.event_loop.send_at_once(conn, output).map(kept);
                connection.sending = connection.spare.is_none();
                if connection.ending && connection.sending {
                    self.event_loop.expect_sent(conn);
                }
            }
            if connection.ending && !connection.sending {
                *connection = Connection::default();
                self.event_loop.close(conn);
            }
        }
        self.touched = touched;
    }
}

/// Returns the buffer of a finished send for reuse. If the buffer is large, frees its memory.
fn kept(buffer: Vec<u8>) -> Vec<u8> {
    if buffer.capacity() > OUTPUT_KEPT_BYTES_MAX { Vec::new() } else { buffer }
}

/// The parts of a responder that a reply needs.
struct Replier<'a> {
    get_reply: &'a [u8],
    ranges: &'a mut Vec<ArgRange>,
    commands: &'a mut u64,
}

impl Replier<'_> {
    /// Replies to the complete commands in `connection.partial` followed by `bytes`.
    fn take(mut self, connection: &mut Connection, bytes: &mut [u8]) {
        if connection.partial.is_empty() {
            let used_bytes = self.answer_all(connection, bytes);
            connection.partial.extend_from_slice(&bytes[used_bytes..]);
            return;
        }
        let mut partial = mem::take(&mut connection.partial);
        partial.extend_from_slice(bytes);
        let used_bytes = self.answer_all(connection, &mut partial);
        partial.drain(..used_bytes);
        connection.partial = partial;
    }

    /// Replies to the complete commands in `bytes`. Returns the length of these commands.
    fn answer_all(&mut self, connection: &mut Connection, bytes: &mut [u8]) -> usize {
        let limits = Limits::default();
        let mut used_bytes = 0;
        while used_bytes < bytes.len() {
            self.ranges.clear();
            let rest = &mut bytes[used_bytes..];
            match connection.parser.parse(rest, self.ranges, &limits) {
                Ok(Some(len_bytes)) => {
                    if !self.ranges.is_empty() {
                        let arguments = Args::new(rest, self.ranges);
                        connection.output.extend_from_slice(reply(arguments.at(0), self.get_reply));
                        *self.commands += 1;
                    }
                    used_bytes += len_bytes;
                }
                Ok(None) => break,
                Err(_) => {
                    connection.output.extend_from_slice(b"-ERR Protocol error\r\n");
                    connection.ending = true;
                    return bytes.len();
                }
            }
        }
        used_bytes
    }
}

fn reply<'a>(command: &[u8], get_reply: &'a [u8]) -> &'a [u8] {
    if command.eq_ignore_ascii_case(b"get") {
        get_reply
    } else if command.eq_ignore_ascii_case(b"ping") {
        b"+PONG\r\n"
    } else if command.eq_ignore_ascii_case(b"config") {
        CONFIG_REPLY
    } else {
        b"+OK\r\n"
    }
}
