//! The engine: shards, who may run code on them, and how commands reach them.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | shard | a partition of the slots and all state of its keys ([`shard::Shard`]) |
//! | gate | the atomic word that says who owns a shard ([`ownership`]) |
//! | ownership | the right to run code on a shard: a value that can't be copied |
//! | request | a command that could not run at once, in a form that any thread can run ([`request`]) |
//! | home | the worker that does a shard's periodic work |
//! | waiter | a command that waits for a key: `BLPOP` and its like ([`blocking`]) |
//! | hint | a handle through which a worker prefetches from a shard that it does not own |
//!
//! # Who owns what
//!
//! | what | owner | others |
//! | --- | --- | --- |
//! | [`shard::Shard`] | whoever has its [`ownership::Ownership`] | nobody |
//! | [`shard::ShardStats`] | written by the shard's owner | read by anyone |
//! | [`client::Session`] | the connection's worker | nobody; [`client::Client`] is what they see |
//! | [`request::Request`] | whoever holds its box: a thread, a gate or a mailbox | nobody |
//! | [`tuning::Tuning`] | written by `CONFIG SET` and the like | read by anyone |
//!
//! # The way of a command
//!
//! [`executor::Executor::run_single`] takes the shard, calls the handler with an [`access::Access`], and frees the shard:
//! uncontended that is two atomic instructions on the shard's own cache line. [`executor`] draws the rest.
#![deny(unsafe_op_in_unsafe_fn)]

mod clients;
pub mod command;
pub mod effect;
mod events;
pub mod faults;
mod session;
pub mod shard;
mod store;
pub mod tuning;

pub use clients::client;
pub use effect::blocking;
pub use events::{latency, monitor, notify, pubsub, slowlog, tracking};
pub use session::functions;
pub use shard::{access, exec, executor, keyspace, message, ownership, request, transaction};
pub use store::{db, eviction, expire, fields, lazyfree, memory, undo};
pub use tuning::pause;

/// What keyed handlers meet of the dictionary.
pub use pantala_dict::{EntryRef, NewPayload, Occupancy, Payload};
