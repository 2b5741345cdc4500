//! One bit.

use pantala_engine::access::Access;
use pantala_engine::db::{FLAG_RAW, Holds};
use pantala_engine::notify::EventClass;
use pantala_resp::{Args, Reply};
use pantala_types::bitmap::{bit_at, set_bit};

use super::bit_offset;
use crate::errors;
use crate::strings::{StringRef, grow};

/// `GETBIT key offset`.
pub fn getbit(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(offset) = bit_offset(args.at(2), 0, access.keyspace(), reply) else { return };
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let Some(entry) = db.read(&key) else { return reply.integer(0) };
    match StringRef::of(entry.held()) {
        Some(string) => reply.integer(i64::from(string.with_bytes(|bytes| bit_at(bytes, offset)))),
        None => reply.error(errors::WRONG_TYPE),
    }
}

/// `SETBIT key offset value`.
pub fn setbit(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(offset) = bit_offset(args.at(2), 0, access.keyspace(), reply) else { return };
    let on = match args.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return reply.error("ERR bit is not an integer or out of range"),
    };
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let mut len_before = 0;
    if let Some(mut entry) = db.write(&key) {
        let Some(string) = StringRef::of(entry.held()) else { return reply.error(errors::WRONG_TYPE) };
        len_before = string.len();
        // Inside the entry, where it lives there and needn't grow. It is raw from now on.
        if let Some(was) = entry.bytes_mut().and_then(|bytes| set_bit(bytes, offset, on)) {
            if entry.user_flags() != FLAG_RAW {
                entry.set_user_flags(FLAG_RAW);
            }
            if was != on {
                db.modified(&key);
                db.notify(EventClass::String, "setbit", &key);
            }
            return reply.integer(i64::from(was));
        }
    }
    // The offset is below eight times `proto-max-bulk-len`, which an usize holds.
    let len = (offset >> 3) as usize + 1;
    let (mut was, mut is_changed) = (None, false);
    let grown = grow(&mut db, &key, len, |bytes| {
        was = set_bit(bytes, offset, on);
        is_changed = len > len_before || was != Some(on);
        is_changed
    });
    match grown {
        Ok(()) => {
            if is_changed {
                db.notify(EventClass::String, "setbit", &key);
            }
            reply.integer(i64::from(was.unwrap_or(false)));
        }
        Err(_) => reply.error(errors::OUT_OF_MEMORY),
    }
}
