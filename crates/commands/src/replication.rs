//! Replication. So far only the stream of effects, for tests.

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

/// `SYNC`: sends an empty snapshot and then everything that is propagated. Requires
/// `enable-debug-command`, because a replica would take the empty snapshot for the dataset.
pub fn sync(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.in_exec {
        return reply.error("ERR Command not allowed inside a transaction");
    }
    if context.session.follow_effects(context.keyspace).is_err() {
        reply.error("ERR the thread of the stream could not be started");
    }
}
