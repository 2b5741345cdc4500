//! Black-box tests of the `pantala` binary, and what they need: start a server, talk to it in raw bytes, and hold it
//! against a real `redis-server`.
//!
//! # Words
//!
//! - [`Server`]: a running child process, Pantala or the real redis-server. It listens on a port of its own on
//!   loopback, logs into a folder of its own, and dies with the value.
//! - [`Backend`]: the event loop Pantala is told to use. Network tests run once for each that the host allows
//!   ([`for_each_backend`]).
//! - [`Client`]: a socket that sends exactly the bytes it is given and cuts what comes back into [`Reply`]s, keeping their
//!   raw bytes, so that two servers can be compared byte for byte.
//! - [`history`]: what concurrent clients saw, and whether that could have happened.
//! - [`effects`]: the stream of propagated commands, read and replayed.
//! - [`generator`]: random command streams, [`differential`]: running one against two servers.
//! - [`transcript`]: what a list of commands is answered, held against a judge.
//! - *judge*: the real redis-server whose replies are right by definition.
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PANTALA_BIN` | binary to test, instead of building one |
//! | `PANTALA_BACKENDS` | comma-separated backends to test (default: all that the host allows) |
//! | `PANTALA_SEED` | seed of every random test (default: from the clock; always printed) |
//! | `PANTALA_DIFF_COMMANDS` | commands of one differential run |
//! | `PANTALA_DUMP_VALUES` | values that `dump` has dumped, restored and damaged |
//! | `PANTALA_CLIENTS_AGAINST` | `redis`: what `tests/clients` holds runs on redis-server, to know what it comes to there |
//! | `CI` | `true`: a missing redis-server, redis-cli or redis-benchmark fails tests instead of skipping them |
//!
//! Nothing here reads the code of Pantala's crates: the parser of replies is its own on purpose, so that an error in
//! `pantala-resp` can't hide itself.

#![forbid(unsafe_code)]

pub mod backend;
pub mod binary;
pub mod client;
pub mod concurrent;
pub mod differential;
pub mod ecosystem;
pub mod effects;
pub mod generator;
pub mod history;
pub mod random;
pub mod reply;
pub mod server;
pub mod tidy;
pub mod tool;
pub mod transcript;
pub mod upstream;
pub mod waiting;

pub use backend::{Backend, for_each_backend, for_each_form};
pub use client::Client;
pub use random::Random;
pub use reply::Reply;
pub use server::Server;
