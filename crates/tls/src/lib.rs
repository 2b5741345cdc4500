//! TLS connections without their sockets: records in, plaintext and records out. No sockets, no
//! event loop, no `unsafe`.
//!
//! | module | contents |
//! | --- | --- |
//! | [`options`] | the values of the `tls-*` directives |
//! | [`server`] | the server's side: its certificate, checks of clients' certificates, sessions |
//! | [`client`] | the client's side, for tools and links to other servers |
//! | [`connection`] | one connection of either side |
//! | `ciphers` | cipher lists in OpenSSL's format |
//! | `files` | certificates and keys, read from files |
//! | `sessions` | sessions that clients may resume |
//! | `anchors` | peers that present the certificate of an authority |
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | record | a TLS record: at most 16 KiB of plaintext with a header and a tag |
//! | handshake | the messages before application data; the server signs part of them with its key |
//! | seal, open | encrypt into records, decrypt from records |
//!
//! # Ownership
//!
//! A [`Connection`] belongs to the thread that owns the socket. It keeps an incomplete record and,
//! during the handshake, the received part of a message. The length of these bytes is bounded. All
//! other bytes are in the caller's buffers. A [`Server`] is shared by all threads and never
//! changes. Reloading a certificate creates another `Server`; existing connections keep the former
//! one.
//!
//! # What it costs
//!
//! Sealing or opening a short record takes about 0.2 µs. For 16 KiB, sealing takes about 1.2 µs and
//! opening about 1.6 µs. The server's part of a full handshake takes about 70 µs with an ECDSA
//! P-256 key and 270 µs with an RSA key of 2048 bits. `docs/decisions/0024-tls.md` describes the
//! host and compares two providers of cryptography.
#![forbid(unsafe_code)]

mod anchors;
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
