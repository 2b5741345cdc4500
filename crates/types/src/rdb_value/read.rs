//! Reads values in the forms that Redis 7.0 reads, for `RESTORE` and files.

use std::borrow::Cow;

use super::{Error, Limits, Loaded, NODE_PACKED, NODE_PLAIN, Reader, kind, listpack, ziplist, zipmap};
use super::{read_sorted_set as sorted_set, read_stream as stream};
use crate::Collection;
use crate::hash::Hash;
use crate::list::{ELEMENT_BYTES_MAX, End, List};
use crate::pack::Pack;
use crate::set::{IntSet, Set};

pub(super) const EMPTY: Error = Error::Empty;

/// Reads a value with its type byte.
///
/// # Errors
/// [`Error`]: truncated, corrupt, of an unknown type, empty, or out of memory.
pub fn read<'a>(reader: &mut Reader<'a>, limits: &Limits) -> Result<Loaded<'a>, Error> {
    let kind = reader.byte()?;
    read_body(kind, reader, limits)
}

/// Reads the body of a value of `kind`. In a file, the key is between the type byte and the body.
///
/// # Errors
/// As [`read`].
pub fn read_body<'a>(kind: u8, reader: &mut Reader<'a>, limits: &Limits) -> Result<Loaded<'a>, Error> {
    Ok(match kind {
        kind::STRING => Loaded::String(reader.string()?),
        kind::LIST => Loaded::List(list_of_elements(reader, limits)?),
        kind::LIST_ZIPLIST => Loaded::List(list_of_ziplist(reader, limits)?),
        kind::LIST_QUICKLIST => Loaded::List(list_of_nodes(reader, limits, false)?),
        kind::LIST_QUICKLIST_2 => Loaded::List(list_of_nodes(reader, limits, true)?),
        kind::SET => Loaded::Set(set_of_members(reader, limits)?),
        kind::SET_INTSET => Loaded::Set(set_of_integers(reader, limits)?),
        kind::ZSET => Loaded::SortedSet(sorted_set::of_members(reader, limits, sorted_set::text_score)?),
        kind::ZSET_2 => Loaded::SortedSet(sorted_set::of_members(reader, limits, sorted_set::binary_score)?),
        kind::ZSET_ZIPLIST => Loaded::SortedSet(sorted_set::of_pack(&ziplist::read(&reader.string()?)?, limits)?),
        kind::ZSET_LISTPACK => Loaded::SortedSet(sorted_set::of_pack(&listpack::read(&reader.string()?)?, limits)?),
        kind::STREAM_LISTPACKS => Loaded::Stream(stream::of_nodes(reader, stream::Form::Uncounted)?),
        kind::STREAM_LISTPACKS_2 => Loaded::Stream(stream::of_nodes(reader, stream::Form::Counted)?),
        kind::HASH => Loaded::Hash(hash_of_fields(reader, limits)?),
        kind::HASH_ZIPMAP => Loaded::Hash(hash_of_zipmap(reader, limits)?),
        kind::HASH_ZIPLIST => Loaded::Hash(hash_of_pack(&ziplist::read(&reader.string()?)?, limits)?),
        kind::HASH_LISTPACK => Loaded::Hash(hash_of_pack(&listpack::read(&reader.string()?)?, limits)?),
        _ => return Err(Error::UnknownKind(kind)),
    })
}

/// Reads a string that may be an element of a collection.
pub(super) fn element<'a>(reader: &mut Reader<'a>) -> Result<Cow<'a, [u8]>, Error> {
    let bytes = reader.string()?;
    if bytes.len() > ELEMENT_BYTES_MAX { Err(Error::Corrupt("element too long")) } else { Ok(bytes) }
}

/// Reads the number of elements, each of at least `bytes_min` bytes. Returns [`Error::Empty`] if
/// there are none.
pub(super) fn nonzero_count(reader: &mut Reader<'_>, bytes_min: usize) -> Result<usize, Error> {
    match reader.count(bytes_min)? {
        0 => Err(EMPTY),
        count => Ok(count),
    }
}

fn list_of_elements(reader: &mut Reader<'_>, limits: &Limits) -> Result<List, Error> {
    let mut list = List::empty();
    for _ in 0..nonzero_count(reader, 1)? {
        list.push(End::Right, &element(reader)?, limits.list_node);
    }
    Ok(list)
}

fn list_of_ziplist(reader: &mut Reader<'_>, limits: &Limits) -> Result<List, Error> {
    let pack = ziplist::read(&reader.string()?)?;
    let mut list = List::empty();
    list.append(pack.as_ref(), limits.list_node);
    if list.is_empty() { Err(EMPTY) } else { Ok(list) }
}

/// Reads a list of nodes. `listpacks` selects the newer form, in which each node has a type.
fn list_of_nodes(reader: &mut Reader<'_>, limits: &Limits, listpacks: bool) -> Result<List, Error> {
    let mut list = List::empty();
    for _ in 0..nonzero_count(reader, if listpacks { 2 } else { 1 })? {
        let container = if listpacks { reader.length()? } else { NODE_PACKED };
        let node = element(reader)?;
        if node.is_empty() {
            return Err(EMPTY);
        }
        let pack = match container {
            NODE_PLAIN => {
                list.push(End::Right, &node, limits.list_node);
                continue;
            }
            NODE_PACKED if listpacks => listpack::read(&node)?,
            NODE_PACKED => ziplist::read(&node)?,
            _ => return Err(Error::Corrupt("node of a list")),
        };
        list.append(pack.as_ref(), limits.list_node);
    }
    // The list may be empty although it has nodes: empty nodes are skipped, as in Redis.
    if list.is_empty() { Err(EMPTY) } else { Ok(list) }
}

fn set_of_members(reader: &mut Reader<'_>, limits: &Limits) -> Result<Set, Error> {
    let mut set = Set::empty();
    for _ in 0..nonzero_count(reader, 1)? {
        if !set.add(&element(reader)?, limits.set_intset_entries_max) {
            return Err(Error::Corrupt("duplicate member"));
        }
    }
    Ok(set)
}

fn set_of_integers(reader: &mut Reader<'_>, limits: &Limits) -> Result<Set, Error> {
    let set = IntSet::try_from_bytes(&reader.string()?).ok_or(Error::Corrupt("intset"))?;
    Ok(Set::from_intset(set, limits.set_intset_entries_max))
}

fn hash_of_fields(reader: &mut Reader<'_>, limits: &Limits) -> Result<Hash, Error> {
    let mut hash = Hash::empty();
    for _ in 0..nonzero_count(reader, 2)? {
        let (field, value) = (element(reader)?, element(reader)?);
        set_new(&mut hash, &field, &value, limits)?;
    }
    Ok(hash)
}

fn hash_of_zipmap(reader: &mut Reader<'_>, limits: &Limits) -> Result<Hash, Error> {
    let bytes = reader.string()?;
    let mut hash = Hash::empty();
    for (field, value) in zipmap::read(&bytes)? {
        set_new(&mut hash, field, value, limits)?;
    }
    Ok(hash)
}

pub(super) fn set_new(hash: &mut Hash, field: &[u8], value: &[u8], limits: &Limits) -> Result<(), Error> {
    if hash.set(field, value, limits.hash) { Ok(()) } else { Err(Error::Corrupt("duplicate field")) }
}

fn hash_of_pack(pack: &Pack, limits: &Limits) -> Result<Hash, Error> {
    if pack.as_ref().is_empty() {
        return Err(EMPTY);
    }
    if !listpack::has_distinct_keys(pack.as_ref()) {
        return Err(Error::Corrupt("fields of a hash"));
    }
    Ok(Hash::from_pack(pack.as_ref().try_to_one_way()?, limits.hash))
}
