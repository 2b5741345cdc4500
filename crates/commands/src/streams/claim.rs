//! `XCLAIM` and `XAUTOCLAIM`.

use pantala_base::number::parse_i64;
use pantala_engine::access::{Access, Key};
use pantala_engine::command::{Chance, Propagated};
use pantala_engine::db::Change;
use pantala_resp::{Args, Reply};
use pantala_types::stream::{Claim, StreamId};

use super::ids::{Ids, id, start, write_entry, write_id};
use super::propagated::Claims;
use super::{StreamBox, change, delivery, no_group};
use crate::arguments::{c_string, is_option};
use crate::errors;

/// Index of the first ID of `XCLAIM`.
const IDS_AT: usize = 5;
/// Maximum number of entries that `XAUTOCLAIM` claims if it has no COUNT.
const COUNT_DEFAULT: i64 = 100;
/// Maximum number of pending entries that `XAUTOCLAIM` visits for each entry of its COUNT.
const ATTEMPTS_PER_ENTRY: usize = 10;
/// Maximum COUNT of `XAUTOCLAIM`. Redis allocates an array of this many IDs of 16 bytes. The size
/// of the array must fit in an `i64`.
const COUNT_MAX: i64 = i64::MAX / 16;
/// Minimum COUNT for which the array that Redis allocates exceeds any address space.
const COUNT_OUT_OF_MEMORY: i64 = 1 << 43;

/// The options of `XCLAIM` after its IDs.
struct Options {
    delivered_ms: i64,
    deliveries: Option<u64>,
    force: bool,
    just_id: bool,
    last_id: StreamId,
}

/// `XCLAIM key group consumer min-idle-time id [id ...] [IDLE ms] [TIME unix-time-ms] [RETRYCOUNT
/// count] [FORCE] [JUSTID] [LASTID id]`.
pub fn xclaim(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let key = access.first_key(args, 1);
    access.db(&key).read(&key);
    if !group_exists(access, &key, args, reply) {
        return None;
    }
    let min_idle_ms = min_idle(args.at(4), "ERR Invalid min-idle-time argument for XCLAIM", reply)?;
    let mut ids = Ids::new();
    let mut at = IDS_AT;
    while let Some(id) = args.get(at).and_then(|argument| StreamId::parse(argument, 0)) {
        ids.push(id);
        at += 1;
    }
    let now_ms = access.now_ms();
    let of_primary = access.session().of_primary;
    let options = Options::parse(args, at, now_ms, of_primary, reply)?;
    // The recorded delivery time is that of the server that ran the command first. This server's
    // clock may be far behind it, for example during a load of the append-only file.
    let now_ms = if of_primary { now_ms.max(options.delivered_ms) } else { now_ms };
    let how = Claim {
        consumer: args.at(3),
        min_idle_ms,
        delivered_ms: options.delivered_ms,
        deliveries: options.deliveries,
        force: options.force,
        just_id: options.just_id,
        now_ms,
    };
    let claimed = reply.defer_array();
    let mut count = 0;
    let mut claims = Claims::new(access);
    let _ = change(&mut access.db(&key), &key, |stream| {
        let Some(group) = stream.group_number(args.at(2)) else { return (Change::none(), ()) };
        let is_raised = stream.raise_group_id(group, options.last_id);
        let created = stream.claim(group, ids.as_slice(), &how, |pending, fields| {
            claims.record(&pending, fields.is_some());
            let Some(fields) = fields else { return };
            count += 1;
            if how.just_id {
                write_id(pending.id, reply);
            } else {
                write_entry(pending.id, fields, reply);
            }
        });
        claims.finish(stream.group_at(group), is_raised);
        (Some(delivery(created)), ())
    });
    reply.patch(claimed, count);
    Some(claims.propagate(access, args, &args.tail(IDS_AT)))
}

/// `XAUTOCLAIM key group consumer min-idle-time start [COUNT count] [JUSTID]`.
pub fn xautoclaim(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let key = access.first_key(args, 1);
    // As in Redis, the key is looked up for reading before the arguments are checked. The lookup
    // counts as a hit or a miss even if the arguments are invalid.
    access.db(&key).read(&key);
    let min_idle_ms = min_idle(args.at(4), "ERR Invalid min-idle-time argument for XAUTOCLAIM", reply)?;
    let start = start(args.at(5), reply)?;
    let (count, just_id) = auto_options(args, reply)?;
    if !group_exists(access, &key, args, reply) {
        return None;
    }
    if count >= COUNT_OUT_OF_MEMORY {
        reply.error("ERR Insufficient memory, failed allocating transient memory, COUNT too high.");
        return None;
    }
    let count = count as usize;
    let now_ms = access.now_ms();
    let consumer = args.at(3);
    let how = Claim { consumer, min_idle_ms, delivered_ms: now_ms, deliveries: None, force: false, just_id, now_ms };
    let mut claims = Claims::new(access);
    let _ = change(&mut access.db(&key), &key, |stream| {
        let Some(group) = stream.group_number(args.at(2)) else { return (Change::none(), ()) };
        let mut claimed = Vec::new();
        let attempts = count.saturating_mul(ATTEMPTS_PER_ENTRY);
        let done = stream.claim_pending(group, start, count, attempts, &how, |pending, fields| {
            claims.record(&pending, fields.is_some());
            if fields.is_some() {
                claimed.push(pending.id);
            }
        });
        claims.finish(stream.group_at(group), false);
        reply.array(3);
        write_id(done.next, reply);
        reply.array(claimed.len());
        for id in claimed {
            if just_id {
                write_id(id, reply);
            } else {
                stream.range(id, id, 1, |id, fields| write_entry(id, fields, reply));
            }
        }
        reply.array(done.deleted.len());
        for &id in &done.deleted {
            write_id(id, reply);
        }
        (Some(delivery(done.created_consumer)), ())
    });
    Some(claims.propagate(access, args, &args.tail(args.len())))
}

/// Returns whether the key has the group `args[2]`. Replies with an error if it doesn't.
fn group_exists(access: &mut Access<'_>, key: &Key<'_>, args: &Args<'_>, reply: &mut Reply<'_>) -> bool {
    match access.db(key).write_as::<StreamBox>(key) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(stream) => {
            if stream.and_then(|stream| stream.group(args.at(2))).is_some() {
                return true;
            }
            no_group(reply, key.bytes, args.at(2), "");
        }
    }
    false
}

fn min_idle(argument: &[u8], wrong: &str, reply: &mut Reply<'_>) -> Option<i64> {
    or_error(argument, wrong, reply).map(|idle| idle.max(0))
}

fn or_error(argument: &[u8], wrong: &str, reply: &mut Reply<'_>) -> Option<i64> {
    let number = parse_i64(argument);
    if number.is_none() {
        reply.error(wrong);
    }
    number
}

impl Options {
    fn parse(args: &Args<'_>, mut at: usize, now_ms: i64, of_primary: bool, reply: &mut Reply<'_>) -> Option<Options> {
        let (mut delivered_ms, mut deliveries) = (-1, -1);
        let (mut force, mut just_id, mut last_id) = (false, false, StreamId::MIN);
        while let Some(option) = args.get(at) {
            let value = args.get(at + 1);
            at += 2;
            match value {
                _ if is_option(option, "FORCE") => {
                    force = true;
                    at -= 1;
                }
                _ if is_option(option, "JUSTID") => {
                    just_id = true;
                    at -= 1;
                }
                Some(value) if is_option(option, "IDLE") => {
                    let idle = or_error(value, "ERR Invalid IDLE option argument for XCLAIM", reply)?;
                    delivered_ms = now_ms.wrapping_sub(idle);
                }
                Some(value) if is_option(option, "TIME") => {
                    delivered_ms = or_error(value, "ERR Invalid TIME option argument for XCLAIM", reply)?;
                }
                Some(value) if is_option(option, "RETRYCOUNT") => {
                    deliveries = or_error(value, "ERR Invalid RETRYCOUNT option argument for XCLAIM", reply)?;
                }
                Some(value) if is_option(option, "LASTID") => last_id = id(value, 0, reply)?,
                _ => {
                    reply.error_bytes(&[b"ERR Unrecognized XCLAIM option '", c_string(option), b"'"].concat());
                    return None;
                }
            }
        }
        // A negative time is replaced by the current time. A time in the future is replaced too,
        // because a client's clock may be ahead. Only commands from the primary or from the
        // append-only file keep a time in the future.
        let latest_ms = if of_primary { i64::MAX } else { now_ms };
        if !(0..=latest_ms).contains(&delivered_ms) {
            delivered_ms = now_ms;
        }
        Some(Options { delivered_ms, deliveries: u64::try_from(deliveries).ok(), force, just_id, last_id })
    }
}

/// Parses COUNT and JUSTID of `XAUTOCLAIM`. Replies with an error and returns `None` if they are
/// invalid.
fn auto_options(args: &Args<'_>, reply: &mut Reply<'_>) -> Option<(i64, bool)> {
    let (mut count, mut just_id) = (COUNT_DEFAULT, false);
    let mut at = 6;
    while at < args.len() {
        if at + 1 < args.len() && is_option(args.at(at), "COUNT") {
            at += 1;
            count = parse_i64(args.at(at)).filter(|count| (1..=COUNT_MAX).contains(count)).unwrap_or(0);
            if count == 0 {
                reply.error("ERR COUNT must be > 0");
                return None;
            }
        } else if is_option(args.at(at), "JUSTID") {
            just_id = true;
        } else {
            reply.error(errors::SYNTAX);
            return None;
        }
        at += 1;
    }
    Some((count, just_id))
}
