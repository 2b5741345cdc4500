//! What others hear of commands and changes: pub/sub, `MONITOR`, keyspace notifications, client-side
//! caching; and what operators read afterwards: `SLOWLOG`, `LATENCY`.

pub mod latency;
pub mod monitor;
pub mod notify;
pub mod pubsub;
pub mod slowlog;
pub mod tracking;
