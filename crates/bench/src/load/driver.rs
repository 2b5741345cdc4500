//! One thread of the load: its clients, their connections, and an event loop with epoll.
//!
//! Each turn (one iteration of the event loop) waits for readable connections. It reads each
//! readable connection once, counts the replies, refills the pipeline and sends. All operations
//! whose replies arrive in one read therefore share two system calls. Nothing is allocated per
//! operation.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::Socket;

use super::client::{Client, Next, Operation};
use super::cluster::Topology;
use super::connection::{Connection, Redirected};
use super::control::{Control, Target};
use super::data::Data;
use super::plan::{Amount, Plan};
use super::shared::Shared;
use super::tally::Tally;
use super::template::Template;

/// Maximum number of bytes that one call reads.
const READ_BYTES: usize = 256 * 1024;
/// Maximum number of events that one call returns.
const EVENTS: usize = 256;
/// Interval at which a thread publishes its counts, in ns. A thread waits for events for at most
/// this time.
pub(super) const PUBLISH_NS: u64 = 200_000_000;
/// Maximum wait for the replies to requests in flight after the time of the run has ended, in ns.
const DRAIN_NS: u64 = 5_000_000_000;
/// Maximum number of operations that a client draws ahead for one node.
const QUEUE_MAX: usize = 16 * 1024;
/// Minimum time between two queries of the cluster's slots, in ns.
const REFRESH_NS: u64 = 1_000_000_000;
/// Maximum number of redirections of one operation. Without it, two nodes that redirect to each
/// other would cause an endless loop.
const HOPS_MAX: u8 = 16;
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

pub(super) struct Driver<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    /// Index of this thread.
    thread: usize,
    clock: Instant,
    epoll: OwnedFd,
    templates: Vec<Template>,
    data: Data,
    clients: Vec<Client>,
    connections: Vec<Connection>,
    topology: Option<Topology>,
    tally: Tally,
    /// Connections whose pipelines must be filled.
    ready: Vec<usize>,
    /// The due times of the clients' next operations, each with the index of its client.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    redirected: Vec<Redirected>,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
    /// Number of operations without a reply, over all connections.
    in_flight: u64,
    stopping: bool,
    deadline_ns: u64,
    last_answer_ns: u64,
    /// Time of the last send before which no request was in flight. The time without a reply, which
    /// is limited, counts from this send or from the last reply, whichever is later.
    asked_ns: u64,
    next_publish_ns: u64,
    next_refresh_ns: u64,
}

/// The results of one thread.
pub(super) struct Driven {
    pub(super) tally: Tally,
    /// Nanoseconds from the start to the last reply.
    pub(super) elapsed_ns: u64,
    /// Whether the run was stopped before its end.
    pub(super) interrupted: bool,
    /// The open sockets. They are returned because closing them is not part of the load.
    pub(super) sockets: Vec<Socket>,
}

impl<'a> Driver<'a> {
    /// Connects all clients of the thread with index `thread`.
    pub(super) fn connect(plan: &'a Plan, shared: &'a Shared, thread: usize, clock: Instant) -> io::Result<Self> {
        let templates = plan.templates().map_err(io::Error::other)?;
        let topology = match (&plan.target, plan.cluster) {
            (Target::Tcp(address), true) => Some(Topology::ask(*address, &plan.login)?),
            _ => None,
        };
        let commands = templates.len();
        let mut driver = Self {
            plan,
            shared,
            thread,
            clock,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            templates,
            data: Data::new(
                plan.sizes,
                plan.expiry_seconds,
                (plan.range.minimum, plan.range.maximum),
                plan.random_data,
                plan.seed ^ thread as u64,
            ),
            clients: Vec::new(),
            connections: Vec::new(),
            topology,
            tally: Tally::new(commands),
            ready: Vec::new(),
            due: BinaryHeap::new(),
            redirected: Vec::new(),
            buffer: vec![0; READ_BYTES],
            scratch: Vec::new(),
            in_flight: 0,
            stopping: false,
            deadline_ns: u64::MAX,
            last_answer_ns: 0,
            asked_ns: 0,
            next_publish_ns: 0,
            next_refresh_ns: 0,
        };
        let nodes = driver.topology.as_ref().map_or(1, |topology| topology.nodes.len());
        for index in (thread as u64..u64::from(plan.clients)).step_by(plan.threads as usize) {
            if shared.stop.load(Ordering::Relaxed) {
                break;
            }
            driver.clients.push(Client::new(plan, index, 0));
            for node in 0..nodes {
                driver.open(driver.clients.len() - 1, node)?;
            }
        }
        Ok(driver)
    }

    fn open(&mut self, client: usize, node: usize) -> io::Result<usize> {
        let address = self.topology.as_ref().map(|topology| topology.nodes[node]);
        let target = address.map_or_else(|| self.plan.target.clone(), Target::Tcp);
        let (socket, link) = Control::open(&target, &self.plan.login)?.into_parts()?;
        let index = self.connections.len();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(index as u64), flags)?;
        self.connections.push(Connection::new(socket, link, client, node, address, self.plan.pipeline));
        let client = &mut self.clients[client];
        if client.connections.len() <= node {
            client.connections.resize(node + 1, None);
            client.queues.resize_with(node + 1, Default::default);
        }
        client.connections[node] = Some(index);
        Ok(index)
    }

    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Runs the load until its end.
    pub(super) fn run(mut self) -> io::Result<Driven> {
        let start_ns = self.now_ns();
        if let Amount::Time(time) = self.plan.amount {
            self.deadline_ns = start_ns + time.as_nanos() as u64;
        }
        self.restart(start_ns);
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            self.fill_ready();
            let now_ns = self.now_ns();
            if self.turn_ends(now_ns) {
                break;
            }
            self.wait(now_ns, &mut events)?;
            for event in events.drain(..) {
                let index = event.data.u64() as usize;
                self.read(index);
                if self.connections[index].has_unsent() {
                    self.send(index);
                }
                self.list(index);
                // Send the next requests of this connection before reading other connections, to
                // keep the server busy.
                self.fill_ready();
            }
        }
        self.publish();
        self.tally.unanswered += self.in_flight;
        let interrupted = self.shared.stop.load(Ordering::Relaxed);
        let elapsed_ns = self.last_answer_ns.max(start_ns + 1) - start_ns;
        let sockets = self.connections.into_iter().map(|connection| connection.socket).collect();
        Ok(Driven { tally: self.tally, elapsed_ns, interrupted, sockets })
    }

    /// Creates all clients again with the start time `start_ns`, which was unknown when they were
    /// first created.
    fn restart(&mut self, start_ns: u64) {
        for (position, client) in self.clients.iter_mut().enumerate() {
            let index = (self.thread + position * self.plan.threads as usize) as u64;
            let connections = std::mem::take(&mut client.connections);
            let queues = std::mem::take(&mut client.queues);
            *client = Client::new(self.plan, index, start_ns);
            client.connections = connections;
            client.queues = queues;
        }
        self.last_answer_ns = start_ns;
        self.next_publish_ns = start_ns + PUBLISH_NS;
        (0..self.connections.len()).for_each(|index| self.list(index));
    }

    /// Publishes the counts if this is due. Ends the load at the end of its time, or if the stop
    /// flag is set. Returns whether the run has ended: nothing is left to do, or the server has not
    /// replied for too long.
    fn turn_ends(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.next_publish_ns {
            self.publish();
            self.next_publish_ns = now_ns + PUBLISH_NS;
        }
        let silent_since_ns = self.last_answer_ns.max(self.asked_ns);
        if self.in_flight > 0 && now_ns.saturating_sub(silent_since_ns) > self.plan.stall_max.as_nanos() as u64 {
            self.tally.error(b"no reply for too long");
            return true;
        }
        if !self.stopping && (now_ns >= self.deadline_ns || self.shared.stop.load(Ordering::Relaxed)) {
            self.stopping = true;
            for client in &mut self.clients {
                // The run ends. So a request that was redirected but not sent again is not counted
                // as an error.
                client.stop();
            }
            self.due.clear();
            self.deadline_ns = self.deadline_ns.min(now_ns);
        }
        if self.in_flight > 0 {
            return self.stopping && now_ns > self.deadline_ns.saturating_add(DRAIN_NS);
        }
        self.stopping
            || self.clients.iter().all(|client| client.is_done() && client.queues.iter().all(|queue| queue.is_empty()))
            || self.connections.iter().all(|connection| !connection.open)
    }

    fn publish(&mut self) {
        self.shared.publish(&mut self.tally);
    }

    /// Waits for events until the next deadline.
    fn wait(&mut self, now_ns: u64, events: &mut Vec<epoll::Event>) -> io::Result<()> {
        let mut until_ns = self.next_publish_ns.min(if self.stopping { u64::MAX } else { self.deadline_ns });
        if let Some(Reverse((due_ns, _))) = self.due.peek() {
            until_ns = until_ns.min(*due_ns);
        }
        let wait_ns = until_ns.saturating_sub(now_ns);
        let mut timeout =
            Timespec { tv_sec: (wait_ns / 1_000_000_000) as i64, tv_nsec: (wait_ns % 1_000_000_000) as i64 };
        if self.plan.rate_per_s.is_some() && wait_ns > 0 {
            // The timeout of `epoll_wait` is in milliseconds. Waiting for the epoll descriptor with
            // `poll` allows a timeout in nanoseconds.
            let waited = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&timeout));
            ignore_interrupt(waited.map(|_| ()))?;
            timeout = Timespec { tv_sec: 0, tv_nsec: 0 };
        }
        ignore_interrupt(epoll::wait(&self.epoll, spare_capacity(events), Some(&timeout)).map(|_| ()))?;
        let now_ns = self.now_ns();
        while let Some(Reverse((due_ns, client))) = self.due.peek().copied() {
            if due_ns > now_ns {
                break;
            }
            self.due.pop();
            self.clients[client].scheduled = false;
            self.list_client(client);
        }
        Ok(())
    }

    fn list(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.open && !connection.listed && connection.in_flight < self.plan.pipeline {
            connection.listed = true;
            self.ready.push(index);
        }
    }

    fn list_client(&mut self, client: usize) {
        for node in 0..self.clients[client].connections.len() {
            if let Some(index) = self.clients[client].connections[node] {
                self.list(index);
            }
        }
    }

    /// Reads replies and counts them.
    fn read(&mut self, index: usize) {
        while self.connections[index].open {
            let connection = &mut self.connections[index];
            let read = rustix::net::recv(&connection.socket, &mut self.buffer[..], RecvFlags::empty());
            let read_bytes = match read {
                Ok((_, 0)) => return self.lose(index, "the server closed the connection"),
                Ok((_, read_bytes)) => read_bytes,
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => continue,
                Err(error) => return self.lose(index, &format!("connection failed: {error}")),
            };
            let now_ns = self.clock.elapsed().as_nanos() as u64;
            self.tally.received_bytes += read_bytes as u64;
            let bytes = &mut self.buffer[..read_bytes];
            let mut link = connection.link.take();
            let opened = match &mut link {
                Some(link) => link.open(bytes),
                None => Ok(&*bytes),
            };
            let bytes = match opened {
                Ok(bytes) => bytes,
                Err(error) => return self.lose(index, &error.to_string()),
            };
            let before = connection.in_flight;
            let received = connection.receive(bytes, now_ns, &self.templates, &mut self.tally, &mut self.redirected);
            connection.link = link;
            self.in_flight -= u64::from(before - connection.in_flight);
            self.last_answer_ns = now_ns;
            if let Err(why) = received {
                return self.lose(index, &why);
            }
            if !self.redirected.is_empty() {
                self.redirect(self.connections[index].client);
            }
            // A short read has emptied the socket. Bytes that arrive later cause a new event.
            if read_bytes < READ_BYTES {
                return;
            }
        }
    }

    fn lose(&mut self, index: usize, why: &str) {
        let connection = &mut self.connections[index];
        connection.open = false;
        connection.out.clear();
        connection.out_sent = 0;
        let in_flight = u64::from(std::mem::take(&mut connection.in_flight));
        self.in_flight -= in_flight;
        let (client, node) = (connection.client, connection.node);
        // The kernel removes a socket from an epoll instance when the socket is closed. This socket
        // stays open until the end of the run, so it is removed here.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        let client = &mut self.clients[client];
        client.connections[node] = None;
        // Without a connection to one of the nodes, a client could send only some of the keys that
        // it draws. So the client stops, and the run counts as failed.
        let redirected = client.stop() + self.redirected.drain(..).len() as u64;
        self.tally.lost(why, in_flight + redirected);
    }

    /// Queues redirected operations for their new nodes.
    fn redirect(&mut self, client: usize) {
        let mut redirected = std::mem::take(&mut self.redirected);
        for (redirection, operation) in redirected.drain(..) {
            if operation.hops > HOPS_MAX {
                self.tally.error(format!("redirected more than {HOPS_MAX} times in a row").as_bytes());
                continue;
            }
            self.tally.redirections += 1;
            let Some(topology) = &mut self.topology else { continue };
            let Some(node) = topology.node(redirection.address) else {
                self.tally.error(b"redirected to too many nodes");
                continue;
            };
            if !redirection.once {
                topology.assign(redirection.slot, node);
            }
            self.enqueue(client, node, operation);
        }
        self.redirected = redirected;
        self.refresh();
    }

    /// Queries all slots after a redirection, at most once in [`REFRESH_NS`]. The query delays this
    /// thread by about a millisecond.
    fn refresh(&mut self) {
        let now_ns = self.now_ns();
        if now_ns < self.next_refresh_ns {
            return;
        }
        self.next_refresh_ns = now_ns + REFRESH_NS;
        if let (Target::Tcp(address), Some(topology)) = (&self.plan.target, &mut self.topology) {
            // During a migration the reply may lack slots. Later redirections add them.
            if let Ok(newer) = Topology::ask(*address, &self.plan.login) {
                topology.update(&newer);
            }
        }
    }

    /// Inserts an operation at the head of a node's queue.
    fn enqueue(&mut self, client: usize, node: usize, operation: Operation) {
        if let Some(index) = self.connection_to(client, node) {
            self.clients[client].queues[node].push_front(operation);
            self.list(index);
        }
    }

    /// Returns the client's connection to a node. Opens a connection if there is none. If the
    /// connection can't be opened, the operation is lost and the client stops, as after a lost
    /// connection.
    fn connection_to(&mut self, client: usize, node: usize) -> Option<usize> {
        let known = self.clients[client].connections.get(node).copied().flatten();
        known.or_else(|| {
            let opened = self.open(client, node);
            if let Err(error) = &opened {
                let redirected = self.clients[client].stop();
                self.tally.lost(&error.to_string(), 1 + redirected);
            }
            opened.ok()
        })
    }

    fn fill_ready(&mut self) {
        while let Some(index) = self.ready.pop() {
            self.connections[index].listed = false;
            if self.connections[index].open {
                self.fill(index);
            }
        }
    }

    /// Fills a connection's pipeline and sends the requests.
    fn fill(&mut self, index: usize) {
        let now_ns = self.now_ns();
        if self.in_flight == 0 {
            self.asked_ns = now_ns;
        }
        while self.connections[index].in_flight < self.plan.pipeline {
            let Some(operation) = self.next(index, now_ns) else { break };
            let connection = &mut self.connections[index];
            let client = &mut self.clients[connection.client];
            if operation.asking {
                connection.out.extend_from_slice(ASKING);
                connection.expect_asking();
            }
            let command = usize::from(operation.command);
            let keys = &mut client.keys[command];
            let next_key = |random: &mut _| keys.draw(random);
            let template = &self.templates[command];
            template.write(&mut connection.out, operation.key, &mut client.random, &self.data, next_key);
            connection.expect(&operation, now_ns);
            self.in_flight += 1;
        }
        let connection = &self.connections[index];
        // If bytes of an earlier send are left, the socket is full. An event then continues the
        // send when the socket has room.
        if !connection.out.is_empty() && connection.out_sent == 0 {
            self.send(index);
        }
    }

    /// Returns the next operation for a connection: from its queue, or drawn by its client.
    /// Operations drawn for other nodes are added to the queues of these nodes.
    fn next(&mut self, index: usize, now_ns: u64) -> Option<Operation> {
        let (client_index, node) = (self.connections[index].client, self.connections[index].node);
        if self.topology.is_none() {
            return self.draw(client_index, now_ns);
        }
        loop {
            let client = &mut self.clients[client_index];
            if let Some(operation) = client.queues[node].pop_front() {
                // The queue of this node now has room for an operation that the client holds for
                // the node.
                let held_here = client.held.as_ref().is_some_and(|(_, held_node)| *held_node == node);
                if held_here && let Some((held, _)) = client.held.take() {
                    client.queues[node].push_back(held);
                    self.list_client(client_index);
                }
                return Some(operation);
            }
            if client.held.is_some() {
                return None;
            }
            let operation = self.draw(client_index, now_ns)?;
            let template = &self.templates[usize::from(operation.command)];
            let slot = template.slot(operation.key, &mut self.scratch);
            let owner = match (&self.topology, slot) {
                (Some(topology), Some(slot)) => topology.node_of(slot),
                _ => node,
            };
            if owner == node {
                return Some(operation);
            }
            let owner_index = self.connection_to(client_index, owner)?;
            let client = &mut self.clients[client_index];
            if client.queues[owner].len() >= QUEUE_MAX {
                client.held = Some((operation, owner));
            } else {
                client.queues[owner].push_back(operation);
            }
            self.list(owner_index);
        }
    }

    fn draw(&mut self, client: usize, now_ns: u64) -> Option<Operation> {
        match self.clients[client].draw(now_ns) {
            Next::Operation(operation) => Some(operation),
            Next::Due(due_ns) => {
                if !std::mem::replace(&mut self.clients[client].scheduled, true) {
                    self.due.push(Reverse((due_ns, client)));
                }
                None
            }
            Next::Nothing => None,
        }
    }

    /// Sends as many bytes as the socket accepts.
    fn send(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if let Err(error) = connection.seal() {
            return self.lose(index, &error.to_string());
        }
        while connection.open && connection.out_sent < connection.outgoing().len() {
            let rest = &connection.outgoing()[connection.out_sent..];
            match rustix::net::send(&connection.socket, rest, SendFlags::NOSIGNAL) {
                Ok(sent_bytes) => {
                    connection.out_sent += sent_bytes;
                    self.tally.sent_bytes += sent_bytes as u64;
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(error) => return self.lose(index, &format!("connection failed: {error}")),
            }
        }
        connection.out_sent = 0;
        connection.forget_sent();
        // On an encrypted connection, requests that were added while earlier bytes were unsent are
        // encrypted and sent only now.
        if connection.link.is_some() && !connection.out.is_empty() {
            self.send(index);
        }
    }
}

pub(super) fn ignore_interrupt(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Err(Errno::INTR) => Ok(()),
        other => Ok(other?),
    }
}
