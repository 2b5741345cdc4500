//! The reactor's sockets: processes the events of the loop, and adds new connections. One worker
//! accepts all new connections and distributes them among the workers.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::{Listener, Session};
use pantala_engine::message::Message;
use pantala_runtime::{Event, EventLoop, ListenerId};
use pantala_session::State;

use super::connection::insert;
use super::tls::Layer;
use super::{Connection, Happened, Reactor, Socket, keep_spare, token, via};
use crate::net;
use crate::process::Kind;

/// The listening sockets that a reactor accepts from.
#[derive(Default)]
pub struct Listeners {
    ids: Vec<(ListenerId, Kind)>,
    /// The listeners that the last change has replaced. They may still report a connection.
    former: Vec<(ListenerId, Kind)>,
    /// The generation of the server's listening sockets when this reactor last copied them.
    generation: u64,
}

impl<L: EventLoop, H> Reactor<'_, L, H> {
    /// Starts to accept from the server's current listening sockets. Does nothing if another worker
    /// accepts the connections.
    ///
    /// # Errors
    /// The loop rejects the sockets, or there are no file descriptors left.
    pub fn listen(&mut self) -> std::io::Result<()> {
        if self.number != self.server.facts().first_io_worker {
            return Ok(());
        }
        self.stop_listening();
        self.listeners.generation = self.server.listening().generation();
        for (socket, kind) in self.server.listening().copies()? {
            let listener = self.io.add_listener(socket)?;
            self.listeners.ids.push((listener, kind));
        }
        Ok(())
    }

    /// Stops accepting.
    pub fn stop_listening(&mut self) {
        self.listeners.former = std::mem::take(&mut self.listeners.ids);
        for (listener, _) in &self.listeners.former {
            self.io.remove_listener(*listener);
        }
    }

    /// Starts to accept from the server's listening sockets again, if they have changed.
    pub fn listen_if_changed(&mut self) {
        if self.listeners.generation != self.server.listening().generation()
            && let Err(error) = self.listen()
        {
            tracing::warn!("Not listening on all sockets: {error}");
        }
    }

    /// Processes one event.
    #[inline]
    pub fn handle(&mut self, event: Event) -> Happened {
        match event {
            Event::Accepted { listener, socket } => return self.accepted(listener, socket),
            Event::Data { conn, chunk } => match Self::open(&mut self.connections, conn) {
                Some(connection) => {
                    if connection.socket.tls.is_some() {
                        return self.receive_encrypted(conn.index() as u32, chunk);
                    }
                    self.stats.input_bytes.add(chunk.len() as u64);
                    self.stats.reads.add(1);
                    if connection.state == State::Closing {
                        self.io.release(chunk);
                        return Happened::Nothing;
                    }
                    connection.session.client.active_ms.store(self.clock.now_ms, Relaxed);
                    if let Some(link) = &mut connection.session.primary {
                        self.stats.repl_input_bytes.add(chunk.len() as u64);
                        link.receive(self.io.bytes(&chunk), self.clock.now_ms);
                    }
                    connection.input.receive(&mut self.io, chunk);
                    // The same as `make_ready` and `touch`, without another lookup.
                    if !std::mem::replace(&mut connection.is_ready, true) {
                        self.ready.push(conn.index() as u32);
                    }
                    if !std::mem::replace(&mut connection.socket.is_touched, true) {
                        self.touched.push(conn.index() as u32);
                    }
                }
                None => self.io.release(chunk),
            },
            Event::Eof { conn } => {
                if let Some(index) = self.find(conn) {
                    self.connections[index as usize].as_mut().expect("found").eof = true;
                    self.touch(index);
                }
            }
            Event::Failed { conn, .. } => return self.find(conn).map_or(Happened::Nothing, Happened::Failed),
            Event::Sent { conn, buffer, result } => {
                keep_spare(&mut self.spare, buffer);
                if let Some(connection) = Self::open(&mut self.connections, conn) {
                    let index = conn.index() as u32;
                    if connection.socket.tls.is_some() {
                        return self.sent_encrypted(index, result.is_ok());
                    }
                    let is_awaited = connection.sent();
                    connection.session.client.active_ms.store(self.clock.now_ms, Relaxed);
                    if result.is_err() {
                        return Happened::Failed(index);
                    }
                    if is_awaited {
                        self.touch(index);
                    }
                    return Happened::Changed(index);
                }
            }
            Event::Woken => {}
        }
        Happened::Nothing
    }

    /// Admits a new connection and assigns it to a worker.
    fn accepted(&mut self, listener: ListenerId, socket: OwnedFd) -> Happened {
        let Listeners { ids, former, .. } = &self.listeners;
        let Some((_, kind)) = ids.iter().chain(former).find(|(id, _)| *id == listener) else {
            return Happened::Nothing;
        };
        let kind = *kind;
        let Some(socket) = self.server.admit(socket, kind, &self.settings) else { return Happened::Nothing };
        let worker = self.server.worker_for(&socket, &self.settings);
        if worker == self.number {
            return self.add(socket, kind);
        }
        self.server.port(worker).send(Message::Socket(socket, via(kind)));
        Happened::Nothing
    }

    /// Takes over an admitted connection.
    pub fn add(&mut self, socket: OwnedFd, kind: Kind) -> Happened {
        self.add_socket(socket, kind).map_or(Happened::Nothing, Happened::Changed)
    }

    /// Takes over the socket of an admitted connection. Returns the connection's index, or `None`
    /// if it could not be added, for example because the peer has disconnected.
    pub fn add_socket(&mut self, socket: OwnedFd, kind: Kind) -> Option<u32> {
        if let Err(error) = net::prepare(&socket, &self.settings) {
            tracing::debug!("setting options of an accepted socket: {error}");
        }
        // The peer may have disconnected since the connection was admitted.
        let Ok((address, local_address)) = net::endpoints(&socket) else {
            self.server.uncount_connection(self.number);
            return None;
        };
        let layer = if kind == Kind::Tls { Layer::accept(self.server, self.clock.now_ms) } else { Ok(None) };
        let Ok(layer) = layer else {
            self.server.uncount_connection(self.number);
            return None;
        };
        let fd = socket.as_raw_fd();
        let id = match self.io.add(socket) {
            Ok(id) => id,
            Err(error) => {
                tracing::warn!("could not watch an accepted connection: {error}");
                self.server.uncount_connection(self.number);
                return None;
            }
        };
        let listener = Listener { worker: self.number, connection: token(id) };
        let client = self.server.client_joined(listener, fd, address, local_address);
        let session = Session::new(Arc::clone(&client), self.server.keyspace().users());
        client.is_handshaking.store(layer.is_some(), Relaxed);
        let connection = Connection::new(Socket { tls: layer, ..Socket::new(id) }, session);
        Some(insert(&mut self.connections, connection))
    }
}
