//! A connection of the load: its unsent output, and the replies that it expects.

use std::collections::VecDeque;
use std::net::SocketAddr;

use socket2::Socket;

use super::client::Operation;
use super::cluster::{Redirection, redirection};
use super::link::Link;
use super::scan::{Reply, Scanner};
use super::tally::Tally;
use super::template::Template;

/// The value of [`Sent::command`] that stands for an ASKING.
const ASKING: u16 = u16::MAX;

/// Consecutive operations of the same command that were sent and have no reply yet.
#[derive(Debug)]
struct Sent {
    command: u16,
    since_ns: u64,
    key: u64,
    count: u32,
    /// Number of redirections that each of these operations has followed.
    hops: u8,
}

pub(super) struct Connection {
    pub(super) socket: Socket,
    /// The TLS state, if the connection is encrypted.
    pub(super) link: Option<Box<Link>>,
    /// Index of the connection's client in the thread.
    pub(super) client: usize,
    /// Index of the connection's node.
    pub(super) node: usize,
    /// Address of the node, in cluster mode.
    pub(super) address: Option<SocketAddr>,
    pub(super) scanner: Scanner,
    pub(super) out: Vec<u8>,
    /// Number of bytes of [`Connection::outgoing`] already sent. It is above 0 only while the
    /// socket's buffer is full.
    pub(super) out_sent: usize,
    sent: VecDeque<Sent>,
    /// Number of operations without a reply so far.
    pub(super) in_flight: u32,
    /// Whether the connection is in the driver's list of connections to fill.
    pub(super) listed: bool,
    pub(super) open: bool,
    /// Number of replies received so far to the oldest operation without all its replies. An
    /// operation may consist of several requests, each of which has a reply.
    replies_seen: u32,
    /// Whether one of these replies was an error.
    failed: bool,
}

/// An operation that must be sent again, to another node.
pub(super) type Redirected = (Redirection, Operation);

impl Connection {
    pub(super) fn new(
        socket: Socket,
        link: Option<Box<Link>>,
        client: usize,
        node: usize,
        address: Option<SocketAddr>,
        pipeline: u32,
    ) -> Self {
        Self {
            socket,
            link,
            client,
            node,
            address,
            scanner: Scanner::default(),
            out: Vec::new(),
            out_sent: 0,
            // The queue grows further only if consecutive requests differ, because equal requests
            // share an entry.
            sent: VecDeque::with_capacity(pipeline.min(64) as usize + 1),
            in_flight: 0,
            listed: false,
            open: true,
            replies_seen: 0,
            failed: false,
        }
    }

    /// Records a request that was written to `out`.
    #[inline]
    pub(super) fn expect(&mut self, operation: &Operation, now_ns: u64) {
        let (command, since_ns) = (operation.command, operation.since_ns.unwrap_or(now_ns));
        self.in_flight += 1;
        match self.sent.back_mut() {
            // In cluster mode each operation has its own entry, because a redirection needs the
            // operation's key.
            Some(last) if self.address.is_none() && (last.command, last.since_ns) == (command, since_ns) => {
                last.count += 1;
            }
            _ => self.sent.push_back(Sent { command, since_ns, key: operation.key, count: 1, hops: operation.hops }),
        }
    }

    /// Returns whether some bytes were not sent because the socket's buffer is full.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        self.out_sent < self.out.len() || self.link.as_ref().is_some_and(|link| !link.sealed.is_empty())
    }

    /// Encrypts the output, if the connection is encrypted.
    ///
    /// # Errors
    /// Fails if the TLS keys of the connection have encrypted the maximum number of records.
    #[inline]
    pub(super) fn seal(&mut self) -> std::io::Result<()> {
        match &mut self.link {
            // Encrypts more output only after all bytes that were encrypted earlier have been sent.
            Some(link) if link.sealed.is_empty() => {
                let sealed = link.seal(&self.out);
                self.out.clear();
                sealed.map(|_| ())
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes to write to the socket.
    #[inline]
    pub(super) fn outgoing(&self) -> &[u8] {
        self.link.as_ref().map_or(&self.out, |link| &link.sealed)
    }

    /// Drops the bytes that were sent.
    #[inline]
    pub(super) fn forget_sent(&mut self) {
        match &mut self.link {
            Some(link) => link.sealed.clear(),
            None => self.out.clear(),
        }
    }

    /// Records an ASKING that was written to `out`.
    pub(super) fn expect_asking(&mut self) {
        self.sent.push_back(Sent { command: ASKING, since_ns: 0, key: 0, count: 1, hops: 0 });
    }

    /// Parses bytes from the server. Returns the number of operations that were completed or
    /// redirected. Fails with the reason why the connection is unusable.
    #[inline]
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        now_ns: u64,
        templates: &[Template],
        tally: &mut Tally,
        redirected: &mut Vec<Redirected>,
    ) -> Result<u32, String> {
        let mut scanner = std::mem::take(&mut self.scanner);
        let before = self.in_flight;
        let mut unexpected = false;
        let scanned = scanner.scan(bytes, |reply| {
            unexpected |= !self.answer(reply, now_ns, templates, tally, redirected);
        });
        self.scanner = scanner;
        tally.record_run(now_ns);
        if let Err(no_reply) = scanned {
            return Err(format!("not a reply: '{}'", no_reply.0.escape_ascii()));
        }
        if unexpected {
            return Err("a reply to no request".into());
        }
        Ok(before - self.in_flight)
    }

    /// Handles one reply. Returns false if no request expects a reply.
    #[inline]
    fn answer(
        &mut self,
        reply: Reply<'_>,
        now_ns: u64,
        templates: &[Template],
        tally: &mut Tally,
        redirected: &mut Vec<Redirected>,
    ) -> bool {
        let Some(front) = self.sent.front_mut() else { return false };
        if front.command == ASKING {
            self.sent.pop_front();
            return true;
        }
        let command = usize::from(front.command);
        let template = &templates[command];
        let mut moved = None;
        if let Reply::Error(text) = reply {
            moved = self.address.and_then(|address| redirection(text, address));
            if moved.is_none() {
                tally.error(text);
                self.failed = true;
            }
        }
        self.replies_seen += 1;
        if self.replies_seen < template.replies {
            return true;
        }
        self.replies_seen = 0;
        if let Some(redirection) = moved {
            let since_ns = Some(front.since_ns);
            let (asking, hops) = (redirection.once, front.hops.saturating_add(1));
            let operation = Operation { command: front.command, key: front.key, since_ns, asking, hops };
            redirected.push((redirection, operation));
        } else if !std::mem::take(&mut self.failed) {
            if template.reads {
                let counts = if reply == Reply::Null { &mut tally.misses } else { &mut tally.hits };
                counts[command] += 1;
            }
            tally.record(front.command, front.since_ns, now_ns);
        }
        front.count -= 1;
        self.in_flight -= 1;
        if front.count == 0 {
            self.sent.pop_front();
        }
        true
    }
}
