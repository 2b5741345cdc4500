//! Blocking list commands. [`pantala_engine::blocking`] describes how a client blocks.

use pantala_engine::access::Access;
use pantala_engine::blocking::{Block, WakesOn};
use pantala_engine::command::{Chance, Propagated};
use pantala_resp::{Args, Reply};
use pantala_types::List;
use pantala_types::list::End;

use super::end;
use super::ends::{PopRequest, pop_one_with_key, pop_with_key};
use super::moves::{Moved, move_element};
use crate::arguments::timeout_s;
use crate::errors;

/// `BLPOP key [key …] timeout`.
pub fn blpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    pop_or_block(access, args, End::Left, reply)
}

/// `BRPOP key [key …] timeout`.
pub fn brpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    pop_or_block(access, args, End::Right, reply)
}

fn pop_or_block(access: &mut Access<'_>, args: &Args<'_>, end: End, reply: &mut Reply<'_>) -> Option<Propagated> {
    let last = args.len() - 1;
    let timeout_ms = timeout_s(args.at(last), reply)?;
    let pop = BlockingPop { request: PopRequest { keys: 1..last, end, count: 1 }, is_single: true, timeout_ms };
    pop.pop_or_block(access, args, reply)
}

/// `BLMPOP timeout numkeys key [key …] LEFT|RIGHT [COUNT count]`.
pub fn blmpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    // As in Redis, an error in the keys has precedence over an error in the timeout.
    let request = PopRequest::parse(args, 2, reply)?;
    let timeout_ms = timeout_s(args.at(1), reply)?;
    BlockingPop { request, is_single: false, timeout_ms }.pop_or_block(access, args, reply)
}

/// A pop and its timeout.
struct BlockingPop {
    request: PopRequest,
    /// Whether the reply is the key and one element (`BLPOP`), instead of the key and an array of
    /// elements (`BLMPOP`).
    is_single: bool,
    timeout_ms: i64,
}

impl BlockingPop {
    fn pop_or_block(&self, access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) -> Option<Propagated> {
        let is_woken = access.woken_by().is_some();
        for index in self.request.keys.clone() {
            if !access.concerns(args.at(index)) {
                continue;
            }
            let key = access.key(args, index);
            match access.db(&key).write_as::<List>(&key) {
                Ok(None) => continue,
                // A woken command (a blocked command that runs again because one of its keys has
                // changed) reports no error for a value of another type. The command stays blocked
                // until the key holds a list.
                Err(_) if is_woken => return None,
                Err(_) => {
                    reply.error(errors::WRONG_TYPE);
                    return None;
                }
                Ok(Some(_)) => {}
            }
            if !access.claim() {
                return None;
            }
            // The pop always finds an element: the key holds a list, as checked above, and a list
            // is never empty.
            let popped = if self.is_single {
                pop_one_with_key(access, &key, self.request.end, reply)
            } else {
                pop_with_key(access, &key, &self.request, reply)
            };
            return popped.ok().flatten();
        }
        if access.may_block() {
            access.block(Block::on(self.request.keys.clone(), WakesOn::List, self.timeout_ms));
        } else if !is_woken {
            reply.null_array();
        }
        None
    }
}

/// `BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout`.
pub fn blmove(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let from = end(args.at(3), reply)?;
    let to = end(args.at(4), reply)?;
    if !move_or_block(access, args, from, to, 5, reply) {
        return None;
    }
    // As in Redis, a command that was blocked is propagated with the words `left` and `right` in
    // lower case.
    let is_woken = access.woken_by().is_some();
    let word = |end, index| if is_woken { name(end) } else { args.at(index) };
    Some(access.propagate(&[b"LMOVE", args.at(1), args.at(2), word(from, 3), word(to, 4)]))
}

/// `BRPOPLPUSH source destination timeout`.
pub fn brpoplpush(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let is_moved = move_or_block(access, args, End::Right, End::Left, 3, reply);
    is_moved.then(|| access.propagate(&[b"RPOPLPUSH", args.at(1), args.at(2)]))
}

/// Returns the name of an end of a list, in lower case.
fn name(end: End) -> &'static [u8] {
    match end {
        End::Left => b"left",
        End::Right => b"right",
    }
}

/// Moves an element, or blocks until there is one. Returns whether an element was moved.
fn move_or_block(
    access: &mut Access<'_>,
    args: &Args<'_>,
    from: End,
    to: End,
    timeout: usize,
    reply: &mut Reply<'_>,
) -> bool {
    let Some(timeout_ms) = timeout_s(args.at(timeout), reply) else { return false };
    let is_woken = access.woken_by().is_some();
    match move_element(access, args, from, to, reply) {
        Moved::Yes => return true,
        Moved::Unclaimed => {}
        Moved::WrongSource if is_woken => {}
        Moved::WrongSource | Moved::WrongDestination => reply.error(errors::WRONG_TYPE),
        Moved::Nothing if is_woken => {}
        Moved::Nothing if access.may_block() => {
            access.block(Block { destination: Some(2), ..Block::on(1..2, WakesOn::List, timeout_ms) });
        }
        Moved::Nothing => reply.null(),
    }
    false
}
