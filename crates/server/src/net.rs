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
pub fn endpoints(socket: &impl AsFd) -> (Endpoint, Endpoint) {
    let socket = SockRef::from(socket);
    let local = socket.local_addr().ok();
    let path = local.as_ref().and_then(|address| address.as_pathname()).map(|path| path.display().to_string());
    let of = |address: Option<socket2::SockAddr>| match address.and_then(|address| address.as_socket()) {
        Some(address) => Endpoint::Tcp(address),
        // Of a Unix socket only our end has a path; Redis shows it for both.
        None => Endpoint::Unix(path.clone().unwrap_or_default()),
    };
    (of(socket.peer_addr().ok()), of(local))
}

/// Whether the peer is let in in protected mode: a Unix socket, or the one loopback address that each protocol has for it in Redis.
pub fn is_local(socket: &impl AsFd) -> bool {
    match SockRef::from(socket).peer_addr().ok().and_then(|address| address.as_socket()) {
        Some(address) => {
            let address = address.ip().to_canonical();
            address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
        }
        None => true,
    }
}

/// Tells a peer why it can't stay, as far as its socket takes it at once.
pub fn turn_away(socket: &OwnedFd, message: &str) {
    let socket = SockRef::from(socket);
    // Best effort, as in Redis: the connection is closed either way, and nobody waits for a slow peer.
    let _ = socket.send(message.as_bytes());
}
