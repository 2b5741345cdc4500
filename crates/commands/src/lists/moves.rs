//! Moves elements between lists: `LMOVE`, `RPOPLPUSH`.

use pantala_engine::access::{Access, Key};
use pantala_engine::db::Missing;
use pantala_resp::{Args, Reply};
use pantala_types::List;
use pantala_types::list::End;

use super::{end, pop_event, popped, pushed};
use crate::errors;

/// `LMOVE source destination LEFT|RIGHT LEFT|RIGHT`.
pub fn lmove(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(from) = end(args.at(3), reply) else { return };
    let Some(to) = end(args.at(4), reply) else { return };
    move_or_null(access, args, from, to, reply);
}

/// `RPOPLPUSH source destination`.
pub fn rpoplpush(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    move_or_null(access, args, End::Right, End::Left, reply);
}

fn move_or_null(access: &mut Access<'_>, args: &Args<'_>, from: End, to: End, reply: &mut Reply<'_>) {
    match move_element(access, args, from, to, reply) {
        Moved::Yes | Moved::Unclaimed => {}
        Moved::Nothing => reply.null(),
        Moved::WrongSource | Moved::WrongDestination => reply.error(errors::WRONG_TYPE),
    }
}

/// The outcome of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The element was moved, and the reply is written.
    Yes,
    /// The source is missing.
    Nothing,
    /// The source isn't a list.
    WrongSource,
    /// The destination isn't a list.
    WrongDestination,
    /// The command is a blocked one that was woken, but its client was already answered (for
    /// example after a timeout).
    Unclaimed,
}

/// Moves an element from the list at `args[1]` to the list at `args[2]` and replies with the
/// element. Writes no reply if no element was moved.
pub(super) fn move_element(
    access: &mut Access<'_>,
    args: &Args<'_>,
    from: End,
    to: End,
    reply: &mut Reply<'_>,
) -> Moved {
    let (source, destination) = (access.first_key(args, 1), access.key(args, 2));
    let element = match access.db(&source).write_as::<List>(&source) {
        Err(_) => return Moved::WrongSource,
        Ok(None) => return Moved::Nothing,
        Ok(Some(list)) => list.get(if from == End::Left { 0 } else { -1 }, |element| element.to_vec()),
    };
    // Lists are never empty.
    let Some(element) = element else { return Moved::Nothing };
    if access.db(&destination).write_as::<List>(&destination).is_err() {
        return Moved::WrongDestination;
    }
    if !access.claim() {
        return Moved::Unclaimed;
    }
    reply.bulk(&element);
    if source.bytes == destination.bytes {
        rotate(access, &source, &element, from, to);
        return Moved::Yes;
    }
    let limit = access.keyspace().tuning.list_node_limit();
    // Both keys have been checked, so neither change can fail. As in Redis, the push precedes the
    // pop.
    let _ = access.db(&destination).change_as::<List, _, _>(&destination, Missing::Create, |list| {
        list.push(to, &element, limit);
        (pushed(to), ())
    });
    let _ = access.db(&source).change_as::<List, _, _>(&source, Missing::Skip, |list| {
        list.pop(from, |_| ());
        (popped(from), ())
    });
    Moved::Yes
}

/// Moves an element from one end of a list to the other end, or back to the same end.
fn rotate(access: &mut Access<'_>, key: &Key<'_>, element: &[u8], from: End, to: End) {
    let limit = access.keyspace().tuning.list_node_limit();
    let _ = access.db(key).change_as::<List, _, _>(key, Missing::Skip, |list| {
        list.pop(from, |_| ());
        list.push(to, element, limit);
        (pushed(to).and(pop_event(from)), ())
    });
}
