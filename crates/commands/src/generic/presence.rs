//! Existence and deletion of keys: `DEL`, `UNLINK`, `EXISTS`, `TOUCH`, `TYPE`.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::{Access, Key};
use pantala_engine::db::Holds;
use pantala_resp::{Args, Reply};

/// `DEL key [key …]`.
pub fn del(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let lazy = access.keyspace().tuning.lazyfree_lazy_user_del.load(Relaxed);
    count(access, args, reply, |access, key| access.db(key).remove(key, lazy));
}

/// `UNLINK key [key …]`.
pub fn unlink(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    count(access, args, reply, |access, key| access.db(key).remove(key, true));
}

/// `EXISTS key [key …]`.
pub fn exists(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    count(access, args, reply, |access, key| access.db(key).peek(key).is_some());
}

/// `TOUCH key [key …]`: updates the access time even for a client with `CLIENT NO-TOUCH`.
pub fn touch(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    count(access, args, reply, |access, key| access.db(key).read_touching(key).is_some());
}

/// Replies with the number of keys for which `work` returns true. A key given twice counts twice.
fn count(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    work: impl Fn(&mut Access<'_>, &Key<'_>) -> bool,
) {
    let first = access.first_key(args, 1);
    let mut counted = i64::from(work(access, &first));
    for index in 2..args.len() {
        let key = access.key(args, index);
        counted += i64::from(work(access, &key));
    }
    reply.integer(counted);
}

/// `TYPE key`.
pub fn key_type(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let name = access.db(&key).peek(&key).map_or("none", |entry| entry.held().type_name());
    reply.simple(name);
}
