//! A value from one key to another: `RENAME`, `MOVE`, `COPY`.

use pantala_engine::access::{Access, Key};
use pantala_engine::db::{Expire, FLAG_RAW, FLAG_UNSHARED, Held, Holds, NewString, fits_inline, payload_of};
use pantala_engine::notify::EventClass;
use pantala_engine::{NewPayload, OwnedPayload};
use pantala_resp::{Args, Reply};
use pantala_types::{OutOfMemory, PackedForm, Value, is_shared_integer};

use crate::arguments::{database, is_option};
use crate::errors;

/// A key in a database.
#[derive(Clone, Copy)]
struct Spot<'k> {
    db: u32,
    key: Key<'k>,
}

/// A value on its way, on its own: its source and its destination may be in different shards.
struct Parcel {
    content: Content,
    flags: u8,
    access: u32,
    expire_at_ms: Option<i64>,
}

enum Content {
    Int(i64),
    Bytes(Vec<u8>),
    Packed(PackedForm, Vec<u8>),
    Heap(Value),
    /// Large and not copied: taken out of its key only when nothing can fail any more.
    Stays,
}

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
    let from = Spot { db, key: access.first_key(args, 1) };
    let to = Spot { db, key: access.key(args, 2) };
    if access.db(&from.key).write(&from.key).is_none() {
        return reply.error(errors::NO_SUCH_KEY);
    }
    let same = from.key.bytes == to.key.bytes;
    if nx && (same || access.db(&to.key).write(&to.key).is_some()) {
        return reply.integer(0);
    }
    if !same {
        // Redis deletes what is in the way and adds anew: never an overwriting.
        let overwrites = access.db(&to.key).exists(&to.key);
        if carry(access, from, to).is_err() {
            return reply.error(errors::OUT_OF_MEMORY);
        }
        if overwrites {
            access.notify(EventClass::New, "new", &to.key);
        }
        access.notify(EventClass::Generic, "rename_from", &from.key);
        access.notify(EventClass::Generic, "rename_to", &to.key);
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
    let from = Spot { db: access.session().db, key };
    let to = Spot { db, key };
    if from.db == to.db {
        return reply.error(errors::SAME_OBJECT);
    }
    if access.db(&key).write(&key).is_none() || access.db_at(db, &key).write(&key).is_some() {
        return reply.integer(0);
    }
    match carry(access, from, to) {
        Ok(()) => {
            access.notify(EventClass::Generic, "move_from", &key);
            access.notify_at(db, EventClass::Generic, "move_to", &key);
            reply.integer(1);
        }
        Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
    }
}

/// `COPY source destination [DB destination-db] [REPLACE]`.
pub fn copy(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let from = Spot { db: access.session().db, key: access.first_key(args, 1) };
    let mut to = Spot { db: from.db, key: access.key(args, 2) };
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
    let overwrites = access.db_at(to.db, &to.key).write(&to.key).is_some();
    if overwrites && !replace {
        return reply.integer(0);
    }
    let Ok(Some(parcel)) = pick_up(access, from, true) else {
        return reply.error(errors::OUT_OF_MEMORY);
    };
    match put_down(access, to, parcel) {
        Ok(()) => {
            if overwrites {
                access.notify_at(to.db, EventClass::New, "new", &to.key);
            }
            access.notify_at(to.db, EventClass::Generic, "copy_to", &to.key);
            reply.integer(1);
        }
        Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
    }
}

/// Moves what `from` holds to `to`, over whatever is there. On failure nothing has changed.
fn carry(access: &mut Access<'_>, from: Spot<'_>, to: Spot<'_>) -> Result<(), OutOfMemory> {
    let Some(mut parcel) = pick_up(access, from, false)? else { return Ok(()) };
    if let Content::Stays = parcel.content {
        // From here on nothing is refused: a large value is put down as it is.
        let taken = access.db_at(from.db, &from.key).take(&from.key);
        let Some(OwnedPayload::Heap(value)) = taken.map(|taken| taken.payload) else { return Ok(()) };
        parcel.content = Content::Heap(value);
        return put_down(access, to, parcel);
    }
    put_down(access, to, parcel)?;
    access.db_at(from.db, &from.key).remove(&from.key, false);
    Ok(())
}

/// What a key holds: a copy, but for a large value unless `whole`.
fn pick_up(access: &mut Access<'_>, from: Spot<'_>, whole: bool) -> Result<Option<Parcel>, OutOfMemory> {
    let mut db = access.db_at(from.db, &from.key);
    let Some(entry) = db.find(&from.key) else { return Ok(None) };
    let mut flags = entry.user_flags();
    let content = match entry.held() {
        Held::Int(value) => {
            if whole && is_shared_integer(value) {
                flags |= FLAG_UNSHARED;
            }
            Content::Int(value)
        }
        Held::Bytes(bytes) => Content::Bytes(copied(bytes)?),
        Held::Packed(form, bytes) => Content::Packed(form, copied(bytes)?),
        Held::Heap(value) if whole => Content::Heap(value.try_clone()?),
        Held::Heap(_) => Content::Stays,
    };
    let (access_word, expire_at_ms) = (entry.access(), entry.expire_at_ms());
    Ok(Some(Parcel { content, flags, access: access_word, expire_at_ms }))
}

fn copied(bytes: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// Gives a key this value, in place of whatever it held.
fn put_down(access: &mut Access<'_>, to: Spot<'_>, parcel: Parcel) -> Result<(), OutOfMemory> {
    let Parcel { content, flags, access: access_word, expire_at_ms } = parcel;
    let bytes;
    let (payload, flags) = match content {
        Content::Int(value) => (NewPayload::Int(value), flags),
        Content::Heap(value) => (NewPayload::Heap(value), flags),
        Content::Bytes(copy) => {
            bytes = copy;
            let raw = flags & FLAG_RAW != 0;
            // It may move out of its entry, where the new key is the longer one.
            payload_of(&to.key, if raw { NewString::Raw(&bytes) } else { NewString::Bytes(&bytes) })?
        }
        Content::Packed(form, copy) => {
            bytes = copy;
            if fits_inline(to.key.bytes, bytes.len()) {
                (NewPayload::Bytes(&bytes), flags)
            } else {
                (NewPayload::Heap(Value::from_packed(form, bytes)), 0)
            }
        }
        // `carry` has replaced it by what it stands for.
        Content::Stays => return Ok(()),
    };
    let expire = expire_at_ms.map_or(Expire::Clear, Expire::At);
    let mut db = access.db_at(to.db, &to.key);
    db.set_payload(&to.key, payload, flags, expire);
    // When it was last read moves with the value.
    if let Some(mut entry) = db.find(&to.key) {
        entry.set_access(access_word);
    }
    Ok(())
}
