//! What workers send each other.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::clients::waiter::{Waiter, Woken};
use crate::events::pubsub::{Listener, Published};
use crate::events::tracking::News;
use crate::shard::ownership::Ownership;
use crate::shard::request::Parcel;

/// `CLIENT UNBLOCK` of a client that waits.
pub struct Unblock {
    /// What it waited with: claimed by who sends this.
    pub waiter: Arc<Waiter>,
    /// It is answered an error, not that its time is over.
    pub with_error: bool,
}

/// A message to a worker.
pub enum Message {
    /// The answer to a request of one of its connections.
    Answer(Parcel),
    /// The shards that one of its connections asked for: its transaction can run.
    Brought(Parcel),
    /// The answer to a command of one of its connections that waited.
    Woken(Woken),
    /// A command of one of its connections is to wait no longer.
    Unblock(Unblock),
    /// A request to run here: this worker is the home of the next shard that it needs.
    Run(Parcel),
    /// A shard whose last owner had run its share of waiting requests: go on with them.
    Shard(Ownership),
    /// A new connection, accepted elsewhere, and the listener it came through.
    Socket(OwnedFd, u32),
    /// Close the connection of a client (token, client id).
    Kill(u64, u64),
    /// Something was published that connections of this worker listen to.
    Published(Arc<Published>),
    /// A command was run that one of its connections (token) is to see: `MONITOR`.
    Monitored(u64, Arc<[u8]>),
    /// The connection of this token follows the stream of effects, and there is more of it.
    Effects(u64),
    /// Connections of this worker are to be told of keys that have changed.
    Told(Vec<News>),
    /// Say that no command is being run just now ([`Message::Settled`]), to that connection of another worker: it waits to tell its client that a pause has begun.
    Settle(Listener),
    /// A worker has settled, for a connection (token) of this one.
    Settled(u64),
    /// Look at the settings again.
    Reload,
    /// Return freed memory of this thread to the kernel.
    Purge,
    /// Save a snapshot, and have all workers stop: a signal asks for it.
    Save,
    /// Stop.
    Stop,
}
