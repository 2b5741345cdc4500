//! One side of a TLS connection, server or client, without its socket.
//!
//! The owner of the socket passes received bytes to the connection, takes the decrypted bytes, and
//! sends the records that the connection produces. After a failure, the connection processes no
//! more bytes, and the owner must close the socket.

use std::fmt;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic};

/// Bytes of a record's header.
const HEADER_BYTES: usize = 5;

/// The first byte of a record: its kind.
const RECORD_KINDS: std::ops::RangeInclusive<u8> = 20..=24;

/// Maximum plaintext of one record, bytes.
const PLAIN_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of bytes by which sealing lengthens the plaintext of a record, rounded up.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Maximum number of handshake bytes that are kept until the handshake can continue. rustls rejects
/// messages that are longer than half of this.
pub const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Memory of an established connection in addition to its buffers, bytes. In total, an idle client
/// uses 7.6 KB of the server's resident memory.
pub const STATE_BYTES: usize = 5 * 1024;

/// The reason why a connection must be closed.
#[derive(Debug)]
pub enum Failure {
    /// The peer violates the protocol, or presents no valid certificate.
    Protocol(rustls::Error),
    /// The peer's handshake is too long.
    TooLong,
    /// The keys have been used for the maximum number of records.
    Exhausted,
    /// The server's name is neither a host name nor an address.
    Name,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Protocol(error) => error.fmt(f),
            Failure::TooLong => f.write_str("the handshake is too long"),
            Failure::Exhausted => f.write_str("the keys have been used for the maximum number of records"),
            Failure::Name => f.write_str("not a host name"),
        }
    }
}

/// The buffers for the results of processing records.
#[derive(Debug)]
pub struct Out<'o> {
    /// Decrypted bytes.
    pub plain: &'o mut Vec<u8>,
    /// Records to send to the peer: parts of the handshake, alerts, new keys.
    pub reply: &'o mut Vec<u8>,
}

enum Core {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

/// The connection described at the head of this module.
pub struct Connection {
    core: Core,
    /// Received bytes that haven't been processed: an incomplete record, or an unfinished
    /// handshake.
    partial: Vec<u8>,
    is_handshaking: bool,
    peer_has_closed: bool,
    /// Whether the connection has failed. A failed connection processes no bytes, and drops those
    /// that it kept.
    has_failed: bool,
}

/// The condition for the next step of the state machine.
enum Next {
    /// The next step can run at once.
    Go,
    /// The next step needs more bytes.
    Wait,
}

impl Connection {
    pub(crate) fn of_server(core: UnbufferedServerConnection) -> Self {
        Self::new(Core::Server(core))
    }

    pub(crate) fn of_client(core: UnbufferedClientConnection) -> Self {
        Self::new(Core::Client(core))
    }

    fn new(core: Core) -> Self {
        Connection { core, partial: Vec::new(), is_handshaking: true, peer_has_closed: false, has_failed: false }
    }

    /// Returns whether the handshake is unfinished.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.is_handshaking
    }

    /// Returns whether the peer has announced that it will send no more bytes.
    #[inline]
    pub fn peer_has_closed(&self) -> bool {
        self.peer_has_closed
    }

    /// Returns the memory usage of the connection, bytes.
    pub fn memory_bytes(&self) -> usize {
        STATE_BYTES + self.partial.capacity()
    }

    /// Returns the number of kept bytes: an incomplete record, or the received part of a handshake.
    #[inline]
    pub fn kept_bytes(&self) -> usize {
        self.partial.len()
    }

    /// Returns whether the kept bytes start with a whole record.
    pub fn has_record(&self) -> bool {
        self.missing_bytes() == 0
    }

    /// Keeps bytes of a handshake for [`Connection::perform_handshake`].
    ///
    /// # Errors
    /// More than [`HANDSHAKE_BYTES_MAX`] bytes would be kept.
    pub fn keep(&mut self, received: &[u8]) -> Result<(), Failure> {
        if self.partial.len() + received.len() > HANDSHAKE_BYTES_MAX {
            return Err(Failure::TooLong);
        }
        self.partial.extend_from_slice(received);
        Ok(())
    }

    /// Continues the handshake as far as the kept bytes allow. A client's side starts the handshake
    /// with this call, without kept bytes.
    ///
    /// # Errors
    /// The connection must be closed after sending the content of `out.reply`.
    pub fn perform_handshake(&mut self, out: &mut Out<'_>) -> Result<(), Failure> {
        self.run_partial(out)
    }

    /// Opens records: decrypts complete records in place, and appends their content to `out.plain`.
    /// Keeps an incomplete record. Also continues an unfinished handshake.
    ///
    /// # Errors
    /// The connection must be closed after sending the content of `out.reply`.
    pub fn receive(&mut self, mut received: &mut [u8], out: &mut Out<'_>) -> Result<(), Failure> {
        while !self.partial.is_empty() && !received.is_empty() {
            let missing_bytes = if self.is_handshaking { 0 } else { self.missing_bytes() };
            // If the kept record is complete, it is part of a message that spans several records,
            // and all further bytes may belong to that message. So this keeps as many bytes as
            // there is room for. If there is no room, `keep` fails.
            let room = HANDSHAKE_BYTES_MAX.saturating_sub(self.partial.len()).max(1);
            let taken_bytes = if missing_bytes == 0 { room } else { missing_bytes }.min(received.len());
            let (taken, rest) = received.split_at_mut(taken_bytes);
            self.keep(taken)?;
            received = rest;
            if self.is_handshaking || self.missing_bytes() == 0 {
                self.run_partial(out)?;
            }
        }
        if !received.is_empty() {
            let used_bytes = self.run(received, out)?;
            self.keep(&received[used_bytes..])?;
        }
        Ok(())
    }

    /// Returns the minimum number of bytes that the kept record lacks, or 0 if it is complete.
    fn missing_bytes(&self) -> usize {
        let Some(&[_, _, _, high, low]) = self.partial.first_chunk::<HEADER_BYTES>() else {
            return HEADER_BYTES - self.partial.len();
        };
        (HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]))).saturating_sub(self.partial.len())
    }

    fn run_partial(&mut self, out: &mut Out<'_>) -> Result<(), Failure> {
        let mut partial = std::mem::take(&mut self.partial);
        let used_bytes = self.run(&mut partial, out)?;
        if used_bytes < partial.len() {
            partial.drain(..used_bytes);
            self.partial = partial;
        }
        Ok(())
    }

    /// Processes records until more bytes are needed. Returns the number of bytes used.
    fn run(&mut self, received: &mut [u8], out: &mut Out<'_>) -> Result<usize, Failure> {
        let mut used_bytes = 0;
        if self.has_failed {
            return Err(Failure::Protocol(rustls::Error::HandshakeNotComplete));
        }
        loop {
            let rest = &mut received[used_bytes..];
            let (step_bytes, next) = match &mut self.core {
                Core::Server(core) => {
                    step(core.process_tls_records(rest), out, &mut self.is_handshaking, &mut self.peer_has_closed)
                }
                Core::Client(core) => {
                    step(core.process_tls_records(rest), out, &mut self.is_handshaking, &mut self.peer_has_closed)
                }
            };
            used_bytes += step_bytes;
            match next {
                Ok(Next::Go) => {}
                Ok(Next::Wait) => return Ok(used_bytes),
                Err(error) => {
                    self.has_failed = true;
                    self.take_alert(&mut received[used_bytes..], out);
                    return Err(Failure::Protocol(error));
                }
            }
        }
    }

    /// Writes the alert that informs the peer of a failure, if rustls has one. If the peer doesn't
    /// speak TLS, it gets no alert, as in OpenSSL.
    fn take_alert(&mut self, rest: &mut [u8], out: &mut Out<'_>) {
        if self.is_handshaking && rest.first().is_some_and(|kind| !RECORD_KINDS.contains(kind)) {
            return;
        }
        let (mut is_handshaking, mut has_closed) = (self.is_handshaking, self.peer_has_closed);
        // Only the step that encodes the alert is run. Another step would process bytes that follow
        // the failure.
        let _ = match &mut self.core {
            Core::Server(core) if core.wants_write() => {
                step(core.process_tls_records(rest), out, &mut is_handshaking, &mut has_closed)
            }
            Core::Client(core) if core.wants_write() => {
                step(core.process_tls_records(rest), out, &mut is_handshaking, &mut has_closed)
            }
            _ => return,
        };
    }

    /// Seals bytes into records and appends them to `sealed`. Must not be called before the
    /// handshake has ended.
    ///
    /// # Errors
    /// The keys have been used for the maximum number of records.
    pub fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> Result<(), Failure> {
        let start = sealed.len();
        let records = plain.len().div_ceil(PLAIN_BYTES_MAX).max(1);
        sealed.resize(start + plain.len() + records * RECORD_OVERHEAD_BYTES, 0);
        loop {
            let room = &mut sealed[start..];
            match self.write(|traffic| traffic.seal(plain, room)) {
                Some(Ok(bytes)) => {
                    sealed.truncate(start + bytes);
                    return Ok(());
                }
                // rustls may put an announcement of new keys before the records. This needs more
                // room.
                Some(Err(EncryptError::InsufficientSize(wanted))) => sealed.resize(start + wanted.required_size, 0),
                Some(Err(EncryptError::EncryptExhausted)) | None => {
                    sealed.truncate(start);
                    return Err(Failure::Exhausted);
                }
            }
        }
    }

    /// Returns the record that tells the peer that no more bytes follow. Returns no bytes during
    /// the handshake and after a failure. After this call, the owner must not pass in any bytes: in
    /// builds with debug assertions, rustls asserts that no other alert follows this one.
    pub fn close(&mut self) -> Vec<u8> {
        let mut sealed = vec![0; 4 * RECORD_OVERHEAD_BYTES];
        let written = self.write(|traffic| traffic.close(&mut sealed)).and_then(Result::ok);
        sealed.truncate(written.unwrap_or(0));
        sealed
    }

    /// Calls `write` with the encrypter. Returns `None` if the current state can't encrypt. Passes
    /// the kept bytes to rustls, because rustls identifies the parts of a handshake message by
    /// their positions in these bytes.
    fn write<T>(&mut self, write: impl FnOnce(&mut dyn Traffic) -> T) -> Option<T> {
        if self.has_failed {
            return None;
        }
        let (discard, written) = match &mut self.core {
            Core::Server(core) => with_traffic(core.process_tls_records(&mut self.partial), write),
            Core::Client(core) => with_traffic(core.process_tls_records(&mut self.partial), write),
        };
        self.partial.drain(..discard);
        // rustls fails here if the kept bytes contain an invalid header of an incomplete record.
        self.has_failed |= written.is_err();
        written.ok().flatten()
    }
}

/// The encrypting part of rustls, for either side.
trait Traffic {
    fn seal(&mut self, plain: &[u8], room: &mut [u8]) -> Result<usize, EncryptError>;
    fn close(&mut self, room: &mut [u8]) -> Result<usize, EncryptError>;
}

impl<D> Traffic for WriteTraffic<'_, D> {
    fn seal(&mut self, plain: &[u8], room: &mut [u8]) -> Result<usize, EncryptError> {
        self.encrypt(plain, room)
    }

    fn close(&mut self, room: &mut [u8]) -> Result<usize, EncryptError> {
        self.queue_close_notify(room)
    }
}

fn with_traffic<D, T>(
    status: UnbufferedStatus<'_, '_, D>,
    write: impl FnOnce(&mut dyn Traffic) -> T,
) -> (usize, Result<Option<T>, rustls::Error>) {
    let written = match status.state {
        Ok(ConnectionState::WriteTraffic(mut traffic)) => Ok(Some(write(&mut traffic))),
        // Other states have nothing to write, because their output was taken when it was created.
        Ok(_) => Ok(None),
        Err(error) => Err(error),
    };
    (status.discard, written)
}

/// Processes one state of rustls. Returns the number of received bytes used, and the condition for
/// the next step.
fn step<D>(
    status: UnbufferedStatus<'_, '_, D>,
    out: &mut Out<'_>,
    is_handshaking: &mut bool,
    peer_has_closed: &mut bool,
) -> (usize, Result<Next, rustls::Error>) {
    let mut used_bytes = status.discard;
    let next = match status.state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    used_bytes += record.discard;
                    out.plain.extend_from_slice(record.payload);
                }
                Some(Err(error)) => break Err(error),
                None => break Ok(Next::Go),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => {
            let start = out.reply.len();
            if let Err(EncodeError::InsufficientSize(wanted)) = data.encode(&mut []) {
                out.reply.resize(start + wanted.required_size, 0);
                let written = data.encode(&mut out.reply[start..]);
                out.reply.truncate(start + written.unwrap_or(0));
            }
            Ok(Next::Go)
        }
        Ok(ConnectionState::TransmitTlsData(data)) => {
            data.done();
            Ok(Next::Go)
        }
        Ok(ConnectionState::PeerClosed) => {
            *peer_has_closed = true;
            Ok(Next::Go)
        }
        Ok(ConnectionState::WriteTraffic(_)) => {
            *is_handshaking = false;
            Ok(Next::Wait)
        }
        Ok(ConnectionState::BlockedHandshake | ConnectionState::Closed) => Ok(Next::Wait),
        // Early data is never offered, so its states don't occur.
        Ok(_) => Err(rustls::Error::General("unexpected state".into())),
        Err(error) => Err(error),
    };
    (used_bytes, next)
}
