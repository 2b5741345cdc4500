//! TLS, between the sockets and the encrypted connections.
//!
//! Received bytes are decrypted before the parser sees them, and output is encrypted when the turn
//! (the iteration of the worker's event loop) ends. The layers above the reactor treat encrypted
//! and plain connections alike. A plain connection pays three branches for this: one per received
//! chunk, one per send and one per turn.
//!
//! A long reply is encrypted in slices of [`SLICE_BYTES`], one slice a turn. So the encrypted form
//! of the whole reply is never in memory, and other connections are served between slices.
//!
//! Handshake messages that arrive in a turn are processed at its end ([`super::handshaking`]).

use pantala_base::Outgoing;
use pantala_runtime::{Chunk, ConnId, EventLoop};
use pantala_session::State;
use pantala_session::turn::Sends;
use pantala_tls::connection::{Failure, HANDSHAKE_BYTES_MAX, Out, STATE_BYTES};
use rustix::net::SendFlags;
use std::sync::atomic::Ordering::Relaxed;

use super::{Connection, Happened, Reactor, is_over, keep_spare};
use crate::host::Server;

/// Maximum plaintext encrypted for one send, bytes.
const SLICE_BYTES: usize = 256 * 1024;

/// Maximum size of a handshake's input that waits for the end of the turn, bytes. Longer input is
/// decrypted at once, because it may contain any number of commands after the last handshake
/// message.
pub(super) const WAITING_BYTES_MAX: usize = 16 * 1024;

/// Maximum duration of a handshake, ms.
const HANDSHAKE_MS_MAX: i64 = 10_000;

/// The TLS state of a connection.
pub struct Layer {
    /// `None` while a thread performs a step of the handshake.
    pub(super) tls: Option<pantala_tls::Connection>,
    /// Bytes that have arrived since `tls` was handed to a thread.
    pub(super) arrived: Vec<u8>,
    /// Records that are sent before all others: parts of the handshake, and alerts.
    pub(super) reply: Vec<u8>,
    /// The output that is being sent, and the number of its bytes that are already encrypted.
    piece: Option<(Outgoing, usize)>,
    /// Whether the handshake's next step is for a thread: it contains a signature that takes long.
    pub(super) is_for_thread: bool,
    /// Whether bytes of the handshake were kept since its last step.
    pub(super) has_new_bytes: bool,
    /// Memory of the send in flight, bytes; 0 if no send is in flight.
    in_flight_bytes: usize,
    /// When the connection was accepted, Unix time in ms.
    accepted_ms: i64,
}

impl Layer {
    /// Creates the layer of a new connection.
    ///
    /// # Errors
    /// The configuration no longer has a certificate, or the system has no random bytes.
    pub(super) fn accept(server: &Server, now_ms: i64) -> Result<Option<Box<Self>>, ()> {
        let encryption = server.listening().encryption().ok_or(())?;
        let tls = encryption.server.accept().map_err(|error| tracing::warn!("TLS: {error}"))?;
        Ok(Some(Layer::new(tls, now_ms, encryption.server.signs_slowly())))
    }

    /// Creates the layer of the link to a primary, whose handshake has ended.
    pub fn of_link(tls: pantala_tls::Connection) -> Box<Self> {
        Layer::new(tls, 0, false)
    }

    fn new(tls: pantala_tls::Connection, accepted_ms: i64, is_for_thread: bool) -> Box<Self> {
        Box::new(Layer {
            tls: Some(tls),
            arrived: Vec::new(),
            reply: Vec::new(),
            piece: None,
            is_for_thread,
            has_new_bytes: false,
            in_flight_bytes: 0,
            accepted_ms,
        })
    }

    /// Returns whether the handshake is not finished.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_handshaking())
    }

    /// Returns whether the handshake has taken too long.
    pub fn is_overdue(&self, now_ms: i64) -> bool {
        self.is_handshaking() && now_ms - self.accepted_ms > HANDSHAKE_MS_MAX
    }

    /// Returns whether nothing is pending in this layer.
    pub(super) fn is_at_rest(&self) -> bool {
        let has_output = self.piece.is_some() || !self.reply.is_empty() || self.in_flight_bytes > 0;
        !has_output && self.tls.as_ref().is_some_and(|tls| !tls.is_handshaking() && tls.kept_bytes() == 0)
    }

    fn memory_bytes(&self) -> usize {
        let state_bytes = self.tls.as_ref().map_or(STATE_BYTES, |tls| tls.memory_bytes());
        size_of::<Self>() + state_bytes + self.arrived.capacity() + self.reply.capacity() + self.in_flight_bytes
    }

    /// Returns the encrypted bytes to send now, and the number of plaintext bytes taken from the
    /// connection's output.
    fn take_send<H>(
        &mut self,
        connection: &mut Connection<H>,
        spare: &mut Vec<Vec<u8>>,
    ) -> Result<(Sends, usize), Failure> {
        let has_more = || !connection.output.is_empty() || !connection.ahead.is_empty();
        if self.in_flight_bytes > 0 {
            let waits = self.piece.is_some() || !self.reply.is_empty() || has_more();
            return Ok((if waits { Sends::Later } else { Sends::Nothing }, 0));
        }
        let (mut taken_bytes, mut is_awaited) = (0, false);
        if self.piece.is_none()
            && !self.is_handshaking()
            && let Sends::Now(send) = connection.take_send(|| spare.pop().unwrap_or_default())
        {
            taken_bytes = send.bytes.bytes().len();
            is_awaited = send.is_awaited;
            self.piece = Some((send.bytes, 0));
        }
        if self.piece.is_none() && self.reply.is_empty() {
            return Ok((Sends::Nothing, 0));
        }
        let mut sealed = std::mem::take(&mut self.reply);
        if sealed.capacity() == 0 {
            sealed = spare.pop().unwrap_or_default();
        }
        if let Some((bytes, start)) = self.piece.take() {
            let end = bytes.bytes().len().min(start + SLICE_BYTES);
            let tls = self.tls.as_mut().expect("output is taken after the handshake");
            tls.seal(&bytes.bytes()[start..end], &mut sealed)?;
            if end < bytes.bytes().len() {
                self.piece = Some((bytes, end));
                is_awaited = true;
            } else {
                let is_over = connection.state == State::Closing || connection.eof;
                is_awaited |= start > 0 && (is_over || !connection.output.is_empty() || !connection.ahead.is_empty());
                keep_spare(spare, bytes.into_buffer());
            }
        }
        self.in_flight_bytes = sealed.capacity();
        Ok((Sends::Now(pantala_session::turn::Send { bytes: sealed.into(), is_awaited }), taken_bytes))
    }
}

impl<L: EventLoop, H> Reactor<'_, L, H> {
    /// Processes a chunk of received bytes of an encrypted connection.
    #[cold]
    pub(super) fn receive_encrypted(&mut self, index: u32, chunk: Chunk) -> Happened {
        let Some(connection) = &mut self.connections[index as usize] else { return Happened::Nothing };
        self.stats.reads.add(1);
        let Some(layer) = connection.socket.tls.as_deref_mut().filter(|_| connection.state != State::Closing) else {
            self.io.release(chunk);
            return Happened::Nothing;
        };
        connection.session.client.active_ms.store(self.clock.now_ms, Relaxed);
        let Some(tls) = &mut layer.tls else {
            layer.arrived.extend_from_slice(self.io.bytes(&chunk));
            connection.layer_bytes = layer.memory_bytes();
            self.io.release(chunk);
            return if layer.arrived.len() > HANDSHAKE_BYTES_MAX { Happened::Failed(index) } else { Happened::Nothing };
        };
        let waiting_bytes = tls.kept_bytes() + chunk.len();
        if tls.is_handshaking() && waiting_bytes <= WAITING_BYTES_MAX {
            layer.has_new_bytes = true;
            let kept = tls.keep(self.io.bytes(&chunk));
            self.io.release(chunk);
            if kept.is_err() {
                return Happened::Failed(index);
            }
            self.touch(index);
            return Happened::Nothing;
        }
        let mut plain = std::mem::take(&mut self.handshakes.plain);
        let mut out = Out { plain: &mut plain, reply: &mut layer.reply };
        let received = tls.receive(self.io.bytes_mut(&chunk), &mut out);
        connection.eof |= tls.peer_has_closed();
        if let Some(link) = &mut connection.session.primary {
            self.stats.repl_input_bytes.add(plain.len() as u64);
            link.receive(&plain, self.clock.now_ms);
        }
        if plain.is_empty() || plain.len() > chunk.len() || !connection.input.is_empty() {
            self.io.release(chunk);
            self.take_plain(index, &plain);
        } else {
            self.io.bytes_mut(&chunk)[..plain.len()].copy_from_slice(&plain);
            let mut chunk = chunk;
            chunk.truncate(plain.len());
            connection.input.receive(&mut self.io, chunk);
            self.received_plain(index, plain.len());
        }
        plain.clear();
        self.handshakes.plain = plain;
        match received {
            Ok(()) => Happened::Nothing,
            Err(failure) => {
                self.alert(index, &failure);
                Happened::Failed(index)
            }
        }
    }

    /// Passes decrypted bytes to a connection's input.
    pub(super) fn take_plain(&mut self, index: u32, plain: &[u8]) {
        if let Some(connection) = &mut self.connections[index as usize]
            && !plain.is_empty()
        {
            connection.input.receive_copy(&mut self.io, plain);
        }
        self.received_plain(index, plain.len());
    }

    /// Makes a connection take part in the turn after it has received `bytes` decrypted bytes.
    fn received_plain(&mut self, index: u32, bytes: usize) {
        self.stats.input_bytes.add(bytes as u64);
        if bytes > 0 {
            self.make_ready(index);
        }
        self.touch(index);
    }

    /// Ends [`Reactor::finish`] for an encrypted connection: continues its handshake and sends its
    /// output.
    #[cold]
    pub(super) fn finish_encrypted(&mut self, index: u32) -> Option<bool> {
        if let Err(failure) = self.advance_handshake(index) {
            self.alert(index, &failure);
            return Some(true);
        }
        let connection = self.connections[index as usize].as_mut()?;
        let mut layer = connection.socket.tls.take()?;
        connection.session.client.is_handshaking.store(layer.is_handshaking(), Relaxed);
        let sends = layer.take_send(connection, &mut self.spare);
        connection.layer_bytes = layer.memory_bytes();
        connection.socket.tls = Some(layer);
        match sends {
            Ok((Sends::Nothing, _)) => {}
            Ok((Sends::Later, _)) => self.io.expect_sent(connection.socket.id),
            Ok((Sends::Now(send), plain_bytes)) => {
                self.stats.output_bytes.add(plain_bytes as u64);
                self.stats.writes.add(1);
                if send.is_awaited {
                    self.io.send(connection.socket.id, send.bytes);
                } else {
                    self.io.send_quiet(connection.socket.id, send.bytes);
                }
            }
            Err(failure) => {
                self.alert(index, &failure);
                return Some(true);
            }
        }
        Some(is_over(&mut self.io, self.connections[index as usize].as_ref()?))
    }

    /// Processes the completion of a send of an encrypted connection.
    #[cold]
    pub(super) fn sent_encrypted(&mut self, index: u32, is_sent: bool) -> Happened {
        let Some(connection) = &mut self.connections[index as usize] else { return Happened::Nothing };
        let Some(layer) = connection.socket.tls.as_deref_mut() else { return Happened::Nothing };
        layer.in_flight_bytes = 0;
        let has_more = layer.piece.is_some() || !layer.reply.is_empty();
        connection.session.client.active_ms.store(self.clock.now_ms, Relaxed);
        if !is_sent {
            return Happened::Failed(index);
        }
        // The connection is notified of the completion only after the last slice of its output.
        let is_awaited = if layer.piece.is_some() { true } else { connection.sent() };
        if has_more || is_awaited {
            self.touch(index);
        }
        Happened::Changed(index)
    }

    /// Logs why a connection has failed. Sends the peer an alert if the socket has room for it.
    pub(super) fn alert(&mut self, index: u32, failure: &Failure) {
        let Some(connection) = &mut self.connections[index as usize] else { return };
        let Some(layer) = connection.socket.tls.as_deref_mut() else { return };
        tracing::debug!("TLS connection of {}: {failure}", connection.session.client.address);
        if layer.in_flight_bytes == 0 {
            send_at_once(&self.io, connection.socket.id, &layer.reply);
        }
        layer.reply.clear();
        // Marks a send as in flight, so that nothing else is sent.
        layer.in_flight_bytes = layer.in_flight_bytes.max(1);
    }

    /// Sends a close notification to the peer of a connection that is being closed, if all output
    /// was sent and the socket has room.
    pub(super) fn notify_close(&self, id: ConnId, mut layer: Layer) {
        let Some(tls) = layer.tls.as_mut().filter(|tls| !tls.is_handshaking()) else { return };
        if layer.in_flight_bytes == 0 && layer.piece.is_none() {
            send_at_once(&self.io, id, &tls.close());
        }
    }
}

/// Sends a short record before the socket is closed. Ignores errors, because the connection ends
/// either way.
fn send_at_once<L: EventLoop>(io: &L, id: ConnId, record: &[u8]) {
    if let Some(socket) = io.socket(id)
        && !record.is_empty()
    {
        let _ = rustix::net::send(socket, record, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}
