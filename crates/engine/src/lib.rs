//! The engine: the shards of the dataset, which thread owns a shard, and how commands run on
//! shards.
//!
//! # Layers
//!
//! Each top-level module is a layer. The table lists the lowest layer first. A layer may use only
//! lower layers. `tests/tests/engine_layers.rs` checks this in the source text.
//!
//! | layer | contents |
//! | --- | --- |
//! | `tuning` | live settings, and `CLIENT PAUSE` |
//! | `command` | the record of a command: flags, arguments, positions of its keys |
//! | `faults` | fault injection: deliberate violations of isolation, which tests must detect |
//! | `acl` | users and their rules; the log of denied calls |
//! | `clients` | the shared state of a client; blocked commands; the flag that is raised when a watched key changes |
//! | `events` | pub/sub, `MONITOR`, notifications, client-side caching; `SLOWLOG`, `LATENCY` |
//! | `effect` | the sinks of key changes: blocked clients, watches, the journal |
//! | `store` | the databases of a shard: changes, expiry, eviction, memory, rollback |
//! | `shard` | gates, requests, the executor: which thread runs a command on a shard |
//! | `session` | the state of a connection, and the server's interface for commands |
//!
//! Three dependencies would point from a lower layer to a higher one. For each of them, the lower
//! layer declares a trait, which the higher layer implements:
//!
//! | dependency | traits |
//! | --- | --- |
//! | a record contains a handler of a higher layer | [`command::Keyed`], [`command::Local`] |
//! | an event is sent to a worker's mailbox | `events::Workers` |
//! | a rollback changes keys of shards that are held | `store::undo::HeldShards` |
//!
//! A [`Keyspace`](keyspace::Keyspace) is a [`Store`] with gates and mailboxes. A `Store` contains
//! the state shared by all databases, and the [`Events`]: subscribers, monitors and settings.
//! `Keyspace` dereferences to `Store`, and `Store` to `Events`, so a function can take the
//! narrowest type that it needs.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | worker | a thread with an event loop. It owns the connections that it has accepted |
//! | turn | one iteration of a worker's event loop: the worker reads input, runs commands and sends replies |
//! | window | commands that a worker has parsed and runs together. A turn has one or more windows |
//! | partition | a range of slots, and all state of its keys ([`state::Shard`]): the unit of ownership. Nearly all code calls it a shard ([`keyspace`] says why) |
//! | shard | for users, a group of partitions with one home. In nearly all code, a partition |
//! | gate | an atomic word of each shard. It shows whether the shard is held, and refers to queued requests ([`ownership`]) |
//! | ownership | the right to run code on a shard: a value that can't be copied |
//! | request | a command that waits for a busy shard, and that any thread may run ([`request`]) |
//! | parked | a connection with a request in flight: its later commands wait |
//! | backlog | the requests that a shard's owner has taken from the gate and must still run. The journal has another backlog: see [`effect`] |
//! | keyed, local | a keyed command's handler runs on shards; a local command's handler needs no shard |
//! | home | the worker that a shard is assigned to. It does the shard's periodic work and, with `--execution owner`, runs the shard's one-key commands |
//! | waiter | a command blocked on a key: `BLPOP` and its variants ([`blocking`]) |
//! | user | a name with rules that say which commands the user's connections may run ([`acl`]) |
//! | hint | a handle for prefetching from the dictionary of a shard that the worker does not own |
//! | sink | a part of the engine that is notified of changed keys ([`effect::change`]) |
//! | effect | a change made by a command, in the form that replicas receive ([`effect`]) |
//! | unit | the effects of one command, transaction or script |
//! | stamp | a number that determines a unit's place in the order of all units |
//! | physical database | stored data that clients see under a database number. `SWAPDB` exchanges the numbers of two physical databases |
//! | access word | a number in each entry that records when or how often the key was accessed |
//! | touch | update the access word of a key, because a command has read or written the key |
//!
//! # Who owns what
//!
//! | what | owner | other threads |
//! | --- | --- | --- |
//! | [`state::Shard`] | the holder of its [`ownership::Ownership`] | no access |
//! | [`state::ShardStats`] | written by the shard's owner | read by any thread |
//! | [`client::Session`] | the connection's worker | no access; they read the [`client::Client`] |
//! | [`request::Request`] | the holder of its box: a thread, a gate or a mailbox | no access |
//! | [`tuning::Tuning`] | none: its fields are atomics, which commands such as `CONFIG SET` write | read by any thread |
//!
//! # The path of a command
//!
//! [`executor::Executor::run_single`] takes the shard, calls the handler with an
//! [`access::Access`], and frees the shard. Without contention, taking the shard costs one atomic
//! instruction, and freeing it costs another, both on the shard's own cache line. The head of
//! [`executor`] has a diagram. A `GET` of a key for which workers contend reads a published copy of
//! the value instead (`effect::published`).
#![deny(unsafe_op_in_unsafe_fn)]

pub mod acl;
mod clients;
pub mod command;
pub mod effect;
mod events;
pub mod faults;
mod session;
mod shard;
mod store;
pub mod tuning;
pub use effect::blocking;
pub use events::{Events, latency, monitor, notify, pubsub, slowlog, tracking};
pub use session::functions;
pub use shard::{
    access, eviction, exec, executor, expire, keyspace, message, ownership, request, routing, snapshot, transaction,
    whole,
};
pub use store::{Store, db, fields, lazyfree, memory, state, undo};
pub use tuning::pause;

/// Clients, their sessions, and the interface of the server for commands.
pub mod client {
    pub use crate::clients::client::{Client, ClientMemory, Clients, Endpoint, LIMIT_BYTES_MIN, Names};
    pub use crate::clients::listener::Listener;
    pub use crate::clients::primary::{NewPrimary, PrimaryLink, Progress};
    pub use crate::session::host::{
        AllShards, ClusterNode, Configured, FileCommand, Followed, Host, PreferredEndpoint, ProcessMemory, Shutdown,
    };
    pub use crate::session::local::{LocalCall, LocalCaller, LocalContext, run_local};
    pub use crate::session::replication::{Acknowledged, Awaited, Failover, Following, Next, OnDisk, Replicator};
    pub use crate::session::{Durability, ReplyMode, Session};
}

/// The parts of the dictionary that keyed handlers use.
pub use pantala_dict::{EntryRef, NewPayload, Occupancy, Payload};
