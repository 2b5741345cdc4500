//! The messages between workers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::clients::primary::NewPrimary;
use crate::clients::waiter::{Waiter, Woken};
use crate::events::pubsub::{Listener, Published};
use crate::events::tracking::News;
use crate::shard::ownership::Ownership;
use crate::shard::request::Parcel;

/// `CLIENT UNBLOCK` of a blocked client.
pub struct Unblock {
    /// Its waiter, which the sender has claimed.
    pub waiter: Arc<Waiter>,
    /// Whether the client gets an error instead of the reply to a timeout.
    pub with_error: bool,
}

/// A message to a worker.
pub enum Message {
    /// The reply to a request of one of its connections.
    Answer(Parcel),
    /// The shards that one of its connections asked for: its transaction can run.
    Brought(Parcel),
    /// The reply to a blocked command of one of its connections.
    Woken(Woken),
    /// Unblocks a client of one of its connections.
    Unblock(Unblock),
    /// A request to run here: this worker is the home of the next shard that it needs.
    Run(Parcel),
    /// A shard whose last owner had run its share of waiting requests: serve the others.
    Shard(Ownership),
    /// A new connection, accepted elsewhere, and the listener it came through.
    Socket(OwnedFd, u32),
    /// Close the connection of a client (token, client id).
    Kill(u64, u64),
    /// A message was published that connections of this worker subscribe to.
    Published(Arc<Published>),
    /// A command was run that one of its connections (token) monitors.
    Monitored(u64, Arc<[u8]>),
    /// The connection of this token follows the stream of effects, and there is more of it.
    Effects(u64),
    /// Invalidations for connections of this worker.
    Told(Vec<News>),
    /// Asks to report a moment without a running command ([`Message::Settled`]) to that connection
    /// of another worker, which then replies that a pause has started.
    Settle(Listener),
    /// A worker has settled, for a connection (token) of this one.
    Settled(u64),
    /// Reads the settings again.
    Reload,
    /// More effects are synced: replies that wait for them can be sent.
    Synced,
    /// Returns freed memory of this thread to the kernel.
    Purge,
    /// A snapshot has begun: its walk may need this worker.
    Snapshot,
    /// Runs the server's own work that needs all shards.
    Whole,
    /// Saves a snapshot and stops all workers: a signal asks for it.
    Save,
    /// Takes over the link to the primary that this replica follows.
    Primary(Box<NewPrimary>),
    /// Acquires all shards for the thread that loads a primary's dataset.
    TakeAll,
    /// Releases shards that such a thread held.
    Release(Vec<Ownership>),
    /// Disconnects blocked clients: the server has become a replica.
    Demoted,
    /// Stops.
    Stop,
}
