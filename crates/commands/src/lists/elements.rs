//! Reads, changes and searches elements of a list.

use std::ops::ControlFlow;

use pantala_base::number::parse_i64;
use pantala_engine::access::Access;
use pantala_engine::db::{Change, Missing};
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::{Args, Reply};
use pantala_types::list::{End, ListView, resolve, resolve_range};
use pantala_types::pack::Element;
use pantala_types::{Collection, List};

use super::{storable, write_element};
use crate::arguments::{integer, is_option};
use crate::errors;

/// `LLEN key`.
pub fn llen(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<List>(&key) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(list) => reply.integer(list.map_or(0, ListView::len) as i64),
    }
}

/// `LINDEX key index`.
pub fn lindex(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<List>(&key) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.null(),
        Ok(Some(list)) => {
            let Some(index) = integer(args.at(2), reply) else { return };
            if list.get(index, |element| write_element(element, reply)).is_none() {
                reply.null();
            }
        }
    }
}

/// `LRANGE key start stop`.
pub fn lrange(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(start) = integer(args.at(2), reply) else { return };
    let Some(stop) = integer(args.at(3), reply) else { return };
    let key = access.first_key(args, 1);
    match access.db(&key).read_as::<List>(&key) {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.array(0),
        Ok(Some(list)) => {
            let (first, count) = resolve_range(start, stop, list.len());
            reply.array(count);
            list.visit_count(first, false, count, |element| write_element(element, reply));
        }
    }
}

/// `LSET key index element`.
pub fn lset(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if !storable([args.at(3)].into_iter(), reply) {
        return;
    }
    let key = access.first_key(args, 1);
    let limit = access.keyspace().tuning.list_node_limit();
    let index = parse_i64(args.at(2));
    let done = access.db(&key).change_as::<List, _, _>(&key, Missing::Skip, |list| {
        let Some(index) = index else { return (Change::none(), None) };
        let set = resolve(index, list.view().len()).is_some_and(|index| list.set(index, args.at(3), limit));
        (Change::event(&Event(EventClass::List, "lset")).when(set), Some(set))
    });
    match done {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.error(errors::NO_SUCH_KEY),
        Ok(Some(None)) => reply.error(errors::NOT_AN_INTEGER),
        Ok(Some(Some(false))) => reply.error("ERR index out of range"),
        Ok(Some(Some(true))) => reply.ok(),
    }
}

/// `LINSERT key BEFORE|AFTER pivot element`.
pub fn linsert(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let after = is_option(args.at(2), "AFTER");
    if !after && !is_option(args.at(2), "BEFORE") {
        return reply.error(errors::SYNTAX);
    }
    if !storable([args.at(4)].into_iter(), reply) {
        return;
    }
    let key = access.first_key(args, 1);
    let limit = access.keyspace().tuning.list_node_limit();
    let pivot = Element::of(args.at(3));
    let len = access.db(&key).change_as::<List, _, _>(&key, Missing::Skip, |list| {
        let Some(at) = list.view().position(pivot) else { return (Change::none(), None) };
        list.insert(at + usize::from(after), args.at(4), limit);
        (Some(Change::event(&Event(EventClass::List, "linsert"))), Some(list.view().len()))
    });
    match len {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(None) => reply.integer(0),
        Ok(Some(None)) => reply.integer(-1),
        Ok(Some(Some(len))) => reply.integer(len as i64),
    }
}

/// `LREM key count element`.
pub fn lrem(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(count) = integer(args.at(2), reply) else { return };
    let most = if count == 0 { usize::MAX } else { usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX) };
    let key = access.first_key(args, 1);
    let limit = access.keyspace().tuning.list_node_limit();
    let removed = access.db(&key).change_as::<List, _, _>(&key, Missing::Skip, |list| {
        let removed = list.remove_equal(args.at(3), most, count < 0, limit);
        (Change::event(&Event(EventClass::List, "lrem")).when(removed > 0), removed)
    });
    match removed {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(removed) => reply.integer(removed.unwrap_or(0) as i64),
    }
}

/// `LTRIM key start stop`.
pub fn ltrim(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(start) = integer(args.at(2), reply) else { return };
    let Some(stop) = integer(args.at(3), reply) else { return };
    let key = access.first_key(args, 1);
    let done = access.db(&key).change_as::<List, _, _>(&key, Missing::Skip, |list| {
        let len = list.view().len();
        let (first, count) = resolve_range(start, stop, len);
        list.trim(End::Right, len - first - count);
        list.trim(End::Left, first);
        (Change::event(&Event(EventClass::List, "ltrim")), ())
    });
    match done {
        Err(_) => reply.error(errors::WRONG_TYPE),
        Ok(_) => reply.ok(),
    }
}

/// The arguments of `LPOS`.
struct Search {
    /// Number of the first match to return, counted from 1 at the head, or at the tail if
    /// `backward`.
    rank: usize,
    backward: bool,
    /// Number of matches to return. `None` means one match, and a reply that isn't an array.
    count: Option<usize>,
    /// Maximum number of elements to compare.
    len_max: usize,
}

impl Search {
    fn parse(args: &Args<'_>, reply: &mut Reply<'_>) -> Option<Self> {
        let mut search = Search { rank: 1, backward: false, count: None, len_max: usize::MAX };
        let mut every_match = false;
        let mut index = 3;
        while let Some(option) = args.get(index) {
            let Some(number) = args.get(index + 1) else {
                reply.error(errors::SYNTAX);
                return None;
            };
            index += 2;
            if is_option(option, "RANK") {
                let rank = integer(number, reply)?;
                if rank == 0 {
                    reply.error(RANK_ZERO);
                    return None;
                }
                search.backward = rank < 0;
                // Redis negates a negative rank in a C `long`. The negation of the minimum
                // overflows and stays negative. For this rank, Redis therefore returns every match,
                // whatever `COUNT` is.
                every_match = rank == i64::MIN;
                search.rank = if every_match { 1 } else { usize::try_from(rank.unsigned_abs()).unwrap_or(usize::MAX) };
            } else if is_option(option, "COUNT") {
                search.count = Some(all_if_zero(number, "ERR COUNT can't be negative", reply)?);
            } else if is_option(option, "MAXLEN") {
                search.len_max = all_if_zero(number, "ERR MAXLEN can't be negative", reply)?;
            } else {
                reply.error(errors::SYNTAX);
                return None;
            }
        }
        if every_match {
            search.count = search.count.map(|_| usize::MAX);
        }
        Some(search)
    }

    /// Calls `show` with the index of each match, starting with match number `rank`, until `show`
    /// breaks.
    fn run(&self, list: ListView<'_>, wanted: Element<'_>, mut show: impl FnMut(usize) -> ControlFlow<()>) {
        let len = list.len();
        let from = if self.backward { len.wrapping_sub(1) } else { 0 };
        let (mut place, mut matches) = (0, 0);
        list.visit_from(from, self.backward, |element| {
            place += 1;
            if element == wanted {
                matches += 1;
                if matches >= self.rank {
                    show(if self.backward { len - place } else { place - 1 })?;
                }
            }
            if place == self.len_max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
    }
}

/// The error for `RANK 0`.
const RANK_ZERO: &str = "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list";

/// Parses a nonnegative number; 0 means no limit. Replies with `wrong` and returns `None` if the
/// argument isn't one.
fn all_if_zero(argument: &[u8], wrong: &str, reply: &mut Reply<'_>) -> Option<usize> {
    let number = parse_i64(argument).and_then(|number| usize::try_from(number).ok());
    if number.is_none() {
        reply.error(wrong);
    }
    number.map(|number| if number == 0 { usize::MAX } else { number })
}

/// `LPOS key element [RANK rank] [COUNT num-matches] [MAXLEN len]`.
pub fn lpos(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(search) = Search::parse(args, reply) else { return };
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    let list = match db.read_as::<List>(&key) {
        Err(_) => return reply.error(errors::WRONG_TYPE),
        Ok(list) => list,
    };
    let wanted = Element::of(args.at(2));
    let Some(list) = list else {
        return if search.count.is_some() { reply.array(0) } else { reply.null() };
    };
    let Some(count) = search.count else {
        let mut first = None;
        search.run(list, wanted, |place| {
            first = Some(place);
            ControlFlow::Break(())
        });
        return match first {
            Some(place) => reply.integer(place as i64),
            None => reply.null(),
        };
    };
    let array = reply.defer_array();
    let mut written = 0;
    search.run(list, wanted, |place| {
        reply.integer(place as i64);
        written += 1;
        if written == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    reply.patch(array, written);
}
