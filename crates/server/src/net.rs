//! Accepted sockets: their options, their ends, and whether they may stay.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pantala_engine::client::Endpoint;
use socket2::{SockRef, TcpKeepalive};

use crate::config::Settings;

/// Probes that a peer may leave unanswered before the connection counts as dead, as in Redis.
const KEEPALIVE_PROBES: u32 = 3;

/// Sets the options of an accepted socket: no delay of small replies, keepalive as configured.
///
/// # Errors
/// The kernel refuses one of them, as it does when the peer has gone already.
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

/// The peer's end and ours.
///
/// # Errors
/// The peer has gone already: the kernel no longer knows who it was, so nobody may take it for a local one.
pub fn endpoints(socket: &impl AsFd) -> std::io::Result<(Endpoint, Endpoint)> {
    let socket = SockRef::from(socket);
    let local = socket.local_addr()?;
    if local.is_unix() {
        // Only our end has a path; Redis shows it for both.
        let path = local.as_pathname().map(|path| path.display().to_string()).unwrap_or_default();
        return Ok((Endpoint::Unix(path.clone()), Endpoint::Unix(path)));
    }
    let tcp = |address: socket2::SockAddr| {
        address.as_socket().map(Endpoint::Tcp).ok_or(std::io::Error::from(std::io::ErrorKind::AddrNotAvailable))
    };
    Ok((tcp(socket.peer_addr()?)?, tcp(local)?))
}

/// Whether a peer is let in in protected mode: over a Unix socket, or from the one loopback address that each protocol has
/// for it in Redis.
pub fn is_let_in(peer: &Endpoint) -> bool {
    match peer {
        Endpoint::Tcp(address) => {
            let address = address.ip().to_canonical();
            address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
        }
        Endpoint::Unix(_) => true,
    }
}

/// Tells a peer why it can't stay, as far as its socket takes it at once.
pub fn turn_away(socket: &OwnedFd, message: &str) {
    let socket = SockRef::from(socket);
    // Best effort, as in Redis: the connection is closed either way, and nobody waits for a slow peer.
    let _ = socket.send(message.as_bytes());
}
