//! The files of a dataset. State machines without I/O translate bytes to entries and entries to
//! bytes. The server applies them to files and shards. The operations on files, and their order,
//! are in this crate too, but generic over a [`disk::Disk`]. So tests of crashes run the same code
//! on a simulated disk.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | RDB | Redis's file of a whole dataset ([`rdb`]) |
//! | AOF | the append-only file: a base and increments ([`aof`]) |
//! | base | the file of an AOF with the dataset at one instant |
//! | effect | a command that repeats a change of the dataset ([`pantala_engine::effect`]) |
//! | unit | the effects of one command, transaction or script |
//! | stamp | a unit's place in the order of all changes |
//! | increment | a file of an AOF with effects |
//! | entry | a key with its expiry, its access word and its value in the encoding of the file |
//! | access word | the LRU time or LFU counter of an entry |
//! | chunk | bytes that a [`rdb::Writer`] hands to its [`rdb::Sink`] at once |
//!
//! # Who owns what
//!
//! A [`rdb::Reader`] owns the bytes that it was fed. The next feed drops those that the reader has
//! consumed. An entry borrows the reader, so it must be dropped before the next call. A
//! [`rdb::Writer`] owns the bytes that its [`rdb::Sink`] hasn't taken yet. Readers and writers are
//! independent of files and threads.
//!
//! # What it costs
//!
//! Reading needs memory for one feed of input, and for up to about twice the largest entry. Writing
//! needs memory for the largest string and one chunk, because collections are written in pieces.
//! The lengths in a file reserve memory only in proportion to the bytes that are present. The
//! length of a compressed string reserves at most the size to which the present bytes can expand.
#![forbid(unsafe_code)]

pub mod aof;
pub mod disk;
pub mod rdb;
pub mod temporary;
