//! Implements [`Lender`], [`EventLoop`] and `Drop` for [`UringLoop`].

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::{cqueue, opcode, types};
use pantala_base::{Lender, Moment, Outgoing};
use rustix::event::epoll;

use super::buffers::{BUFFER_BYTES, Buffers};
use super::pace::Pace;
use super::ring::Ring;
use super::{Connection, Flight, NO_TOKEN, Operation, UringLoop, number};
use crate::accept::Listeners;
use crate::event::{Chunk, ConnId, Event, EventLoop, ListenerId};
use crate::slots::Slots;
use crate::{Backend, Doorbell};

/// Maximum time for which a dropped loop waits for its operations in flight to complete. After
/// that, the loop leaks the memory of these operations.
const DROP_WAIT: Duration = Duration::from_secs(2);

impl Lender for UringLoop {
    type Chunk = Chunk;

    #[inline]
    fn bytes(&self, chunk: &Chunk) -> &[u8] {
        self.buffers.bytes(chunk)
    }

    fn room_after(&self, chunk: &Chunk) -> usize {
        BUFFER_BYTES - chunk.start as usize - chunk.len()
    }

    #[inline]
    fn bytes_mut(&mut self, chunk: &Chunk) -> &mut [u8] {
        self.buffers.bytes_mut(chunk)
    }

    #[inline]
    fn release(&mut self, chunk: Chunk) {
        self.buffers.release(chunk);
    }
}

impl EventLoop for UringLoop {
    fn new(doorbell: Doorbell) -> io::Result<Self> {
        let ring = Ring::new()?;
        let buffers = Buffers::new(&ring.io_uring().submitter())?;
        let accepting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waits_for_several = ring.waits_for_several();
        let mut this = UringLoop {
            ring: ManuallyDrop::new(ring),
            buffers: ManuallyDrop::new(buffers),
            doorbell,
            listeners: Listeners::new(),
            accepting,
            may_accept: false,
            connections: Slots::new(),
            starved: VecDeque::new(),
            in_flight: 0,
            unsent: Vec::new(),
            pace: Pace::new(),
            waits_for_several,
            ends_wait: false,
            _one_thread: PhantomData,
        };
        this.arm_doorbell();
        this.arm_accept();
        // Submit now, so that a ring of the doorbell before the first poll is noticed.
        this.ring.enter(0, Some(Duration::ZERO))?;
        Ok(this)
    }

    fn backend(&self) -> Backend {
        Backend::IoUring
    }

    fn doorbell(&self) -> Doorbell {
        self.doorbell.clone()
    }

    fn add_listener(&mut self, socket: OwnedFd) -> io::Result<ListenerId> {
        self.listeners.add(&self.accepting, socket)
    }

    fn remove_listener(&mut self, listener: ListenerId) {
        self.listeners.remove(&self.accepting, listener);
    }

    fn pause_accept(&mut self, listener: ListenerId) {
        self.listeners.set_paused(&self.accepting, listener, true);
    }

    fn resume_accept(&mut self, listener: ListenerId) {
        self.listeners.set_paused(&self.accepting, listener, false);
    }

    fn add(&mut self, socket: OwnedFd) -> io::Result<ConnId> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let token = self.connections.insert(Connection {
            socket,
            receive: Flight::Off,
            paused: false,
            ended: false,
            closed: false,
            sending: None,
        });
        self.arm_receive(token);
        Ok(ConnId(token))
    }

    fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>> {
        let connection = self.connections.value(conn.0)?;
        (!connection.closed).then(|| connection.socket.as_fd())
    }

    fn pause_receive(&mut self, conn: ConnId) {
        let Some(connection) = self.open(conn) else {
            return;
        };
        connection.paused = true;
        if connection.receive == Flight::Armed {
            connection.receive = Flight::Stopping;
            self.cancel(Operation::Receive, conn.0);
        }
    }

    fn resume_receive(&mut self, conn: ConnId) {
        if let Some(connection) = self.open(conn) {
            connection.paused = false;
            self.arm_receive(conn.0);
        }
    }

    fn send(&mut self, conn: ConnId, bytes: impl Into<Outgoing>) {
        self.start_send(conn, bytes.into(), false);
    }

    fn send_quiet(&mut self, conn: ConnId, bytes: impl Into<Outgoing>) {
        self.start_send(conn, bytes.into(), true);
    }

    fn expect_sent(&mut self, conn: ConnId) {
        // A send that isn't quiet ends the wait when it completes. A poll that also starts quiet
        // sends first waits for several completions. If the send completes during this wait, the
        // wait ends after `PATIENCE_US` at the latest.
        let connection = self.open(conn);
        if let Some(sending) = connection.and_then(|connection| connection.sending.as_mut()) {
            sending.quiet = false;
        }
    }

    fn detach(&mut self, conn: ConnId) -> Option<OwnedFd> {
        let connection = self.open(conn)?;
        let is_at_rest = connection.paused
            && !connection.ended
            && connection.sending.is_none()
            && matches!(connection.receive, Flight::Off | Flight::Starved);
        if is_at_rest { Some(self.connections.remove(conn.0)?.socket) } else { None }
    }

    fn close(&mut self, conn: ConnId) {
        let Some(connection) = self.open(conn) else {
            return;
        };
        connection.closed = true;
        let receiving = connection.receive == Flight::Armed;
        // A send that has not been submitted is dropped.
        connection.sending.take_if(|sending| !sending.in_flight);
        let sending = connection.sending.is_some();
        if receiving {
            connection.receive = Flight::Stopping;
            self.cancel(Operation::Receive, conn.0);
        }
        if sending {
            self.cancel(Operation::Send, conn.0);
        }
        self.settle(conn.0);
    }

    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<Event>) -> io::Result<()> {
        if !self.starved.is_empty() {
            self.feed();
        }
        // `feed` arms only as many receives as there are buffers. An armed receive that finds no
        // bytes uses no buffer and doesn't end the wait. So if receives are still starved, this
        // poll doesn't wait, and the next poll arms more of them.
        let mut timeout = if self.must_feed() { Some(Duration::ZERO) } else { timeout };
        if self.may_accept {
            self.accept(events);
            timeout = Some(Duration::ZERO);
        }
        timeout = self.listeners.shorten(timeout);
        self.ends_wait = false;
        self.pace.count_poll();
        let quiet_queued = self.start_sends(events);
        if self.ends_wait {
            timeout = Some(Duration::ZERO);
            self.ends_wait = false;
        }
        if quiet_queued > 0 && timeout != Some(Duration::ZERO) {
            let begin = Moment::now();
            if self.waits_for_several {
                // Unless a socket is full, the quiet sends complete during the submission. The wait
                // must therefore be for one completion more than there are quiet sends.
                self.ring.enter(1 + quiet_queued, timeout)?;
            } else {
                self.ring.enter(0, Some(Duration::ZERO))?;
            }
            self.collect(events);
            if !self.ends_wait {
                // Only quiet sends have completed. Wait for other events during the rest of the
                // time.
                timeout = timeout.map(|timeout| timeout.saturating_sub(begin.elapsed()));
            }
        }
        if !self.ends_wait {
            self.ring.enter(1, timeout)?;
            self.collect(events);
        }
        self.listeners.end_rests(&self.accepting);
        Ok(())
    }
}

impl Drop for UringLoop {
    fn drop(&mut self) {
        // The kernel may still write to receive buffers and read the bytes of sends. Free this
        // memory only after all operations have completed.
        let everything = types::CancelBuilder::any().all();
        let entry = opcode::AsyncCancel2::new(everything).build().user_data(number(Operation::Cancel, NO_TOKEN));
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry) };
        let deadline = Instant::now() + DROP_WAIT;
        while self.in_flight > 0 && Instant::now() < deadline {
            if self.ring.enter(1, Some(DROP_WAIT / 10)).is_err() {
                break;
            }
            while let Some(completion) = self.ring.next_completion() {
                let about = (completion.user_data() >> 56) as u8;
                let last = !cqueue::more(completion.flags());
                if last && about != Operation::Cancel as u8 {
                    self.in_flight -= 1;
                }
            }
        }
        // SAFETY: `ring` is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.ring) };
        if self.in_flight == 0 {
            // SAFETY: `buffers` is not used after this. The kernel no longer uses it either,
            // because nothing is in flight, and the ring with which the buffers were registered is
            // closed.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        } else {
            // Leak the sends. The buffers leak too, because a ManuallyDrop is not dropped by
            // itself.
            for (_, connection) in self.connections.iter_mut() {
                mem::forget(connection.sending.take());
            }
        }
    }
}
