//! Effects: the changes of committed commands, in the form in which Redis propagates them.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | effect | one command of the propagated stream, with its database |
//! | unit | the effects of one command, transaction or script: propagated together or not at all |
//! | pending effects | the effects of a shard since its owner last committed ([`Pending`]) |
//! | stream | the units that one worker committed, in order ([`journal`]) |
//! | stamp | a unit's place in the merged order of all streams |
//! | epoch | a stretch of time that the journal's thread ends; the high bits of a stamp |
//! | log | the merged stream in memory, by offset ([`log`]) |
//! | reader | a consumer of the log at its own position: a replica, the AOF, slot migration |
//! | backlog | the part of the log that all readers have passed |
//!
//! # Where effects come from
//!
//! Every change of a key ends in [`db::change`](crate::effect::change), which marks its shard while
//! the journal is on. After the handler, `shard::commit` turns the mark into an effect: the command
//! as the client sent it, unless the handler called
//! [`Access::propagate`](crate::shard::access::Access::propagate) with another one. An expired or
//! evicted key leaves a `DEL` or `UNLINK` among the shard's pending effects, before the command
//! that found it.
//!
//! # Order
//!
//! A unit is stamped while all its shards are held:
//!
//! ```text
//! stamp = 1 + max(last stamps of its shards, last stamp this worker has seen, epoch << 24)
//! ```
//!
//! and the shards and the worker remember it (Lamport, "Time, Clocks, and the Ordering of Events in
//! a Distributed System", 1978). So stamps ascend along each shard, along each worker, and along
//! each connection: a reply that another worker computed carries that worker's clock back. No
//! counter is written by more than one worker at a time.
//!
//! # Prefixes
//!
//! The journal's thread raises the epoch and waits until each worker has been seen between two
//! turns or asleep since. After that no unit can get a stamp of an earlier epoch, so the existing
//! ones, sorted, are a prefix of the merged order: it is closed under the order of shards,
//! connections and units. A worker reports by one word of its own ([`journal`]).
//!
//! # What it costs
//!
//! Without a reader: one load and a branch in each turn. A command pays nothing, since the
//! journal's bit is in the word that is checked for all observers.

pub(crate) mod batch;
pub mod blocking;
pub mod change;
pub mod journal;
pub mod log;
mod merge;
pub(crate) mod pending;
mod segment;
pub(crate) mod watches;

pub use batch::Unit;
pub use journal::{Behind, Journal, Reader};
pub(crate) use pending::Pending;
pub use segment::Seen;
pub(crate) use segment::Stream;
