//! `XACK` and `XPENDING`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, Silence};
use pantala_resp::{Args, Reply};
use pantala_types::stream::{Group, Pending, StreamId};

use super::ids::{INVALID_ID, Ids, end, start, write_id};
use super::{StreamBox, change, no_group};
use crate::arguments::{integer, is_option};
use crate::errors;

/// `XACK key group id [id ...]`.
pub fn xack(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let ids = Ids::of(args.tail(3));
    let mut db = access.db(&key);
    let done = change(&mut db, &key, |stream| {
        let Some(group) = stream.group_number(args.at(2)) else { return (Change::none(), Some(0)) };
        let acknowledged = ids.map(|ids| {
            let ids = ids.as_slice().iter();
            ids.filter(|&&id| stream.acknowledge(group, id)).count()
        });
        (Change::silent(Silence::StreamGroups).when(acknowledged.is_some_and(|count| count > 0)), acknowledged)
    });
    db.count_lookup(&key, !matches!(done, Ok(None)));
    match done {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.integer(0),
        Ok(Some(None)) => reply.error(INVALID_ID),
        Ok(Some(Some(acknowledged))) => reply.integer(acknowledged as i64),
    }
}

/// The arguments of `XPENDING` with a range.
struct Filter<'a> {
    min_idle_ms: i64,
    start: StreamId,
    end: StreamId,
    count: usize,
    consumer: Option<&'a [u8]>,
}

/// `XPENDING key group [[IDLE min-idle-time] start end count [consumer]]`.
pub fn xpending(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let filter = match args.len() {
        3 => None,
        6..=9 => match Filter::parse(args, reply) {
            Some(filter) => Some(filter),
            None => return,
        },
        _ => return reply.error(errors::SYNTAX),
    };
    let key = access.first_key(args, 1);
    let now_ms = access.now_ms();
    let mut db = access.db(&key);
    let group = match db.read_as::<StreamBox>(&key) {
        Err(_) => return reply.error(errors::WRONG_TYPE),
        Ok(stream) => match stream.and_then(|stream| stream.group(args.at(2))) {
            None => return no_group(reply, key.bytes, args.at(2), ""),
            Some(group) => group,
        },
    };
    match filter {
        None => summarize(group, reply),
        Some(filter) => list(group, &filter, now_ms, reply),
    }
}

impl<'a> Filter<'a> {
    fn parse(args: &Args<'a>, reply: &mut Reply<'_>) -> Option<Self> {
        let (mut at, mut min_idle_ms) = (3, 0);
        if is_option(args.at(3), "IDLE") {
            min_idle_ms = integer(args.at(4), reply)?;
            if args.len() < 8 {
                reply.error(errors::SYNTAX);
                return None;
            }
            at = 5;
        }
        let count = integer(args.at(at + 2), reply)?;
        let start = start(args.at(at), reply)?;
        let end = end(args.at(at + 1), reply)?;
        let count = usize::try_from(count).unwrap_or(0);
        Some(Filter { min_idle_ms, start, end, count, consumer: args.get(at + 3) })
    }
}

/// Replies with the number of pending entries, their first and last ID, and their number per
/// consumer.
fn summarize(group: &Group, reply: &mut Reply<'_>) {
    reply.array(4);
    reply.integer(group.pending_len() as i64);
    let first = group.pending_from(StreamId::MIN).next();
    let (Some(first), Some(last)) = (first, group.last_pending()) else {
        reply.null();
        reply.null();
        return reply.null_array();
    };
    write_id(first.id, reply);
    write_id(last.id, reply);
    let busy = || group.consumers().filter(|consumer| consumer.pending_len() > 0);
    reply.array(busy().count());
    for consumer in busy() {
        reply.array(2);
        reply.bulk(consumer.name());
        reply.bulk_integer(consumer.pending_len() as i64);
    }
}

fn list(group: &Group, filter: &Filter<'_>, now_ms: i64, reply: &mut Reply<'_>) {
    let entries = reply.defer_array();
    let mut shown = 0;
    let mut show = |pending: Pending<'_>| {
        let idle_ms = now_ms.wrapping_sub(pending.delivered_ms);
        if shown == filter.count || pending.id > filter.end {
            return false;
        }
        if filter.min_idle_ms == 0 || idle_ms >= filter.min_idle_ms {
            shown += 1;
            reply.array(4);
            write_id(pending.id, reply);
            reply.bulk(pending.consumer);
            reply.integer(idle_ms.max(0));
            reply.integer(pending.deliveries as i64);
        }
        true
    };
    match filter.consumer.map(|name| group.consumer(name)) {
        None => {
            let _ = group.pending_from(filter.start).all(&mut show);
        }
        Some(Some(consumer)) => {
            let _ = group.pending_of(consumer, filter.start).all(&mut show);
        }
        Some(None) => {}
    }
    reply.patch(entries, shown);
}
