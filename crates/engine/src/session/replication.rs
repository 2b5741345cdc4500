//! Replication, as commands and connections see it. The server implements the traits.

use pantala_base::Outgoing;
use pantala_resp::Reply;

use crate::effect::log::Ahead;
use crate::session::host::{FileCommand, Shutdown};
use crate::session::{Durability, Session};
use crate::shard::keyspace::Keyspace;

/// The next step of a replica's connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The state of the stream after the parts that were read. If the state is [`Ahead::CutOff`],
    /// the connection must be closed.
    Ahead(Ahead),
    /// The connection must be closed after all output has been sent.
    End,
    /// The connection must be closed immediately, for this reason.
    Failed(String),
}

/// The output of a connection after `SYNC` or `PSYNC`: a snapshot, the stream of effects, or both.
/// The connection's worker owns this value. The worker calls [`Following::read`] when the stream
/// wakes the worker, and when earlier parts have been sent.
pub trait Following: Send {
    /// Appends the next parts to `into` until they have at least `bytes` bytes. Returns the next
    /// step.
    fn read(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> Next;

    /// Returns the number of unread bytes of the stream that count towards the connection's output
    /// limits.
    fn limited_bytes(&self) -> u64;

    /// Returns why the connection must be closed, or `None` if it need not be. The reason is that
    /// for too long the replica has acknowledged nothing, or no part of the snapshot could be sent.
    /// `pending_bytes` is the size of the connection's output that has not been sent; if it
    /// changes, the replica accepts bytes. Called a few times a second.
    fn timed_out(&mut self, pending_bytes: usize) -> Option<String>;

    /// Ends the output, because the connection is closed or the client has sent `RESET`.
    fn leave(&mut self, keyspace: &Keyspace);
}

/// The condition that ends a `WAIT` or a `WAITAOF`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Minimum number of replicas that must have acknowledged the stream up to the client's last
    /// command. For `WAITAOF`, these replicas must have the stream on disk up to this command.
    pub replicas: u64,
    /// `None` for `WAIT`. For `WAITAOF`, whether this server must have the effects on disk.
    pub local: Option<bool>,
    /// The stamp of the client's last command ([`Session::stream_stamp`]).
    pub stamp: u64,
    /// Timeout in ms; 0: no timeout. After the timeout the reply contains the number of replicas
    /// that have acknowledged until then.
    pub timeout_ms: i64,
    /// The client's `CLIENT DURABILITY`.
    pub durability: Durability,
}

/// The condition for which a client is blocked by a command without keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// `WAIT` or `WAITAOF`.
    Acknowledged(Acknowledged),
    /// `SHUTDOWN`, which waits as
    /// [`Host::drains_before`](crate::session::host::Host::drains_before) describes.
    Shutdown(Shutdown),
    /// A command that reads or writes files, which a thread runs.
    Files(FileCommand),
}

/// The servers that have a client's effects on disk, as known at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDisk {
    /// Whether this server writes an append-only file.
    pub is_appending: bool,
    /// Whether the effects are on disk here before the reply is sent (`appendfsync always`).
    pub local: bool,
    /// The number of replicas that have the effects on disk; `None` if the stream does not contain
    /// all of the effects yet.
    pub replicas: Option<u64>,
}

/// The arguments of `FAILOVER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failover<'a> {
    /// The replica, by host and port. `None`: the first replica that has received everything.
    pub target: Option<(&'a [u8], i64)>,
    /// Time limit for the replica to receive everything, ms; 0: no limit.
    pub timeout_ms: i64,
    /// Whether the replica becomes the primary after the time limit even if it has not received
    /// everything.
    pub is_forced: bool,
}

/// Replication, for commands.
pub trait Replicator {
    /// Runs `SYNC`, or `PSYNC` with its arguments: the client becomes a replica or receives an
    /// error.
    fn sync(&self, session: &mut Session, psync: Option<&[&[u8]]>, reply: &mut Reply<'_>);

    /// Runs `REPLCONF` with these options.
    fn configure(&self, session: &mut Session, options: &[&[u8]], reply: &mut Reply<'_>);

    /// Runs `ROLE`.
    fn role(&self, reply: &mut Reply<'_>);

    /// Runs `FAILOVER`: makes a replica the primary of this server.
    ///
    /// # Errors
    /// The error reply.
    fn fail_over(&self, wanted: &Failover<'_>) -> Result<(), String>;

    /// Runs `FAILOVER ABORT`.
    ///
    /// # Errors
    /// The error reply.
    fn abort_failover(&self) -> Result<(), String>;

    /// Returns the number of replicas that have acknowledged all effects below a stamp
    /// ([`Session::stream_stamp`]); `None` if the stream does not contain all of these effects yet.
    fn acknowledged(&self, stamp: u64) -> Option<u64>;

    /// Returns which servers have all effects below a stamp on disk, for `WAITAOF`.
    fn on_disk(&self, stamp: u64, durability: Durability) -> OnDisk;

    /// Changes the replication ID, so that no replica can continue with a partial resync (`DEBUG
    /// CHANGE-REPL-ID`).
    fn change_id(&self);
}
