//! A connection without its socket. It takes received bytes and returns commands; it takes replies
//! and returns bytes to send. The crate has no socket, no event loop and no `unsafe`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`connection`] | the whole connection: its state, the work that it waits for, its buffers |
//! | [`input`] | received bytes, and the commands in them |
//! | [`output`] | pending replies and messages, in pieces if they are long |
//! | [`turn`] | the end of a turn: the owner's actions on the socket |
//! | [`replies`] | `CLIENT REPLY`, and the order of replies and messages |
//! | [`queue`] | `MULTI` |
//! | [`access`] | which commands the client may run: authentication, permissions, `CLIENT PAUSE` |
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | owner | the thread that drives the connection: it has the socket, and calls this crate |
//! | session | the connection's state in the server ([`pantala_engine::client::Session`]) |
//! | chunk | received bytes in memory lent by an event loop ([`pantala_base::Lender`]) |
//! | turn | one round of the owner's loop: take chunks, parse and run commands, send once |
//! | window | commands that the owner has parsed from its connections and runs together |
//! | piece | a part of long output, which is sent by itself ([`output`]) |
//! | park | stop running commands while requests of the connection are in flight to shards |
//!
//! The session contains the user, the database, the protocol version, the `MULTI` queue, the
//! subscriptions and the tracking state, among others.
//!
//! # A turn
//!
//! The owner passes chunks to [`input::Input::receive`] and takes commands from
//! [`connection::Connection::parse`] until there are none. The owner runs the commands, appends
//! their replies to `output`, and reports each command with [`input::Input::done`]. If parsed
//! commands may not run yet, the owner holds them back with [`input::Input::hold_back`], and
//! `parse` returns them first in a later turn.
//!
//! At the end of the turn, three methods return what the owner must do:
//!
//! - [`end_input`](connection::Connection::end_input): whether to stop receiving;
//! - [`take_send`](connection::Connection::take_send): the bytes to send;
//! - [`fate`](connection::Connection::fate): whether the connection has ended.
//!
//! # Interfaces
//!
//! A layer between the socket and the connection, such as TLS, transforms chunks before [`input`]
//! receives them, and transforms the bytes of [`turn::Send`] before they are sent. Only [`access`]
//! decides which client may run which command.
//!
//! # What it costs
//!
//! An idle connection usually holds no buffer, because each send takes the output buffer, and an
//! empty input buffer of more than 16 KiB is freed. A command is copied in only two cases: it
//! arrives in several chunks, or it doesn't run in the turn in which it arrived.
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
