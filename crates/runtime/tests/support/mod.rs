//! Shared by the tests: an echo server on a loop, pairs of sockets, and random data.

#![allow(dead_code, unused_imports, unused_macros, reason = "each test program uses a part")]

use std::io::{Read, Write};
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pantala_runtime::{ConnId, Doorbell, Event, EventLoop};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Creates, for each named function, one test per backend.
macro_rules! on_both {
    ($($body:ident),+ $(,)?) => {
        mod epoll {
            $(#[test] fn $body() { super::$body::<super::EpollLoop>(); })+
        }
        mod io_uring {
            $(#[test] fn $body() { super::$body::<super::UringLoop>(); })+
        }
    };
}
pub(crate) use on_both;

/// Time limit of an operation. No operation takes longer, even on a busy host.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Polls, and passes each event to `wanted`. Returns after the first poll that has reported an
/// event for which `wanted` returned true.
pub fn poll_until<L: EventLoop>(event_loop: &mut L, mut wanted: impl FnMut(Event) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    loop {
        event_loop.poll(Some(PATIENCE), &mut events).unwrap();
        let mut found = false;
        for event in events.drain(..) {
            found |= wanted(event);
        }
        if found {
            return;
        }
        assert!(Instant::now() < deadline, "nothing came");
    }
}

/// Raises this process's descriptor limit as far as the host allows.
pub fn raise_descriptor_limit() {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
}

/// Returns both ends of a TCP connection over loopback.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (here, _) = listener.accept().unwrap();
    (here, there)
}

/// Makes closing `socket` send a reset.
pub fn reset_on_close(socket: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).unwrap();
}

/// An echo server on a thread of its own. It is stopped when this value is dropped.
pub struct EchoServer<L> {
    address: Option<SocketAddr>,
    doorbell: Doorbell,
    stop: Arc<AtomicBool>,
    accepted: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    backend: PhantomData<fn() -> L>,
}

#[derive(Default)]
struct Echo {
    conn: Option<ConnId>,
    sending: bool,
    sends: u32,
    ended: bool,
    output: Vec<u8>,
}

impl<L: EventLoop> EchoServer<L> {
    pub fn on_tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = Self::on(listener.into());
        server.address = Some(address);
        server
    }

    pub fn on(listener: OwnedFd) -> Self {
        let doorbell = Doorbell::new().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let accepted = Arc::new(AtomicUsize::new(0));
        let (bell, flag, count) = (doorbell.clone(), Arc::clone(&stop), Arc::clone(&accepted));
        let thread = thread::spawn(move || {
            let mut event_loop = L::new(bell).unwrap();
            event_loop.add_listener(listener).unwrap();
            serve(&mut event_loop, &flag, &count);
        });
        EchoServer { address: None, doorbell, stop, accepted, thread: Some(thread), backend: PhantomData }
    }

    pub fn address(&self) -> SocketAddr {
        self.address.unwrap()
    }

    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl<L> Drop for EchoServer<L> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.doorbell.ring();
        let result = self.thread.take().unwrap().join();
        assert!(result.is_ok() || thread::panicking(), "the echo server panicked");
    }
}

fn serve<L: EventLoop>(event_loop: &mut L, stop: &AtomicBool, accepted: &AtomicUsize) {
    let mut echoes: Vec<Echo> = Vec::new();
    let mut events = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        event_loop.poll(None, &mut events).unwrap();
        let mut touched = Vec::new();
        for event in events.drain(..) {
            match event {
                Event::Accepted { socket, .. } => {
                    let conn = event_loop.add(socket).unwrap();
                    accepted.fetch_add(1, Ordering::SeqCst);
                    if echoes.len() <= conn.index() {
                        echoes.resize_with(conn.index() + 1, Echo::default);
                    }
                    echoes[conn.index()] = Echo { conn: Some(conn), ..Echo::default() };
                }
                Event::Data { conn, chunk } => {
                    let echo = &mut echoes[conn.index()];
                    assert_eq!(echo.conn, Some(conn), "data of another connection");
                    echo.output.extend_from_slice(event_loop.bytes(&chunk));
                    event_loop.release(chunk);
                    touched.push(conn);
                }
                Event::Eof { conn } => {
                    echoes[conn.index()].ended = true;
                    touched.push(conn);
                }
                Event::Sent { conn, .. } => {
                    echoes[conn.index()].sending = false;
                    touched.push(conn);
                }
                Event::Failed { conn, .. } => event_loop.close(conn),
                Event::Woken => {}
            }
        }
        for conn in touched {
            let echo = &mut echoes[conn.index()];
            if echo.sending {
                event_loop.expect_sent(conn);
                continue;
            }
            let output = std::mem::take(&mut echo.output);
            if !output.is_empty() {
                // Quiet sends and sends at once alternate.
                echo.sending = true;
                echo.sends += 1;
                if echo.sends.is_multiple_of(2) {
                    event_loop.send_quiet(conn, output);
                } else if let Some(buffer) = event_loop.send_at_once(conn, output) {
                    echo.output = buffer;
                    echo.sending = false;
                }
            }
            match (echo.ended, echo.sending) {
                (true, true) => event_loop.expect_sent(conn),
                (true, false) => event_loop.close(conn),
                (false, _) => {}
            }
        }
    }
}

/// Random pieces of data, of random length. A failed test shows the seed.
pub struct Pieces {
    seed: u64,
}

impl Pieces {
    pub fn from_entropy() -> Self {
        Pieces { seed: rand::random() }
    }

    /// Sends pieces, each in parts of random size, and compares the echo of each piece.
    pub fn echo_through<S: Read + Write>(self, stream: &mut S) {
        println!("seed {}", self.seed);
        let mut random = StdRng::seed_from_u64(self.seed);
        for _ in 0..300 {
            // Most pieces are small. Some are larger than a receive buffer, but smaller than the
            // sockets' own buffers.
            let len_bytes =
                if random.random_bool(0.1) { random.random_range(1..=150_000) } else { random.random_range(1..=3000) };
            let mut piece = vec![0; len_bytes];
            random.fill(&mut piece[..]);
            // Parts of one byte would take too long for a large piece.
            let part_bytes = random.random_range(len_bytes.div_ceil(50)..=len_bytes);
            for part in piece.chunks(part_bytes) {
                stream.write_all(part).unwrap();
            }
            let mut answer = vec![0; len_bytes];
            stream.read_exact(&mut answer).unwrap();
            assert!(answer == piece, "another echo, seed {}", self.seed);
        }
    }
}

/// Access to the remaining descriptors of the process.
pub struct Spare;

impl Spare {
    pub fn take_all(&self) -> Vec<OwnedFd> {
        let mut hoard = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            hoard.push(file.into());
        }
        hoard
    }
}

/// Runs `body` in a child process with few descriptors. The child runs this test program with only
/// the calling test.
pub fn with_few_descriptors(backend: &str, body: impl FnOnce(Spare)) {
    const CHILD: &str = "PANTALA_TEST_FEW_DESCRIPTORS";
    const DESCRIPTORS: u64 = 64;
    if std::env::var_os(CHILD).is_some() {
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = Some(DESCRIPTORS);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        body(Spare);
        return;
    }
    let module = if backend.contains("Uring") { "io_uring" } else { "epoll" };
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .arg("--exact")
        .arg(format!("{module}::survives_running_out_of_descriptors"))
        .env(CHILD, "1")
        .status()
        .unwrap();
    assert!(status.success(), "the child failed: {status}");
}
