//! A blocking connection, used for handshakes, for the cluster's topology, and for queries before
//! and after the load.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use super::link::{Link, Tls};
use pantala_resp::value::{Value, parse_reply};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Maximum time to connect, and to receive a reply.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Maximum number of bytes that one call reads.
const READ_BYTES: usize = 16 * 1024;

/// The address of a server.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// Returns the first address of `host`.
pub(crate) fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("'{host}' has no address"));
    (host, port).to_socket_addrs().map_err(|_| unknown())?.next().ok_or_else(unknown)
}

/// Credentials, database and encryption of a connection. Without a user name the user is `default`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    pub(crate) tls: Option<Tls>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
}

pub(crate) struct Control {
    socket: Socket,
    received: Vec<u8>,
    link: Option<Box<Link>>,
}

impl Control {
    /// Connects and logs in.
    pub(crate) fn open(target: &Target, login: &Login) -> io::Result<Self> {
        let socket = connect(target).map_err(|e| describe_error(&e, target))?;
        let mut control = Self { socket, received: Vec::new(), link: None };
        if let Some(tls) = &login.tls {
            control.link = Some(Box::new(Link::new(tls)?));
            while control.link.as_ref().is_some_and(|link| link.is_handshaking()) {
                control.send(b"")?;
                control.receive()?;
            }
            // Sends the last bytes of the handshake.
            control.send(b"")?;
        }
        if let Some(password) = &login.password {
            let answer = match &login.user {
                Some(user) => control.ask(&["AUTH", user, password])?,
                None => control.ask(&["AUTH", password])?,
            };
            control.accepted("AUTH", &answer)?;
        }
        if login.database != 0 {
            let answer = control.ask(&["SELECT", &login.database.to_string()])?;
            control.accepted("SELECT", &answer)?;
        }
        Ok(control)
    }

    fn accepted(&self, command: &str, answer: &Value) -> io::Result<()> {
        match answer {
            Value::Error(text) => {
                Err(io::Error::other(format!("{command} was refused: {}", String::from_utf8_lossy(text))))
            }
            _ => Ok(()),
        }
    }

    /// Sends one command and returns its reply, which may be an error reply.
    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<Value> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        self.send(&request)?;
        loop {
            match parse_reply(&self.received) {
                Ok(Some((value, len_bytes))) => {
                    self.received.drain(..len_bytes);
                    return Ok(value);
                }
                Ok(None) => {}
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
            self.receive()?;
        }
    }

    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        let sealed = match &mut self.link {
            Some(link) => link.seal(request)?,
            None => request,
        };
        let mut sent_bytes = 0;
        while sent_bytes < sealed.len() {
            sent_bytes += again(|| rustix::net::send(&self.socket, &sealed[sent_bytes..], SendFlags::NOSIGNAL))?;
        }
        if let Some(link) = &mut self.link {
            link.sealed.clear();
        }
        Ok(())
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut room = [0; READ_BYTES];
        let (_, read_bytes) = again(|| rustix::net::recv(&self.socket, &mut room[..], RecvFlags::empty()))?;
        if read_bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        match &mut self.link {
            Some(link) => self.received.extend_from_slice(link.open(&mut room[..read_bytes])?),
            None => self.received.extend_from_slice(&room[..read_bytes]),
        }
        Ok(())
    }

    /// Sends one command and returns its reply. An error reply becomes an `Err`.
    pub(crate) fn order(&mut self, words: &[&str]) -> io::Result<Value> {
        let answer = self.ask(words)?;
        self.accepted(words.first().unwrap_or(&""), &answer)?;
        Ok(answer)
    }

    /// Makes the socket of an unencrypted connection non-blocking and returns it. A connection of
    /// the load then uses it.
    pub(crate) fn into_socket(self) -> io::Result<Socket> {
        Ok(self.into_parts()?.0)
    }

    /// Makes the socket non-blocking and returns it, with its encryption if it has one. The
    /// connections of the load then use both.
    pub(crate) fn into_parts(self) -> io::Result<(Socket, Option<Box<Link>>)> {
        self.socket.set_nonblocking(true)?;
        Ok((self.socket, self.link))
    }
}

/// Retries a call that a signal interrupted. Even without a signal handler, suspending and resuming
/// this process interrupts a call on a socket with a timeout.
fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn describe_error(error: &io::Error, target: &Target) -> io::Error {
    io::Error::new(error.kind(), format!("no connection to {target}: {error}"))
}

fn connect(target: &Target) -> io::Result<Socket> {
    let socket = match target {
        Target::Tcp(address) => {
            let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
            socket.connect_timeout(&(*address).into(), ANSWER_MAX)?;
            socket.set_tcp_nodelay(true)?;
            socket
        }
        Target::Unix(path) => {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.connect(&SockAddr::unix(path)?)?;
            socket
        }
    };
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    socket.set_write_timeout(Some(ANSWER_MAX))?;
    Ok(socket)
}
