//! The engine: shards, who may run code on them, and how commands reach them.
//!
//! # Layers
//!
//! Each module of the first level is a layer. A layer refers to those above it in this table and to
//! none below it; `tests/tests/engine_layers.rs` holds the source text against that.
//!
//! | layer | what |
//! | --- | --- |
//! | `tuning` | live settings, and `CLIENT PAUSE` |
//! | `command` | the record of a command: flags, arguments, where its keys stand |
//! | `faults` | broken rules, for the tests of isolation |
//! | `acl` | users and their rules; the log of denied calls |
//! | `clients` | what all workers see of a client; a command that waits; the flag of `WATCH` |
//! | `events` | pub/sub, `MONITOR`, keyspace notifications, client-side caching; `SLOWLOG`, `LATENCY` |
//! | `effect` | what a change of a key reaches: blocked clients, watches, the journal |
//! | `store` | the databases of a shard, their changes, expiry, eviction, memory accounting, rollback |
//! | `shard` | gates, requests, the executor: which thread runs a command on a shard |
//! | `session` | what a connection has agreed with the server, and what commands need of that |
//!
//! Three things would point the other way, and are inverted:
//!
//! | what | by |
//! | --- | --- |
//! | a record names its handler, which works with a shard or a session | the traits [`command::Keyed`] and [`command::Local`], which these layers implement |
//! | an event goes to a worker's mailbox | the trait `events::Workers` |
//! | a rollback changes keys of shards that are held | the trait `store::undo::HeldShards` |
//!
//! A [`Keyspace`](keyspace::Keyspace) is a [`Store`] with gates and mailboxes; a store is what databases
//! share, and has the [`Events`]: subscribers, monitors and settings. Each dereferences to the next, so
//! that a lower layer takes no more than it knows of.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | shard | a partition of the slots and all state of its keys ([`state::Shard`]) |
//! | gate | the atomic word that says who owns a shard ([`ownership`]) |
//! | ownership | the right to run code on a shard: a value that can't be copied |
//! | request | a command that could not run at once, in a form that any thread can run ([`request`]) |
//! | home | the worker that does a shard's periodic work |
//! | waiter | a command that waits for a key: `BLPOP` and its like ([`blocking`]) |
//! | user | a name with rules: what its connections may do ([`acl`]) |
//! | hint | a handle through which a worker prefetches from a shard that it does not own |
//!
//! # Who owns what
//!
//! | what | owner | others |
//! | --- | --- | --- |
//! | [`state::Shard`] | whoever has its [`ownership::Ownership`] | nobody |
//! | [`state::ShardStats`] | written by the shard's owner | read by anyone |
//! | [`client::Session`] | the connection's worker | nobody; [`client::Client`] is what they see |
//! | [`request::Request`] | whoever holds its box: a thread, a gate or a mailbox | nobody |
//! | [`tuning::Tuning`] | written by `CONFIG SET` and the like | read by anyone |
//!
//! # The way of a command
//!
//! [`executor::Executor::run_single`] takes the shard, calls the handler with an [`access::Access`], and frees the shard:
//! uncontended that is two atomic instructions on the shard's own cache line. [`executor`] draws the rest.
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
    access, eviction, exec, executor, expire, keyspace, message, ownership, request, routing, transaction, whole,
};
pub use store::{Store, db, fields, lazyfree, memory, state, undo};
pub use tuning::pause;

/// Clients, their sessions, and the server around them.
pub mod client {
    pub use crate::clients::client::{Client, ClientMemory, Clients, Endpoint, LIMIT_BYTES_MIN, Names};
    pub use crate::session::host::{ClusterNode, Host, LocalContext, MemoryFigures, PreferredEndpoint, Shutdown};
    pub use crate::session::{ReplyMode, Session};
}

/// What keyed handlers meet of the dictionary.
pub use pantala_dict::{EntryRef, NewPayload, Occupancy, Payload};
