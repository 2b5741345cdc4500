//! `MULTI`, `DISCARD` and `UNWATCH`. The connection's worker runs `EXEC` and `WATCH`, because they
//! need the session and the shards of many keys at once.

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

/// `MULTI`: queues the following commands for `EXEC`.
pub fn multi(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.transaction.is_some() {
        return reply.error("ERR MULTI calls can not be nested");
    }
    context.session.begin_transaction();
    reply.ok();
}

/// `DISCARD`: drops the queued commands and unwatches all keys.
pub fn discard(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.transaction.is_none() {
        return reply.error("ERR DISCARD without MULTI");
    }
    context.session.discard();
    reply.ok();
}

/// `UNWATCH`: unwatches all keys.
pub fn unwatch(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.session.watching = None;
    reply.ok();
}
