//! The socket of the link thread, which connects a replica to its primary. With `tls-replication`,
//! the link is encrypted.
//!
//! The thread blocks in reads and writes, for at most the timeouts of the socket. When the stream
//! starts, a worker takes over the socket and the state of the TLS connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};

use pantala_tls::connection::{Failure, Out};
use pantala_tls::{Client, Connection};

/// Bytes per read.
const READ_BYTES: usize = 256 * 1024;

/// A connected socket.
pub(super) struct Socket {
    stream: TcpStream,
    tls: Option<Connection>,
    /// Buffer for received encrypted records.
    records: Vec<u8>,
}

impl Socket {
    /// Wraps a socket for a link that is not encrypted.
    pub(super) fn plain(stream: TcpStream) -> Self {
        Socket { stream, tls: None, records: Vec::new() }
    }

    /// Wraps a socket and performs the TLS handshake. Calls `may_wait` before each read, to find
    /// out whether to continue. Each read waits for at most the socket's timeout.
    ///
    /// # Errors
    /// The handshake fails, or `may_wait` returns `false`.
    pub(super) fn encrypted(stream: TcpStream, client: &Client, may_wait: impl Fn() -> bool) -> io::Result<Self> {
        let mut connection = client.connect_to(stream.peer_addr()?.ip()).map_err(|failure| other(&failure))?;
        let (mut stream, mut reply, mut plain) = (stream, Vec::new(), Vec::new());
        let mut records = vec![0; READ_BYTES];
        let mut shaken = connection.perform_handshake(&mut Out { plain: &mut plain, reply: &mut reply });
        loop {
            // After a failure, the reply is an alert, which must be sent as well.
            stream.write_all(&reply)?;
            reply.clear();
            shaken.map_err(|failure| other(&failure))?;
            // `plain` is dropped here. It is empty, because the primary sends data only in reply to
            // a command.
            if !connection.is_handshaking() {
                return Ok(Socket { stream, tls: Some(connection), records });
            }
            if !may_wait() {
                return Err(ErrorKind::TimedOut.into());
            }
            let read = match stream.read(&mut records) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(error) if is_timeout(&error) || error.kind() == ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            shaken = connection.receive(&mut records[..read], &mut Out { plain: &mut plain, reply: &mut reply });
        }
    }

    /// Returns the address of the peer.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn peer(&self) -> io::Result<SocketAddr> {
        self.stream.peer_addr()
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// The socket has failed, or its timeout has passed.
    pub(super) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.stream.write_all(bytes) };
        let mut sealed = Vec::new();
        tls.seal(bytes, &mut sealed).map_err(|failure| other(&failure))?;
        self.stream.write_all(&sealed)
    }

    /// Reads once and appends the bytes to `into`. Returns their number, or 0 if the peer has
    /// closed the connection.
    ///
    /// # Errors
    /// The socket has failed. [`ErrorKind::WouldBlock`] and [`ErrorKind::TimedOut`] mean that no
    /// data has arrived in time: either no bytes at all, or only bytes of the TLS protocol.
    pub(super) fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        let len = into.len();
        let Some(tls) = &mut self.tls else {
            into.resize(len + READ_BYTES, 0);
            let read = self.stream.read(&mut into[len..]);
            into.truncate(len + *read.as_ref().unwrap_or(&0));
            return read;
        };
        self.records.resize(READ_BYTES, 0);
        let read = self.stream.read(&mut self.records)?;
        let mut reply = Vec::new();
        let received = tls.receive(&mut self.records[..read], &mut Out { plain: into, reply: &mut reply });
        if !reply.is_empty() {
            self.stream.write_all(&reply)?;
        }
        received.map_err(|failure| other(&failure))?;
        match into.len() - len {
            0 if read > 0 && !tls.peer_has_closed() => Err(ErrorKind::WouldBlock.into()),
            bytes => Ok(bytes),
        }
    }

    /// Returns the socket and, if the link is encrypted, the state of the TLS connection.
    pub(super) fn into_parts(self) -> (TcpStream, Option<Connection>) {
        (self.stream, self.tls)
    }
}

/// Returns whether a read failed because the socket's timeout has passed.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn other(failure: &Failure) -> io::Error {
    io::Error::other(failure.to_string())
}

/// The TLS state of a link that is being handed over to a worker. The socket itself is sent in a
/// message. Messages are defined in the engine crate, which doesn't know TLS.
#[derive(Default)]
pub struct Handover(Mutex<Option<(u64, Connection)>>);

impl Handover {
    /// Stores the TLS state of a term's link. A term is a period during which this server follows
    /// the same primary. `connection` is `None` if this link isn't encrypted.
    pub(super) fn put(&self, term: u64, connection: Option<Connection>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = connection.map(|state| (term, state));
    }

    /// Takes the TLS state of a term's link. Returns `None` if this link isn't encrypted.
    pub fn take(&self, term: u64) -> Option<Connection> {
        let stored = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        stored.filter(|(of, _)| *of == term).map(|(_, connection)| connection)
    }
}
