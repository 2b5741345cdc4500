//! Parses IDs in arguments; writes IDs and entries to replies.

use pantala_resp::{Args, Reply};
use pantala_types::pack::Element;
use pantala_types::stream::{Fields, IdText, StreamId};

use crate::arguments::c_string;

/// The error for an invalid ID.
pub(super) const INVALID_ID: &str = "ERR Invalid stream ID specified as stream command argument";

/// Parses an ID. If it has no sequence number, `missing_seq` is used. Replies with an error and
/// returns `None` if the ID is invalid.
pub(super) fn id(argument: &[u8], missing_seq: u64, reply: &mut Reply<'_>) -> Option<StreamId> {
    or_error(StreamId::parse(argument, missing_seq), reply)
}

/// Parses an ID like [`id`]; `-` stands for the first ID and `+` for the last.
fn id_or_end(argument: &[u8], missing_seq: u64, reply: &mut Reply<'_>) -> Option<StreamId> {
    or_error(parse_id_or_end(argument, missing_seq), reply)
}

fn or_error(id: Option<StreamId>, reply: &mut Reply<'_>) -> Option<StreamId> {
    if id.is_none() {
        reply.error(INVALID_ID);
    }
    id
}

/// Parses an ID like [`StreamId::parse`]; `-` stands for the first ID and `+` for the last.
pub(super) fn parse_id_or_end(argument: &[u8], missing_seq: u64) -> Option<StreamId> {
    match c_string(argument) {
        b"-" if argument.len() < ID_BUFFER_BYTES => Some(StreamId::MIN),
        b"+" if argument.len() < ID_BUFFER_BYTES => Some(StreamId::MAX),
        _ => StreamId::parse(argument, missing_seq),
    }
}

/// Size of Redis's buffer for parsing IDs, in bytes.
const ID_BUFFER_BYTES: usize = 128;

/// Parses the first ID of a range. The ID is exclusive after a parenthesis, and otherwise
/// inclusive.
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

/// Parses the last ID of a range. The ID is exclusive after a parenthesis, and otherwise inclusive.
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

/// Number of IDs that [`Ids`] holds without an allocation.
const INLINE_MAX: usize = 8;

/// The IDs in the arguments of one call.
pub(super) struct Ids {
    inline: [StreamId; INLINE_MAX],
    heap: Vec<StreamId>,
    len: usize,
}

impl Ids {
    pub(super) fn new() -> Self {
        Ids { inline: [StreamId::MIN; INLINE_MAX], heap: Vec::new(), len: 0 }
    }

    /// Parses arguments as IDs; `None` if one of them is invalid.
    pub(super) fn of(args: Args<'_>) -> Option<Ids> {
        let mut ids = Ids::new();
        for argument in args {
            ids.push(StreamId::parse(argument, 0)?);
        }
        Some(ids)
    }

    pub(super) fn push(&mut self, id: StreamId) {
        if let Some(place) = self.inline.get_mut(self.len) {
            *place = id;
        } else {
            if self.heap.is_empty() {
                self.heap.extend_from_slice(&self.inline);
            }
            self.heap.push(id);
        }
        self.len += 1;
    }

    pub(super) fn as_slice(&self) -> &[StreamId] {
        if self.len <= INLINE_MAX { &self.inline[..self.len] } else { &self.heap }
    }
}

/// Replies with an ID.
#[inline]
pub(super) fn write_id(id: StreamId, reply: &mut Reply<'_>) {
    reply.bulk(id.write(&mut IdText::new()));
}

/// Replies with an entry.
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
