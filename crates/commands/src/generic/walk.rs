//! `KEYS` and `RANDOMKEY`.

use pantala_base::glob;
use pantala_engine::access::{Access, SessionView};
use pantala_engine::command::{Chance, Drawn, Propagated};
use pantala_engine::db::Db;
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};

/// Number of buckets per step of the scan. All shards are held, so nothing else runs between the
/// steps, and the number hardly matters.
const BUCKETS_PER_STEP: usize = 64;

/// Maximum number of shards that a `RANDOMKEY` acquires.
const RANDOMKEY_SHARDS_MAX: usize = 64;

/// `KEYS pattern`.
pub fn keys(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (pattern, selected) = (args.at(1), access.session().db);
    let all = pattern == b"*";
    let array = reply.defer_array();
    let mut found = 0;
    for shard in access.shards() {
        if access.keyspace().shard_size(selected, shard) == 0 {
            continue;
        }
        let db = access.db_in(selected, shard);
        let mut cursor = 0;
        loop {
            cursor = db.scan(cursor, BUCKETS_PER_STEP, &mut |entry| {
                if all || glob::matches(pattern, entry.key(), false) {
                    reply.bulk(entry.key());
                    found += 1;
                }
            });
            if reply.is_aborted() {
                return;
            }
            if cursor == 0 {
                break;
            }
        }
    }
    reply.patch(array, found);
}

/// Appends the route of `RANDOMKEY`: one shard, drawn with a probability proportional to its number
/// of keys. If the shard has keys with a TTL, all its keys may have expired. The route then also
/// includes the following shards that have keys.
pub fn randomkey_route(keyspace: &Keyspace, session: &SessionView, _: &Args<'_>, shards: &mut Vec<u32>) {
    let count = keyspace.partition_count();
    let total: u64 = (0..count).map(|shard| keyspace.shard_size(session.db, shard)).sum();
    let mut left = keyspace.random_below(total.max(1));
    let chosen = (0..count)
        .find(|&shard| {
            let size = keyspace.shard_size(session.db, shard);
            let here = left < size;
            left = left.saturating_sub(size);
            here
        })
        .unwrap_or(0);
    shards.push(chosen);
    if keyspace.shard_expires(session.db, chosen) == 0 {
        return;
    }
    let others = (1..count)
        .map(|distance| (chosen + distance) % count)
        .filter(|&shard| keyspace.shard_size(session.db, shard) > 0);
    shards.extend(others.take(RANDOMKEY_SHARDS_MAX - 1));
}

/// `RANDOMKEY`.
pub fn randomkey(access: &mut Access<'_>, _: &Args<'_>, reply: &mut Reply<'_>, chance: Chance) -> Option<Propagated> {
    reply_random(access, chance.draw(), reply);
    None
}

fn reply_random(access: &mut Access<'_>, drawn: Drawn, reply: &mut Reply<'_>) {
    let selected = access.session().db;
    let shards = access.shards();
    let sizes: Vec<u64> = shards.iter().map(|&shard| access.db_in(selected, shard).len() as u64).collect();
    // The handler doesn't know which of the held shards was drawn for the route, so it draws one of
    // the held shards itself.
    let mut left = access.keyspace().random_below(sizes.iter().sum::<u64>().max(1));
    let start = sizes.iter().position(|&size| {
        let here = left < size;
        left = left.saturating_sub(size);
        here
    });
    let start = start.unwrap_or(0);
    for offset in 0..shards.len() {
        let mut db = access.db_in(selected, shards[(start + offset) % shards.len()]);
        if db.is_empty() {
            continue;
        }
        if let Some(key) = db.random(drawn) {
            return reply.bulk(&key);
        }
        if first_live(&db, reply) {
            return;
        }
    }
    reply.null();
}

/// Replies with the first key that hasn't expired, and returns whether there is one. Used if almost
/// all keys have expired, so that random draws fail.
fn first_live(db: &Db<'_>, reply: &mut Reply<'_>) -> bool {
    let (mut cursor, mut found) = (0, false);
    loop {
        cursor = db.scan(cursor, 1, &mut |entry| {
            if !found {
                reply.bulk(entry.key());
                found = true;
            }
        });
        if found || cursor == 0 {
            return found;
        }
    }
}
