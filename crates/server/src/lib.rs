//! The server: configuration, workers and connections. Combines all crates into the `pantala`
//! binary.
//!
//! | module | contents |
//! | --- | --- |
//! | [`cli`], [`config`] | the command line and redis.conf |
//! | [`process`] | the process and its host: sockets, limits, CPUs, signals, logging |
//! | [`renames`] | `rename-command` |
//! | [`startup`] | starting and stopping the workers |
//! | [`host`] | the state that all workers share; the services that commands call |
//! | [`worker`] | a worker's thread and its turn, which drives the next five layers |
//! | [`reactor`] | the lowest layer: sockets, and which connections are due |
//! | [`clients`] | the next layer: output besides replies, limits, closing |
//! | [`dispatch`] | transactions, scripts, requests to other workers |
//! | [`windows`] | parsing, prefetching and running commands |
//! | [`control`] | periodic work, settings |
//! | [`snapshot`] | the dataset in a file: `SAVE`, startup, shutdown |
//! | [`aof`] | the append-only file |
//! | [`replication`] | following a primary; replicas and the stream sent to them |
//! | [`scripting`] | the scripts and functions that all workers share; each worker's Lua states |
//! | [`stats`] | a worker's statistics |
//! | [`rates`] | statistics of the whole server |
//! | `tune` | applies the settings |
//! | [`users`] | users at startup, the ACL file |
//! | [`info`] | the text of `INFO` |
//! | [`net`] | accepted sockets |
#![forbid(unsafe_code)]

pub mod aof;
pub mod cli;
pub mod clients;
pub mod config;
pub mod control;
pub mod dispatch;
pub mod host;
pub mod info;
pub mod net;
pub mod process;
pub mod rates;
pub mod reactor;
pub mod renames;
pub mod replication;
pub mod scripting;
pub mod snapshot;
pub mod startup;
pub mod stats;
mod tune;
pub mod users;
pub mod windows;
pub mod worker;
