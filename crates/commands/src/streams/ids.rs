//! Ids as arguments; ids and entries as replies.

use pantala_resp::{Args, Reply};
use pantala_types::pack::Element;
use pantala_types::stream::{Fields, IdText, StreamId};

use crate::arguments::c_string;

/// What isn't an id.
pub(super) const INVALID_ID: &str = "ERR Invalid stream ID specified as stream command argument";

/// The id that an argument is; `missing_seq` is its number where it has none.
pub(super) fn id(argument: &[u8], missing_seq: u64, reply: &mut Reply<'_>) -> Option<StreamId> {
    or_error(StreamId::parse(argument, missing_seq), reply)
}

/// As [`id`], or `-` for the first and `+` for the last.
fn id_or_end(argument: &[u8], missing_seq: u64, reply: &mut Reply<'_>) -> Option<StreamId> {
    or_error(parse_id_or_end(argument, missing_seq), reply)
}

fn or_error(id: Option<StreamId>, reply: &mut Reply<'_>) -> Option<StreamId> {
    if id.is_none() {
        reply.error(INVALID_ID);
    }
    id
}

/// As [`StreamId::parse`], or `-` for the first and `+` for the last.
pub(super) fn parse_id_or_end(argument: &[u8], missing_seq: u64) -> Option<StreamId> {
    match c_string(argument) {
        b"-" if argument.len() < LONGEST_PARSED => Some(StreamId::MIN),
        b"+" if argument.len() < LONGEST_PARSED => Some(StreamId::MAX),
        _ => StreamId::parse(argument, missing_seq),
    }
}

/// Redis reads ids through a buffer of this size.
const LONGEST_PARSED: usize = 128;

/// The first id of a range: inclusive, or exclusive after a parenthesis.
pub(super) fn start(argument: &[u8], reply: &mut Reply<'_>) -> Option<StreamId> {
    let [b'(', rest @ ..] = argument else { return id_or_end(argument, 0, reply) };
    if rest.is_empty() {
        return id_or_end(argument, 0, reply);
    }
    let start = id(rest, 0, reply)?.next();
    if start.is_none() {
        reply.error("ERR invalid start ID for the interval");
    }
    start
}

/// The last id of a range, as [`start`].
pub(super) fn end(argument: &[u8], reply: &mut Reply<'_>) -> Option<StreamId> {
    let [b'(', rest @ ..] = argument else { return id_or_end(argument, u64::MAX, reply) };
    if rest.is_empty() {
        return id_or_end(argument, u64::MAX, reply);
    }
    let end = id(rest, u64::MAX, reply)?.previous();
    if end.is_none() {
        reply.error("ERR invalid end ID for the interval");
    }
    end
}

/// How many ids are kept without an allocation.
const FEW: usize = 8;

/// Ids of one call.
pub(super) struct Ids {
    few: [StreamId; FEW],
    many: Vec<StreamId>,
    len: usize,
}

impl Ids {
    pub(super) fn new() -> Self {
        Ids { few: [StreamId::MIN; FEW], many: Vec::new(), len: 0 }
    }

    /// The ids that arguments are; `None`: one of them isn't.
    pub(super) fn of(args: Args<'_>) -> Option<Ids> {
        let mut ids = Ids::new();
        for argument in args {
            ids.push(StreamId::parse(argument, 0)?);
        }
        Some(ids)
    }

    pub(super) fn push(&mut self, id: StreamId) {
        if let Some(room) = self.few.get_mut(self.len) {
            *room = id;
        } else {
            if self.many.is_empty() {
                self.many.extend_from_slice(&self.few);
            }
            self.many.push(id);
        }
        self.len += 1;
    }

    pub(super) fn as_slice(&self) -> &[StreamId] {
        if self.len <= FEW { &self.few[..self.len] } else { &self.many }
    }
}

/// Replies an id.
#[inline]
pub(super) fn write_id(id: StreamId, reply: &mut Reply<'_>) {
    reply.bulk(id.write(&mut IdText::new()));
}

/// Replies an entry.
#[inline]
pub(super) fn write_entry(id: StreamId, fields: Fields<'_>, reply: &mut Reply<'_>) {
    reply.array(2);
    write_id(id, reply);
    reply.array(2 * fields.len());
    for (name, value) in fields {
        write_element(name, reply);
        write_element(value, reply);
    }
}

#[inline]
fn write_element(element: Element<'_>, reply: &mut Reply<'_>) {
    match element {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Int(value) => reply.bulk_integer(value),
    }
}
