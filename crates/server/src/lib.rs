//! The server: configuration, workers and connections. Combines all crates into the `pantala`
//! binary.
//!
//! A *shard* is a part of the keyspace. A *turn* is one iteration of a worker's event loop. A
//! *window* is a list of parsed commands that a worker runs together. A turn can run several
//! windows.
//!
//! | module | contents |
//! | --- | --- |
//! | [`cli`], [`config`] | the command line and redis.conf |
//! | [`process`] | the process and its host: sockets, limits, CPUs, signals, logging |
//! | [`renames`] | `rename-command` |
//! | [`startup`] | starts and stops the workers |
//! | [`host`] | the state that all workers share; the services that commands call |
//! | [`worker`] | a worker's thread and its turns, which call the next five modules |
//! | [`reactor`] | the lowest layer: sockets, and which connections have work to do |
//! | [`clients`] | the next layer: output besides replies, limits, closing of connections |
//! | [`dispatch`] | transactions, scripts, requests to other workers |
//! | [`windows`] | parsing, prefetching and running commands |
//! | [`control`] | periodic work, changes of the settings |
//! | [`snapshot`] | the dataset in an RDB file: `SAVE`, `BGSAVE`, startup, shutdown |
//! | [`aof`] | the append-only file |
//! | [`replication`] | following a primary; sending the stream to replicas |
//! | [`scripting`] | the scripts and functions that all workers share; each worker's Lua states |
//! | [`stats`] | a worker's statistics |
//! | [`rates`] | statistics of the whole server |
//! | `tune` | applies the settings |
//! | `disk` | the file system, for snapshots and the append-only file |
//! | `turns` | the longest turns of a worker |
//! | [`users`] | the users at startup, the ACL file |
//! | [`info`] | the text of `INFO` |
//! | [`net`] | options and addresses of sockets |
#![forbid(unsafe_code)]

mod admission;
pub mod aof;
pub mod cli;
pub mod clients;
pub mod config;
pub mod control;
mod disk;
pub mod dispatch;
mod file_commands;
mod for_commands;
pub mod host;
pub mod info;
pub mod loads;
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
mod turns;
pub mod users;
pub mod windows;
pub mod worker;
