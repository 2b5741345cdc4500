//! The replica's side: the handshake with a primary, and the detection of the snapshot's end.
//!
//! ```text
//! replica                                     primary
//!    PING                              ───►
//!                                      ◄───   +PONG, or -NOAUTH …
//!    AUTH [user] password              ───►
//!    REPLCONF listening-port …
//!    REPLCONF ip-address …
//!    REPLCONF capa eof capa psync2
//!    REPLCONF version …
//!                                      ◄───   +OK for each
//!    PSYNC id offset, or PSYNC ? -1    ───►
//!                                      ◄───   +FULLRESYNC id offset, then a snapshot ([`Payload`])
//!                                             +CONTINUE [id]
//! ```
//!
//! If both servers permit flows, the replica also sends `capa pantala-flows:<number>`, and the line
//! before the snapshot announces the flows. The replica then opens a connection for each further
//! flow:
//!
//! ```text
//!    AUTH [user] password              ───►
//!    PSYNC token index FLOW            ───►
//!                                      ◄───   +OK for AUTH, then the line before the flow
//! ```
//!
//! A primary that isn't ready sends empty lines, so that the link stays alive.

mod handshake;
mod payload;

pub use handshake::{Credentials, FlowReplies, Handshake, Identity, Outcome, Position, Step, flow_request};
pub use payload::{Header, Payload};
