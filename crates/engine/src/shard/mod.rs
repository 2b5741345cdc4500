//! Decides which thread runs a command on a shard. This module contains the ownership of shards,
//! their gates (the atomic words that show whether a shard is held), requests that are queued in
//! gates, the executor of each worker, and the messages between workers.

pub mod access;
pub(crate) mod blocking;
pub(crate) mod commit;
pub mod eviction;
pub mod exec;
pub mod executor;
pub mod expire;
mod faults;
mod gates;
mod hot;
pub(crate) mod invalidation;
pub mod keyspace;
pub mod message;
mod outbox;
pub mod ownership;
mod permissions;
mod port;
mod release_during_script;
pub mod request;
pub mod routing;
mod serving;
pub mod snapshot;
pub mod transaction;
mod transfer;
pub mod whole;
