//! Hand-overs: many clients block in BLPOP on one list, and one further client pushes elements.
//!
//! The pushing client sends a batch in one write, with one RPUSH for each element. The next batch
//! follows when each element has arrived at one of the blocked clients. A client that receives an
//! element blocks again immediately. A hand-over thus consists of a push, the delivery to the
//! client that has been blocked longest, and the next BLPOP of that client.
//!
//! Elements are numbers, and each number is pushed once. The run fails if an element is lost or
//! arrives twice.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use pantala_resp::value::{Value, parse_reply};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::Socket;

use super::control::Control;
use super::driver::{Driven, PUBLISH_NS, ignore_interrupt};
use super::plan::{Amount, Plan};
use super::shared::Shared;
use super::tally::Tally;

/// The list on which the blocking clients wait.
const LIST: &str = "queue";
const WAIT: &[u8] = b"*3\r\n$5\r\nBLPOP\r\n$5\r\nqueue\r\n$1\r\n0\r\n";
/// Maximum number of bytes that one call reads.
const READ_BYTES: usize = 16 * 1024;
/// Maximum number of events that one call returns.
const EVENTS: usize = 256;
/// While nothing arrives, the clock and the stop flag are checked at this interval.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

pub(super) struct HandOver<'a> {
    plan: &'a Plan,
    shared: &'a Shared,
    clock: Instant,
    epoll: OwnedFd,
    /// The blocking clients, followed by the pushing client.
    clients: Vec<Client>,
    tally: Tally,
    /// The next element to push.
    next: u64,
    last_answer_ns: u64,
    next_publish_ns: u64,
    room: Vec<u8>,
}

struct Client {
    socket: Socket,
    /// The start of a reply that has not arrived completely.
    received: Vec<u8>,
}

/// The elements of the current batch.
struct Batch {
    first: u64,
    missing: Vec<bool>,
    missing_count: usize,
    /// Number of RPUSHes without a reply so far.
    unanswered: usize,
    since_ns: u64,
}

/// The reason why a run ends early.
enum End {
    /// The stop flag was set.
    Stopped,
    Trouble(String),
}

type Step = Result<(), End>;

fn trouble<T>(why: impl Into<String>) -> Result<T, End> {
    Err(End::Trouble(why.into()))
}

impl<'a> HandOver<'a> {
    /// Connects all clients of the run. When this returns, the blocking clients have sent BLPOP.
    pub(super) fn connect(plan: &'a Plan, shared: &'a Shared, clock: Instant) -> io::Result<Self> {
        let mut hand_over = Self {
            plan,
            shared,
            clock,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            clients: Vec::new(),
            tally: Tally::new(plan.commands.len()),
            next: 0,
            last_answer_ns: 0,
            // No counts are published before the measured time: the first elements only check that
            // the clients are blocked.
            next_publish_ns: u64::MAX,
            room: vec![0; READ_BYTES],
        };
        let waiting = plan.clients as usize;
        for index in 0..=waiting {
            let socket = Control::open(&plan.target, &plan.login)?.into_socket()?;
            epoll::add(&hand_over.epoll, &socket, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
            hand_over.clients.push(Client { socket, received: Vec::new() });
        }
        // That a client is blocked shows only when it receives an element. Each client therefore
        // first receives an element that is not measured.
        if let Err(End::Trouble(why)) = hand_over.once_around() {
            return Err(io::Error::other(why));
        }
        hand_over.tally = Tally::new(plan.commands.len());
        Ok(hand_over)
    }

    /// Blocks all clients except the pushing one. Then hands over at least one element per blocked
    /// client.
    fn once_around(&mut self) -> Step {
        let waiting = self.clients.len() - 1;
        (0..waiting).try_for_each(|index| self.send(index, WAIT))?;
        (0..waiting.div_ceil(self.plan.pipeline as usize)).try_for_each(|_| self.batch())
    }

    /// Hands over elements until the time of the run ends.
    pub(super) fn run(mut self) -> io::Result<Driven> {
        let Amount::Time(time) = self.plan.amount else { return Err(io::Error::other("hand-overs last for a time")) };
        let start_ns = self.now_ns();
        self.next_publish_ns = start_ns + PUBLISH_NS;
        while self.now_ns() < start_ns + time.as_nanos() as u64 {
            match self.batch() {
                Ok(()) => {}
                Err(End::Stopped) => break,
                Err(End::Trouble(why)) => {
                    self.tally.error(why.as_bytes());
                    break;
                }
            }
        }
        self.shared.publish(&mut self.tally);
        Ok(Driven {
            tally: self.tally,
            elapsed_ns: self.last_answer_ns.max(start_ns + 1) - start_ns,
            interrupted: self.shared.stop.load(Ordering::Relaxed),
            sockets: self.clients.into_iter().map(|client| client.socket).collect(),
        })
    }

    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Pushes a batch, and checks that each of its elements arrives exactly once.
    fn batch(&mut self) -> Step {
        let count = self.plan.pipeline as usize;
        let mut batch = Batch {
            first: self.next,
            missing: vec![true; count],
            missing_count: count,
            unanswered: count,
            since_ns: self.now_ns(),
        };
        let pushes: String = (self.next..self.next + count as u64).map(push).collect();
        self.next += count as u64;
        self.last_answer_ns = batch.since_ns;
        self.send(self.clients.len() - 1, pushes.as_bytes())?;
        let mut events = Vec::with_capacity(EVENTS);
        while batch.missing_count + batch.unanswered > 0 {
            self.look()?;
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&LOOK)).map(|_| ());
            ignore_interrupt(waited).or_else(|error| trouble(error.to_string()))?;
            for event in events.drain(..) {
                self.read(event.data.u64() as usize, &mut batch)?;
            }
        }
        Ok(())
    }

    /// Checks the stop flag and the stall limit. Publishes the counts if this is due.
    fn look(&mut self) -> Step {
        if self.shared.stop.load(Ordering::Relaxed) {
            return Err(End::Stopped);
        }
        let now_ns = self.now_ns();
        if now_ns - self.last_answer_ns > self.plan.stall_max.as_nanos() as u64 {
            return trouble("no reply for too long");
        }
        if now_ns >= self.next_publish_ns {
            self.shared.publish(&mut self.tally);
            self.next_publish_ns = now_ns + PUBLISH_NS;
        }
        Ok(())
    }

    fn read(&mut self, index: usize, batch: &mut Batch) -> Step {
        let pushes = index + 1 == self.clients.len();
        let client = &mut self.clients[index];
        let read_bytes = match rustix::net::recv(&client.socket, &mut self.room[..], RecvFlags::empty()) {
            Ok((_, 0)) => return trouble("the server closed the connection"),
            Ok((_, read_bytes)) => read_bytes,
            // The next poll reports the socket again if it has bytes to read.
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return trouble(format!("connection failed: {error}")),
        };
        client.received.extend_from_slice(&self.room[..read_bytes]);
        let now_ns = self.clock.elapsed().as_nanos() as u64;
        self.last_answer_ns = now_ns;
        self.tally.received_bytes += read_bytes as u64;
        let mut arrived = 0;
        while let Some((reply, len_bytes)) =
            parse_reply(&client.received).or_else(|error| trouble(format!("not a reply: {error}")))?
        {
            client.received.drain(..len_bytes);
            if pushes {
                batch.answer(&reply)?;
            } else {
                batch.arrive(&reply)?;
                self.tally.record(0, batch.since_ns, now_ns);
                arrived += 1;
            }
        }
        self.tally.record_run(now_ns);
        match arrived {
            0 => Ok(()),
            1 => self.send(index, WAIT),
            _ => trouble("two replies to one BLPOP"),
        }
    }

    /// Sends all of `bytes`. The socket has room, because all earlier bytes have been sent.
    fn send(&mut self, index: usize, bytes: &[u8]) -> Step {
        loop {
            match rustix::net::send(&self.clients[index].socket, bytes, SendFlags::NOSIGNAL) {
                Ok(sent_bytes) if sent_bytes == bytes.len() => {
                    self.tally.sent_bytes += sent_bytes as u64;
                    return Ok(());
                }
                Ok(_) => return trouble("a connection has no room for the requests of a batch"),
                Err(Errno::INTR) => {}
                Err(error) => return trouble(format!("connection failed: {error}")),
            }
        }
    }
}

impl Batch {
    /// Handles the reply to an RPUSH.
    fn answer(&mut self, reply: &Value) -> Step {
        match reply {
            Value::Integer(_) if self.unanswered > 0 => {
                self.unanswered -= 1;
                Ok(())
            }
            _ => trouble(format!("unexpected reply to RPUSH: {reply:?}")),
        }
    }

    /// Handles the reply to a BLPOP.
    fn arrive(&mut self, reply: &Value) -> Step {
        let element = match reply {
            Value::Array(pair) => match pair.as_slice() {
                [Value::Bulk(list), Value::Bulk(element)] if list == LIST.as_bytes() => Some(element),
                _ => None,
            },
            _ => None,
        };
        let number = element.and_then(|element| std::str::from_utf8(element).ok()?.parse::<u64>().ok());
        let Some(number) = number else { return trouble(format!("unexpected reply to BLPOP: {reply:?}")) };
        let at = number.checked_sub(self.first).map_or(usize::MAX, |at| at as usize);
        match self.missing.get_mut(at) {
            Some(missing) if *missing => *missing = false,
            _ => return trouble(format!("element {number} arrived, which was not in flight")),
        }
        self.missing_count -= 1;
        Ok(())
    }
}

/// Returns the request that pushes an element.
fn push(element: u64) -> String {
    let digits = element.to_string();
    format!("*3\r\n$5\r\nRPUSH\r\n${}\r\n{LIST}\r\n${}\r\n{digits}\r\n", LIST.len(), digits.len())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::{BufRead, BufReader, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::thread;
    use std::time::Duration;

    use super::super::control::Target;
    use super::super::outcome::Outcome;
    use super::super::outcome::tests::plan as base;
    use super::*;

    /// The element that a faulty server mishandles. It is pushed after the elements that `connect`
    /// pushes.
    const WRONG: u64 = 100;

    #[derive(Clone, Copy, PartialEq)]
    enum Server {
        Sound,
        /// Delivers [`WRONG`] to two clients.
        Twice,
        /// Drops [`WRONG`].
        Loses,
        /// Delivers an element of another list instead of [`WRONG`].
        Other,
        Errs,
    }

    /// The blocked clients and the elements of one list.
    #[derive(Default)]
    struct List {
        waiting: VecDeque<TcpStream>,
        elements: VecDeque<String>,
    }

    impl List {
        /// Delivers elements to blocked clients while there are both.
        fn serve(&mut self, server: Server) {
            while let Some(element) = self.elements.front() {
                let times = match server {
                    Server::Twice if *element == WRONG.to_string() => 2,
                    Server::Loses if *element == WRONG.to_string() => 0,
                    _ => 1,
                };
                if self.waiting.len() < times {
                    break;
                }
                let element = self.elements.pop_front().unwrap();
                let list = if server == Server::Other && element == WRONG.to_string() { "eueuq" } else { LIST };
                for _ in 0..times {
                    let mut client = self.waiting.pop_front().unwrap();
                    let reply = format!("*2\r\n$5\r\n{list}\r\n${}\r\n{element}\r\n", element.len());
                    // The reply is written in two parts. An error is ignored, because the client
                    // may have disconnected.
                    let _ = client
                        .write_all(&reply.as_bytes()[..9])
                        .and_then(|()| client.write_all(&reply.as_bytes()[9..]));
                }
            }
        }
    }

    fn start(server: Server) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let list = Arc::new(Mutex::new(List::default()));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let list = Arc::clone(&list);
                thread::spawn(move || serve(stream.unwrap(), &list, server));
            }
        });
        address
    }

    fn serve(mut stream: TcpStream, list: &Mutex<List>, server: Server) {
        stream.set_nodelay(true).unwrap();
        let mut requests = BufReader::new(stream.try_clone().unwrap());
        while let Some(words) = request(&mut requests) {
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            if words[0] == "BLPOP" {
                list.waiting.push_back(stream.try_clone().unwrap());
            } else {
                let reply =
                    if server == Server::Errs && words[2] == WRONG.to_string() { "-ERR no\r\n" } else { ":1\r\n" };
                stream.write_all(reply.as_bytes()).unwrap();
                list.elements.push_back(words[2].clone());
            }
            list.serve(server);
        }
    }

    fn request(requests: &mut impl BufRead) -> Option<Vec<String>> {
        let number = |requests: &mut dyn BufRead| {
            let mut line = String::new();
            requests.read_line(&mut line).ok()?;
            line.get(1..)?.trim_end().parse::<usize>().ok()
        };
        let mut words = Vec::new();
        for _ in 0..number(requests)? {
            let mut word = vec![0; number(requests)? + 2];
            requests.read_exact(&mut word).ok()?;
            words.push(String::from_utf8_lossy(&word[..word.len() - 2]).into_owned());
        }
        Some(words)
    }

    fn run(server: Server, clients: u32, pipeline: u32) -> Outcome {
        let mut plan = base(&["BLPOP"]);
        plan.target = Target::Tcp(start(server));
        (plan.hand_over, plan.clients, plan.pipeline) = (true, clients, pipeline);
        plan.amount = Amount::Time(Duration::from_millis(500));
        super::super::run(&plan, &Arc::new(AtomicBool::new(false)), &mut ()).unwrap()
    }

    #[test]
    fn elements_arrive_once_each() {
        for (clients, pipeline) in [(20, 8), (20, 1), (1, 1), (3, 10)] {
            let outcome = run(Server::Sound, clients, pipeline);
            assert_eq!(outcome.trouble(), None, "{clients} {pipeline}");
            assert!(
                outcome.operations > 0 && outcome.operations.is_multiple_of(u64::from(pipeline)),
                "{}",
                outcome.operations
            );
            assert_eq!(outcome.commands[0].operations, outcome.operations);
            assert!(outcome.latency.max_us > 0.0 && outcome.sent_bytes > 0 && outcome.received_bytes > 0);
        }
    }

    #[test]
    fn faults_of_the_server_are_reported() {
        for (server, expected) in [
            (Server::Twice, "element 100 arrived, which was not in flight"),
            (Server::Loses, "no reply for too long"),
            (Server::Other, "unexpected reply to BLPOP: Array"),
            (Server::Errs, "unexpected reply to RPUSH: Error"),
        ] {
            let trouble = run(server, 20, 8).trouble().unwrap();
            assert!(trouble.starts_with("1 error replies") && trouble.contains(expected), "{trouble}");
        }
    }
}
