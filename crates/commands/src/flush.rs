//! Commands on whole databases: `FLUSHALL`, `FLUSHDB`, `SWAPDB`.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::Access;
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};

use crate::arguments::{database_index, database_of, is_option};
use crate::errors;

/// `FLUSHALL [ASYNC | SYNC]`.
pub fn flushall(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let databases = 0..access.keyspace().databases();
    if flush(access, args, databases, reply)
        && let Some(storage) = access.keyspace().storage()
    {
        storage.note_flushed(&mut access.whole());
    }
}

/// `FLUSHDB [ASYNC | SYNC]`.
pub fn flushdb(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let selected = access.session().db;
    flush(access, args, selected..selected + 1, reply);
}

/// Empties databases. Returns whether the arguments were valid.
fn flush(access: &mut Access<'_>, args: &Args<'_>, databases: std::ops::Range<u32>, reply: &mut Reply<'_>) -> bool {
    let Some(lazy) = is_lazy(args, access.keyspace()) else {
        reply.error(errors::SYNTAX);
        return false;
    };
    access.flush(databases, lazy);
    reply.ok();
    true
}

/// Returns whether the old content is freed in the background; `None` on a syntax error.
fn is_lazy(args: &Args<'_>, keyspace: &Keyspace) -> Option<bool> {
    match (args.len(), args.get(1)) {
        (1, _) => Some(keyspace.tuning.lazyfree_lazy_user_flush.load(Relaxed)),
        (2, Some(option)) if is_option(option, "ASYNC") => Some(true),
        (2, Some(option)) if is_option(option, "SYNC") => Some(false),
        _ => None,
    }
}

/// `SWAPDB index1 index2`.
pub fn swapdb(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if access.keyspace().is_cluster() {
        return reply.error("ERR SWAPDB is not allowed in cluster mode");
    }
    let Some(first) = database_index(args.at(1), Some("ERR invalid first DB index"), reply) else { return };
    let Some(second) = database_index(args.at(2), Some("ERR invalid second DB index"), reply) else { return };
    let keyspace = access.keyspace();
    match (database_of(first, keyspace), database_of(second, keyspace)) {
        (Some(first), Some(second)) => {
            access.swap_databases(first, second);
            reply.ok();
        }
        _ => reply.error(errors::NO_SUCH_DATABASE),
    }
}
