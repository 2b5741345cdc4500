//! Files of a dataset. Formats and state machines without I/O: bytes in, entries out, and the other
//! way round. The server runs them on files and shards.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | RDB | Redis's file of a whole dataset ([`rdb`]) |
//! | AOF | the append-only file: a base and the effects since ([`aof`]) |
//! | increment | a file of effects |
//! | entry | a key with its value, expiry and access word, as the file has it: the value is not decoded yet |
//! | chunk | bytes of a file that are handed over together |
//!
//! # Who owns what
//!
//! A [`rdb::Reader`] owns the bytes that it was fed and has not consumed; an entry that it returns
//! borrows them. A [`rdb::Writer`] owns the bytes that its [`rdb::Sink`] has not taken yet. Neither
//! knows a file or a thread.
//!
//! # What it costs
//!
//! Reading takes memory for the largest entry and one piece of input; writing for the largest
//! string and one chunk, since collections are handed over in pieces. A length in a file never
//! makes room for more than the bytes that are there.
#![forbid(unsafe_code)]

pub mod aof;
pub mod rdb;
