//! Reads and writes parts of strings: `STRLEN`, `GETRANGE`, `APPEND`, `SETRANGE`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, EditError, Expire, Holds, NewString};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::{check_string_length, getrange as range_of};

use super::StringRef;
use crate::arguments::integer;
use crate::errors;

/// `STRLEN key`.
pub fn strlen(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let Some(entry) = db.read(&key) else { return reply.integer(0) };
    match StringRef::of(entry.held()) {
        Some(string) => reply.integer(string.len() as i64),
        None => reply.error(errors::WRONG_TYPE),
    }
}

/// `GETRANGE key start end`.
pub fn getrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(start) = integer(args.at(2), reply) else { return };
    let Some(end) = integer(args.at(3), reply) else { return };
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let Some(entry) = db.read(&key) else { return reply.bulk(b"") };
    match StringRef::of(entry.held()) {
        Some(string) => string.with_bytes(|bytes| reply.bulk(&bytes[range_of(bytes.len(), start, end)])),
        None => reply.error(errors::WRONG_TYPE),
    }
}

/// `SUBSTR key start end`: the deprecated name of `GETRANGE`.
pub fn substr(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    getrange(access, args, reply);
}

/// `APPEND key value`.
pub fn append(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let tail = args.at(2);
    let len_max = access.string_bytes_max();
    let mut db = access.db(&key);
    let change = Change::event(&Event(EventClass::String, "append"));
    let Some(entry) = db.write(&key) else {
        // As with `SET`, a new value may be stored as an integer.
        let stored = db.set_string(&key, NewString::encode(tail), Expire::Clear, change);
        return finish(stored.map(|()| tail.len()).map_err(EditError::from), reply);
    };
    let Some(string) = StringRef::of(entry.held()) else { return reply.error(errors::WRONG_TYPE) };
    let len = string.len();
    if check_string_length(len as u64, tail.len() as u64, len_max).is_err() {
        return reply.error(errors::STRING_TOO_LONG);
    }
    let changed = db.edit_string(&key, |string| Ok((change, string.try_append(tail)?)));
    finish(changed.map(|()| len + tail.len()), reply);
}

/// `SETRANGE key offset value`.
pub fn setrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(offset) = integer(args.at(2), reply) else { return };
    let Ok(offset) = u64::try_from(offset) else { return reply.error("ERR offset is out of range") };
    let patch = args.at(3);
    let key = access.first_key(args, 1);
    let len_max = access.string_bytes_max();
    let mut db = access.db(&key);
    let len = match db.write(&key).map(|entry| StringRef::of(entry.held()).map(StringRef::len)) {
        None => 0,
        Some(Some(len)) => len,
        Some(None) => return reply.error(errors::WRONG_TYPE),
    };
    if patch.is_empty() {
        return reply.integer(len as i64);
    }
    if check_string_length(offset, patch.len() as u64, len_max).is_err() {
        return reply.error(errors::STRING_TOO_LONG);
    }
    // The offset is below 2^63, which fits in a usize on 64-bit systems.
    let offset = offset as usize;
    let len = len.max(offset + patch.len());
    let change = Change::event(&Event(EventClass::String, "setrange"));
    let changed = db.edit_string(&key, |string| Ok((change, string.try_set_range(offset, patch)?)));
    finish(changed.map(|()| len), reply);
}

/// Replies with the new length, or with the error.
fn finish(changed: Result<usize, EditError>, reply: &mut Reply<'_>) {
    match changed {
        Ok(len) => reply.integer(len as i64),
        Err(error) => reply.error(errors::edit_error(error)),
    }
}
