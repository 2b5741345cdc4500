//! String commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `set` | `SET`, `SETNX`, `SETEX`, `PSETEX`, `GETSET`, `GETEX`, `GETDEL` and their options |
//! | `several` | `MGET`, `MSET`, `MSETNX` |
//! | `counters` | `INCR`, `DECR`, `INCRBY`, `DECRBY`, `INCRBYFLOAT` |
//! | `ranges` | `APPEND`, `GETRANGE`, `SETRANGE`, `STRLEN`, `SUBSTR` |
//! | `lcs` | `LCS` |
//!
//! The following commands hash the key once (also to find its shard), look it up once, and do not
//! allocate: `GET`, `SET` of a small value without options, and `INCR` of an existing key. `MGET`
//! looks each key up once and does not allocate, but hashes keys more than once.

mod counters;
mod lcs;
mod owned_value;
mod ranges;
mod set;
mod several;
#[cfg(test)]
mod tests;
mod view;

pub use counters::*;
pub use lcs::*;
pub use owned_value::*;
pub use ranges::*;
pub use set::*;
pub use several::*;
pub(crate) use view::StringRef;
