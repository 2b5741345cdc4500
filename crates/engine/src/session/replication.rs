//! Replication, as commands and connections see it. The server implements the traits.

use pantala_base::Outgoing;
use pantala_resp::Reply;

use crate::effect::log::Ahead;
use crate::session::Session;
use crate::shard::keyspace::Keyspace;

/// The next step of a connection that follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// More, now or later, or its being cut off.
    Ahead(Ahead),
    /// Nothing: the connection is closed when it has been sent everything.
    End,
    /// Nothing: the connection is closed now, for this reason.
    Failed(String),
}

/// The output of a connection after `SYNC` or `PSYNC`: a snapshot, the stream of effects, or both.
/// Its worker owns it, and reads when it is woken and when the parts read before have been sent.
pub trait Following: Send {
    /// Adds the next parts to `into`, until they have at least `bytes`, and returns what comes
    /// next.
    fn read(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> Next;

    /// Returns the number of bytes of the stream that it has not read.
    fn behind_bytes(&self) -> u64;

    /// Returns why the connection is to be closed, if it has been silent for too long. Called some
    /// times a second.
    fn timed_out(&mut self) -> Option<String>;

    /// Ends it: the connection closes.
    fn leave(&mut self, keyspace: &Keyspace);
}

/// The condition that ends a `WAIT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// So many replicas, or more, have acknowledged the stream up to the client's last command.
    pub replicas: u64,
    /// The stamp of that command ([`Session::stream_stamp`]).
    pub stamp: u64,
    /// The time after which the client gets the number of those that have, ms; 0: no limit.
    pub timeout_ms: i64,
}

/// The arguments of `FAILOVER`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failover<'a> {
    /// The replica, by host and port; otherwise the first that has everything.
    pub target: Option<(&'a [u8], i64)>,
    /// The time for it to receive everything, ms; 0: no limit.
    pub timeout_ms: i64,
    /// It becomes the primary after that time in any case.
    pub is_forced: bool,
}

/// Replication, for commands.
pub trait Replicator {
    /// Runs `SYNC`, or `PSYNC` with its arguments: the connection follows, or gets an error.
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

    /// Returns how many replicas have acknowledged the stream up to a command, given its
    /// [`Session::stream_stamp`]; `None` if the stream does not have all of its effects yet.
    fn acknowledged(&self, stamp: u64) -> Option<u64>;

    /// Changes the replication ID: no replica can continue (`DEBUG CHANGE-REPL-ID`).
    fn change_id(&self);
}
