//! Parts of strings.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Db, Expire, Held, Holds, NewString, fits_inline};
use pantala_resp::{Args, Reply};
use pantala_types::{OutOfMemory, RawString, Value, check_string_length, getrange as range_of};

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

/// `SUBSTR key start end`: the old name of `GETRANGE`.
pub fn substr(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    getrange(access, args, reply);
}

/// `APPEND key value`.
pub fn append(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let tail = args.at(2);
    let len_max = access.keyspace().tuning.proto_max_bulk_len.load(Relaxed);
    let mut db = access.db(&key);
    let Some(entry) = db.write(&key) else {
        // A new key: stored as SET would, an integer where it is one.
        return finish(db.set_string(&key, NewString::encode(tail), Expire::Clear), tail.len(), reply);
    };
    let Some(string) = StringRef::of(entry.held()) else { return reply.error(errors::WRONG_TYPE) };
    let len = string.len();
    if check_string_length(len as u64, tail.len() as u64, len_max).is_err() {
        return reply.error(errors::STRING_TOO_LONG);
    }
    let changed = change(&mut db, &key, len + tail.len(), &mut |string| string.try_append(tail));
    finish(changed, len + tail.len(), reply);
}

/// `SETRANGE key offset value`.
pub fn setrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(offset) = integer(args.at(2), reply) else { return };
    let Ok(offset) = u64::try_from(offset) else { return reply.error("ERR offset is out of range") };
    let patch = args.at(3);
    let key = access.first_key(args, 1);
    let len_max = access.keyspace().tuning.proto_max_bulk_len.load(Relaxed);
    let mut db = access.db(&key);
    let found = db.write(&key);
    let exists = found.is_some();
    let len = match found.map(|entry| StringRef::of(entry.held()).map(StringRef::len)) {
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
    // Within `proto-max-bulk-len` now, which fits an usize on every 64-bit system.
    let offset = offset as usize;
    let len = len.max(offset + patch.len());
    let mut patched = |string: &mut RawString| string.try_set_range(offset, patch);
    let changed =
        if exists { change(&mut db, &key, len, &mut patched) } else { create(&mut db, &key, len, &mut patched) };
    finish(changed, len, reply);
}

fn finish(changed: Result<(), OutOfMemory>, len: usize, reply: &mut Reply<'_>) {
    match changed {
        Ok(()) => reply.integer(len as i64),
        Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
    }
}

type Change<'c> = &'c mut dyn FnMut(&mut RawString) -> Result<(), OutOfMemory>;

/// Changes the string that a key holds, to a length of `len`. It is `raw` from then on; its time to live stays.
fn change(db: &mut Db<'_>, key: &Key<'_>, len: usize, work: Change<'_>) -> Result<(), OutOfMemory> {
    let Some(entry) = db.find(key) else { return Ok(()) };
    let mut string = match entry.held() {
        // In place, with the room to grow that it has.
        Held::Heap(Value::String(_)) => {
            return db
                .change_heap(key, |value| match value {
                    Value::String(string) => work(string),
                    // It was one just now.
                    _ => Ok(()),
                })
                .unwrap_or(Ok(()));
        }
        Held::Bytes(bytes) => RawString::try_from_slice(bytes)?,
        Held::Int(value) => StringRef::Int(value).with_bytes(RawString::try_from_slice)?,
        // The caller has seen a string.
        Held::Packed(..) | Held::Heap(_) => return Ok(()),
    };
    work(&mut string)?;
    store(db, key, len, string)
}

/// Makes a new string at a key from nothing.
fn create(db: &mut Db<'_>, key: &Key<'_>, len: usize, work: Change<'_>) -> Result<(), OutOfMemory> {
    let mut string = RawString::default();
    work(&mut string)?;
    store(db, key, len, string)
}

/// Stores a changed string: in the entry where it fits, as it is otherwise.
fn store(db: &mut Db<'_>, key: &Key<'_>, len: usize, string: RawString) -> Result<(), OutOfMemory> {
    debug_assert_eq!(string.len(), len);
    if fits_inline(key.bytes, len) {
        db.set_string(key, NewString::Raw(string.as_bytes()), Expire::Keep)
    } else {
        db.set_string(key, NewString::Large(string), Expire::Keep)
    }
}
