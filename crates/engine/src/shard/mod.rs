//! Shards and the threads that run commands on them.

pub mod access;
pub mod exec;
pub mod executor;
mod handing_on;
pub mod keyspace;
pub mod message;
pub mod ownership;
pub mod request;
mod serving;
pub(crate) mod telling;
pub mod transaction;

pub use crate::store::state::{DatabaseStats, Shard, ShardStats};
