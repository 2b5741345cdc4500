//! Commands for keys of any type.
//!
//! | file | commands |
//! | --- | --- |
//! | `presence` | `DEL`, `UNLINK`, `EXISTS`, `TOUCH`, `TYPE` |
//! | `expire` | `EXPIRE` and its kin, `TTL` and its kin, `PERSIST` |
//! | `transfer` | `RENAME`, `RENAMENX`, `MOVE`, `COPY` |
//! | `scan` | `SCAN`, and what its cursors are made of |
//! | `walk` | `KEYS`, `RANDOMKEY` |

mod expire;
mod presence;
mod scan;
#[cfg(test)]
mod tests;
mod transfer;
mod walk;

pub use expire::{expire, expireat, expiretime, persist, pexpire, pexpireat, pexpiretime, pttl, ttl};
pub use presence::{del, exists, key_type, touch, unlink};
pub use scan::{scan, scan_route};
pub use transfer::{copy, move_key, rename, renamenx};
pub use walk::{keys, randomkey, randomkey_route};
