//! The backend for all kernels: epoll reports readiness, and `recv` and `send` then move the bytes.
//!
//! Connections are watched edge-triggered, so that a wait doesn't check idle connections. The
//! kernel reports new bytes only once; this report is an *edge*. After an edge, the loop receives
//! once per turn (iteration of the loop) until a receive returns fewer bytes than it had room for.
//! The socket's queue is then empty, and later bytes cause a new edge. For listeners, see
//! `accept.rs`.
//!
//! A reply is usually sent at once ([`EventLoop::send_at_once`]), without an entry in `unsent` and
//! without an event. The entry and the event would cost a tenth of the instructions of an
//! unpipelined command. If the socket has no room for all bytes, the rest is sent like any other
//! output.

use std::collections::VecDeque;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use pantala_base::{Lender, Outgoing};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use crate::accept::{Listeners, WAIT_MAX};
use crate::event::{Chunk, ConnId, Event, EventLoop, ListenerId};
use crate::pool::Pool;
use crate::slots::{Slots, Token};
use crate::{Backend, Doorbell, SEND_BYTES_MAX};

/// Maximum number of readiness reports taken in one turn.
const REPORTS_MAX: usize = 512;
/// Data of the doorbell's registration. It differs from the data of connections and listeners, in
/// which bits 56 to 62 are 0.
const DOORBELL_DATA: u64 = u64::MAX;

/// An epoll event loop. See [`EventLoop`].
pub struct EpollLoop {
    epoll: OwnedFd,
    doorbell: Doorbell,
    listeners: Listeners,
    connections: Slots<Connection>,
    pool: Pool,
    /// Connections that may have bytes to receive, because of an edge.
    ready: VecDeque<Token>,
    /// Connections that found no receive buffer, because the caller held chunks of all buffers.
    starved: Vec<Token>,
    /// Connections with bytes to send whose sockets may have room.
    unsent: Vec<Token>,
    reports: Vec<MaybeUninit<epoll::Event>>,
}

struct Connection {
    socket: OwnedFd,
    /// Whether the caller has paused receiving.
    paused: bool,
    /// Whether an edge was reported and not all of its bytes have been received.
    readable: bool,
    /// Whether the connection is in `ready` or `starved`.
    listed: bool,
    /// Whether the peer has closed its sending half, or the connection has failed. No further edge
    /// follows. So the loop continues to receive until it gets the end or the error, even after a
    /// receive that did not fill its room.
    hung_up: bool,
    /// Whether `Eof` or `Failed` was reported.
    ended: bool,
    sending: Option<Sending>,
}

struct Sending {
    outgoing: Outgoing,
    sent_bytes: usize,
    /// Whether the send is quiet: its success doesn't end a wait ([`EventLoop::send_quiet`]).
    quiet: bool,
    /// Whether the send waits until epoll reports room in the socket.
    blocked: bool,
}

impl EpollLoop {
    fn flags(blocked: bool) -> epoll::EventFlags {
        let receive = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        // Watch for room only while a send needs it, because Unix sockets report room after every
        // read of the peer.
        if blocked { receive | epoll::EventFlags::OUT } else { receive }
    }

    /// Keeps the bytes that [`EventLoop::send_at_once`] couldn't send. If the socket has no room,
    /// watches the socket for room.
    #[cold]
    fn keep_rest(&mut self, conn: ConnId, buffer: Vec<u8>, sent: rustix::io::Result<usize>) {
        let connection = self.connections.value_mut(conn.0).expect("a send has just used it");
        let blocked = sent == Err(Errno::AGAIN);
        // If `sent` is another error, the next attempt to send (in `flush`) fails too, and reports
        // the error.
        let sent_bytes = sent.unwrap_or(0);
        connection.sending = Some(Sending { outgoing: buffer.into(), sent_bytes, quiet: true, blocked });
        if blocked {
            // Can't fail, for the reason given in `flush`.
            let _ = watch(&self.epoll, &connection.socket, conn.0, true);
        } else {
            self.unsent.push(conn.0);
        }
    }

    fn start_send(&mut self, conn: ConnId, outgoing: Outgoing, quiet: bool) {
        assert!(!outgoing.bytes().is_empty(), "a send of nothing");
        let connection = self.connections.value_mut(conn.0);
        let connection = connection.expect("a send to a closed connection");
        assert!(connection.sending.is_none(), "a second send on a connection before the first was done");
        connection.sending = Some(Sending { outgoing, sent_bytes: 0, quiet, blocked: false });
        self.unsent.push(conn.0);
    }

    /// Continues all sends whose sockets may have room. Returns whether any of the appended events
    /// ends a wait.
    fn flush(&mut self, events: &mut Vec<Event>) -> bool {
        let mut ends_wait = false;
        let mut unsent = mem::take(&mut self.unsent);
        unsent.retain(|&token| {
            let Some(connection) = self.connections.value_mut(token) else {
                return false;
            };
            let Some(mut sending) = connection.sending.take() else {
                return false;
            };
            let step = send_step(&connection.socket, &mut sending);
            match step {
                Step::Done(result) => {
                    ends_wait |= !sending.quiet || result.is_err();
                    let buffer = sending.outgoing.into_buffer();
                    events.push(Event::Sent { conn: ConnId(token), buffer, result });
                    false
                }
                Step::More => {
                    connection.sending = Some(sending);
                    true
                }
                Step::Blocked => {
                    sending.blocked = true;
                    connection.sending = Some(sending);
                    // Can't fail, because the descriptor is registered and a change needs no
                    // memory.
                    let _ = watch(&self.epoll, &connection.socket, token, true);
                    false
                }
            }
        });
        self.unsent = unsent;
        ends_wait
    }

    /// Receives once on each connection in `ready`.
    fn receive_ready(&mut self, events: &mut Vec<Event>) {
        for _ in 0..self.ready.len() {
            if let Some(token) = self.ready.pop_front() {
                if let Some(connection) = self.connections.value_mut(token) {
                    connection.listed = false;
                }
                self.receive(token, events);
            }
        }
    }

    /// Receives once. Lists the connection again if there may be more bytes.
    fn receive(&mut self, token: Token, events: &mut Vec<Event>) {
        let Some(connection) = self.connections.value_mut(token) else {
            return;
        };
        if connection.paused || connection.ended || connection.listed || !connection.readable {
            return;
        }
        let conn = ConnId(token);
        let Some(room) = self.pool.room() else {
            connection.listed = true;
            self.starved.push(token);
            return;
        };
        let room_bytes = room.len();
        match rustix::net::recv(&connection.socket, room, RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                connection.ended = true;
                events.push(Event::Eof { conn });
            }
            Ok((len_bytes, _)) => {
                if len_bytes == room_bytes || connection.hung_up {
                    connection.listed = true;
                    self.ready.push_back(token);
                } else {
                    connection.readable = false;
                }
                let chunk = self.pool.lend(len_bytes);
                events.push(Event::Data { conn, chunk });
            }
            Err(Errno::AGAIN) => connection.readable = false,
            Err(Errno::INTR) => {
                connection.listed = true;
                self.ready.push_back(token);
            }
            Err(error) => {
                connection.ended = true;
                let error = error.into();
                events.push(Event::Failed { conn, error });
            }
        }
    }

    fn handle(&mut self, report: epoll::Event, events: &mut Vec<Event>) {
        let data = report.data.u64();
        if data == DOORBELL_DATA {
            // The doorbell is watched edge-triggered. Each ring causes an edge, so the doorbell's
            // counter need not be read.
            events.push(Event::Woken);
            return;
        }
        if Listeners::is_about_listener(data) {
            // Listeners are watched level-triggered, so the next wait reports any remaining
            // connections.
            self.listeners.accept(&self.epoll, data, events);
            return;
        }
        let token = Token::from_bits(data);
        let Some(connection) = self.connections.value_mut(token) else {
            return;
        };
        let flags = report.flags;
        let ends = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if flags.intersects(ends) {
            connection.hung_up = true;
        }
        if flags.intersects(epoll::EventFlags::OUT | epoll::EventFlags::ERR | epoll::EventFlags::HUP)
            && let Some(sending) = &mut connection.sending
            && mem::take(&mut sending.blocked)
        {
            let _ = watch(&self.epoll, &connection.socket, token, false);
            self.unsent.push(token);
        }
        if flags.intersects(epoll::EventFlags::IN | ends) {
            connection.readable = true;
            self.receive(token, events);
        }
    }

    fn wait(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| {
            // Timeouts of more than a century are clamped, because longer ones don't fit into every
            // kernel structure.
            Timespec::try_from(timeout.min(WAIT_MAX)).expect("a century fits")
        });
        let mut reports = mem::take(&mut self.reports);
        let outcome = epoll::wait(&self.epoll, reports.as_mut_slice(), timeout.as_ref());
        let result = match outcome {
            Ok((ready, _)) => {
                for &mut report in ready {
                    self.handle(report, events);
                }
                Ok(())
            }
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        };
        self.reports = reports;
        result
    }
}

enum Step {
    Done(io::Result<()>),
    More,
    Blocked,
}

/// Sends at most [`SEND_BYTES_MAX`] bytes with one `send`. Returns the number of bytes that the
/// kernel took.
#[inline]
fn send_piece(socket: &OwnedFd, rest: &[u8]) -> rustix::io::Result<usize> {
    let piece = &rest[..rest.len().min(SEND_BYTES_MAX)];
    rustix::net::send(socket, piece, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// Continues a send by one piece.
fn send_step(socket: &OwnedFd, sending: &mut Sending) -> Step {
    let rest = &sending.outgoing.bytes()[sending.sent_bytes..];
    match send_piece(socket, rest) {
        Ok(taken_bytes) => {
            sending.sent_bytes += taken_bytes;
            if taken_bytes == rest.len() { Step::Done(Ok(())) } else { Step::More }
        }
        Err(Errno::INTR) => Step::More,
        Err(Errno::AGAIN) => Step::Blocked,
        Err(error) => Step::Done(Err(error.into())),
    }
}

fn watch(epoll: &OwnedFd, socket: &OwnedFd, token: Token, blocked: bool) -> rustix::io::Result<()> {
    let data = epoll::EventData::new_u64(token.to_bits());
    epoll::modify(epoll, socket, data, EpollLoop::flags(blocked))
}

impl Lender for EpollLoop {
    type Chunk = Chunk;

    #[inline]
    fn bytes(&self, chunk: &Chunk) -> &[u8] {
        self.pool.bytes(chunk)
    }

    fn room_after(&self, chunk: &Chunk) -> usize {
        self.pool.room_after(chunk)
    }

    #[inline]
    fn bytes_mut(&mut self, chunk: &Chunk) -> &mut [u8] {
        self.pool.bytes_mut(chunk)
    }

    fn release(&mut self, chunk: Chunk) {
        self.pool.release(&chunk);
        if !self.starved.is_empty() {
            // `listed` stays true, because the connection is still in one of the two lists.
            self.ready.extend(self.starved.drain(..));
        }
    }
}

impl EventLoop for EpollLoop {
    fn new(doorbell: Doorbell) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            doorbell.descriptor(),
            epoll::EventData::new_u64(DOORBELL_DATA),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        Ok(EpollLoop {
            epoll,
            doorbell,
            listeners: Listeners::new(),
            connections: Slots::new(),
            pool: Pool::new(),
            ready: VecDeque::new(),
            starved: Vec::new(),
            unsent: Vec::new(),
            reports: vec![MaybeUninit::uninit(); REPORTS_MAX],
        })
    }

    fn backend(&self) -> Backend {
        Backend::Epoll
    }

    fn doorbell(&self) -> Doorbell {
        self.doorbell.clone()
    }

    fn add_listener(&mut self, socket: OwnedFd) -> io::Result<ListenerId> {
        self.listeners.add(&self.epoll, socket)
    }

    fn remove_listener(&mut self, listener: ListenerId) {
        self.listeners.remove(&self.epoll, listener);
    }

    fn pause_accept(&mut self, listener: ListenerId) {
        self.listeners.set_paused(&self.epoll, listener, true);
    }

    fn resume_accept(&mut self, listener: ListenerId) {
        self.listeners.set_paused(&self.epoll, listener, false);
    }

    fn add(&mut self, socket: OwnedFd) -> io::Result<ConnId> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let token = self.connections.insert(Connection {
            socket,
            paused: false,
            readable: false,
            listed: false,
            hung_up: false,
            ended: false,
            sending: None,
        });
        let connection = self.connections.value(token).expect("just inserted");
        let data = epoll::EventData::new_u64(token.to_bits());
        // Bytes that arrived before the registration are reported as an edge too.
        if let Err(error) = epoll::add(&self.epoll, &connection.socket, data, Self::flags(false)) {
            self.connections.remove(token);
            return Err(error.into());
        }
        Ok(ConnId(token))
    }

    fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>> {
        Some(self.connections.value(conn.0)?.socket.as_fd())
    }

    fn pause_receive(&mut self, conn: ConnId) {
        if let Some(connection) = self.connections.value_mut(conn.0) {
            connection.paused = true;
        }
    }

    fn resume_receive(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.value_mut(conn.0) else {
            return;
        };
        connection.paused = false;
        // An edge may have been reported during the pause, and its bytes must be received now.
        if connection.readable && !connection.listed && !connection.ended {
            connection.listed = true;
            self.ready.push_back(conn.0);
        }
    }

    fn send(&mut self, conn: ConnId, bytes: impl Into<Outgoing>) {
        self.start_send(conn, bytes.into(), false);
    }

    fn send_quiet(&mut self, conn: ConnId, bytes: impl Into<Outgoing>) {
        self.start_send(conn, bytes.into(), true);
    }

    #[inline]
    fn send_at_once(&mut self, conn: ConnId, mut buffer: Vec<u8>) -> Option<Vec<u8>> {
        assert!(!buffer.is_empty(), "a send of nothing");
        let connection = self.connections.value(conn.0).expect("a send to a closed connection");
        assert!(connection.sending.is_none(), "a second send on a connection before the first was done");
        let sent = send_piece(&connection.socket, &buffer);
        if sent == Ok(buffer.len()) {
            buffer.clear();
            return Some(buffer);
        }
        self.keep_rest(conn, buffer, sent);
        None
    }

    fn expect_sent(&mut self, conn: ConnId) {
        let connection = self.connections.value_mut(conn.0);
        if let Some(sending) = connection.and_then(|connection| connection.sending.as_mut()) {
            sending.quiet = false;
        }
    }

    fn detach(&mut self, conn: ConnId) -> Option<OwnedFd> {
        let connection = self.connections.value(conn.0)?;
        if !connection.paused || connection.ended || connection.sending.is_some() {
            return None;
        }
        let connection = self.connections.remove(conn.0)?;
        let _ = epoll::delete(&self.epoll, &connection.socket);
        Some(connection.socket)
    }

    fn close(&mut self, conn: ConnId) {
        // The kernel unregisters a socket when the last descriptor of the socket is closed.
        // Unregister it explicitly, because a forked child may hold another descriptor.
        if let Some(connection) = self.connections.remove(conn.0) {
            let _ = epoll::delete(&self.epoll, &connection.socket);
        }
    }

    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        let ends_wait = self.flush(events);
        let before = events.len();
        self.receive_ready(events);
        let at_once = ends_wait || events.len() > before || !self.ready.is_empty() || !self.unsent.is_empty();
        let timeout = if at_once { Some(Duration::ZERO) } else { timeout };
        self.wait(self.listeners.shorten(timeout), events)?;
        self.listeners.end_rests(&self.epoll);
        Ok(())
    }
}
