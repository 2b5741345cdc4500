//! Writes values for `DUMP`, `MIGRATE` and files.

use pantala_base::double::{DOUBLE_LEN_MAX, format_double};

use super::{LISTPACK_BYTES_MAX, NODE_PACKED, NODE_PLAIN, ValueRef, Writer, kind, listpack};
use crate::collection::Collection;
use crate::cut::{CutId, CutState, PieceMax};
use crate::hash::HashView;
use crate::list::{ListView, Run};
use crate::pack::{Element, Pack, TwoWay};
use crate::set::SetView;
use crate::sorted_set::SortedSetView;
use crate::stream::{CutPart, Group, Stream, StreamId};
use crate::value::Value;

/// Writes a value with its type byte. The form is that of Redis 7.0 for the encoding that `OBJECT
/// ENCODING` shows.
pub fn write(value: ValueRef<'_>, writer: &mut Writer<'_>) {
    writer.put(&[kind_of(value)]);
    write_body(value, writer);
}

/// Returns the type byte of the value that [`write_body`] writes.
#[must_use]
pub fn kind_of(value: ValueRef<'_>) -> u8 {
    match value {
        ValueRef::Int(_) | ValueRef::String(_) => kind::STRING,
        ValueRef::List(_) => kind::LIST_QUICKLIST_2,
        ValueRef::Hash(HashView::Packed(_)) | ValueRef::HashAt(HashView::Packed(_), _) => kind::HASH_LISTPACK,
        ValueRef::Hash(_) | ValueRef::HashAt(..) => kind::HASH,
        ValueRef::ExpiringHash(..) => kind::HASH_METADATA,
        ValueRef::Set(SetView::IntSet(_)) => kind::SET_INTSET,
        ValueRef::Set(_) => kind::SET,
        ValueRef::SortedSet(SortedSetView::Packed(_)) => kind::ZSET_LISTPACK,
        ValueRef::SortedSet(_) => kind::ZSET_2,
        ValueRef::Stream(_) => kind::STREAM_LISTPACKS_2,
    }
}

/// Writes the body of a value. In a file, the key is between the type byte ([`kind_of`]) and the
/// body.
pub fn write_body(value: ValueRef<'_>, writer: &mut Writer<'_>) {
    match value {
        ValueRef::Int(value) => writer.put_integer(value),
        ValueRef::String(bytes) => writer.put_string(bytes),
        ValueRef::List(list) => write_list(list, writer),
        ValueRef::Hash(hash) => write_hash(hash, i64::MIN, writer),
        ValueRef::HashAt(hash, now_ms) => write_hash(hash, now_ms, writer),
        ValueRef::ExpiringHash(hash, now_ms) => write_expiring_hash(hash, now_ms, writer),
        ValueRef::Set(set) => write_set(set, writer),
        ValueRef::SortedSet(set) => write_sorted_set(set, writer),
        ValueRef::Stream(stream) => write_stream(stream, writer),
    }
}

/// Starts a cut of a value (see `crate::cut`) and writes the number of elements or nodes.
/// [`write_cut`] then writes the elements that the value has now, even if the value changes
/// meanwhile. Returns `false` and does nothing if the value can't have a cut: a string, a packed
/// collection, or a hash with fields that expire.
pub fn begin_cut(value: ValueRef<'_>, writer: &mut Writer<'_>) -> bool {
    let len = match value {
        ValueRef::List(list) if list.begin_cut() => list.runs(),
        ValueRef::Stream(stream) => {
            let mut tail = Vec::new();
            write_stream_tail(stream, &mut Writer::new(&mut tail, false));
            stream.begin_cut(tail);
            stream.nodes_len()
        }
        ValueRef::Hash(HashView::Table(table)) => {
            table.begin_cut();
            table.len()
        }
        ValueRef::Set(SetView::Table(table)) => {
            table.begin_cut();
            table.len()
        }
        ValueRef::SortedSet(SortedSetView::Large(set)) => {
            set.begin_cut();
            set.len()
        }
        _ => return false,
    };
    writer.put_length(len as u64);
    true
}

/// Writes a piece of a value's cut.
pub fn write_cut(value: ValueRef<'_>, max: PieceMax, writer: &mut Writer<'_>) -> CutState {
    match value {
        ValueRef::List(list) => list.read_cut(max, |run| write_run(run, writer)),
        ValueRef::Stream(stream) => stream.read_cut(max, |part| match part {
            CutPart::Node(first, listpack) => {
                writer.put_string(&raw(first));
                writer.put_string(&listpack);
            }
            CutPart::Tail(bytes) => writer.put(bytes),
        }),
        // A field may have received an expiry time since the cut started. The hash is then an
        // `ExpiringHash`, and the cut belongs to the plain hash inside it.
        ValueRef::Hash(hash) => match hash.plain() {
            HashView::Table(table) => table.read_cut(max, |pair| {
                writer.put_string(pair.field());
                writer.put_string(pair.value());
                pair.field().len() + pair.value().len()
            }),
            _ => CutState::Lost,
        },
        ValueRef::Set(SetView::Table(table)) => {
            let write = |bytes: &[u8], writer: &mut Writer<'_>| {
                writer.put_string(bytes);
                bytes.len()
            };
            table.read_cut(max, |member| member.element().with_bytes(|bytes| write(bytes, writer)))
        }
        ValueRef::SortedSet(SortedSetView::Large(set)) => set.read_cut(max, |member, score| {
            writer.put_string(member);
            writer.put(&score.to_le_bytes());
            member.len()
        }),
        _ => CutState::Lost,
    }
}

/// Ends a value's cut, if one runs.
pub fn end_cut(value: ValueRef<'_>) {
    match value {
        ValueRef::List(list) => list.end_cut(),
        ValueRef::Stream(stream) => stream.end_cut(),
        ValueRef::Hash(hash) => {
            if let HashView::Table(table) = hash.plain() {
                table.end_cut();
            }
        }
        ValueRef::Set(SetView::Table(table)) => table.end_cut(),
        ValueRef::SortedSet(SortedSetView::Large(set)) => set.end_cut(),
        _ => {}
    }
}

/// Returns the id of a value's cut, if one runs.
#[must_use]
pub fn cut_id(value: &Value) -> Option<CutId> {
    match value {
        Value::String(_) => None,
        Value::List(list) => match list.view() {
            ListView::Packed(_) => None,
            ListView::Nodes(list) => list.cut_id(),
        },
        Value::Hash(hash) => match hash.view().plain() {
            HashView::Table(table) => table.cut_id(),
            _ => None,
        },
        Value::Set(set) => match set.view() {
            SetView::Table(table) => table.cut_id(),
            _ => None,
        },
        Value::SortedSet(set) => match set.view() {
            SortedSetView::Packed(_) => None,
            SortedSetView::Large(set) => set.cut_id(),
        },
        Value::Stream(stream) => stream.cut_id(),
    }
}

fn write_list(list: ListView<'_>, writer: &mut Writer<'_>) {
    writer.put_length(list.runs() as u64);
    for number in 0..list.runs() {
        list.with_run(number, |run| write_run(run, writer));
    }
}

fn write_run(run: Run<'_>, writer: &mut Writer<'_>) {
    let entries = &run.pack.as_bytes()[run.first..run.end];
    // Only a node of a single element can be this large.
    if run.len == 1 && entries.len() + listpack::FRAME_BYTES > LISTPACK_BYTES_MAX {
        writer.put_length(NODE_PLAIN);
        run.pack.get(run.first).with_bytes(|bytes| writer.put_string(bytes));
    } else {
        writer.put_length(NODE_PACKED);
        writer.put_string(&listpack::of(entries, run.len));
    }
}

fn write_set(set: SetView<'_>, writer: &mut Writer<'_>) {
    if let SetView::IntSet(set) = set {
        return writer.put_string(set.as_bytes());
    }
    writer.put_length(set.len() as u64);
    set.for_each(|member| member.with_bytes(|bytes| writer.put_string(bytes)));
}

fn write_hash(hash: HashView<'_>, now_ms: i64, writer: &mut Writer<'_>) {
    if let HashView::Packed(pack) = hash {
        let mut entries = Vec::with_capacity(pack.end() + pack.len());
        pack.write_entries::<TwoWay>(&mut entries);
        return writer.put_string(&listpack::of(&entries, pack.len()));
    }
    writer.put_length(hash.len_at(now_ms) as u64);
    hash.for_each_at(now_ms, |field, value| {
        field.with_bytes(|bytes| writer.put_string(bytes));
        value.with_bytes(|bytes| writer.put_string(bytes));
    });
}

/// Writes a hash with fields that expire, as Redis 7.4 does. An expiry time is written as its
/// difference from the earliest expiry time, plus one. 0 means that the field doesn't expire.
fn write_expiring_hash(hash: HashView<'_>, now_ms: i64, writer: &mut Writer<'_>) {
    let time = |field: Element<'_>| field.with_bytes(|field| hash.expiry(field));
    let mut earliest_ms = i64::MAX;
    hash.for_each_at(now_ms, |field, _| earliest_ms = earliest_ms.min(time(field).unwrap_or(i64::MAX)));
    let earliest_ms = if earliest_ms == i64::MAX { 0 } else { earliest_ms };
    writer.put(&earliest_ms.to_le_bytes());
    writer.put_length(hash.len_at(now_ms) as u64);
    hash.for_each_at(now_ms, |field, value| {
        writer.put_length(time(field).map_or(0, |at_ms| (at_ms - earliest_ms) as u64 + 1));
        field.with_bytes(|bytes| writer.put_string(bytes));
        value.with_bytes(|bytes| writer.put_string(bytes));
    });
}

fn write_sorted_set(set: SortedSetView<'_>, writer: &mut Writer<'_>) {
    if let SortedSetView::Packed(_) = set {
        // Scores that aren't integers are text in a listpack, with the 17 digits of Redis 7.0.
        let mut pack = <Pack>::new();
        for (member, score) in set.iter() {
            member.with_bytes(|member| pack.push_back(member));
            match set.stored_integer(score) {
                Some(score) => pack.push_back_element(Element::Int(score)),
                None => pack.push_back(format_double(score, &mut [0; DOUBLE_LEN_MAX])),
            }
        }
        return writer.put_string(&listpack::of(pack.as_ref().entries(), pack.as_ref().len()));
    }
    writer.put_length(set.len() as u64);
    write_scores(set, 0..set.len(), writer);
}

/// Writes the members with these ranks in descending order, as Redis does, because a loading Redis
/// builds its skip list fastest in this order.
fn write_scores(set: SortedSetView<'_>, ranks: std::ops::Range<usize>, writer: &mut Writer<'_>) {
    for (member, score) in set.range(ranks, true) {
        member.with_bytes(|member| writer.put_string(member));
        writer.put(&score.to_le_bytes());
        writer.drain_if_full();
    }
}

fn write_stream(stream: &Stream, writer: &mut Writer<'_>) {
    writer.put_length(stream.nodes_len() as u64);
    for (first, listpack) in stream.listpacks() {
        writer.put_string(&raw(first));
        writer.put_string(&listpack);
    }
    write_stream_tail(stream, writer);
}

/// Writes the part of a stream's body that follows its nodes: counters and groups.
fn write_stream_tail(stream: &Stream, writer: &mut Writer<'_>) {
    let counters = stream.counters();
    writer.put_length(counters.length);
    for id in [counters.last_id, counters.first_id, counters.max_deleted_id] {
        write_id(id, writer);
    }
    writer.put_length(counters.entries_added);
    writer.put_length(stream.groups_len() as u64);
    for group in stream.groups() {
        write_group(group, writer);
    }
}

fn write_group(group: &Group, writer: &mut Writer<'_>) {
    writer.put_string(group.name());
    write_id(group.last_id(), writer);
    writer.put_length(group.entries_read() as u64);
    writer.put_length(group.pending_len() as u64);
    for pending in group.pending_from(StreamId::MIN) {
        writer.put(&raw(pending.id));
        writer.put(&pending.delivered_ms.to_le_bytes());
        writer.put_length(pending.deliveries);
        writer.drain_if_full();
    }
    writer.put_length(group.consumers_len() as u64);
    for consumer in group.consumers() {
        writer.put_string(consumer.name());
        writer.put(&consumer.seen_ms().to_le_bytes());
        writer.put_length(consumer.pending_len() as u64);
        consumer.pending().for_each(|id| writer.put(&raw(id)));
    }
}

fn write_id(id: StreamId, writer: &mut Writer<'_>) {
    writer.put_length(id.ms);
    writer.put_length(id.seq);
}

/// Returns an id as 16 bytes, big-endian, like a key in Redis's radix trees.
fn raw(id: StreamId) -> [u8; 16] {
    (u128::from(id.ms) << 64 | u128::from(id.seq)).to_be_bytes()
}
