//! The server: configuration, workers, connections, and the wiring of all crates into the `pantala` binary.
//!
//! | module | what |
//! | --- | --- |
//! | [`cli`], [`config`] | the command line and redis.conf |
//! | [`process`] | what a process needs of its host: sockets, limits, CPUs, signals, logging |
//! | [`renames`] | `rename-command` |
//! | [`startup`] | from the settings to running workers, and back |
//! | [`host`] | what all workers share; what commands ask of the server |
//! | [`worker`] | a thread with its loop, its connections and its shards: the turn, which drives five rooms |
//! | [`reactor`] | the lowest room: sockets, and which connections are due |
//! | [`clients`] | the next: what connections get beside replies, and how they end |
//! | [`dispatch`] | transactions, scripts, requests to other workers |
//! | [`windows`] | commands are parsed, prefetched and run |
//! | [`control`] | periodic work, settings |
//! | [`snapshot`] | the dataset in a file: `SAVE`, the start, the end |
//! | [`stats`] | a worker's statistics |
//! | [`users`] | users when the server starts, the ACL file |
//! | [`info`] | the text of `INFO` |
//! | [`net`] | accepted sockets |
#![forbid(unsafe_code)]

pub mod cli;
pub mod clients;
pub mod config;
pub mod control;
pub mod dispatch;
pub mod host;
pub mod info;
pub mod net;
pub mod process;
pub mod reactor;
pub mod renames;
pub mod scripting;
pub mod snapshot;
pub mod startup;
pub mod stats;
pub mod users;
pub mod windows;
pub mod worker;
