//! The append-only file.
//!
//! | file | what |
//! | --- | --- |
//! | `check` | `pantala check-aof` |

mod check;

pub use check::{Arguments, check_aof};
