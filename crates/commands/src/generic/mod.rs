//! Commands on keys of any type.
//!
//! | file | commands |
//! | --- | --- |
//! | `presence` | `DEL`, `UNLINK`, `EXISTS`, `TOUCH`, `TYPE` |
//! | `expire` | `EXPIRE` and its variants, `TTL` and its variants, `PERSIST` |
//! | `transfer` | `RENAME`, `RENAMENX`, `MOVE`, `COPY` |
//! | `scan` | `SCAN` and its cursors |
//! | `walk` | `KEYS`, `RANDOMKEY` |

mod expire;
mod presence;
mod scan;
#[cfg(test)]
mod tests;
mod transfer;
mod walk;

pub use expire::*;
pub use presence::*;
pub use scan::*;
pub use transfer::*;
pub use walk::*;
