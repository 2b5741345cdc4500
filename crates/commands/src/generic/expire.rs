//! Expiry of keys: `EXPIRE`, `TTL`, `PERSIST` and their variants.

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::Decimal;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Propagated};
use pantala_engine::db::Change;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, integer, is_option};
use crate::expiry::{Base, Unit, invalid_expire, requested_expiry_ms};
use crate::propagated;

/// Reply of `TTL` for a missing key.
const MISSING: i64 = -2;
/// Reply of `TTL` for a key without expiry.
const NEVER: i64 = -1;

/// `EXPIRE key seconds [NX | XX | GT | LT]`.
pub fn expire(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiry(access, args, Unit::Seconds, Base::Now, "expire", reply)
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`.
pub fn pexpire(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiry(access, args, Unit::Milliseconds, Base::Now, "pexpire", reply)
}

/// `EXPIREAT key unix-time-seconds [NX | XX | GT | LT]`.
pub fn expireat(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiry(access, args, Unit::Seconds, Base::Epoch, "expireat", reply)
}

/// `PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]`.
pub fn pexpireat(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    set_expiry(access, args, Unit::Milliseconds, Base::Epoch, "pexpireat", reply)
}

/// The conditions of `EXPIRE`.
#[derive(Default)]
struct Conditions {
    /// `NX`: change the expiry only if the key has none.
    nx: bool,
    /// `XX`: change the expiry only if the key has one.
    xx: bool,
    /// `GT`: change the expiry only to a later time. A missing expiry counts as later than any
    /// time.
    gt: bool,
    /// `LT`: change the expiry only to an earlier time.
    lt: bool,
}

impl Conditions {
    /// Parses the conditions. Replies with an error and returns `None` if they are invalid.
    fn parse(args: &Args<'_>, reply: &mut Reply<'_>) -> Option<Self> {
        let mut conditions = Conditions::default();
        for option in args.tail(3) {
            let condition = match () {
                () if is_option(option, "NX") => &mut conditions.nx,
                () if is_option(option, "XX") => &mut conditions.xx,
                () if is_option(option, "GT") => &mut conditions.gt,
                () if is_option(option, "LT") => &mut conditions.lt,
                () => {
                    reply.error_bytes(&[b"ERR Unsupported option ", c_string(option)].concat());
                    return None;
                }
            };
            *condition = true;
        }
        if conditions.nx && (conditions.xx || conditions.gt || conditions.lt) {
            reply.error("ERR NX and XX, GT or LT options at the same time are not compatible");
            return None;
        }
        if conditions.gt && conditions.lt {
            reply.error("ERR GT and LT options at the same time are not compatible");
            return None;
        }
        Some(conditions)
    }

    /// Returns whether the conditions allow changing an expiry from `current` to `wanted`.
    fn allow(&self, current: Option<i64>, wanted: i64) -> bool {
        let rejected = (self.nx && current.is_some())
            || (self.xx && current.is_none())
            || (self.gt && current.is_none_or(|at| wanted <= at))
            || (self.lt && current.is_some_and(|at| wanted >= at));
        !rejected
    }
}

fn set_expiry(
    access: &mut Access<'_>,
    args: &Args<'_>,
    unit: Unit,
    base: Base,
    command: &str,
    reply: &mut Reply<'_>,
) -> Option<Propagated> {
    let conditions = Conditions::parse(args, reply)?;
    let number = integer(args.at(2), reply)?;
    let (now_ms, keyspace) = (access.now_ms(), access.keyspace());
    let Some(at_ms) = requested_expiry_ms(number, unit, base, now_ms) else {
        invalid_expire(command, reply);
        return None;
    };
    let (key, is_past) = (access.first_key(args, 1), access.is_past(at_ms));
    let mut db = access.db(&key);
    let Some(current) = db.write(&key).map(|entry| entry.expire_at_ms()) else {
        reply.integer(0);
        return None;
    };
    if !conditions.allow(current, at_ms) {
        reply.integer(0);
        return None;
    }
    let lazy = keyspace.tuning.lazyfree_lazy_expire.load(Relaxed);
    let done = if is_past {
        // As in Redis, a deadline in the past deletes the key immediately. The key doesn't count as
        // expired in the statistics.
        db.remove(&key, lazy)
    } else {
        db.set_expire(&key, Some(at_ms), Change::event(&Event(EventClass::Generic, "expire")))
    };
    reply.integer(i64::from(done));
    if !done {
        return None;
    }
    if is_past {
        return Some(propagated::deletion(access, &key, lazy));
    }
    let mut at = Decimal::new();
    let words = [b"PEXPIREAT", key.bytes, at.format_i64(at_ms)];
    Some(propagated::words(access, words.into_iter().chain(args.iter().skip(3))))
}

/// `TTL key`.
pub fn ttl(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    report(access, args, Unit::Seconds, Base::Now, reply);
}

/// `PTTL key`.
pub fn pttl(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    report(access, args, Unit::Milliseconds, Base::Now, reply);
}

/// `EXPIRETIME key`.
pub fn expiretime(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    report(access, args, Unit::Seconds, Base::Epoch, reply);
}

/// `PEXPIRETIME key`.
pub fn pexpiretime(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    report(access, args, Unit::Milliseconds, Base::Epoch, reply);
}

fn report(access: &mut Access<'_>, args: &Args<'_>, unit: Unit, base: Base, reply: &mut Reply<'_>) {
    let (key, now_ms) = (access.first_key(args, 1), access.now_ms());
    let mut db = access.db(&key);
    let Some(entry) = db.peek(&key) else { return reply.integer(MISSING) };
    let Some(at_ms) = entry.expire_at_ms() else { return reply.integer(NEVER) };
    let ms = match base {
        Base::Now => at_ms - now_ms,
        Base::Epoch => at_ms,
    };
    reply.integer(match unit {
        Unit::Milliseconds => ms,
        Unit::Seconds => rounded_seconds(ms),
    });
}

/// Rounds a remaining TTL in ms to the nearest second. `ms` is not negative, because expired keys
/// are never found.
fn rounded_seconds(ms: i64) -> i64 {
    // Computed as unsigned, because `i64::MAX` + 500 would overflow.
    ((ms as u64 + 500) / 1000) as i64
}

/// `PERSIST key`.
pub fn persist(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let expires = db.write(&key).is_some_and(|entry| entry.expire_at_ms().is_some());
    if expires {
        db.set_expire(&key, None, Change::event(&Event(EventClass::Generic, "persist")));
    }
    reply.integer(i64::from(expires));
}
