//! The replica's side: how it asks a primary for data, and where the snapshot ends.
//!
//! ```text
//! replica                                     primary
//!    PING                              ───►
//!                                      ◄───   +PONG, or -NOAUTH …
//!    AUTH [user] password              ───►
//!    REPLCONF listening-port …
//!    REPLCONF ip-address …
//!    REPLCONF capa eof capa psync2
//!                                      ◄───   +OK for each
//!    PSYNC id offset, or PSYNC ? -1    ───►
//!                                      ◄───   +FULLRESYNC id offset, then a snapshot ([`Payload`])
//!                                             +CONTINUE [id]
//! ```
//!
//! A primary that is not ready yet sends empty lines meanwhile, so that the link stays alive.

mod handshake;
mod payload;

pub use handshake::{Credentials, Handshake, Identity, Outcome, Position, Step};
pub use payload::{Header, Payload};
