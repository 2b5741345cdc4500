//! A connection without its socket: bytes in, commands out; replies in, bytes out. No sockets, no event loop, no `unsafe`.
//!
//! | module | what |
//! | --- | --- |
//! | [`connection`] | the whole of it: its state, what it waits for, its buffers |
//! | [`input`] | received bytes, and the commands in them |
//! | [`output`] | replies and messages that are not sent, in pieces where they are long |
//! | [`turn`] | the end of a turn: what its owner is to do with its socket |
//! | [`replies`] | which replies are sent (`CLIENT REPLY`), and where messages stand between them |
//! | [`queue`] | `MULTI` |
//! | [`access`] | which commands it may run: authentication, `CLIENT PAUSE` |
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | owner | the thread that drives the connection: it has the socket, and calls everything here |
//! | session | what the connection has agreed with the server ([`pantala_engine::client::Session`]): database, protocol version, `MULTI` queue, subscriptions, tracking |
//! | chunk | received bytes in memory that an event loop lends ([`pantala_base::Lender`]) |
//! | turn | one round of the owner's loop: chunks in, commands parsed and run, one send out |
//!
//! # A turn
//!
//! The owner gives chunks to [`input::Input::receive`], takes commands from [`connection::Connection::parse`] until there is
//! none, runs them and notes each with [`input::Input::done`]; their replies are appended to `output`. Commands that were
//! parsed and may not run yet are held back by [`input::Input::hold_back`]: `parse` returns them
//! first in a later turn. Then it asks [`end_input`](connection::Connection::end_input) whether to go on receiving,
//! [`take_send`](connection::Connection::take_send) for what to send, and
//! [`fate`](connection::Connection::fate) whether the connection has ended.
//!
//! # Seams
//!
//! What is between the socket and the connection, as TLS, sits between chunks and [`input`], and behind [`turn::Send`]. Who may run
//! what is asked of [`access`] alone.
//!
//! # What it costs
//!
//! An idle connection holds no buffer. A command that arrives whole and runs in the turn in which it arrives isn't copied.
#![forbid(unsafe_code)]

pub mod access;
pub mod connection;
pub mod input;
pub mod output;
pub mod queue;
pub mod replies;
#[doc(hidden)]
pub mod testing;
pub mod turn;

#[cfg(test)]
mod tests;

pub use connection::{Blocked, Connection, State, Waits};
pub use input::{Input, Parsed, Unrun};
