//! TLS handshakes, on the worker or on a thread.
//!
//! Handshake messages that arrive in a turn (iteration of the worker's event loop) are processed at
//! its end, for at most [`HANDSHAKES_PER_TURN`]. The remaining messages wait for the next turn. An
//! RSA signature takes longer than all other work of a turn, so without this limit a thousand
//! clients that connect at once would delay all other clients.
//!
//! If the server's key is an RSA key, the step that contains the signature is handed to a thread
//! ([`crate::process::HandshakeQueue`]), together with the connection's TLS state. Until the thread
//! sends them back ([`Message::Handshake`]), the worker only keeps the bytes that the client sends.
//! If the connection is closed meanwhile, the state is dropped when it arrives.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pantala_base::Moment;
use pantala_engine::faults::{self, Fault};
use pantala_engine::message::Message;
use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_tls::connection::{Failure, Out};

use super::tls::{Layer, WAITING_BYTES_MAX};
use super::{Happened, Reactor};
use crate::host::Server;
use crate::process::Handshake;

/// Time after which no further handshake is processed in a turn.
const HANDSHAKES_PER_TURN: Duration = Duration::from_micros(300);

/// The handshakes of a reactor.
#[derive(Default)]
pub struct Handshakes {
    /// Buffer for decrypted bytes until they are passed to their connection. Empty between events.
    pub(super) plain: Vec<u8>,
    /// The number of the last turn with handshakes, and the time that its handshakes have taken so
    /// far.
    spent: (u64, Duration),
}

/// The result of a step that a thread has performed.
pub struct Performed {
    tls: pantala_tls::Connection,
    plain: Vec<u8>,
    reply: Vec<u8>,
    outcome: Result<(), Failure>,
}

impl<L: EventLoop, H> Reactor<'_, L, H> {
    /// Continues the handshake of a connection, or defers it to the next turn if handshakes have
    /// used up their time in this turn.
    pub(super) fn advance_handshake(&mut self, index: u32) -> Result<(), Failure> {
        let Some(connection) = &mut self.connections[index as usize] else { return Ok(()) };
        let token = connection.socket.token();
        let Some(layer) = connection.socket.tls.as_deref_mut() else { return Ok(()) };
        let Some(tls) = layer.tls.as_ref().filter(|tls| layer.has_new_bytes && tls.is_handshaking()) else {
            return Ok(());
        };
        // The worker processes an incomplete record itself, because it contains no signature.
        let is_for_thread = layer.is_for_thread && tls.has_record() && self.server.listening().handshakes.has_threads();
        if is_for_thread && hand_over(self.server, self.number, token, layer) {
            layer.has_new_bytes = false;
            return Ok(());
        }
        let turn = self.stats.turns.get();
        if self.handshakes.spent.0 != turn {
            self.handshakes.spent = (turn, Duration::ZERO);
        }
        if self.handshakes.spent.1 >= HANDSHAKES_PER_TURN {
            if !std::mem::replace(&mut connection.socket.is_listed, true) {
                self.listed.push_back(index);
            }
            return Ok(());
        }
        let Some(tls) = &mut layer.tls else { return Ok(()) };
        layer.has_new_bytes = false;
        let begin = Moment::now();
        let mut plain = std::mem::take(&mut self.handshakes.plain);
        let performed = tls.perform_handshake(&mut Out { plain: &mut plain, reply: &mut layer.reply });
        self.handshakes.spent.1 += begin.elapsed();
        layer.is_for_thread &= layer.reply.is_empty();
        connection.eof |= tls.peer_has_closed();
        if !plain.is_empty() {
            self.take_plain(index, &plain);
            plain.clear();
        }
        self.handshakes.plain = plain;
        performed
    }
}

/// Continues a connection (token) after a thread has performed a step of its handshake.
#[cold]
pub fn resume_handshake<L: EventLoop, H>(
    reactor: &mut Reactor<'_, L, H>,
    token: u64,
    performed: Performed,
) -> Happened {
    let Some(index) = reactor.find_token(token) else { return Happened::Nothing };
    let connection = reactor.connections[index as usize].as_mut().expect("found");
    let Some(layer) = connection.socket.tls.as_deref_mut() else { return Happened::Nothing };
    let Performed { mut tls, mut plain, mut reply, mut outcome } = performed;
    let mut arrived = std::mem::take(&mut layer.arrived);
    layer.is_for_thread &= reply.is_empty();
    if outcome.is_ok() && !arrived.is_empty() {
        outcome = if tls.is_handshaking() && tls.kept_bytes() + arrived.len() <= WAITING_BYTES_MAX {
            layer.has_new_bytes = true;
            tls.keep(&arrived)
        } else {
            tls.receive(&mut arrived, &mut Out { plain: &mut plain, reply: &mut reply })
        };
    }
    layer.reply.append(&mut reply);
    connection.eof |= tls.peer_has_closed();
    layer.tls = Some(tls);
    if connection.state != State::Closing {
        reactor.take_plain(index, &plain);
    }
    match outcome {
        Ok(()) => Happened::Nothing,
        Err(failure) => {
            reactor.alert(index, &failure);
            Happened::Failed(index)
        }
    }
}

/// Hands the next step of a handshake to a thread. Returns `false` if the worker must perform it.
#[cold]
fn hand_over(server: &Server, worker: u32, token: u64, layer: &mut Layer) -> bool {
    let start = || {
        let stopping = || io::Error::other("the server is stopping");
        let server = server.snapshots().background.server().ok_or_else(stopping)?;
        std::thread::Builder::new().name("pantala-tls".into()).spawn(move || perform_all(&server)).map(drop)
    };
    let Some(tls) = layer.tls.take() else { return false };
    let refused = server.listening().handshakes.push(Handshake { worker, token, tls }, start);
    layer.tls = refused.map(|refused| refused.tls);
    layer.tls.is_none()
}

/// Performs steps of handshakes until the thread must end.
fn perform_all(server: &Arc<Server>) {
    server.listening().handshakes.serve(|Handshake { worker, token, mut tls }| {
        faults::hold(Fault::HeldHandshake);
        let (mut plain, mut reply) = (Vec::new(), Vec::new());
        let outcome = tls.perform_handshake(&mut Out { plain: &mut plain, reply: &mut reply });
        let performed = Performed { tls, plain, reply, outcome };
        server.port(worker).send(Message::Handshake(token, Box::new(performed)));
    });
}
