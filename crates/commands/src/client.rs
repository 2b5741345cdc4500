//! `CLIENT`: subcommands that change settings of the caller's own connection, and subcommands that
//! list or control all connections.
//!
//! | module | contents |
//! | --- | --- |
//! | this file | names, replies, pauses |
//! | `listing` | `CLIENT LIST` and `CLIENT INFO`, and the text line that describes a client |
//! | `killing` | `CLIENT KILL` |
//! | `tracking` | `CLIENT TRACKING`, `CACHING`, `GETREDIR`, `TRACKINGINFO` |

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use pantala_base::number::parse_i64;
use pantala_engine::client::{Durability, LocalContext, ReplyMode};
use pantala_engine::message::{Message, Unblock};
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, integer, is_option, wrong_subcommand};
use crate::{errors, help};

mod killing;
mod listing;
#[cfg(test)]
mod tests;
mod tracking;

pub use killing::kill;
pub(crate) use listing::line;
pub use listing::{info, list};
pub use tracking::{caching, getredir, tracking, trackinginfo};

pub(crate) const UNPRINTABLE_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

/// Returns whether a name is printable ASCII without spaces, or empty. Only such names may appear
/// in `CLIENT LIST`.
pub(crate) fn is_printable(name: &[u8]) -> bool {
    name.iter().all(u8::is_ascii_graphic)
}

/// `CLIENT ID`.
pub fn id(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.integer(context.session.client.id as i64);
}

/// `CLIENT GETNAME`.
pub fn getname(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    match context.session.client.names().name.as_slice() {
        [] => reply.null(),
        name => reply.bulk(name),
    }
}

/// `CLIENT SETNAME name`; an empty name removes the name.
pub fn setname(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let name = args.at(2);
    if !is_printable(name) {
        return reply.error(UNPRINTABLE_NAME);
    }
    context.session.client.names().name = name.to_vec();
    reply.ok();
}

/// `CLIENT SETINFO LIB-NAME name | LIB-VER version`. Redis has it since 7.2, and client libraries
/// send it to every server.
pub fn setinfo(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (attribute, value) = (args.at(2), args.at(3));
    let is_name = is_option(attribute, "LIB-NAME");
    if !is_name && !is_option(attribute, "LIB-VER") {
        return reply.error_bytes(&[b"ERR Unrecognized option '", c_string(attribute), b"'"].concat());
    }
    if !is_printable(value) {
        let reason = b" cannot contain spaces, newlines or special characters.";
        return reply.error_bytes(&[b"ERR ", c_string(attribute), reason.as_slice()].concat());
    }
    let mut names = context.session.client.names();
    let field = if is_name { &mut names.library } else { &mut names.library_version };
    *field = value.to_vec();
    reply.ok();
}

/// `CLIENT NO-EVICT ON | OFF`.
pub fn no_evict(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    switch(&context.session.client.no_evict, args.at(2), reply);
}

/// `CLIENT NO-TOUCH ON | OFF`. Redis has it since 7.2.
pub fn no_touch(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    switch(&context.session.client.no_touch, args.at(2), reply);
}

fn switch(flag: &AtomicBool, argument: &[u8], reply: &mut Reply<'_>) {
    let on = is_option(argument, "ON");
    if !on && !is_option(argument, "OFF") {
        return reply.error(errors::SYNTAX);
    }
    flag.store(on, Relaxed);
    reply.ok();
}

/// `CLIENT DURABILITY ALWAYS | EVERYSEC | DEFAULT`: sets whether replies to this client wait until
/// the client's writes are on disk. Redis has no such command.
pub fn durability(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let known =
        [("ALWAYS", Durability::Always), ("EVERYSEC", Durability::EverySecond), ("DEFAULT", Durability::Default)];
    match known.into_iter().find(|(name, _)| is_option(args.at(2), name)) {
        Some((_, durability)) => {
            set_durability(context, durability);
            reply.ok();
        }
        None => reply.error(errors::SYNTAX),
    }
}

/// Sets the durability that the client's writes must have before their replies are sent.
pub(crate) fn set_durability(context: &mut LocalContext<'_>, durability: Durability) {
    let former = std::mem::replace(&mut context.session.durability, durability);
    let asks = durability == Durability::Always;
    if asks != (former == Durability::Always) {
        context.host.note_asks_always(asks);
    }
}

/// `CLIENT REPLY ON | OFF | SKIP`. The worker discards replies while they are off.
pub fn reply(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (mode, session) = (args.at(2), &mut *context.session);
    if is_option(mode, "ON") {
        session.reply_mode = ReplyMode::On;
        reply.ok();
    } else if is_option(mode, "OFF") {
        session.reply_mode = ReplyMode::Off;
    } else if is_option(mode, "SKIP") {
        if session.reply_mode != ReplyMode::Off {
            session.reply_mode = ReplyMode::SkipNext;
        }
    } else {
        reply.error(errors::SYNTAX);
    }
}

/// `CLIENT UNBLOCK client-id [TIMEOUT | ERROR]`.
pub fn unblock(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let with_error = match (args.len(), args.get(3)) {
        (3, _) => false,
        (4, Some(reason)) if is_option(reason, "TIMEOUT") => false,
        (4, Some(reason)) if is_option(reason, "ERROR") => true,
        (4, _) => return reply.error("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        _ => return wrong_subcommand(args, reply),
    };
    let Some(id) = integer(args.at(2), reply) else { return };
    let client = u64::try_from(id).ok().and_then(|id| context.host.clients().find(id));
    let Some(client) = client else { return reply.integer(0) };
    let waiter = client.waiter().clone();
    let Some(waiter) = waiter.filter(|waiter| waiter.interrupt()) else { return reply.integer(0) };
    context.keyspace.port(client.listener().worker).send(Message::Unblock(Unblock { waiter, with_error }));
    reply.integer(1);
}

/// `CLIENT PAUSE timeout [WRITE | ALL]`; the timeout is in milliseconds. Overlapping pauses
/// combine: the later end and the stricter mode apply.
pub fn pause(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let all = match (args.len(), args.get(3)) {
        (3, _) => true,
        (4, Some(mode)) if is_option(mode, "ALL") => true,
        (4, Some(mode)) if is_option(mode, "WRITE") => false,
        (4, _) => return reply.error("ERR CLIENT PAUSE mode must be WRITE or ALL"),
        _ => return wrong_subcommand(args, reply),
    };
    let now_ms = context.host.now_us().div_euclid(1000);
    let timeout_ms = match parse_i64(args.at(2)) {
        None => return reply.error("ERR timeout is not an integer or out of range"),
        Some(..0) => return reply.error("ERR timeout is negative"),
        Some(timeout_ms) => timeout_ms,
    };
    let pause = context.keyspace.tuning.pause(timeout_ms, all, now_ms);
    if timeout_ms > 0 {
        context.session.pause = Some(Box::new(pause));
    }
    reply.ok();
}

/// `CLIENT UNPAUSE`.
pub fn unpause(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if context.keyspace.tuning.end_pause() {
        // Wakes the paused workers, which would otherwise sleep until the former end of the pause.
        for port in context.keyspace.ports().iter() {
            port.send(Message::Reload);
        }
    }
    reply.ok();
}

/// `CLIENT HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "CACHING <YES|NO>",
            "    Track the keys of the next command (OPTIN), or don't (OPTOUT).",
            "DURABILITY <ALWAYS|EVERYSEC|DEFAULT>",
            "    Send replies after the writes are on disk, don't wait for it, or do as appendfsync says.",
            "GETNAME",
            "    Return the name of this connection.",
            "GETREDIR",
            "    Return the connection that receives the invalidations; 0: this one, -1: not tracking.",
            "ID",
            "    Return the ID of this connection.",
            "INFO",
            "    Return this connection's line of LIST.",
            "KILL <ip:port>",
            "    Close the connection from this address.",
            "KILL <option> <value> [<option> <value> ...]",
            "    Close the connections that match all options, and return their number:",
            "    ADDR <ip:port|unixsocket:0>, LADDR <ip:port|unixsocket:0>: remote, local address;",
            "    ID <client-id>; MAXAGE <seconds>: at least that old; USER <username>;",
            "    TYPE <NORMAL|MASTER|REPLICA|PUBSUB>; SKIPME <YES|NO>: skip this connection (default: yes).",
            "LIST [TYPE <NORMAL|MASTER|REPLICA|PUBSUB> | ID <client-id> [<client-id> ...]]",
            "    Return a line for each connection, or for each selected one.",
            "NO-EVICT <ON|OFF>",
            "    Exclude this connection from client eviction.",
            "NO-TOUCH <ON|OFF>",
            "    Don't change the access times and counters of keys.",
            "PAUSE <timeout> [WRITE|ALL]",
            "    Suspend all commands, or write commands, for some milliseconds.",
            "REPLY <ON|OFF|SKIP>",
            "    Send replies, send none, or skip the next one.",
            "SETINFO <LIB-NAME|LIB-VER> <value>",
            "    Set the name or the version of the client library.",
            "SETNAME <name>",
            "    Set the name of this connection.",
            "TRACKING <ON|OFF> [REDIRECT <client-id>] [PREFIX <prefix> ...] [BCAST] [OPTIN] [OPTOUT] [NOLOOP]",
            "    Send invalidations for keys that this connection has read, or that start with a prefix.",
            "TRACKINGINFO",
            "    Return the tracking state of this connection.",
            "UNBLOCK <client-id> [TIMEOUT|ERROR]",
            "    Unblock a connection that is blocked by a command.",
            "UNPAUSE",
            "    End a pause.",
        ],
    );
}
