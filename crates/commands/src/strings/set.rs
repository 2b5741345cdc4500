//! `GET`, `SET` and their variants, and the options of `SET` and `GETEX`.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::Decimal;
use pantala_engine::access::{Access, Key};
use pantala_engine::command::{Chance, Omission, Propagated};
use pantala_engine::db::{Change, Expire, Holds, NewString, payload_of};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};

use super::StringRef;
use crate::arguments::{integer, is_option};
use crate::expiry::{Base, Unit, invalid_expire, new_expiry_ms};
use crate::{errors, propagated};

/// The change of a key by setting its value.
const SET: Change = Change::event(&Event(EventClass::String, "set"));

/// `GET key`.
#[inline]
pub fn get(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    reply_value(access, &key, reply);
}

/// Replies as `GET` does. Returns `false` if the reply is the error for another type.
#[inline]
fn reply_value(access: &mut Access<'_>, key: &Key<'_>, reply: &mut Reply<'_>) -> bool {
    match access.db(key).read(key).map(|entry| write_entry(StringRef::of(entry.held()), reply)) {
        None => {
            reply.null();
            true
        }
        Some(is_string) => is_string,
    }
}

/// Replies with a string, or with an error if `string` is `None`, which stands for a value of
/// another type. Returns whether the value is a string.
#[inline]
fn write_entry(string: Option<StringRef<'_>>, reply: &mut Reply<'_>) -> bool {
    match string {
        Some(string) => string.write(reply),
        None => reply.error(errors::WRONG_TYPE),
    }
    string.is_some()
}

/// `SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`.
#[inline]
pub fn set(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    set_to(access, args, NewString::encode(args.at(2)), reply);
}

/// Runs `SET` with `value`.
#[inline(always)]
pub(super) fn set_to(access: &mut Access<'_>, args: &Args<'_>, value: NewString<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    if args.len() == 3 {
        return match access.db(&key).set_string(&key, value, Expire::Clear, SET) {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(errors::OUT_OF_MEMORY),
        };
    }
    let Some(options) = Options::parse(args, 3, Syntax::Set) else {
        return reply.error(errors::SYNTAX);
    };
    store(access, args, &key, value, &options, "set", reply);
}

/// `SETEX key seconds value`.
pub fn setex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiring(access, args, Unit::Seconds, "setex", NewString::encode(args.at(3)), reply)
}

/// `PSETEX key milliseconds value`.
pub fn psetex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiring(access, args, Unit::Milliseconds, "psetex", NewString::encode(args.at(3)), reply)
}

/// Runs `SETEX` or `PSETEX` with `value`.
pub(super) fn set_expiring(
    access: &mut Access<'_>,
    args: &Args<'_>,
    unit: Unit,
    command: &str,
    value: NewString<'_>,
    reply: &mut Reply<'_>,
) -> Option<Propagated> {
    let key = access.first_key(args, 1);
    let expiry = Expiry::At { text: args.at(2), unit, base: Base::Now };
    store(access, args, &key, value, &Options { expiry, ..Options::default() }, command, reply)
}

/// `SETNX key value`.
pub fn setnx(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    setnx_to(access, args, NewString::encode(args.at(2)), reply);
}

/// Runs `SETNX` with `value`.
pub(super) fn setnx_to(access: &mut Access<'_>, args: &Args<'_>, value: NewString<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    if db.write(&key).is_some() {
        return reply.integer(0);
    }
    match db.set_string(&key, value, Expire::Clear, SET) {
        Ok(()) => reply.integer(1),
        Err(_) => reply.error(errors::OUT_OF_MEMORY),
    }
}

/// `GETSET key value`.
pub fn getset(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    // Allocates first. If the allocation fails, nothing may have changed, and no part of the reply
    // may have been written.
    let Ok((payload, flags)) = payload_of(&key, NewString::encode(args.at(2))) else {
        return reply.error(errors::OUT_OF_MEMORY);
    };
    if reply_value(access, &key, reply) {
        access.db(&key).set_payload(&key, payload, flags, Expire::Clear, SET);
        access.propagate(&[b"SET", key.bytes, args.at(2)]);
    }
}

/// `GETDEL key`.
pub fn getdel(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    if reply_value(access, &key, reply) {
        let lazy = access.keyspace().tuning.lazyfree_lazy_user_del.load(Relaxed);
        if access.db(&key).remove(&key, lazy) {
            propagated::deletion(access, &key, lazy);
        }
    }
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`.
pub fn getex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let Some(options) = Options::parse(args, 2, Syntax::GetEx) else {
        reply.error(errors::SYNTAX);
        return None;
    };
    let key = access.first_key(args, 1);
    let (now_ms, keyspace) = (access.now_ms(), access.keyspace());
    let is_replica = keyspace.tuning.is_replica();
    let mut db = access.db(&key);
    let Some(entry) = db.read(&key) else {
        reply.null();
        return None;
    };
    let had_expiry = entry.expire_at_ms().is_some();
    let Some(string) = StringRef::of(entry.held()) else {
        reply.error(errors::WRONG_TYPE);
        return None;
    };
    // As in Redis, the time is parsed only after the lookup. An invalid time therefore isn't an
    // error if the key is missing.
    let Ok(at_ms) = options.expiry.at_ms(now_ms, "getex", reply) else { return None };
    string.write(reply);
    let past = options.expiry.is_absolute() && at_ms.is_some_and(|at| at <= now_ms) && !is_replica;
    if past {
        let lazy = keyspace.tuning.lazyfree_lazy_expire.load(Relaxed);
        db.remove(&key, lazy);
        return Some(propagated::deletion(access, &key, lazy));
    }
    if let Some(at_ms) = at_ms {
        db.set_expire(&key, Some(at_ms), Change::event(&Event(EventClass::Generic, "expire")));
        return Some(propagated::deadline(access, &key, at_ms));
    }
    if options.expiry == Expiry::Persist && had_expiry {
        db.set_expire(&key, None, Change::event(&Event(EventClass::Generic, "persist")));
        return Some(access.propagate(&[b"PERSIST", key.bytes]));
    }
    None
}

/// Stores a value according to the options, and replies. Returns `None` if nothing was stored, or
/// if the client's call is propagated unchanged. A call that sets a deadline is never propagated
/// unchanged.
fn store(
    access: &mut Access<'_>,
    args: &Args<'_>,
    key: &Key<'_>,
    value: NewString<'_>,
    options: &Options<'_>,
    command: &str,
    reply: &mut Reply<'_>,
) -> Option<Propagated> {
    let Ok(at_ms) = options.expiry.at_ms(access.now_ms(), command, reply) else { return None };
    // Allocates before any lookup or reply, because the allocation may fail.
    let Ok((payload, flags)) = payload_of(key, value) else {
        reply.error(errors::OUT_OF_MEMORY);
        return None;
    };
    if options.get && !reply_value(access, key, reply) {
        return None;
    }
    let mut db = access.db(key);
    let condition_fails = match options.condition {
        Condition::Always => false,
        Condition::Missing => db.write(key).is_some(),
        Condition::Existing => db.write(key).is_none(),
    };
    if condition_fails {
        // With `GET` the reply is the old value, and is already written.
        if !options.get {
            reply.null();
        }
        return None;
    }
    let expire = match (at_ms, options.expiry) {
        (Some(at), _) => Expire::At(at),
        (None, Expiry::Keep) => Expire::Keep,
        (None, _) => Expire::Clear,
    };
    let change = if at_ms.is_some() { SET.and(&Event(EventClass::Generic, "expire")) } else { SET };
    db.set_payload(key, payload, flags, expire, change);
    if !options.get {
        reply.ok();
    }
    if !access.is_journaled() {
        return Some(access.propagate_nothing(Omission::Unrecorded));
    }
    let value = args.at(if command == "set" { 2 } else { 3 });
    options.propagate(access, args, key, value, at_ms)
}

/// The command whose options are parsed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Set,
    GetEx,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Condition {
    #[default]
    Always,
    /// `NX`
    Missing,
    /// `XX`
    Existing,
}

/// The effect of the options on the key's expiry.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Expiry<'a> {
    /// No option was given.
    #[default]
    Unspecified,
    /// `KEEPTTL`
    Keep,
    /// `PERSIST`
    Persist,
    /// A time that is parsed later, because Redis reports syntax errors before invalid times.
    At { text: &'a [u8], unit: Unit, base: Base },
}

impl Expiry<'_> {
    fn is_absolute(&self) -> bool {
        matches!(self, Expiry::At { base: Base::Epoch, .. })
    }

    /// Returns the deadline (Unix time, ms), or `None` if the options set no deadline. Replies with
    /// an error and returns `Err` if the time is invalid.
    fn at_ms(&self, now_ms: i64, command: &str, reply: &mut Reply<'_>) -> Result<Option<i64>, ()> {
        let Expiry::At { text, unit, base } = *self else { return Ok(None) };
        let number = integer(text, reply).ok_or(())?;
        let at_ms = new_expiry_ms(number, unit, base, now_ms);
        if at_ms.is_none() {
            invalid_expire(command, reply);
        }
        at_ms.map(Some).ok_or(())
    }
}

/// The options of `SET` and `GETEX`.
#[derive(Default)]
struct Options<'a> {
    condition: Condition,
    get: bool,
    expiry: Expiry<'a>,
}

impl<'a> Options<'a> {
    /// Parses the arguments from index `first` on. Returns `None` on a syntax error.
    fn parse(args: &Args<'a>, first: usize, syntax: Syntax) -> Option<Self> {
        let mut options = Options::default();
        let mut index = first;
        while let Some(option) = args.get(index) {
            index += 1;
            if syntax == Syntax::Set && options.parse_set_only(option) {
                continue;
            }
            if syntax == Syntax::GetEx && is_option(option, "PERSIST") {
                options.set_expiry(Expiry::Persist)?;
                continue;
            }
            let (unit, base) = time_option(option)?;
            let text = args.get(index)?;
            index += 1;
            options.set_expiry(Expiry::At { text, unit, base })?;
        }
        Some(options)
    }

    /// Propagates the call. A call that sets a deadline becomes `SET` with the absolute deadline.
    /// Any other call is propagated without the option `GET`. Returns `None` if the call has
    /// neither: it is then propagated unchanged.
    #[cold]
    fn propagate(
        &self,
        access: &mut Access<'_>,
        args: &Args<'_>,
        key: &Key<'_>,
        value: &[u8],
        at_ms: Option<i64>,
    ) -> Option<Propagated> {
        match at_ms {
            Some(at_ms) => {
                Some(access.propagate(&[b"SET", key.bytes, value, b"PXAT", Decimal::new().format_i64(at_ms)]))
            }
            None => self.get.then(|| propagated::without_word(access, args, 3, "GET")),
        }
    }

    /// Parses an option that only `SET` has. Returns `false` if the option is another one, or if it
    /// contradicts an earlier option.
    fn parse_set_only(&mut self, option: &[u8]) -> bool {
        if is_option(option, "NX") && self.condition != Condition::Existing {
            self.condition = Condition::Missing;
        } else if is_option(option, "XX") && self.condition != Condition::Missing {
            self.condition = Condition::Existing;
        } else if is_option(option, "GET") {
            self.get = true;
        } else {
            return is_option(option, "KEEPTTL") && self.set_expiry(Expiry::Keep).is_some();
        }
        true
    }

    /// Sets the expiry. An option may be repeated, and its last occurrence counts. Returns `None`
    /// if two different options contradict each other.
    fn set_expiry(&mut self, expiry: Expiry<'a>) -> Option<()> {
        let is_consistent = match (self.expiry, expiry) {
            (Expiry::Unspecified, _) | (Expiry::Keep, Expiry::Keep) | (Expiry::Persist, Expiry::Persist) => true,
            (Expiry::At { unit: a, base: b, .. }, Expiry::At { unit: c, base: d, .. }) => (a, b) == (c, d),
            _ => false,
        };
        self.expiry = expiry;
        is_consistent.then_some(())
    }
}

/// Parses `EX`, `PX`, `EXAT` or `PXAT`.
pub(crate) fn time_option(option: &[u8]) -> Option<(Unit, Base)> {
    const TIMES: [(&str, Unit, Base); 4] = [
        ("EX", Unit::Seconds, Base::Now),
        ("PX", Unit::Milliseconds, Base::Now),
        ("EXAT", Unit::Seconds, Base::Epoch),
        ("PXAT", Unit::Milliseconds, Base::Epoch),
    ];
    let (_, unit, base) = TIMES.into_iter().find(|(word, ..)| is_option(option, word))?;
    Some((unit, base))
}
