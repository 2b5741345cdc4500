//! A connection that reads the stream of effects: what `SYNC` makes of it.

use std::sync::Arc;

use pantala_base::crc64;

use crate::clients::listener::Listener;
use crate::effect::Consumer;
use crate::events::Workers;

/// Hands the stream to the worker of a connection.
pub(crate) struct Follower {
    workers: Arc<dyn Workers>,
    connection: Listener,
}

impl Follower {
    pub(crate) fn new(workers: Arc<dyn Workers>, connection: Listener) -> Self {
        Follower { workers, connection }
    }

    fn send(&self, bytes: Arc<[u8]>) {
        self.workers.send_effects(self.connection, bytes);
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
