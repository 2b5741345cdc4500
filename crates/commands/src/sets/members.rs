//! Members of sets: `SADD`, `SREM`, `SMOVE`, membership, `SMEMBERS`, `SSCAN`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::{Collection, Set, SetView};

use super::intset_entries_max;
use crate::elements::write;
use crate::errors;
use crate::scanning::{ScanOptions, parse_cursor, reply_empty_page, reply_page};

/// `SADD key member [member …]`.
#[inline]
pub fn sadd(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let entries_max = intset_entries_max(access);
    let result = access.db(&key).change_as(&key, Missing::Create, |set: &mut Set| {
        if !set.view().has_room((2..args.len()).map(|index| args.at(index))) {
            return (Change::none(), None);
        }
        let added = (2..args.len()).filter(|&index| set.add(args.at(index), entries_max)).count();
        (Change::event(&Event(EventClass::Set, "sadd")).when(added > 0), Some(added))
    });
    match result {
        Ok(Some(None)) => reply.error(errors::SET_FULL),
        Ok(added) => reply.integer(added.flatten().unwrap_or(0) as i64),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// `SREM key member [member …]`.
pub fn srem(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let result = access.db(&key).change_as(&key, Missing::Skip, |set: &mut Set| {
        let removed = (2..args.len()).filter(|&index| set.remove(args.at(index))).count();
        (Change::event(&Event(EventClass::Set, "srem")).when(removed > 0), removed)
    });
    match result {
        Ok(removed) => reply.integer(removed.unwrap_or(0) as i64),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// `SMOVE source destination member`.
pub fn smove(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (from, to, member) = (access.first_key(args, 1), access.key(args, 2), args.at(3));
    let is_member = match has_member(access, &from, member) {
        Ok(Some(is_member)) => is_member,
        // The source is missing or isn't a set, so nothing is moved. As in Redis, the destination
        // is looked up nevertheless. The lookup deletes the destination if it has expired.
        found => {
            access.db(&to).write(&to);
            return if found.is_err() { reply.error(errors::WRONG_TYPE) } else { reply.integer(0) };
        }
    };
    let has_room = match access.db(&to).write_as::<Set>(&to) {
        Ok(set) => set.is_none_or(|set| set.has_room(std::iter::once(member))),
        Err(WrongType) => return reply.error(errors::WRONG_TYPE),
    };
    if is_member && !has_room {
        return reply.error(errors::SET_FULL);
    }
    if !is_member || from.bytes == to.bytes {
        return reply.integer(i64::from(is_member));
    }
    // Both keys hold sets or are missing, so neither change can fail.
    let _ = access.db(&from).change_as(&from, Missing::Skip, |set: &mut Set| {
        set.remove(member);
        (Change::event(&Event(EventClass::Set, "srem")), ())
    });
    let entries_max = intset_entries_max(access);
    let _ = access.db(&to).change_as(&to, Missing::Create, |set: &mut Set| {
        let added = set.add(member, entries_max);
        (Change::event(&Event(EventClass::Set, "sadd")).when(added), ())
    });
    reply.integer(1);
}

/// Returns whether the set at a key has a member; `None` if there is no such key. Looks the key up
/// for writing.
fn has_member(
    access: &mut Access<'_>,
    key: &pantala_engine::access::Key<'_>,
    member: &[u8],
) -> Result<Option<bool>, WrongType> {
    let mut db = access.db(key);
    Ok(db.write_as::<Set>(key)?.map(|set| set.contains(member)))
}

/// Calls `work` with the set at `args[1]`. Calls `missing` if there is no such key.
#[inline]
pub(super) fn with_view(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    missing: impl FnOnce(&mut Reply<'_>),
    work: impl FnOnce(SetView<'_>, &mut Reply<'_>),
) {
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<Set>(&key) {
        Ok(Some(view)) => work(view, reply),
        Ok(None) => missing(reply),
        Err(WrongType) => reply.error(errors::WRONG_TYPE),
    }
}

/// `SISMEMBER key member`.
#[inline]
pub fn sismember(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let zero = |reply: &mut Reply<'_>| reply.integer(0);
    with_view(access, args, reply, zero, |set, reply| reply.integer(i64::from(set.contains(args.at(2)))));
}

/// `SMISMEMBER key member [member …]`.
pub fn smismember(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let zeros = |reply: &mut Reply<'_>| {
        reply.array(args.len() - 2);
        (2..args.len()).for_each(|_| reply.integer(0));
    };
    with_view(access, args, reply, zeros, |set, reply| {
        reply.array(args.len() - 2);
        (2..args.len()).for_each(|index| reply.integer(i64::from(set.contains(args.at(index)))));
    });
}

/// `SCARD key`.
pub fn scard(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_view(access, args, reply, |reply| reply.integer(0), |set, reply| reply.integer(set.len() as i64));
}

/// `SMEMBERS key`.
pub fn smembers(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_view(
        access,
        args,
        reply,
        |reply| reply.set(0),
        |set, reply| {
            reply.set(set.len());
            set.for_each(|member| write(member, reply));
        },
    );
}

/// `SSCAN key cursor [MATCH pattern] [COUNT count]`.
pub fn sscan(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(cursor) = parse_cursor(args.at(2)) else { return reply.error("ERR invalid cursor") };
    with_view(access, args, reply, reply_empty_page, |set, reply| {
        let options = match ScanOptions::parse(args, false) {
            Ok(options) => options,
            Err(error) => return reply.error(error),
        };
        reply_page(reply, cursor, &options, |cursor, page| {
            let (mut seen, mut written) = (0, 0);
            let next = set.scan(cursor, &mut |member| {
                seen += 1;
                if options.matches(member) {
                    write(member, page);
                    written += 1;
                }
            });
            (next, seen, written)
        });
    });
}
