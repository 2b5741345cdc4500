//! Replication as state machines: bytes and events in, decisions out. No sockets, no threads.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | replication ID | 40 hexadecimal digits that name one history of the dataset ([`ReplId`]) |
//! | history | the stream of a dataset's changes under one replication ID ([`History`]) |
//! | offset | number of bytes of a history's stream; `PSYNC` asks for byte number offset + 1 |
//! | second ID | the ID of the history that this one continues, up to an offset ([`History`]) |
//! | handshake | the `REPLCONF` options of a connection before it asks for data ([`Handshake`]) |
//! | full sync | a snapshot, then the stream from the snapshot's offset |
//! | partial resync | the stream from an offset that the backlog (its last bytes) still holds |
//! | replica | a connection that has sent `SYNC` or `PSYNC` ([`Replica`]) |
//! | feed | the bytes of one snapshot, in flight to several replicas ([`Feed`]) |
//! | flow | one of several connections over which a snapshot travels to a replica ([`Flows`]) |
//!
//! # A replica, from its primary's view
//!
//! ```text
//!            PSYNC, full               snapshot starts           last byte sent
//! handshake ────────────► wait (start) ───────────────► send bulk ─────────────► online
//!     │                                                                             ▲
//!     └──────────────────────────── PSYNC, partial ─────────────────────────────────┘
//! ```
//!
//! If a replica has announced `capa eof`, it receives the stream only after its first `REPLCONF
//! ACK`. Such a replica detects the end of the snapshot by a mark of 40 bytes, and no other bytes
//! may directly follow the mark.
#![forbid(unsafe_code)]

mod feed;
mod flows;
mod frames;
mod framing;
mod handshake;
mod history;
mod id;
pub mod replica;
mod replicas;
mod schedule;

pub use feed::{Feed, FeedAhead, FeedReader, Wake};
pub use flows::{FLOWS_MAX, FlowError, FlowForm, Flows};
pub use frames::{FrameReader, to_frames};
pub use framing::{Framing, MARK_BYTES, Mark};
pub use handshake::{Filter, Handshake, HandshakeError, ReplconfAction};
pub use history::{History, NotContinued, Registration};
pub use id::ReplId;
pub use replicas::{Replica, ReplicaState, Replicas};
pub use schedule::{Schedule, Waiting};
