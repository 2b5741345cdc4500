//! Stream commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `add` | `XADD`, `XTRIM` and their options |
//! | `entries` | `XLEN`, `XRANGE`, `XREVRANGE`, `XDEL`, `XSETID` |
//! | `read` | `XREAD`, `XREADGROUP` |
//! | `groups` | `XGROUP` |
//! | `pending` | `XACK`, `XPENDING` |
//! | `claim` | `XCLAIM`, `XAUTOCLAIM` |
//! | `info` | `XINFO` |
//! | `ids` | parses IDs, and writes IDs and entries to replies |
//! | `propagated` | propagated forms that differ from the client's command |
//!
//! `XADD` looks its key up once and copies its fields once. `XREADGROUP` finds new entries without
//! a search. `XACK` finds an entry with two binary searches.

mod add;
mod claim;
mod entries;
mod groups;
mod ids;
mod info;
mod pending;
mod propagated;
mod read;
#[cfg(test)]
mod tests;

pub use add::*;
pub use claim::*;
pub use entries::*;
pub use groups::*;
pub use info::*;
pub use pending::*;
pub use read::*;

use pantala_engine::access::Key;
use pantala_engine::db::{Change, Db, Missing, Silence, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::Reply;
use pantala_types::Stream;

use crate::arguments::c_string;

/// The engine's representation of a stream.
type StreamBox = Box<Stream>;

/// Changes the stream at a key. Returns `None` if there is no such key.
fn change<K: Into<Option<Change>>, R>(
    db: &mut Db<'_>,
    key: &Key<'_>,
    work: impl FnOnce(&mut Stream) -> (K, R),
) -> Result<Option<R>, WrongType> {
    db.change_as(key, Missing::Skip, |stream: &mut StreamBox| work(stream))
}

/// Returns the change of a stream's groups or IDs, with its event. In Redis such a change doesn't
/// count as a change of the value.
fn metadata(event: &'static Event) -> Change {
    Change::silent(Silence::StreamGroups).and(event)
}

/// Returns the change of a stream whose entries were read or claimed for a consumer. The command
/// propagates the outcome instead of the client's call.
fn delivery(created_consumer: bool) -> Change {
    if created_consumer {
        metadata(&Event(EventClass::Stream, "xgroup-createconsumer"))
    } else {
        Change::silent(Silence::StreamGroups)
    }
}

/// Replies with the error for a missing key or group. `rest` follows their names in the error.
fn no_group(reply: &mut Reply<'_>, key: &[u8], group: &[u8], rest: &str) {
    let between = b"' or consumer group '";
    let before = b"NOGROUP No such key '";
    reply.error_bytes(&[before, c_string(key), between, c_string(group), b"'", rest.as_bytes()].concat());
}

/// Replies with the error for a missing group of an existing key.
fn no_group_of_key(reply: &mut Reply<'_>, key: &[u8], group: &[u8]) {
    let before = b"NOGROUP No such consumer group '";
    reply.error_bytes(&[before, c_string(group), b"' for key name '", c_string(key), b"'"].concat());
}
