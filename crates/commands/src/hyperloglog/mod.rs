//! HyperLogLog commands: approximate counts of distinct elements. A HyperLogLog is a string of at
//! most 12,304 bytes.
//!
//! The string has the same bytes as in Redis. See [`pantala_types::hyperloglog`].

mod debug;
#[cfg(test)]
mod tests;

pub use debug::{pfdebug, pfselftest};

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::{Access, Key, SessionView};
use pantala_engine::db::{Change, Db, EditError, Expire, Held, Holds, Silence};
use pantala_engine::keyspace::Keyspace;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::hyperloglog::{
    ChangeError, Form, HyperLogLog, Registers, add, empty, forget_count, remember_count, store_merged,
};
use pantala_types::{OutOfMemory, RawString};

use crate::errors;
use crate::strings::StringRef;

const NOT_ONE: &str = "WRONGTYPE Key is not a valid HyperLogLog string value.";
const CORRUPTED: &str = "INVALIDOBJ Corrupted HLL object detected";

/// The error reply of a failed command.
struct Failure(&'static str);

impl From<ChangeError> for Failure {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Corrupted => Failure(CORRUPTED),
            ChangeError::OutOfMemory => Failure(errors::OUT_OF_MEMORY),
        }
    }
}

impl From<EditError> for Failure {
    fn from(error: EditError) -> Self {
        Failure(errors::edit_error(error))
    }
}

impl From<OutOfMemory> for Failure {
    fn from(_: OutOfMemory) -> Self {
        Failure(errors::OUT_OF_MEMORY)
    }
}

/// Returns the HyperLogLog in an entry's value. Fails if the value isn't one.
fn of(held: Held<'_>) -> Result<HyperLogLog<'_>, Failure> {
    match StringRef::of(held) {
        None => Err(Failure(errors::WRONG_TYPE)),
        // The text of an integer is never a HyperLogLog.
        Some(StringRef::Int(_)) => Err(Failure(NOT_ONE)),
        Some(StringRef::Bytes(bytes)) => HyperLogLog::of(bytes).ok_or(Failure(NOT_ONE)),
    }
}

/// The change of a HyperLogLog by adding elements.
const ADDED: Change = Change::event(&Event(EventClass::String, "pfadd"));

/// Changes the string of a HyperLogLog, which is empty if the key is missing. `work` returns the
/// change and a result. If `work` fails, it must leave the string unchanged.
fn edit_one<K: Into<Option<Change>>, R>(
    db: &mut Db<'_>,
    key: &Key<'_>,
    work: impl FnOnce(&mut RawString) -> Result<(K, R), ChangeError>,
) -> Result<R, Failure> {
    let done = db.edit_string(key, |string| {
        Ok(match work(string) {
            Ok((change, result)) => (change.into(), Ok(result)),
            // As in Redis, the encoding becomes raw even if `work` fails.
            Err(error) => (Some(Change::silent(Silence::Encoding)), Err(error)),
        })
    });
    Ok(done??)
}

fn sparse_bytes_max(access: &Access<'_>) -> u64 {
    access.keyspace().tuning.hll_sparse_max_bytes.load(Relaxed)
}

/// `PFADD key [element …]`.
pub fn pfadd(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let bytes_max = sparse_bytes_max(access);
    let key = access.first_key(args, 1);
    match add_all(&mut access.db(&key), &key, args, bytes_max) {
        Ok(changed) => reply.integer(i64::from(changed)),
        Err(Failure(error)) => reply.error(error),
    }
}

/// Adds all elements. Returns whether the key is new or a register changed.
fn add_all(db: &mut Db<'_>, key: &Key<'_>, args: &Args<'_>, bytes_max: u64) -> Result<bool, Failure> {
    let add_to = |string: &mut RawString| -> Result<bool, ChangeError> {
        let mut changed = false;
        for element in args.iter().skip(2) {
            changed |= add(string, element, bytes_max)?;
        }
        Ok(changed)
    };
    let Some(entry) = db.write(key) else {
        let mut string = empty()?;
        add_to(&mut string)?;
        forget_count(&mut string);
        db.set_raw(key, string, Expire::Clear, ADDED)?;
        return Ok(true);
    };
    // If an element cannot be added, the string must be left unchanged. Two kinds of additions do
    // so by themselves, and therefore need no copy of the string: any addition to a dense
    // HyperLogLog, and the addition of a single element.
    let certain = of(entry.held())?.form() == Form::Dense || args.len() <= 3;
    edit_one(db, key, |string| {
        if certain {
            let changed = add_to(string)?;
            return Ok((ADDED.when(changed), changed));
        }
        let mut changed_string = string.try_clone()?;
        let changed = add_to(&mut changed_string)?;
        *string = changed_string;
        Ok((ADDED.when(changed), changed))
    })
}

/// `PFCOUNT key [key …]`.
pub fn pfcount(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let counted = if args.len() == 2 {
        let key = access.first_key(args, 1);
        count_one(&mut access.db(&key), &key)
    } else {
        merged(access, args).map(|union| union.registers.count())
    };
    match counted {
        Ok(count) => reply.integer(count as i64),
        Err(Failure(error)) => reply.error(error),
    }
}

/// Returns the count of one key. The string caches its count.
fn count_one(db: &mut Db<'_>, key: &Key<'_>) -> Result<u64, Failure> {
    let Some(entry) = db.read(key) else { return Ok(0) };
    let cached = of(entry.held())?.cached_count();
    // As in Redis, counting makes the encoding raw. The string is therefore edited even if its
    // count is cached.
    edit_one(db, key, |string| {
        let count = match (cached, HyperLogLog::of(string.as_bytes())) {
            (None, Some(found)) => found.count()?,
            (cached, _) => return Ok((Change::silent(Silence::Encoding), cached.unwrap_or(0))),
        };
        remember_count(string, count);
        Ok((Change::silent(Silence::CachedCount), count))
    })
}

/// The union of several HyperLogLogs.
struct Union {
    registers: Registers,
    /// Whether at least one of the HyperLogLogs is dense.
    any_dense: bool,
}

/// Returns the union of all keys of a command.
fn merged(access: &mut Access<'_>, args: &Args<'_>) -> Result<Union, Failure> {
    let mut union = Union { registers: Registers::new(), any_dense: false };
    for index in 1..args.len() {
        let key = access.key(args, index);
        let mut db = access.db(&key);
        let Some(entry) = db.read(&key) else { continue };
        let found = of(entry.held())?;
        union.any_dense |= found.form() == Form::Dense;
        found.merge_into(&mut union.registers).map_err(ChangeError::from)?;
    }
    Ok(union)
}

/// Appends the route of `PFMERGE`: the shards of all its arguments.
pub fn pfmerge_route(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    shards.extend(args.iter().skip(1).map(|key| keyspace.place(key).shard));
}

/// `PFMERGE destkey [sourcekey …]`.
pub fn pfmerge(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    match merge(access, args) {
        Ok(()) => reply.ok(),
        Err(Failure(error)) => reply.error(error),
    }
}

/// Merges all keys, including the destination, into the destination.
fn merge(access: &mut Access<'_>, args: &Args<'_>) -> Result<(), Failure> {
    let bytes_max = sparse_bytes_max(access);
    let Union { registers, any_dense } = merged(access, args)?;
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let exists = db.write(&key).is_some();
    edit_one(&mut db, &key, |string| {
        if exists {
            return Ok((ADDED, store_merged(string, &registers, any_dense, bytes_max)?));
        }
        let mut made = empty()?;
        store_merged(&mut made, &registers, any_dense, bytes_max)?;
        *string = made;
        Ok((ADDED, ()))
    })
}
