//! The append-only file: writes effects to disk in the order in which they were committed, and
//! loads them at startup.
//!
//! Terms:
//!
//! - An *effect* is a command that repeats a committed change, in the form that Redis propagates.
//! - A *base* is a file with the dataset at one instant.
//! - An *increment* is a file with effects that were committed after the base's instant.
//! - The *history* is the set of files that a later base has replaced
//!   ([`pantala_persistence::aof`]).
//! - A *stamp* is a number that gives the position of effects in the order of commits
//!   ([`pantala_engine::effect`]).
//! - A *cut* is the point in the stream of effects at which a snapshot starts.
//!
//! The `writer` thread reads the journal, the ordered stream of all effects, and appends it to the
//! newest increment. Workers only send orders to this thread. With `appendfsync always`, they hold
//! back replies until the thread has synced.
//!
//! | file | purpose |
//! | --- | --- |
//! | `state` | the state that workers, commands and `INFO` see |
//! | `gate` | which replies wait |
//! | `start` | turns the append-only file on and off |
//! | `directory` | the directory and its manifest |
//! | `load`, `replay` | loads the files: a base, then commands |
//! | `inbox` | orders to the writer thread |
//! | `writer` | the thread that writes the increments |
//! | `queue` | the order in which writer threads use the files |
//! | `rewrite` | writes a new base |
//! | `check` | `pantala check-aof` |

mod check;
mod directory;
mod gate;
mod inbox;
mod load;
mod queue;
mod replay;
mod rewrite;
mod start;
mod state;
mod writer;

pub use check::{Arguments, check_aof};
pub use rewrite::{rewrite_if_due, run as rewrite_in_background};
pub use start::{FirstRewrite, allows_exit, check_files, end, has_files, reload, restart, start, turn_off, turn_on};
pub use state::{Aof, State, tune};
