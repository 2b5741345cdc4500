//! Reads streams.

use super::read::element;
use super::{Error, Reader};
use crate::stream::{Corrupt, Counters, ENTRIES_READ_UNKNOWN, RestoredGroup, Stream, StreamId};

impl From<Corrupt> for Error {
    fn from(_: Corrupt) -> Self {
        Error::Corrupt("stream")
    }
}

/// The forms of a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Form {
    /// The form of Redis 5.0 and 6, without counters.
    Uncounted,
    /// The form of Redis 7.0, with counters.
    Counted,
    /// The form of Redis 7.2, which also stores when each consumer was last active.
    Active,
}

/// Reads a stream of this form.
pub(super) fn of_nodes(reader: &mut Reader<'_>, form: Form) -> Result<Box<Stream>, Error> {
    let counted = form >= Form::Counted;
    let mut stream = Box::<Stream>::default();
    for _ in 0..reader.count(2)? {
        let key = element(reader)?;
        let key = (&*key).try_into().map_err(|_| Error::Corrupt("key of a stream's node"))?;
        stream.restore_node(id_of(key), &element(reader)?)?;
    }
    let (length, last_id) = (reader.number()?, id(reader)?);
    let counters = if counted {
        let (first_id, max_deleted_id) = (id(reader)?, id(reader)?);
        Counters { length, first_id, last_id, max_deleted_id, entries_added: reader.number()? }
    } else {
        // If the stream has no entries, Redis 7.0 sets its first id to the maximum id.
        let first_id = stream.first_entry_id().unwrap_or(StreamId::MAX);
        Counters { length, first_id, last_id, max_deleted_id: StreamId::MIN, entries_added: length }
    };
    stream.restore_counters(counters)?;
    for _ in 0..reader.count(5)? {
        stream.restore_group(group(reader, form, &counters)?)?;
    }
    Ok(stream)
}

/// Reads a group. The oldest form doesn't store how many entries the group has read, so this number
/// is computed from the stream's `counters`.
fn group(reader: &mut Reader<'_>, form: Form, counters: &Counters) -> Result<RestoredGroup, Error> {
    let (name, last_id) = (element(reader)?, id(reader)?);
    let entries_read = match form {
        Form::Uncounted => counters.entries_up_to(last_id).map_or(ENTRIES_READ_UNKNOWN, |count| count as i64),
        // -1 (all bits set) means that the number is unknown.
        Form::Counted | Form::Active => reader.number()? as i64,
    };
    let mut group = RestoredGroup::new(&name, last_id, entries_read);
    for _ in 0..reader.count(RAW_ID_BYTES + size_of::<i64>() + 1)? {
        let (id, delivered_ms) = (id_of(reader.array()?), i64::from_le_bytes(reader.array()?));
        group.add_pending(id, delivered_ms, reader.number()?)?;
    }
    for _ in 0..reader.count(2 + size_of::<i64>())? {
        let (name, seen_ms) = (element(reader)?, i64::from_le_bytes(reader.array()?));
        if form == Form::Active {
            // A consumer has only one time here, as in Redis 7.0, so the second time is skipped.
            reader.array::<{ size_of::<i64>() }>()?;
        }
        let count = reader.count(RAW_ID_BYTES)?;
        let ids = (0..count).map(|_| reader.array().map(id_of)).collect::<Result<Vec<_>, _>>()?;
        group.add_consumer(&name, seen_ms, ids)?;
    }
    Ok(group)
}

/// Size of an id in binary form, in bytes: two big-endian words.
const RAW_ID_BYTES: usize = 16;

fn id_of(bytes: [u8; RAW_ID_BYTES]) -> StreamId {
    let whole = u128::from_be_bytes(bytes);
    StreamId { ms: (whole >> 64) as u64, seq: whole as u64 }
}

/// Reads an id that is written as two numbers.
fn id(reader: &mut Reader<'_>) -> Result<StreamId, Error> {
    Ok(StreamId { ms: reader.number()?, seq: reader.number()? })
}
