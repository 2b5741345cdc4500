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
//! `GET`, plain `SET`, `INCR` on an existing key and each key of `MGET` hash once (the router did), probe once and don't
//! allocate.

mod counters;
mod handed;
mod lcs;
mod ranges;
mod set;
mod several;
#[cfg(test)]
mod tests;
mod view;

pub use counters::*;
pub use handed::*;
pub use lcs::*;
pub use ranges::*;
pub use set::*;
pub use several::*;
pub(crate) use view::StringRef;
