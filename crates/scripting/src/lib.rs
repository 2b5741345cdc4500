//! Scripts and functions: Lua 5.1 with Redis's API.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | state | a Lua state ([`State`]); each worker has one for scripts and one for functions |
//! | script | a text of `EVAL` or `SCRIPT LOAD`, shared under its SHA-1 ([`Scripts`]) |
//! | library | a text of `FUNCTION LOAD`: code that registers functions ([`Libraries`]) |
//! | caller | the server as a script sees it: runs the commands of `redis.call` ([`Caller`]) |
//! | front | an empty table that makes another table read-only for scripts ([`sandbox`]) |
//! | abandoned | a run that its caller rolls back and reruns, for example after an undeclared key |
//! | stopped | a run that was killed or abandoned, or a load of a library that took too long (`stop`) |
//! | wide | a script or function that has used undeclared keys; later calls hold all shards |
//!
//! # Ownership
//!
//! - A worker owns its [`State`]s, which are created on first use.
//! - The server owns the [`Scripts`], which all workers share. `EVALSHA` reads them if the worker
//!   has not compiled the script. `SCRIPT LOAD`, and `EVAL` of a new script, write them.
//! - The server owns the [`Libraries`]: a table that every `FCALL` reads and that every change
//!   replaces as a whole. A worker runs the code of a library once, before its first call of one of
//!   the library's functions.
//! - A [`Caller`] belongs to one run. The functions that the script calls borrow it.
//!
//! This crate knows nothing of shards. The [`Caller`] decides which shards a script holds, and what
//! happens when the script uses an undeclared key.
//!
//! # Costs
//!
//! An idle worker has no state. A state takes about 60 KiB, plus its compiled scripts or loaded
//! libraries. A run costs two tables for `KEYS` and `ARGV` and one protected call. Each command
//! costs a copy of its arguments and of its reply.
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

/// Number of a script's instructions between two calls of [`Caller::interrupt`].
pub const INTERRUPT_INSTRUCTIONS: i32 = 100_000;

/// Redis's version, for `redis.REDIS_VERSION`.
const REDIS_VERSION: &str = "7.0.15";
/// The same version as a number, with one byte per part.
const REDIS_VERSION_NUMBER: u32 = 7 << 16 | 15;
