//! `DUMP` and `RESTORE`: convert a value to and from an RDB payload that Redis can also read.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::Decimal;
use pantala_engine::access::{Access, Key};
use pantala_engine::command::{Chance, Propagated};
use pantala_engine::db::{Change, Expire, Holds};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::Hash;
use pantala_types::rdb_value::{Error, Loaded, Reader, ValueRef, Writer, payload, read, write};

use crate::arguments::{integer, is_option};
use crate::{errors, propagated};

const BUSY_KEY: &str = "BUSYKEY Target key name already exists.";
const WRONG_PAYLOAD: &str = "ERR DUMP payload version or checksum are wrong";
const BAD_DATA: &str = "ERR Bad data format";

/// `DUMP key`.
pub fn dump(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    match payload_of(access, &key) {
        Some((payload, _)) => reply.bulk(&payload),
        None => reply.null(),
    }
}

/// Returns the payload of a key and its deadline (Unix time, ms); `None` if there is no such key.
pub(crate) fn payload_of(access: &mut Access<'_>, key: &Key<'_>) -> Option<(Vec<u8>, Option<i64>)> {
    let compress = access.keyspace().tuning.rdb_compression.load(Relaxed);
    let now_ms = access.now_ms();
    let mut db = access.db(key);
    let entry = db.read(key)?;
    let (held, at_ms) = (entry.held(), entry.expire_at_ms());
    let value = match held.view::<Hash>() {
        // Expired fields aren't written. A hash with only expired fields counts as missing.
        Some(hash) if hash.has_expired(now_ms) => {
            (hash.len_at(now_ms) > 0).then_some(ValueRef::HashAt(hash, now_ms))?
        }
        // `to_write` returns a value for every type, so this never returns `None`.
        _ => held.to_write()?,
    };
    let mut bytes = Vec::new();
    write(value, &mut Writer::new(&mut bytes, compress));
    payload::seal(&mut bytes);
    Some((bytes, at_ms))
}

/// `RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`.
pub fn restore(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, chance: Chance) -> Option<Propagated> {
    let options = Options::parse(args, reply)?;
    let key = access.first_key(args, 1);
    if !options.replace && access.db(&key).write(&key).is_some() {
        reply.error(BUSY_KEY);
        return None;
    }
    let ttl_ms = integer(args.at(2), reply)?;
    if ttl_ms < 0 {
        reply.error("ERR Invalid TTL value, must be >= 0");
        return None;
    }
    let bytes = args.at(3);
    if !payload::is_sealed(bytes, access.keyspace().tuning.skips_checksums.load(Relaxed)) {
        reply.error(WRONG_PAYLOAD);
        return None;
    }
    let limits = access.keyspace().tuning.rdb_limits();
    // The bytes include the version and the checksum after the value. As in Redis, a truncated
    // value may be read on into these. Bytes after a complete value are ignored.
    let loaded = match read(&mut Reader::new(bytes, limits.string_bytes_max), &limits) {
        Ok(loaded) => loaded,
        Err(Error::Truncated | Error::Corrupt(_) | Error::Empty | Error::UnknownKind(_)) => {
            reply.error(BAD_DATA);
            return None;
        }
        Err(Error::OutOfMemory) => {
            reply.error(errors::OUT_OF_MEMORY);
            return None;
        }
    };
    let at_ms = match ttl_ms {
        0 => None,
        at_ms if options.absolute => Some(at_ms),
        // As in Redis, a deadline that overflows counts as past.
        ttl_ms => Some(access.now_ms().wrapping_add(ttl_ms)),
    };
    store(access, args, &key, loaded, at_ms, (&options, chance), reply)
}

/// Stores a value. If the deadline has passed, deletes the key instead.
fn store(
    access: &mut Access<'_>,
    args: &Args<'_>,
    key: &Key<'_>,
    loaded: Loaded<'_>,
    at_ms: Option<i64>,
    (options, chance): (&Options, Chance),
    reply: &mut Reply<'_>,
) -> Option<Propagated> {
    let now_ms = access.now_ms();
    if at_ms.is_some_and(|at_ms| access.is_past(at_ms)) {
        reply.ok();
        let is_deleted = options.replace && access.remove_destination(key);
        return is_deleted.then(|| propagated::deletion(access, key, false));
    }
    let access_word = access.keyspace().tuning.access_policy().word_of(options.idle_time_s, options.frequency, now_ms);
    let (expire, change) =
        (at_ms.map_or(Expire::Clear, Expire::At), Change::event(&Event(EventClass::Generic, "restore")));
    if access.db(key).restore(key, loaded, expire, access_word, change).is_err() {
        reply.error(errors::OUT_OF_MEMORY);
        return None;
    }
    reply.ok();
    let Some(at_ms) = at_ms.filter(|_| !options.absolute) else { return Some(access.propagate_verbatim(chance)) };
    let mut at = Decimal::new();
    let words = args.iter().take(2).chain([at.format_i64(at_ms)]).chain(args.iter().skip(3));
    Some(propagated::words(access, words.chain([&b"ABSTTL"[..]])))
}

/// The options after the payload.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
    idle_time_s: Option<i64>,
    frequency: Option<u8>,
}

impl Options {
    /// Parses the options. Replies with an error and returns `None` if they are invalid.
    fn parse(args: &Args<'_>, reply: &mut Reply<'_>) -> Option<Self> {
        let mut options = Options::default();
        let mut index = 4;
        while let Some(option) = args.get(index) {
            let number = args.get(index + 1);
            if is_option(option, "REPLACE") {
                options.replace = true;
            } else if is_option(option, "ABSTTL") {
                options.absolute = true;
            } else if let (true, Some(number), None) = (is_option(option, "IDLETIME"), number, options.frequency) {
                let idle_time_s = integer(number, reply)?;
                if idle_time_s < 0 {
                    reply.error("ERR Invalid IDLETIME value, must be >= 0");
                    return None;
                }
                options.idle_time_s = Some(idle_time_s);
                index += 1;
            } else if let (true, Some(number), None) = (is_option(option, "FREQ"), number, options.idle_time_s) {
                let frequency = integer(number, reply)?;
                let Ok(frequency) = u8::try_from(frequency) else {
                    reply.error("ERR Invalid FREQ value, must be >= 0 and <= 255");
                    return None;
                };
                options.frequency = Some(frequency);
                index += 1;
            } else {
                reply.error(errors::SYNTAX);
                return None;
            }
            index += 1;
        }
        Some(options)
    }
}

#[cfg(test)]
mod tests;
