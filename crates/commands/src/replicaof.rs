//! `REPLICAOF` and `SLAVEOF`: set or remove the server's primary.

use pantala_base::number::parse_i64;
use pantala_engine::client::{Followed, LocalContext};
use pantala_resp::{Args, Reply};

use crate::arguments::is_option;

/// `REPLICAOF host port | NO ONE`. The reply is sent only when all writes that clients sent before
/// it have ended. So none of these writes changes the dataset after the server has taken its new
/// role.
pub fn replicaof(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.primary.is_some() {
        return reply.error("ERR REPLICAOF is not accepted from a primary");
    }
    if context.keyspace.is_cluster() {
        return reply.error("ERR REPLICAOF not allowed in cluster mode.");
    }
    let is_end = is_option(args.at(1), "no") && is_option(args.at(2), "one");
    let primary = if is_end {
        None
    } else {
        let port = parse_i64(args.at(2)).and_then(|port| u16::try_from(port).ok());
        let Some(port) = port else { return reply.error("ERR Invalid master port") };
        Some((args.at(1), port))
    };
    match context.host.follow(primary, &context.session.client) {
        Followed::Changed => {
            // Pauses writes until all earlier ones have ended, as `CLIENT PAUSE 0 WRITE` does.
            context.session.pause = Some(Box::new(context.keyspace.tuning.pause(0, false, context.now_ms)));
            reply.ok();
        }
        Followed::FailingOver => reply.error("ERR REPLICAOF not allowed while failing over."),
        Followed::Same if is_end => reply.ok(),
        Followed::Same => reply.simple("OK Already connected to specified master"),
    }
}
