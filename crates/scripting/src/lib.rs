//! Scripts and functions: Lua 5.1 as Redis has it.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | state | a Lua state, of which each worker has two ([`State`]), for scripts and for functions, each made when it is first needed |
//! | script | what `EVAL` and `SCRIPT LOAD` bring, known to all workers by its SHA-1 ([`Scripts`]) |
//! | library | what `FUNCTION LOAD` brings: code that registers functions ([`Library`]), known to all workers in one table ([`Libraries`]) |
//! | caller | the server as a script sees it: runs the commands of `redis.call` ([`Caller`]) |
//! | front | an empty table in front of one that scripts may read and not change ([`sandbox`]) |
//! | abandoned | a run that has met a key whose shard it doesn't hold: undone, and run again with all shards |
//!
//! # Who owns what
//!
//! | what | owner | others |
//! | --- | --- | --- |
//! | [`State`] | its worker | nobody |
//! | [`Scripts`] | the server | all workers: read at each `EVALSHA` that a worker hasn't compiled yet, locked for writing at `SCRIPT LOAD` and a new `EVAL` |
//! | [`Libraries`] | the server | all workers: a table that is replaced whole, read at each `FCALL`; a worker runs a library's code once, when it first calls one of its functions |
//! | [`Caller`] | the worker, for one run | the functions that the script calls |
//!
//! Which shards a script holds, and what becomes of keys that it didn't declare, is not known here: the caller sees to it.
//!
//! # What it costs
//!
//! An idle worker has no state. One that has run a script: about 60 KiB, and what its compiled scripts take; functions have another of the same size. A run: two tables for `KEYS` and `ARGV`,
//! a protected call, and for each command a copy of its arguments and one of its reply.
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

/// What `redis.REDIS_VERSION` says: the version whose behaviour scripts find.
const REDIS_VERSION: &str = "7.0.15";
/// The same as a number, a byte for each part.
const REDIS_VERSION_NUMBER: u32 = 7 << 16 | 15;
