//! Commands that wait for an element. How they wait: `pantala_engine::blocking`.

use pantala_engine::access::Access;
use pantala_engine::blocking::{Block, WakesOn};
use pantala_resp::{Args, Reply};
use pantala_types::List;
use pantala_types::list::End;

use super::end;
use super::ends::{Popping, pop_one_with_key, pop_with_key};
use super::moves::{Moved, move_element};
use crate::arguments::timeout_s;
use crate::errors;

/// `BLPOP key [key …] timeout`.
pub fn blpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    pop_or_wait(access, args, End::Left, reply);
}

/// `BRPOP key [key …] timeout`.
pub fn brpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    pop_or_wait(access, args, End::Right, reply);
}

fn pop_or_wait(access: &mut Access<'_>, args: &Args<'_>, end: End, reply: &mut Reply<'_>) {
    let last = args.len() - 1;
    let Some(timeout_ms) = timeout_s(args.at(last), reply) else { return };
    let wanted = Wanted { popping: Popping { keys: 1..last, end, count: 1 }, is_single: true, timeout_ms };
    wanted.pop_or_wait(access, args, reply);
}

/// `BLMPOP timeout numkeys key [key …] LEFT|RIGHT [COUNT count]`.
pub fn blmpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    // What is wrong with the keys is said before what is wrong with the timeout, as in Redis.
    let Some(popping) = Popping::parse(args, 2, reply) else { return };
    let Some(timeout_ms) = timeout_s(args.at(1), reply) else { return };
    Wanted { popping, is_single: false, timeout_ms }.pop_or_wait(access, args, reply);
}

/// What is popped, and how long it is waited for.
struct Wanted {
    popping: Popping,
    /// One element on its own, not an array of some.
    is_single: bool,
    timeout_ms: i64,
}

impl Wanted {
    fn pop_or_wait(&self, access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
        let is_woken = access.woken_by().is_some();
        for index in self.popping.keys.clone() {
            if !access.concerns(args.at(index)) {
                continue;
            }
            let key = access.key(args, index);
            match access.db(&key).write_as::<List>(&key) {
                Ok(None) => continue,
                // A woken command waits for a list to come.
                Err(_) if is_woken => return,
                Err(_) => return reply.error(errors::WRONG_TYPE),
                Ok(Some(_)) => {}
            }
            if !access.claim() {
                return;
            }
            // Looked at just now: it is a list, and no list is empty.
            let _ = if self.is_single {
                pop_one_with_key(access, &key, self.popping.end, reply)
            } else {
                pop_with_key(access, &key, &self.popping, reply)
            };
            return;
        }
        if access.may_block() {
            access.block(Block::on(self.popping.keys.clone(), WakesOn::List, self.timeout_ms));
        } else if !is_woken {
            reply.null_array();
        }
    }
}

/// `BLMOVE source destination LEFT|RIGHT LEFT|RIGHT timeout`.
pub fn blmove(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(from) = end(args.at(3), reply) else { return };
    let Some(to) = end(args.at(4), reply) else { return };
    if move_or_wait(access, args, from, to, 5, reply) {
        // As in Redis a client that has waited is propagated in words of the server's own.
        let is_woken = access.woken_by().is_some();
        let word = |end, index| if is_woken { name(end) } else { args.at(index) };
        access.propagate(&[b"LMOVE", args.at(1), args.at(2), word(from, 3), word(to, 4)]);
    }
}

/// `BRPOPLPUSH source destination timeout`.
pub fn brpoplpush(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if move_or_wait(access, args, End::Right, End::Left, 3, reply) {
        access.propagate(&[b"RPOPLPUSH", args.at(1), args.at(2)]);
    }
}

/// The word for an end.
fn name(end: End) -> &'static [u8] {
    match end {
        End::Left => b"left",
        End::Right => b"right",
    }
}

/// Moves an element, or waits for one. Returns whether one was moved.
fn move_or_wait(
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
        Moved::TooLate => {}
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
