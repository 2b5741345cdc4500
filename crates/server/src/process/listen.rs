//! The listening sockets: opens them at startup, and replaces them when the settings change.

use crate::config::Settings;
use crate::config::host::reason;
use crate::process::{Encryption, HandshakeQueue};
use rustix::fs::Mode;
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs::{Metadata, Permissions};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A non-blocking listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    /// The socket's address: `address:port`, or the path of a Unix socket.
    pub address: String,
    /// The kind of connections that the socket accepts.
    pub kind: Kind,
}

/// The kind of connections that a listening socket accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP connections in plain text.
    Tcp,
    /// TCP connections with TLS.
    Tls,
    /// Connections to a Unix socket.
    Unix,
}

impl Kind {
    /// Returns the TCP port for this kind, or 0 if there is none.
    fn port(self, settings: &Settings) -> u16 {
        match self {
            Kind::Tcp => settings.port,
            Kind::Tls => settings.tls.port,
            Kind::Unix => 0,
        }
    }
}

impl Listener {
    /// Shuts down the socket and all its copies. Another socket can then use the address at once,
    /// even while copies are still open.
    fn shut_down(&self) {
        // Can't fail: the socket is listening.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The server's listening sockets, and the state that encrypted connections share. The worker that
/// accepts connections has copies of the sockets.
pub struct Listening {
    listeners: Mutex<Vec<Listener>>,
    generation: AtomicU64,
    /// Locked only while the reference is copied or replaced.
    encryption: Mutex<Option<Arc<Encryption>>>,
    /// TLS handshakes that wait for a thread.
    pub handshakes: HandshakeQueue,
}

impl Listening {
    /// Creates the set from the sockets that [`listen`] has opened.
    pub fn new(listeners: Vec<Listener>) -> Self {
        Self {
            listeners: Mutex::new(listeners),
            generation: AtomicU64::new(0),
            encryption: Mutex::new(None),
            handshakes: HandshakeQueue::default(),
        }
    }

    /// Returns how often the sockets were replaced. The caller must read this number before it
    /// calls [`Self::copies`], so that it doesn't miss a replacement.
    pub fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Returns copies of all sockets, each with its kind.
    ///
    /// # Errors
    ///
    /// The process can't open more file descriptors.
    pub fn copies(&self) -> io::Result<Vec<(OwnedFd, Kind)>> {
        self.listeners().iter().map(|listener| Ok((listener.socket.try_clone()?, listener.kind))).collect()
    }

    /// Listens on the addresses of `new` instead of those of `old`. If the port of a kind changes,
    /// the new sockets are opened before the old ones are closed. If only the addresses change, the
    /// old sockets are closed first, because the old and the new addresses may overlap.
    ///
    /// # Errors
    ///
    /// Returns the directive that can't be applied, and Redis's error text. The server listens on
    /// the old addresses again, if they are still available.
    pub fn change(&self, old: &Settings, new: &Settings) -> Result<(), (&'static str, &'static str)> {
        let mut listeners = self.listeners();
        let is_moved = |kind: &Kind| kind.port(old) != kind.port(new);
        let kinds: Vec<Kind> =
            [Kind::Tcp, Kind::Tls].into_iter().filter(|kind| is_moved(kind) || old.bind != new.bind).collect();
        let closed: Vec<Kind> = kinds.iter().copied().filter(|kind| !is_moved(kind)).collect();
        listeners.iter().filter(|listener| closed.contains(&listener.kind)).for_each(Listener::shut_down);
        let open = |kind: &Kind| {
            listen_tcp(new, *kind).map_err(|_| match kind {
                kind if !is_moved(kind) => ("bind", "Failed to bind to specified addresses."),
                Kind::Tls => ("tls-port", "Unable to listen on this port. Check server logs."),
                _ => ("port", "Unable to listen on this port. Check server logs."),
            })
        };
        let (replaced, opened, answer) = match kinds.iter().map(open).collect::<Result<Vec<_>, _>>() {
            Ok(opened) => (&kinds, opened, Ok(())),
            Err(refusal) if closed.is_empty() => return Err(refusal),
            Err(refusal) => {
                let restored = closed.iter().map(|kind| listen_tcp(old, *kind).unwrap_or_default()).collect();
                (&closed, restored, Err(refusal))
            }
        };
        let (before, kept): (Vec<_>, Vec<_>) =
            listeners.drain(..).partition(|listener| replaced.contains(&listener.kind));
        before.iter().for_each(Listener::shut_down);
        listeners.extend(opened.into_iter().flatten());
        listeners.extend(kept);
        self.generation.fetch_add(1, Release);
        answer
    }

    /// Returns the state for new encrypted connections. Returns `None` if neither `tls-port` nor
    /// `tls-replication` is set.
    pub fn encryption(&self) -> Option<Arc<Encryption>> {
        self.encryption.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the state for new encrypted connections.
    pub fn set_encryption(&self, encryption: Option<Arc<Encryption>>) {
        *self.encryption.lock().unwrap_or_else(PoisonError::into_inner) = encryption;
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Listener>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens all sockets of `settings`. Skips two kinds of addresses: optional addresses (marked by
/// `-`) that the host doesn't have, and addresses of a protocol that the host doesn't support.
///
/// # Errors
///
/// An address is unavailable, or no address is configured. Returns the text to log. For a TCP
/// address, the reason was already logged.
pub fn listen(settings: &Settings) -> Result<Vec<Listener>, String> {
    warn_backlog(settings.tcp_backlog);
    let mut listeners = listen_tcp(settings, Kind::Tcp)?;
    listeners.extend(listen_tcp(settings, Kind::Tls)?);
    if let Some(path) = &settings.unixsocket {
        let socket = open_unix(path, settings).map_err(|wrong| format!("Failed opening Unix socket: {wrong}"))?;
        listeners.push(Listener { socket, address: path.display().to_string(), kind: Kind::Unix });
    }
    if listeners.is_empty() {
        return Err("Configured to not listen anywhere, exiting.".into());
    }
    Ok(listeners)
}

/// Opens the TCP sockets of one kind. Opens none if the port of this kind is 0.
///
/// # Errors
///
/// An address is unavailable.
pub fn listen_tcp(settings: &Settings, kind: Kind) -> Result<Vec<Listener>, String> {
    let port = kind.port(settings);
    let mut listeners = Vec::new();
    if port == 0 {
        return Ok(listeners);
    }
    for spelled in &settings.bind {
        let (name, is_optional) = match spelled.strip_prefix('-') {
            Some(name) => (name, true),
            None => (spelled.as_str(), false),
        };
        match open_tcp(name, port, settings.tcp_backlog) {
            Ok(socket) => listeners.push(Listener { socket, address: format!("{name}:{port}"), kind }),
            Err((wrong, code)) => {
                tracing::warn!("Warning: Could not create server TCP listening socket {name}:{port}: {wrong}");
                if !(is_optional && code == Some(Errno::ADDRNOTAVAIL) || code.is_some_and(is_unsupported)) {
                    return Err(format!("Failed listening on port {port} (TCP), aborting."));
                }
            }
        }
    }
    Ok(listeners)
}

/// The text of an error, and the system's error number if there is one.
type OpenError = (String, Option<Errno>);

fn step(name: &'static str) -> impl Fn(io::Error) -> OpenError {
    move |error| (format!("{name}: {}", reason(&error)), Errno::from_io_error(&error))
}

/// Returns whether the error means that the host doesn't support the protocol. The address is then
/// skipped even if it isn't optional.
fn is_unsupported(code: Errno) -> bool {
    matches!(
        code,
        Errno::NOPROTOOPT | Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT | Errno::PFNOSUPPORT | Errno::AFNOSUPPORT
    )
}

/// Listens on the first address of `name` that is available.
fn open_tcp(name: &str, port: u16, backlog: i32) -> Result<OwnedFd, OpenError> {
    let addresses = resolve(name, port)?;
    let mut failure = ("no address".to_string(), None);
    for address in addresses {
        match open_address(address, backlog) {
            Ok(socket) => return Ok(socket),
            Err(wrong) => failure = wrong,
        }
    }
    Err(failure)
}

/// Resolves `name` as Redis does: to IPv6 addresses if it has a colon, otherwise to IPv4 addresses.
fn resolve(name: &str, port: u16) -> Result<Vec<SocketAddr>, OpenError> {
    let is_v6 = name.contains(':');
    let host = match name {
        "*" => "0.0.0.0",
        "::*" => "::",
        name => name,
    };
    let found = (host, port).to_socket_addrs().map_err(|error| {
        let text = reason(&error);
        let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
        (text.to_string(), None)
    })?;
    Ok(found.filter(|address| address.is_ipv6() == is_v6).collect())
}

fn open_address(address: SocketAddr, backlog: i32) -> Result<OwnedFd, OpenError> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(step("socket"))?;
    if address.is_ipv6() {
        // By default, the socket would also listen on the IPv4 port. The addresses `*` and `::*`
        // would then collide.
        socket.set_only_v6(true).map_err(step("setsockopt IPV6_V6ONLY"))?;
    }
    socket.set_reuse_address(true).map_err(step("setsockopt SO_REUSEADDR"))?;
    start(socket, &address.into(), backlog)
}

/// Binds a socket and listens on it.
fn start(socket: Socket, address: &SockAddr, backlog: i32) -> Result<OwnedFd, OpenError> {
    socket.bind(address).map_err(step("bind"))?;
    listen_on(socket, backlog)
}

fn listen_on(socket: Socket, backlog: i32) -> Result<OwnedFd, OpenError> {
    socket.listen(backlog).map_err(step("listen"))?;
    socket.set_nonblocking(true).map_err(step("fcntl"))?;
    Ok(socket.into())
}

fn open_unix(path: &Path, settings: &Settings) -> Result<OwnedFd, String> {
    // Removes a socket that an earlier process may have left, and an empty file, with which some
    // test libraries reserve the path. Other files are kept. Redis would remove any file.
    let is_unused = |data: Metadata| data.file_type().is_socket() || data.is_file() && data.len() == 0;
    if std::fs::symlink_metadata(path).is_ok_and(is_unused) {
        let _ = std::fs::remove_file(path);
    }
    let address = SockAddr::unix(path).map_err(|error| format!("bind: {}", reason(&error)))?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)
        .map_err(|error| format!("creating socket: {}", reason(&error)))?;
    let mode = settings.unixsocketperm;
    if mode != 0 {
        // Linux creates the file with the socket's mode, minus the umask. So the file has at no
        // time more permissions than `unixsocketperm`.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))
            .map_err(|error| format!("chmod: {}", reason(&error.into())))?;
    }
    socket.bind(&address).map_err(|error| format!("bind: {}", reason(&error)))?;
    // Adds the permissions that the umask has removed. Clients can't connect yet.
    if mode != 0 {
        let permissions = Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(|error| format!("chmod: {}", reason(&error)))?;
    }
    listen_on(socket, settings.tcp_backlog).map_err(|(wrong, _)| wrong)
}

/// Removes the file of the Unix socket at exit.
pub fn remove_unix_socket(settings: &Settings) {
    if let Some(path) = &settings.unixsocket {
        tracing::info!("Removing the unix socket file.");
        if let Err(error) = std::fs::remove_file(path) {
            tracing::warn!("Error removing the unix socket file: {}", reason(&error));
        }
    }
}

/// Warns if Linux will silently truncate the backlog.
fn warn_backlog(backlog: i32) {
    const PATH: &str = "/proc/sys/net/core/somaxconn";
    let allowed = std::fs::read_to_string(PATH).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(allowed) = allowed.filter(|allowed| (1..backlog).contains(allowed)) {
        tracing::warn!(
            "WARNING: The TCP backlog setting of {backlog} cannot be enforced because {PATH} is set to the lower value of {allowed}."
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::values::Values;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn settings(port: u16, bind: &[&str]) -> Settings {
        let mut settings = Settings::from_values(&Values::new());
        settings.port = port;
        settings.bind = bind.iter().map(|name| name.to_string()).collect();
        settings
    }

    /// Returns a port that was free a moment ago.
    fn free_port() -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.local_addr().expect("its address").port()
    }

    /// Listens on a free port. Tries several, because another test may take a port meanwhile.
    fn listening(bind: &[&str]) -> (u16, Vec<Listener>) {
        let attempt = || {
            let port = free_port();
            Some((port, listen(&settings(port, bind)).ok()?))
        };
        (0..20).find_map(|_| attempt()).expect("listening")
    }

    #[test]
    fn tcp_is_opened_and_a_port_in_use_is_rejected() {
        let (port, listeners) = listening(&["127.0.0.1"]);
        assert_eq!(listeners.len(), 1);
        assert_eq!(listeners[0].address, format!("127.0.0.1:{port}"));
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
        let again = listen(&settings(port, &["127.0.0.1"])).expect_err("in use");
        assert_eq!(again, format!("Failed listening on port {port} (TCP), aborting."));
        let (wrong, code) = open_tcp("127.0.0.1", port, 1).expect_err("in use");
        assert_eq!((wrong.as_str(), code), ("bind: Address already in use", Some(Errno::ADDRINUSE)));
    }

    #[test]
    fn optional_addresses_may_be_missing() {
        let (_, listeners) = listening(&["127.0.0.1", "-192.0.2.1"]);
        assert_eq!(listeners.len(), 1);
        drop(listeners);
        assert!(listen(&settings(free_port(), &["127.0.0.1", "192.0.2.1"])).is_err());
        assert!(listen(&settings(free_port(), &["no-such-host.invalid"])).is_err());
    }

    #[test]
    fn nowhere_to_listen_is_an_error() {
        let nowhere = Err("Configured to not listen anywhere, exiting.".to_string());
        assert_eq!(listen(&settings(0, &["*"])).map(|_| ()), nowhere);
        assert_eq!(listen(&settings(free_port(), &[])).map(|_| ()), nowhere);
    }

    #[test]
    fn unix_socket_has_its_permissions_and_replaces_a_stale_one() {
        let dir = std::env::temp_dir().join(format!("pantala-unix-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let path = dir.join("s.sock");
        let mut settings = settings(0, &[]);
        settings.unixsocket = Some(path.clone());
        settings.unixsocketperm = 0o700;
        drop(listen(&settings).expect("listening"));
        let listeners = listen(&settings).expect("listening again");
        assert_eq!(listeners[0].kind, Kind::Unix);
        assert_eq!(std::fs::metadata(&path).expect("metadata").permissions().mode() & 0o777, 0o700);
        UnixStream::connect(&path).expect("connected");
        remove_unix_socket(&settings);
        assert!(!path.exists());
        // A file that isn't a socket is kept.
        std::fs::write(&path, "precious").expect("a file");
        assert_eq!(
            listen(&settings).map(|_| ()),
            Err("Failed opening Unix socket: bind: Address already in use".into())
        );
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "precious");
        settings.unixsocket = Some(dir.join("none/s.sock"));
        assert_eq!(
            listen(&settings).map(|_| ()),
            Err("Failed opening Unix socket: bind: No such file or directory".into())
        );
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
