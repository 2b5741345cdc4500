//! Options and addresses of sockets, and the admission of peers in protected mode.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use pantala_engine::client::Endpoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::config::Settings;
use crate::process::Kind;

/// Number of unanswered probes after which a connection counts as dead, as in Redis.
const KEEPALIVE_PROBES: u32 = 3;

/// Interval at which a connection attempt checks whether to continue.
const CONNECT_STEP: Duration = Duration::from_millis(100);

/// Sets `TCP_NODELAY` and the configured keepalive on an accepted TCP socket. Does nothing to a
/// Unix socket.
///
/// # Errors
/// The kernel rejects an option, for example because the peer has disconnected.
pub fn prepare(socket: &OwnedFd, settings: &Settings) -> std::io::Result<()> {
    let socket = SockRef::from(socket);
    if socket.local_addr()?.is_unix() {
        return Ok(());
    }
    socket.set_tcp_nodelay(true)?;
    if settings.tcp_keepalive_s > 0 {
        let interval_s = (u64::from(settings.tcp_keepalive_s / KEEPALIVE_PROBES)).max(1);
        socket.set_tcp_keepalive(
            &TcpKeepalive::new()
                .with_time(Duration::from_secs(settings.tcp_keepalive_s.into()))
                .with_interval(Duration::from_secs(interval_s))
                .with_retries(KEEPALIVE_PROBES),
        )?;
    }
    Ok(())
}

/// Returns the CPU that has processed the last packet of a connection: the CPU of the network queue
/// that has received the packet. Returns `None` for a Unix socket, or if the CPU is unknown.
pub fn receiving_cpu(socket: &OwnedFd) -> Option<usize> {
    let cpu = SockRef::from(socket).cpu_affinity().ok()?;
    // The kernel returns -1 if the CPU is unknown.
    (cpu <= i32::MAX as usize).then_some(cpu)
}

/// Connects to another server. `source` is the local address to use, or its host name. As in Redis,
/// the kernel chooses the local address if `source` is empty or can't be used. Calls `may_wait` a
/// few times a second, to find out whether to continue.
///
/// # Errors
/// The connection fails or times out, or `may_wait` returns `false`.
pub fn connect(
    to: SocketAddr,
    source: &str,
    timeout: Duration,
    may_wait: impl Fn() -> bool,
) -> std::io::Result<TcpStream> {
    let connect = |socket: &Socket| connect_while(socket, to, timeout, &may_wait);
    let sources = if source.is_empty() { None } else { (source, 0).to_socket_addrs().ok() };
    for source in sources.into_iter().flatten().filter(|source| source.is_ipv4() == to.is_ipv4()) {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        let bound = socket.set_reuse_address(true).and_then(|()| socket.bind(&source.into()));
        match bound.and_then(|()| connect(&socket)) {
            Ok(()) => return Ok(socket.into()),
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Err(error),
            Err(_) => {}
        }
    }
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    connect(&socket)?;
    Ok(socket.into())
}

/// Connects a socket, see [`connect`].
fn connect_while(
    socket: &Socket,
    to: SocketAddr,
    timeout: Duration,
    may_wait: &impl Fn() -> bool,
) -> std::io::Result<()> {
    let started = Instant::now();
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Ok(()) => return socket.set_nonblocking(false),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    loop {
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() || !may_wait() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        let step = Timespec::try_from(left.min(CONNECT_STEP)).map_err(std::io::Error::other)?;
        match poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(&step)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match socket.take_error()? {
        Some(error) => Err(error),
        None => socket.set_nonblocking(false),
    }
}

/// Returns the address of the peer and the address of this server.
///
/// # Errors
/// The peer has disconnected, so its address is unknown. In protected mode, the caller must reject
/// this peer.
pub fn endpoints(socket: &impl AsFd) -> std::io::Result<(Endpoint, Endpoint)> {
    let socket = SockRef::from(socket);
    let local = socket.local_addr()?;
    if local.is_unix() {
        // Only the listening side has a path. Redis shows this path for both sides.
        let path = local.as_pathname().map(|path| path.display().to_string()).unwrap_or_default();
        return Ok((Endpoint::Unix(path.clone()), Endpoint::Unix(path)));
    }
    let tcp = |address: socket2::SockAddr| {
        address.as_socket().map(Endpoint::Tcp).ok_or(std::io::Error::from(std::io::ErrorKind::AddrNotAvailable))
    };
    Ok((tcp(socket.peer_addr()?)?, tcp(local)?))
}

/// Returns whether protected mode admits a peer. As in Redis, it admits peers at Unix sockets,
/// 127.0.0.1 and ::1.
pub fn is_admitted_in_protected_mode(peer: &Endpoint) -> bool {
    match peer {
        Endpoint::Tcp(address) => {
            let address = address.ip().to_canonical();
            address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
        }
        Endpoint::Unix(_) => true,
    }
}

/// Sends an error to a rejected peer with one non-blocking write, which may send only a part of the
/// text. As in Redis, sends nothing to a TLS peer, because that would require a handshake.
pub fn send_rejection(socket: &OwnedFd, kind: Kind, message: &str) {
    if kind == Kind::Tls {
        return;
    }
    let socket = SockRef::from(socket);
    // The result is ignored. As in Redis, the connection is closed even if the text was not sent.
    let _ = socket.send(message.as_bytes());
}
