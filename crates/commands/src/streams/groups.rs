//! `XGROUP`.

use pantala_engine::access::Access;
use pantala_engine::client::LocalContext;
use pantala_engine::db::{Change, Missing};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::stream::{ENTRIES_READ_UNKNOWN, GroupNumber, Stream, StreamId};

use super::ids::{INVALID_ID, parse_id_or_end};
use super::{StreamBox, change, metadata, no_group_of_key};
use crate::arguments::{c_string, integer, is_option, wrong_subcommand};
use crate::{errors, help};

const NO_KEY: &str = "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically.";
const BUSY: &str = "BUSYGROUP Consumer Group name already exists";
/// Maximum number of arguments of `XGROUP CREATE`.
const CREATE_ARGUMENTS_MAX: usize = 8;
/// The numbers of arguments that `XGROUP SETID` may have.
const SETID_ARGUMENTS: [usize; 2] = [5, 7];

/// `XGROUP CREATE key group id | $ [MKSTREAM] [ENTRIESREAD entries_read]`.
pub fn xgroup_create(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some((mkstream, entries_read)) = options(args, true, reply) else { return };
    let key = access.first_key(args, 2);
    let start = Start::parse(args.at(4), StreamId::parse);
    let valid_len = args.len() <= CREATE_ARGUMENTS_MAX;
    let create = |stream: &mut Stream| {
        let (true, Some(start)) = (valid_len, &start) else { return false };
        stream.create_group(args.at(3), start.id(stream.counters().last_id), entries_read)
    };
    let mut db = access.db(&key);
    let mut done = change(&mut db, &key, |stream| {
        let is_created = create(stream);
        (metadata(&Event(EventClass::Stream, "xgroup-create")).when(is_created), is_created)
    });
    if matches!(done, Ok(None)) && mkstream && valid_len && start.is_some() {
        // Creating the key counts as a change of its value. Creating a group of an existing stream
        // doesn't.
        done = db.change_as(&key, Missing::Create, |stream: &mut StreamBox| {
            (Change::event(&Event(EventClass::Stream, "xgroup-create")), create(stream))
        });
    }
    match (done, start) {
        (Err(_), _) => reply.error(errors::WRONG_TYPE),
        (Ok(None), _) if !mkstream => reply.error(NO_KEY),
        _ if !valid_len => wrong_subcommand(args, reply),
        (_, None) => reply.error(INVALID_ID),
        (Ok(Some(true)), Some(_)) => reply.ok(),
        (Ok(_), Some(_)) => reply.error(BUSY),
    }
}

/// `XGROUP SETID key group id | $ [ENTRIESREAD entries_read]`.
pub fn xgroup_setid(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some((_, entries_read)) = options(args, false, reply) else { return };
    let start = Start::parse(args.at(4), parse_id_or_end);
    let valid_len = SETID_ARGUMENTS.contains(&args.len());
    let done = change_group(access, args, reply, &Event(EventClass::Stream, "xgroup-setid"), |stream, group| {
        let (true, Some(start)) = (valid_len, &start) else { return (false, ()) };
        stream.set_group_id(group, start.id(stream.counters().last_id), entries_read);
        (true, ())
    });
    match (done, start) {
        (None, _) => {}
        _ if !valid_len => wrong_subcommand(args, reply),
        (_, None) => reply.error(INVALID_ID),
        (Some(()), Some(_)) => reply.ok(),
    }
}

/// `XGROUP DESTROY key group`.
pub fn xgroup_destroy(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 2);
    let done = change(&mut access.db(&key), &key, |stream| {
        let destroyed = stream.destroy_group(args.at(3));
        (Change::group_deleted().and(&Event(EventClass::Stream, "xgroup-destroy")).when(destroyed), destroyed)
    });
    match done {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.error(NO_KEY),
        Ok(Some(destroyed)) => reply.integer(i64::from(destroyed)),
    }
}

/// `XGROUP CREATECONSUMER key group consumer`.
pub fn xgroup_createconsumer(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let now_ms = access.now_ms();
    let created =
        change_group(access, args, reply, &Event(EventClass::Stream, "xgroup-createconsumer"), |stream, group| {
            let created = stream.create_consumer(group, args.at(4), now_ms);
            (created, created)
        });
    if let Some(created) = created {
        reply.integer(i64::from(created));
    }
}

/// `XGROUP DELCONSUMER key group consumer`.
pub fn xgroup_delconsumer(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let pending =
        change_group(access, args, reply, &Event(EventClass::Stream, "xgroup-delconsumer"), |stream, group| {
            let pending = stream.remove_consumer(group, args.at(4));
            (pending.is_some(), pending.unwrap_or(0))
        });
    if let Some(pending) = pending {
        reply.integer(pending as i64);
    }
}

/// `XGROUP HELP`.
pub fn xgroup_help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "    Create a group of a stream. Options:",
            "    * MKSTREAM",
            "      Create the stream if it doesn't exist.",
            "    * ENTRIESREAD entries_read",
            "      Set the number of entries read by the group (internal use).",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "    Create a consumer in a group.",
            "DELCONSUMER <key> <groupname> <consumer>",
            "    Delete a consumer and its pending entries.",
            "DESTROY <key> <groupname>",
            "    Delete a group.",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
            "    Set the last delivered ID of a group.",
        ],
    );
}

/// The position from which a group reads.
enum Start {
    /// `$`: after the last entry.
    Last,
    After(StreamId),
}

impl Start {
    /// Parses a position. If it is invalid, returns `None` without a reply, because the error for a
    /// missing key has precedence.
    fn parse(argument: &[u8], parse: fn(&[u8], u64) -> Option<StreamId>) -> Option<Start> {
        if c_string(argument) == b"$" { Some(Start::Last) } else { parse(argument, 0).map(Start::After) }
    }

    fn id(&self, last_id: StreamId) -> StreamId {
        match *self {
            Start::Last => last_id,
            Start::After(id) => id,
        }
    }
}

/// Parses MKSTREAM (only if `creates`) and ENTRIESREAD. Replies with an error and returns `None` if
/// they are invalid.
fn options(args: &Args<'_>, creates: bool, reply: &mut Reply<'_>) -> Option<(bool, i64)> {
    let (mut mkstream, mut entries_read) = (false, ENTRIES_READ_UNKNOWN);
    let mut at = 5;
    while at < args.len() {
        if creates && is_option(args.at(at), "MKSTREAM") {
            mkstream = true;
            at += 1;
        } else if at + 1 < args.len() && is_option(args.at(at), "ENTRIESREAD") {
            entries_read = integer(args.at(at + 1), reply)?;
            if entries_read < 0 && entries_read != ENTRIES_READ_UNKNOWN {
                reply.error("ERR value for ENTRIESREAD must be positive or -1");
                return None;
            }
            at += 2;
        } else {
            wrong_subcommand(args, reply);
            return None;
        }
    }
    Some((mkstream, entries_read))
}

/// Changes the group `args[3]` of the key `args[2]`. Publishes `event` if `work` reports that the
/// group changed. Replies with an error and returns `None` if there is no such group.
fn change_group<R>(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    event: &'static Event,
    work: impl FnOnce(&mut Stream, GroupNumber) -> (bool, R),
) -> Option<R> {
    let key = access.first_key(args, 2);
    let done = change(&mut access.db(&key), &key, |stream| {
        let Some(group) = stream.group_number(args.at(3)) else { return (Change::none(), None) };
        let (is_changed, result) = work(stream, group);
        (metadata(event).when(is_changed), Some(result))
    });
    match done {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.error(NO_KEY),
        Ok(Some(None)) => no_group_of_key(reply, key.bytes, args.at(3)),
        Ok(Some(result)) => return result,
    }
    None
}
