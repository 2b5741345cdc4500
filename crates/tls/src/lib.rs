//! TLS connections without their sockets: records in, plaintext and records out. No sockets, no
//! event loop, no `unsafe`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`options`] | what the `tls-*` directives ask for |
//! | [`server`] | the server's side: certificate, who must present one, sessions |
//! | [`client`] | the client's side, for tools and links |
//! | [`connection`] | one connection of either side |
//! | `ciphers`, `files`, `sessions` | cipher lists as OpenSSL writes them; certificates and keys; resumption |
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | record | a TLS record: at most 16 KiB of plaintext with a header and a tag |
//! | handshake | the messages before the first application data; the server's first part signs with its key |
//! | seal, open | encrypt into records, decrypt from records |
//!
//! # Who owns what
//!
//! A [`Connection`] belongs to the thread that has the socket. It keeps an incomplete record, and
//! during the handshake what has arrived of it, both bounded; everything else is in the caller's
//! buffers. A [`Server`] is shared by all threads and never changes: to reload a certificate is to
//! make another one. Connections keep the one that they started with.
//!
//! # What it costs
//!
//! Sealing or opening a short record takes about 0.2 µs, 16 KiB about 1.2 and 1.6 µs. The server's
//! part of a full handshake takes about 70 µs with an ECDSA P-256 key and 270 µs with an RSA key of
//! 2048 bits (`docs/decisions/0024-tls.md` has the host and the comparison).
#![forbid(unsafe_code)]

mod ciphers;
pub mod client;
pub mod connection;
mod files;
pub mod options;
pub mod server;
mod sessions;

#[cfg(test)]
mod tests;

pub use client::Client;
pub use connection::Connection;
pub use options::{AuthClients, Identity, Options};
pub use server::Server;
