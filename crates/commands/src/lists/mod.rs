//! List commands.
//!
//! | file | commands |
//! | --- | --- |
//! | `ends` | `LPUSH`, `RPUSH`, `LPUSHX`, `RPUSHX`, `LPOP`, `RPOP`, `LMPOP` |
//! | `elements` | `LLEN`, `LINDEX`, `LRANGE`, `LPOS`, `LSET`, `LINSERT`, `LREM`, `LTRIM` |
//! | `moves` | `LMOVE`, `RPOPLPUSH` |
//! | `blocking` | `BLPOP`, `BRPOP`, `BLMPOP`, `BLMOVE`, `BRPOPLPUSH` |
//!
//! A push or a pop looks its key up once. It allocates memory only for the list itself.

mod blocking;
mod elements;
mod ends;
mod moves;
#[cfg(test)]
mod tests;

use pantala_engine::db::Change;
use pantala_engine::notify::{Event, EventClass};
use pantala_resp::Reply;
use pantala_types::list::{ELEMENT_BYTES_MAX, End};
use pantala_types::pack::Element;

use crate::arguments::is_option;
use crate::errors;

pub use blocking::*;
pub use elements::*;
pub use ends::*;
pub use moves::*;

/// Replies with an element.
#[inline]
fn write_element(element: Element<'_>, reply: &mut Reply<'_>) {
    match element {
        Element::Int(value) => reply.bulk_integer(value),
        Element::Bytes(bytes) => reply.bulk(bytes),
    }
}

/// Parses `LEFT` or `RIGHT`. Replies with an error and returns `None` for anything else.
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

/// Returns whether the elements can be stored. If not, replies with an error. They can always be
/// stored if `proto-max-bulk-len` has its default or a lower value.
#[inline]
fn storable<'a>(mut elements: impl Iterator<Item = &'a [u8]>, reply: &mut Reply<'_>) -> bool {
    let storable = elements.all(|element| element.len() <= ELEMENT_BYTES_MAX);
    if !storable {
        reply.error("ERR Element too large");
    }
    storable
}

/// Returns the change of a push at an end.
fn pushed(end: End) -> Change {
    Change::event(match end {
        End::Left => &Event(EventClass::List, "lpush"),
        End::Right => &Event(EventClass::List, "rpush"),
    })
}

/// Returns the keyspace event of a pop from an end.
fn pop_event(end: End) -> &'static Event {
    match end {
        End::Left => &Event(EventClass::List, "lpop"),
        End::Right => &Event(EventClass::List, "rpop"),
    }
}

/// Returns the change of a pop from an end.
fn popped(end: End) -> Change {
    Change::event(pop_event(end))
}
