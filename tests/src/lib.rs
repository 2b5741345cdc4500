//! Harness of the black-box tests: starts the `pantala` binary or a real `redis-server`,
//! communicates with it in raw bytes, and compares the replies of the two servers.
//!
//! # Words
//!
//! - [`Server`]: a running child process, Pantala or redis-server. It listens on its own port on
//!   loopback, writes its log to its own directory, and is killed when dropped.
//! - [`Backend`]: the event loop that Pantala uses. Network tests run on every backend that the
//!   host allows: one after the other ([`for_each_backend`]), or at the same time if they wait most
//!   of the time ([`for_all_backends`]).
//! - *execution*: Pantala's directive `execution`, `inline` or `owner`.
//! - *effect*: a command that a server propagates to replicas, in a *stream*. A *unit* is a part of
//!   the stream that a replica applies as a whole: the effects between `MULTI` and `EXEC`, or a
//!   single effect.
//! - [`Client`]: a socket that sends exactly the given bytes and splits the received bytes into
//!   [`Reply`]s. It also returns the raw bytes of each reply, so that two servers can be compared
//!   byte by byte.
//! - [`history`]: records requests and replies of concurrent clients, and checks whether they are
//!   linearizable.
//! - [`effects`]: reads a server's stream of effects and replays it on another server. [`replica`]:
//!   servers that follow such a stream. [`writers`]: concurrent clients whose random commands fill
//!   the stream.
//! - [`following`]: replication by `REPLICAOF`. [`staged`]: a primary that follows a script of the
//!   test.
//! - [`upstream`]: runs Redis's own test suite. [`other_versions`]: server programs of other
//!   versions of Redis and Valkey.
//! - [`generator`]: random command streams. [`differential`]: sends a stream to two servers and
//!   compares the replies.
//! - [`workers`]: connections that belong to a certain worker.
//! - [`tls`]: certificates, and a tunnel through which a [`Client`] reaches an encrypted port.
//! - [`transcript`]: replies to a list of commands, compared with the reference's.
//! - *reference*: the real redis-server, whose replies are correct by definition.
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PANTALA_BIN` | binary to test, instead of building one |
//! | `PANTALA_BACKENDS` | comma-separated backends to test (default: all that the host allows) |
//! | `PANTALA_SEED` | seed of every random test (default: from the clock; always printed) |
//! | `PANTALA_DIFF_COMMANDS` | commands of one differential run |
//! | `PANTALA_DUMP_VALUES` | values that `dump` dumps, restores and damages |
//! | `PANTALA_CLIENTS_AGAINST` | `redis`: runs the workloads of `tests/clients` on redis-server instead |
//! | `CI` | `true`: a missing redis-server, redis-cli or redis-benchmark fails tests instead of skipping them |
//!
//! The harness doesn't use Pantala's crates. It has its own parser of replies, because the parser
//! of `pantala-resp` would hide that crate's bugs.

#![forbid(unsafe_code)]

pub mod backend;
pub mod binary;
pub mod client;
pub mod concurrent;
pub mod differential;
pub mod ecosystem;
pub mod effects;
pub mod following;
pub mod generator;
pub mod history;
pub mod namespace;
pub mod other_versions;
pub mod random;
pub mod replica;
pub mod reply;
pub mod server;
pub mod small_disk;
pub mod staged;
pub mod tidy;
pub mod tls;
pub mod tool;
pub mod transcript;
pub mod upstream;
pub mod waiting;
pub mod workers;
pub mod writers;

pub use backend::{Backend, for_all_backends, for_each_backend, for_each_form};
pub use client::Client;
pub use random::Random;
pub use reply::Reply;
pub use server::Server;
