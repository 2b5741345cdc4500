//! RESP2, RESP3 and inline commands as state machines over bytes: bytes in, commands out ([`Parser`]); replies in, bytes
//! out ([`Reply`]). No sockets, no allocation per command, no `unsafe`.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | buffer | the bytes that a connection has received; belongs to the connection, the parser only looks at it |
//! | command | one request: its first argument is the command's name |
//! | bulk | one argument, or a reply of bytes: `$5\r\nhello\r\n` |
//! | range | where an argument stands in the buffer ([`ArgRange`]) |
//! | arguments | a buffer and the ranges of one command in it ([`Args`]): nothing is copied |
//! | version | RESP2, or RESP3 after `HELLO 3` ([`Version`]) |
//!
//! # Who owns what
//!
//! The connection owns the buffer and one [`Parser`]. While a command is incomplete the parser keeps how far it came, as
//! offsets from the command's first byte: the buffer may grow and move, as long as it still begins there. When a command
//! is complete its ranges go to the caller's vector, and the parser is as new. A [`Reply`] borrows the connection's output
//! buffer for the time of one command.
//!
//! # What it costs
//!
//! A complete command is read in one pass: about 40 instructions per argument, whatever its length, and 60 per command
//! (`examples/instructions.rs` counts them, `cargo bench --bench resp` times them). A command
//! that arrives in pieces is never read twice; only its ranges move once, at its end. An argument costs 16 bytes while its
//! command runs.

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
pub use reply::{Deferred, Reply, Version, is_given_up};
