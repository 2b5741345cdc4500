//! Replication: so far the stream of effects alone, for tests.

use pantala_engine::client::LocalContext;
use pantala_resp::{Args, Reply};

/// `SYNC`: from now on the connection is sent what is propagated, behind an empty snapshot. Needs
/// `enable-debug-command`, since a replica would take that snapshot for the dataset.
pub fn sync(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    if context.session.in_exec {
        return reply.error("ERR Command not allowed inside a transaction");
    }
    if context.session.follow_effects(context.keyspace).is_err() {
        reply.error("ERR the thread of the stream could not be started");
    }
}
