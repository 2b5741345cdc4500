//! The append-only file: effects (the commands that repeat each change of the dataset), in the
//! order in which they were committed.
//!
//! As in Redis 7, the append-only file consists of several files in a separate directory. The
//! *base* has the dataset at one instant. Each *increment* has effects. The manifest lists these
//! files:
//!
//! ```text
//! appendonlydir/appendonly.aof.1.base.rdb     the dataset at one instant
//! appendonlydir/appendonly.aof.1.incr.aof     the effects since then
//! appendonlydir/appendonly.aof.2.incr.aof     the effects since a rewrite started
//! appendonlydir/appendonly.aof.manifest
//! ```
//!
//! | module | contents |
//! | --- | --- |
//! | [`manifest`] | the list of files: parsed, changed and written exactly as in Redis |
//! | [`names`] | names of the files |
//! | [`checksum`] | the line with the checksum of a group of effects |
//! | [`reader`] | commands and annotations of a file |
//! | [`transactions`] | which commands of a file form a transaction |
//! | [`scan`] | reads a file to its end, and finds where it must be cut |
//! | [`filter`] | removes commands that only replicas need |
//! | [`directory`] | the directory and its manifest; this module and the next three are generic over [`Disk`](crate::disk::Disk) |
//! | [`place`] | changes of the list of files |
//! | [`output`] | the increment that is being written |
//! | [`writing`] | which effects are written and durable; the change to the next increment |
//! | [`base`] | a base of commands |
//! | [`check`] | `check-aof`: one file, as redis-check-aof checks it |

pub mod base;
pub mod check;
pub mod checksum;
pub mod directory;
pub mod filter;
pub mod manifest;
pub mod names;
pub mod output;
pub mod place;
pub mod reader;
pub mod scan;
pub mod transactions;
pub mod writing;

pub use base::{CommandBase, Commands};
pub use check::{Analysis, Check, Outcome};
pub use checksum::Group;
pub use directory::{Directory, Unread};
pub use manifest::{Kind, Listed, Manifest, ManifestError};
pub use place::{NewBase, Place};
pub use reader::{Error, Fault, Next, Reader};
pub use transactions::{Found, Transactions};
pub use writing::Writing;

/// Number of bytes that tell whether a file starts with an RDB file ([`is_rdb`]).
pub const RDB_MAGIC_BYTES: usize = 5;

/// Returns whether a file that starts with these bytes starts with an RDB file of Redis or Valkey.
/// If such a file contains effects, it has an RDB preamble: an RDB file that precedes the effects.
#[must_use]
pub fn is_rdb(start: &[u8]) -> bool {
    [b"REDIS", b"VALKE"].iter().any(|magic: &&[u8; RDB_MAGIC_BYTES]| start.starts_with(*magic))
}

/// The prefix of a timestamp annotation. An annotation is a line that starts with `#`. A timestamp
/// annotation has the time at which the effects after it were written, Unix time in s.
pub const TIMESTAMP: &[u8; 4] = b"#TS:";

/// Returns the time of a timestamp annotation, Unix time in s; `None` for any other annotation.
/// `annotation` must not include its line end.
#[must_use]
pub fn timestamp_of(annotation: &[u8]) -> Option<Result<i64, NoTimestamp>> {
    let digits = annotation.strip_prefix(TIMESTAMP)?;
    let parsed = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    Some(parsed.ok_or(NoTimestamp))
}

/// A timestamp annotation without a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoTimestamp;

/// Returns the annotation for effects written from `now_s`, Unix time in s.
#[must_use]
pub fn timestamp(now_s: i64) -> Vec<u8> {
    format!("#TS:{now_s}\r\n").into_bytes()
}

#[cfg(test)]
mod tests;
