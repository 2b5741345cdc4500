//! `XINFO`.

use pantala_engine::access::Access;
use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};
use pantala_types::Stream;
use pantala_types::stream::{Consumer, ENTRIES_READ_UNKNOWN, Group, StreamId};

use super::ids::{write_entry, write_id};
use super::{StreamBox, no_group_of_key};
use crate::arguments::{integer, is_option, wrong_subcommand};
use crate::{errors, help};

/// Number of entries that `XINFO STREAM FULL` shows without COUNT.
const FULL_COUNT_DEFAULT: usize = 10;

/// `XINFO CONSUMERS key group`.
pub fn xinfo_consumers(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (key, now_ms) = (access.first_key(args, 2), access.now_ms());
    with_stream(access, args, reply, |stream, reply| {
        let Some(group) = stream.group(args.at(3)) else { return no_group_of_key(reply, key.bytes, args.at(3)) };
        reply.array(group.consumers_len());
        for consumer in group.consumers() {
            reply.map(3);
            reply.bulk(b"name");
            reply.bulk(consumer.name());
            reply.bulk(b"pending");
            reply.integer(consumer.pending_len() as i64);
            reply.bulk(b"idle");
            reply.integer(now_ms.wrapping_sub(consumer.seen_ms()).max(0));
        }
    });
}

/// `XINFO GROUPS key`.
pub fn xinfo_groups(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_stream(access, args, reply, |stream, reply| {
        reply.array(stream.groups_len());
        for group in stream.groups() {
            reply.map(6);
            reply.bulk(b"name");
            reply.bulk(group.name());
            reply.bulk(b"consumers");
            reply.integer(group.consumers_len() as i64);
            reply.bulk(b"pending");
            reply.integer(group.pending_len() as i64);
            write_progress(stream, group, reply);
        }
    });
}

/// `XINFO STREAM key [FULL [COUNT count]]`.
pub fn xinfo_stream(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    with_stream(access, args, reply, |stream, reply| {
        let count = match args.len() {
            3 => return summarize(stream, reply),
            4 | 6 if is_option(args.at(3), "FULL") => match args.get(4) {
                None => FULL_COUNT_DEFAULT,
                Some(word) if is_option(word, "COUNT") => match integer(args.at(5), reply) {
                    Some(0) => usize::MAX,
                    Some(count) => usize::try_from(count).unwrap_or(FULL_COUNT_DEFAULT),
                    None => return,
                },
                Some(_) => return wrong_subcommand(args, reply),
            },
            _ => return wrong_subcommand(args, reply),
        };
        write_full(stream, count, reply);
    });
}

/// `XINFO HELP`.
pub fn xinfo_help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "CONSUMERS <key> <groupname>",
            "    Return the consumers of a group.",
            "GROUPS <key>",
            "    Return the groups of a stream.",
            "STREAM <key> [FULL [COUNT <count>]]",
            "    Return details of a stream; with FULL, its entries and groups as well.",
        ],
    );
}

/// Calls `work` with the stream at `args[2]`, or replies with an error.
fn with_stream(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    work: impl FnOnce(&Stream, &mut Reply<'_>),
) {
    let key = access.first_key(args, 2);
    match access.db(&key).read_as::<StreamBox>(&key) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.error(errors::NO_SUCH_KEY),
        Ok(Some(stream)) => work(stream, reply),
    }
}

/// Writes the first seven pairs, which `XINFO STREAM` has with and without `FULL`.
fn write_overview(stream: &Stream, reply: &mut Reply<'_>) {
    let counters = stream.counters();
    let ids = |name: &str, id: StreamId, reply: &mut Reply<'_>| {
        reply.bulk(name.as_bytes());
        write_id(id, reply);
    };
    let counts = |name: &str, count: i64, reply: &mut Reply<'_>| {
        reply.bulk(name.as_bytes());
        reply.integer(count);
    };
    counts("length", stream.length() as i64, reply);
    counts("radix-tree-keys", stream.nodes_len() as i64, reply);
    counts("radix-tree-nodes", stream.radix_nodes_len() as i64, reply);
    ids("last-generated-id", counters.last_id, reply);
    ids("max-deleted-entry-id", counters.max_deleted_id, reply);
    counts("entries-added", counters.entries_added as i64, reply);
    ids("recorded-first-entry-id", counters.first_id, reply);
}

fn summarize(stream: &Stream, reply: &mut Reply<'_>) {
    reply.map(10);
    write_overview(stream, reply);
    reply.bulk(b"groups");
    reply.integer(stream.groups_len() as i64);
    reply.bulk(b"first-entry");
    if stream.range(StreamId::MIN, StreamId::MAX, 1, |id, fields| write_entry(id, fields, reply)) == 0 {
        reply.null();
    }
    reply.bulk(b"last-entry");
    if stream.range_reversed(StreamId::MIN, StreamId::MAX, 1, |id, fields| write_entry(id, fields, reply)) == 0 {
        reply.null();
    }
}

/// Writes three pairs that describe the reading progress of a group.
fn write_progress(stream: &Stream, group: &Group, reply: &mut Reply<'_>) {
    reply.bulk(b"last-delivered-id");
    write_id(group.last_id(), reply);
    reply.bulk(b"entries-read");
    match group.entries_read() {
        ENTRIES_READ_UNKNOWN => reply.null(),
        read => reply.integer(read),
    }
    reply.bulk(b"lag");
    match stream.counters().lag(group) {
        Some(lag) => reply.integer(lag),
        None => reply.null(),
    }
}

fn write_full(stream: &Stream, count: usize, reply: &mut Reply<'_>) {
    reply.map(9);
    write_overview(stream, reply);
    reply.bulk(b"entries");
    let entries = reply.defer_array();
    let shown = stream.range(StreamId::MIN, StreamId::MAX, count, |id, fields| write_entry(id, fields, reply));
    reply.patch(entries, shown);
    reply.bulk(b"groups");
    reply.array(stream.groups_len());
    for group in stream.groups() {
        reply.map(7);
        reply.bulk(b"name");
        reply.bulk(group.name());
        write_progress(stream, group, reply);
        reply.bulk(b"pel-count");
        reply.integer(group.pending_len() as i64);
        reply.bulk(b"pending");
        reply.array(group.pending_len().min(count));
        for pending in group.pending_from(StreamId::MIN).take(count) {
            reply.array(4);
            write_id(pending.id, reply);
            reply.bulk(pending.consumer);
            reply.integer(pending.delivered_ms);
            reply.integer(pending.deliveries as i64);
        }
        reply.bulk(b"consumers");
        reply.array(group.consumers_len());
        for consumer in group.consumers() {
            write_consumer(group, consumer, count, reply);
        }
    }
}

fn write_consumer(group: &Group, consumer: &Consumer, count: usize, reply: &mut Reply<'_>) {
    reply.map(4);
    reply.bulk(b"name");
    reply.bulk(consumer.name());
    reply.bulk(b"seen-time");
    reply.integer(consumer.seen_ms());
    reply.bulk(b"pel-count");
    reply.integer(consumer.pending_len() as i64);
    reply.bulk(b"pending");
    reply.array(consumer.pending_len().min(count));
    for pending in group.pending_of(consumer, StreamId::MIN).take(count) {
        reply.array(3);
        write_id(pending.id, reply);
        reply.integer(pending.delivered_ms);
        reply.integer(pending.deliveries as i64);
    }
}
