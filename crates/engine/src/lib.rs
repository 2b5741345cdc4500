//! The engine: shards, their ownership, and how commands reach them.
//!
//! # Layers
//!
//! Each module of the first level is a layer. A layer refers to those above it in this table and to
//! none below it; `tests/tests/engine_layers.rs` holds the source text against that.
//!
//! | layer | what |
//! | --- | --- |
//! | `tuning` | live settings, and `CLIENT PAUSE` |
//! | `command` | the record of a command: flags, arguments, positions of its keys |
//! | `faults` | broken rules, for the tests of isolation |
//! | `acl` | users and their rules; the log of denied calls |
//! | `clients` | the shared state of a client; blocked commands; the flag of `WATCH` |
//! | `events` | pub/sub, `MONITOR`, notifications, client-side caching; `SLOWLOG`, `LATENCY` |
//! | `effect` | the sinks of a change of a key: blocked clients, watches, the journal |
//! | `store` | the databases of a shard: changes, expiry, eviction, memory, rollback |
//! | `shard` | gates, requests, the executor: which thread runs a command on a shard |
//! | `session` | the state of a connection, and what its commands need of the server |
//!
//! Three dependencies would point the other way, and are inverted:
//!
//! | what | by |
//! | --- | --- |
//! | a record names a handler of a higher layer | [`command::Keyed`], [`command::Local`] |
//! | an event goes to a worker's mailbox | the trait `events::Workers` |
//! | a rollback changes keys of shards that are held | the trait `store::undo::HeldShards` |
//!
//! A [`Keyspace`](keyspace::Keyspace) is a [`Store`] with gates and mailboxes. A store is the state
//! shared by all databases, and has the [`Events`]: subscribers, monitors and settings. Each
//! dereferences to the next, so that a lower layer takes the narrowest type.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | shard | a partition of the slots and all state of its keys ([`state::Shard`]) |
//! | gate | the atomic word that holds a shard's ownership and queue ([`ownership`]) |
//! | ownership | the right to run code on a shard: a value that can't be copied |
//! | request | a command that could not run at once, for any thread to run ([`request`]) |
//! | home | the worker that does a shard's periodic work |
//! | waiter | a command blocked on a key: `BLPOP` and its variants ([`blocking`]) |
//! | user | a name with rules: what its connections may do ([`acl`]) |
//! | hint | a handle through which a worker prefetches from a shard that it does not own |
//!
//! # Who owns what
//!
//! | what | owner | others |
//! | --- | --- | --- |
//! | [`state::Shard`] | the holder of its [`ownership::Ownership`] | no access |
//! | [`state::ShardStats`] | written by the shard's owner | read by any thread |
//! | [`client::Session`] | the connection's worker | no access; they read its [`client::Client`] |
//! | [`request::Request`] | the holder of its box: a thread, a gate or a mailbox | no access |
//! | [`tuning::Tuning`] | written by `CONFIG SET` and the like | read by any thread |
//!
//! # The path of a command
//!
//! [`executor::Executor::run_single`] takes the shard, calls the handler with an
//! [`access::Access`], and frees the shard: uncontended that is two atomic instructions on the
//! shard's own cache line. The head of [`executor`] has a diagram.
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

/// Clients, their sessions, and the server around them.
pub mod client {
    pub use crate::clients::client::{Client, ClientMemory, Clients, Endpoint, LIMIT_BYTES_MIN, Names};
    pub use crate::clients::primary::{NewPrimary, PrimaryLink, Progress};
    pub use crate::session::host::{
        AllShards, ClusterNode, Followed, Host, LocalContext, MemoryFigures, PreferredEndpoint, Shutdown,
    };
    pub use crate::session::replication::{Acknowledged, Failover, Following, Next, Replicator};
    pub use crate::session::{Durability, ReplyMode, Session};
}

/// The parts of the dictionary that keyed handlers use.
pub use pantala_dict::{EntryRef, NewPayload, Occupancy, Payload};
