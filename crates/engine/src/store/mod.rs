//! Databases: what a shard holds, and what its owner does to it.

pub mod db;
pub mod eviction;
pub mod expire;
pub mod fields;
pub mod lazyfree;
pub mod memory;
mod rdb;
pub mod state;
pub mod undo;
