//! `XLEN`, `XRANGE`, `XREVRANGE`, `XDEL` and `XSETID`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Missing};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::stream::StreamId;

use super::ids::{INVALID_ID, Ids, end, id, start, write_entry};
use super::{StreamBox, change, metadata};
use crate::arguments::{integer, is_option};
use crate::errors;

/// `XLEN key`.
pub fn xlen(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<StreamBox>(&key) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(stream) => reply.integer(stream.map_or(0, |stream| stream.length() as i64)),
    }
}

/// `XRANGE key start end [COUNT count]`.
pub fn xrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    range(access, args, false, reply);
}

/// `XREVRANGE key end start [COUNT count]`.
pub fn xrevrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    range(access, args, true, reply);
}

fn range(access: &mut Access<'_>, args: &Args<'_>, reversed: bool, reply: &mut Reply<'_>) {
    let (first, last) = if reversed { (3, 2) } else { (2, 3) };
    let Some(start) = start(args.at(first), reply) else { return };
    let Some(end) = end(args.at(last), reply) else { return };
    let mut count = usize::MAX;
    let mut at = 4;
    while at < args.len() {
        if at + 1 == args.len() || !is_option(args.at(at), "COUNT") {
            return reply.error(errors::SYNTAX);
        }
        let Some(number) = integer(args.at(at + 1), reply) else { return };
        // As in Redis, a negative COUNT selects no entries. Without COUNT, all entries are
        // selected.
        count = usize::try_from(number).unwrap_or(0);
        at += 2;
    }
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<StreamBox>(&key) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.array(0),
        Ok(Some(_)) if count == 0 => reply.null_array(),
        Ok(Some(stream)) => {
            let entries = reply.defer_array();
            let show = |id, fields: pantala_types::stream::Fields<'_>| write_entry(id, fields, reply);
            let shown = if reversed {
                stream.range_reversed(start, end, count, show)
            } else {
                stream.range(start, end, count, show)
            };
            reply.patch(entries, shown);
        }
    }
}

/// `XDEL key id [id ...]`.
pub fn xdel(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let ids = Ids::of(args.tail(2));
    let deleted = access.db(&key).change_as(&key, Missing::Skip, |stream: &mut StreamBox| {
        let deleted = ids.map(|ids| stream.delete(ids.as_slice()));
        let is_changed = deleted.is_some_and(|deleted| deleted > 0);
        (Change::event(&Event(EventClass::Stream, "xdel")).when(is_changed), deleted)
    });
    match deleted {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.integer(0),
        Ok(Some(None)) => reply.error(INVALID_ID),
        Ok(Some(Some(deleted))) => reply.integer(deleted as i64),
    }
}

/// `XSETID key last-id [ENTRIESADDED entries_added] [MAXDELETEDID max_deleted_entry_id]`.
pub fn xsetid(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(last_id) = id(args.at(2), 0, reply) else { return };
    let (mut entries_added, mut max_deleted_id) = (None, StreamId::MIN);
    let mut at = 3;
    while at < args.len() {
        let has_value = at + 1 < args.len();
        if has_value && is_option(args.at(at), "ENTRIESADDED") {
            let Some(added) = integer(args.at(at + 1), reply) else { return };
            let Ok(added) = u64::try_from(added) else { return reply.error("ERR entries_added must be positive") };
            entries_added = Some(added);
        } else if has_value && is_option(args.at(at), "MAXDELETEDID") {
            let Some(deleted) = id(args.at(at + 1), 0, reply) else { return };
            if last_id < deleted {
                return reply.error("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id");
            }
            max_deleted_id = deleted;
        } else {
            return reply.error(errors::SYNTAX);
        }
        at += 2;
    }
    let key = access.first_key(args, 1);
    let done = change(&mut access.db(&key), &key, |stream| {
        let counters = *stream.counters();
        let has_entries = counters.length > 0;
        let error = if stream.last_entry_id().is_some_and(|top| last_id < top) {
            Some("ERR The ID specified in XSETID is smaller than the target stream top item")
        } else if has_entries && entries_added.is_some_and(|added| counters.length > added) {
            Some("ERR The entries_added specified in XSETID is smaller than the target stream length")
        } else {
            None
        };
        if error.is_none() {
            stream.set_id(last_id, entries_added, Some(max_deleted_id).filter(|&id| id != StreamId::MIN));
        }
        (metadata(&Event(EventClass::Stream, "xsetid")).when(error.is_none()), error)
    });
    match done {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.error(errors::NO_SUCH_KEY),
        Ok(Some(Some(error))) => reply.error(error),
        Ok(Some(None)) => reply.ok(),
    }
}
