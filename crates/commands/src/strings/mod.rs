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

pub use counters::{decr, decrby, incr, incrby, incrbyfloat};
pub use handed::taking_over;
pub use lcs::lcs;
pub use ranges::{append, getrange, setrange, strlen, substr};
pub use set::{get, getdel, getex, getset, psetex, set, setex, setnx};
pub use several::{mget, mset, msetnx};
pub(crate) use view::StringRef;
