//! The backend on io_uring.
//!
//! One multishot receive is armed per connection and fills provided buffers. Sends are queued
//! during a turn (one iteration of the loop), and the next poll submits them with the system call
//! that waits. While the loop is mostly idle, it makes one system call per send instead ([`pace`]).
//!
//! An operation is *in flight* from its push to its last completion. During this time, the loop
//! keeps the operation's descriptor open and its memory unchanged, whatever the caller does.
//!
//! Listeners are not in the ring, for the reason given in `accept.rs`. An epoll instance watches
//! them, and the ring polls that instance.
//!
//! The states of a connection's receive ([`Flight`]):
//!
//! - `Off`: not in flight. The receive is paused, has ended or is about to be armed. The next state
//!   is `Armed`.
//! - `Armed`: in flight. The next state is `Off` after the last completion, `Stopping` after a
//!   cancel, and `Starved` if the kernel found no buffer (ENOBUFS).
//! - `Stopping`: in flight, with a pending cancel. The next state is `Off` after the last
//!   completion, and then `Armed` if the caller has resumed receiving.
//! - `Starved`: not in flight, but in the list of receives that wait for a buffer. The next poll
//!   that has a buffer for the receive makes it `Armed`.

mod buffers;
mod event_loop;
mod pace;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::{cqueue, opcode, squeue, types};
use pantala_base::Outgoing;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::SendFlags;

use crate::accept::Listeners;
use crate::event::{ConnId, Event};
use crate::slots::{Slots, Token};
use crate::{Doorbell, SEND_BYTES_MAX};
use buffers::{Buffers, GROUP};
use pace::Pace;
use ring::Ring;

/// `POLLIN` of poll(2): the descriptor is readable.
const POLL_IN: u32 = 1;
/// Maximum number of sends in a turn that are sent directly, by one system call each ([`pace`]). If
/// a turn has more sends, all of them go through the ring.
const DIRECT_SENDS_MAX: usize = 8;
/// Maximum number of listeners from which one turn accepts: at most 16 for the addresses of `bind`,
/// and one for the Unix socket. With TLS there may be more listeners. The next turn then accepts
/// from the remaining ones.
const LISTENERS_PER_TURN_MAX: usize = 17;

/// An io_uring event loop. See [`EventLoop`](crate::EventLoop). The loop must stay on the thread
/// that created it, because the kernel accepts submissions only from that thread.
pub struct UringLoop {
    ring: ManuallyDrop<Ring>,
    buffers: ManuallyDrop<Buffers>,
    doorbell: Doorbell,
    listeners: Listeners,
    /// The epoll instance that watches the listeners.
    accepting: OwnedFd,
    /// Whether connections may be pending that no completion will report. This is possible because
    /// the poll of the listeners is edge-triggered: it reports a pending connection only once.
    may_accept: bool,
    connections: Slots<Connection>,
    /// Connections whose receives wait for a buffer ([`Flight::Starved`]).
    starved: VecDeque<Token>,
    /// Number of operations whose last completion has not been handled.
    in_flight: usize,
    /// Connections with a send that the next poll starts.
    unsent: Vec<Token>,
    pace: Pace,
    /// See [`Ring::waits_for_several`].
    waits_for_several: bool,
    /// Whether an event collected in this poll ends the wait. All events do, except the success of
    /// a quiet send.
    ends_wait: bool,
    _one_thread: PhantomData<*mut ()>,
}

/// The state of a connection's receive. See the head of this module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flight {
    Off,
    Armed,
    Stopping,
    Starved,
}

struct Connection {
    socket: OwnedFd,
    receive: Flight,
    paused: bool,
    /// Whether `Eof` or `Failed` was reported.
    ended: bool,
    /// Whether the caller has closed the connection. The connection is removed when its operations
    /// have ended.
    closed: bool,
    sending: Option<Sending>,
}

struct Sending {
    outgoing: Outgoing,
    sent_bytes: usize,
    /// Whether the send is quiet: its success doesn't end a wait.
    quiet: bool,
    /// Whether the send was submitted to the kernel, or will be with the next submission.
    in_flight: bool,
}

/// Kind of an operation. It is the highest byte of the operation's number, which the kernel returns
/// with each completion. The next 24 bits are the generation of the connection, and the lowest 32
/// bits its index.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Operation {
    Accept = 1,
    Receive,
    Send,
    Doorbell,
    Cancel,
}

fn number(operation: Operation, token: Token) -> u64 {
    (operation as u64) << 56 | u64::from(token.generation) << 32 | u64::from(token.index)
}

fn token_of(number: u64) -> Token {
    Token { index: number as u32, generation: (number >> 32) as u32 & crate::slots::GENERATION_MAX }
}

/// A flag of send(2): the kernel continues a short send when there is room. `rustix` does not name
/// this flag, because it has this meaning only for sends through io_uring.
const MSG_WAITALL: u32 = 0x100;

const NO_TOKEN: Token = Token { index: 0, generation: 0 };

impl UringLoop {
    /// Returns the connection, unless the caller has closed it.
    fn open(&mut self, conn: ConnId) -> Option<&mut Connection> {
        let connection = self.connections.value_mut(conn.0)?;
        (!connection.closed).then_some(connection)
    }

    fn cancel(&mut self, operation: Operation, token: Token) {
        let entry = opcode::AsyncCancel::new(number(operation, token))
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(number(Operation::Cancel, NO_TOKEN));
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry) };
    }

    fn arm_doorbell(&mut self) {
        let descriptor = types::Fd(self.doorbell.descriptor().as_raw_fd());
        // Edge-triggered: each ring of the doorbell is one completion, so the counter need not be
        // read.
        let entry = opcode::PollAdd::new(descriptor, POLL_IN)
            .multi(true)
            .build()
            .user_data(number(Operation::Doorbell, NO_TOKEN));
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry) };
        self.in_flight += 1;
    }

    fn arm_accept(&mut self) {
        let descriptor = types::Fd(self.accepting.as_raw_fd());
        let entry = opcode::PollAdd::new(descriptor, POLL_IN)
            .multi(true)
            .build()
            .user_data(number(Operation::Accept, NO_TOKEN));
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry) };
        self.in_flight += 1;
    }

    fn arm_receive(&mut self, token: Token) {
        let Some(connection) = self.connections.value_mut(token) else {
            return;
        };
        if connection.receive != Flight::Off || connection.paused || connection.ended || connection.closed {
            return;
        }
        connection.receive = Flight::Armed;
        let entry = opcode::RecvMulti::new(types::Fd(connection.socket.as_raw_fd()), GROUP)
            .build()
            .user_data(number(Operation::Receive, token));
        // SAFETY: the entry names no memory. The operation fills buffers of the group, which live
        // until nothing is in flight.
        unsafe { self.ring.push(entry) };
        self.in_flight += 1;
    }

    fn start_send(&mut self, conn: ConnId, outgoing: Outgoing, quiet: bool) {
        let len_bytes = outgoing.bytes().len();
        assert!(len_bytes > 0, "a send of nothing");
        let connection = self.open(conn).expect("a send to a closed connection");
        assert!(connection.sending.is_none(), "a second send on a connection before the first was done");
        // Two kinds of sends can't be quiet. A send that takes several operations must wake the
        // loop, which continues it. A send on a connection that has ended must report its error.
        let quiet = quiet && len_bytes <= SEND_BYTES_MAX && !connection.ended;
        connection.sending = Some(Sending { outgoing, sent_bytes: 0, quiet, in_flight: false });
        self.unsent.push(conn.0);
    }

    /// Starts the sends of the turn. Returns how many quiet sends are in the ring, so that their
    /// completions don't end a wait.
    fn start_sends(&mut self, events: &mut Vec<Event>) -> u32 {
        let mut unsent = mem::take(&mut self.unsent);
        let is_direct = self.pace.is_direct() && unsent.len() <= DIRECT_SENDS_MAX;
        let mut quiet_queued = 0;
        for token in unsent.drain(..) {
            if is_direct && self.send_directly(token, events) {
                continue;
            }
            let is_quiet = self.push_send(token);
            // A direct send that found no room completes at an unknown time, so the wait must not
            // count on its completion.
            quiet_queued += u32::from(is_quiet && !is_direct);
        }
        self.unsent = unsent;
        quiet_queued
    }

    /// Sends by a system call, in a turn with few sends. Returns whether the send has ended, with
    /// success or an error. If it has not, the caller queues the rest in the ring.
    fn send_directly(&mut self, token: Token, events: &mut Vec<Event>) -> bool {
        let Some(connection) = self.connections.value_mut(token) else { return true };
        let Some(mut sending) = connection.sending.take() else { return true };
        let bytes = sending.outgoing.bytes();
        let piece = &bytes[..bytes.len().min(SEND_BYTES_MAX)];
        let result = match rustix::net::send(&connection.socket, piece, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(taken_bytes) if taken_bytes == bytes.len() => Ok(()),
            Ok(taken_bytes) => {
                sending.sent_bytes = taken_bytes;
                connection.sending = Some(sending);
                return false;
            }
            Err(Errno::AGAIN | Errno::INTR) => {
                connection.sending = Some(sending);
                return false;
            }
            Err(error) => Err(error.into()),
        };
        self.ends_wait |= !sending.quiet || result.is_err();
        let buffer = sending.outgoing.into_buffer();
        events.push(Event::Sent { conn: ConnId(token), buffer, result });
        true
    }

    /// Queues the rest of a connection's send. Returns whether it is a quiet send.
    fn push_send(&mut self, token: Token) -> bool {
        let Some(connection) = self.connections.value_mut(token) else {
            return false;
        };
        let Some(sending) = &mut connection.sending else {
            return false;
        };
        sending.in_flight = true;
        let is_quiet = sending.quiet;
        let rest = &sending.outgoing.bytes()[sending.sent_bytes..];
        let len_bytes = rest.len().min(SEND_BYTES_MAX);
        // With MSG_WAITALL the loop need not continue short sends.
        let flags = SendFlags::NOSIGNAL.bits() | MSG_WAITALL;
        let socket = types::Fd(connection.socket.as_raw_fd());
        let entry = opcode::Send::new(socket, rest.as_ptr(), len_bytes as u32)
            .flags(flags as i32)
            .build()
            .user_data(number(Operation::Send, token));
        // SAFETY: the bytes are in the heap memory of a Vec, which stays unchanged in `sending`
        // until the completion is handled (`sent`). A closed connection keeps the Vec, and a
        // dropped loop waits for the completion or leaks the Vec. Moving the Vec with its table
        // does not move its heap memory. The kernel only reads the bytes. The same holds for shared
        // bytes: `sending` holds a reference of an Arc, whose Vec cannot change, since all access
        // to it is by shared reference.
        unsafe { self.ring.push(entry) };
        self.in_flight += 1;
        is_quiet
    }

    /// Accepts from the listeners that have pending connections.
    fn accept(&mut self, events: &mut Vec<Event>) {
        self.may_accept = false;
        let mut reports = [MaybeUninit::<epoll::Event>::uninit(); LISTENERS_PER_TURN_MAX];
        match epoll::wait(&self.accepting, &mut reports[..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok((ready, _)) => {
                self.may_accept = ready.len() == LISTENERS_PER_TURN_MAX;
                for report in ready {
                    self.may_accept |= self.listeners.accept(&self.accepting, report.data.u64(), events);
                }
            }
            Err(Errno::INTR) => self.may_accept = true,
            // Can't happen, because the descriptor is an epoll instance.
            Err(_) => {}
        }
    }

    fn received(&mut self, token: Token, completion: &cqueue::Entry, events: &mut Vec<Event>) {
        let result = completion.result();
        let len_bytes = usize::try_from(result).unwrap_or(0);
        let chunk = cqueue::buffer_select(completion.flags()).and_then(|buffer| self.buffers.lend(buffer, len_bytes));
        let connection = self.connections.value_mut(token);
        // A connection stays in its slot while any of its operations is in flight.
        let connection = connection.expect("a completion of a forgotten connection");
        let last = !cqueue::more(completion.flags());
        if last {
            connection.receive = Flight::Off;
        }
        if connection.closed {
            if let Some(chunk) = chunk {
                self.buffers.release(chunk);
            }
            self.settle(token);
            return;
        }
        let conn = ConnId(token);
        match (chunk, result) {
            (Some(chunk), _) => events.push(Event::Data { conn, chunk }),
            (None, 0) => {
                connection.ended = true;
                events.push(Event::Eof { conn });
            }
            (None, result) => match Errno::from_raw_os_error(-result) {
                Errno::NOBUFS => {
                    connection.receive = Flight::Starved;
                    self.starved.push_back(token);
                }
                Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                error => {
                    connection.ended = true;
                    let error = error.into();
                    events.push(Event::Failed { conn, error });
                }
            },
        }
        if last {
            self.arm_receive(token);
        }
    }

    fn sent(&mut self, token: Token, result: i32, events: &mut Vec<Event>) {
        let connection = self.connections.value_mut(token);
        // The connection is there, for the reason given in `received`.
        let connection = connection.expect("a completion of a forgotten connection");
        let mut sending = connection.sending.take().expect("a completion of no send");
        if connection.closed {
            self.settle(token);
            return;
        }
        let again = match usize::try_from(result) {
            Ok(taken_bytes) => {
                sending.sent_bytes += taken_bytes;
                sending.sent_bytes < sending.outgoing.bytes().len()
            }
            Err(_) => matches!(Errno::from_raw_os_error(-result), Errno::INTR | Errno::AGAIN),
        };
        if again {
            connection.sending = Some(sending);
            self.push_send(token);
            return;
        }
        let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) };
        self.ends_wait |= !sending.quiet || result.is_err();
        let buffer = sending.outgoing.into_buffer();
        events.push(Event::Sent { conn: ConnId(token), buffer, result });
    }

    /// Removes a closed connection, which closes its socket. Does nothing while one of the
    /// connection's operations is in flight.
    fn settle(&mut self, token: Token) {
        let settled = self.connections.value(token).is_some_and(|connection| {
            connection.closed
                && connection.sending.is_none()
                && matches!(connection.receive, Flight::Off | Flight::Starved)
        });
        if settled {
            self.connections.remove(token);
        }
    }

    fn handle(&mut self, completion: &cqueue::Entry, events: &mut Vec<Event>) {
        let about = completion.user_data();
        let token = token_of(about);
        let operation = (about >> 56) as u8;
        if operation == Operation::Cancel as u8 {
            // Only a failed cancel has a completion. This one has failed because the operation had
            // already completed.
            return;
        }
        if !cqueue::more(completion.flags()) {
            self.in_flight -= 1;
        }
        self.ends_wait |= operation != Operation::Send as u8;
        if operation == Operation::Receive as u8 {
            self.received(token, completion, events);
        } else if operation == Operation::Send as u8 {
            self.sent(token, completion.result(), events);
        } else if operation == Operation::Accept as u8 {
            self.accept(events);
            if !cqueue::more(completion.flags()) {
                self.arm_accept();
            }
        } else if operation == Operation::Doorbell as u8 {
            events.push(Event::Woken);
            if !cqueue::more(completion.flags()) {
                self.arm_doorbell();
            }
        }
    }

    fn collect(&mut self, events: &mut Vec<Event>) {
        while let Some(completion) = self.ring.next_completion() {
            self.handle(&completion, events);
        }
    }

    /// Arms as many starved receives as there are buffers. Any further receive would starve again,
    /// at the cost of a submission and a completion. With thousands of connections, arming all of
    /// them took most of a server's time.
    fn feed(&mut self) {
        while self.buffers.provided() < self.starved.len() && self.buffers.grow() {}
        for _ in 0..self.buffers.provided() {
            let Some(token) = self.starved.pop_front() else { return };
            if let Some(connection) = self.connections.value_mut(token)
                && connection.receive == Flight::Starved
            {
                connection.receive = Flight::Off;
                self.arm_receive(token);
            }
        }
    }

    /// Returns whether the next poll can arm starved receives, because buffers are available. (If
    /// none is available, the caller holds all of them, and releases some before it waits for more
    /// data.)
    fn must_feed(&self) -> bool {
        !self.starved.is_empty() && self.buffers.provided() > 0
    }
}
