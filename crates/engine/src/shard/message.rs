//! Messages between workers. A connection is named by its token in the receiving worker. [The
//! crate's page](crate) defines home, waiter and the other terms.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::clients::primary::NewPrimary;
use crate::clients::waiter::{Waiter, Woken};
use crate::events::pubsub::{Listener, Published};
use crate::events::tracking::Notification;
use crate::shard::ownership::Ownership;
use crate::shard::request::RequestNode;

/// `CLIENT UNBLOCK` of a blocked client.
pub struct Unblock {
    /// The client's waiter, which the sender has claimed.
    pub waiter: Arc<Waiter>,
    /// Whether the client receives an error instead of the reply to a timeout.
    pub with_error: bool,
}

/// A message to a worker. In the descriptions, *this worker* is the receiver.
pub enum Message {
    /// The reply to a request of one of this worker's connections.
    Answer(RequestNode),
    /// A request for shards by one of this worker's connections. Either the request holds all these
    /// shards, and the connection's transaction or script can run now, or the request was rejected.
    Gathered(RequestNode),
    /// The reply to a blocked command of one of this worker's connections.
    Woken(Woken),
    /// Unblocks a client of this worker.
    Unblock(Unblock),
    /// A request to run on this worker, which is the home of the next shard that it needs.
    Run(RequestNode),
    /// A shard with pending requests. Its last owner has run as many requests as it may in
    /// succession. This worker, the shard's home, continues.
    Shard(Ownership),
    /// A new connection that another worker has accepted, and the kind of its listening socket (TCP
    /// or TLS) as a number.
    Socket(OwnedFd, u32),
    /// A connection that moves from another worker to this one. The server defines the type.
    Moved(Box<dyn Any + Send>),
    /// The TLS state of one of this worker's connections (token). Another thread has performed a
    /// step of its handshake. The server defines the type.
    Handshake(u64, Box<dyn Any + Send>),
    /// Closes the connection of a client (token, client ID).
    Kill(u64, u64),
    /// A published message for subscribers of this worker.
    Published(Arc<Published>),
    /// Published messages for subscribers of this worker, which are the first in the queue of this
    /// worker's port
    /// ([`WorkerPort::take_packed`](crate::shard::keyspace::WorkerPort::take_packed)).
    Packed,
    /// Closes a subscriber (token): the messages in flight to it exceed its output limit.
    OverLimit(u64),
    /// A command for a connection (token) that runs `MONITOR`.
    Monitored(u64, Arc<[u8]>),
    /// A connection (token) that follows the stream of effects has more to read.
    Effects(u64),
    /// Invalidations for this worker's connections.
    Invalidations(Vec<Notification>),
    /// Asks this worker to send [`Message::Settled`] as soon as it is between two windows. The
    /// receiver is a connection of another worker that has started a pause, or the worker that
    /// acquires all shards for a load.
    Settle(Listener),
    /// Reports that the sender is between two windows, or within a busy script, which holds its
    /// shards. The report is for one of this worker's connections (token) or for a load: see
    /// [`Message::Settle`].
    Settled(u64),
    /// Reads the settings again.
    Reload,
    /// More effects are synced. Replies that wait for them can be sent.
    Synced,
    /// Makes this worker return its freed memory to the kernel.
    Purge,
    /// A snapshot has started, or a value that it has not read was moved. This worker walks its
    /// home shards, and encodes their entries for the snapshot.
    Snapshot,
    /// Makes this worker acquire all shards and run the server's queued work that needs them.
    Whole,
    /// Acquires all shards, saves a snapshot and ends the server. Sent for a signal, or for a
    /// `SHUTDOWN` that has waited for replicas or for the end of the link to the primary.
    Save,
    /// Takes over the link to the primary that this replica follows.
    Primary(Box<NewPrimary>),
    /// A sync of the append-only file has ended. A report to the primary was waiting for this sync.
    StreamSynced,
    /// Acquires all shards for the thread that loads a primary's dataset.
    TakeAll,
    /// A load holds all shards. So the pause of one of this worker's connections (token), which has
    /// waited for the load, is now in force.
    LoadHolds(u64),
    /// Releases shards that were acquired for [`Message::TakeAll`].
    Release(Vec<Ownership>),
    /// Disconnects blocked clients, because the server has become a replica.
    Demoted,
    /// Stops.
    Stop,
}
