//! The files of a dataset. State machines without I/O translate bytes to entries and entries to
//! bytes. The server runs them on files and shards.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | RDB | Redis's file of a whole dataset ([`rdb`]) |
//! | AOF | the append-only file: a base and the effects since then ([`aof`]) |
//! | effect, unit, stamp | see [`pantala_engine::effect`] |
//! | increment | a file of effects |
//! | entry | a key with its value, expiry and access word, as encoded in the file: the value isn't decoded yet |
//! | access word | the LRU time or LFU counter of an entry |
//! | chunk | bytes of a file that are passed on together |
//!
//! # Who owns what
//!
//! A [`rdb::Reader`] owns the bytes that it was fed and hasn't consumed; an entry that it returns
//! borrows them. A [`rdb::Writer`] owns the bytes that its [`rdb::Sink`] hasn't taken yet. Both are
//! independent of files and threads.
//!
//! # What it costs
//!
//! Reading needs memory for the largest entry and one piece of input; writing needs memory for the
//! largest string and one chunk, because collections are written in pieces. A length in a file
//! never reserves more memory than the file has bytes.
#![forbid(unsafe_code)]

pub mod aof;
pub mod rdb;
