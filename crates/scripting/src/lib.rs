//! Scripts and functions: Lua 5.1 with Redis's API.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | state | a Lua state ([`State`]); each worker has one for scripts and one for functions |
//! | script | a text of `EVAL` or `SCRIPT LOAD`, shared by its SHA-1 ([`Scripts`]) |
//! | library | a text of `FUNCTION LOAD`: code that registers functions ([`Libraries`]) |
//! | caller | the server as a script sees it: runs the commands of `redis.call` ([`Caller`]) |
//! | front | an empty table through which scripts can read another table, but not change it ([`sandbox`]) |
//! | abandoned | a run that was stopped because it used a key whose shard it does not hold. It is rolled back and rerun |
//! | stopped | a run that was killed or abandoned, or took too long to load a library (`stop`) |
//! | wide | a script or function that has used undeclared keys. Its later calls hold all shards |
//!
//! # Ownership
//!
//! - A worker owns its [`State`]s, which are created on first use.
//! - The server owns the [`Scripts`], which all workers share. `EVALSHA` of a script that the
//!   worker has not compiled reads them. `SCRIPT LOAD` and a new `EVAL` write them.
//! - The server owns the [`Libraries`]: a table that every `FCALL` reads and every change replaces
//!   as a whole. A worker runs a library's code once, before its first call of one of the
//!   library's functions.
//! - A [`Caller`] belongs to one run. The functions that the script calls borrow it.
//!
//! This crate knows nothing of shards. The caller decides which shards a script holds, and handles
//! undeclared keys.
//!
//! # Costs
//!
//! An idle worker has no state. A state takes about 60 KiB in addition to its compiled scripts or
//! loaded libraries. A run costs two tables for `KEYS` and `ARGV`, a protected call, and for each
//! command a copy of its arguments and of its reply.
#![deny(unsafe_op_in_unsafe_fn)]

mod api;
mod bit;
mod cache;
mod cjson;
mod cmsgpack;
mod convert;
mod errors;
mod library;
mod lua;
mod memory;
mod random;
mod register;
mod run;
mod sandbox;
mod shebang;
mod state;
mod stop;
mod structs;

pub use cache::{SHA_LEN, Script, Scripts, Sha, sha_from, sha_of};
pub use library::{Draft, Existing, Function, Libraries, Library, Table, already_exists};
pub use memory::STATE_BYTES_MAX;
pub use run::{Called, Caller, Ended, Interrupt, log};
pub use shebang::Flags;
pub use state::{LOAD_TIME_MAX, State};

/// Instructions of a script between two calls of [`Caller::interrupt`].
pub const INTERRUPT_INSTRUCTIONS: i32 = 100_000;

/// Redis's version in `redis.REDIS_VERSION`.
const REDIS_VERSION: &str = "7.0.15";
/// The version as a number, one byte per part.
const REDIS_VERSION_NUMBER: u32 = 7 << 16 | 15;
