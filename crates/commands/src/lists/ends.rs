//! Pushes and pops at the ends of lists.

use pantala_engine::access::{Access, Key};
use pantala_engine::command::Propagated;
use pantala_engine::db::{Change, Missing, WrongType};
use pantala_resp::{Args, Reply};
use pantala_types::list::End;
use pantala_types::{Collection, List};

use super::{end, popped, pushed, storable, write_element};
use crate::arguments::{is_option, natural, positive};
use crate::{errors, propagated};

/// `LPUSH key element [element …]`.
pub fn lpush(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    push(access, args, End::Left, Missing::Create, reply);
}

/// `RPUSH key element [element …]`.
pub fn rpush(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    push(access, args, End::Right, Missing::Create, reply);
}

/// `LPUSHX key element [element …]`.
pub fn lpushx(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    push(access, args, End::Left, Missing::Skip, reply);
}

/// `RPUSHX key element [element …]`.
pub fn rpushx(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    push(access, args, End::Right, Missing::Skip, reply);
}

#[inline]
fn push(access: &mut Access<'_>, args: &Args<'_>, end: End, missing: Missing, reply: &mut Reply<'_>) {
    let elements = args.tail(2);
    if !storable(elements.iter(), reply) {
        return;
    }
    let key = access.first_key(args, 1);
    let limit = access.keyspace().tuning.list_node_limit();
    let len = access.db(&key).change_as::<List, _, _>(&key, missing, |list| {
        for element in elements.iter() {
            list.push(end, element, limit);
        }
        (pushed(end), list.view().len())
    });
    match len {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(len) => reply.integer(len.unwrap_or(0) as i64),
    }
}

/// `LPOP key [count]`.
pub fn lpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    pop(access, args, End::Left, reply);
}

/// `RPOP key [count]`.
pub fn rpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    pop(access, args, End::Right, reply);
}

#[inline]
fn pop(access: &mut Access<'_>, args: &Args<'_>, end: End, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    if args.len() == 2 {
        let done = access.db(&key).change_as::<List, _, _>(&key, Missing::Skip, |list| {
            list.pop(end, |element| write_element(element, reply));
            (popped(end), ())
        });
        return match done {
            Err(_) => reply.error(errors::WRONG_TYPE),
            Ok(None) => reply.null(),
            Ok(Some(())) => {}
        };
    }
    if args.len() > 3 {
        let name = if end == End::Left { "lpop" } else { "rpop" };
        return reply.error(&format!("ERR wrong number of arguments for '{name}' command"));
    }
    let Some(count) = natural(args.at(2), reply) else { return };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    match pop_several(access, &key, end, count, |_| {}, reply) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.null_array(),
        Ok(Some(_)) => {}
    }
}

/// Pops up to `count` elements. Replies with the output of `before`, then with the elements as an
/// array. Returns the number of elements, or `None` if there is no such key.
pub(super) fn pop_several(
    access: &mut Access<'_>,
    key: &Key<'_>,
    end: End,
    count: usize,
    before: impl FnOnce(&mut Reply<'_>),
    reply: &mut Reply<'_>,
) -> Result<Option<usize>, WrongType> {
    access.db(key).change_as::<List, _, _>(key, Missing::Skip, |list| {
        let view = list.view();
        let (len, count) = (view.len(), count.min(view.len()));
        before(reply);
        reply.array(count);
        if count == 0 {
            return (Change::none(), 0);
        }
        let from = if end == End::Left { 0 } else { len - 1 };
        view.visit_count(from, end == End::Right, count, |element| write_element(element, reply));
        list.trim(end, count);
        (Some(popped(end)), count)
    })
}

/// The arguments of `LMPOP` and `BLMPOP`.
pub(super) struct PopRequest {
    /// Indexes of the keys.
    pub(super) keys: std::ops::Range<usize>,
    pub(super) end: End,
    pub(super) count: usize,
}

impl PopRequest {
    /// Parses `numkeys key [key …] LEFT|RIGHT [COUNT count]`. `numkeys` is the index of the first
    /// of these arguments. Replies with an error and returns `None` if they are invalid.
    pub(super) fn parse(args: &Args<'_>, numkeys: usize, reply: &mut Reply<'_>) -> Option<Self> {
        let keys = positive(args.at(numkeys), "ERR numkeys should be greater than 0", reply)?;
        let at = usize::try_from(keys).ok().and_then(|keys| (numkeys + 1).checked_add(keys));
        let Some((at, word)) = at.and_then(|at| Some((at, args.get(at)?))) else {
            reply.error(errors::SYNTAX);
            return None;
        };
        let end = end(word, reply)?;
        let mut count = None;
        let mut index = at + 1;
        while let Some(option) = args.get(index) {
            match args.get(index + 1) {
                Some(number) if count.is_none() && is_option(option, "COUNT") => {
                    count = Some(positive(number, "ERR count should be greater than 0", reply)?);
                    index += 2;
                }
                _ => {
                    reply.error(errors::SYNTAX);
                    return None;
                }
            }
        }
        let count = usize::try_from(count.unwrap_or(1)).unwrap_or(usize::MAX);
        Some(PopRequest { keys: numkeys + 1..at, end, count })
    }
}

/// `LMPOP numkeys key [key …] LEFT|RIGHT [COUNT count]`.
pub fn lmpop(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(request) = PopRequest::parse(args, 1, reply) else { return };
    for index in request.keys.clone() {
        let key = access.key(args, index);
        match pop_with_key(access, &key, &request, reply) {
            Ok(None) => {}
            Ok(Some(_)) => return,
            Err(_) => return reply.error(errors::WRONG_TYPE),
        }
    }
    reply.null_array();
}

/// Pops from one key and replies with its name and the elements. Returns `None` if there is no
/// such key.
pub(super) fn pop_with_key(
    access: &mut Access<'_>,
    key: &Key<'_>,
    request: &PopRequest,
    reply: &mut Reply<'_>,
) -> Result<Option<Propagated>, WrongType> {
    let name = key.bytes;
    let before = |reply: &mut Reply<'_>| {
        reply.array(2);
        reply.bulk(name);
    };
    let popped = pop_several(access, key, request.end, request.count, before, reply)?;
    let Some(count) = popped else { return Ok(None) };
    Ok(Some(propagated::pop(access, command(request.end), key, Some(count))))
}

/// Returns the name of the command that pops from an end.
fn command(end: End) -> &'static str {
    match end {
        End::Left => "LPOP",
        End::Right => "RPOP",
    }
}

/// Pops one element from a key and replies with the key's name and the element. Returns `None` if
/// there is no such key.
pub(super) fn pop_one_with_key(
    access: &mut Access<'_>,
    key: &Key<'_>,
    end: End,
    reply: &mut Reply<'_>,
) -> Result<Option<Propagated>, WrongType> {
    let done = access.db(key).change_as::<List, _, _>(key, Missing::Skip, |list| {
        reply.array(2);
        reply.bulk(key.bytes);
        list.pop(end, |element| write_element(element, reply));
        (popped(end), ())
    })?;
    if done.is_none() {
        return Ok(None);
    }
    Ok(Some(propagated::pop(access, command(end), key, None)))
}
