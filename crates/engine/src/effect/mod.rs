//! Effects: the changes of committed commands, in the form in which Redis propagates them.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | effect | one propagated command, with its database |
//! | unit | the effects of one command, transaction or script, propagated together or not at all |
//! | pending effects | the effects of a shard since its owner last committed ([`Pending`]) |
//! | stream | units in order: those of one worker, or those of all workers, merged ([`journal`]) |
//! | stamp | a unit's place in the merged order of all streams |
//! | epoch | a period whose end the journal determines. The high bits of a stamp are the epoch's number |
//! | log | the merged stream, in which each byte has an offset, in memory and partly on disk ([`log`]) |
//! | segment | the units that a worker has committed and the journal has not merged |
//! | reader | a consumer of the log at its own position: a replica, the append-only file |
//! | cut | a stamp at which a reader can start: the reader receives exactly the units with later stamps |
//! | backlog | the last bytes of the log, kept for later readers (`repl-backlog-size`) |
//!
//! # Sources of effects
//!
//! Every change of a key passes through [`change`], which marks the key's shard while the journal
//! is on. After the handler returns, `shard::commit` turns the mark into an effect. The effect is
//! the command as the client sent it, unless the handler has passed other commands to
//! [`Access::propagate`](crate::shard::access::Access::propagate). The deletion of an expired or
//! evicted key adds a `DEL` or `UNLINK` to the shard's pending effects, before the effect of the
//! current command.
//!
//! # Order
//!
//! A unit is stamped while all its shards are held:
//!
//! ```text
//! stamp = 1 + max(last stamps of its shards, last stamp this worker has seen, epoch << 24)
//! ```
//!
//! The shards and the worker then store the stamp as their clock (Lamport, "Time, Clocks, and the
//! Ordering of Events in a Distributed System", 1978). So stamps ascend on each shard, each worker
//! and each connection. If a command runs on a worker other than its connection's, the message with
//! the result contains the clock of the worker that ran it. The connection's worker raises its own
//! clock to at least this value, so the connection's next stamp is higher. No counter is written by
//! more than one worker at a time.
//!
//! # Prefixes
//!
//! The journal increments the epoch. It then waits until each worker has been seen asleep or
//! between two turns (iterations of its event loop). After that no unit can get a stamp of an
//! earlier epoch. So the units of earlier epochs, sorted by stamp, are a prefix of the merged
//! order. The merged order contains whole units, and respects the order of each shard and each
//! connection. Each worker reports its state in its own atomic word ([`journal`]).
//!
//! # What it costs
//!
//! Without a reader, each turn costs one load and one branch. Commands have no additional cost:
//! they load the word with the bits for events and `MONITOR` anyway, and it also contains the
//! journal's bit.

pub(crate) mod batch;
pub mod blocking;
pub mod change;
pub mod journal;
pub mod log;
mod merge;
pub(crate) mod pending;
pub(crate) mod piece;
pub(crate) mod published;
mod segment;
pub(crate) mod watches;

pub use batch::Unit;
pub use journal::{Journal, Lag, Reader, Which};
pub(crate) use pending::Pending;
pub use segment::Seen;
pub(crate) use segment::Stream;
