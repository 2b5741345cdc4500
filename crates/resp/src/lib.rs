//! RESP2, RESP3 and inline commands as state machines over bytes. [`Parser`] turns the bytes of a
//! connection into commands; [`Reply`] encodes replies into bytes. The crate has no sockets, no
//! allocation per command, and no `unsafe`.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | buffer | bytes received on a connection; owned by the connection, borrowed by the parser |
//! | command | one request; its first argument is the command's name |
//! | bulk | an argument, or a reply, of any bytes: `$5\r\nhello\r\n` |
//! | range | offset and length of an argument in the buffer ([`ArgRange`]) |
//! | arguments | a buffer and the ranges of one command in it ([`Args`]); nothing is copied |
//! | version | RESP2, or RESP3 after `HELLO 3` ([`Version`]) |
//!
//! # Ownership
//!
//! The connection owns the buffer and one [`Parser`]. Within an incomplete command the parser
//! stores its position as offsets from the command's first byte. So the buffer may grow and move,
//! but must still start with that command. Once a command is complete, its ranges move to the
//! caller's vector, and the parser is reset. A [`Reply`] borrows the connection's output buffer
//! while one command runs.
//!
//! # Costs
//!
//! A complete command is parsed in one pass, which takes about 40 instructions per argument of any
//! length, plus 60 per command. `examples/instructions.rs` counts the instructions, and `cargo
//! bench --bench resp` measures the time. The bytes of a command that arrives in pieces are never
//! scanned twice; its ranges are moved to the caller's vector once, at the end. An argument's range
//! takes 16 bytes while its command runs.

#![forbid(unsafe_code)]

mod args;
mod inline;
mod parser;
mod protocol_error;
mod reply;
pub mod value;

pub use args::{ArgRange, Args, ArgsIter};
pub use inline::{UnbalancedQuotes, quote, split_line, words_of};
pub use pantala_base::double::{DOUBLE_LEN_MAX, format_double};
pub use parser::{Limits, Parser};
pub use protocol_error::ProtocolError;
pub use reply::{Deferred, Reply, Version, is_aborted};
