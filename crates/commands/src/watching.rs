//! `MONITOR` and `SLOWLOG`.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

use crate::arguments::wrong_subcommand;
use crate::help;

/// Number of entries that `SLOWLOG GET` returns without a count.
const SLOWLOG_COUNT: u64 = 10;

/// `MONITOR`: sends the client every command that the server runs, until the client sends `RESET`.
pub fn monitor(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.in_exec {
        return reply.error("ERR MONITOR isn't allowed for DENY BLOCKING client");
    }
    // As in Redis, a second `MONITOR` gets no reply.
    if !context.session.monitors {
        context.session.set_monitors(context.keyspace, true);
        reply.ok();
    }
}

/// `SLOWLOG GET [count]`.
pub fn slowlog_get(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let len_max = context.keyspace.tuning.slowlog_max_len.load(Relaxed);
    let count = match args.len() {
        2 => SLOWLOG_COUNT,
        3 => match pantala_base::number::parse_i64(args.at(2)) {
            Some(-1) => len_max,
            Some(count @ 0..) => count as u64,
            _ => return reply.error("ERR count should be greater than or equal to -1"),
        },
        _ => {
            return wrong_subcommand(args, reply);
        }
    };
    let entries = context.keyspace.slowlog().latest(count.min(len_max));
    reply.array(entries.len());
    for entry in entries {
        reply.array(6);
        reply.integer(entry.id as i64);
        reply.integer(entry.at_s);
        reply.integer(entry.duration_us);
        reply.array(entry.args.len());
        entry.args.iter().for_each(|arg| reply.bulk(arg));
        reply.bulk(entry.address.as_bytes());
        reply.bulk(&entry.name);
    }
}

/// `SLOWLOG LEN`.
pub fn slowlog_len(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let len_max = context.keyspace.tuning.slowlog_max_len.load(Relaxed);
    reply.integer(context.keyspace.slowlog().latest(len_max).len() as i64);
}

/// `SLOWLOG RESET`.
pub fn slowlog_reset(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.keyspace.slowlog().reset();
    reply.ok();
}

/// `SLOWLOG HELP`.
pub fn slowlog_help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "GET [<count>]",
            "    Return the latest entries (10 by default, all with -1): id, time, duration in",
            "    microseconds, arguments, address and name of the client.",
            "LEN",
            "    Return the number of entries.",
            "RESET",
            "    Delete all entries.",
        ],
    );
}
