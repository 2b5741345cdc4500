//! The commands: one declarative record and one handler for each.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | record | everything known about a command: arity, flags, keys, syntax, route ([`records`]) |
//! | container | a command with subcommands (CLIENT, CONFIG, …) |
//! | shard | a part of the key space; a thread must hold it to run commands on its keys, and only one thread at a time can |
//! | partition | the word for a shard in the documents for users, which use the word "shard" for a group of partitions |
//! | route | the shards that a call needs, or the rule by which a record determines them |
//! | keyed handler | a handler that runs while its shards are held, with an `Access` to them |
//! | undetermined command | a command whose change depends not only on its arguments and the dataset, but also on random numbers, the clock, floating-point arithmetic or blocking; its handler must state the propagated form |
//! | woken command | a blocked command that is run again because one of its keys has changed |
//! | propagated form | the command sent to replicas and the append-only file |
//! | local handler | a handler that runs without shards on the client's worker (`LocalContext`) |
//!
//! # The path of a call
//!
//! [`records::resolve`] finds the record by the name of the command and its subcommand, and checks
//! the number of arguments. The record's route says which shards the call needs: the shards of its
//! keys, all shards, or the shards that a function of the command chooses. The record's key
//! specifications locate the keys among the arguments. The engine acquires these shards and runs
//! the handler, which writes the reply.
//!
//! # Costs
//!
//! Resolving a record takes about 7 ns and no allocation (`cargo bench -p pantala-benches --bench
//! commands`). A record is static data (about 350 bytes plus what it points to); nothing is built
//! at startup.
#![forbid(unsafe_code)]

pub mod acl;
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
mod failover;
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
mod modules;
pub mod object;
mod populate;
mod propagated;
pub mod pubsub;
pub mod records;
mod replicaof;
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
    COMMANDS, NOT_IN_SCRIPTS, Unresolved, lookup, lookup_full, lookup_sub, resolve, resolve_as, unimplemented,
};
pub use replication::WAITAOF_NOT_APPENDING;
