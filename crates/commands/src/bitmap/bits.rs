//! `GETBIT` and `SETBIT`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Holds};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::bitmap::{bit_at, set_bit};

use super::bit_offset;
use crate::errors;
use crate::strings::StringRef;

/// `GETBIT key offset`.
pub fn getbit(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(offset) = bit_offset(args.at(2), 0, access.string_bytes_max(), reply) else { return };
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
    let Some(offset) = bit_offset(args.at(2), 0, access.string_bytes_max(), reply) else { return };
    let on = match args.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return reply.error("ERR bit is not an integer or out of range"),
    };
    let key = access.first_key(args, 1);
    // The offset is below 2^63, so this fits in a usize.
    let len = (offset >> 3) as usize + 1;
    let was = access.db(&key).edit_bytes(&key, len, |bytes, len_before| {
        let was = set_bit(bytes, offset, on);
        let is_changed = len > len_before || was != Some(on);
        (Change::event(&Event(EventClass::String, "setbit")).when(is_changed), was.unwrap_or(false))
    });
    match was {
        Ok(was) => reply.integer(i64::from(was)),
        Err(error) => reply.error(errors::edit_error(error)),
    }
}
