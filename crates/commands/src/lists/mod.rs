//! List commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `ends` | `LPUSH`, `RPUSH`, `LPUSHX`, `RPUSHX`, `LPOP`, `RPOP`, `LMPOP` |
//! | `elements` | `LLEN`, `LINDEX`, `LRANGE`, `LPOS`, `LSET`, `LINSERT`, `LREM`, `LTRIM` |
//! | `moves` | `LMOVE`, `RPOPLPUSH` |
//! | `waiting` | `BLPOP`, `BRPOP`, `BLMPOP`, `BLMOVE`, `BRPOPLPUSH` |
//!
//! A push or a pop probes the dictionary once and allocates nothing but what the list needs.

mod elements;
mod ends;
mod moves;
#[cfg(test)]
mod tests;
mod waiting;

use pantala_engine::db::Change;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::Reply;
use pantala_types::list::{ELEMENT_BYTES_MAX, End};
use pantala_types::pack::Element;

use crate::arguments::is_option;
use crate::errors;

pub use elements::*;
pub use ends::*;
pub use moves::*;
pub use waiting::*;

/// Replies an element.
#[inline]
fn write_element(element: Element<'_>, reply: &mut Reply<'_>) {
    match element {
        Element::Int(value) => reply.bulk_integer(value),
        Element::Bytes(bytes) => reply.bulk(bytes),
    }
}

/// `LEFT` or `RIGHT`. `None`: neither, and the reply says so.
fn end(argument: &[u8], reply: &mut Reply<'_>) -> Option<End> {
    if is_option(argument, "LEFT") {
        Some(End::Left)
    } else if is_option(argument, "RIGHT") {
        Some(End::Right)
    } else {
        reply.error(errors::SYNTAX);
        None
    }
}

/// Whether elements can be stored; the reply says so if not. They are shorter than that unless `proto-max-bulk-len` was raised.
#[inline]
fn storable<'a>(mut elements: impl Iterator<Item = &'a [u8]>, reply: &mut Reply<'_>) -> bool {
    let storable = elements.all(|element| element.len() <= ELEMENT_BYTES_MAX);
    if !storable {
        reply.error("ERR Element too large");
    }
    storable
}

/// The change of a key that is pushed to at an end.
fn pushed(end: End) -> Change {
    Change::event(match end {
        End::Left => &Event(EventClass::List, "lpush"),
        End::Right => &Event(EventClass::List, "rpush"),
    })
}

/// The event of a pop from an end.
fn pop_event(end: End) -> &'static Event {
    match end {
        End::Left => &Event(EventClass::List, "lpop"),
        End::Right => &Event(EventClass::List, "rpop"),
    }
}

/// The change of a key that is popped from at an end.
fn popped(end: End) -> Change {
    Change::event(pop_event(end))
}
