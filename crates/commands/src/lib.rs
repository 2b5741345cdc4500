//! The commands: one declarative record and one handler for each.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | record | all that is known of a command: arity, flags, keys, syntax, which shards it takes ([`records`]) |
//! | container | a command that only has subcommands (CLIENT, CONFIG, …) |
//! | keyed handler | runs while the shards of its route are held, with an `Access` to them |
//! | local handler | runs on the connection's worker, without any shard, with a `LocalContext` |
//!
//! # The way of a call
//!
//! [`records::resolve`] finds the record of a call's name (and its subcommand's) and checks the number of arguments. The
//! record's route says which shards the call takes: those of its keys, which the key specifications find; all; or those
//! that a function of its own names. The engine takes them and runs the handler, which writes the reply.
//!
//! # What it costs
//!
//! Finding a record takes about 7 ns and no allocation (`cargo bench -p pantala-benches --bench commands`). A record is data
//! in the binary (about 350 bytes and what it points to); nothing is built at the start.
#![forbid(unsafe_code)]

mod arguments;
pub mod bitmap;
pub mod client;
pub mod cluster;
pub mod command_docs;
pub mod config;
pub mod connection;
pub mod debug;
pub mod digest;
pub mod dump;
mod elements;
pub mod errors;
mod expiry;
pub mod flush;
pub mod functions;
pub mod generic;
pub mod geo;
pub mod hashes;
pub mod help;
pub mod hyperloglog;
pub mod introspection;
mod latency;
pub mod lists;
mod lolwut;
pub mod memory;
pub mod memory_usage;
pub mod migrate;
pub mod object;
mod populate;
mod propagated;
pub mod pubsub;
pub mod records;
mod replication;
mod scanning;
pub mod scripts;
mod server;
pub mod sets;
pub mod sort;
pub mod sorted_sets;
pub mod streams;
pub mod strings;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod testing_host;
pub mod transactions;
pub mod watching;

pub use records::{
    COMMANDS, NOT_IN_SCRIPTS, Unresolved, lookup, lookup_full, lookup_sub, not_built, resolve, resolve_as,
};
