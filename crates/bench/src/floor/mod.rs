//! The floor responder: a server with sockets, a parser and replies, but without a store. Its cost
//! is the minimum cost of any server.

mod responder;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use pantala_runtime::{Backend, Choice, Doorbell, EpollLoop, EventLoop, UringLoop, choose};
use rustix::time::{ClockId, clock_gettime};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use socket2::{Domain, Protocol, Socket, Type};

use responder::Responder;

/// Length of the listen backlog.
const BACKLOG: i32 = 511;
/// Maximum size of the fixed reply, in bytes.
const REPLY_BYTES_MAX: u64 = 512 << 20;
/// Maximum number of threads.
const THREADS_MAX: u64 = 1024;

/// Options of the floor responder.
#[derive(Args)]
pub(crate) struct Options {
    /// TCP port on 127.0.0.1
    #[arg(long)]
    port: u16,
    /// Event loop: auto, io_uring or epoll
    #[arg(long, default_value = "auto")]
    io_backend: Choice,
    /// Size of the value in the reply to GET, bytes
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(0..=REPLY_BYTES_MAX))]
    reply_size: u64,
    /// Number of event loops, each on its own thread
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=THREADS_MAX))]
    threads: u64,
}

struct Shared {
    stop: AtomicBool,
    commands: AtomicU64,
}

pub(crate) fn run(options: &Options) -> io::Result<()> {
    let (backend, reason) = choose(options.io_backend)?;
    match backend {
        Backend::IoUring => serve::<UringLoop>(options, backend, &reason),
        Backend::Epoll => serve::<EpollLoop>(options, backend, &reason),
    }
}

fn serve<L: EventLoop>(options: &Options, backend: Backend, reason: &str) -> io::Result<()> {
    let shared = Arc::new(Shared { stop: AtomicBool::new(false), commands: AtomicU64::new(0) });
    // The handlers must be installed before the threads start to listen. A signal may arrive as
    // soon as the responder accepts connections, and must not end the process before the results
    // are printed.
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let mut threads = Vec::new();
    let mut doorbells = Vec::new();
    for _ in 0..options.threads {
        let doorbell = Doorbell::new()?;
        doorbells.push(doorbell.clone());
        let listener = listen(options.port)?;
        let shared = Arc::clone(&shared);
        let reply_bytes = options.reply_size as usize;
        threads.push(thread::spawn(move || -> io::Result<()> {
            let mut event_loop = L::new(doorbell)?;
            event_loop.add_listener(listener)?;
            let mut responder = Responder::new(event_loop, reply_bytes);
            let result = responder.run(&shared.stop);
            shared.commands.fetch_add(responder.commands(), Ordering::Relaxed);
            result
        }));
    }
    println!("floor on 127.0.0.1:{}, {} thread(s), {} ({reason})", options.port, options.threads, backend);
    signals.forever().next();
    shared.stop.store(true, Ordering::SeqCst);
    for doorbell in &doorbells {
        doorbell.ring();
    }
    for thread in threads {
        thread.join().map_err(|_| io::Error::other("a loop panicked"))??;
    }
    report(shared.commands.load(Ordering::Relaxed));
    Ok(())
}

fn report(commands: u64) {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let cpu = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
    println!(
        "{commands} commands, {:.3} s of CPU, {:.3} us of CPU per command",
        cpu.as_secs_f64(),
        cpu.as_secs_f64() * 1e6 / commands.max(1) as f64
    );
}

/// Returns the listener of one thread. The kernel distributes connections over the listeners of all
/// threads.
fn listen(port: u16) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_tcp_nodelay(true)?; // inherited by accepted sockets
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}
