//! Commands that move or copy a value to another key: `RENAME`, `RENAMENX`, `MOVE`, `COPY`.

use pantala_engine::access::Access;
use pantala_engine::db::{Change, DatabaseKey};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::OutOfMemory;

use crate::arguments::{database, is_option};
use crate::errors;

/// `RENAME key newkey`.
pub fn rename(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    rename_unless(access, args, false, reply);
}

/// `RENAMENX key newkey`.
pub fn renamenx(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    rename_unless(access, args, true, reply);
}

fn rename_unless(access: &mut Access<'_>, args: &Args<'_>, nx: bool, reply: &mut Reply<'_>) {
    let db = access.session().db;
    let from = DatabaseKey { db, key: access.first_key(args, 1) };
    let to = DatabaseKey { db, key: access.key(args, 2) };
    if access.db(&from.key).write(&from.key).is_none() {
        return reply.error(errors::NO_SUCH_KEY);
    }
    let same = from.key.bytes == to.key.bytes;
    if nx && (same || access.db(&to.key).write(&to.key).is_some()) {
        return reply.integer(0);
    }
    if !same
        && access
            .move_value(
                from,
                to,
                Change::event(&Event(EventClass::Generic, "rename_from")),
                Change::event(&Event(EventClass::Generic, "rename_to")),
            )
            .is_err()
    {
        return reply.error(errors::OUT_OF_MEMORY);
    }
    if nx { reply.integer(1) } else { reply.ok() }
}

/// `MOVE key db`.
pub fn move_key(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if access.keyspace().is_cluster() {
        return reply.error("ERR MOVE is not allowed in cluster mode");
    }
    let key = access.first_key(args, 1);
    let Some(db) = database(args.at(2), access.keyspace(), reply) else { return };
    let from = DatabaseKey { db: access.session().db, key };
    let to = DatabaseKey { db, key };
    if from.db == to.db {
        return reply.error(errors::SAME_OBJECT);
    }
    if access.db(&key).write(&key).is_none() || access.db_at(db, &key).write(&key).is_some() {
        return reply.integer(0);
    }
    match access.move_value(
        from,
        to,
        Change::event(&Event(EventClass::Generic, "move_from")),
        Change::event(&Event(EventClass::Generic, "move_to")),
    ) {
        Ok(is_moved) => reply.integer(i64::from(is_moved)),
        Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
    }
}

/// `COPY source destination [DB destination-db] [REPLACE]`.
pub fn copy(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let from = DatabaseKey { db: access.session().db, key: access.first_key(args, 1) };
    let mut to = DatabaseKey { db: from.db, key: access.key(args, 2) };
    let (mut replace, mut index) = (false, 3);
    while let Some(option) = args.get(index) {
        index += 1;
        if is_option(option, "REPLACE") {
            replace = true;
        } else if let (true, Some(number)) = (is_option(option, "DB"), args.get(index)) {
            index += 1;
            let Some(db) = database(number, access.keyspace(), reply) else { return };
            to.db = db;
        } else {
            return reply.error(errors::SYNTAX);
        }
    }
    if (from.db, to.db) != (0, 0) && access.keyspace().is_cluster() {
        return reply.error("ERR Copying to another database is not allowed in cluster mode");
    }
    if from.db == to.db && from.key.bytes == to.key.bytes {
        return reply.error(errors::SAME_OBJECT);
    }
    if access.db(&from.key).read(&from.key).is_none() {
        return reply.integer(0);
    }
    if access.db_at(to.db, &to.key).write(&to.key).is_some() && !replace {
        return reply.integer(0);
    }
    match access.copy_value(from, to, Change::event(&Event(EventClass::Generic, "copy_to"))) {
        Ok(is_copied) => reply.integer(i64::from(is_copied)),
        Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
    }
}
