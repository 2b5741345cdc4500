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
//! | entry | a key with its expiry, its access word and its value, which is still encoded as in the file |
//! | access word | the LRU time or LFU counter of an entry |
//! | chunk | bytes that a [`rdb::Writer`] hands to its [`rdb::Sink`] at once |
//!
//! # Who owns what
//!
//! A [`rdb::Reader`] owns the bytes that it was fed; the next feed drops those that it has
//! consumed. An entry borrows the reader, so it must be dropped before the next call. A
//! [`rdb::Writer`] owns the bytes that its [`rdb::Sink`] hasn't taken yet. Both are independent of
//! files and threads.
//!
//! # What it costs
//!
//! Reading buffers up to about twice the largest entry, and one feed of input. Writing needs memory
//! for the largest string and one chunk, because collections are written in pieces. A length in a
//! file reserves memory only in proportion to the bytes that are present: for a compressed string,
//! at most what its bytes can expand to.
#![forbid(unsafe_code)]

pub mod aof;
pub mod rdb;
