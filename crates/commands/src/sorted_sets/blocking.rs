//! Blocking sorted set commands. [`pantala_engine::blocking`] describes how a client blocks.

use pantala_engine::access::Access;
use pantala_engine::blocking::{Block, WakesOn};
use pantala_engine::command::{Chance, Omission, Propagated};
use pantala_engine::db::WrongType;
use pantala_resp::{Args, Reply};
use pantala_types::SortedSet;

use super::pop::{End, MultiPop, Shape, pop};
use crate::arguments::timeout_s;
use crate::errors;

/// `BZPOPMIN key [key …] timeout`.
pub fn bzpopmin(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    pop_one(access, args, End::Min, reply)
}

/// `BZPOPMAX key [key …] timeout`.
pub fn bzpopmax(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    pop_one(access, args, End::Max, reply)
}

fn pop_one(access: &mut Access<'_>, args: &Args<'_>, end: End, reply: &mut Reply<'_>) -> Option<Propagated> {
    let last = args.len() - 1;
    let timeout_ms = timeout_s(args.at(last), reply)?;
    pop_or_block(access, args, &MultiPop { keys: 1..last, end, count: 1 }, Shape::FlatWithKey, timeout_ms, reply)
}

/// `BZMPOP timeout numkeys key [key …] MIN|MAX [COUNT count]`.
pub fn bzmpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    // As in Redis, an error in the keys has precedence over an error in the timeout.
    let call = match MultiPop::parse(args, 2) {
        Ok(call) => call,
        Err(error) => {
            reply.error(error);
            return None;
        }
    };
    let timeout_ms = timeout_s(args.at(1), reply)?;
    pop_or_block(access, args, &call, Shape::WithKey, timeout_ms, reply)
}

fn pop_or_block(
    access: &mut Access<'_>,
    args: &Args<'_>,
    call: &MultiPop,
    shape: Shape,
    timeout_ms: i64,
    reply: &mut Reply<'_>,
) -> Option<Propagated> {
    let is_woken = access.woken_by().is_some();
    for index in call.keys.clone() {
        if !access.concerns(args.at(index)) {
            continue;
        }
        let key = access.key(args, index);
        match access.db(&key).write_as::<SortedSet>(&key) {
            Ok(None) => continue,
            // A woken command (a blocked command that runs again because one of its keys has
            // changed) reports no error for a value of another type. The command stays blocked
            // until the key holds a sorted set.
            Err(WrongType) if is_woken => return None,
            Err(WrongType) => {
                reply.error(errors::WRONG_TYPE);
                return None;
            }
            Ok(Some(_)) => {}
        }
        if !access.claim() {
            return None;
        }
        // The pop always finds a member: the key holds a sorted set, as checked above, and a sorted
        // set is never empty. The command is propagated as a pop from this key.
        let _ = pop(access, &key, call.end, call.count, shape, reply);
        return Some(access.propagate_nothing(Omission::Replaced));
    }
    if access.may_block() {
        access.block(Block::on(call.keys.clone(), WakesOn::SortedSet, timeout_ms));
    } else if !is_woken {
        reply.null_array();
    }
    None
}
