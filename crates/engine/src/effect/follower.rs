//! A connection that reads the stream of effects: what `SYNC` makes of it.

use std::sync::Arc;

use pantala_base::crc64;

use crate::effect::Consumer;
use crate::events::pubsub::Listener;
use crate::shard::keyspace::WorkerPort;
use crate::shard::message::Message;

/// Hands the stream to the worker of a connection.
pub(crate) struct Follower {
    ports: Arc<[WorkerPort]>,
    connection: Listener,
}

impl Follower {
    pub(crate) fn new(ports: Arc<[WorkerPort]>, connection: Listener) -> Self {
        Follower { ports, connection }
    }

    fn send(&self, bytes: Arc<[u8]>) {
        let Listener { worker, connection } = self.connection;
        self.ports[worker as usize].send(Message::Effects(connection, bytes));
    }
}

impl Consumer for Follower {
    /// Sends a snapshot without keys: the stream holds what is written from now on.
    fn begin(&mut self) {
        let mut snapshot = b"REDIS0010\xff".to_vec();
        snapshot.extend_from_slice(&crc64(0, &snapshot).to_le_bytes());
        let mut bytes = format!("${}\r\n", snapshot.len()).into_bytes();
        bytes.append(&mut snapshot);
        self.send(bytes.into());
    }

    fn take(&mut self, bytes: &Arc<[u8]>) -> bool {
        self.send(Arc::clone(bytes));
        true
    }
}
