//! The primary's side of replication. The connections of replicas belong to workers, like those of
//! clients.

mod care;
mod commands;
mod drain;
mod flows;
mod following;
mod full_sync;
mod info;
mod shared_feed;
mod waits;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pantala_engine::effect::Reader;
use pantala_engine::message::Message;
use pantala_engine::pubsub::Listener;
use pantala_replication::{Mark, Replica};

use crate::host::Server;
pub use drain::Draining;
pub(super) use drain::quiesce;
use flows::FlowSync;
use shared_feed::{FlowReader, SharedFeed};
pub(super) use waits::PendingWait;
pub use waits::end_local_waits;

/// The bytes that are sent to a replica next.
enum Phase {
    /// Nothing: the replica waits for a snapshot.
    Wait,
    /// The bytes of a snapshot.
    Bulk { feed: Arc<SharedFeed>, reader: FlowReader, trailer: Vec<u8> },
    /// Nothing until the replica has acknowledged the snapshot. The replica recognizes the end of
    /// the snapshot by random bytes that the primary has announced, and must not receive bytes of
    /// the stream together with them.
    UntilAck,
    /// The stream.
    Stream,
    /// Nothing. The connection is to be closed, for this reason.
    Failed(String),
}

/// A request for data: `SYNC` or `PSYNC`, and the connection that has sent it.
pub(super) struct Asker {
    link: Arc<Link>,
    replica: Replica,
    /// The connection's name in the log.
    name: String,
    /// The ID and the offset of the `PSYNC`; `None` for `SYNC`.
    asked: Option<(Vec<u8>, i64)>,
}

impl Asker {
    /// Returns the link of the connection.
    pub(super) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }
}

/// The part of a link that the worker of the connection and the full sync share.
struct Part {
    phase: Phase,
    /// Lines to send before the bytes of the phase.
    lines: Vec<u8>,
    /// The flows of the full sync. `None` if it has only one, or after the link has closed.
    flows: Option<Arc<FlowSync>>,
    /// The replica's reader of the stream. It starts at the snapshot's offset or, in a partial
    /// resync, at the offset from which the replica continues. `None` until this offset is known.
    stream: Option<Reader>,
    /// Whether the connection has closed.
    is_disconnected: bool,
}

/// The flows of a full sync in progress, which replicas request by the token.
pub(super) struct AnnouncedFlows {
    /// The client ID of the replica's link.
    client: u64,
    token: Mark,
    flows: Arc<FlowSync>,
}

/// The connection of a replica.
pub(super) struct Link {
    client: u64,
    /// The replica's name in the log.
    name: String,
    /// Whether the replica has sent `SYNC`. Such a replica understands no reply to `PSYNC`, and
    /// sends no acknowledgements.
    is_old: bool,
    part: Mutex<Part>,
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Link {
    fn new(server: &Server, (client, name): (u64, String), listener: Listener, is_old: bool, phase: Phase) -> Self {
        let ports = Arc::clone(server.keyspace().ports());
        let wake = Arc::new(move || ports[listener.worker as usize].send(Message::Effects(listener.connection)));
        let part = Part { phase, lines: Vec::new(), flows: None, stream: None, is_disconnected: false };
        Link { client, name, is_old, part: Mutex::new(part), wake }
    }

    fn part(&self) -> MutexGuard<'_, Part> {
        self.part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the worker that owns the connection.
    pub(super) fn wake(&self) {
        (self.wake)();
    }

    /// Closes the connection, for this reason.
    pub(super) fn fail(&self, why: &str) {
        let former = std::mem::replace(&mut self.part().phase, Phase::Failed(why.to_owned()));
        if let Phase::Bulk { feed, reader, .. } = former {
            // Otherwise the snapshot would wait for this reader forever.
            feed.leave(reader);
        }
        self.wake();
    }
}
